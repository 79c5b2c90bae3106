//! The two clocks of this host. Only the agent and the collectors' own start-up ask them; everything else is
//! handed the time.

use nix::time::{ClockId, clock_gettime};

use crate::model::units::{Mono, UnixMillis};

/// Since boot, suspended time included: never jumps, and is the clock of a process's start time.
pub fn now_mono() -> Mono {
    Mono(u64::try_from(milliseconds(ClockId::CLOCK_BOOTTIME)).unwrap_or_default())
}

/// By the wall clock, which may be set back: for showing only.
pub fn now_wall() -> UnixMillis {
    UnixMillis(milliseconds(ClockId::CLOCK_REALTIME))
}

/// The wall-clock time of the boot, by which a start in ticks since boot becomes a time of day.
pub fn boot_moment() -> UnixMillis {
    let since_boot = i64::try_from(now_mono().0).unwrap_or(i64::MAX);
    UnixMillis(now_wall().0.saturating_sub(since_boot))
}

/// Both clocks exist in every kernel that has an NVIDIA driver, so a failure has no meaning worth a type.
fn milliseconds(clock: ClockId) -> i64 {
    clock_gettime(clock).map_or(0, |t| t.tv_sec() * 1000 + t.tv_nsec() / 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_monotonic_clock_is_the_kernels_uptime() {
        let before = now_mono();
        let uptime = std::fs::read_to_string("/proc/uptime").expect("uptime");
        let after = now_mono();
        let seconds: f64 = uptime
            .split(' ')
            .next()
            .and_then(|s| s.parse().ok())
            .expect("a number");
        let millis = seconds * 1000.0;
        assert!(millis >= before.0 as f64 - 10.0 && millis <= after.0 as f64 + 10.0);
    }
}
