//! Reads what a process and its threads use: CPU time, time without a core, storage, and the quota of their cgroup.
//!
//! Most values are counters. Two readings give what happened between them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use gputop_model::process::RunState;
use gputop_model::text::visible;
use gputop_model::{Bytes, Pid};
use nix::libc;

use super::stat::{StatBuffer, StatFile};

/// Maximum number of threads and of processes in a list.
const MAX_THREADS: usize = 4_096;
const MAX_PROCESSES: usize = 65_536;
const MAX_CHILDREN: usize = 512;
/// Maximum number of generations below a process.
const MAX_DEPTH: usize = 4;
const MAX_NAME: usize = 15;

/// The system calls in which threads wait.
const SYSTEM_CALLS: &[(libc::c_long, &str)] = &[
    (libc::SYS_accept4, "accept"),
    (libc::SYS_clock_nanosleep, "clock_nanosleep"),
    (libc::SYS_epoll_pwait, "epoll_wait"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_epoll_wait, "epoll_wait"),
    (libc::SYS_fdatasync, "fdatasync"),
    (libc::SYS_fsync, "fsync"),
    (libc::SYS_futex, "futex"),
    (libc::SYS_io_getevents, "io_getevents"),
    (libc::SYS_io_uring_enter, "io_uring_enter"),
    (libc::SYS_ioctl, "ioctl"),
    (libc::SYS_nanosleep, "nanosleep"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_poll, "poll"),
    (libc::SYS_ppoll, "poll"),
    (libc::SYS_pread64, "read"),
    (libc::SYS_pselect6, "select"),
    (libc::SYS_pwrite64, "write"),
    (libc::SYS_read, "read"),
    (libc::SYS_readv, "read"),
    (libc::SYS_recvfrom, "recv"),
    (libc::SYS_recvmsg, "recv"),
    (libc::SYS_sched_yield, "sched_yield"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_select, "select"),
    (libc::SYS_sendmsg, "send"),
    (libc::SYS_sendto, "send"),
    (libc::SYS_wait4, "wait"),
    (libc::SYS_waitid, "wait"),
    (libc::SYS_write, "write"),
    (libc::SYS_writev, "write"),
];

/// CPU time of a thread, in nanoseconds (`/proc/PID/task/TID/schedstat`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ThreadTimes {
    pub cpu_ns: u64,
    /// Time in which the thread could run, but had no core.
    pub delay_ns: u64,
}

/// A child of a process, at any depth.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Child {
    pub name: String,
    pub times: ThreadTimes,
    /// State D: waits in the kernel, usually for storage.
    pub is_blocked: bool,
}

/// Bytes of `/proc/PID/io`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StorageCounters {
    /// Bytes read from storage, not from the page cache.
    pub read: u64,
    /// Bytes written with system calls.
    pub written: u64,
}

/// What `/proc/PID/status` says of a thread.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ThreadStatus {
    /// CPUs on which it may run: `0-15`.
    pub cpus: String,
    pub cpu_count: u32,
    pub swapped: Option<Bytes>,
    /// False if the process is in another PID namespace than this program.
    pub is_in_own_namespace: bool,
}

/// CPU quota of a cgroup, the tightest of it and those around it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct CpuQuota {
    /// Number of cores. `None` without a limit.
    pub cores: Option<f64>,
    /// Time in which the quota stopped the processes, in nanoseconds.
    pub stopped_ns: u64,
}

