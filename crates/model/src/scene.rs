//! Incident scenes: the state of the host around an incident's time.
//!
//! A scene is assembled from data that the stream already contains. It takes the GPUs of the incident's processes from
//! the newest frame, with all their processes, clocks and throttle reasons. It adds the Python stack and the block map
//! that the agent reads after a failed allocation. Each part has its own time, because no part was read exactly at the
//! failure. A part not read in time is omitted instead of being replaced by older data.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::frame::Frame;
use super::holders::summary::HolderSummary;
use super::pool::PoolMap;
use super::process::ProcessKey;
use super::stack::PythonStack;
use super::units::{Bytes, Millis, Mono};

/// Maximum number of Python stacks in a scene, one per process. Several are needed because the ranks of a job often
/// fail together.
pub const MAX_STACKS: usize = 8;
/// Maximum number of segments and blocks in a complete map. Each takes about 60 bytes as JSON.
pub const MAX_PARTS: u64 = 4_096;

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Scene {
    /// Time of the incident's first observation.
    pub at: Mono,
    /// Processes involved in the incident, in the order of observation.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<ProcessKey>,
    /// Relevant part of the last frame before the incident: GPUs, their processes, and the pools of the processes
    /// involved.
    pub frame: Frame,
    /// Number of unlisted processes on the incident's GPUs. Only the largest processes are listed.
    #[serde(skip_serializing_if = "is_zero")]
    pub left_out: u32,
    pub map: Option<SceneMap>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stacks: Vec<PythonStack>,
    /// Memory holders of the process whose allocation failed, read after the failure, or earlier, when the GPU's memory
    /// was nearly full.
    pub holders: Option<HolderSummary>,
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// Blocks of a pool, read because an allocation failed.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SceneMap {
    pub process: ProcessKey,
    pub ordinal: u32,
    pub at: Mono,
    /// Maximum time between the failure and the read of the map. The exception releases memory held by its stack
    /// frames, so a map that is read later shows more free memory than there was at the failure.
    pub lag: Millis,
    /// True if the pool statistics were equal before and after the read, and all sums agree.
    pub exact: bool,
    pub segments: u64,
    pub blocks: u64,
    pub largest_free_block: Bytes,
    /// Free bytes in segments with live blocks.
    #[serde(alias = "stuck")]
    pub fragmented: Bytes,
    /// Free bytes that the allocator can return to the driver.
    pub returnable: Bytes,
    /// Histogram of free blocks by powers of two, smallest first.
    pub free_histogram: Vec<FreeBlocks>,
    /// Every segment and block, unless there are more than [`MAX_PARTS`]. A block without an address directly follows
    /// the previous block; the first block begins at the start of its segment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub whole: Option<PoolMap>,
}

/// Free blocks larger than half of `up_to_bytes` and at most `up_to_bytes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct FreeBlocks {
    pub up_to_bytes: Bytes,
    pub count: u64,
    pub bytes: Bytes,
}

impl Scene {
    /// Merges two scenes of the same incident: keeps `self` and adds missing parts from `other`.
    #[must_use]
    pub fn filled(mut self, other: Self) -> Self {
        if self.frame.gpus.is_empty() {
            (self.frame, self.left_out) = (other.frame, other.left_out);
        }
        self.map = self.map.or(other.map);
        if let Some(holders) = other.holders {
            self.take_holders(holders);
        }
        for stack in other.stacks {
            self.take_stack(stack);
        }
        self
    }

    /// Returns software versions by name: `driver`, `cuda`, and `torch` as recognized from its memory layout.
    pub fn versions(&self) -> BTreeMap<String, String> {
        let driver = self.frame.driver.as_ref();
        let mut pools = self.frame.pools.iter().flat_map(|pools| &*pools.list);
        let torch = pools.find_map(|pool| pool.library.strip_prefix("torch "));
        let all = [
            ("driver", driver.and_then(|d| d.version.value()).map(String::as_str)),
            ("cuda", driver.and_then(|d| d.cuda.value()).map(String::as_str)),
            ("torch", torch),
        ];
        let known = all.into_iter().filter_map(|(name, version)| Some((name, version?)));
        known.map(|(name, version)| (name.to_owned(), version.to_owned())).collect()
    }

    /// Adds a Python stack, unless the process already has one. The first stack was read closest to the failure.
    pub fn take_stack(&mut self, stack: PythonStack) {
        let is_there = |known: &PythonStack| known.process == stack.process;
        if self.stacks.len() < MAX_STACKS && !self.stacks.iter().any(is_there) {
            self.stacks.push(stack);
        }
    }

    /// Adds a reading of the memory holders. If a process was read twice, retains the reading with more memory, because
    /// exception handling frees memory after a failure. Returns true if the reading was added.
    pub fn take_holders(&mut self, holders: HolderSummary) -> bool {
        let is_better = self.holders.as_ref().is_none_or(|known| {
            known.process == holders.process
                && (known.allocated < holders.allocated
                    || (known.allocated == holders.allocated
                        && known.groups.len() < holders.groups.len()))
        });
        if is_better {
            self.holders = Some(holders);
        }
        is_better
    }

    /// Removes the list of blocks, which is intended for other programs only.
    pub fn forget_blocks(&mut self) {
        if let Some(map) = &mut self.map {
            map.whole = None;
        }
    }

    /// Removes everything beyond the scene's size limits, regardless of where the scene came from.
    pub fn cut(&mut self) {
        self.stacks.truncate(MAX_STACKS);
        if self.map.as_ref().is_some_and(|map| map.segments + map.blocks > MAX_PARTS) {
            self.forget_blocks();
        }
        if let Some(holders) = &mut self.holders {
            holders.cut();
        }
    }
}
