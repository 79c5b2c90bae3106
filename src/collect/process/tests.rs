//! Tests the process table, with real child processes where kernel behaviour matters and fake /proc trees elsewhere.

use std::ffi::OsString;
use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gputop_model::{Percent, Reason, RunState, StartTicks};
use gputop_peek::clock::now_mono;

use super::*;

struct KilledOnDrop(Child);

impl KilledOnDrop {
    fn spawn(command: &mut Command) -> Self {
        let quiet = command.stdin(Stdio::piped()).stdout(Stdio::null());
        Self(quiet.spawn().expect("spawn"))
    }

    fn pid(&self) -> Pid {
        Pid(self.0.id())
    }

    fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        self.end();
    }
}

fn sleeper() -> KilledOnDrop {
    KilledOnDrop::spawn(Command::new("sleep").arg("1000"))
}

fn files(root: &Path) -> Files {
    Files { root: root.to_owned(), home: None }
}

fn table() -> ProcessTable {
    ProcessTable::new(Path::new("/proc"), files(Path::new("/nonexistent")), PidNamespace::Host)
}

fn wait_for(table: &mut ProcessTable, pid: Pid, is_there: impl Fn(&Process) -> bool) -> Process {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let process = table.read(&[pid], now_mono()).list.remove(0);
        if is_there(&process) {
            return process;
        }
        assert!(Instant::now() < deadline, "still {process:?}");
        std::thread::yield_now();
    }
}

fn wait_for_name(table: &mut ProcessTable, pid: Pid, name: &str) -> Process {
    wait_for(table, pid, |p| p.name == name && p.command.value().is_some())
}

/// Creates a fake /proc with PID 418, which uses no CPU time.
fn fake() -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("tempdir");
    add(root.path(), 418, 1, 0);
    root
}

fn add(root: &Path, pid: u32, parent: u32, ticks: u64) {
    let dir = root.join(pid.to_string());
    fs::create_dir_all(dir.join("fd")).expect("dir");
    let stat = format!(
        "{pid} (python) S {parent} 1 1 0 -1 0 0 0 0 0 {ticks} 0 0 0 20 0 1 0 6000 9 25 1 1 1\n"
    );
    fs::write(dir.join("stat"), stat).expect("stat");
    fs::write(dir.join("cmdline"), b"python\0train.py\0").expect("cmdline");
    fs::write(dir.join("environ"), b"RANK=2\0").expect("environ");
    fs::write(dir.join("cgroup"), b"0::/\n").expect("cgroup");
}

fn fake_table(root: &Path, namespace: PidNamespace) -> ProcessTable {
    ProcessTable::new(root, files(root), namespace)
}

fn reason<T>(reading: &Reading<T>) -> Option<Reason> {
    reading.why().map(|missing| missing.reason)
}

#[test]
fn reports_process_that_exits_between_ticks_once() {
    let (mut child, mut table) = (sleeper(), table());
    let seen = wait_for_name(&mut table, child.pid(), "sleep");
    assert_eq!(seen.command.value().map(String::as_str), Some("sleep 1000"));
    child.end();

    let after = table.read(&[child.pid()], now_mono());
    assert_eq!(after.ended.len(), 1);
    assert_eq!(after.ended[0].0, seen.key);
    assert_eq!(after.ended[0].1.command, seen.command);
    assert_eq!(reason(&after.list[0].command), Some(Reason::Gone));
    assert_eq!(after.list[0].key.start, StartTicks(0));
    assert_eq!(table.read(&[], now_mono()).ended, []);
}

#[test]
fn reports_exit_after_the_driver_dropped_the_process() {
    let (mut child, mut table) = (sleeper(), table());
    table.read(&[child.pid()], now_mono());
    assert_eq!(table.read(&[], now_mono()), ProcessReadout::default());
    child.end();
    assert_eq!(table.read(&[], now_mono()).ended.len(), 1);
    assert_eq!(table.read(&[], now_mono()).ended.len(), 0);
}

