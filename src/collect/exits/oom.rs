//! Whether the kernel's out-of-memory killer ended a process: of the host, or of the process's own cgroup.
//!
//! Three places tell, none of them always:
//! - the kernel's log names the process, for root as a rule;
//! - `memory.events` of its cgroup (`memory.oom_control` in version 1) counts the processes of the cgroup that were
//!   killed for any lack of memory;
//! - `oom_kill` in /proc/vmstat counts all of the host's, so one that stands still rules the killer out.
//!
//! The kernel raises the counters before it sends the signal and writes the line just after (`mm/oom_kill.c`,
//! `__oom_kill_process`), so at the end of a process the counters are right, and the line may be a moment late.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use crate::collect::kernel_log::OomKill;
use crate::model::event::OomVerdict;
use crate::model::reading::{Missing, Reading, Reason};
use crate::model::text::visible;
use crate::model::units::{Millis, Mono, Pid};

/// How old a kill may be that a process is said to have ended of: taking apart a process with much memory takes a
/// while.
const RECENT: Millis = Millis(60_000);
/// Lines of the kernel's that are kept for that long.
const MAX_KILLS: usize = 256;
const MAX_BYTES: u64 = 64 << 10;

/// Where the counters are.
#[derive(Debug, Clone)]
pub struct OomCounterPaths {
    pub proc_root: PathBuf,
    /// `/sys/fs/cgroup`
    pub cgroup_root: PathBuf,
    /// The kernel's PIDs are ours: not so in a container.
    pub is_host: bool,
}

/// Of a process that ended in another way than by SIGKILL, which is what the killer sends.
pub fn not_killed() -> OomVerdict {
    OomVerdict {
        killed: false.into(),
        evidence: None,
    }
}

fn killed(evidence: String) -> OomVerdict {
    OomVerdict {
        killed: true.into(),
        evidence: Some(evidence),
    }
}

#[derive(Debug)]
pub struct OomKiller {
    places: OomCounterPaths,
    /// Why the kernel's log does not tell, if it does not.
    log: Result<(), Missing>,
    kills: VecDeque<(Mono, OomKill)>,
    host: Option<Counter>,
    groups: HashMap<Arc<Path>, Counter>,
}

/// A count of kills since the boot, and what of it is recent.
#[derive(Debug, Clone, PartialEq)]
struct Counter {
    /// Before it rose lately.
    before: u64,
    count: u64,
    rose: Option<Mono>,
    /// Of what it rose lately, those that no process was found for yet.
    unclaimed: u64,
}

impl Counter {
    fn new(count: u64) -> Self {
        Self {
            before: count,
            count,
            rose: None,
            unclaimed: 0,
        }
    }

    fn update(&mut self, count: u64, now: Mono) {
        if !self.has_risen(now) {
            (self.before, self.rose, self.unclaimed) = (self.count, None, 0);
        }
        if count > self.count {
            self.rose = Some(now);
            self.unclaimed += count - self.count;
        }
        self.count = count;
    }

    fn has_risen(&self, now: Mono) -> bool {
        self.rose.is_some_and(|rose| now.since(rose) < RECENT)
    }
}

impl OomKiller {
    pub fn new(places: OomCounterPaths, log: Result<(), Missing>) -> Self {
        let mut killer = Self {
            places,
            log,
            kills: VecDeque::new(),
            host: None,
            groups: HashMap::new(),
        };
        killer.host = killer.host_count().map(Counter::new);
        killer
    }

    /// The counter of a living process's cgroup, where it has one that can be read; it is kept up as long as anyone
    /// holds what is returned.
    pub fn watch(&mut self, pid: Pid) -> Option<Arc<Path>> {
        let path = self.places.proc_root.join(pid.to_string()).join("cgroup");
        let file = counter_file(&self.places.cgroup_root, &read(&path).ok()?)?;
        if let Some((known, _)) = self.groups.get_key_value(&*file) {
            return Some(Arc::clone(known));
        }
        let counter = Counter::new(count(&file)?);
        let file: Arc<Path> = file.into();
        self.groups.insert(Arc::clone(&file), counter);
        Some(file)
    }

