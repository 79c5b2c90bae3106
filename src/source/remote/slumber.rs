//! How long this machine has slept: a laptop that was closed comes back to connections that are dead and do not know it.

use std::time::Duration;

/// So far, since it was booted.
#[cfg(target_os = "linux")]
pub(super) fn slept() -> Duration {
    use nix::time::{ClockId, clock_gettime};
    let read = |clock| clock_gettime(clock).map_or(Duration::ZERO, Duration::from);
    // The one counts on in a suspended machine, the other does not. Read in this order the difference is not below 0.
    let awake = read(ClockId::CLOCK_MONOTONIC);
    read(ClockId::CLOCK_BOOTTIME).saturating_sub(awake)
}

/// It is not known here; the heartbeat finds out.
#[cfg(not(target_os = "linux"))]
pub(super) fn slept() -> Duration {
    Duration::ZERO
}
