//! A simulated GPU machine with real processes, and gputop on a terminal.
//!
//! The scenario contains the PIDs of processes that really run, so that the kernel's data about them is real.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

use super::deadline::{DEADLINE, pause};
use super::fake_nvml::FakeNvml;
use super::skip::{available, possible};
use super::terminal::Launch;

/// Short, so that tests do not wait long. Expensive calls are scheduled in seconds, independent of this interval.
pub const INTERVAL: &str = "200ms";

/// State directory of commands without a terminal.
pub const STATE: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/state");

/// A process that exits when its input ends: when this is dropped, and also when the test is killed.
pub struct RealProcess {
    child: Guarded,
}

/// Child process that is killed and reaped on drop.
pub struct Guarded(pub Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl RealProcess {
    /// Starts a process whose command line is only `name`.
    pub fn start(name: &str) -> Self {
        Self::with(name, |_| {})
    }

    /// Like [`start`](Self::start), with more settings: environment, directory.
    pub fn with(name: &str, say: impl FnOnce(&mut Command)) -> Self {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new("cat");
        // gputop would follow the file to which all tests print.
        command.arg0(name).stderr(Stdio::null());
        say(&mut command);
        Self::spawn(command)
    }

    /// Starts `sh -c 'read line'` with these arguments and more settings.
    pub fn with_arguments<S: AsRef<OsStr>>(
        args: impl IntoIterator<Item = S>,
        say: impl FnOnce(&mut Command),
    ) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", "read line"]).args(args).stderr(Stdio::null());
        say(&mut command);
        Self::spawn(command)
    }

    /// Starts the program at `path`, which must wait for its input like `cat`.
    pub fn program(path: &Path) -> Self {
        Self::spawn(Command::new(path))
    }

    fn spawn(mut command: Command) -> Self {
        // Do not pass on the job environment in which the tests run.
        for name in ["RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_JOB_ID"] {
            if !command.get_envs().any(|(set, _)| set == name) {
                command.env_remove(name);
            }
        }
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        Self { child: Guarded(command.spawn().unwrap()) }
    }

    pub fn pid(&self) -> u32 {
        self.child.0.id()
    }

    /// Waits until the process exits, and returns its status.
    pub fn wait(&mut self) -> ExitStatus {
        self.child.0.wait().unwrap()
    }

    /// Closes the process's input and waits until it exits.
    pub fn finish(&mut self) -> ExitStatus {
        drop(self.child.0.stdin.take());
        self.wait()
    }
}

/// Returns the process at the end of this chain of program names below `pid`.
#[track_caller]
pub fn child_of(pid: u32, path: &[&str]) -> nix::unistd::Pid {
    let mut at = pid;
    for name in path {
        wait_until(name, || child_named(at, name).is_some());
        at = child_named(at, name).unwrap();
    }
    nix::unistd::Pid::from_raw(at.cast_signed())
}

fn child_named(pid: u32, name: &str) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    let mut children = children.split_whitespace().filter_map(|child| child.parse().ok());
    children.find(|child: &u32| {
        std::fs::read_to_string(format!("/proc/{child}/comm")).is_ok_and(|comm| comm.trim() == name)
    })
}

/// Returns a `[[process]]` of a scenario on this GPU, with additional lines.
pub fn on_gpu(gpu: usize, process: &RealProcess, more: &str) -> String {
    format!("[[process]]\npid = {}\ngpu = {gpu}\n{more}\n", process.pid())
}

/// Returns the launch of a dashboard on this machine, 120x40. Clock times are UTC.
pub fn dashboard(fake: &FakeNvml) -> Launch {
    Launch::gputop().envs(fake.env()).env("TZ", "UTC").args(["--interval", INTERVAL]).size(40, 120)
}

/// Returns a command without a terminal that runs a subcommand on this machine.
pub fn command<S: AsRef<OsStr>>(fake: &FakeNvml, args: impl IntoIterator<Item = S>) -> Command {
    let mut command = gputop(args);
    command.envs(fake.env());
    command
}

/// Returns a gputop command without a fake machine. The caller's environment chooses one.
pub fn gputop<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gputop"));
    command
        .args(args)
        .env("LC_ALL", "C.UTF-8")
        // Use no real user's settings, and save no incidents to a real store.
        .env("XDG_CONFIG_HOME", "/dev/null")
        .env("XDG_STATE_HOME", STATE)
        .env_remove("GPUTOP_CONFIG")
        .stdin(Stdio::null());
    command
}

/// A command's exit code and output.
#[derive(Debug)]
pub struct Outcome {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Outcome {
    /// Checks that the command failed with one sentence for a person, and that stdout is empty.
    #[track_caller]
    pub fn assert_refused(&self, code: i32, sentence: &str) {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert_eq!(self.err, format!("gputop: {sentence}\n"));
        assert_eq!(self.out, "");
    }
}

/// Runs a subcommand until it exits.
pub fn run<S: AsRef<OsStr>>(fake: &FakeNvml, args: impl IntoIterator<Item = S>) -> Outcome {
    let output = command(fake, args).output().unwrap();
    Outcome {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Polls for conditions that cannot be waited on: a file, a process's state.
#[track_caller]
pub fn wait_until(what: &str, mut wanted: impl FnMut() -> bool) {
    let start = Instant::now();
    while !wanted() {
        assert!(start.elapsed() < DEADLINE, "waited for {what}");
        pause(start);
    }
}

/// Returns true if an external tool can be run. Otherwise the test skips it, or fails if nothing may be skipped.
pub fn has(tool: &str) -> bool {
    let is_here = Command::new(tool).arg("-V").output().is_ok();
    available(is_here, &format!("{tool} is not here"))
}

/// Returns true if the driver and this process use the same PIDs, as on a host. In a container, gputop matches no
/// processes by design, so its process output cannot be tested there.
pub fn is_host() -> bool {
    use gputop::collect::host::hello;
    use gputop_model::host::PidNamespace;
    possible(hello().namespace == PidNamespace::Host, "a container has other PIDs than the driver")
}

/// Returns true if this process may become another user.
pub fn is_root() -> bool {
    possible(nix::unistd::geteuid().is_root(), "only root can become another user")
}
