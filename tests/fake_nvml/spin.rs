//! Simulates the cost of a call. Real calls use CPU time, so this spins instead of sleeping.

use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

/// From this duration on, spinning measures the thread's CPU time, which requires a system call. Below it, wall time is
/// accurate enough.
const LONG: Duration = Duration::from_micros(50);

pub fn burn(micros: u64) {
    let cost = Duration::from_micros(micros);
    if cost.is_zero() {
        return;
    }
    if cost < LONG {
        let start = Instant::now();
        while start.elapsed() < cost {
            std::hint::spin_loop();
        }
        return;
    }
    let end = cpu_time() + cost;
    while cpu_time() < end {
        std::hint::spin_loop();
    }
}

fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::MAX, Duration::from)
}
