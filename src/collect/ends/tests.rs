use std::process::{Child, Command, Stdio};

use super::*;
use crate::model::units::{Pid as ModelPid, StartTicks};

/// Nothing here takes longer, however busy the machine.
const DEADLINE: Duration = Duration::from_secs(30);

/// Killed and collected at the latest when this is dropped.
struct Victim(Child);

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Victim {
    fn start(program: &str, args: &[&str], stdin: Stdio) -> Self {
        let mut command = Command::new(program);
        command.args(args).stdin(stdin).stdout(Stdio::null());
        Self(command.spawn().expect("a process"))
    }

    /// Ends as the script says once it reads a line, or the end of its input.
    fn sh(script: &str) -> Self {
        Self::start("sh", &["-c", script], Stdio::piped())
    }

    fn key(&self) -> ProcessKey {
        key_of(self.0.id())
    }

    fn go(&mut self) {
        drop(self.0.stdin.take());
    }
}

fn key_of(pid: u32) -> ProcessKey {
    let file = StatFile::open(Path::new(&format!("/proc/{pid}/stat"))).expect("stat");
    let start = file.read(&mut StatBuffer::new()).expect("stat").start;
    ProcessKey {
        pid: ModelPid(pid),
        start,
    }
}

struct Told(Receiver<End>);

impl Told {
    fn next(&self) -> End {
        self.0.recv_timeout(DEADLINE).expect("an end that is told")
    }
}

fn start() -> (Ends, Told) {
    let (tell, told) = mpsc::channel();
    let ends = Ends::start(Path::new("/proc"), move |end| {
        let _ = tell.send(end);
    });
    (ends.expect("a thread"), Told(told))
}

#[test]
fn an_end_is_told_with_its_status_before_the_parent_collects_it() {
    let (ends, told) = start();
    for (script, code, signal) in [
        ("read x; exit 7", 7, None),
        ("read x; exit 0", 0, None),
        ("read x; kill -9 $$", 137, Some(9)),
        ("read x; kill -11 $$", 139, Some(11)),
    ] {
        let mut victim = Victim::sh(script);
        let key = victim.key();
        ends.watch(vec![key], now_mono());
        victim.go();
        let end = told.next();
        assert_eq!(
            (end.process, end.code.get(), end.signal.get()),
            (key, Some(code), signal),
            "{script}: {end:?}"
        );
        assert!(now_mono().since(end.since).0 < 5_000, "{end:?}");
    }
}

#[test]
fn a_process_that_its_parent_collected_at_once_is_told_once() {
    let (ends, told) = start();
    for _ in 0..20 {
        let mut victim = Victim::sh("read x; exit 3");
        let key = victim.key();
        ends.watch(vec![key], now_mono());
        victim.go();
        victim.0.wait().expect("its end");
        let end = told.next();
        assert_eq!(end.process, key);
        // The kernel that does not tell says so; none says 0.
        assert!(
            end.code.get() == Some(3) || end.code.why().is_some(),
            "{end:?}"
        );
    }
    assert!(told.0.try_recv().is_err(), "told twice");
}

#[test]
fn a_thousand_that_end_at_once_are_each_told_once() {
    let (ends, told) = start();
    let (reader, writer) = io::pipe().expect("a pipe");
    let victims: Vec<Victim> = (0..1_000)
        .map(|_| Victim::start("cat", &[], reader.try_clone().expect("a pipe").into()))
        .collect();
    drop(reader);
    let mut keys: Vec<ProcessKey> = victims.iter().map(Victim::key).collect();
    ends.watch(keys.clone(), now_mono());
    drop(writer);
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    if limit < 4_000 {
        // Those without a pidfd are the process table's to find.
        for key in &keys {
            ends.found(*key, now_mono());
        }
    }
    let begun = Instant::now();
    let mut seen: Vec<ProcessKey> = keys.iter().map(|_| told.next().process).collect();
    assert!(begun.elapsed() < DEADLINE);
    seen.sort_unstable();
    keys.sort_unstable();
    assert_eq!(seen, keys);
    assert!(told.0.try_recv().is_err(), "told twice");
}

#[test]
fn whoever_has_the_pid_now_is_not_taken_for_the_one_that_was_meant() {
    let (ends, told) = start();
    let mut stranger = Victim::sh("read x; exit 5");
    let ended_long_ago = ProcessKey {
        start: StartTicks(stranger.key().start.0 - 1),
        ..stranger.key()
    };
    let mut watched = Victim::sh("read x; exit 6");
    let key = watched.key();
    ends.watch(vec![ended_long_ago, key], now_mono());
    stranger.go();
    stranger.0.wait().expect("its end");
    watched.go();
    // It has ended, but nothing is known of how.
    let end = told.next();
    assert_eq!(end.process, ended_long_ago);
    assert!(end.code.why().is_some() && end.signal.why().is_some());
    assert_eq!(told.next().process, key);
    assert!(told.0.try_recv().is_err());
}

#[test]
fn what_the_process_table_found_is_told_from_here() {
    let (ends, told) = start();
    let mut watched = Victim::sh("read x; exit 6");
    let unwatched = Victim::sh("read x; exit 5").key();
    ends.watch(vec![watched.key()], now_mono());
    ends.found(unwatched, Mono(5));
    let end = told.next();
    assert_eq!((end.process, end.since), (unwatched, Mono(5)));
    assert!(end.code.why().is_some() && end.signal.why().is_some());
    // One that is watched is told with its status, and once.
    let key = watched.key();
    watched.go();
    ends.found(key, Mono(5));
    let end = told.next();
    assert_eq!((end.process, end.code.get()), (key, Some(6)));
    assert!(told.0.try_recv().is_err());
}

/// Two processes with one PID within a second, where this user may choose the next PID.
#[test]
fn a_pid_that_is_used_again_within_a_second_is_two_ends() {
    let (ends, told) = start();
    let mut first = Victim::sh("read x; exit 1");
    let old = first.key();
    ends.watch(vec![old], now_mono());
    first.go();
    first.0.wait().expect("its end");
    for _ in 0..200 {
        let next = (old.pid.0 - 1).to_string();
        if std::fs::write("/proc/sys/kernel/ns_last_pid", next).is_err() {
            return;
        }
        let mut second = Victim::sh("read x; exit 2");
        let new = second.key();
        if new.pid != old.pid {
            continue;
        }
        ends.watch(vec![old, new], now_mono());
        second.go();
        let mut seen = [told.next(), told.next()];
        seen.sort_by_key(|end| end.process);
        let keys: Vec<ProcessKey> = seen.iter().map(|end| end.process).collect();
        assert_eq!(keys, [old, new]);
        assert_eq!(seen[1].code.get(), Some(2));
        assert_ne!(seen[0].code.get(), Some(2));
        return;
    }
}

#[test]
fn what_is_no_longer_watched_is_not_told() {
    let (ends, told) = start();
    let mut dropped = Victim::sh("read x; exit 1");
    let mut kept = Victim::sh("read x; exit 2");
    ends.watch(vec![dropped.key(), kept.key()], now_mono());
    ends.watch(vec![kept.key()], now_mono());
    let key = kept.key();
    dropped.go();
    dropped.0.wait().expect("its end");
    kept.go();
    assert_eq!(told.next().process, key);
    assert!(told.0.try_recv().is_err());
}
