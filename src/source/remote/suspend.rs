//! How long this machine has slept: a laptop that was closed comes back to connections that are dead and do not know it.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// The clock that stands still in a suspended machine, and the one that counts on: clock_gettime(2) of each system.
#[cfg(target_os = "linux")]
const AWAKE_AND_ALL: (ClockId, ClockId) = (ClockId::CLOCK_MONOTONIC, ClockId::CLOCK_BOOTTIME);
#[cfg(target_os = "macos")]
const AWAKE_AND_ALL: (ClockId, ClockId) = (
    ClockId::from_raw(nix::libc::CLOCK_UPTIME_RAW),
    ClockId::from_raw(nix::libc::CLOCK_MONOTONIC_RAW),
);
/// It is not known here; the heartbeat finds out.
#[cfg(not(any(target_os = "linux", target_os = "macos")))]
const AWAKE_AND_ALL: (ClockId, ClockId) = (ClockId::CLOCK_MONOTONIC, ClockId::CLOCK_MONOTONIC);

/// So far, since it was booted.
pub(super) fn slept() -> Duration {
    let read = |clock| clock_gettime(clock).map_or(Duration::ZERO, Duration::from);
    let (awake, all) = AWAKE_AND_ALL;
    // Read in this order the difference is not below 0.
    let awake = read(awake);
    read(all).saturating_sub(awake)
}
