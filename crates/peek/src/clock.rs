//! Clocks of this host. Only the agent and the collectors read them. All other code takes the time as an argument.

use gputop_model::{Mono, UnixMillis};
use nix::time::{ClockId, clock_gettime};

/// Time of this host on two clocks, both of which count from boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Instants {
    /// Includes suspended time, as [`Mono`] does.
    pub boot_ns: u64,
    /// Without suspended time. `std::chrono::steady_clock` and Python's `time.monotonic` use it.
    pub monotonic_ns: u64,
}

impl Instants {
    pub fn now() -> Self {
        let read = |clock| u64::try_from(nanoseconds(clock)).unwrap_or_default();
        let monotonic_ns = read(ClockId::CLOCK_MONOTONIC);
        Self { boot_ns: read(ClockId::CLOCK_BOOTTIME), monotonic_ns }
    }

    pub fn mono(self) -> Mono {
        Mono(self.boot_ns / NANOSECONDS)
    }

    /// Converts a time on the clock without suspended time to the other one. The host must not have been suspended between
    /// that time and this one.
    pub fn boot_ns_of(self, monotonic_ns: u64) -> u64 {
        // The clocks are read one after the other. Rounding the difference gives the same result for each pair of readings.
        let suspended = self.boot_ns.saturating_sub(self.monotonic_ns) + NANOSECONDS / 2;
        monotonic_ns.saturating_add(suspended / NANOSECONDS * NANOSECONDS)
    }
}

/// Nanoseconds in a millisecond.
const NANOSECONDS: u64 = 1_000_000;

/// Returns the time since boot, including suspended time. Never jumps. Process start times use the same clock.
pub fn now_mono() -> Mono {
    Mono(u64::try_from(milliseconds(ClockId::CLOCK_BOOTTIME)).unwrap_or_default())
}

/// Returns the wall-clock time. For display only, because the clock may be set back.
pub fn now_wall() -> UnixMillis {
    UnixMillis(milliseconds(ClockId::CLOCK_REALTIME))
}

/// Returns the wall-clock time at boot, for converting ticks since boot to a time of day.
pub fn boot_time() -> UnixMillis {
    let since_boot = i64::try_from(now_mono().0).unwrap_or(i64::MAX);
    UnixMillis(now_wall().0.saturating_sub(since_boot))
}

fn milliseconds(clock: ClockId) -> i64 {
    nanoseconds(clock) / 1_000_000
}

/// Reads a clock, or returns 0 on failure. All clocks exist in every kernel that the NVIDIA driver supports.
fn nanoseconds(clock: ClockId) -> i64 {
    clock_gettime(clock).map_or(0, |t| t.tv_sec() * 1_000_000_000 + t.tv_nsec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suspended_time_is_added_in_whole_milliseconds() {
        let at = |boot_ns, monotonic_ns| Instants { boot_ns, monotonic_ns };
        assert_eq!(at(9_000_650, 9_000_000).boot_ns_of(8_123_456), 8_123_456);
        assert_eq!(at(12_000_200, 9_000_000).boot_ns_of(8_123_456), 11_123_456);
        assert_eq!(at(9_000_000, 9_000_100).boot_ns_of(9_000_200), 9_000_200);
        let now = Instants::now();
        assert!(now_mono().since(now.mono()).0 < 60_000);
    }

    #[test]
    fn monotonic_clock_matches_kernel_uptime() {
        let before = now_mono();
        let uptime = std::fs::read_to_string("/proc/uptime").expect("uptime");
        let after = now_mono();
        let seconds: f64 = uptime.split(' ').next().and_then(|s| s.parse().ok()).expect("a number");
        let millis = seconds * 1000.0;
        assert!(millis >= before.0 as f64 - 10.0 && millis <= after.0 as f64 + 10.0);
    }
}
