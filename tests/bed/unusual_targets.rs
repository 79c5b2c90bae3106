//! Unusual targets, and reads at unusual times.
//!
//! Not tested: Yama's ptrace_scope, which prevents reading processes other than one's own children. On kernels with
//! Yama (`/proc/sys/kernel/yama/ptrace_scope`), root can read anyway, and the harness permits every reader.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::compare::{differences, map_violations};
use crate::executable;
use crate::harness::{Harness, Launch, Release, newest, releases};
use crate::reader::{self, Run};

const SETUP: &[&str] = &["alloc 200", "free 0.3"];

/// Asserts that gputop and PyTorch report the same about the process.
fn assert_same_as_pytorch(what: &str, harness: &mut Harness) {
    let reading = reader::read(harness.pid);
    assert_eq!(differences(&harness.truth(), &reading), [""; 0], "{what}");
}

fn assert_refused(what: &str, run: &Run, code: i32, word: &str) {
    let message = run.message();
    assert_eq!(run.code, code, "{what}: {message}");
    assert!(
        message.to_lowercase().contains(word),
        "{what}: nothing is said of {word:?}: {message}"
    );
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what} never came");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn status(pid: u32, field: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{field}:")))
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// Copies a release's folder to a place where it can be changed and every user can read it.
fn copy(release: &Release) -> (TempDir, Release) {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copied = Release { name: release.name.clone(), dir: dir.path().join("torch") };
    fs::create_dir_all(copied.dir.join("lib")).unwrap();
    for name in ["harness", "lib"] {
        let from = release.dir.join(name);
        let done = Command::new("cp").args(["-r", "-d"]).arg(from).arg(&copied.dir).status();
        assert!(done.unwrap().success());
    }
    (dir, copied)
}

#[test]
fn a_program_that_owns_the_pointer_by_copy_relocation_is_read() {
    for release in releases() {
        if !release.at_least(20000) {
            continue; // 1.13 has no such pointer
        }
        let mut harness = Launch::program(&release.dir.join("harness-copy")).start();
        harness.run_all(SETUP);
        assert_same_as_pytorch(&release.name, &mut harness);
    }
}

#[test]
fn a_stripped_and_a_deleted_library_are_read() {
    for release in releases() {
        let (_dir, release) = copy(&release);
        let library = release.dir.join("lib/libc10_cuda.so");
        let strip = || {
            let done = Command::new("strip")
                .args(["--strip-all", "-o"])
                .arg(release.dir.join("stripped.so"))
                .arg(&library)
                .status();
            assert!(done.unwrap().success());
            fs::rename(release.dir.join("stripped.so"), &library).unwrap();
        };
        // The 1.13 harness itself needs the symbols at startup. The reader opens the file later, so strip it then.
        if release.at_least(20000) {
            strip();
        }
        let mut harness = Harness::start(&release);
        harness.run_all(SETUP);
        if !release.at_least(20000) {
            strip();
        }
        assert_same_as_pytorch(&format!("{} stripped", release.name), &mut harness);
        fs::remove_file(&library).unwrap();
        assert_same_as_pytorch(&format!("{} deleted", release.name), &mut harness);
    }
}

#[test]
fn the_number_of_devices_and_the_settings_change_nothing() {
    for release in releases() {
        for devices in [1, 8] {
            let mut harness =
                Launch::new(&release).env("FAKE_CUDA_DEVICES", devices.to_string()).start();
            harness.run(&format!("device {}", devices - 1));
            harness.run_all(SETUP);
            assert_same_as_pytorch(&format!("{}, {devices} devices", release.name), &mut harness);
        }
    }
}

#[test]
fn a_process_in_which_nothing_of_cuda_has_begun_says_so() {
    for release in releases() {
        let mut harness = Launch::new(&release).arg("--not-initialized").start();
        assert_refused(&release.name, &reader::run(harness.pid), 1, "initiali");
        harness.run("init");
        harness.run_all(SETUP);
        assert_same_as_pytorch(&release.name, &mut harness);
    }
}

