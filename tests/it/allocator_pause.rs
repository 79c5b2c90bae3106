//! Tests `gputop allocator --pause`: a process that changes constantly is paused, read, and resumed.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use gputop_model::units::Pid;
use gputop_peek::memory::Memory;
use gputop_peek::memory::live::Live;
use gputop_peek::memory::pause::{MAX_PAUSE, PauseError, ThreadPause};
use gputop_peek::memory::{Range, view::View};
use gputop_peek::torch::Attached;
use nix::sys::signal::{Signal, kill};
use serde_json::Value;

use crate::support::fake_machine::{Guarded, wait_until};
use crate::support::torch_target::Target;
use crate::torch_live::{allocated_bytes, dump_path};

const PROC: &str = "/proc";

/// Offset from `allocated_bytes` to `num_alloc_retries` in torch 2.6, five arrays later.
const RETRIES_OFFSET: u64 = 5 * 96;

/// Starts a process whose statistics change with every instruction. Returns it with the address that changes:
/// `num_alloc_retries`, which no other value depends on.
fn start_counting_process() -> (Target, u64) {
    let mut target = Target::start(&dump_path());
    let retries = allocated_bytes() + RETRIES_OFFSET;
    let retries_count = Attached::open(Path::new(PROC), target.pid()).unwrap().stats().unwrap();
    let retries_count = retries_count[0].num_alloc_retries;
    assert_eq!(i64::try_from(word(target.pid(), retries)), Ok(retries_count));
    target.count(retries);
    (target, retries)
}

fn word(pid: Pid, address: u64) -> u64 {
    let mut bytes = Vec::new();
    let live = Live::new(Path::new(PROC), pid);
    live.read(&[Range { address, len: 8 }], &mut bytes).unwrap();
    View(&bytes).word(0).unwrap()
}

#[track_caller]
fn assert_goes_on(pid: Pid, counter: u64) {
    let then = word(pid, counter);
    wait_until("the count to go on", || word(pid, counter) > then);
    for (thread, state) in states(pid) {
        assert!(!"tT".contains(state), "thread {thread} is {state}");
    }
}

/// Returns the state of each thread: `t` is stopped by a tracer, `T` by a signal.
fn states(pid: Pid) -> Vec<(String, char)> {
    let tasks = std::fs::read_dir(format!("{PROC}/{pid}/task")).unwrap();
    let states = tasks.filter_map(|task| {
        let task = task.unwrap();
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        let state = status.lines().find_map(|l| l.strip_prefix("State:\t"))?;
        Some((task.file_name().into_string().unwrap(), state.chars().next()?))
    });
    states.collect()
}

fn allocator(pid: Pid, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gputop"));
    command.args(["allocator", &pid.to_string()]).args(arguments);
    command.output().unwrap()
}