    /// To be called now and then, so that an old kill is not taken for a new one.
    pub fn refresh(&mut self, now: Mono) {
        self.groups.retain(|file, _| Arc::strong_count(file) > 1);
        while self
            .kills
            .front()
            .is_some_and(|(at, _)| now.since(*at) >= RECENT)
        {
            self.kills.pop_front();
        }
        let before = self.host.as_ref().map(|host| host.count);
        let count = self.host_count();
        if let (Some(host), Some(count)) = (&mut self.host, count) {
            host.update(count, now);
        }
        // Nothing was killed anywhere, so not in a cgroup either.
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

    /// The log has ended, or lost lines.
    pub fn lose_log(&mut self, why: Missing) {
        self.log = Err(why);
    }

    /// Whether more may be known in a moment: somebody was killed, and the line that says who has not come.
    pub fn is_line_awaited(&mut self, pid: Pid, now: Mono) -> bool {
        self.refresh(now);
        let somebody = self.host.as_ref().is_none_or(|host| host.has_risen(now));
        somebody && self.reads_log() && self.line(pid).is_none()
    }

    /// About a process that SIGKILL ended, or, when not `by_sigkill`, nobody knows what.
    pub fn judge(
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
                        "a process of its cgroup was, and how this one ended is not known",
                    ),
                    evidence: Some(evidence),
                };
            }
            // The counter counts its every process.
            Some(None) => return not_killed(),
            None => {}
        }
        let nobody = self.host.as_ref().is_some_and(|host| !host.has_risen(now));
        if nobody || self.reads_log() {
            return not_killed();
        }
        OomVerdict {
            killed: Reading::Missing(self.why_unknown()),
            evidence: None,
        }
    }

    fn why_unknown(&self) -> Missing {
        match &self.log {
            Err(why) => why.clone(),
            Ok(()) => Missing::new(
                Reason::Unsupported,
                "inside a container the kernel log's PIDs mean other processes",
            ),
        }
    }

    fn reads_log(&self) -> bool {
        self.log.is_ok() && self.places.is_host
    }

    fn line(&self, pid: Pid) -> Option<String> {
        let of_it = |(_, kill): &&(Mono, OomKill)| self.places.is_host && kill.pid == pid;
        let (_, kill) = self.kills.iter().rev().find(of_it)?;
        Some(kill.text.clone())
    }

    fn host_count(&self) -> Option<u64> {
        count(&self.places.proc_root.join("vmstat"))
    }
}

/// What tells here whom the killer ended, each a noun phrase.
pub fn sources(places: OomCounterPaths, log: Result<(), Missing>) -> Vec<&'static str> {
    let mut killer = OomKiller::new(places, log);
    let own = killer.watch(Pid(std::process::id())).is_some();
    [
        (killer.reads_log(), "the kernel log"),
        (own, "the counters of cgroups"),
        (killer.host.is_some(), "the host's count"),
    ]
    .into_iter()
    .filter_map(|(is_there, name)| is_there.then_some(name))
    .collect()
}

/// What the counter says of a process that just ended in the cgroup: nothing, that it was not killed (`Some(None)`),
/// or that one was.
fn claim(file: &Path, counter: &mut Counter, now: Mono) -> Option<Option<String>> {
    // A cgroup is often removed with its last process, and its counter with it.
    count(file)?;
    if !counter.has_risen(now) || counter.unclaimed == 0 {
        return Some(None);
    }
    counter.unclaimed -= 1;
    let path = visible(file.as_os_str().as_encoded_bytes(), 300);
    Some(Some(format!(
        "oom_kill in {path} rose from {} to {}",
        counter.before, counter.count
    )))
}

/// `/proc/PID/cgroup` names the cgroup: `4:memory:/batch/7` in version 1, `0::/user.slice/a.scope` in version 2.
fn counter_file(root: &Path, cgroup: &str) -> Option<PathBuf> {
    let of = |wanted: &str| {
        let mut lines = cgroup.lines().map(|line| line.splitn(3, ':'));
        lines.find_map(|mut line| {
            let controllers = line.nth(1)?;
            let is_it = controllers.split(',').any(|c| c == wanted);
            is_it.then(|| line.next()).flatten()
        })
    };
    match of("memory") {
        Some(path) => Some(below(&root.join("memory"), path)?.join("memory.oom_control")),
        None => Some(below(root, of("")?)?.join("memory.events")),
    }
}

/// The kernel shows a cgroup outside of this namespace's with `..`; that one cannot be reached from here.
fn below(root: &Path, path: &str) -> Option<PathBuf> {
    let path = Path::new(path.strip_prefix('/')?);
    let is_plain = |c: Component<'_>| matches!(c, Component::Normal(_));
    path.components().all(is_plain).then(|| root.join(path))
}

/// The line `oom_kill N`.
fn count(file: &Path) -> Option<u64> {
    let text = read(file).ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("oom_kill "))?;
    line.trim().parse().ok()
}

