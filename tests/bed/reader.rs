//! Runs `gputop allocator PID --json --blocks` and parses its output.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

pub fn program() -> PathBuf {
    std::env::var_os("GPUTOP_BED_READER")
        .map_or_else(|| env!("CARGO_BIN_EXE_gputop").into(), PathBuf::from)
}

pub fn command(pid: u32) -> Command {
    arguments(Command::new(program()), pid)
}

/// Adds the arguments for a process to a command that runs gputop, possibly through another program (`setpriv …
/// gputop`).
pub fn arguments(mut command: Command, pid: u32) -> Command {
    command
        .args(["allocator", &pid.to_string(), "--json", "--blocks"])
        // Use no driver: the GPUs of this machine are irrelevant here.
        .env("GPUTOP_NVML", "/nonexistent/libnvidia-ml.so.1");
    command
}

/// The result of a run. gputop must have exited with a valid exit code and without a panic.
#[derive(Debug)]
pub struct Run {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

pub fn run(pid: u32) -> Run {
    outcome(command(pid))
}

pub fn outcome(mut command: Command) -> Run {
    check_exit(command.output().unwrap())
}

pub fn check_exit(output: Output) -> Run {
    let run = Run {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    };
    assert!(
        (0..=2).contains(&run.code) && !run.stderr.contains("panicked"),
        "not an orderly end: {run:?}"
    );
    if run.code == 0 {
        let _ = run.reading();
    }
    run
}

impl Run {
    pub fn reading(&self) -> Reading {
        assert_eq!(self.code, 0, "nothing was read: {}", self.message());
        serde_json::from_str(&self.stdout).unwrap_or_else(|why| {
            panic!("not the JSON of PRODUCT.md: {why}: {:.600}", self.stdout.trim())
        })
    }

    /// Returns all output, for messages and text searches.
    pub fn message(&self) -> String {
        format!("{} {}", self.stdout.trim(), self.stderr.trim())
    }
}

pub fn read(pid: u32) -> Reading {
    run(pid).reading()
}

#[derive(Debug, Deserialize)]
pub struct Reading {
    pub schema: u32,
    pub pid: u32,
    pub allocator: String,
    pub devices: Vec<Device>,
}

#[derive(Debug, Deserialize)]
pub struct Device {
    pub ordinal: usize,
    pub exact: bool,
    pub stats: Stats,
    #[serde(deserialize_with = "if_read")]
    pub largest_free_block: Option<u64>,
    pub free_histogram: Vec<Bar>,
    /// `None` if no attempt produced a map; gputop then reports the reason in place of the map.
    #[serde(deserialize_with = "if_read")]
    pub segments: Option<Vec<Segment>>,
}

/// Parses `{"missing": "…"}` in place of a value as `None`.
fn if_read<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    let value = Value::deserialize(deserializer)?;
    if value.get("missing").is_some() {
        return Ok(None);
    }
    serde_json::from_value(value).map(Some).map_err(D::Error::custom)
}

impl Device {
    /// Returns the segments of the map; empty without a map.
    pub fn segments(&self) -> &[Segment] {
        self.segments.as_deref().unwrap_or_default()
    }
}

#[derive(Debug, Deserialize)]
pub struct Stats {
    pub allocated_bytes: Stat,
    pub reserved_bytes: Stat,
    pub active_bytes: Stat,
    pub inactive_split_bytes: Stat,
    /// `None` before torch 2.0.
    #[serde(deserialize_with = "if_read")]
    pub requested_bytes: Option<Stat>,
    pub segments: Stat,
    pub num_alloc_retries: i64,
    pub num_ooms: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Stat {
    pub current: i64,
    pub peak: i64,
}

#[derive(Debug, Deserialize)]
pub struct Bar {
    pub count: u64,
    pub bytes: u64,
}

#[derive(Debug, Deserialize)]
pub struct Segment {
    pub address: u64,
    pub size: u64,
    pub pool: String,
    pub stream: u64,
    pub expandable: bool,
    pub blocks: Vec<Block>,
}

#[derive(Debug, Deserialize)]
pub struct Block {
    pub address: u64,
    pub size: u64,
    #[serde(default)]
    pub requested: Option<u64>,
    pub state: String,
}
