//! Allocations that failed while a host was not heard: its agent began anew with the link and counts from then on, so what
//! the counters rose by meanwhile is told from what was heard last.

use std::collections::BTreeMap;

use crate::model::event::{Event, Observation, OomsRose};
use crate::model::frame::Frame;
use crate::model::host::Hello;
use crate::model::process::ProcessKey;
use crate::model::units::Mono;

type PoolKey = (ProcessKey, u32);

/// `num_ooms` of each pool and when it was heard.
type OomCounts = BTreeMap<PoolKey, (u64, Mono)>;

#[derive(Debug, Default)]
pub(super) struct Counters {
    boot_id: String,
    agent: String,
    heard: OomCounts,
    /// From another agent than the one that is heard now; each is compared once.
    before: OomCounts,
    /// Events that were made here, for their numbers.
    count: u64,
}

impl Counters {
    pub(super) fn hello(&mut self, hello: &Hello) {
        if hello.boot_id == self.boot_id {
            // What two lost links ago was heard last is still what is known of it.
            self.before.append(&mut self.heard);
        } else {
            (self.before, self.heard) = Default::default();
        }
        self.boot_id.clone_from(&hello.boot_id);
        self.agent.clone_from(&hello.agent);
    }

    /// What has happened meanwhile, by the first frame that tells of each pool again.
    pub(super) fn frame(&mut self, frame: &Frame) -> Vec<Event> {
        let mut missed = Vec::new();
        let Some(pools) = &frame.pools else {
            return missed;
        };
        let mut heard = OomCounts::new();
        for pool in &*pools.list {
            let key = (pool.process, pool.ordinal);
            let after = pool.stats.num_ooms;
            heard.insert(key, (after, pool.at));
            let Some((before, since)) = self.before.remove(&key) else {
                continue;
            };
            if after > before {
                missed.push(Event {
                    boot_id: self.boot_id.clone(),
                    // No name of an agent has a sign in it.
                    agent: format!("{}+", self.agent),
                    seq: self.count,
                    time: frame.time,
                    mono: frame.mono,
                    process: Some(pool.process),
                    gpu: pool.gpu.value().cloned(),
                    observation: Observation::Ooms(Box::new(OomsRose {
                        before,
                        after,
                        ordinal: pool.ordinal,
                        since,
                        stats: pool.stats.clone(),
                    })),
                });
                self.count += 1;
            }
        }
        // Of a process that has ended nothing will be told.
        if let Some(list) = &frame.processes {
            let is_there = |key: &PoolKey| list.list.iter().any(|one| one.key == key.0);
            self.before.retain(|key, _| is_there(key));
        }
        self.heard = heard;
        missed
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::pool::{Pool, PoolStats, Pools};
    use crate::model::units::{Pid, StartTicks};

    fn hello(agent: &str, boot_id: &str) -> Hello {
        Hello {
            agent: agent.into(),
            boot_id: boot_id.into(),
            ..Hello::default()
        }
    }

    fn frame(mono: u64, ooms: &[(u32, u64)]) -> Frame {
        let pools = ooms.iter().map(|&(pid, num_ooms)| Pool {
            process: ProcessKey {
                pid: Pid(pid),
                start: StartTicks(7),
            },
            at: Mono(mono),
            stats: PoolStats {
                num_ooms,
                ..PoolStats::default()
            },
            ..Pool::default()
        });
        Frame {
            mono: Mono(mono),
            pools: Some(Pools {
                list: Arc::new(pools.collect()),
                ..Pools::default()
            }),
            ..Frame::default()
        }
    }

    /// Who, from how many to how many, since when.
    fn told(events: &[Event]) -> Vec<(u32, u64, u64, u64)> {
        let rises = events.iter().filter_map(|event| match &event.observation {
            Observation::Ooms(rose) => {
                Some((event.process?.pid.0, rose.before, rose.after, rose.since.0))
            }
            _ => None,
        });
        rises.collect()
    }

    #[test]
    fn what_failed_between_two_agents_is_told_once() {
        let mut counters = Counters::default();
        counters.hello(&hello("a", "boot"));
        assert!(counters.frame(&frame(1_000, &[(1, 0), (2, 3)])).is_empty());
        // Its agent tells this by itself.
        assert!(counters.frame(&frame(2_000, &[(1, 1), (2, 3)])).is_empty());
        counters.hello(&hello("b", "boot"));
        // At first an agent knows of no pool; and the link may be lost again.
        assert!(counters.frame(&frame(60_000, &[])).is_empty());
        counters.hello(&hello("c", "boot"));
        let missed = counters.frame(&frame(61_000, &[(1, 4), (2, 3), (3, 9)]));
        assert_eq!(told(&missed), [(1, 1, 4, 2_000)]);
        assert!(counters.frame(&frame(62_000, &[(1, 4), (2, 3)])).is_empty());
        // In another boot the same numbers are others.
        counters.hello(&hello("d", "another"));
        assert!(counters.frame(&frame(5_000, &[(1, 9)])).is_empty());
    }
}
