//! Computes the CPU usage of one process from two readings of its CPU time in clock ticks.

use gputop_model::{Mono, Percent, Reading, Reason};

/// Minimum interval between two CPU readings. The kernel counts CPU time in ticks of 10 ms, so shorter intervals would
/// give coarse values.
const MIN_INTERVAL_MS: u64 = 100;

pub struct CpuMeter {
    at: Mono,
    ticks: u64,
    reading: Reading<Percent>,
}

impl CpuMeter {
    pub fn new(at: Mono, ticks: u64) -> Self {
        Self { at, ticks, reading: Reading::missing(Reason::NotRead, "needs two readings") }
    }

    /// Returns the CPU usage since the previous reading, in percent of one core, or the previous value if the interval
    /// is too short.
    pub fn measure(&mut self, now: Mono, ticks: u64, ticks_per_second: u64) -> Reading<Percent> {
        let elapsed = now.since(self.at).0;
        if elapsed >= MIN_INTERVAL_MS {
            // Prevent an underflow: the counter may decrease slightly when the kernel corrects its estimate of system
            // time.
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
    fn usage_is_relative_to_elapsed_time() {
        let mut meter = CpuMeter::new(Mono(1000), 500);
        assert!(meter.measure(Mono(1000), 500, 100).why().is_some());
        assert_eq!(meter.measure(Mono(3000), 900, 100).get(), Some(Percent(200.0)));
        assert_eq!(meter.measure(Mono(3050), 904, 100).get(), Some(Percent(200.0)));
        assert_eq!(meter.measure(Mono(4000), 950, 100).get(), Some(Percent(50.0)));
        assert_eq!(meter.measure(Mono(5000), 940, 100).get(), Some(Percent(0.0)));
    }

    #[test]
    fn returns_no_figure_if_the_clock_jumps_back() {
        let mut meter = CpuMeter::new(Mono(5000), 500);
        assert!(meter.measure(Mono(10), 600, 100).why().is_some());
    }
}