#[test]
fn the_drivers_own_pool_is_named_and_not_read() {
    for release in releases() {
        // The backend and its setting were added in 2.0.
        if !release.at_least(20000) {
            continue;
        }
        let mut harness = Launch::new(&release).conf("backend:cudaMallocAsync").start();
        harness.run("alloc 20");
        assert_refused(&release.name, &reader::run(harness.pid), 1, "cudamallocasync");
    }
}

#[test]
fn switched_off_caching_reads_as_nothing() {
    for release in releases() {
        let mut harness = Launch::new(&release).env("PYTORCH_NO_CUDA_MEMORY_CACHING", "1").start();
        harness.run("alloc 20");
        let run = reader::run(harness.pid);
        if run.code == 0 {
            assert_eq!(differences(&harness.truth(), &run.reading()), [""; 0]);
        } else {
            assert_refused(&release.name, &run, 1, "caching");
        }
    }
}

/// Like a DataLoader worker: its memory has a copy of the parent's allocator state at the time of the fork.
#[test]
fn a_forked_child_is_not_believed() {
    for release in releases() {
        let mut harness = Harness::start(&release);
        harness.run_all(SETUP);
        let child = harness.run("fork")["child"].as_u64().unwrap() as u32;
        harness.run("alloc 50");
        assert_refused(&release.name, &reader::run(child), 1, "fork");
        assert_same_as_pytorch(&release.name, &mut harness);
    }
}

#[test]
fn a_stopped_process_is_read_and_stays_stopped() {
    for release in releases() {
        let mut harness = Harness::start(&release);
        harness.run_all(SETUP);
        let pid = Pid::from_raw(harness.pid as i32);
        kill(pid, Signal::SIGSTOP).unwrap();
        wait_until("the stop", || status(harness.pid, "State").starts_with('T'));
        let reading = reader::read(harness.pid);
        assert!(status(harness.pid, "State").starts_with('T'), "{}", release.name);
        kill(pid, Signal::SIGCONT).unwrap();
        assert_eq!(differences(&harness.truth(), &reading), [""; 0], "{}", release.name);
    }
}

#[test]
fn a_process_that_became_another_program_has_nothing() {
    let release = newest();
    let mut harness = Harness::start(&release);
    harness.run_all(SETUP);
    harness.run("exec cat");
    wait_until("the other program", || status(harness.pid, "Name") == "cat");
    let run = reader::run(harness.pid);
    assert_eq!(run.code, 1, "{}", run.message());
}

#[test]
fn a_process_without_torch_and_one_that_is_gone_are_told_apart() {
    let release = newest();
    let mut other = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let run = reader::run(other.id());
    assert_eq!(run.code, 1, "{}", run.message());
    other.kill().unwrap();
    other.wait().unwrap();
    let mut harness = Harness::start(&release);
    harness.kill();
    let run = reader::run(harness.pid);
    assert_eq!(run.code, 2, "{}", run.message());
}

/// Starts a program, collects its output on a thread, and returns that thread and the PID.
fn start(mut command: Command) -> (JoinHandle<Output>, u32) {
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let pid = child.id();
    let output = std::thread::spawn(move || child.wait_with_output().unwrap());
    (output, pid)
}

/// Returns the CPU time of a process; `None` once it has been reaped.
fn cpu_time(pid: u32) -> Option<Duration> {
    let clock = clock_getcpuclockid(Pid::from_raw(pid.cast_signed())).ok()?;
    Some(clock_gettime(clock).ok()?.into())
}

