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

struct ExitReports(Receiver<ExitReport>);

impl ExitReports {
    fn next(&self) -> End {
        match self.0.recv_timeout(DEADLINE).expect("an end that is told") {
            ExitReport::End(end) => *end,
            other => panic!("{other:?}"),
        }
    }
}

fn start() -> (Ends, ExitReports) {
    start_with(Path::new("/nonexistent"))
}

fn start_with(kernel_log: &Path) -> (Ends, ExitReports) {
    start_in(Path::new("/proc"), kernel_log)
}

fn start_in(proc_root: &Path, kernel_log: &Path) -> (Ends, ExitReports) {
    let (tell, told) = mpsc::channel();
    let places = OomCounterPaths {
        proc_root: proc_root.to_owned(),
        cgroup_root: "/sys/fs/cgroup".into(),
        is_host: true,
    };
    let ends = Ends::start(places, kernel_log, move |seen| {
        let _ = tell.send(seen);
    });
    (ends.expect("a thread"), ExitReports(told))
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
    let limit = crate::open_files::limit().now;
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

/// The next process with the PID may have started within the same hundredth of a second.
#[test]
fn a_collected_process_is_not_taken_for_alive_by_its_successor() {
    let mut ended = Victim::sh("read x; exit 5");
    let successor = Victim::sh("read x");
    let pid = Pid::from_raw(ended.0.id().cast_signed()).expect("a PID");
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).expect("a pidfd");
    ended.go();
    ended.0.wait().expect("its end");
    let remains = status::look(Path::new("/proc"), successor.key(), &pidfd);
    assert!(
        matches!(remains, ExitTrace::Told(status) if status == 5 << 8)
            || remains == ExitTrace::Collected,
        "{remains:?}"
    );
}

/// Says that the test was started again inside a PID namespace of its own.
const INSIDE: &str = "GPUTOP_TEST_OWN_PIDS";

/// Two processes with one PID. The next PID can be chosen in a namespace of one's own, without disturbing the other
/// tests; where this user may have none there is nothing to see.
#[test]
fn a_pid_that_is_used_again_within_a_second_is_two_ends() {
    if std::env::var_os(INSIDE).is_none() {
        let again = Command::new("unshare")
            .args(["--map-root-user", "--pid", "--fork", "--mount-proc", "--"])
            .arg(std::env::current_exe().expect("this program"))
            .args(["a_pid_that_is_used_again_within_a_second_is_two_ends"])
            .env(INSIDE, "1")
            .output();
        let out = again.map_or(String::new(), |out| {
            String::from_utf8_lossy(&out.stdout).into_owned()
        });
        let is_run = out.contains("running 1 test");
        assert!(!is_run || out.contains("1 passed"), "{out}");
        let is_required = std::env::var_os("GPUTOP_TEST_REQUIRE").is_some();
        assert!(is_run || !is_required, "no PID namespace: {out}");
        return;
    }
    let (ends, told) = start();
    let mut first = Victim::sh("read x; exit 1");
    let old = first.key();
    ends.watch(vec![old], now_mono());
    first.go();
    first.0.wait().expect("its end");
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < DEADLINE, "the PID did not come again");
        let next = (old.pid.0 - 1).to_string();
        std::fs::write("/proc/sys/kernel/ns_last_pid", next).expect("the next PID");
        let mut second = Victim::sh("read x; exit 2");
        let new = second.key();
        if new.pid != old.pid || new.start == old.start {
            continue;
        }
        assert_eq!(told.next().process, old);
        ends.watch(vec![new], now_mono());
        second.go();
        let end = told.next();
        assert_eq!((end.process, end.code.get()), (new, Some(2)));
        assert!(told.0.try_recv().is_err(), "told twice");
        return;
    }
}

#[test]
fn what_is_no_longer_watched_is_not_told() {
    let (ends, told) = start();
    let mut dropped = Victim::sh("read x; exit 1");
    let mut kept = Victim::sh("read x; exit 2");
    let mut first = Victim::sh("read x; exit 3");
    let (key, first_key) = (kept.key(), first.key());
    ends.watch(vec![dropped.key(), key, first_key], now_mono());
    first.go();
    // So all three are watched now.
    assert_eq!(told.next().process, first_key);
    ends.watch(vec![key], now_mono());
    dropped.go();
    dropped.0.wait().expect("its end");
    kept.go();
    assert_eq!(told.next().process, key);
    assert!(told.0.try_recv().is_err());
}

