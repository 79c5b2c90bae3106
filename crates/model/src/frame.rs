//! Frames: the state of one host at one point in time, as printed by `once --json`, stored in a recording and drawn on
//! a screen.
//!
//! Example of the data flow: the worker of GPU 0 (`collect/nvml`) reads used memory into `Gpu::memory.used`. The agent
//! (`collect/agent.rs`) puts that GPU into the next frame and publishes it. A source (`source/`) passes the frame on,
//! as a pointer for live data or as a JSON line from a recording. `tui/app.rs` stores the pointer and its history. A
//! screen borrows `frame.gpus[0].memory.used` and formats it. The same struct is used in all four steps.

use std::collections::HashSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::bounded_json;
use super::gpu::Gpu;
use super::host::{Driver, Host};
use super::pool::Pools;
use super::process::{Process, ProcessKey};
use super::process_group::RankReading;
use super::units::{Millis, Mono, UnixMillis};

/// Version of the frame and event format written by this build.
pub const SCHEMA: u32 = 1;

/// Maximum number of GPUs in a frame, more than any host has.
pub const MAX_GPUS: usize = 256;

/// Maximum number of pools for which data of earlier frames is retained. If there are more, only those in the newest
/// frame are retained.
pub const MAX_TRACKED_POOLS: usize = 4_096;

/// The latest state of one host. Each collector sets its own field and timestamp, so slow collectors do not delay fast
/// ones.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Frame {
    /// Sequence number; increases by one with each frame. A gap means that frames were skipped.
    pub seq: u64,
    pub time: UnixMillis,
    /// Time of the frame, on the clock that all `at` fields use.
    pub mono: Mono,
    /// Requested time between frames.
    pub interval: Millis,
    pub driver: Option<Driver>,
    pub host: Option<Host>,
    #[serde(
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "bounded_json::list::<_, _, MAX_GPUS>"
    )]
    pub gpus: Vec<Gpu>,
    pub processes: Option<ProcessList>,
    pub pools: Option<Pools>,
    /// The processes with NCCL process groups, sorted by process.
    #[serde(skip_serializing_if = "is_empty")]
    pub ranks: Arc<Vec<RankReading>>,
}

fn is_empty(list: &Arc<Vec<RankReading>>) -> bool {
    list.is_empty()
}

/// Data from the Linux kernel about the processes that use a GPU.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessList {
    pub at: Mono,
    /// Processes sorted by PID. Consecutive frames share the list until the kernel is queried again.
    pub list: Arc<Vec<Process>>,
}

impl Frame {
    /// Returns the process and the device index of each pool.
    pub fn pool_keys(&self) -> HashSet<(ProcessKey, u32)> {
        let pools = self.pools.iter().flat_map(|pools| &*pools.list);
        pools.map(|pool| (pool.process, pool.ordinal)).collect()
    }

    /// Returns true if the driver lists processes, and the kernel has not been asked about any yet.
    pub fn has_unread_processes(&self) -> bool {
        let is_unread = self.processes.as_ref().is_some_and(|processes| processes.at == Mono(0));
        let mut lists = self.gpus.iter().filter_map(|gpu| gpu.processes.value());
        is_unread && lists.any(|list| !list.is_empty())
    }

    pub fn process(&self, key: ProcessKey) -> Option<&Process> {
        let list = &self.processes.as_ref()?.list;
        let at = list.binary_search_by_key(&key.pid, |p| p.key.pid).ok()?;
        list.get(at).filter(|p| p.key == key)
    }
}
