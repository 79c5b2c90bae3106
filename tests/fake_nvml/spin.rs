//! The cost of a call. A real one costs CPU, so this burns instead of sleeping.

use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

/// From here on the thread's own CPU clock is worth its system call; below, wall time is as good.
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