fn read(path: &Path) -> Option<String> {
    fs::read(path).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

fn folder(proc_root: &Path, pid: Pid) -> PathBuf {
    proc_root.join(pid.to_string())
}

/// Returns the times of a thread, or of the main thread of a process.
pub fn thread_times(proc_root: &Path, pid: Pid, thread: u32) -> Option<ThreadTimes> {
    let text = read(&folder(proc_root, pid).join(format!("task/{thread}/schedstat")))?;
    let mut numbers = text.split_whitespace().map(str::parse);
    Some(ThreadTimes { cpu_ns: numbers.next()?.ok()?, delay_ns: numbers.next()?.ok()? })
}

/// Returns the state of a thread.
pub fn thread_state(proc_root: &Path, pid: Pid, thread: u32) -> Option<RunState> {
    let path = folder(proc_root, pid).join(format!("task/{thread}/stat"));
    let mut buffer = StatBuffer::default();
    Some(StatFile::open(&path).ok()?.read(&mut buffer).ok()?.state)
}

/// Returns the system call that a thread is in, or an empty name if it runs or could run. `None` without permission.
pub fn system_call(proc_root: &Path, pid: Pid, thread: u32) -> Option<String> {
    let text = read(&folder(proc_root, pid).join(format!("task/{thread}/syscall")))?;
    let number = text.split_whitespace().next()?;
    if number == "running" {
        return Some(String::new());
    }
    let number: libc::c_long = number.parse().ok()?;
    let known = SYSTEM_CALLS.iter().find(|(known, _)| *known == number);
    Some(known.map_or_else(|| format!("system call {number}"), |(_, name)| (*name).to_owned()))
}

/// Returns the IDs of all threads of a process.
pub fn thread_ids(proc_root: &Path, pid: Pid) -> Vec<u32> {
    let entries = fs::read_dir(folder(proc_root, pid).join("task")).into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.take(MAX_THREADS).collect()
}

pub fn thread_name(proc_root: &Path, pid: Pid, thread: u32) -> Option<String> {
    let name = read(&folder(proc_root, pid).join(format!("task/{thread}/comm")))?;
    Some(visible(name.trim().as_bytes(), MAX_NAME))
}

/// Returns the names of all threads of a process by their IDs.
pub fn thread_names(proc_root: &Path, pid: Pid) -> BTreeMap<u32, String> {
    let name = |id| Some((id, thread_name(proc_root, pid, id)?));
    thread_ids(proc_root, pid).into_iter().filter_map(name).collect()
}

pub fn storage(proc_root: &Path, pid: Pid) -> Option<StorageCounters> {
    let text = read(&folder(proc_root, pid).join("io"))?;
    let value =
        |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok());
    Some(StorageCounters { read: value("read_bytes:")?, written: value("wchar:")? })
}

pub fn thread_status(proc_root: &Path, pid: Pid, thread: u32) -> Option<ThreadStatus> {
    let text = read(&folder(proc_root, pid).join(format!("task/{thread}/status")))?;
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
    let cpus = value("Cpus_allowed_list:")?;
    let swapped = value("VmSwap:").and_then(|text| text.strip_suffix("kB")?.trim().parse().ok());
    Some(ThreadStatus {
        cpus: visible(cpus.as_bytes(), 64),
        cpu_count: count_cpus(cpus)?,
        swapped: swapped.map(|kib: u64| Bytes(kib.saturating_mul(1_024))),
        is_in_own_namespace: value("NSpid:").is_none_or(|ids| ids.split_whitespace().count() == 1),
    })
}

/// Counts the CPUs of a list such as `0-3,8`.
fn count_cpus(list: &str) -> Option<u32> {
    list.split(',').try_fold(0u32, |sum, part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

/// Returns the processes below a process, nearest first.
pub fn descendants(proc_root: &Path, pid: Pid) -> Vec<Pid> {
    let parents = all_parents(proc_root);
    let mut found = vec![pid];
    let (mut first, mut depth) = (0, 0);
    while first < found.len() && depth < MAX_DEPTH && found.len() < MAX_CHILDREN {
        let generation = found[first..].to_vec();
        first = found.len();
        let is_child = |(_, parent): &&(Pid, Pid)| generation.contains(parent);
        found.extend(parents.iter().filter(is_child).map(|(child, _)| *child));
        depth += 1;
    }
    found.truncate(MAX_CHILDREN);
    found.split_off(1)
}

/// Returns each process and its parent. The list of children in `/proc/PID/task/TID/children` does not exist in all
/// kernels.
fn all_parents(proc_root: &Path) -> Vec<(Pid, Pid)> {
    let entries = fs::read_dir(proc_root).into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok().map(Pid));
    let mut buffer = StatBuffer::default();
    let mut parents = Vec::new();
    for pid in pids.take(MAX_PROCESSES) {
        let stat = StatFile::of(proc_root, pid).and_then(|file| Ok(file.read(&mut buffer)?.parent));
        parents.extend(stat.ok().map(|parent| (pid, parent)));
    }
    parents
}

/// Reads a child process. `None` if it has exited.
pub fn child(proc_root: &Path, pid: Pid) -> Option<Child> {
    let mut buffer = StatBuffer::default();
    let file = StatFile::of(proc_root, pid).ok()?;
    let stat = file.read(&mut buffer).ok()?;
    if stat.state == RunState::Zombie {
        return None;
    }
    Some(Child {
        name: visible(stat.name, MAX_NAME),
        is_blocked: stat.state == RunState::Blocked,
        times: thread_times(proc_root, pid, pid.0)?,
    })
}

/// Returns the CPU time of all threads of a process in clock ticks, and the number of its major page faults.
pub fn process_counters(proc_root: &Path, pid: Pid) -> Option<(u64, u64)> {
    let mut buffer = StatBuffer::default();
    let file = StatFile::of(proc_root, pid).ok()?;
    let stat = file.read(&mut buffer).ok()?;
    Some((stat.cpu_ticks, stat.major_faults))
}

/// Reads the CPU quota of the cgroup of a process and of the cgroups around it.
pub fn cpu_quota(proc_root: &Path, cgroup_root: &Path, pid: Pid) -> Option<CpuQuota> {
    let text = read(&folder(proc_root, pid).join("cgroup"))?;
    let unified = text.lines().find_map(|line| line.strip_prefix("0::"));
    let version_1 = text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let is_cpu = fields.next()?.split(',').any(|name| name == "cpu");
        is_cpu.then(|| fields.next()).flatten()
    });
    let in_unified = unified.map(|path| (cgroup_root.to_owned(), path));
    let in_version_1 = version_1.map(|path| (cgroup_root.join("cpu"), path));
    [in_unified, in_version_1].into_iter().flatten().find_map(|(root, path)| quota(&root, path))
}

