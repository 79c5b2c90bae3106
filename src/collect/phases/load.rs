//! The counters of a process over a time window.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;

use gputop_model::phases::{PhaseWindow, WorkerLoad};
use gputop_model::{Bytes, BytesPerSecond, Mono, Percent, Pid, Reading, Reason};
use gputop_peek::clock::{Instants, now_mono};
use gputop_peek::process::load::{
    Child, CpuQuota, StorageCounters, ThreadStatus, ThreadTimes, child, cpu_quota, descendants,
    process_counters, storage, thread_names, thread_status, thread_times,
};
use nix::unistd::{SysconfVar, sysconf};

/// Folders of the kernel's files.
#[derive(Debug, Clone)]
pub struct Roots {
    pub proc: PathBuf,
    pub cgroup: PathBuf,
}

/// Number of snapshots between two searches for threads and children.
const SEARCH_PERIOD: u32 = 5;
/// Maximum number of snapshots, one a second.
const MAX_SNAPSHOTS: usize = 700;
const MAX_PROGRAMS: usize = 4;
/// Start of the names of PyTorch's autograd threads.
const AUTOGRAD: &str = "pt_autograd";
const NCCL: &str = "pt_nccl";

/// Counters at one time.
#[derive(Debug)]
struct Snapshot {
    at: Mono,
    boot_ns: u64,
    /// ID of the thread that drives the GPU, and its times.
    thread: u32,
    times: Option<ThreadTimes>,
    autograd_ns: u64,
    /// CPU time of all threads, in clock ticks, and the number of major page faults.
    process: Option<(u64, u64)>,
    children: BTreeMap<Pid, Child>,
    storage: Option<StorageCounters>,
    swapped: Option<Bytes>,
    quota: Option<CpuQuota>,
}

/// The counters of one process, once a second.
#[derive(Debug)]
pub struct LoadHistory {
    pid: Pid,
    roots: Roots,
    snapshots: VecDeque<Snapshot>,
    taken: u32,
    autograd: Vec<u32>,
    has_nccl: bool,
    children: Vec<Pid>,
    /// Number of CPUs on which the children may run.
    children_cpus: Option<u32>,
    status: Option<ThreadStatus>,
    ticks_per_second: u64,
}

impl LoadHistory {
    pub fn new(roots: &Roots, pid: Pid) -> Self {
        let ticks = sysconf(SysconfVar::CLK_TCK).ok().flatten();
        Self {
            pid,
            roots: roots.clone(),
            snapshots: VecDeque::new(),
            taken: 0,
            autograd: Vec::new(),
            has_nccl: false,
            children: Vec::new(),
            children_cpus: None,
            status: None,
            ticks_per_second: ticks.and_then(|n| u64::try_from(n).ok()).unwrap_or(100),
        }
    }

    /// Returns false if the process is in another PID namespace, so that the IDs of its threads are unknown here.
    pub fn knows_threads(&self) -> bool {
        self.status.as_ref().is_none_or(|status| status.is_in_own_namespace)
    }

    /// Reads all counters. `thread` is the ID of the thread that drives the GPU.
    pub fn take(&mut self, thread: u32) {
        let (proc_root, pid) = (&self.roots.proc, self.pid);
        if self.taken.is_multiple_of(SEARCH_PERIOD) {
            let names = thread_names(proc_root, pid);
            let is_autograd = |(_, name): &(&u32, &String)| name.starts_with(AUTOGRAD);
            self.autograd = names.iter().filter(is_autograd).map(|(id, _)| *id).collect();
            self.has_nccl = names.values().any(|name| name.starts_with(NCCL));
            self.children = descendants(proc_root, pid);
            self.children_cpus = self.cpus_of_children();
        }
        self.taken = self.taken.wrapping_add(1);
        self.status = thread_status(proc_root, pid, thread);
        let times = |id: &u32| thread_times(proc_root, pid, *id);
        let children = self.children.iter();
        let snapshot = Snapshot {
            at: now_mono(),
            boot_ns: Instants::now().boot_ns,
            thread,
            times: times(&thread),
            autograd_ns: self.autograd.iter().filter_map(times).map(|times| times.cpu_ns).sum(),
            process: process_counters(proc_root, pid),
            children: children.filter_map(|pid| Some((*pid, child(proc_root, *pid)?))).collect(),
            storage: storage(proc_root, pid),
            swapped: self.status.as_ref().and_then(|status| status.swapped),
            quota: cpu_quota(proc_root, &self.roots.cgroup, pid),
        };
        if self.snapshots.len() >= MAX_SNAPSHOTS {
            self.snapshots.pop_front();
        }
        self.snapshots.push_back(snapshot);
    }

    /// Returns the number of CPUs on which all children may run together.
    fn cpus_of_children(&self) -> Option<u32> {
        let status = |pid: &Pid| thread_status(&self.roots.proc, *pid, pid.0);
        let allowed = self.children.iter().filter_map(status);
        let lists: BTreeMap<String, u32> = allowed.map(|s| (s.cpus, s.cpu_count)).collect();
        (!lists.is_empty()).then(|| lists.values().fold(0, |sum: u32, n| sum.saturating_add(*n)))
    }

    /// Adds what happened since `from` to a window.
    pub fn add_to(&self, window: &mut PhaseWindow, from: Mono) {
        window.has_nccl = self.has_nccl;
        if let Some(status) = &self.status {
            window.thread.cpus = Reading::Value(status.cpus.clone());
            window.thread.cpu_count = Reading::Value(status.cpu_count);
        }
        let Some(last) = self.snapshots.back() else { return };
        let is_comparable = |first: &&Snapshot| first.thread == last.thread && first.at >= from;
        let first = self.snapshots.iter().find(is_comparable);
        let Some(first) = first.filter(|first| first.boot_ns < last.boot_ns) else { return };
        let difference = Difference { first, last, ticks_per_second: self.ticks_per_second };
        difference.add_to(window);
        if let Some(count) = self.children_cpus {
            window.workers.cpu_count = Reading::Value(count);
        }
    }
}

