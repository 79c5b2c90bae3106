//! Determines whether the kernel's OOM killer killed a process because the host or the cgroup ran out of memory.
//!
//! There are three sources, none of which is always available:
//! - the kernel log names the process, but usually only root can read it;
//! - `memory.events` of its cgroup (`memory.oom_control` in version 1) counts the OOM kills in the cgroup;
//! - `oom_kill` in /proc/vmstat counts the OOM kills of the whole host, so an unchanged counter rules out a kill.
//!
//! The kernel increments the counters, then sends the signal, then writes the log line (`mm/oom_kill.c`,
//! `__oom_kill_process`). When a process exits, the counters are therefore up to date, but the log line may be slightly
//! late.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use gputop_model::event::{OomEvidence, OomVerdict};
use gputop_model::text::visible;
use gputop_model::{Millis, Missing, Mono, Pid, Reading, Reason};

use crate::collect::kernel_log::OomKill;

/// Maximum age of an OOM kill that can explain an exit. The kernel needs a while to tear down a process that has a lot
/// of memory.
const MAX_KILL_AGE: Millis = Millis(60_000);
const MAX_KILLS: usize = 256;
const MAX_BYTES: u64 = 64 << 10;

#[derive(Debug, Clone)]
pub struct OomCounterPaths {
    pub proc_root: PathBuf,
    /// Root of the cgroup file system, normally `/sys/fs/cgroup`.
    pub cgroup_root: PathBuf,
    /// True if gputop sees processes under the same PIDs as the kernel log, which is not the case in a container.
    pub is_host: bool,
}

/// Returns the verdict for a process that the OOM killer did not kill.
pub fn not_killed() -> OomVerdict {
    OomVerdict { killed: false.into(), evidence: None }
}

fn killed(evidence: OomEvidence) -> OomVerdict {
    OomVerdict { killed: true.into(), evidence: Some(evidence) }
}

#[derive(Debug, Clone)]
pub struct OomKiller {
    paths: OomCounterPaths,
    /// Error if the kernel log cannot be read.
    log: Result<(), Missing>,
    kills: VecDeque<(Mono, OomKill)>,
    host: Option<Counter>,
    groups: HashMap<Arc<Path>, Counter>,
}

/// OOM kill counter and its recent increase.
#[derive(Debug, Clone, PartialEq)]
struct Counter {
    /// Value of the counter before its recent increase.
    before: u64,
    count: u64,
    increased: Option<Mono>,
    /// Number of recent OOM kills not yet assigned to a process.
    unclaimed: u64,
}

impl Counter {
    fn new(count: u64) -> Self {
        Self { before: count, count, increased: None, unclaimed: 0 }
    }

    fn update(&mut self, count: u64, now: Mono) {
        if !self.has_increased(now) {
            (self.before, self.increased, self.unclaimed) = (self.count, None, 0);
        }
        if count > self.count {
            self.increased = Some(now);
            self.unclaimed += count - self.count;
        }
        self.count = count;
    }

    fn has_increased(&self, now: Mono) -> bool {
        self.increased.is_some_and(|increased| now.since(increased) < MAX_KILL_AGE)
    }
}

impl OomKiller {
    pub fn new(paths: OomCounterPaths, log: Result<(), Missing>) -> Self {
        let mut killer =
            Self { paths, log, kills: VecDeque::new(), host: None, groups: HashMap::new() };
        killer.host = killer.host_count().map(Counter::new);
        killer
    }

    /// Starts watching the OOM kill counter of a running process's cgroup. Returns `None` if the counter is not
    /// readable. The counter is watched until the caller drops the returned path.
    pub fn watch(&mut self, pid: Pid) -> Option<Arc<Path>> {
        let path = self.paths.proc_root.join(pid.to_string()).join("cgroup");
        let file = counter_file(&self.paths.cgroup_root, &read(&path).ok()?)?;
        if let Some((known, _)) = self.groups.get_key_value(&*file) {
            return Some(Arc::clone(known));
        }
        let counter = Counter::new(count(&file)?);
        let file: Arc<Path> = file.into();
        self.groups.insert(Arc::clone(&file), counter);
        Some(file)
    }

    /// Reads the OOM kill counters. Call it regularly, or an old kill may be mistaken for a new one.
    pub fn refresh(&mut self, now: Mono) {
        self.groups.retain(|file, _| Arc::strong_count(file) > 1);
        while self.kills.front().is_some_and(|(at, _)| now.since(*at) >= MAX_KILL_AGE) {
            self.kills.pop_front();
        }
        let before = self.host.as_ref().map(|host| host.count);
        let count = self.host_count();
        if let (Some(host), Some(count)) = (&mut self.host, count) {
            host.update(count, now);
        }
        // Skip the cgroup counters if the host's counter has not changed, because they change only when it does.
        if before.is_none() || before != count {
            for (file, counter) in &mut self.groups {
                if let Some(count) = self::count(file) {
                    counter.update(count, now);
                }
            }
        }
    }

    pub fn note(&mut self, kill: OomKill, now: Mono) {
        if self.kills.len() == MAX_KILLS {
            self.kills.pop_front();
        }
        self.kills.push_back((now, kill));
    }

    pub fn lose_log(&mut self, why: Missing) {
        self.log = Err(why);
    }

