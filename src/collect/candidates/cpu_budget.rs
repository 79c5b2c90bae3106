//! Limit on the CPU time of a thread.

use std::time::{Duration, Instant};

use nix::sys::time::TimeValLike;
use nix::time::{ClockId, clock_gettime};

/// CPU time that a thread may use: a small share of the time that passes, saved up to a maximum.
pub struct CpuBudget {
    saved: Duration,
    checked: Instant,
    used: Duration,
}

/// Elapsed time per unit of CPU time: 0.1 % of a core.
const ELAPSED_PER_CPU_TIME: u32 = 1_000;
/// Maximum saved CPU time. Enough for thousands of processes that start at once, as in a build.
const MAX_SAVED: Duration = Duration::from_millis(200);

impl CpuBudget {
    /// Returns the full budget. It must be used by the thread that creates it.
    pub fn new() -> Self {
        Self { saved: MAX_SAVED, checked: Instant::now(), used: cpu_time_of_thread() }
    }

    /// Returns true while the budget is not used up.
    pub fn has_time(&mut self) -> bool {
        let (now, used) = (Instant::now(), cpu_time_of_thread());
        self.charge(now - self.checked, used.saturating_sub(self.used));
        (self.checked, self.used) = (now, used);
        !self.saved.is_zero()
    }

    /// Adds a share of the elapsed time, and subtracts the CPU time that was used.
    pub fn charge(&mut self, elapsed: Duration, used: Duration) {
        let saved = (self.saved + elapsed / ELAPSED_PER_CPU_TIME).min(MAX_SAVED);
        self.saved = saved.saturating_sub(used);
    }
}

/// Returns the CPU time that the calling thread has used so far.
pub fn cpu_time_of_thread() -> Duration {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
    let nanoseconds = time.map_or(0, |time| time.num_nanoseconds());
    Duration::from_nanos(nanoseconds.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saves_a_thousandth_of_the_elapsed_time() {
        let mut budget = CpuBudget::new();
        budget.charge(Duration::ZERO, MAX_SAVED);
        assert_eq!(budget.saved, Duration::ZERO);
        budget.charge(Duration::from_secs(3), Duration::ZERO);
        assert_eq!(budget.saved, Duration::from_millis(3));
        budget.charge(Duration::from_secs(3_600), Duration::from_millis(1));
        assert_eq!(budget.saved, MAX_SAVED - Duration::from_millis(1));
    }

    #[test]
    fn ends_while_the_thread_works() {
        let mut budget = CpuBudget::new();
        let begun = Instant::now();
        while budget.has_time() {
            assert!(begun.elapsed() < Duration::from_secs(60));
        }
        assert!(begun.elapsed() >= MAX_SAVED);
    }
}
