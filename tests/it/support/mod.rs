//! Fixtures of several tests: terminals, hosts, programs and libraries that replace real ones, and test data.

use std::thread;
use std::time::{Duration, Instant};

#[cfg(target_os = "linux")]
pub mod cuda_program;
#[cfg(target_os = "linux")]
pub mod disconnect_day;
#[cfg(target_os = "linux")]
pub mod executable;
#[cfg(target_os = "linux")]
pub mod fake_hosts;
#[cfg(target_os = "linux")]
pub mod fake_machine;
#[cfg(target_os = "linux")]
pub mod fake_nvidia_smi;
#[cfg(target_os = "linux")]
pub mod fake_nvml;
#[cfg(target_os = "linux")]
pub mod heap_bytes;
pub mod many_processes;
pub mod namespace;
#[cfg(target_os = "linux")]
pub mod python;
#[cfg(target_os = "linux")]
pub mod python_target;
pub mod replay_client;
pub mod screen_fixture;
#[cfg(target_os = "linux")]
pub mod screen_tables;
pub mod skip;
#[cfg(target_os = "linux")]
pub mod sshd;
pub mod terminal;
pub mod test_network;
#[cfg(target_os = "linux")]
pub mod torch_target;
pub mod training_day;
pub mod training_model;

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
