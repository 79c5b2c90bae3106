//! Detects allocations that failed while a host was disconnected. The remote agent restarts with each connection and
//! counts failures only from then on. Failures that occur in between are found by comparing the new counters with the
//! last ones received before the disconnection.

use std::collections::BTreeMap;

use gputop_model::event::OomCountIncreased;
use gputop_model::frame::MAX_TRACKED_POOLS;
use gputop_model::{Event, Frame, Hello, Mono, Observation, ProcessKey};

type PoolKey = (ProcessKey, u32);

/// `num_ooms` of each pool and the time when it was received.
type OomCounts = BTreeMap<PoolKey, (u64, Mono)>;

#[derive(Debug, Default)]
pub(super) struct Counters {
    boot_id: String,
    agent: String,
    current: OomCounts,
    /// Failure counts received from earlier agents. Each count is compared only once.
    before: OomCounts,
    /// Number of events created on this host, used as their sequence numbers.
    event_count: u64,
}

impl Counters {
    pub(super) fn hello(&mut self, hello: &Hello) {
        if hello.boot_id == self.boot_id {
            // Keep counts from all earlier connections. A count from before the last connection may still be the
            // newest one known.
            self.before.append(&mut self.current);
            if self.before.len() > MAX_TRACKED_POOLS {
                self.before.clear();
            }
        } else {
            (self.before, self.current) = Default::default();
        }
        self.boot_id.clone_from(&hello.boot_id);
        self.agent.clone_from(&hello.agent);
    }

    /// Returns an event for each pool whose counter increased while the host was disconnected. Each event is returned
    /// with the first frame in which the pool reappears.
    pub(super) fn frame(&mut self, frame: &Frame) -> Vec<Event> {
        let mut missed = Vec::new();
        let Some(pools) = &frame.pools else { return missed };
        let mut current = OomCounts::new();
        for pool in &*pools.list {
            let key = (pool.process, pool.ordinal);
            let after = pool.stats.num_ooms;
            current.insert(key, (after, pool.at));
            let Some((before, since)) = self.before.remove(&key) else { continue };
            if after > before {
                missed.push(Event {
                    boot_id: self.boot_id.clone(),
                    // No agent name contains a plus sign, so a plus sign marks events created on this host.
                    agent: format!("{}+", self.agent),
                    seq: self.event_count,
                    time: frame.time,
                    mono: frame.mono,
                    process: Some(pool.process),
                    gpu: pool.gpu.value().cloned(),
                    observation: Observation::Ooms(Box::new(OomCountIncreased {
                        before,
                        after,
                        ordinal: pool.ordinal,
                        since,
                        stats: pool.stats.clone(),
                    })),
                });
                self.event_count += 1;
            }
        }
        // Remove processes that have exited.
        if let Some(list) = &frame.processes {
            let is_there = |key: &PoolKey| list.list.iter().any(|one| one.key == key.0);
            self.before.retain(|key, _| is_there(key));
        }
        self.current = current;
        missed
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use gputop_model::pool::{Pool, PoolStats, Pools};

    fn hello(agent: &str, boot_id: &str) -> Hello {
        Hello { agent: agent.into(), boot_id: boot_id.into(), ..Hello::default() }
    }

    fn frame(mono: u64, ooms: &[(u32, u64)]) -> Frame {
        let pools = ooms.iter().map(|&(pid, num_ooms)| Pool {
            process: ProcessKey::new(pid, 7),
            at: Mono(mono),
            stats: PoolStats { num_ooms, ..PoolStats::default() },
            ..Pool::default()
        });
        Frame {
            mono: Mono(mono),
            pools: Some(Pools { list: Arc::new(pools.collect()), ..Pools::default() }),
            ..Frame::default()
        }
    }

    /// For each event, returns the PID, the counts before and after, and the time of the last known count.
    fn rises(events: &[Event]) -> Vec<(u32, u64, u64, u64)> {
        let rises = events.iter().filter_map(|event| match &event.observation {
            Observation::Ooms(rose) => {
                Some((event.process?.pid.0, rose.before, rose.after, rose.since.0))
            }
            _ => None,
        });
        rises.collect()
    }

    #[test]
    fn reports_failures_between_two_agents_once() {
        let mut counters = Counters::default();
        counters.hello(&hello("a", "boot"));
        assert!(counters.frame(&frame(1_000, &[(1, 0), (2, 3)])).is_empty());
        // The agent that is connected at the time reports this failure itself.
        assert!(counters.frame(&frame(2_000, &[(1, 1), (2, 3)])).is_empty());
        counters.hello(&hello("b", "boot"));
        // A new agent starts without any pools, and may lose the connection before it finds one.
        assert!(counters.frame(&frame(60_000, &[])).is_empty());
        counters.hello(&hello("c", "boot"));
        let missed = counters.frame(&frame(61_000, &[(1, 4), (2, 3), (3, 9)]));
        assert_eq!(rises(&missed), [(1, 1, 4, 2_000)]);
        assert!(counters.frame(&frame(62_000, &[(1, 4), (2, 3)])).is_empty());
        // After a reboot, the same PIDs identify different processes.
        counters.hello(&hello("d", "another"));
        assert!(counters.frame(&frame(5_000, &[(1, 9)])).is_empty());
    }
}
