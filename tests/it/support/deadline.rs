//! How long tests wait for a condition, and how often they look.

use std::thread;
use std::time::{Duration, Instant};

/// Maximum time that a test waits for a condition. Only a test that fails waits this long, so it allows for a machine that
/// runs many other things.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Pauses between two looks at a condition, for a sixteenth of the time since the first one. Looking more often would only
/// take time from the programs under test.
pub fn pause(since: Instant) {
    thread::sleep(
        (since.elapsed() / 16).clamp(Duration::from_millis(2), Duration::from_millis(50)),
    );
}