/// The target exits or execs another program at various times during the read. gputop must exit cleanly and report
/// nothing wrong.
#[test]
fn a_process_may_go_while_it_is_read() {
    let mut ends = [0; 3];
    for release in releases() {
        // Measure how long a read of these blocks takes, so that the interruptions happen during the read.
        let mut harness = Harness::start(&release);
        harness.run("alloc 8000 2048");
        let (reading, pid) = start(reader::command(harness.pid));
        let mut whole = Duration::ZERO;
        while let Some(used) = cpu_time(pid) {
            whole = used;
        }
        assert_eq!(reader::check_exit(reading.join().unwrap()).code, 0);
        for moment in 0..6 {
            let mut harness = Harness::start(&release);
            harness.run("alloc 8000 2048");
            let truth = harness.truth();
            let (reading, pid) = start(reader::command(harness.pid));
            // Measure CPU time, so that the interruption comes at the same point on a loaded machine.
            while cpu_time(pid).is_some_and(|used| used < whole * moment / 7) {}
            if moment % 2 == 0 {
                harness.kill();
            } else {
                harness.send("exec cat");
            }
            let run = reader::check_exit(reading.join().unwrap());
            ends[run.code as usize] += 1;
            if run.code == 0 && run.reading().devices.iter().all(|device| device.exact) {
                assert_eq!(differences(&truth, &run.reading()), [""; 0], "{}", release.name);
            }
        }
    }
    println!("gone while read: {} read, {} nothing there, {} gone", ends[0], ends[1], ends[2]);
}

/// gputop must report one of the two, or an error, but never a mixture.
#[test]
fn two_torches_in_one_process_are_not_mixed_up() {
    let releases = releases();
    let new = releases.last().unwrap();
    let old = releases.iter().find(|release| release.at_least(20400)).unwrap();
    for (first, second) in [(old, new), (new, old)] {
        let mut harness = Harness::start(first);
        harness.run_all(SETUP);
        let library = second.dir.join("lib/libharness.so");
        harness.run(&format!("second {}", library.display()));
        harness.run("second: alloc 77 3000000");
        let run = reader::run(harness.pid);
        if run.code == 0 {
            let of_first = differences(&harness.truth(), &run.reading());
            let of_second = differences(&harness.truth_of_second(), &run.reading());
            assert!(
                of_first.is_empty() || of_second.is_empty(),
                "{} and {}: neither {of_first:?} nor {of_second:?}",
                first.name,
                second.name
            );
        } else {
            assert_refused("two", &run, 1, "two");
        }
    }
}

/// Starts `cat` with a preloaded library that is named like PyTorch's.
fn with_preloaded(library: &Path) -> Run {
    let mut cat = Command::new("cat")
        .env("LD_PRELOAD", library)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let pid = cat.id();
    wait_until("the library", || {
        fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|maps| {
            maps.contains("libc10_cuda.so") && status(pid, "State").starts_with('S')
        })
    });
    let run = reader::run(pid);
    cat.kill().unwrap();
    cat.wait().unwrap();
    run
}

#[test]
fn a_library_that_only_bears_the_name_is_not_believed() {
    let release = newest();
    // An unrelated library with that name.
    let dir = tempfile::tempdir().unwrap();
    let other = dir.path().join("libc10_cuda.so");
    fs::copy(release.dir.join("lib/libcuda.so.1"), &other).unwrap();
    let run = with_preloaded(&other);
    assert_eq!(run.code, 1, "{}", run.message());
    // A library that imitates PyTorch's as closely as possible.
    let impostor = release.dir.join("../impostor/libc10_cuda.so");
    let run = with_preloaded(&impostor.canonicalize().unwrap());
    assert_eq!(run.code, 1, "{}", run.message());
}

