//! The state of one host at one moment: what `once --json` prints, a recording holds and a screen draws.
//!
//! One datum on its way: the worker of GPU 0 (`collect/nvml`) reads used memory into `Gpu::memory.used`; the agent
//! (`collect/agent.rs`) puts that GPU into the next frame and publishes it; a source (`source/`) hands the frame on,
//! as a pointer here and as a JSON line from a recording; `tui/app.rs` keeps the pointer and its history; a screen
//! borrows `frame.gpus[0].memory.used` and formats it. Four hops, one struct.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::bounded_json;
use super::gpu::Gpu;
use super::host::{Driver, Host};
use super::pool::Pools;
use super::process::{Process, ProcessKey};
use super::units::{Millis, Mono, UnixMillis};

/// The version of frame and event as written by this build.
pub const SCHEMA: u32 = 1;

/// No host has more GPUs.
const MAX_GPUS: usize = 256;

/// A collector replaces its own field, with its own time; slow collectors do not hold up fast ones.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Frame {
    /// Counts up by one; a gap means that frames were skipped.
    pub seq: u64,
    pub time: UnixMillis,
    /// The same moment on the clock that all `at` fields use.
    pub mono: Mono,
    /// The period between frames as asked for.
    pub interval: Millis,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<Driver>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<Host>,
    #[serde(
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "bounded_json::list::<_, _, MAX_GPUS>"
    )]
    pub gpus: Vec<Gpu>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<ProcessList>,
    /// What the processes' own allocators hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pools: Option<Pools>,
}

/// The kernel's side of the processes that are on a GPU.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessList {
    pub at: Mono,
    /// Ordered by PID. Shared between the frames of one reading.
    pub list: Arc<Vec<Process>>,
}

impl Frame {
    /// The kernel's facts of a process.
    pub fn process(&self, key: ProcessKey) -> Option<&Process> {
        let list = &self.processes.as_ref()?.list;
        let at = list.binary_search_by_key(&key.pid, |p| p.key.pid).ok()?;
        list.get(at).filter(|p| p.key == key)
    }
}
