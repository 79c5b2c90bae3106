//! Total time that this machine has been suspended. After a suspend, connections are dead, although neither end has
//! noticed.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// The clock that stops during suspend, and the clock that keeps running. See clock_gettime(2) on each system.
#[cfg(target_os = "linux")]
const CLOCKS: (ClockId, ClockId) = (ClockId::CLOCK_MONOTONIC, ClockId::CLOCK_BOOTTIME);
#[cfg(target_os = "macos")]
const CLOCKS: (ClockId, ClockId) = (
    ClockId::from_raw(nix::libc::CLOCK_UPTIME_RAW),
    ClockId::from_raw(nix::libc::CLOCK_MONOTONIC_RAW),
);
/// The suspend time is not available on this system, so only the heartbeat detects dead connections.
#[cfg(not(any(target_os = "linux", target_os = "macos")))]
const CLOCKS: (ClockId, ClockId) = (ClockId::CLOCK_MONOTONIC, ClockId::CLOCK_MONOTONIC);

pub(super) fn suspended_time() -> Duration {
    let read = |clock| clock_gettime(clock).map_or(Duration::ZERO, Duration::from);
    let (awake, all) = CLOCKS;
    // Read the awake clock first, so that the difference is never negative.
    read(all).saturating_sub(read(awake))
}