/// The library is visible only in the target's own mount namespace, and the target has another PID there.
#[test]
fn a_process_in_its_own_namespaces_is_read() {
    let release = newest();
    let mut may = Command::new("unshare");
    may.args(["-m", "-p", "-f", "--kill-child"]);
    let permitted = may.arg("true").stderr(Stdio::null()).status();
    if !permitted.is_ok_and(|status| status.success()) {
        println!("skipped: this kernel or container does not let us make namespaces");
        return;
    }
    let (dir, hidden) = copy(&release);
    let inside = dir.path().join("inside");
    fs::create_dir(&inside).unwrap();
    let script = format!(
        "mount -t tmpfs none {inside} && cp -rd {torch}/. {inside} && exec {inside}/harness",
        inside = inside.display(),
        torch = hidden.dir.display()
    );
    let mut unshare = Command::new("unshare");
    unshare.args(["-m", "-p", "-f", "--kill-child", "sh", "-c", &script]);
    let mut harness = Launch::with(unshare).start();
    assert_eq!(harness.pid, 1, "its PID in there");
    // Use the PID of the same process in this namespace.
    let outer = harness.child_id();
    let children = fs::read_to_string(format!("/proc/{outer}/task/{outer}/children")).unwrap();
    harness.pid = children.trim().parse().unwrap();
    assert!(!inside.join("lib").exists());
    harness.run_all(SETUP);
    assert_same_as_pytorch("in its own namespaces", &mut harness);
}

/// `setpriv` options to run as `nobody`, for the reader or for the target.
const NOBODY: &[&str] = &["--reuid=65534", "--regid=65534", "--clear-groups"];

pub fn as_nobody() -> Option<Command> {
    let mut setpriv = Command::new("setpriv");
    setpriv.args(NOBODY);
    let mut may = Command::new("setpriv");
    let permitted = may.args(NOBODY).arg("true").stderr(Stdio::null()).status();
    if !permitted.is_ok_and(|status| status.success()) {
        println!("skipped: only root can become another user");
        return None;
    }
    Some(setpriv)
}

/// Copies gputop to a folder where `nobody` can start it.
pub fn public_reader(dir: &Path) -> PathBuf {
    let program = dir.join("gputop");
    executable::copy(reader::program(), &program);
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program
}

fn read_as_nobody(program: &Path, pid: u32) -> Run {
    let mut setpriv = as_nobody().unwrap();
    setpriv.arg(program);
    reader::outcome(reader::arguments(setpriv, pid))
}

#[test]
fn another_users_process_is_refused_in_words_and_ones_own_is_read() {
    let release = newest();
    let Some(mut nobody) = as_nobody() else { return };
    let (dir, public) = copy(&release);
    let program = public_reader(dir.path());

    let mut of_root = Harness::start(&public);
    of_root.run_all(SETUP);
    let run = read_as_nobody(&program, of_root.pid);
    assert_eq!(run.code, 2, "{}", run.message());
    assert!(
        run.message().contains("denied") || run.message().contains("permi"),
        "{}",
        run.message()
    );

    nobody.arg(public.dir.join("harness"));
    let mut of_nobody = Launch::with(nobody).start();
    of_nobody.run_all(SETUP);
    let own = read_as_nobody(&program, of_nobody.pid);
    assert_eq!(differences(&of_nobody.truth(), &own.reading()), [""; 0], "its own");
    assert_same_as_pytorch("root reads anyone", &mut of_nobody);

    // Like ssh-agent or a setuid program: even its own user cannot read it.
    of_nobody.run("undumpable");
    let run = read_as_nobody(&program, of_nobody.pid);
    assert_eq!(run.code, 2, "{}", run.message());
    assert_same_as_pytorch("root reads even that", &mut of_nobody);
}

/// Concurrent readers do not disturb each other or the target.
#[test]
fn many_readers_at_once_agree() {
    let release = newest();
    let mut harness = Harness::start(&release);
    harness.run_all(SETUP);
    let readers: Vec<_> = (0..6)
        .map(|_| {
            reader::command(harness.pid)
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let truth = harness.truth();
    for reader in readers {
        let reading = reader::check_exit(reader.wait_with_output().unwrap()).reading();
        assert_eq!(differences(&truth, &reading), [""; 0]);
        for device in &reading.devices {
            assert_eq!(map_violations(device), [""; 0]);
        }
    }
}
