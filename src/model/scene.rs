//! The scene of an incident: what was there around it, each part as it was last read before it or soon after it.
//!
//! It is cut from what a stream tells anyway: of the newest frame the GPUs that the incident's processes are on, with
//! everybody there, the clocks and why they are held down; the Python stack and the block map that the agent reads
//! because an allocation failed. Each part carries its own moment, since none is of the failure itself. What was not
//! read by then is not there, and nothing older stands for it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::frame::Frame;
use super::pool::PoolMap;
use super::process::ProcessKey;
use super::stack::PythonStack;
use super::units::{Bytes, Millis, Mono};

/// Of each process one for each failure is taken: ranks of one job fail together.
pub const MAX_STACKS: usize = 8;
/// Segments and blocks of a map that is kept whole: some 60 bytes each as JSON.
pub const MAX_PARTS: u64 = 4_096;

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Scene {
    /// The first observation of the incident.
    pub at: Mono,
    /// Whom it is about, in the order they were observed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<ProcessKey>,
    /// Of the last frame before that, what concerns it: GPUs, the processes on them, the pools of its own.
    pub frame: Frame,
    /// Processes that hold something on those GPUs and are not listed here: only the largest are.
    #[serde(skip_serializing_if = "is_zero")]
    pub left_out: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub map: Option<SceneMap>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stacks: Vec<PythonStack>,
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// The blocks of a pool, read because an allocation failed.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SceneMap {
    pub process: ProcessKey,
    pub ordinal: u32,
    pub at: Mono,
    /// The longest that can have passed since the failure. The exception frees what its frames held: a later map has
    /// more holes than there were.
    pub lag: Millis,
    /// The statistics were the same before and after the read and all sums agree.
    pub exact: bool,
    pub segments: u64,
    pub blocks: u64,
    pub largest_free_block: Bytes,
    /// Free beside live blocks.
    pub stuck: Bytes,
    /// Free, and given back to the driver when that is needed.
    pub returnable: Bytes,
    /// Free blocks by powers of two, from the smallest there is to the largest.
    pub free_histogram: Vec<FreeBlocks>,
    /// Every segment and block, unless there are more than are kept. A block without an address lies behind the one
    /// before it, the first at the beginning of its segment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub whole: Option<PoolMap>,
}

/// Free blocks of a size: above half of `up_to_bytes`, up to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct FreeBlocks {
    pub up_to_bytes: Bytes,
    pub count: u64,
    pub bytes: Bytes,
}

impl Scene {
    /// Of two who saw the same, this one's, and what it lacks of the other's.
    #[must_use]
    pub fn filled(mut self, other: Self) -> Self {
        if self.frame.gpus.is_empty() {
            (self.frame, self.left_out) = (other.frame, other.left_out);
        }
        self.map = self.map.or(other.map);
        for stack in other.stacks {
            self.take_stack(stack);
        }
        self
    }

    /// What ran there, by name: `driver`, `cuda`, and `torch` as its layout was recognised.
    #[must_use]
    pub fn versions(&self) -> BTreeMap<String, String> {
        let driver = self.frame.driver.as_ref();
        let mut pools = self.frame.pools.iter().flat_map(|pools| &*pools.list);
        let torch = pools.find_map(|pool| pool.library.strip_prefix("torch "));
        let all = [
            (
                "driver",
                driver.and_then(|d| d.version.value()).map(String::as_str),
            ),
            (
                "cuda",
                driver.and_then(|d| d.cuda.value()).map(String::as_str),
            ),
            ("torch", torch),
        ];
        let known = all
            .into_iter()
            .filter_map(|(name, version)| Some((name, version?)));
        known
            .map(|(name, version)| (name.to_owned(), version.to_owned()))
            .collect()
    }

    /// One of each process: the first is the nearest to its failure.
    pub fn take_stack(&mut self, stack: PythonStack) {
        let is_there = |known: &PythonStack| known.process == stack.process;
        if self.stacks.len() < MAX_STACKS && !self.stacks.iter().any(is_there) {
            self.stacks.push(stack);
        }
    }

    /// Without what only a machine reads.
    pub fn forget_blocks(&mut self) {
        if let Some(map) = &mut self.map {
            map.whole = None;
        }
    }

    /// Within what is kept, whoever made it.
    pub fn cut(&mut self) {
        self.stacks.truncate(MAX_STACKS);
        if self
            .map
            .as_ref()
            .is_some_and(|map| map.segments + map.blocks > MAX_PARTS)
        {
            self.forget_blocks();
        }
    }
}
