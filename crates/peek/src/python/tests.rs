//! Tests the Python stack reader with real Python processes.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gputop_model::units::Pid;

use super::*;
use crate::process::stat::start_time;

/// A child process that is killed when the test ends.
struct Target {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Target {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("starts");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        Self { child, output }
    }

    /// Starts a Python program and waits until it prints a line.
    fn python(program: &str) -> Self {
        let mut target = Self::start(Command::new("python3").args(["-c", program]));
        target.line();
        target
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        line.trim().to_owned()
    }

    fn key(&self) -> ProcessKey {
        key(self.child.id())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn key(pid: u32) -> ProcessKey {
    let pid = Pid(pid);
    let start = start_time(Path::new(PROC), pid).expect("a start time");
    ProcessKey { pid, start }
}

fn read(reader: &mut PythonReader, key: ProcessKey) -> Stack {
    reader.take(StackRequest::by_user(key)).expect("an answer")
}

const NESTED: &str = "\
import threading
import time

def inner():
    print('here', flush=True)
    time.sleep(600)

class Model:
    def forward(self):
        inner()

def step(model):
    model.forward()

threading.Thread(target=time.sleep, args=(600,), name='lo\\x1bader', daemon=True).start()
step(Model())
";

#[test]
fn stack_lists_functions_and_lines_innermost_first() {
    let target = Target::python(NESTED);
    let mut reader = PythonReader::default();
    // Retry, because the program prints its line before it goes to sleep.
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let stack = read(&mut reader, target.key()).expect("a stack");
        let main = stack.main().expect("a thread");
        assert!(main.is_main);
        let frames: Vec<_> = main.frames.iter().map(|f| (f.line, &*f.function)).collect();
        let last = |name: &str| frames.iter().position(|f| f.1.ends_with(name));
        if frames.first().map(|f| f.0) != Some(6) && Instant::now() < deadline {
            continue;
        }
        let lines: Vec<_> = frames.iter().map(|frame| frame.0).collect();
        assert_eq!(lines, [6, 10, 13, 16], "{frames:?}");
        let order = ["inner", "forward", "step", "<module>"].map(last);
        assert_eq!(order, [Some(0), Some(1), Some(2), Some(3)]);
        assert_eq!(main.frames[0].to_string(), "<string>:6 inner");
        assert_eq!((stack.why, stack.process), (StackTrigger::Request, target.key()));
        let names: Vec<_> = stack.threads.iter().map(|t| &*t.name).collect();
        assert_eq!(names, ["MainThread", "lo^[ader"]);
        break;
    }
    assert_eq!(reader.attached.len(), 1);
    reader.watch(&[]);
    assert!(reader.attached.is_empty());
}

/// Enters the same `__init__` often enough that Python 3.13 and later call it with a frame of their own below it.
const INIT: &str = "\
import time

class Loader:
    def __init__(self, seconds):
        time.sleep(seconds)

def load(seconds):
    return Loader(seconds)

for _ in range(1_000):
    load(0)
print('here', flush=True)
load(600)
";

#[test]
fn stacks_have_no_frames_of_the_interpreter_itself() {
    let target = Target::python(INIT);
    let mut reader = PythonReader::default();
    let mut sampler = StackSampler::attach(Path::new(PROC), target.key().pid).expect("Python");
    let main = sampler.list().expect("threads")[0].id;
    let expected = [5, 8, 13];
    // Retry, because the program prints its line before it goes to sleep.
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let stack = read(&mut reader, target.key()).expect("a stack");
        let frames = stack.main().expect("a thread").frames.iter();
        let read: Vec<_> = frames.map(|frame| frame.line).collect();
        let sampled = sampler.stack(main).expect("a stack");
        let sampled: Vec<_> = sampled.iter().map(|frame| frame.position.line).collect();
        if read == expected && sampled == expected {
            break;
        }
        assert!(Instant::now() < deadline, "{read:?} {sampled:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A module that resembles gputop's hook: the program calls it, and it has its own thread.
const HOOK_MODULE: &str = "\
import _thread, time
def look():
    print('here', flush=True)
    time.sleep(600)
def start():
    _thread.start_new_thread(look, ())
";

#[test]
fn stack_excludes_frames_of_the_hook() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("gputop_hook.py"), HOOK_MODULE).expect("written");
    let program =
        "import gputop_hook\ngputop_hook.start()\ndef alloc():\n    gputop_hook.look()\nalloc()\n";
    let mut target = Target::start(
        Command::new("python3").args(["-c", program]).env("PYTHONPATH", folder.path()),
    );
    // Wait for one line from the hook's thread and one from the program.
    target.line();
    target.line();
    let stack = read(&mut PythonReader::default(), target.key()).expect("a stack");
    let of = |thread: &StackThread| -> Vec<String> {
        let functions = thread.frames.iter().map(|frame| frame.function.clone());
        functions.collect()
    };
    assert_eq!(of(stack.main().expect("a thread")), ["alloc", "<module>"]);
    assert_eq!(stack.threads.len(), 1, "{stack:?}");
}

#[test]
fn reports_process_without_python() {
    let target = Target::start(Command::new("sleep").arg("600"));
    let why = read(&mut PythonReader::default(), target.key()).expect_err("no Python");
    assert_eq!(why.reason, Reason::Unsupported, "{why}");
    assert_eq!(why.to_string(), "no Python interpreter found in this process");
}

#[test]
fn reports_exited_process_and_reused_pid() {
    let target = Target::python(NESTED);
    let mut reader = PythonReader::default();
    let key = target.key();
    let mut other = key;
    other.start.0 += 1;
    assert_eq!(read(&mut reader, other).map_err(|why| why.reason), Err(Reason::Gone));
    read(&mut reader, key).expect("a stack");
    drop(target);
    assert_eq!(read(&mut reader, key).map_err(|why| why.reason), Err(Reason::Gone));
}

#[test]
fn drops_event_stack_that_is_too_late() {
    let target = Target::python(NESTED);
    let mut reader = PythonReader::default();
    let at =
        |since, why| StackRequest { process: target.key(), why, since, allocated: Some(Bytes(1)) };
    let long_ago = Mono(now_mono().0.saturating_sub(1_100));
    assert_eq!(reader.take(at(long_ago, StackTrigger::Oom)), None);
    read(&mut reader, target.key()).expect("a stack");
    let stack = reader.take(at(now_mono(), StackTrigger::NewMaximum));
    let stack = stack.expect("in time").expect("a stack");
    assert!(stack.lag <= MAX_LAG);
    assert_eq!((stack.why, stack.allocated), (StackTrigger::NewMaximum, Some(Bytes(1))));
}

/// Python program that clears `PR_SET_DUMPABLE`, so that only root can read its process.
const NOT_DUMPABLE: &str = "\
import ctypes, time
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
print('ready', flush=True)
time.sleep(600)
";
const TARGET: &str = "GPUTOP_TEST_NOT_DUMPABLE";

#[test]
fn reports_process_without_permission() {
    // The child process reads the target as a user other than root.
    if let Ok(pid) = std::env::var(TARGET) {
        return assert_denied(key(pid.parse().expect("a PID")));
    }
    let target = Target::python(NOT_DUMPABLE);
    if !nix::unistd::geteuid().is_root() {
        return assert_denied(target.key());
    }
    let folder = tempfile::tempdir().expect("a folder");
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open.clone()).expect("open to all");
    let program = folder.path().join("tests");
    // Another process writes the copy. If this one did, a child that another test forks meanwhile would keep the file
    // open for writing, and the kernel would not start it.
    let own = std::env::current_exe().expect("its path");
    assert!(Command::new("cp").args([&own, &program]).status().expect("cp").success());
    std::fs::set_permissions(&program, open).expect("open to all");
    let run = Command::new(&program)
        .args(["--exact", "python::tests::reports_process_without_permission"])
        .env(TARGET, target.key().pid.to_string())
        .current_dir("/")
        .uid(65534)
        .gid(65534)
        .output()
        .expect("runs");
    let stdout = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && stdout.contains("1 passed"), "{stdout}");
}

