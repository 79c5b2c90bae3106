use super::*;
use std::fs;

/// Fake /proc and /sys/fs/cgroup directories.
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

    fn count_a_kill(&self) {
        self.write("proc/vmstat", "nr_free_pages 1\noom_kill 6\n");
    }

    fn killer(&self, log: Result<(), Missing>, is_host: bool) -> OomKiller {
        let paths = OomCounterPaths {
            proc_root: self.0.path().join("proc"),
            cgroup_root: self.0.path().join("cgroup"),
            is_host,
        };
        OomKiller::new(paths, log)
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
    OomKill { pid: PID, text: "Out of memory: Killed process 418 (python)".into() }
}

#[test]
fn the_cgroup_counter_identifies_a_kill_in_both_versions() {
    for (cgroup, counter) in [V1, V2] {
        let host = Host::new(cgroup, counter);
        let mut killer = host.killer(denied(), true);
        let group = killer.watch(PID).expect("a counter");
        assert_eq!(killer.verdict(PID, Some(&group), true, Mono(9)), not_killed());
        host.count_a_kill();
        host.write(counter, "low 0\noom 1\noom_kill 3\noom_group_kill 0\n");
        let unsure = killer.verdict_of_copy(&group, false);
        assert!(unsure.killed.why().is_some() && unsure.evidence.is_some());
        let verdict = killer.verdict(PID, Some(&group), true, Mono(10));
        assert_eq!(verdict.killed, true.into());
        let evidence = verdict.evidence.expect("evidence");
        let OomEvidence::Counter(evidence) = evidence else { panic!("{evidence:?}") };
        assert!(evidence.ends_with("increased from 2 to 3"), "{evidence}");
        // One OOM kill explains only one exit, so the other process must have been killed by `kill -9`.
        assert_eq!(killer.verdict(PID, Some(&group), true, Mono(11)), not_killed());
    }
}

impl OomKiller {
    /// Returns the verdict of a copy of the `OomKiller`, so that the original does not count the kill as assigned
    /// to the process.
    fn verdict_of_copy(&self, group: &Arc<Path>, by_sigkill: bool) -> OomVerdict {
        self.clone().verdict(PID, Some(group), by_sigkill, Mono(10))
    }
}

#[test]
fn ignores_a_kill_of_an_hour_ago() {
    let host = Host::new(V2.0, V2.1);
    let mut killer = host.killer(denied(), true);
    let group = killer.watch(PID).expect("a counter");
    killer.note(line(), Mono(1_000));
    host.count_a_kill();
    host.write(V2.1, "oom_kill 3\n");
    killer.refresh(Mono(10_000));
    let hour = Mono(3_600_000);
    killer.refresh(hour);
    assert_eq!(killer.verdict(PID, Some(&group), true, hour), not_killed());
}

#[test]
fn uses_the_log_line_only_in_the_hosts_pid_namespace() {
    let host = Host::new("0::/gone\n", "cgroup/elsewhere");
    let mut killer = host.killer(Ok(()), true);
    assert_eq!(killer.watch(PID), None);
    assert!(!killer.is_line_awaited(PID, Mono(1)), "nothing was killed");
    host.count_a_kill();
    assert!(killer.is_line_awaited(PID, Mono(2)));
    killer.note(line(), Mono(3));
    assert!(!killer.is_line_awaited(PID, Mono(3)));
    assert_eq!(
        killer.verdict(PID, None, true, Mono(3)),
        killed(OomEvidence::KernelLine(line().text))
    );
    assert_eq!(killer.verdict(Pid(419), None, true, Mono(3)), not_killed());

    let mut inside = host.killer(Ok(()), false);
    inside.note(line(), Mono(1));
    assert_eq!(inside.verdict(PID, None, true, Mono(2)), not_killed());
    host.write("proc/vmstat", "oom_kill 9\n");
    let why = inside.verdict(PID, None, true, Mono(3)).killed;
    assert!(why.why().is_some_and(|why| why.to_string().contains("container")));
}

#[test]
fn without_a_source_the_verdict_is_unknown_with_a_reason() {
    let host = Host::new("0::/\n", "cgroup/elsewhere");
    let mut killer = host.killer(denied(), true);
    // Repeat the test without the host's counter.
    fs::remove_file(host.0.path().join("proc/vmstat")).expect("removed");
    let mut blind = host.killer(denied(), true);
    host.write("proc/vmstat", "oom_kill 6\n");
    for killer in [&mut killer, &mut blind] {
        let verdict = killer.verdict(PID, None, true, Mono(1));
        let why = verdict.killed.why().expect("unknown").to_string();
        assert_eq!(why, "the kernel log is for root");
    }
}

#[test]
fn does_not_search_for_an_unreachable_cgroup() {
    let file = |cgroup| counter_file(Path::new("/r"), cgroup);
    assert_eq!(file("0::/../../other\n"), None);
    assert_eq!(file("4:memory:/../x\n"), None);
    assert_eq!(file("0::relative\n"), None);
    assert_eq!(file("garbage"), None);
    assert_eq!(file("0::/\n"), Some("/r/memory.events".into()));
}
