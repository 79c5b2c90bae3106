//! Whose map a recording asks for, and when: all pools in turn, one at a time, and out of turn where it matters.
//!
//! A round is begun each [`DEFAULT_PERIOD`] or as the user said. Out of turn comes a pool that is new, whose `num_ooms`
//! rose, or whose reserved memory reached a new maximum. One question is open at a time, since the stream between a
//! source and its reader holds one map.
//!
//! Eight pools of a training run have 1500 blocks each and cost 40 kB a round, compressed: 62 MB a day if there is one
//! each minute, two thirds of what the frames of that machine take. So without an explicit period there is an
//! allowance: [`SPACE`] at once and [`SPACE_PER_MINUTE`] from then on, and a round waits until there is some again.

use std::collections::{BTreeMap, VecDeque};

use super::Request;
use crate::model::frame::Frame;
use crate::model::pool::{Pool, PoolMap};
use crate::model::process::ProcessKey;
use crate::model::units::{Bytes, Millis, Mono};

pub const DEFAULT_PERIOD: Millis = Millis(60_000);
/// So many bytes of maps may come at once.
pub const SPACE: Bytes = Bytes(1 << 20);
/// 5 MB a day.
pub const SPACE_PER_MINUTE: Bytes = Bytes(3_500);
/// Maps of one pool out of turn are at least a sixth of the period apart.
const EARLY: u64 = 6;
/// A new maximum is one that is higher by a fiftieth: a run that warms up reaches one with every segment.
const HIGHER: u64 = 50;
/// A question without an answer is given up at the third frame.
const PATIENCE: u32 = 2;

/// How often the maps of all pools are recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Every {
    /// Each [`DEFAULT_PERIOD`], less often where maps are so large that a day of them would be too much.
    #[default]
    Sparing,
    Period(Millis),
    Never,
}

type PoolKey = (ProcessKey, u32);

/// The next question of a recorder, from what the frames tell.
#[derive(Debug)]
pub struct Rounds {
    every: Every,
    known: BTreeMap<PoolKey, PoolState>,
    /// Still to be asked for.
    queue: VecDeque<PoolKey>,
    asked: Option<(PoolKey, u32)>,
    /// When the last round began.
    round: Option<Mono>,
    space: Space,
}

/// What was told of a pool when its map was asked for last.
#[derive(Debug, Clone, Copy)]
struct PoolState {
    at: Mono,
    num_ooms: u64,
    reserved: Bytes,
}

impl PoolState {
    fn of(pool: &Pool, now: Mono) -> Self {
        Self {
            at: now,
            num_ooms: pool.stats.num_ooms,
            reserved: pool.stats.reserved.max(),
        }
    }
}

/// Bytes that maps may still take.
#[derive(Debug)]
struct Space {
    left: i64,
    at: Option<Mono>,
}

impl Space {
    fn grow(&mut self, now: Mono) {
        let passed = self.at.map_or(Millis(0), |at| now.since(at));
        let grown = passed.0.saturating_mul(SPACE_PER_MINUTE.0) / 60_000;
        let grown = i64::try_from(grown).unwrap_or(i64::MAX);
        // What is less than a byte is not lost: the clock stands still until it is one.
        if grown > 0 || self.at.is_none_or(|at| now < at) {
            self.left = self.left.saturating_add(grown).min(SPACE.0 as i64);
            self.at = Some(now);
        }
    }
}

impl Rounds {
    pub fn new(every: Every) -> Self {
        Self {
            every,
            known: BTreeMap::new(),
            queue: VecDeque::new(),
            asked: None,
            round: None,
            space: Space {
                left: SPACE.0 as i64,
                at: None,
            },
        }
    }

    /// Takes note of a frame; what to ask the source for now, if anything.
    pub fn frame(&mut self, frame: &Frame) -> Option<Request> {
        let period = match self.every {
            Every::Never => return None,
            Every::Sparing => DEFAULT_PERIOD,
            Every::Period(period) => period,
        };
        let now = frame.mono;
        self.space.grow(now);
        let has_space = self.every != Every::Sparing || self.space.left > 0;
        let pools = frame.pools.iter().flat_map(|pools| &*pools.list);
        let listed: BTreeMap<PoolKey, &Pool> = pools.map(|pool| (key(pool), pool)).collect();
        self.known.retain(|key, _| listed.contains_key(key));
        self.queue.retain(|key| listed.contains_key(key));
        // Also when the clock goes back, as that of another boot.
        let is_round = self
            .round
            .is_none_or(|round| now < round || now.since(round) >= period);
        if is_round && has_space && !listed.is_empty() {
            self.round = Some(now);
            for (&key, pool) in &listed {
                self.want(key, PoolState::of(pool, now));
            }
        }
        let pause = if has_space {
            Millis(period.0 / EARLY)
        } else {
            period
        };
        for (&key, pool) in &listed {
            let is_due = match self.known.get(&key) {
                Some(known) => known.is_overtaken(pool) && now.since(known.at) >= pause,
                None => true,
            };
            if is_due {
                self.queue.retain(|queued| *queued != key);
                self.queue.push_front(key);
                self.known.insert(key, PoolState::of(pool, now));
            }
        }
        self.wait_or_ask()
    }

