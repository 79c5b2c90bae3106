//! CPU use of one process, from two readings of its clock ticks.

use crate::model::reading::{Reading, Reason};
use crate::model::units::{Mono, Percent};

/// Ticks are 10 ms: closer readings would only show their grain.
const MIN_INTERVAL_MS: u64 = 100;

pub struct CpuMeter {
    at: Mono,
    ticks: u64,
    reading: Reading<Percent>,
}

impl CpuMeter {
    pub fn new(at: Mono, ticks: u64) -> Self {
        Self {
            at,
            ticks,
            reading: Reading::missing(Reason::NotRead, "needs two readings"),
        }
    }

    /// The share of one core since the reading before; the same figure again when that was only just now.
    #[allow(clippy::cast_precision_loss)]
    pub fn measure(&mut self, now: Mono, ticks: u64, ticks_per_second: u64) -> Reading<Percent> {
        let elapsed = now.since(self.at).0;
        if elapsed >= MIN_INTERVAL_MS {
            // The kernel may take a little back when it corrects its estimate of the system's part.
            let used = ticks.saturating_sub(self.ticks) as f64 * 1000.0 / ticks_per_second as f64;
            self.reading = Reading::Value(Percent::rounded(used * 100.0 / elapsed as f64));
            self.at = now;
            self.ticks = ticks;
        }
        self.reading.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_of_the_time_that_really_passed() {
        let mut meter = CpuMeter::new(Mono(1000), 500);
        assert!(meter.measure(Mono(1000), 500, 100).why().is_some());
        assert_eq!(
            meter.measure(Mono(3000), 900, 100).get(),
            Some(Percent(200.0))
        );
        assert_eq!(
            meter.measure(Mono(3050), 904, 100).get(),
            Some(Percent(200.0))
        );
        assert_eq!(
            meter.measure(Mono(4000), 950, 100).get(),
            Some(Percent(50.0))
        );
        assert_eq!(
            meter.measure(Mono(5000), 940, 100).get(),
            Some(Percent(0.0))
        );
    }

    #[test]
    fn a_clock_that_jumps_back_gives_no_figure() {
        let mut meter = CpuMeter::new(Mono(5000), 500);
        assert!(meter.measure(Mono(10), 600, 100).why().is_some());
    }
}