    /// Returns true if the OOM killer killed a process recently and the log line that names this process may still
    /// arrive.
    pub fn is_line_awaited(&mut self, pid: Pid, now: Mono) -> bool {
        self.refresh(now);
        let is_kill_possible = self.host.as_ref().is_none_or(|host| host.has_increased(now));
        is_kill_possible && self.reads_log() && self.line(pid).is_none()
    }

    /// Determines whether the OOM killer killed a process. `by_sigkill` is true if the process was killed by SIGKILL,
    /// and false if its status is unknown.
    pub fn verdict(
        &mut self,
        pid: Pid,
        group: Option<&Arc<Path>>,
        by_sigkill: bool,
        now: Mono,
    ) -> OomVerdict {
        self.refresh(now);
        let counter = group.and_then(|group| self.groups.get_mut(&**group).map(|c| (group, c)));
        let counted = counter.and_then(|(group, counter)| claim(group, counter, now));
        if let Some(line) = self.line(pid) {
            return killed(line);
        }
        match counted {
            Some(Some(evidence)) if by_sigkill => return killed(evidence),
            Some(Some(evidence)) => {
                return OomVerdict {
                    killed: Reading::missing(
                        Reason::Unknown,
                        "the OOM killer killed a process in the same cgroup, but the exit status of this process is unknown",
                    ),
                    evidence: Some(evidence),
                };
            }
            // The counter includes OOM kills of every process in the cgroup, so an unchanged counter rules out a kill.
            Some(None) => return not_killed(),
            None => {}
        }
        let is_ruled_out = self.host.as_ref().is_some_and(|host| !host.has_increased(now));
        if is_ruled_out || self.reads_log() {
            return not_killed();
        }
        OomVerdict { killed: Reading::Missing(self.why_unknown()), evidence: None }
    }

    fn why_unknown(&self) -> Missing {
        match &self.log {
            Err(why) => why.clone(),
            Ok(()) => Missing::new(
                Reason::Unsupported,
                "inside a container, the PIDs in the kernel log do not match the container's PIDs",
            ),
        }
    }

    fn reads_log(&self) -> bool {
        self.log.is_ok() && self.paths.is_host
    }

    fn line(&self, pid: Pid) -> Option<OomEvidence> {
        let is_match = |(_, kill): &&(Mono, OomKill)| self.paths.is_host && kill.pid == pid;
        let (_, kill) = self.kills.iter().rev().find(is_match)?;
        Some(OomEvidence::KernelLine(kill.text.clone()))
    }

    fn host_count(&self) -> Option<u64> {
        count(&self.paths.proc_root.join("vmstat"))
    }
}

/// Returns the sources that identify victims of the OOM killer on this system, each as a noun phrase.
pub fn sources(paths: OomCounterPaths, log: Result<(), Missing>) -> Vec<&'static str> {
    let mut killer = OomKiller::new(paths, log);
    let own = killer.watch(Pid(std::process::id())).is_some();
    [
        (killer.reads_log(), "the kernel log"),
        (own, "the cgroup counters"),
        (killer.host.is_some(), "the host's counter"),
    ]
    .into_iter()
    .filter_map(|(is_available, name)| is_available.then_some(name))
    .collect()
}

/// Checks the OOM kill counter of an exited process's cgroup. Returns `None` if the counter is not readable,
/// `Some(None)` if the OOM killer did not kill the process, and evidence of the kill otherwise.
fn claim(file: &Path, counter: &mut Counter, now: Mono) -> Option<Option<OomEvidence>> {
    // Check that the counter still exists, because a cgroup is often removed when its last process exits.
    count(file)?;
    if !counter.has_increased(now) || counter.unclaimed == 0 {
        return Some(None);
    }
    counter.unclaimed -= 1;
    let path = visible(file.as_os_str().as_encoded_bytes(), 300);
    let (before, count) = (counter.before, counter.count);
    let evidence = format!("oom_kill in {path} increased from {before} to {count}");
    Some(Some(OomEvidence::Counter(evidence)))
}

/// Returns the counter file of the cgroup in `/proc/PID/cgroup`: `4:memory:/batch/7` in version 1,
/// `0::/user.slice/a.scope` in version 2.
fn counter_file(root: &Path, cgroup: &str) -> Option<PathBuf> {
    let path_of = |wanted: &str| {
        cgroup.lines().map(|line| line.splitn(3, ':')).find_map(|mut line| {
            line.nth(1)?.split(',').any(|c| c == wanted).then(|| line.next()).flatten()
        })
    };
    match path_of("memory") {
        Some(path) => Some(below(&root.join("memory"), path)?.join("memory.oom_control")),
        None => Some(below(root, path_of("")?)?.join("memory.events")),
    }
}

/// Joins a cgroup path to the root. A path with `..` is outside this cgroup namespace and not accessible.
fn below(root: &Path, path: &str) -> Option<PathBuf> {
    let path = Path::new(path.strip_prefix('/')?);
    path.components().all(|c| matches!(c, Component::Normal(_))).then(|| root.join(path))
}

/// Reads an OOM kill counter from the line `oom_kill N` of a file.
fn count(file: &Path) -> Option<u64> {
    read(file).ok()?.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

fn read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests;
