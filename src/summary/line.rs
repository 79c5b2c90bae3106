//! The recorded frame fields that a summary needs. Reading only these is several times faster than reading a whole
//! [`Frame`](crate::model::frame::Frame), which matters for a recording of a day.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::model::bounded_json;
use crate::model::gpu::{GpuProcess, Health, HealthState, Memory, Throttle};
use crate::model::pool::Pools;
use crate::model::process::Process;
use crate::model::reading::Reading;
use crate::model::units::{MilliWatts, Millis, Mono, Percent, UnixMillis};

/// Maximum memory for the lists parsed from one line.
const MAX_LINE_MEMORY: usize = 12 << 20;
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
    #[serde(borrow)]
    pub gpus: Vec<GpuLine<'a>>,
    #[serde(borrow)]
    processes: Option<ProcessesLine<'a>>,
    pub pools: Option<Pools>,
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
    pub processes: Reading<Vec<GpuProcess>>,
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
    let (entry, _) = bounded_json::read::<FrameEntry<'_>>(line, MAX_LINE_MEMORY)?;
    Ok(match entry.frame.filter(|_| entry.from == 0) {
        Some(frame) => RecordedLine::Frame(frame),
        None => RecordedLine::Other,
    })
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
        let list = list.map(|list| bounded_json::read(list.get().as_bytes(), MAX_LINE_MEMORY));
        list.and_then(Result::ok)
            .map_or_else(Vec::new, |(list, _)| list)
    }
}
