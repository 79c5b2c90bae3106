//! Detects allocation spikes: failed allocations, and new maxima of the allocated bytes.
//!
//! A training run reaches about the same maximum in every step, which should not be reported each time. A sample is
//! therefore a spike only if it reaches at least 99 % of the highest value so far, and exceeds the last reported value
//! by a minimum increase. Each report triggers a read of the program's Python stack. Reports are therefore limited to
//! one every 10 s, or one per second for failed allocations.

use gputop_model::{Bytes, Millis, Mono, PoolStats, ProcessKey};

/// Minimum increase of a new maximum over the last reported one. The increase must also be at least 1 %.
const MIN_STEP: Bytes = Bytes(64 << 20);
const REPORT_INTERVAL: Millis = Millis(10_000);
const OOM_REPORT_INTERVAL: Millis = Millis(1_000);

/// A failed allocation in one pool, or a new maximum of its allocated bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct AllocationSpike {
    pub process: ProcessKey,
    pub ordinal: u32,
    /// If allocations failed, the value of `num_ooms` at the last report and now. `None` for a new maximum.
    pub ooms: Option<(u64, u64)>,
    /// Time of the last sample before the spike.
    pub since: Mono,
    pub allocated: Bytes,
    pub stats: PoolStats,
}

impl AllocationSpike {
    pub fn is_oom(&self) -> bool {
        self.ooms.is_some()
    }
}

#[derive(Debug, Default)]
pub struct SpikeDetector {
    last: Bytes,
    highest: Bytes,
    /// Allocated bytes at the last report, or at the first sample if nothing has been reported yet.
    reported: Bytes,
    reported_ooms: u64,
    /// Time of the last sample before the unreported allocation failures.
    ooms_since: Option<Mono>,
    spike: Option<AllocationSpike>,
}

impl SpikeDetector {
    pub fn new(first: &PoolStats) -> Self {
        let now = first.allocated.last();
        Self {
            last: now,
            highest: now,
            reported: now,
            reported_ooms: first.num_ooms,
            ..Self::default()
        }
    }

