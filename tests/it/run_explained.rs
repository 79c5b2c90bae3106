//! Explanations that `gputop run` prints after a failed command.

use std::fs;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tempfile::TempDir;

use crate::explain::long_named_xid;
use crate::run::{in_a_script, output, piped, script, text};
use crate::support::fake_machine::gputop;
use crate::support::terminal::Launch;

pub const OOM: &str = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity \
                   of 23.69 GiB of which 1.06 GiB is free. Process 418 has 22.60 GiB memory in use. Of the allocated \
                   memory 14.10 GiB is allocated by PyTorch, and 8.02 GiB is reserved by PyTorch but unallocated.";
/// Commands that fail because host memory ran out.
pub const OOM_KILLED: &str =
    "echo 'slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.' >&2; kill -9 $$";
pub const EXPLAINED: &str = "FRAGMENTED MEMORY";

#[test]
fn explains_an_out_of_memory_error_below_the_output() {
    let fails = format!("echo step 1; echo '{OOM}' >&2; exit 1");
    let terminal = script(&fails).size(60, 100).start();
    assert_eq!(terminal.wait_exit().exit_code(), 1);
    terminal.assert_restored();
    let shown = terminal.text();
    let explained = shown.find(EXPLAINED).unwrap_or_else(|| panic!("{shown}"));
    assert!(shown.find("step 1").unwrap() < explained, "{shown}");
    assert!(shown.contains("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"), "{shown}");
    assert!(shown.contains("LOG   output:2"), "{shown}");
    // A log file is read from its length at the start.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("train.log");
    fs::write(&file, "yesterday: CUDA error: device-side assert triggered\n").unwrap();
    let log = fs::OpenOptions::new().append(true).open(&file).unwrap();
    let result = piped(["sh", "-c", &fails]).stderr(log).output().unwrap();
    assert_eq!(result.status.code(), Some(1));
    assert_eq!(text(&result.stdout), "step 1\n");
    let log = fs::read_to_string(&file).unwrap();
    assert!(log.contains(EXPLAINED) && !log.contains("ASSERT"), "{log}");
    assert!(log.contains("train.log:1"), "{log}");
    // The quote in the explanation is not counted as a second failure.
    let (_, today) = log.split_once('\n').unwrap();
    fs::write(&file, today).unwrap();
    let again = gputop(["explain"]).arg(&file).output().unwrap();
    let again = text(&again.stdout);
    assert!(again.contains(EXPLAINED) && !again.contains(" times"), "{again}");
}

/// As in `gputop run CMD 2>&1 | tee log`.
#[test]
fn explains_output_that_goes_through_a_pipe() {
    let fails = format!("echo step 1; echo '{OOM}' >&2; echo step 2; exit 3");
    let folder = tempfile::tempdir().unwrap();
    let run = |options: &str, redirected: &str| {
        let script = folder.path().join("fails.sh");
        fs::write(&script, &fails).unwrap();
        let log = folder.path().join("log");
        let gputop = env!("CARGO_BIN_EXE_gputop");
        let line = format!(
            "({gputop} run {options} -- sh {}; echo $? > {}) {redirected} | cat > {}",
            script.display(),
            folder.path().join("code").display(),
            log.display()
        );
        Launch::shell(&line).size(100, 60).start().wait_exit();
        let code = fs::read_to_string(folder.path().join("code")).unwrap();
        assert_eq!(code, "3\n");
        fs::read_to_string(log).unwrap()
    };
    let log = run("", "2>&1");
    let explained = log.find(EXPLAINED).unwrap_or_else(|| panic!("{log}"));
    let expected = format!("step 1\n{OOM}\nstep 2\n");
    assert!(log.starts_with(&expected) && explained > expected.len(), "{log}");
    assert_eq!(run("--no-capture", "2>&1"), expected);
}

#[test]
fn a_name_in_another_script_does_not_change_the_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kernel.log");
    fs::write(&file, long_named_xid()).unwrap();
    let fails = format!("cat '{}'; echo '{OOM}' >&2; exit 3", file.display());
    let terminal = script(&fails).size(90, 100).start();
    assert_eq!(terminal.wait_exit().exit_code(), 3);
    terminal.assert_restored();
    let shown = terminal.text();
    assert!(shown.contains("LOG   "), "{shown}");
    assert!(!shown.contains("diagnosis restarted"), "{shown}");
}

#[test]
fn prints_nothing_without_a_known_failure() {
    for line in [
        format!("echo '{OOM}'; exit 0"),
        "echo 'KeyError: labels' >&2; exit 1".to_owned(),
        "kill -TERM $$".to_owned(),
    ] {
        let terminal = script(&line).size(60, 200).start();
        terminal.wait_exit();
        let bare = Launch::program("bash").args(["-c", &line]).size(60, 200).start();
        bare.wait_exit();
        assert_eq!(terminal.text(), bare.text());
    }
    let result = output(["sh", "-c", "echo 'KeyError: labels' >&2; exit 1"]);
    assert_eq!(text(&result.stderr), "KeyError: labels\n");
}

/// The traceback of an ordinary exception says everything.
#[test]
fn prints_nothing_for_an_ordinary_exception() {
    let traceback = "Traceback (most recent call last):\n  File \"/home/ana/train.py\", line 31, in <module>\n    model(x)\nRuntimeError: mat1 and mat2 shapes cannot be multiplied (16x9216 and 4096x10)\n";
    let result = output(["sh", "-c", &format!("echo '{traceback}' >&2; exit 1")]);
    assert_eq!(text(&result.stderr), format!("{traceback}\n"));
}