fn assert_denied(key: ProcessKey) {
    let why = read(&mut PythonReader::default(), key).expect_err("refused");
    assert_eq!(why.reason, Reason::Denied, "{why}");
}

#[test]
fn never_stops_the_target() {
    let mut target = Target::python(
        "import time\nprint('here', flush=True)\ncount = 0\nend = time.monotonic() + 1\n\
         while time.monotonic() < end:\n    count += 1\n    time.sleep(0.001)\nprint(count)\n",
    );
    let key = target.key();
    let status = format!("/proc/{}/status", key.pid);
    let watcher = std::thread::spawn(move || {
        let mut seen = std::collections::BTreeSet::new();
        // Poll until the process exits: its state becomes Z, or its file disappears when the process is reaped.
        while let Ok(text) = std::fs::read_to_string(&status) {
            let value = |name| {
                let line = text.lines().find_map(|line: &str| line.strip_prefix(name));
                line.map(|rest| rest.trim().to_owned())
            };
            let state = value("State:").expect("a state");
            if state.starts_with(['Z', 'X']) {
                break;
            }
            seen.insert((state, value("TracerPid:")));
        }
        seen
    });
    let mut reader = PythonReader::default();
    let mut reads = 0;
    while key_is_alive(key) {
        reads +=
            u32::from(reader.take(StackRequest::by_user(key)).is_some_and(|stack| stack.is_ok()));
    }
    let count: u32 = target.line().parse().expect("a count");
    let seen = watcher.join().expect("the watcher");
    assert!(reads > 0, "nothing was read");
    assert!(count > 50, "{count} rounds in a second");
    for (state, tracer) in seen {
        assert!(!state.starts_with(['t', 'T']), "{state}");
        assert_eq!(tracer.as_deref(), Some("0"));
    }
}

