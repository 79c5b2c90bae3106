use std::process::{Child, Command, Stdio};

use gputop_model::event::OomEvidence;
use gputop_model::units::{Pid as ModelPid, StartTicks};

use super::*;

const DEADLINE: Duration = Duration::from_secs(30);

/// Child process that is killed and reaped on drop.
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

    /// Starts a shell script, which continues after it reads a line or reaches the end of its input.
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
    let pid = ModelPid(pid);
    let start = start_time(Path::new("/proc"), pid).expect("stat");
    ProcessKey { pid, start }
}

struct ExitReports(Receiver<ExitReport>);

impl ExitReports {
    fn next(&self) -> ProcessExit {
        match self.0.recv_timeout(DEADLINE).expect("a report") {
            ExitReport::Exit(exit) => *exit,
            other => panic!("{other:?}"),
        }
    }
}

fn start() -> (ExitWatcher, ExitReports) {
    start_with(Path::new("/nonexistent"))
}

fn start_with(kernel_log: &Path) -> (ExitWatcher, ExitReports) {
    start_in(Path::new("/proc"), kernel_log)
}

fn start_in(proc_root: &Path, kernel_log: &Path) -> (ExitWatcher, ExitReports) {
    let (report, reports) = mpsc::channel();
    let oom_paths = OomCounterPaths {
        proc_root: proc_root.to_owned(),
        cgroup_root: "/sys/fs/cgroup".into(),
        is_host: true,
    };
    let watcher = ExitWatcher::start(oom_paths, kernel_log, move |seen| {
        let _ = report.send(seen);
    });
    (watcher.expect("a thread"), ExitReports(reports))
}

#[test]
fn reports_an_exit_with_its_status_before_the_parent_collects_it() {
    let (watcher, reports) = start();
    for (script, code, signal) in [
        ("read x; exit 7", 7, None),
        ("read x; exit 0", 0, None),
        ("read x; kill -9 $$", 137, Some(9)),
        ("read x; kill -11 $$", 139, Some(11)),
    ] {
        let mut victim = Victim::sh(script);
        let key = victim.key();
        watcher.watch(vec![key], now_mono());
        victim.go();
        let end = reports.next();
        assert_eq!(
            (end.process, end.code.get(), end.signal.get()),
            (key, Some(code), signal),
            "{script}: {end:?}"
        );
        assert!(now_mono().since(end.since).0 < 5_000, "{end:?}");
    }
}

#[test]
fn reports_a_process_that_was_collected_at_once_exactly_once() {
    let (watcher, reports) = start();
    for _ in 0..20 {
        let mut victim = Victim::sh("read x; exit 3");
        let key = victim.key();
        watcher.watch(vec![key], now_mono());
        victim.go();
        victim.0.wait().expect("an exit status");
        let end = reports.next();
        assert_eq!(end.process, key);
        // If the kernel does not report the status, the status must be unknown rather than 0.
        assert!(end.code.get() == Some(3) || end.code.why().is_some(), "{end:?}");
    }
    assert!(reports.0.try_recv().is_err(), "reported twice");
}

#[test]
fn reports_simultaneous_exits_once_each() {
    let (watcher, reports) = start();
    let (reader, writer) = io::pipe().expect("a pipe");
    let victims: Vec<Victim> = (0..200)
        .map(|_| Victim::start("cat", &[], reader.try_clone().expect("a pipe").into()))
        .collect();
    drop(reader);
    let mut keys: Vec<ProcessKey> = victims.iter().map(Victim::key).collect();
    watcher.watch(keys.clone(), now_mono());
    drop(writer);
    let limit = crate::open_files::limit().now;
    if limit < 800 {
        // Report the exits from the test, as the process table would: the open-file limit is too low for a pidfd of
        // every process.
        for key in &keys {
            watcher.exit_found(*key, now_mono());
        }
    }
    let begun = Instant::now();
    let mut seen: Vec<ProcessKey> = keys.iter().map(|_| reports.next().process).collect();
    assert!(begun.elapsed() < DEADLINE);
    seen.sort_unstable();
    keys.sort_unstable();
    assert_eq!(seen, keys);
    assert!(reports.0.try_recv().is_err(), "reported twice");
}