    /// Whether this map was asked for and is to be recorded; then [`ask_next`](Self::ask_next) is asked for.
    pub fn takes(&mut self, map: &PoolMap) -> bool {
        self.answered((map.process, map.ordinal))
    }

    /// Whether a map that was read because an allocation failed is to be recorded: not where maps are to take no more
    /// space. Until the next round nobody asks for a map of a failure in that pool: each brings its own.
    pub fn takes_failed(&mut self, map: &PoolMap) -> bool {
        let has_space = match self.every {
            Every::Never => false,
            Every::Sparing => self.space.left > 0,
            Every::Period(_) => true,
        };
        if let Some(known) = self.known.get_mut(&(map.process, map.ordinal))
            && has_space
        {
            known.num_ooms = u64::MAX;
        }
        has_space
    }

    /// There is no map of that pool; true when it was the one asked for.
    pub fn answered(&mut self, pool: PoolKey) -> bool {
        let is_it = self.asked.is_some_and(|(asked, _)| asked == pool);
        if is_it {
            self.asked = None;
        }
        is_it
    }

    /// A map was written and took so many bytes of the file.
    pub fn wrote(&mut self, bytes: u64) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.space.left = self.space.left.saturating_sub(bytes);
    }

    /// After an answer: the next pool, or that none is wanted any more.
    pub fn ask_next(&mut self) -> Request {
        let next = self.queue.pop_front();
        self.asked = next.map(|key| (key, 0));
        Request::Map(next)
    }

    fn want(&mut self, key: PoolKey, known: PoolState) {
        if !self.queue.contains(&key) {
            self.queue.push_back(key);
        }
        self.known.insert(key, known);
    }

    fn wait_or_ask(&mut self) -> Option<Request> {
        match &mut self.asked {
            Some((_, waited)) if *waited < PATIENCE => {
                *waited += 1;
                None
            }
            None if self.queue.is_empty() => None,
            _ => Some(self.ask_next()),
        }
    }
}

impl PoolState {
    fn is_overtaken(&self, pool: &Pool) -> bool {
        let higher = self.reserved.0.saturating_add(self.reserved.0 / HIGHER);
        pool.stats.num_ooms > self.num_ooms || pool.stats.reserved.max().0 > higher
    }
}