/// A /proc that shows the victim as a zombie whose status is for others.
fn hiding(victim: &Victim) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let pid = victim.0.id().to_string();
    let real = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("stat");
    let (name, rest) = real.rsplit_once(')').expect("a name");
    let hidden = format!("{name}) Z{}", &rest[2..]);
    std::fs::create_dir(folder.path().join(&pid)).expect("a folder");
    std::fs::write(folder.path().join(&pid).join("stat"), hidden).expect("stat");
    folder
}

#[test]
fn a_status_that_is_hidden_is_waited_for_a_moment_and_never_read_as_0() {
    for is_collected in [true, false] {
        let mut victim = Victim::sh("read x; exit 5");
        let key = victim.key();
        let proc_root = hiding(&victim);
        let (ends, told) = start_in(proc_root.path(), Path::new("/nonexistent"));
        ends.watch(vec![key], now_mono());
        victim.go();
        if is_collected {
            victim.0.wait().expect("its end");
        }
        let end = told.next();
        let code = end.code.get();
        match is_collected {
            // Before Linux 6.15 nobody but the parent knows.
            true => assert!(code == Some(5) || code.is_none(), "{end:?}"),
            false => assert_eq!(
                end.code.why().map(|why| why.reason),
                Some(Reason::Denied),
                "{end:?}"
            ),
        }
        assert_eq!(end.process, key);
        assert!(told.0.try_recv().is_err(), "told twice");
    }
}

/// A FIFO that stands for the kernel's log.
fn kernel_log() -> (tempfile::TempDir, PathBuf, std::fs::File) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("kmsg");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
    // Both ends, so that it goes on before the reader is there.
    let both = std::fs::File::options().read(true).write(true).open(&path);
    (folder, path, both.expect("the FIFO"))
}

#[test]
fn the_log_says_whom_the_oom_killer_ended_and_its_xids_go_on() {
    use std::io::Write;
    let (_folder, path, mut log) = kernel_log();
    let (ends, told) = start_with(&path);
    assert_eq!(ends.log(), &Ok(()));
    let mut killed = Victim::sh("read x; kill -9 $$");
    let mut clean = Victim::sh("read x; exit 0");
    let (killed_key, clean_key) = (killed.key(), clean.key());
    ends.watch(vec![killed_key, clean_key], now_mono());
    let line = format!(
        "Out of memory: Killed process {} (sh) total-vm:9kB",
        killed_key.pid
    );
    write!(
        log,
        "3,1,1,-;{line}\n4,2,2,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=4, name=x\n"
    )
    .expect("written");
    match told.0.recv_timeout(DEADLINE).expect("an Xid") {
        ExitReport::Xid(xid) => assert_eq!((xid.number, xid.pci_bus.as_str()), (79, "0000:3b:00")),
        other => panic!("{other:?}"),
    }
    killed.go();
    let end = told.next();
    assert_eq!((end.process, end.signal.get()), (killed_key, Some(9)));
    assert_eq!(
        (end.oom.killed, end.oom.evidence),
        (true.into(), Some(line))
    );
    clean.go();
    let end = told.next();
    assert_eq!((end.process, end.oom), (clean_key, oom::not_killed()));
    drop(log);
    let ended = told.0.recv_timeout(DEADLINE).expect("its end");
    assert!(matches!(ended, ExitReport::LogEnded(_)), "{ended:?}");
}

#[test]
fn a_log_that_is_not_there_is_a_reason_and_costs_nothing_else() {
    let (ends, told) = start();
    let why = ends.log().as_ref().expect_err("no log");
    assert_eq!(why.reason, Reason::Unsupported);
    let mut victim = Victim::sh("read x; exit 4");
    ends.watch(vec![victim.key()], now_mono());
    victim.go();
    assert_eq!(told.next().code.get(), Some(4));
}