#[test]
fn the_number_of_a_thread_is_not_a_lack_of_open_files() {
    let tasks = std::fs::read_dir("/proc/self/task").expect("the threads of this process");
    let numbers = tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok());
    let thread = numbers.into_iter().find(|number: &u32| *number != std::process::id());
    let key = ProcessKey { pid: ModelPid(thread.expect("a thread")), ..ProcessKey::default() };
    let error = open(Path::new("/proc"), key).expect_err("no process");
    assert!(!is_limit(&error), "{error}");
    assert!(is_limit(&io::Error::from_raw_os_error(Errno::EMFILE as i32)));
}

#[test]
fn does_not_mistake_a_process_that_reused_the_pid() {
    let (watcher, reports) = start();
    let mut stranger = Victim::sh("read x; exit 5");
    let previous = ProcessKey { start: StartTicks(stranger.key().start.0 - 1), ..stranger.key() };
    let mut watched = Victim::sh("read x; exit 6");
    let key = watched.key();
    watcher.watch(vec![previous, key], now_mono());
    stranger.go();
    stranger.0.wait().expect("an exit status");
    watched.go();
    // The previous process has exited, but its status is unknown.
    let end = reports.next();
    assert_eq!(end.process, previous);
    assert!(end.code.why().is_some() && end.signal.why().is_some());
    assert_eq!(reports.next().process, key);
    assert!(reports.0.try_recv().is_err());
}

#[test]
fn reports_exits_that_the_process_table_found() {
    let (watcher, reports) = start();
    let mut watched = Victim::sh("read x; exit 6");
    let unwatched = Victim::sh("read x; exit 5").key();
    watcher.watch(vec![watched.key()], now_mono());
    watcher.exit_found(unwatched, Mono(5));
    let end = reports.next();
    assert_eq!((end.process, end.since), (unwatched, Mono(5)));
    assert!(end.code.why().is_some() && end.signal.why().is_some());
    // A watched process is reported once, with its status.
    let key = watched.key();
    watched.go();
    watcher.exit_found(key, Mono(5));
    let end = reports.next();
    assert_eq!((end.process, end.code.get()), (key, Some(6)));
    assert!(reports.0.try_recv().is_err());
}

/// A process that reuses the PID may start within the same 10 ms and then has the same start time.
#[test]
fn a_successor_does_not_make_a_collected_process_look_alive() {
    let mut ended = Victim::sh("read x; exit 5");
    let successor = Victim::sh("read x");
    let pid = Pid::from_raw(ended.0.id().cast_signed()).expect("a PID");
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).expect("a pidfd");
    ended.go();
    ended.0.wait().expect("an exit status");
    let trace = status::read_trace(Path::new("/proc"), successor.key(), &pidfd);
    assert!(
        matches!(trace, ExitTrace::Status(status) if status == 5 << 8)
            || trace == ExitTrace::Collected,
        "{trace:?}"
    );
}

/// Environment variable that is set when the test runs again inside its own PID namespace.
const INSIDE: &str = "GPUTOP_TEST_OWN_PIDS";

/// Tests two processes with the same PID. In a separate PID namespace, the test can choose the next PID without
/// disturbing other tests. Skipped if this user cannot create a namespace.
#[test]
fn a_reused_pid_is_two_exits() {
    if std::env::var_os(INSIDE).is_none() {
        let again = Command::new("unshare")
            .args(["--map-root-user", "--pid", "--fork", "--mount-proc", "--"])
            .arg(std::env::current_exe().expect("this program"))
            .args(["a_reused_pid_is_two_exits"])
            .env(INSIDE, "1")
            .output();
        let out =
            again.map_or(String::new(), |out| String::from_utf8_lossy(&out.stdout).into_owned());
        let is_run = out.contains("running 1 test");
        assert!(!is_run || out.contains("1 passed"), "{out}");
        let is_required = std::env::var_os("GPUTOP_TEST_REQUIRE").is_some();
        assert!(is_run || !is_required, "no PID namespace: {out}");
        return;
    }
    let (watcher, reports) = start();
    let mut first = Victim::sh("read x; exit 1");
    let old = first.key();
    watcher.watch(vec![old], now_mono());
    first.go();
    first.0.wait().expect("an exit status");
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < DEADLINE, "the PID was not reused");
        let next = (old.pid.0 - 1).to_string();
        std::fs::write("/proc/sys/kernel/ns_last_pid", next).expect("the next PID");
        let mut second = Victim::sh("read x; exit 2");
        let new = second.key();
        if new.pid != old.pid || new.start == old.start {
            continue;
        }
        assert_eq!(reports.next().process, old);
        watcher.watch(vec![new], now_mono());
        second.go();
        let end = reports.next();
        assert_eq!((end.process, end.code.get()), (new, Some(2)));
        assert!(reports.0.try_recv().is_err(), "reported twice");
        return;
    }
}

