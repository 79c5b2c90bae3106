//! A pretended GPU machine with real processes on it, and gputop on a terminal in front of it.
//!
//! The scenario names the PIDs of processes that really run, so that everything the kernel says of them is true.
#![allow(clippy::print_stdout)]

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::fake_nvml::FakeNvml;
use crate::terminal::Launch;

/// Short, so that a test waits for little; the schedule of dear calls is in seconds and stays what it is.
pub const INTERVAL: &str = "200ms";

/// Where commands without a terminal keep what they keep.
pub const STATE: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/state");

const DEADLINE: Duration = Duration::from_secs(20);

/// A process that waits for its input to end: it does so when this is dropped, and also when the test is killed.
pub struct RealProcess {
    child: Guarded,
}

/// Killed and collected at the latest when this is dropped.
pub struct Guarded(pub Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl RealProcess {
    /// Its command line is `name` and nothing else.
    pub fn start(name: &str) -> Self {
        Self::with(name, |_| {})
    }

    /// As [`start`](Self::start), with more said: environment, directory.
    pub fn with(name: &str, say: impl FnOnce(&mut Command)) -> Self {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new("cat");
        command.arg0(name);
        say(&mut command);
        Self::spawn(command)
    }

    /// With these arguments on its command line, behind `sh -c 'read line'`, and with more said.
    pub fn with_arguments<S: AsRef<OsStr>>(
        args: impl IntoIterator<Item = S>,
        say: impl FnOnce(&mut Command),
    ) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", "read line"]).args(args);
        say(&mut command);
        Self::spawn(command)
    }

    /// The program at `path`, which must wait for its input as `cat` does.
    pub fn program(path: &Path) -> Self {
        Self::spawn(Command::new(path))
    }

    fn spawn(mut command: Command) -> Self {
        // What the tests themselves run under says nothing about the process.
        for name in ["RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_JOB_ID"] {
            if !command.get_envs().any(|(set, _)| set == name) {
                command.env_remove(name);
            }
        }
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        Self {
            child: Guarded(command.spawn().unwrap()),
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.0.id()
    }

    /// How it ended, once it has.
    pub fn wait(&mut self) -> ExitStatus {
        self.child.0.wait().unwrap()
    }

    /// Ends its input, and with it the process.
    pub fn finish(&mut self) -> ExitStatus {
        drop(self.child.0.stdin.take());
        self.wait()
    }
}

/// `[[process]]` of a scenario: on this GPU, with these further lines.
pub fn on_gpu(gpu: usize, process: &RealProcess, more: &str) -> String {
    format!(
        "[[process]]\npid = {}\ngpu = {gpu}\n{more}\n",
        process.pid()
    )
}

/// The dashboard of that machine, 120x40, about to start. Clock times are UTC.
pub fn dashboard(fake: &FakeNvml) -> Launch {
    Launch::gputop()
        .envs(fake.env())
        .env("TZ", "UTC")
        .args(["--interval", INTERVAL])
        .size(40, 120)
}

/// A subcommand without a terminal, about to run on that machine.
pub fn command<S: AsRef<OsStr>>(fake: &FakeNvml, args: impl IntoIterator<Item = S>) -> Command {
    let mut command = gputop(args);
    command.envs(fake.env());
    command
}

/// The same on whatever machine it is told.
pub fn gputop<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gputop"));
    command
        .args(args)
        .env("LC_ALL", "C.UTF-8")
        // As on a terminal: a debug build takes a second to look up its names.
        .env_remove("RUST_BACKTRACE")
        .env_remove("RUST_LIB_BACKTRACE")
        // Nobody's own settings, and no incidents into anybody's store.
        .env("XDG_CONFIG_HOME", "/dev/null")
        .env("XDG_STATE_HOME", STATE)
        .env_remove("GPUTOP_CONFIG")
        .stdin(Stdio::null());
    command
}

/// What a command wrote, and how it ended.
#[derive(Debug)]
pub struct Outcome {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Outcome {
    /// Refused or failed: the reason in one sentence for a person, and nothing that a program would read.
    #[track_caller]
    pub fn assert_refused(&self, code: i32, sentence: &str) {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert_eq!(self.err, format!("gputop: {sentence}\n"));
        assert_eq!(self.out, "");
    }
}

/// Runs a subcommand to its end.
pub fn run<S: AsRef<OsStr>>(fake: &FakeNvml, args: impl IntoIterator<Item = S>) -> Outcome {
    let output = command(fake, args).output().unwrap();
    Outcome {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Waits for what only looking tells: a file, a process's state.
#[track_caller]
pub fn wait_until(what: &str, mut wanted: impl FnMut() -> bool) {
    let start = Instant::now();
    while !wanted() {
        assert!(start.elapsed() < DEADLINE, "waited for {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Whether a tool that is not part of the repository can be run. A test does without it, unless nothing may be skipped.
pub fn has(tool: &str) -> bool {
    let found = Command::new(tool).arg("-V").output().is_ok();
    assert!(
        found || std::env::var_os("GPUTOP_TEST_REQUIRE").is_none(),
        "{tool} is not here, and nothing may be skipped"
    );
    if !found {
        println!("skipped: {tool} is not here");
    }
    found
}

/// Whether the driver's PIDs and ours are the same, as on a host. Inside a container the product matches none, by
/// design, so what it says of processes there cannot be tested this way.
pub fn is_host() -> bool {
    use gputop::collect::host::hello;
    use gputop::model::host::PidNamespace;
    hello().namespace == PidNamespace::Host
}