#[test]
fn stops_watching_unlisted_process_after_the_time_limit() {
    let (mut child, mut table) = (sleeper(), table());
    let now = now_mono();
    table.read(&[child.pid()], now);
    table.read(&[], now);
    table.read(&[], Mono(now.0 + MAX_UNLISTED_TIME.0));
    child.end();
    assert_eq!(table.read(&[], Mono(now.0 + MAX_UNLISTED_TIME.0 + 1)).ended, []);
}

#[test]
fn shows_listed_zombie_and_reports_unlisted_zombie_as_exited() {
    let mut table = table();
    let mut child = KilledOnDrop::spawn(&mut Command::new("cat"));
    let alive = wait_for_name(&mut table, child.pid(), "cat");
    drop(child.0.stdin.take());
    let zombie = wait_for(&mut table, child.pid(), |p| p.state == RunState::Zombie);
    assert_eq!(zombie.command, alive.command);

    let unlisted = table.read(&[], now_mono());
    assert_eq!(unlisted.ended.len(), 1);
    assert_eq!(unlisted.ended[0].1.state, RunState::Zombie);
    child.end();
    assert_eq!(table.read(&[], now_mono()).ended, []);
}

#[test]
fn exec_changes_command_line_at_the_next_tick() {
    let mut table = table();
    let mut shell = KilledOnDrop::spawn(Command::new("sh").args(["-c", "read x; exec sleep 1000"]));
    let before = wait_for_name(&mut table, shell.pid(), "sh");
    assert_eq!(before.command.value().map(String::as_str), Some("sh -c 'read x; exec sleep 1000'"));
    let mut stdin = shell.0.stdin.take().expect("stdin");
    stdin.write_all(b"\n").expect("write");
    // During an exec, the kernel briefly shows the new name with the old command line.
    let after = wait_for(&mut table, shell.pid(), |p| {
        p.name == "sleep" && p.command.value().is_some_and(|words| words == "sleep 1000")
    });
    assert_eq!(after.key, before.key);
}

#[test]
fn detects_exec_with_the_same_name_immediately() {
    let mut table = table();
    let mut shell =
        KilledOnDrop::spawn(Command::new("sh").args(["-c", "read x; exec sh -c 'read y' z"]));
    wait_for_name(&mut table, shell.pid(), "sh");
    let before = now_mono();
    let mut stdin = shell.0.stdin.take().expect("stdin");
    stdin.write_all(b"\n").expect("write");
    let deadline = Instant::now() + Duration::from_secs(20);
    // The time does not advance, so the exec must be detected before the facts are due again.
    while table.read(&[shell.pid()], before).list[0].command.value()
        != Some(&"sh -c 'read y' z".into())
    {
        assert!(Instant::now() < deadline, "the exec was not detected");
        std::thread::yield_now();
    }
}

#[test]
fn escapes_hostile_names_and_arguments() {
    let folder = tempfile::tempdir().expect("tempdir");
    let program = folder.path().join("a\x1b[2J) R 1");
    symlink("/bin/sh", &program).expect("link");
    let argument = OsString::from_vec(b"\xff\xe2\x80\xae--token=abc".to_vec());
    let child = KilledOnDrop::spawn(
        Command::new(&program).arg0("\x1b]0;x\x07").args(["-c", "read x"]).arg(argument),
    );
    let process = wait_for(&mut table(), child.pid(), |p| {
        p.name.starts_with('a') && p.command.value().is_some()
    });
    assert_eq!(process.name, "a^[[2J) R 1");
    let command = process.command.value().expect("command");
    assert_eq!(command, "'^[]0;x^G' -c 'read x' \\xff\\u{202e}--token=***");
}