#[test]
fn does_not_report_processes_that_are_no_longer_watched() {
    let (watcher, reports) = start();
    let mut dropped = Victim::sh("read x; exit 1");
    let mut watched = Victim::sh("read x; exit 2");
    let mut first = Victim::sh("read x; exit 3");
    let (key, first_key) = (watched.key(), first.key());
    watcher.watch(vec![dropped.key(), key, first_key], now_mono());
    first.go();
    // Wait for the first report, which shows that all three processes are watched.
    assert_eq!(reports.next().process, first_key);
    watcher.watch(vec![key], now_mono());
    dropped.go();
    dropped.0.wait().expect("an exit status");
    watched.go();
    assert_eq!(reports.next().process, key);
    assert!(reports.0.try_recv().is_err());
}

/// Returns a fake /proc that shows the victim as a zombie whose status is hidden from this user.
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
fn waits_for_a_hidden_status_and_never_reads_it_as_0() {
    for is_collected in [true, false] {
        let mut victim = Victim::sh("read x; exit 5");
        let key = victim.key();
        let proc_root = hiding(&victim);
        let (watcher, reports) = start_in(proc_root.path(), Path::new("/nonexistent"));
        watcher.watch(vec![key], now_mono());
        victim.go();
        if is_collected {
            victim.0.wait().expect("an exit status");
        }
        let end = reports.next();
        let code = end.code.get();
        match is_collected {
            // Before Linux 6.15, only the parent receives the status.
            true => assert!(code == Some(5) || code.is_none(), "{end:?}"),
            false => {
                assert_eq!(end.code.why().map(|why| why.reason), Some(Reason::Denied), "{end:?}");
            }
        }
        assert_eq!(end.process, key);
        assert!(reports.0.try_recv().is_err(), "reported twice");
    }
}

/// Returns a FIFO that replaces the kernel log.
fn kernel_log() -> (tempfile::TempDir, PathBuf, std::fs::File) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("kmsg");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
    // Open the FIFO for reading and writing, so that opening does not wait for a reader.
    let both = std::fs::File::options().read(true).write(true).open(&path);
    (folder, path, both.expect("the FIFO"))
}

#[test]
fn the_log_identifies_oom_victims_and_its_xids_are_forwarded() {
    use std::io::Write;
    let (_folder, path, mut log) = kernel_log();
    let (watcher, reports) = start_with(&path);
    assert_eq!(watcher.log(), &Ok(()));
    let mut killed = Victim::sh("read x; kill -9 $$");
    let mut clean = Victim::sh("read x; exit 0");
    let (killed_key, clean_key) = (killed.key(), clean.key());
    watcher.watch(vec![killed_key, clean_key], now_mono());
    let line = format!("Out of memory: Killed process {} (sh) total-vm:9kB", killed_key.pid);
    write!(log, "3,1,1,-;{line}\n4,2,2,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=4, name=x\n")
        .expect("written");
    match reports.0.recv_timeout(DEADLINE).expect("an Xid") {
        ExitReport::Xid(xid) => assert_eq!((xid.number, xid.pci_bus.as_str()), (79, "0000:3b:00")),
        other => panic!("{other:?}"),
    }
    killed.go();
    let end = reports.next();
    assert_eq!((end.process, end.signal.get()), (killed_key, Some(9)));
    assert_eq!(
        (end.oom.killed, end.oom.evidence),
        (true.into(), Some(OomEvidence::KernelLine(line)))
    );
    clean.go();
    let end = reports.next();
    assert_eq!((end.process, end.oom), (clean_key, oom::not_killed()));
    drop(log);
    let closed = reports.0.recv_timeout(DEADLINE).expect("a report");
    assert!(matches!(closed, ExitReport::LogClosed(_)), "{closed:?}");
}

#[test]
fn a_missing_log_is_reported_and_exits_are_still_watched() {
    let (watcher, reports) = start();
    let why = watcher.log().as_ref().expect_err("no log");
    assert_eq!(why.reason, Reason::Unsupported);
    let mut victim = Victim::sh("read x; exit 4");
    watcher.watch(vec![victim.key()], now_mono());
    victim.go();
    assert_eq!(reports.next().code.get(), Some(4));
}
