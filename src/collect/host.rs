//! Host metrics (CPU, memory, load), and the hello message, which describes the host.
//!
//! Reads CPU usage and memory through sysinfo, and refreshes only these values. Core frequencies are skipped: reading
//! them opens one file per core, which on a large machine costs a hundred times as much as all other reads together.

use std::fs;
use std::path::Path;

use gputop_model::frame::SCHEMA;
use gputop_model::text::visible;
use gputop_model::{Bytes, Hello, Host, Mono, Percent, PidNamespace, Reading, Reason};
use procfs::{Current, Meminfo};
use sysinfo::{CpuRefreshKind, MINIMUM_CPU_UPDATE_INTERVAL, MemoryRefreshKind, System};

pub struct HostReader {
    /// State of sysinfo, or `None` on a system that sysinfo does not support.
    system: Option<System>,
    /// Time of sysinfo's last CPU refresh, or `None` before the first one.
    cpu_refreshed: Option<Mono>,
    cpu: Reading<Percent>,
}

impl Default for HostReader {
    fn default() -> Self {
        Self {
            system: System::new().ok(),
            cpu_refreshed: None,
            cpu: Reading::missing(Reason::NotRead, "needs two readings"),
        }
    }
}

impl HostReader {
    pub fn read(&mut self, now: Mono) -> Host {
        let Some(system) = &mut self.system else {
            return Host { at: now, ..Host::default() };
        };
        if let Some(cpu) = refresh_cpu(system, &mut self.cpu_refreshed, now) {
            self.cpu = Reading::Value(cpu);
        }
        system.refresh_memory_specifics(MemoryRefreshKind::nothing().with_ram().with_swap());
        Host {
            at: now,
            cpu: self.cpu.clone(),
            cores: cores(system),
            page_cache: page_cache(),
            load: load(),
            ..memory(system)
        }
    }
}

/// Refreshes the CPU usage if enough time has passed. sysinfo computes usage from two refreshes, which must be at least
/// its minimum interval apart. Drops the first value, which is the average since boot.
fn refresh_cpu(system: &mut System, refreshed: &mut Option<Mono>, now: Mono) -> Option<Percent> {
    // Require strictly more time than the minimum, because this clock truncates milliseconds and sysinfo's clock does
    // not.
    let is_due = |at| u128::from(now.since(at).0) > MINIMUM_CPU_UPDATE_INTERVAL.as_millis();
    if !refreshed.is_none_or(is_due) {
        return None;
    }
    system.refresh_cpu_specifics(CpuRefreshKind::nothing().with_usage());
    refreshed.replace(now).map(|_| Percent::rounded(f64::from(system.global_cpu_usage())))
}

fn cores(system: &System) -> Reading<u32> {
    match u32::try_from(system.cpus().len()) {
        Ok(0) | Err(_) => Reading::missing(Reason::Unknown, "cannot read /proc/stat"),
        Ok(cores) => Reading::Value(cores),
    }
}

/// Returns a host with only the four memory fields set.
fn memory(system: &System) -> Host {
    let total = system.total_memory();
    let read = |bytes: u64| match total {
        0 => Reading::missing(Reason::Unknown, "cannot read /proc/meminfo"),
        _ => Reading::Value(Bytes(bytes)),
    };
    Host {
        memory_total: read(total),
        memory_used: read(total.saturating_sub(system.available_memory())),
        swap_total: read(system.total_swap()),
        swap_used: read(system.used_swap()),
        ..Host::default()
    }
}

fn page_cache() -> Reading<Bytes> {
    let cached = Meminfo::current().ok().map(|info| Bytes(info.cached));
    Reading::or_missing(cached, Reason::Unknown, "cannot read /proc/meminfo")
}

fn load() -> Reading<Vec<f64>> {
    System::load_average().map_or_else(
        |_| Reading::missing(Reason::Unknown, "cannot read /proc/loadavg"),
        |load| Reading::Value(vec![load.one, load.five, load.fifteen]),
    )
}

/// Returns the facts about the host that do not change while an agent is running.
pub fn hello() -> Hello {
    Hello {
        schema: SCHEMA,
        requires: Vec::new(),
        // The kernel generates a new UUID on every read.
        agent: first_line(Path::new("/proc/sys/kernel/random/uuid")).unwrap_or_default(),
        version: env!("CARGO_PKG_VERSION").into(),
        host: host_name(),
        reduced: false,
        boot_id: first_line(Path::new("/proc/sys/kernel/random/boot_id")).unwrap_or_default(),
        kernel: Reading::or_missing(
            first_line(Path::new("/proc/sys/kernel/osrelease")),
            Reason::Unknown,
            "cannot read /proc/sys/kernel/osrelease",
        ),
        namespace: pid_namespace(Path::new("/proc")),
        namespace_id: Reading::or_missing(
            namespace_id(Path::new("/proc")),
            Reason::Unknown,
            "cannot read /proc/self/ns/pid",
        ),
        ticks_per_second: procfs::ticks_per_second(),
        uid: Some(nix::unistd::geteuid().as_raw()),
    }
}

/// Determines whether the PIDs in this /proc are the ones that the driver reports.
pub fn pid_namespace(proc_root: &Path) -> PidNamespace {
    PidNamespace::with_id(namespace_id(proc_root))
}

/// Returns the inode of gputop's own PID namespace.
fn namespace_id(proc_root: &Path) -> Option<u64> {
    let link = fs::read_link(proc_root.join("self/ns/pid")).ok()?;
    link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()
}

fn host_name() -> String {
    nix::unistd::gethostname()
        .map_or_else(|_| String::new(), |name| visible(name.as_encoded_bytes(), 255))
}

fn first_line(path: &Path) -> Option<String> {
    let text = fs::read(path).ok()?;
    let line = text.split(|&b| b == b'\n').next()?;
    (!line.is_empty()).then(|| visible(line, 255))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gputop_peek::clock::now_mono;

    #[test]
    fn cpu_needs_two_readings_and_memory_needs_one() {
        let mut reader = HostReader::default();
        let first = reader.read(now_mono());
        assert_eq!(first.cpu.why().and_then(|m| m.hint.as_deref()), Some("needs two readings"));
        assert!(first.memory_total.get() >= first.memory_used.get());
        assert!(first.cores.get() >= Some(1));
        assert_eq!(first.load.value().map(Vec::len), Some(3));

        let refreshed = now_mono();
        while now_mono().since(refreshed).0 <= 205 {
            std::hint::spin_loop();
        }
        let second = reader.read(now_mono());
        let cpu = second.cpu.get().expect("a second reading");
        assert!((0.0..=100.5).contains(&cpu.0), "{cpu:?}");
    }

    #[test]
    fn distinguishes_initial_namespace_from_container() {
        let root = tempfile::tempdir().expect("tempdir");
        let ns = root.path().join("self/ns");
        assert_eq!(pid_namespace(root.path()), PidNamespace::Unknown);
        fs::create_dir_all(&ns).expect("tree");
        std::os::unix::fs::symlink("pid:[4026532541]", ns.join("pid")).expect("link");
        assert_eq!(pid_namespace(root.path()), PidNamespace::Container);
        fs::remove_file(ns.join("pid")).expect("remove");
        std::os::unix::fs::symlink("pid:[4026531836]", ns.join("pid")).expect("link");
        assert_eq!(pid_namespace(root.path()), PidNamespace::Host);
    }

    #[test]
    fn hello_contains_boot_id() {
        let hello = hello();
        assert_eq!(hello.boot_id.len(), 36);
        assert_eq!(hello.ticks_per_second, 100);
        assert!(!hello.host.is_empty());
    }
}