#[test]
fn truncates_long_command_line() {
    let long = "x".repeat(100_000);
    let child = KilledOnDrop::spawn(
        Command::new("sh").args(["-c", "read x", "name", &long, "--token", "abc"]),
    );
    let mut table = table();
    let process = wait_for_name(&mut table, child.pid(), "sh");
    assert_eq!(process.command.value().map(String::as_str), Some("sh -c 'read x' name …"));

    let detail = super::detail(Path::new("/proc"), process.key).expect("detail");
    let arguments = detail.arguments.value().expect("arguments");
    assert_eq!(arguments.last().map(String::as_str), Some("…"));

    let row =
        KilledOnDrop::spawn(Command::new("sh").args(["-c", "read x", "name", &"y".repeat(5000)]));
    let process = wait_for_name(&mut table, row.pid(), "sh");
    let command = process.command.value().expect("command");
    assert_eq!(command.chars().count(), 4096);
    assert!(command.ends_with("y…"));
}

#[test]
fn reads_rank_and_job_from_the_environment() {
    let variables = [("RANK", "3"), ("LOCAL_RANK", "1"), ("SLURM_JOB_ID", "81234")];
    let child = KilledOnDrop::spawn(Command::new("sleep").arg("1000").env_clear().envs(variables));
    let process = wait_for_name(&mut table(), child.pid(), "sleep");
    assert_eq!(process.rank.get(), Some(3));
    assert_eq!(process.local_rank.get(), Some(1));
    assert_eq!(process.job.value().map(String::as_str), Some("81234"));
    let age = gputop_peek::clock::now_wall().0 - process.started.0;
    assert!((-1000..60_000).contains(&age), "{age}");
}

#[test]
fn measures_cpu_between_two_ticks() {
    let root = fake();
    let mut table = fake_table(root.path(), PidNamespace::Host);
    let first = table.read(&[Pid(418)], Mono(1000)).list.remove(0);
    assert_eq!(first.cpu, Reading::missing(Reason::NotRead, "needs two readings"));
    assert_eq!(first.rss.get().map(|b| b.0), Some(25 * procfs::page_size()));
    assert!((first.started.0 - boot_time().0).abs_diff(60_000) < 1000);
    add(root.path(), 418, 1, 150);
    let second = table.read(&[Pid(418)], Mono(2000)).list.remove(0);
    assert_eq!(second.cpu.get(), Some(Percent(150.0)));
    let jumped_back = table.read(&[Pid(418)], Mono(500)).list.remove(0);
    assert_eq!(jumped_back.cpu.get(), Some(Percent(150.0)));
}

#[test]
fn hidden_process_names_the_mount_option() {
    let root = fake();
    fs::create_dir(root.path().join("self")).expect("self");
    fs::write(root.path().join("self/mounts"), "proc /proc proc rw,hidepid=2 0 0\n")
        .expect("mounts");
    let mut table = fake_table(root.path(), PidNamespace::Host);
    let readout = table.read(&[Pid(500), Pid(418), Pid(500)], Mono(0));
    let pids: Vec<u32> = readout.list.iter().map(|p| p.key.pid.0).collect();
    assert_eq!(pids, [418, 500]);
    let hidden = &readout.list[1];
    assert_eq!(reason(&hidden.command), Some(Reason::Denied));
    assert!(hidden.user.why().is_some_and(|m| m.to_string().contains("hidepid=2")));
    assert_eq!(readout.list[0].rank.get(), Some(2));
}

#[test]
fn ignores_driver_pids_in_a_container() {
    let root = fake();
    let mut table = fake_table(root.path(), PidNamespace::Container);
    assert_eq!(table.read(&[Pid(418)], Mono(0)), ProcessReadout::default());
}

#[test]
fn finds_processes_in_a_container_by_open_device_files() {
    let root = fake();
    add(root.path(), std::process::id(), 1, 0);
    add(root.path(), 77, 1, 0);
    let open = |pid: u32, fd: u32, target: &str| {
        symlink(target, root.path().join(format!("{pid}/fd/{fd}"))).expect("link");
    };
    open(418, 3, "/dev/nvidiactl");
    open(418, 4, "/dev/nvidia1");
    open(418, 5, "/dev/nvidia1");
    open(418, 6, "/dev/nvidia-uvm");
    open(77, 3, "/dev/nvidia0");
    open(std::process::id(), 3, "/dev/nvidia1");
    let gpus = [(Some(0), GpuUuid("GPU-a".into())), (Some(1), GpuUuid("GPU-b".into()))];

    let mut table = fake_table(root.path(), PidNamespace::Container);
    let readout = table.local(&gpus, Mono(0));
    assert_eq!(readout.list.len(), 1);
    assert_eq!(readout.list[0].key.pid, Pid(418));
    assert_eq!(readout.list[0].open_gpus, [GpuUuid("GPU-b".into())]);

    open(77, 4, "/dev/nvidia-uvm");
    assert_eq!(table.local(&gpus, Mono(4999)).list.len(), 1);
    assert_eq!(table.local(&gpus, Mono(5000)).list.len(), 2);
}

