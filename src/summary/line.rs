//! The recorded frame fields that a summary needs. Reading only these fields is several times faster than reading a
//! complete [`Frame`](gputop_model::frame::Frame), which matters for recordings of a day or more.

use std::borrow::Cow;
use std::sync::Arc;

use gputop_model::bounded_json;
use gputop_model::frame::MAX_GPUS;
use gputop_model::{
    Bytes, Health, HealthState, Memory, MilliWatts, Millis, Mono, Percent, PhaseWindow, Pid, Pool,
    Process, ProcessKey, ProcessList, Reading, ReportedPool, Throttle, UnixMillis,
};
use memchr::memmem;
use serde::Deserialize;
use serde::de::Error as _;
use serde_json::value::RawValue;

/// Maximum memory for the processes parsed from one line.
const MAX_PROCESSES_MEMORY: usize = 12 << 20;
/// Maximum number of PyTorch pools in a frame. The same limit applies separately to the pools of other frameworks.
const MAX_POOLS: usize = 16_384;
/// Maximum number of processes on one GPU.
const MAX_GPU_PROCESSES: usize = 4_096;
/// Maximum age of a section relative to its frame. Unless the sampling interval is long, older sections count as stale.
const STALE: Millis = Millis(15_000);

/// Content of one line of a recording.
#[derive(Debug)]
pub enum RecordedLine<'a> {
    Frame(Box<FrameLine<'a>>),
    /// Samples of a process whose GPU had little to do, over some seconds.
    Phases(Box<PhaseWindow>),
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

#[derive(Deserialize)]
struct PhaseEntry {
    phase_window: Box<PhaseWindow>,
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
    processes: Option<&'a RawValue>,
    /// Unparsed text of `processes` if the list was skipped.
    #[serde(skip)]
    skipped_processes: Option<&'a [u8]>,
    pools: Option<PoolsLine>,
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
    #[serde(rename = "power_mw", alias = "power")]
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
    #[serde(rename = "vram_bytes", alias = "vram")]
    pub vram: Reading<Bytes>,
}

impl GpuProcessLine {
    /// Returns the kernel's process key, or a key with only the driver's PID if the kernel's key is unknown.
    pub fn key(&self) -> ProcessKey {
        self.process.unwrap_or(ProcessKey { pid: self.pid, ..ProcessKey::default() })
    }
}

/// The parts of the pools that a summary needs.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct PoolsLine {
    at: Mono,
    #[serde(deserialize_with = "bounded_json::list::<_, _, MAX_POOLS>")]
    pub list: Vec<Pool>,
    #[serde(
        rename = "reported_pools",
        alias = "told",
        deserialize_with = "bounded_json::list::<_, _, MAX_POOLS>"
    )]
    pub reported: Vec<ReportedPool>,
}

/// Parses a line of a recording. Returns an error for an unreadable line. The result may borrow from `buffer`, whose
/// previous content is discarded.
pub fn read<'a>(line: &'a [u8], buffer: &'a mut Vec<u8>) -> serde_json::Result<RecordedLine<'a>> {
    if line.starts_with(b"{\"event\"") || line.starts_with(b"{\"stack\"") {
        return Ok(RecordedLine::Event);
    }
    if line.starts_with(b"{\"phase_window\"") {
        let entry: PhaseEntry = serde_json::from_slice(line)?;
        return Ok(RecordedLine::Phases(entry.phase_window));
    }
    if !line.starts_with(b"{\"frame\"") {
        return Ok(RecordedLine::Other);
    }
    let (text, skipped_processes) = match split_processes(line) {
        None => (line, None),
        Some([before, processes, after]) => {
            buffer.clear();
            buffer.extend_from_slice(before);
            buffer.extend_from_slice(after);
            (buffer.as_slice(), Some(processes))
        }
    };
    // Validate UTF-8 once for the whole text, which is faster than validating each string.
    let text = std::str::from_utf8(text).map_err(serde_json::Error::custom)?;
    let entry: FrameEntry<'_> = serde_json::from_str(text)?;
    let Some(mut frame) = entry.frame.filter(|_| entry.from == 0) else {
        return Ok(RecordedLine::Other);
    };
    frame.skipped_processes = skipped_processes;
    Ok(RecordedLine::Frame(frame))
}