fn key_is_alive(key: ProcessKey) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", key.pid));
    status.is_ok_and(|text| !text.contains("State:\tZ"))
}

/// Calls and returns all the time, at a depth of about 60.
const FAST: &str = "\
import threading

def leaf(x):
    return x + 1

def tree(n):
    if n == 0:
        return leaf(1)
    return tree(n - 1) + leaf(n)

class Worker(threading.Thread):
    def run(self):
        self.event.wait()

worker = Worker(name='waits', daemon=True)
worker.event = threading.Event()
worker.start()
print('here', flush=True)
while True:
    tree(50)
";

#[test]
fn sampler_reads_most_stacks_of_a_fast_program() {
    let target = Target::python(FAST);
    let mut sampler = StackSampler::attach(Path::new(PROC), target.key().pid).expect("Python");
    let threads = sampler.list().expect("threads").to_vec();
    let names: Vec<_> = threads.iter().map(|thread| &*thread.name).collect();
    assert_eq!(names, ["MainThread", "waits"]);
    assert!(threads[0].is_main && !threads[1].is_main);
    let stacks: Vec<_> = (0..200).filter_map(|_| sampler.stack(threads[0].id)).collect();
    assert!(stacks.len() >= 150, "{} of 200 stacks", stacks.len());
    for stack in &stacks {
        let names: Vec<_> = stack.iter().map(|frame| &*frame.code.function).collect();
        assert_eq!(names.last(), Some(&"<module>"), "{names:?}");
        let is_known = |name: &&&str| ["leaf", "tree", "<module>"].contains(*name);
        assert!(names.iter().all(|name| is_known(&name)), "{names:?}");
    }
    let deep = stacks.iter().map(Vec::len).max();
    assert!(deep > Some(10), "{deep:?}");
    let waits = sampler.stack(threads[1].id).expect("a thread that waits");
    assert!(waits.iter().any(|frame| frame.code.function.ends_with("run")), "{waits:?}");
    assert_eq!(sampler.stack(1), None, "no such thread");
}

#[test]
fn sampler_finds_the_holder_of_the_global_lock() {
    let target = Target::python(FAST);
    let mut sampler = StackSampler::attach(Path::new(PROC), target.key().pid).expect("Python");
    let main = sampler.list().expect("threads")[0].id;
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut holders = Vec::new();
    // The program released the lock to print, and may not have run since.
    while holders.iter().filter(|held| **held == Some(LockHolder::Thread(main))).count() < 40 {
        assert!(Instant::now() < deadline, "{holders:?}");
        std::thread::sleep(Duration::from_millis(1));
        holders = (0..50).map(|_| sampler.lock_holder()).collect();
    }
    let idle = Target::python(NESTED);
    let mut sampler = StackSampler::attach(Path::new(PROC), idle.key().pid).expect("Python");
    sampler.list().expect("threads");
    while sampler.lock_holder() != Some(LockHolder::Nobody) && Instant::now() < deadline {}
    assert_eq!(sampler.lock_holder(), Some(LockHolder::Nobody));
}