/// Like [`allocator`], but tries again if a thread did not stop in time, as happens on a crowded machine.
fn allocator_paused(pid: Pid, arguments: &[&str]) -> Output {
    let mut output = allocator(pid, arguments);
    wait_until("a pause", || {
        let is_late = String::from_utf8_lossy(&output.stdout).contains("did not stop within");
        if is_late {
            output = allocator(pid, arguments);
        }
        !is_late
    });
    output
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn pause_reads_a_busy_process_exactly_and_resumes_it() {
    let (mut target, counter) = start_counting_process();
    target.threads(100);
    // Without `--pause`, no reading is consistent, unless the counting thread is waiting for a CPU at that time.
    wait_until("a reading that is not one moment", || {
        json(&allocator(target.pid(), &["--json"]))["devices"][0]["exact"] != true
    });

    let held = allocator_paused(target.pid(), &["--json", "--pause"]);
    assert_eq!(held.status.code(), Some(0), "{held:?}");
    let held = json(&held);
    assert!(held["devices"].as_array().unwrap().iter().all(|d| d["exact"] == true));
    let pause = &held["pause"];
    // The main thread, the test harness's thread, the counting thread, and 100 others.
    assert_eq!(pause["threads"], 103, "{pause}");
    assert_eq!((&pause["times"], &pause["cut_short"]), (&1.into(), &false.into()));
    assert!(pause["total_us"].as_u64().unwrap() < 150_000, "{pause}");
    assert_goes_on(target.pid(), counter);

    let text = allocator_paused(target.pid(), &["--pause"]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("paused 103 threads for "), "{text}");
    assert!(!text.contains("approximate"), "{text}");
    assert_goes_on(target.pid(), counter);
}

#[test]
fn paused_process_stands_still_and_resumes_after_the_limit() {
    let (target, counter) = start_counting_process();
    let hold = ThreadPause::new(Path::new(PROC), target.pid()).unwrap();
    let first = word(target.pid(), counter);
    assert_eq!(word(target.pid(), counter), first);
    assert!(states(target.pid()).iter().all(|(_, state)| *state == 't'));
    // Do not release it, so that the limit ends the pause.
    wait_until("the limit", || word(target.pid(), counter) > first);
    let held = hold.release().unwrap();
    assert!(held.is_cut_short && held.time >= MAX_PAUSE, "{held:?}");
    assert_goes_on(target.pid(), counter);
}

#[test]
fn panicking_reader_resumes_the_process() {
    let (target, counter) = start_counting_process();
    let pid = target.pid();
    let reader = std::thread::spawn(move || {
        let _hold = ThreadPause::new(Path::new(PROC), pid).unwrap();
        panic!("on purpose");
    });
    assert!(reader.join().is_err());
    assert_goes_on(pid, counter);
}

/// The child process of the next test, which pauses a process again and again.
#[test]
#[ignore = "the child of killed_reader_resumes_the_process"]
fn child() {
    let pid = std::env::var("GPUTOP_TEST_HOLD").unwrap().parse().unwrap();
    loop {
        let _hold = ThreadPause::new(Path::new(PROC), Pid(pid));
        std::thread::sleep(MAX_PAUSE / 2);
    }
}

#[test]
fn killed_reader_resumes_the_process() {
    let (target, counter) = start_counting_process();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "allocator_pause::child", "--ignored"])
        .env("GPUTOP_TEST_HOLD", target.pid().to_string())
        .stdout(Stdio::null())
        .spawn();
    let mut child = Guarded(child.unwrap());
    wait_until("it to be held", || states(target.pid()).iter().all(|(_, state)| *state == 't'));
    child.0.kill().unwrap();
    child.0.wait().unwrap();
    assert_goes_on(target.pid(), counter);
}

#[test]
fn traced_process_is_read_without_pause_and_names_the_tracer() {
    let target = Target::start(&dump_path());
    let pid = target.pid();
    let hold = std::thread::spawn(move || {
        // This thread traces the process while the commands run.
        let tid = nix::unistd::Pid::from_raw(pid.0.try_into().unwrap());
        nix::sys::ptrace::seize(tid, nix::sys::ptrace::Options::empty()).unwrap();
        let output = allocator(pid, &["--pause", "--json"]);
        let text = allocator(pid, &["--pause"]);
        (output, text)
    });
    let (output, text) = hold.join().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let output = json(&output);
    let sentence = format!("not paused: PID {} already traces the process", std::process::id());
    let hint = output["pause"]["hint"].as_str().unwrap();
    assert!(hint.starts_with(&sentence), "{hint}");
    assert_eq!(output["devices"][0]["exact"], true);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("; read while the process was running"), "{text}");
}

#[test]
fn stopped_process_stays_stopped_and_pending_signal_arrives() {
    let target = Target::start(&dump_path());
    let pid = nix::unistd::Pid::from_raw(target.pid().0.try_into().unwrap());
    kill(pid, Signal::SIGSTOP).unwrap();
    let is_stopped = || states(target.pid()).iter().all(|(_, state)| *state == 'T');
    wait_until("the stop", is_stopped);
    let output = allocator(target.pid(), &["--pause", "--json"]);
    assert_eq!(json(&output)["devices"][0]["exact"], true);
    wait_until("the stop again", is_stopped);
    kill(pid, Signal::SIGCONT).unwrap();
    wait_until("it to go on", || !is_stopped());

    // In any case, a signal sent during the pause kills the process afterwards.
    let hold = ThreadPause::new(Path::new(PROC), target.pid()).unwrap();
    kill(pid, Signal::SIGTERM).unwrap();
    drop(hold);
    wait_until("the signal", || {
        matches!(states_or_none(target.pid()).as_deref(), None | Some([] | [(_, 'Z')]))
    });
}

fn states_or_none(pid: Pid) -> Option<Vec<(String, char)>> {
    std::fs::metadata(format!("{PROC}/{pid}/task")).ok()?;
    Some(states(pid))
}

#[test]
fn pause_reports_an_exited_process() {
    let gone = ThreadPause::new(Path::new(PROC), Pid(0x7fff_fff0));
    assert_eq!(gone.err(), Some(PauseError::Gone));
}