/// Splits a line into the text before the process list, the list, and the text after it. The list is about half of the
/// line and is rarely needed. A JSON parser would take much longer to skip it. Returns `None` if the fields are in a
/// different order.
fn split_processes(line: &[u8]) -> Option<[&[u8]; 3]> {
    const KEY: &[u8] = b",\"processes\":";
    // A quotation mark in a JSON string is escaped, so these patterns never match inside a string.
    let key = memmem::find(line, b",\"processes\":{\"at\":")?;
    let (before, rest) = line.split_at(key);
    let end = memmem::find(rest, b"},\"pools\":{\"at\":")? + 1;
    let (list, after) = rest.split_at(end);
    Some([before, list.get(KEY.len()..)?, after])
}

impl FrameLine<'_> {
    /// Returns the GPUs with current readings.
    pub fn live_gpus(&self) -> impl Iterator<Item = &GpuLine<'_>> {
        let is_live = |gpu: &&GpuLine<'_>| {
            gpu.health.state == HealthState::Answering && self.is_fresh(gpu.at)
        };
        self.gpus.iter().filter(is_live)
    }

    pub fn live_pools(&self) -> Option<&PoolsLine> {
        self.pools.as_ref().filter(|pools| self.is_fresh(pools.at))
    }

    fn is_fresh(&self, at: Mono) -> bool {
        let max_age = STALE.0.max(self.interval.0.saturating_mul(3));
        at == Mono(0) || self.mono.since(at).0 <= max_age
    }

    /// Returns the process details read from the kernel, or an empty list if they are unreadable.
    pub fn described_processes(&self) -> Vec<Process> {
        let text = self.skipped_processes.or(self.processes.map(|list| list.get().as_bytes()));
        let list = text.map(|text| bounded_json::read::<ProcessList>(text, MAX_PROCESSES_MEMORY));
        Arc::unwrap_or_clone(list.and_then(Result::ok).unwrap_or_default().0.list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A command line that imitates the end of the process list.
    const COMMAND: &str = r#"sh -c },\"pools\":{\"at\":1"#;

    /// Parses a recorded line with these two frame fields, and returns its processes and pools as text.
    fn lists(fields: [&str; 2]) -> String {
        let [first, second] = fields;
        let line =
            format!(r#"{{"frame":{{"gpus":[{{"processes":[]}}],{first},{second}}},"from":0}}"#);
        let mut buffer = b"older content".to_vec();
        let Ok(RecordedLine::Frame(frame)) = read(line.as_bytes(), &mut buffer) else {
            panic!("{line}");
        };
        format!("{:?} {:?}", frame.described_processes(), frame.pools)
    }

    #[test]
    fn the_order_of_the_lists_changes_no_result() {
        let processes = format!(
            r#""processes":{{"at":5,"list":[{{"key":{{"pid":7,"start":1}},"command":"{COMMAND}"}}]}}"#
        );
        let pools = r#""pools":{"at":6,"list":[{"process":{"pid":7,"start":1},"ordinal":3}]}"#;
        let usual = lists([&processes, pools]);
        assert!(usual.contains("sh -c") && usual.contains("ordinal: 3"), "{usual}");
        assert_eq!(usual, lists([pools, &processes]));
    }

    #[test]
    fn the_process_list_is_not_parsed_unless_it_is_needed() {
        let line =
            br#"{"frame":{"gpus":[],"processes":{"at":5,"list":[not JSON]},"pools":{"at":6}}}"#;
        let mut buffer = Vec::new();
        let Ok(RecordedLine::Frame(frame)) = read(line, &mut buffer) else {
            panic!("the list was parsed");
        };
        assert_eq!(frame.described_processes(), []);
    }
}
