//! When a sample is worth a look at the program: an allocation failed, or the allocated bytes are at a maximum.
//!
//! A training run is at its maximum once a step, and never above the first step's. So what counts is that a sample
//! rises to 99 % of the most that was seen, and by a step above what was told last. A look is cheap and not free:
//! one in ten seconds, one in a second when allocations fail.

use crate::model::pool::PoolStats;
use crate::model::process::ProcessKey;
use crate::model::units::{Bytes, Millis, Mono};

/// What is told again is at least this above what was told before, and 1 % of it.
const STEP: Bytes = Bytes(64 << 20);
const PAUSE: Millis = Millis(10_000);
const PAUSE_OOM: Millis = Millis(1_000);

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rise {
    pub process: ProcessKey,
    pub ordinal: u32,
    /// An allocation failed; otherwise a maximum.
    pub is_oom: bool,
    /// The last sample before it.
    pub since: Mono,
    pub allocated: Bytes,
}

/// The heights of one pool.
#[derive(Debug, Default)]
pub struct Level {
    last: Bytes,
    highest: Bytes,
    /// What was told last, or what was there from the start.
    marked: Bytes,
    ooms: u64,
    rise: Option<Rise>,
}

impl Level {
    pub fn new(first: &PoolStats) -> Self {
        let now = first.allocated.last();
        Self {
            last: now,
            highest: now,
            marked: now,
            ooms: first.num_ooms,
            rise: None,
        }
    }

    pub fn next(&mut self, stats: &PoolStats, since: Mono, ordinal: u32) {
        let now = stats.allocated.last();
        let enough = self.marked.0 + STEP.0.max(self.marked.0 / 100);
        let enough = enough.max(self.highest.0 - self.highest.0 / 100);
        let is_above = now.0 >= enough;
        let rose = is_above && (self.last.0 < enough || now > self.highest);
        // The counter goes back when the program resets it.
        let is_oom = stats.num_ooms > self.ooms;
        self.rise = (is_oom || rose).then(|| Rise {
            process: ProcessKey::default(),
            ordinal,
            is_oom,
            since,
            allocated: now,
        });
        self.last = now;
        self.highest = self.highest.max(now);
        self.ooms = stats.num_ooms;
    }

    pub fn take_rise(&mut self, process: ProcessKey) -> Option<Rise> {
        let rise = self.rise.take()?;
        Some(Rise { process, ..rise })
    }

    pub fn mark(&mut self, told: Bytes) {
        self.marked = self.marked.max(told);
    }
}

/// When a process was told of last.
#[derive(Debug, Default)]
pub struct Told(Option<Mono>);

impl Told {
    pub fn tell(&mut self, rise: &Rise, now: Mono) -> bool {
        let pause = if rise.is_oom { PAUSE_OOM } else { PAUSE };
        if self.0.is_some_and(|told| now.since(told) < pause) {
            return false;
        }
        self.0 = Some(now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::pool::Sampled;

    fn mib(n: u64) -> Bytes {
        Bytes(n << 20)
    }

    fn rises(level: &mut Level, samples: &[(u64, u64)]) -> Vec<Option<(bool, u64)>> {
        let stats = |&(allocated, num_ooms): &(u64, u64)| PoolStats {
            allocated: Sampled::new(mib(allocated)),
            num_ooms,
            ..PoolStats::default()
        };
        let one = |sample| {
            level.next(&stats(sample), Mono(0), 0);
            let rise = level.take_rise(ProcessKey::default())?;
            Some((rise.is_oom, rise.allocated.0 >> 20))
        };
        samples.iter().map(one).collect()
    }

    #[test]
    fn a_maximum_is_told_once_by_a_step_and_an_oom_each_time() {
        let mut level = Level::default();
        assert_eq!(rises(&mut level, &[(10, 0), (63, 0)]), [None, None]);
        assert_eq!(rises(&mut level, &[(64, 0)]), [Some((false, 64))]);
        level.mark(mib(64));
        assert_eq!(rises(&mut level, &[(127, 0), (9, 0)]), [None, None]);
        assert_eq!(rises(&mut level, &[(9_000, 0)]), [Some((false, 9_000))]);
        level.mark(mib(9_000));
        // 64 MiB are not 1 % of it.
        assert_eq!(rises(&mut level, &[(9_064, 0)]), [None]);
        assert_eq!(rises(&mut level, &[(9_090, 0)]), [Some((false, 9_090))]);
        // The counter is reset, and rises again.
        let ooms = rises(&mut level, &[(5, 1), (5, 1), (5, 0), (5, 1)]);
        assert_eq!(ooms, [Some((true, 5)), None, None, Some((true, 5))]);
    }

    #[test]
    fn a_maximum_that_could_not_be_told_is_told_in_a_later_step() {
        let mut level = Level::default();
        level.mark(mib(100));
        let step = [(500, 0), (1_000, 0), (995, 0), (200, 0)];
        let told = [Some((false, 500)), Some((false, 1_000)), None, None];
        assert_eq!(rises(&mut level, &step), told);
        let again = [None, Some((false, 1_000)), None, None];
        assert_eq!(rises(&mut level, &step), again);
        level.mark(mib(1_000));
        assert_eq!(rises(&mut level, &step), [None; 4]);
    }

    #[test]
    fn a_process_is_told_of_once_in_ten_seconds() {
        let rise = |is_oom| Rise {
            process: ProcessKey::default(),
            ordinal: 0,
            is_oom,
            since: Mono(0),
            allocated: Bytes(0),
        };
        let mut told = Told::default();
        let told: Vec<_> = [
            (0, false),
            (900, true),
            (1_000, true),
            (10_999, false),
            (11_000, false),
        ]
        .map(|(at, is_oom)| told.tell(&rise(is_oom), Mono(at)))
        .into();
        assert_eq!(told, [true, false, true, false, true]);
    }
}
