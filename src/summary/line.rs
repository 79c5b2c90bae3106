//! The recorded frame fields that a summary needs. Reading only these is several times faster than reading a whole
//! [`Frame`](crate::model::frame::Frame), which matters for a recording of a day.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::Error as _;
use serde_json::value::RawValue;

use crate::model::bounded_json;
use crate::model::gpu::{Health, HealthState, Memory, Throttle};
use crate::model::pool::Pools;
use crate::model::process::{Process, ProcessKey};
use crate::model::reading::Reading;
use crate::model::units::{Bytes, MilliWatts, Millis, Mono, Percent, Pid, UnixMillis};

/// Maximum memory for the processes, and for the pools, parsed from one line.
const MAX_SECTION_MEMORY: usize = 12 << 20;
/// Maximum number of GPUs in a frame, more than any host has.
const MAX_GPUS: usize = 256;
/// Maximum number of processes on one GPU.
const MAX_GPU_PROCESSES: usize = 4_096;
/// Age at which a section is stale compared with its frame.
const STALE: Millis = Millis(15_000);

/// Content of one line of a recording.
#[derive(Debug)]
pub enum RecordedLine<'a> {
    Frame(Box<FrameLine<'a>>),
    /// An event or a Python stack, as input for the diagnosis.
    Event,
    /// A memory map, or a line of an unknown kind.
    Other,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct FrameEntry<'a> {
    from: u32,
    #[serde(borrow)]
    frame: Option<Box<FrameLine<'a>>>,
}

/// The parts of a recorded frame that a summary needs.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct FrameLine<'a> {
    pub time: UnixMillis,
    pub mono: Mono,
    pub interval: Millis,
    #[serde(borrow, deserialize_with = "bounded_json::list::<_, _, MAX_GPUS>")]
    pub gpus: Vec<GpuLine<'a>>,
    #[serde(borrow)]
    processes: Option<ProcessesLine<'a>>,
    #[serde(borrow, rename = "pools")]
    pools_text: Option<&'a RawValue>,
    #[serde(skip)]
    pools: Option<Pools>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct GpuLine<'a> {
    pub index: u32,
    #[serde(borrow)]
    pub uuid: Cow<'a, str>,
    #[serde(borrow)]
    pub name: Cow<'a, str>,
    health: Health,
    at: Mono,
    pub memory: Memory,
    pub sm: Reading<Percent>,
    pub power: Reading<MilliWatts>,
    pub throttle: Reading<Vec<Throttle>>,
    pub processes: Reading<GpuProcesses>,
}

/// The process list of one GPU.
#[derive(Debug, Default, Deserialize)]
#[serde(transparent)]
pub struct GpuProcesses(
    #[serde(deserialize_with = "bounded_json::list::<_, _, MAX_GPU_PROCESSES>")]
    pub  Vec<GpuProcessLine>,
);

/// The parts of an entry in a GPU's process list that a summary needs.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct GpuProcessLine {
    pid: Pid,
    process: Option<ProcessKey>,
    pub vram: Reading<Bytes>,
}

impl GpuProcessLine {
    /// Returns the kernel's key of the process if known, otherwise the driver's PID alone.
    pub fn key(&self) -> ProcessKey {
        self.process.unwrap_or(ProcessKey {
            pid: self.pid,
            ..ProcessKey::default()
        })
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ProcessesLine<'a> {
    #[serde(borrow)]
    list: Option<&'a RawValue>,
}

/// Parses a line of a recording. Returns an error for an unreadable line.
pub fn read(line: &[u8]) -> serde_json::Result<RecordedLine<'_>> {
    if line.starts_with(b"{\"event\"") || line.starts_with(b"{\"stack\"") {
        return Ok(RecordedLine::Event);
    }
    if !line.starts_with(b"{\"frame\"") {
        return Ok(RecordedLine::Other);
    }
    // Whole texts are checked for UTF-8 faster than string by string.
    let line = std::str::from_utf8(line).map_err(serde_json::Error::custom)?;
    let entry: FrameEntry<'_> = serde_json::from_str(line)?;
    let Some(mut frame) = entry.frame.filter(|_| entry.from == 0) else {
        return Ok(RecordedLine::Other);
    };
    frame.pools = frame.pools_text.map(section).transpose()?;
    Ok(RecordedLine::Frame(frame))
}

impl FrameLine<'_> {
    /// Returns the GPUs with current readings.
    pub fn live_gpus(&self) -> impl Iterator<Item = &GpuLine<'_>> {
        let is_live = |gpu: &&GpuLine<'_>| {
            gpu.health.state == HealthState::Answering && self.is_fresh(gpu.at)
        };
        self.gpus.iter().filter(is_live)
    }

    pub fn live_pools(&self) -> Option<&Pools> {
        self.pools.as_ref().filter(|pools| self.is_fresh(pools.at))
    }

    fn is_fresh(&self, at: Mono) -> bool {
        let max_age = STALE.0.max(self.interval.0.saturating_mul(3));
        at == Mono(0) || self.mono.since(at).0 <= max_age
    }

    /// Returns the process details read from the kernel, or an empty list if they are unreadable.
    pub fn described_processes(&self) -> Vec<Process> {
        let list = self.processes.as_ref().and_then(|list| list.list);
        list.and_then(|list| section(list).ok()).unwrap_or_default()
    }
}

/// Parses a section of a line. Returns an error if it is unreadable or needs too much memory.
fn section<T: for<'de> Deserialize<'de>>(text: &RawValue) -> serde_json::Result<T> {
    let read = bounded_json::read(text.get().as_bytes(), MAX_SECTION_MEMORY);
    read.map(|(section, _)| section)
}
