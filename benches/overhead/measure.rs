//! CPU time and resident memory of a running process.

use std::fs;
use std::time::{Duration, Instant};

use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

/// Returns the CPU time of all threads of the process in nanoseconds. Includes exited threads, which the schedstat
/// files in `/proc` no longer cover.
fn cpu_time(pid: u32) -> Duration {
    let clock = clock_getcpuclockid(Pid::from_raw(pid.cast_signed())).unwrap();
    clock_gettime(clock).unwrap().into()
}

/// A measurement of a process over time.
pub struct Measurement {
    pid: u32,
    cpu: Duration,
    began: Instant,
}

impl Measurement {
    pub fn begin(pid: u32) -> Self {
        Self { pid, cpu: cpu_time(pid), began: Instant::now() }
    }

    /// Returns the CPU use since the start of the measurement, in percent of a core.
    pub fn cpu_percent(&self) -> f64 {
        let used = cpu_time(self.pid).saturating_sub(self.cpu);
        used.as_secs_f64() / self.began.elapsed().as_secs_f64() * 100.0
    }

    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }
}

/// Returns the resident memory in MiB.
pub fn resident_mib(pid: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    kib.unwrap().parse::<f64>().unwrap() / 1024.0
}