#[test]
fn finds_processes_in_wsl_by_the_device_file_of_windows() {
    let root = fake();
    add(root.path(), 77, 1, 0);
    symlink("/dev/dxg", root.path().join("418/fd/3")).expect("link");
    symlink("/dev/null", root.path().join("77/fd/3")).expect("link");
    let gpus = [(None, GpuUuid("GPU-a".into())), (None, GpuUuid("GPU-b".into()))];
    let mut table = fake_table(root.path(), PidNamespace::Container);
    let readout = table.local(&gpus, Mono(0));
    assert_eq!(readout.list.len(), 1);
    assert_eq!(readout.list[0].key.pid, Pid(418));
    assert_eq!(readout.list[0].open_gpus, gpus.map(|(_, uuid)| uuid));
}

#[test]
fn detail_is_redacted() {
    let variables = [("NCCL_DEBUG", "INFO"), ("AWS_PROFILE", "secret"), ("HF_TOKEN", "abc")];
    let mut command = Command::new("sleep");
    let child =
        KilledOnDrop::spawn(command.arg("1000").env_clear().envs(variables).current_dir("/"));
    let process = wait_for_name(&mut table(), child.pid(), "sleep");
    let detail = super::detail(Path::new("/proc"), process.key).expect("detail");

    assert_eq!(detail.arguments.value(), Some(&vec!["sleep".to_owned(), "1000".to_owned()]));
    assert_eq!(detail.cwd.value().map(String::as_str), Some("/"));
    assert!(detail.executable.value().is_some_and(|path| path.starts_with('/')));
    let shown: Vec<_> = detail.environment.value().expect("environment").iter().collect();
    let value = |name: &str| shown.iter().find(|v| v.name == name).map(|v| v.value.as_deref());
    assert_eq!(value("NCCL_DEBUG"), Some(Some("INFO")));
    assert_eq!(value("AWS_PROFILE"), Some(None));
    assert_eq!(value("HF_TOKEN"), Some(None));
    assert_eq!(detail.parents.first().map(|p| p.pid), Some(Pid(std::process::id())));
    assert_eq!(detail.threads.get(), Some(1));
    assert!(detail.open_files.get() >= Some(3));
    assert!(detail.open_files_limit.get() >= Some(3));
    assert!(detail.locked.get().is_some());
    assert!(detail.swapped.get().is_some());
    assert!(detail.cgroup.value().is_some());
}

#[test]
fn reused_pid_is_gone() {
    let child = sleeper();
    let mut table = table();
    let key = table.read(&[child.pid()], now_mono()).list[0].key;
    let older = ProcessKey { start: StartTicks(key.start.0 - 1), ..key };
    assert_eq!(super::detail(Path::new("/proc"), older).expect_err("gone").reason, Reason::Gone);
    drop(child);
    assert_eq!(super::detail(Path::new("/proc"), key).expect_err("gone").reason, Reason::Gone);
}

#[test]
fn parents_stop_at_a_cycle() {
    let root = fake();
    add(root.path(), 418, 500, 0);
    add(root.path(), 500, 501, 0);
    add(root.path(), 501, 500, 0);
    let key = ProcessKey::new(418, 6000);
    let parents: Vec<u32> =
        super::detail(root.path(), key).expect("detail").parents.iter().map(|p| p.pid.0).collect();
    assert_eq!(parents, [500, 501]);
}