/// Returns the tightest quota from a cgroup up to the root. `None` if there is no file about it.
fn quota(root: &Path, path: &str) -> Option<CpuQuota> {
    let relative = Path::new(path.trim_start_matches('/'));
    let mut found: Option<CpuQuota> = None;
    for part in relative.ancestors() {
        let folder = root.join(part);
        let Some(statistics) = read(&folder.join("cpu.stat")) else { continue };
        let value = |key: &str| -> Option<u64> {
            statistics.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok())
        };
        let stopped_us = value("throttled_usec ").map(|us| us.saturating_mul(1_000));
        let stopped_ns = stopped_us.or_else(|| value("throttled_time ")).unwrap_or(0);
        let cores = quota_cores(&folder);
        let known = found.get_or_insert_default();
        known.stopped_ns = known.stopped_ns.max(stopped_ns);
        known.cores = match (known.cores, cores) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }
    found
}

fn quota_cores(folder: &Path) -> Option<f64> {
    let number = |text: &str| text.trim().parse::<f64>().ok().filter(|number| *number > 0.0);
    if let Some(max) = read(&folder.join("cpu.max")) {
        let (quota, period) = max.trim().split_once(' ')?;
        return Some(number(quota)? / number(period)?);
    }
    let quota = number(&read(&folder.join("cpu.cfs_quota_us"))?)?;
    Some(quota / number(&read(&folder.join("cpu.cfs_period_us"))?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_the_cpus_of_a_list() {
        assert_eq!(count_cpus("0-15"), Some(16));
        assert_eq!(count_cpus("3"), Some(1));
        assert_eq!(count_cpus("0-1,4,8-9"), Some(5));
        assert_eq!(count_cpus("9-8"), None);
        assert_eq!(count_cpus(""), None);
    }

    #[test]
    fn reads_the_tightest_quota_of_both_cgroup_versions() {
        let root = tempfile::tempdir().expect("a folder");
        let file = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            fs::write(path, text).expect("a file");
        };
        file("proc/7/cgroup", "0::/kubepods/pod1\n");
        file("proc/8/cgroup", "5:cpu,cpuacct:/slurm/job_1\n1:name=systemd:/\n");
        file("proc/9/cgroup", "0::/none\n");
        file("sys/kubepods/cpu.stat", "usage_usec 9\nthrottled_usec 40\n");
        file("sys/kubepods/cpu.max", "200000 100000\n");
        file("sys/kubepods/pod1/cpu.stat", "usage_usec 9\nthrottled_usec 3\n");
        file("sys/kubepods/pod1/cpu.max", "max 100000\n");
        file("sys/cpu/slurm/job_1/cpu.stat", "nr_periods 1\nthrottled_time 500\n");
        file("sys/cpu/slurm/job_1/cpu.cfs_quota_us", "150000\n");
        file("sys/cpu/slurm/job_1/cpu.cfs_period_us", "100000\n");
        let read = |pid| cpu_quota(&root.path().join("proc"), &root.path().join("sys"), Pid(pid));
        assert_eq!(read(7), Some(CpuQuota { cores: Some(2.0), stopped_ns: 40_000 }));
        assert_eq!(read(8), Some(CpuQuota { cores: Some(1.5), stopped_ns: 500 }));
        assert_eq!(read(9), None);
    }

    #[test]
    fn reads_this_process() {
        let (proc_root, pid) = (Path::new("/proc"), Pid(std::process::id()));
        let names = thread_names(proc_root, pid);
        assert!(names.contains_key(&pid.0), "{names:?}");
        let status = thread_status(proc_root, pid, pid.0).expect("its status");
        assert!(status.cpu_count >= 1, "{status:?}");
        assert_eq!(thread_state(proc_root, Pid(0x7fff_fff0), 1), None);
        let parent = Pid(std::os::unix::process::parent_id());
        assert!(descendants(proc_root, parent).contains(&pid));
    }
}
