//! How long a job usually takes between two collectives, learnt while it runs.

use std::collections::VecDeque;

use gputop_model::units::Millis;

const MAX_SAMPLES: usize = 256;
/// Maximum weight of a sample, so that compiling for minutes is soon forgotten.
const MAX_WEIGHT: Millis = Millis(30_000);

/// Recent intervals between collectives. The median is weighted by time, so that bursts do not hide the long intervals
/// between them. One long checkpoint among short steps changes nothing.
#[derive(Debug, Default)]
pub(super) struct UsualInterval {
    /// Interval between collectives, and its weight.
    samples: VecDeque<(Millis, Millis)>,
}

impl UsualInterval {
    /// Adds the calls since the last look at which the job moved, which was `quiet` ago. If one rank comes early to a
    /// step, its call is seen alone, after the whole interval.
    pub(super) fn add(&mut self, calls: u64, quiet: Millis) {
        let Some(interval) = quiet.0.checked_div(calls) else { return };
        self.samples.push_back((Millis(interval), quiet.min(MAX_WEIGHT)));
        if self.samples.len() > MAX_SAMPLES {
            self.samples.pop_front();
        }
    }

    pub(super) fn median(&self) -> Option<Millis> {
        let mut sorted: Vec<_> = self.samples.iter().copied().collect();
        sorted.sort_unstable();
        let half = sorted.iter().fold(0_u64, |sum, (_, weight)| sum.saturating_add(weight.0)) / 2;
        let mut passed = 0_u64;
        let middle = sorted.iter().find(|(_, weight)| {
            passed = passed.saturating_add(weight.0);
            passed > half
        });
        middle.map(|(interval, _)| *interval)
    }
}