#[test]
fn expandable_segments_are_not_recommended_if_the_command_inherits_them() {
    for (value, is_offered) in [("expandable_segments:True", false), ("max_split_size_mb:64", true)]
    {
        let fails = format!("echo '{OOM}' >&2; exit 1");
        let mut command = gputop(["run", "--", "sh", "-c", &fails]);
        let result = command.env("PYTORCH_ALLOC_CONF", value).output().unwrap();
        let shown = text(&result.stderr);
        assert!(shown.contains(EXPLAINED), "{shown}");
        let setting = "\nPYTORCH_CUDA_ALLOC_CONF=expandable_segments:True ";
        assert_eq!(shown.contains(setting), is_offered, "{value}: {shown}");
    }
}

/// Output of a command with a kernel log that the command itself can write to.
fn output_with_kernel_log(line: &str) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().unwrap();
    let kernel_log = folder.path().join("kmsg");
    mkfifo(&kernel_log, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    // A fifo without a writer counts as closed.
    let writer = fs::OpenOptions::new().read(true).write(true).open(&kernel_log).unwrap();
    let mut command = piped(["sh", "-c", line]);
    command.env("GPUTOP_KERNEL_LOG", &kernel_log).env("KMSG", &kernel_log);
    let result = command.output().unwrap();
    drop(writer);
    (result.status.code(), text(&result.stderr))
}

#[test]
fn sigkill_without_evidence_that_memory_ran_out_is_one_line() {
    let line = |end: &str| {
        format!(
            "gputop: sh {end} signal 9 (SIGKILL); the kernel's out-of-memory killer did not do it\n"
        )
    };
    let (killed, exited) = (line("was killed by"), line("exited as if by"));
    for (line, code, printed) in [
        ("kill -9 $$", 137, &*killed),
        ("exit 137", 137, &exited),
        (
            "echo 'run.sh: line 2: 77 Killed python' >&2; exit 1",
            1,
            "run.sh: line 2: 77 Killed python\n",
        ),
    ] {
        assert_eq!(output_with_kernel_log(line), (Some(code), printed.to_owned()), "{line}");
    }
    let mut unreadable = piped(["sh", "-c", "kill -9 $$"]);
    let result = unreadable.env("GPUTOP_KERNEL_LOG", "/nonexistent").output().unwrap();
    let message = text(&result.stderr);
    // The counters of the cgroup or of the host usually show that there was no OOM kill.
    assert!(message.lines().count() <= 1 && !message.contains("FIX"), "{message}");
}

#[test]
fn explains_a_kill_by_the_oom_killer() {
    let record = "4,1,1,-;Out of memory: Killed process $$ (sh) total-vm:9kB, anon-rss:5kB";
    let (code, message) = output_with_kernel_log(&format!("echo \"{record}\" > $KMSG; kill -9 $$"));
    assert_eq!(code, Some(137));
    let is_explained = ["host-oom-killer", "The kernel killed sh (PID ", "anon-rss:5kB"]
        .iter()
        .all(|part| message.contains(part));
    assert!(is_explained, "{message}");
    // The shell reports a child that the OOM killer killed.
    let (_, message) = output_with_kernel_log(
        "echo \"4,1,1,-;Out of memory: Killed process 77 (python) total-vm:9kB\" > $KMSG; echo 'run.sh: line 2: 77 Killed python' >&2; exit 137",
    );
    assert!(message.contains("The kernel killed python (PID 77)"), "{message}");
    // A scheduler's report needs no kernel log.
    let (_, message) = output_with_kernel_log(OOM_KILLED);
    assert!(message.contains("host-oom-killer"), "{message}");
}

/// Starts one rank of a job on a terminal.
fn rank(home: &TempDir, number: u32, line: &str) -> Launch {
    in_a_script(&format!("GPUTOP sh -c \"{line}\"; true"))
        .env("XDG_RUNTIME_DIR", home.path())
        .env("RANK", number.to_string())
        .env("WORLD_SIZE", "3")
        .size(60, 160)
}

#[test]
fn only_the_first_failed_rank_explains() {
    let home = tempfile::tempdir().unwrap();
    let one = format!("GPUTOP sh -c \"echo '{OOM}'; exit 1\"");
    let job =
        format!("RANK=0 {one}; echo BETWEEN; RANK=1 {one}; RANK=2 GPUTOP sh -c 'exit 3'; true");
    let terminal = in_a_script(&job)
        .env("XDG_RUNTIME_DIR", home.path())
        .env("WORLD_SIZE", "3")
        .size(90, 200)
        .start();
    terminal.wait_exit();
    let shown = terminal.text();
    let (first, others) = shown.split_once("BETWEEN").unwrap_or_else(|| panic!("{shown}"));
    assert!(first.contains(EXPLAINED), "{shown}");
    assert!(!others.contains(EXPLAINED), "{shown}");
    let messages: Vec<&str> = others.lines().filter(|line| line.starts_with("gputop:")).collect();
    assert_eq!(messages.len(), 1, "{shown}");
    assert!(
        messages[0].contains("rank 1 failed too (exit 1, oom-")
            && messages[0].contains("rank 0 failed first"),
        "{shown}"
    );
    // Another job with the same ranks explains again, since its launcher differs.
    let again = rank(&home, 1, &format!("echo '{OOM}'; exit 1")).start();
    again.wait_exit();
    assert!(again.text().contains(EXPLAINED), "{}", again.text());
}
