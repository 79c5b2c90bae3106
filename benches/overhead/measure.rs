//! What a running process has used.

use std::fs;
use std::time::{Duration, Instant};

use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

/// CPU time of all threads of the process, ended ones too, to the nanosecond: what the schedstat files of its
/// tasks add up to, but for the threads that are gone.
fn cpu_time(pid: u32) -> Duration {
    let clock = clock_getcpuclockid(Pid::from_raw(pid.cast_signed())).unwrap();
    clock_gettime(clock).unwrap().into()
}

/// A stretch of a process's life.
pub struct Stretch {
    pid: u32,
    cpu: Duration,
    began: Instant,
}

impl Stretch {
    pub fn begin(pid: u32) -> Self {
        Self {
            pid,
            cpu: cpu_time(pid),
            began: Instant::now(),
        }
    }

    /// CPU in percent of a core until now.
    pub fn cpu_percent(&self) -> f64 {
        let used = cpu_time(self.pid).saturating_sub(self.cpu);
        used.as_secs_f64() / self.began.elapsed().as_secs_f64() * 100.0
    }

    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }
}

/// Resident memory in MiB.
pub fn resident_mib(pid: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    kib.unwrap().parse::<f64>().unwrap() / 1024.0
}