    pub fn next(&mut self, stats: &PoolStats, since: Mono, ordinal: u32) {
        let now = stats.allocated.last();
        let threshold = self.reported.0 + MIN_STEP.0.max(self.reported.0 / 100);
        let threshold = threshold.max(self.highest.0 - self.highest.0 / 100);
        let is_above = now.0 >= threshold;
        let is_maximum = is_above && (self.last.0 < threshold || now > self.highest);
        // Accept a lower value, which occurs when the program resets the counter.
        self.reported_ooms = self.reported_ooms.min(stats.num_ooms);
        let ooms =
            (stats.num_ooms > self.reported_ooms).then_some((self.reported_ooms, stats.num_ooms));
        self.ooms_since = ooms.map(|_| self.ooms_since.unwrap_or(since));
        self.spike = (ooms.is_some() || is_maximum).then(|| AllocationSpike {
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

    pub(crate) fn take_spike(&mut self, process: ProcessKey) -> Option<AllocationSpike> {
        let spike = self.spike.take()?;
        Some(AllocationSpike { process, ..spike })
    }

    pub(crate) fn mark_reported(&mut self, spike: &AllocationSpike) {
        self.reported = self.reported.max(spike.allocated);
        if let Some((_, ooms)) = spike.ooms {
            self.reported_ooms = ooms;
        }
    }
}

#[derive(Debug, Default)]
pub struct ReportLimiter {
    any: Option<Mono>,
    oom: Option<Mono>,
}

impl ReportLimiter {
    /// Returns true if the spike should be reported now, and records the time of the report.
    pub fn allows(&mut self, spike: &AllocationSpike, now: Mono) -> bool {
        // Limit reports of failures separately, so that a reported maximum does not delay them: memory is at its
        // maximum immediately before an allocation fails, and the program may exit soon.
        let (last, interval) = if spike.is_oom() {
            (self.oom, OOM_REPORT_INTERVAL)
        } else {
            (self.any, REPORT_INTERVAL)
        };
        if last.is_some_and(|last| now.since(last) < interval) {
            return false;
        }
        self.any = Some(now);
        if spike.is_oom() {
            self.oom = Some(now);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gputop_model::pool::Sampled;

    fn mib(n: u64) -> Bytes {
        Bytes(n << 20)
    }

    fn spike(allocated: Bytes, ooms: Option<(u64, u64)>) -> AllocationSpike {
        AllocationSpike {
            process: ProcessKey::default(),
            ordinal: 0,
            ooms,
            since: Mono(0),
            allocated,
            stats: PoolStats::default(),
        }
    }

    fn spikes(detector: &mut SpikeDetector, samples: &[(u64, u64)]) -> Vec<Option<(bool, u64)>> {
        let stats = |&(allocated, num_ooms): &(u64, u64)| PoolStats {
            allocated: Sampled::new(mib(allocated)),
            num_ooms,
            ..PoolStats::default()
        };
        let one = |sample| {
            detector.next(&stats(sample), Mono(0), 0);
            let spike = detector.take_spike(ProcessKey::default())?;
            Some((spike.is_oom(), spike.allocated.0 >> 20))
        };
        samples.iter().map(one).collect()
    }

    #[test]
    fn reports_a_maximum_once_per_step() {
        let mut detector = SpikeDetector::default();
        assert_eq!(spikes(&mut detector, &[(10, 0), (63, 0)]), [None, None]);
        assert_eq!(spikes(&mut detector, &[(64, 0)]), [Some((false, 64))]);
        detector.mark_reported(&spike(mib(64), None));
        assert_eq!(spikes(&mut detector, &[(127, 0), (9, 0)]), [None, None]);
        assert_eq!(spikes(&mut detector, &[(9_000, 0)]), [Some((false, 9_000))]);
        detector.mark_reported(&spike(mib(9_000), None));
        // The increase of 64 MiB is less than 1 % of 9000 MiB.
        assert_eq!(spikes(&mut detector, &[(9_064, 0)]), [None]);
        assert_eq!(spikes(&mut detector, &[(9_090, 0)]), [Some((false, 9_090))]);
    }

    #[test]
    fn oom_is_pending_until_reported_and_counter_reset_is_not_an_oom() {
        let mut detector = SpikeDetector::default();
        let ooms = spikes(&mut detector, &[(5, 0), (5, 1), (5, 3)]);
        assert_eq!(ooms, [None, Some((true, 5)), Some((true, 5))]);
        detector.mark_reported(&spike(mib(5), Some((0, 3))));
        // The program resets the counter, and another allocation fails.
        let ooms = spikes(&mut detector, &[(5, 3), (5, 0), (5, 1)]);
        assert_eq!(ooms, [None, None, Some((true, 5))]);
    }

    #[test]
    fn late_oom_report_keeps_time_of_last_sample_before_it() {
        let mut detector = SpikeDetector::default();
        let stats = |num_ooms| PoolStats { num_ooms, ..PoolStats::default() };
        for (since, ooms) in [(50, 0), (100, 1), (150, 2)] {
            detector.next(&stats(ooms), Mono(since), 0);
        }
        let spike = detector.take_spike(ProcessKey::default()).expect("a spike");
        assert_eq!((spike.ooms, spike.since), (Some((0, 2)), Mono(100)));
    }

    #[test]
    fn unreported_maximum_is_detected_again_in_a_later_step() {
        let mut detector = SpikeDetector::default();
        detector.mark_reported(&spike(mib(100), None));
        let step = [(500, 0), (1_000, 0), (995, 0), (200, 0)];
        let first = [Some((false, 500)), Some((false, 1_000)), None, None];
        assert_eq!(spikes(&mut detector, &step), first);
        let again = [None, Some((false, 1_000)), None, None];
        assert_eq!(spikes(&mut detector, &step), again);
        detector.mark_reported(&spike(mib(1_000), None));
        assert_eq!(spikes(&mut detector, &step), [None; 4]);
    }

    #[test]
    fn reports_a_maximum_every_ten_seconds_and_never_delays_an_oom() {
        let mut at = ReportLimiter::default();
        let answers: Vec<_> = [
            (0, false),
            (50, true),
            (1_000, true),
            (1_050, true),
            (11_000, false),
            (11_050, false),
        ]
        .map(|(now, is_oom)| at.allows(&spike(Bytes(0), is_oom.then_some((0, 1))), Mono(now)))
        .into();
        assert_eq!(answers, [true, true, false, true, false, true]);
    }
}