fn key(pool: &Pool) -> PoolKey {
    (pool.process, pool.ordinal)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::pool::{PoolStats, Pools, Sampled};
    use crate::model::units::{Pid, StartTicks};

    fn pool(pid: u32, reserved: u64, num_ooms: u64) -> Pool {
        Pool {
            process: ProcessKey {
                pid: Pid(pid),
                start: StartTicks(1),
            },
            stats: PoolStats {
                reserved: Sampled::new(Bytes(reserved)),
                num_ooms,
                ..PoolStats::default()
            },
            ..Pool::default()
        }
    }

    fn frame(second: u64, list: Vec<Pool>) -> Frame {
        Frame {
            mono: Mono(second * 1_000),
            pools: Some(Pools {
                list: Arc::new(list),
                ..Pools::default()
            }),
            ..Frame::default()
        }
    }

    /// The PIDs asked for at one frame, each answered with a map of so many bytes.
    fn asked(rounds: &mut Rounds, frame: &Frame, bytes: u64) -> Vec<u32> {
        let mut pids = Vec::new();
        let mut request = rounds.frame(frame);
        while let Some(Request::Map(Some((process, ordinal)))) = request {
            pids.push(process.pid.0);
            assert!(rounds.takes(&PoolMap {
                process,
                ordinal,
                ..PoolMap::default()
            }));
            rounds.wrote(bytes);
            request = Some(rounds.ask_next());
        }
        pids
    }

    #[test]
    fn every_pool_has_its_turn_in_each_round() {
        let mut rounds = Rounds::new(Every::Period(Millis(10_000)));
        let seconds = (0..31).filter(|&s| {
            asked(
                &mut rounds,
                &frame(s, vec![pool(1, 9, 0), pool(2, 9, 0)]),
                1,
            ) == [1, 2]
        });
        assert_eq!(seconds.collect::<Vec<_>>(), [0, 10, 20, 30]);
        let mut never = Rounds::new(Every::Never);
        assert_eq!(never.frame(&frame(0, vec![pool(1, 9, 0)])), None);
    }

    #[test]
    fn a_new_pool_an_oom_and_a_new_maximum_come_out_of_turn_and_not_too_often() {
        let mut rounds = Rounds::new(Every::Sparing);
        let mut at = |second, list| asked(&mut rounds, &frame(second, list), 1);
        assert_eq!(at(0, vec![pool(1, 100, 0)]), [1]);
        assert_eq!(at(1, vec![pool(1, 100, 0), pool(2, 100, 0)]), [2]);
        assert_eq!(
            at(5, vec![pool(1, 100, 1), pool(2, 100, 0)]),
            [] as [u32; 0]
        );
        assert_eq!(at(10, vec![pool(1, 100, 1), pool(2, 102, 0)]), [1]);
        assert_eq!(at(11, vec![pool(1, 100, 1), pool(2, 103, 0)]), [2]);
        assert_eq!(
            at(59, vec![pool(1, 102, 1), pool(2, 103, 0)]),
            [] as [u32; 0]
        );
        assert_eq!(at(60, vec![pool(1, 102, 1), pool(2, 103, 0)]), [1, 2]);
    }

    #[test]
    fn the_map_of_a_failure_is_taken_as_it_comes_and_not_asked_for_again() {
        let failed = PoolMap {
            process: pool(1, 0, 0).process,
            ..PoolMap::default()
        };
        let mut rounds = Rounds::new(Every::Sparing);
        assert_eq!(asked(&mut rounds, &frame(0, vec![pool(1, 100, 0)]), 1), [1]);
        assert!(rounds.takes_failed(&failed));
        let none = [] as [u32; 0];
        assert_eq!(
            asked(&mut rounds, &frame(15, vec![pool(1, 100, 1)]), 1),
            none
        );
        assert_eq!(
            asked(&mut rounds, &frame(60, vec![pool(1, 100, 1)]), 1),
            [1]
        );
        assert_eq!(
            asked(&mut rounds, &frame(75, vec![pool(1, 100, 2)]), 1),
            [1]
        );
        rounds.wrote(SPACE.0);
        assert!(!rounds.takes_failed(&failed), "there is no space left");
        assert!(!Rounds::new(Every::Never).takes_failed(&failed));
    }

    #[test]
    fn large_maps_are_recorded_less_often_unless_the_user_said_how_often() {
        let day = |every| {
            let mut rounds = Rounds::new(every);
            let list = vec![pool(1, 9, 0)];
            (0..86_400)
                .map(|s| asked(&mut rounds, &frame(s, list.clone()), 50_000).len())
                .sum::<usize>()
        };
        // 1 MiB at once, and 3.5 kB each minute.
        let sparing = day(Every::Sparing);
        assert!((120..=125).contains(&sparing), "{sparing}");
        assert_eq!(day(Every::Period(DEFAULT_PERIOD)), 1_440);
    }

    #[test]
    fn a_question_that_is_not_answered_does_not_hold_up_the_others() {
        let mut rounds = Rounds::new(Every::Sparing);
        let list = vec![pool(1, 9, 0), pool(2, 9, 0)];
        let mut at = |second| rounds.frame(&frame(second, list.clone()));
        let of = |pid| Some(Request::Map(Some((pool(pid, 0, 0).process, 0))));
        assert_eq!([at(0), at(1), at(2), at(3)], [of(1), None, None, of(2)]);
        assert_eq!(
            [at(4), at(5), at(6)],
            [None, None, Some(Request::Map(None))]
        );
        assert_eq!(at(7), None);
        assert!(!rounds.answered((pool(1, 0, 0).process, 0)));
    }

    #[test]
    fn a_pool_that_is_gone_is_not_asked_for() {
        let mut rounds = Rounds::new(Every::Sparing);
        rounds.frame(&frame(0, vec![pool(1, 9, 0), pool(2, 9, 0)]));
        rounds.frame(&frame(1, vec![pool(1, 9, 0)]));
        assert!(rounds.answered((pool(1, 0, 0).process, 0)));
        assert_eq!(rounds.ask_next(), Request::Map(None));
    }
}