/// The differences between two snapshots.
struct Difference<'a> {
    first: &'a Snapshot,
    last: &'a Snapshot,
    ticks_per_second: u64,
}

impl Difference<'_> {
    fn seconds(&self) -> f64 {
        (self.last.boot_ns - self.first.boot_ns) as f64 / 1e9
    }

    /// Returns a time in nanoseconds as a share of the window, in percent.
    fn percent(&self, first: u64, last: u64) -> Percent {
        Percent::rounded(last.saturating_sub(first) as f64 / 1e7 / self.seconds())
    }

    fn rate(&self, value: impl Fn(&StorageCounters) -> u64) -> Reading<BytesPerSecond> {
        let (first, last) = (self.first.storage.as_ref(), self.last.storage.as_ref());
        let Some((first, last)) = first.zip(last) else {
            return Reading::missing(
                Reason::Denied,
                "only the process's user and root can read /proc/PID/io",
            );
        };
        let bytes = value(last).saturating_sub(value(first)) as f64;
        Reading::Value(BytesPerSecond((bytes / self.seconds()) as u64))
    }

    fn add_to(&self, window: &mut PhaseWindow) {
        let (first, last) = (self.first, self.last);
        let no_times = || Reading::missing(Reason::Unsupported, "this kernel has no schedstat");
        if let Some((before, now)) = first.times.zip(last.times) {
            window.thread.cpu = Reading::Value(self.percent(before.cpu_ns, now.cpu_ns));
            let delay = self.percent(before.delay_ns, now.delay_ns);
            window.thread.run_delay = Reading::Value(delay);
            self.add_other_threads(window, now.cpu_ns.saturating_sub(before.cpu_ns));
        } else {
            (window.thread.cpu, window.thread.run_delay) = (no_times(), no_times());
        }
        window.workers = self.workers();
        window.read = self.rate(|storage| storage.read);
        window.written = self.rate(|storage| storage.written);
        if let Some((before, now)) = first.process.zip(last.process) {
            let faults = now.1.saturating_sub(before.1) as f64 / self.seconds();
            window.major_faults = Reading::Value(faults as u64);
        }
        if let Some((before, now)) = first.swapped.zip(last.swapped) {
            window.swapped = Reading::Value(Bytes(now.0.saturating_sub(before.0)));
        }
        let no_quota = "no cgroup with a CPU controller is visible";
        window.quota_stopped = match first.quota.zip(last.quota) {
            Some((before, now)) => Reading::Value(self.percent(before.stopped_ns, now.stopped_ns)),
            None => Reading::missing(Reason::Unsupported, no_quota),
        };
        if let Some(cores) = last.quota.and_then(|quota| quota.cores) {
            window.quota = Reading::Value(Percent::rounded(cores * 100.0));
        }
    }

    fn add_other_threads(&self, window: &mut PhaseWindow, driving_ns: u64) {
        let autograd_ns = self.last.autograd_ns.saturating_sub(self.first.autograd_ns);
        window.autograd_cpu = Reading::Value(self.percent(0, autograd_ns));
        let Some((before, now)) = self.first.process.zip(self.last.process) else { return };
        let tick_ns = 1_000_000_000 / self.ticks_per_second.max(1);
        let all_ns = now.0.saturating_sub(before.0).saturating_mul(tick_ns);
        let others_ns = all_ns.saturating_sub(driving_ns).saturating_sub(autograd_ns);
        window.other_cpu = Reading::Value(self.percent(0, others_ns));
    }

    /// Returns the load of the child processes that existed during the whole window.
    fn workers(&self) -> WorkerLoad {
        let (first, last) = (&self.first.children, &self.last.children);
        let programs: BTreeSet<&String> =
            last.values().map(|child| &child.name).filter(|name| !is_python(name)).collect();
        let workers: Vec<(&Child, &Child)> = last
            .iter()
            .filter(|(_, child)| is_python(&child.name))
            .filter_map(|(pid, child)| Some((first.get(pid)?, child)))
            .collect();
        let mean = |value: fn(&ThreadTimes) -> u64| {
            let shares = workers
                .iter()
                .map(|(before, now)| self.percent(value(&before.times), value(&now.times)).0);
            let mean = shares.sum::<f64>() / workers.len() as f64;
            (!workers.is_empty()).then(|| Percent::rounded(mean))
        };
        let none = "no child process ran during the whole window";
        let reading = |mean| Reading::or_missing(mean, Reason::NotRead, none);
        let blocked = workers.iter().filter(|(_, child)| child.is_blocked).count();
        WorkerLoad {
            count: u32::try_from(workers.len()).unwrap_or(u32::MAX),
            cpu: reading(mean(|times| times.cpu_ns)),
            run_delay: reading(mean(|times| times.delay_ns)),
            blocked: u32::try_from(blocked).unwrap_or(u32::MAX),
            cpu_count: Reading::default(),
            programs: programs.into_iter().take(MAX_PROGRAMS).cloned().collect(),
        }
    }
}

/// Returns true for a process that may be a worker of a data loader. PyTorch names its workers `pt_data_worker`.
fn is_python(name: &str) -> bool {
    name.starts_with("python") || name.starts_with("pt_")
}