fn read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A pretended /proc and /sys/fs/cgroup.
    struct Host(tempfile::TempDir);

    const PID: Pid = Pid(418);

    impl Host {
        fn new(cgroup: &str, counter: &str) -> Self {
            let host = Self(tempfile::tempdir().expect("a folder"));
            host.write("proc/418/cgroup", cgroup);
            host.write("proc/vmstat", "nr_free_pages 1\noom_kill 5\n");
            host.write(counter, "oom_kill 2\n");
            host
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, text).expect("a file");
        }

        fn kill_somebody(&self) {
            self.write("proc/vmstat", "nr_free_pages 1\noom_kill 6\n");
        }

        fn killer(&self, log: Result<(), Missing>, is_host: bool) -> OomKiller {
            let places = OomCounterPaths {
                proc_root: self.0.path().join("proc"),
                cgroup_root: self.0.path().join("cgroup"),
                is_host,
            };
            OomKiller::new(places, log)
        }
    }

    const V2: (&str, &str) = ("0::/batch/a.scope\n", "cgroup/batch/a.scope/memory.events");
    const V1: (&str, &str) = (
        "9:name=systemd:/x\n4:cpu,memory:/batch/7\n0::/\n",
        "cgroup/memory/batch/7/memory.oom_control",
    );

    fn denied() -> Result<(), Missing> {
        Err(Missing::new(Reason::Denied, "the kernel log is for root"))
    }

    fn line() -> OomKill {
        OomKill {
            pid: PID,
            text: "Out of memory: Killed process 418 (python)".into(),
        }
    }

    #[test]
    fn the_cgroups_counter_tells_in_either_version() {
        for (cgroup, counter) in [V1, V2] {
            let host = Host::new(cgroup, counter);
            let mut killer = host.killer(denied(), true);
            let group = killer.watch(PID).expect("a counter");
            assert_eq!(killer.judge(PID, Some(&group), true, Mono(9)), not_killed());
            host.kill_somebody();
            host.write(counter, "low 0\noom 1\noom_kill 3\noom_group_kill 0\n");
            let unsure = killer.clone_judge(&group, false);
            assert!(unsure.killed.why().is_some() && unsure.evidence.is_some());
            let verdict = killer.judge(PID, Some(&group), true, Mono(10));
            assert_eq!(verdict.killed, true.into());
            let evidence = verdict.evidence.expect("evidence");
            assert!(evidence.ends_with("rose from 2 to 3"), "{evidence}");
            // One kill is one process; another that `kill -9` ended was not it.
            assert_eq!(
                killer.judge(PID, Some(&group), true, Mono(11)),
                not_killed()
            );
        }
    }

    impl OomKiller {
        /// Judges without claiming.
        fn clone_judge(&self, group: &Arc<Path>, by_sigkill: bool) -> OomVerdict {
            let mut copy = Self {
                places: self.places.clone(),
                log: self.log.clone(),
                kills: self.kills.clone(),
                host: self.host.clone(),
                groups: self.groups.clone(),
            };
            copy.judge(PID, Some(group), by_sigkill, Mono(10))
        }
    }

    #[test]
    fn a_kill_of_an_hour_ago_ends_nobody_now() {
        let host = Host::new(V2.0, V2.1);
        let mut killer = host.killer(denied(), true);
        let group = killer.watch(PID).expect("a counter");
        killer.note(line(), Mono(1_000));
        host.kill_somebody();
        host.write(V2.1, "oom_kill 3\n");
        killer.refresh(Mono(10_000));
        let hour = Mono(3_600_000);
        killer.refresh(hour);
        assert_eq!(killer.judge(PID, Some(&group), true, hour), not_killed());
    }

    #[test]
    fn the_kernels_line_tells_where_pids_mean_the_same() {
        let host = Host::new("0::/gone\n", "cgroup/elsewhere");
        let mut killer = host.killer(Ok(()), true);
        assert_eq!(killer.watch(PID), None);
        assert!(!killer.is_line_awaited(PID, Mono(1)), "nobody was killed");
        host.kill_somebody();
        assert!(killer.is_line_awaited(PID, Mono(2)));
        killer.note(line(), Mono(3));
        assert!(!killer.is_line_awaited(PID, Mono(3)));
        assert_eq!(killer.judge(PID, None, true, Mono(3)), killed(line().text));
        assert_eq!(killer.judge(Pid(419), None, true, Mono(3)), not_killed());

        let mut inside = host.killer(Ok(()), false);
        inside.note(line(), Mono(1));
        assert_eq!(inside.judge(PID, None, true, Mono(2)), not_killed());
        host.write("proc/vmstat", "oom_kill 9\n");
        let why = inside.judge(PID, None, true, Mono(3)).killed;
        assert!(
            why.why()
                .is_some_and(|why| why.to_string().contains("container"))
        );
    }

    #[test]
    fn what_nobody_tells_is_unknown_with_the_reason() {
        let host = Host::new("0::/\n", "cgroup/elsewhere");
        let mut killer = host.killer(denied(), true);
        // Not even a count for the host.
        fs::remove_file(host.0.path().join("proc/vmstat")).expect("removed");
        let mut blind = host.killer(denied(), true);
        host.write("proc/vmstat", "oom_kill 6\n");
        for killer in [&mut killer, &mut blind] {
            let verdict = killer.judge(PID, None, true, Mono(1));
            let why = verdict.killed.why().expect("unknown").to_string();
            assert_eq!(why, "the kernel log is for root");
        }
    }

    #[test]
    fn a_cgroup_out_of_reach_is_not_looked_for() {
        let file = |cgroup| counter_file(Path::new("/r"), cgroup);
        assert_eq!(file("0::/../../other\n"), None);
        assert_eq!(file("4:memory:/../x\n"), None);
        assert_eq!(file("0::relative\n"), None);
        assert_eq!(file("garbage"), None);
        assert_eq!(file("0::/\n"), Some("/r/memory.events".into()));
    }
}
