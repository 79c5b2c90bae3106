//! A process of the test bed: starts it, sends it commands, and reads PyTorch's own report.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// A setting of PyTorch 2.1 and later: segments grow in place, in reserved address space that is not fully mapped.
pub const EXPANDABLE: &str = "expandable_segments:True";

/// One torch release in the bed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    pub name: String,
    pub dir: PathBuf,
}

impl Release {
    /// 20600 for 2.6.0.
    pub fn number(&self) -> u32 {
        self.name
            .split('.')
            .map(|part| part.parse::<u32>().unwrap())
            .fold(0, |number, part| number * 100 + part)
    }

    pub fn at_least(&self, number: u32) -> bool {
        self.number() >= number
    }
}

/// Returns the releases of the bed, oldest first.
pub fn releases() -> Vec<Release> {
    let bed = std::env::var_os("GPUTOP_BED").expect("GPUTOP_BED names a bed (tests/bed/main.rs)");
    // `cargo test` runs in the package's directory, whatever the user's directory is, and harnesses run in others.
    let bed = Path::new(env!("CARGO_MANIFEST_DIR")).join(bed);
    let names: Vec<String> = match std::env::var("GPUTOP_BED_VERSIONS") {
        Ok(names) => names.split_whitespace().map(str::to_owned).collect(),
        Err(_) => std::fs::read_dir(&bed)
            .unwrap_or_else(|why| panic!("{}: {why}", bed.display()))
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| bed.join(name).join("harness").exists())
            .collect(),
    };
    let mut releases: Vec<Release> =
        names.into_iter().map(|name| Release { dir: bed.join(&name), name }).collect();
    assert!(!releases.is_empty(), "{} contains no release", bed.display());
    releases.sort_by_key(Release::number);
    releases
}

/// Returns the newest release, for tests that do not depend on the release.
pub fn newest() -> Release {
    releases().pop().unwrap()
}

/// A command that starts a harness.
pub struct Launch {
    command: Command,
}

impl Launch {
    pub fn new(release: &Release) -> Self {
        Self::program(&release.dir.join("harness"))
    }

    pub fn program(path: &Path) -> Self {
        Self::with(Command::new(path))
    }

    pub fn with(mut command: Command) -> Self {
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().contains("CUDA") {
                command.env_remove(name);
            }
        }
        // With `max_split_size_mb`, PyTorch reads the size of a cached block after it has freed the block
        // (https://github.com/pytorch/pytorch/issues/159567). In glibc's per-thread cache, freed memory keeps its
        // content, so a cache that is never full gives the intended result and no segmentation fault.
        command.env("GLIBC_TUNABLES", "glibc.malloc.tcache_count=65535");
        Self { command }
    }

    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Sets `PYTORCH_CUDA_ALLOC_CONF`, unless `conf` is empty.
    pub fn conf(self, conf: &str) -> Self {
        if conf.is_empty() { self } else { self.env("PYTORCH_CUDA_ALLOC_CONF", conf) }
    }

    /// Returns the command, for a caller that starts it itself.
    pub fn command(self) -> Command {
        self.command
    }

    pub fn start(mut self) -> Harness {
        let mut child = self
            .command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|why| panic!("{:?}: {why}", self.command));
        let input = child.stdin.take().unwrap();
        let mut harness = Harness {
            output: BufReader::new(child.stdout.take().unwrap()),
            started: format!("{:?}", self.command),
            input,
            child,
            pid: 0,
        };
        harness.pid = harness.answer::<Value>("start")["pid"].as_u64().unwrap() as u32;
        harness
    }
}

/// A running harness, which is killed on drop.
pub struct Harness {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// The command line, for messages.
    started: String,
    /// PID of the harness. May differ from the child's PID if it was started through `setpriv` or `unshare`.
    pub pid: u32,
}

impl Harness {
    pub fn start(release: &Release) -> Self {
        Launch::new(release).start()
    }

    /// Runs a command (tests/fake_cuda/harness.cpp) and returns its result.
    pub fn run(&mut self, command: &str) -> Value {
        self.send(command);
        self.answer(command)
    }

    pub fn send(&mut self, command: &str) {
        writeln!(self.input, "{command}").unwrap();
        self.input.flush().unwrap();
    }

    fn answer<T: DeserializeOwned>(&mut self, command: &str) -> T {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        let answer: Value = serde_json::from_str(&line)
            .unwrap_or_else(|why| panic!("{}: {command}: {why}: {line:?}", self.started));
        assert_eq!(answer.get("error"), None, "{}: {command}", self.started);
        serde_json::from_value(answer).unwrap()
    }

    pub fn run_all(&mut self, commands: &[&str]) {
        for command in commands {
            self.run(command);
        }
    }

    /// Returns the handle of a stream of the current device.
    pub fn stream(&mut self, number: usize) -> u64 {
        self.run(&format!("stream {number}"))["handle"].as_u64().unwrap()
    }

    /// Returns PyTorch's current report about itself.
    pub fn truth(&mut self) -> Truth {
        self.truth_through("")
    }

    /// Returns the report of the second torch in the process.
    pub fn truth_of_second(&mut self) -> Truth {
        self.truth_through("second: ")
    }

    fn truth_through(&mut self, prefix: &str) -> Truth {
        self.send(&format!("{prefix}stats"));
        let stats: Stats = self.answer("stats");
        self.send(&format!("{prefix}snapshot"));
        let snapshot: Snapshot = self.answer("snapshot");
        Truth { pid: self.pid, devices: stats.devices, segments: snapshot.segments }
    }

    /// Returns the PID of the started process, which is not always the harness itself.
    pub fn child_id(&self) -> u32 {
        self.child.id()
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        // At the end of its input the harness exits, even if `child` is only its parent.
        let _ = writeln!(self.input, "quit");
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Deserialize)]
struct Stats {
    devices: Vec<DeviceStats>,
}

#[derive(Deserialize)]
struct Snapshot {
    segments: Vec<TrueSegment>,
}

#[derive(Debug)]
pub struct Truth {
    pub pid: u32,
    pub devices: Vec<DeviceStats>,
    pub segments: Vec<TrueSegment>,
}

/// `[current, peak, allocated, freed]` for all blocks, for small blocks, and for large blocks.
pub type StatArray = [[i64; 4]; 3];

#[derive(Debug, Deserialize)]
pub struct DeviceStats {
    pub allocated_bytes: StatArray,
    pub reserved_bytes: StatArray,
    pub active_bytes: StatArray,
    pub inactive_split_bytes: StatArray,
    /// `None` before torch 2.0.
    pub requested_bytes: Option<StatArray>,
    pub segment: StatArray,
    pub num_alloc_retries: i64,
    pub num_ooms: i64,
}

#[derive(Debug, Deserialize)]
pub struct TrueSegment {
    pub device: usize,
    pub address: u64,
    pub size: u64,
    pub stream: u64,
    pub large: bool,
    pub private: bool,
    pub expandable: bool,
    /// (size, requested, allocated, active)
    pub blocks: Vec<(u64, u64, bool, bool)>,
}
