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

#[derive(Debug, Clone, PartialEq)]
pub struct AllocationSpike {
    pub process: ProcessKey,
    pub ordinal: u32,
    /// `num_ooms` as it was told last, and now: allocations failed. Otherwise it is a maximum.
    pub ooms: Option<(u64, u64)>,
    /// The last sample before it.
    pub since: Mono,
    pub allocated: Bytes,
    /// The pool as it is handed out, at the sample that saw it.
    pub stats: PoolStats,
}

impl AllocationSpike {
    pub fn is_oom(&self) -> bool {
        self.ooms.is_some()
    }
}

/// The heights of one pool.
#[derive(Debug, Default)]
pub struct Level {
    last: Bytes,
    highest: Bytes,
    /// What was told last, or what was there from the start.
    marked: Bytes,
    ooms_told: u64,
    /// The last sample before the failures that are not told yet.
    ooms_since: Option<Mono>,
    rise: Option<AllocationSpike>,
}

impl Level {
    pub fn new(first: &PoolStats) -> Self {
        let now = first.allocated.last();
        Self {
            last: now,
            highest: now,
            marked: now,
            ooms_told: first.num_ooms,
            ..Self::default()
        }
    }

    pub fn next(&mut self, stats: &PoolStats, since: Mono, ordinal: u32) {
        let now = stats.allocated.last();
        let enough = self.marked.0 + STEP.0.max(self.marked.0 / 100);
        let enough = enough.max(self.highest.0 - self.highest.0 / 100);
        let is_above = now.0 >= enough;
        let rose = is_above && (self.last.0 < enough || now > self.highest);
        // The counter goes back when the program resets it.
        self.ooms_told = self.ooms_told.min(stats.num_ooms);
        let ooms = (stats.num_ooms > self.ooms_told).then_some((self.ooms_told, stats.num_ooms));
        self.ooms_since = ooms.map(|_| self.ooms_since.unwrap_or(since));
        self.rise = (ooms.is_some() || rose).then(|| AllocationSpike {
            process: ProcessKey::default(),
            ordinal,
            ooms,
            since: self.ooms_since.unwrap_or(since),
            allocated: now,
            stats: PoolStats::default(),
        });
        self.last = now;
        self.highest = self.highest.max(now);
    }

    pub fn take_rise(&mut self, process: ProcessKey) -> Option<AllocationSpike> {
        let rise = self.rise.take()?;
        Some(AllocationSpike { process, ..rise })
    }

    /// It was told, and is not told again.
    pub fn mark(&mut self, told: &AllocationSpike) {
        self.marked = self.marked.max(told.allocated);
        if let Some((_, ooms)) = told.ooms {
            self.ooms_told = ooms;
        }
    }
}

/// When a process was told of last.
#[derive(Debug, Default)]
pub struct LastReport {
    any: Option<Mono>,
    oom: Option<Mono>,
}

impl LastReport {
    pub fn tell(&mut self, rise: &AllocationSpike, now: Mono) -> bool {
        // A maximum holds back no failure: memory is at its maximum right before it fails, and the program may be gone
        // in a moment.
        let (last, pause) = match rise.is_oom() {
            true => (self.oom, PAUSE_OOM),
            false => (self.any, PAUSE),
        };
        if last.is_some_and(|told| now.since(told) < pause) {
            return false;
        }
        self.any = Some(now);
        if rise.is_oom() {
            self.oom = Some(now);
        }
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

    fn told(allocated: Bytes, ooms: Option<(u64, u64)>) -> AllocationSpike {
        AllocationSpike {
            process: ProcessKey::default(),
            ordinal: 0,
            ooms,
            since: Mono(0),
            allocated,
            stats: PoolStats::default(),
        }
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
            Some((rise.is_oom(), rise.allocated.0 >> 20))
        };
        samples.iter().map(one).collect()
    }

    #[test]
    fn a_maximum_is_told_once_by_a_step() {
        let mut level = Level::default();
        assert_eq!(rises(&mut level, &[(10, 0), (63, 0)]), [None, None]);
        assert_eq!(rises(&mut level, &[(64, 0)]), [Some((false, 64))]);
        level.mark(&told(mib(64), None));
        assert_eq!(rises(&mut level, &[(127, 0), (9, 0)]), [None, None]);
        assert_eq!(rises(&mut level, &[(9_000, 0)]), [Some((false, 9_000))]);
        level.mark(&told(mib(9_000), None));
        // 64 MiB are not 1 % of it.
        assert_eq!(rises(&mut level, &[(9_064, 0)]), [None]);
        assert_eq!(rises(&mut level, &[(9_090, 0)]), [Some((false, 9_090))]);
    }

    #[test]
    fn an_oom_stays_to_be_told_until_it_is_and_a_reset_is_none() {
        let mut level = Level::default();
        let ooms = rises(&mut level, &[(5, 0), (5, 1), (5, 3)]);
        assert_eq!(ooms, [None, Some((true, 5)), Some((true, 5))]);
        level.mark(&told(mib(5), Some((0, 3))));
        // The counter is reset, and rises again.
        let ooms = rises(&mut level, &[(5, 3), (5, 0), (5, 1)]);
        assert_eq!(ooms, [None, None, Some((true, 5))]);
    }

    #[test]
    fn an_oom_that_is_told_late_says_when_it_was_not_there_yet() {
        let mut level = Level::default();
        let stats = |num_ooms| PoolStats {
            num_ooms,
            ..PoolStats::default()
        };
        for (since, ooms) in [(50, 0), (100, 1), (150, 2)] {
            level.next(&stats(ooms), Mono(since), 0);
        }
        let rise = level.take_rise(ProcessKey::default()).expect("a rise");
        assert_eq!((rise.ooms, rise.since), (Some((0, 2)), Mono(100)));
    }

    #[test]
    fn a_maximum_that_could_not_be_told_is_told_in_a_later_step() {
        let mut level = Level::default();
        level.mark(&told(mib(100), None));
        let step = [(500, 0), (1_000, 0), (995, 0), (200, 0)];
        let first = [Some((false, 500)), Some((false, 1_000)), None, None];
        assert_eq!(rises(&mut level, &step), first);
        let again = [None, Some((false, 1_000)), None, None];
        assert_eq!(rises(&mut level, &step), again);
        level.mark(&told(mib(1_000), None));
        assert_eq!(rises(&mut level, &step), [None; 4]);
    }

    #[test]
    fn a_maximum_is_told_once_in_ten_seconds_and_never_holds_back_an_oom() {
        let mut at = LastReport::default();
        let answers: Vec<_> = [
            (0, false),
            (50, true),
            (1_000, true),
            (1_050, true),
            (11_000, false),
            (11_050, false),
        ]
        .map(|(now, is_oom)| at.tell(&told(Bytes(0), is_oom.then_some((0, 1))), Mono(now)))
        .into();
        assert_eq!(answers, [true, true, false, true, false, true]);
    }
}
