//! NCCL process groups of a distributed PyTorch job, as one rank holds them in its memory.
//!
//! Every rank counts the collectives of each of its groups. If one rank has called fewer than the others, the others wait
//! for it. The terms are PyTorch's: rank, group, collective, work (one call, from its launch to its completion).
//!
//! ```text
//! group "dp" of 4 ranks      called   completed   pending
//! rank 0, 2, 3                   30          29   #30 ALLREDUCE 4194304 for 41 s
//! rank 1                         29          29   –            rank 1 has not come to #30
//! ```

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::process::ProcessKey;
use super::reading::Reading;
use super::stack::PythonStack;
use super::units::{Millis, Mono};

/// The process groups of one process, read at one time.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RankReading {
    pub process: ProcessKey,
    pub at: Mono,
    /// `HOST:PORT` of the store through which the ranks of the job found each other. The same for all ranks of a job.
    pub store: Option<String>,
    /// Rank of the process in the job: its rank in the largest group.
    pub rank: Option<u32>,
    /// Number of ranks in the job: the size of the largest group.
    pub world_size: Option<u32>,
    /// Sorted by the order in which the process created them. Missing with the reason if none can be read.
    pub groups: Reading<Vec<ProcessGroup>>,
    /// Python stacks of the process, read while the job waits.
    pub stack: Option<Arc<PythonStack>>,
}

/// One group as this rank sees it.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessGroup {
    /// PyTorch's name, unique in the job: `0` for the default group.
    pub name: String,
    /// Description by the program or framework: `default_pg`, `mesh_dp`. Empty before torch 2.4.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Rank of the process in this group, below `size`.
    pub rank: u32,
    pub size: u32,
    /// Rank in the job of each rank of the group. `None` if they are the same, as in the default group. Empty if unknown.
    pub members: Option<Arc<[u32]>>,
    /// Number of collectives called. NCCL may not have returned yet from the last one. Missing if the layout is unknown.
    pub called: Reading<u64>,
    /// Number of point-to-point operations called.
    pub called_p2p: Reading<u64>,
    /// Newest work that NCCL accepted, with number 0 if it has accepted none. `None` if unknown. Collectives and
    /// point-to-point operations share its numbers.
    pub enqueued: Option<Work>,
    /// Newest work that PyTorch's watchdog has seen completed, up to 0.1 s late, with number 0 if none has. `None` if
    /// unknown.
    pub completed: Option<Work>,
    /// Works that the watchdog has not seen completed, oldest first, at most [`MAX_PENDING`]. May end with the first that
    /// was called within the last 5 s, because nobody waits for those behind it.
    pub pending: Reading<Vec<PendingWork>>,
    /// The last collectives that PyTorch's flight recorder has, newest first. Only the collector uses them.
    #[serde(skip)]
    pub recorded: Vec<RecordedCall>,
}

/// Maximum number of pending works in a reading.
pub const MAX_PENDING: usize = 64;

/// One call of a collective or point-to-point operation.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Work {
    /// Number in the group, counted from 1 by each rank.
    pub seq: u64,
    /// PyTorch's name: `ALLREDUCE`. Empty if unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub operation: String,
    /// Number of elements of the input and the output tensors.
    pub elements: Option<(u64, u64)>,
    /// Data type of the input: `float32`. Known if PyTorch's flight recorder is on.
    pub dtype: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PendingWork {
    pub work: Work,
    /// Time of the call, in nanoseconds of the clock of [`Mono`]. Two groups of one process are compared by it.
    pub called_ns: u64,
}

/// A call of a collective in PyTorch's flight recorder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordedCall {
    pub seq: u64,
    /// Time of the call in nanoseconds since 1970. The same clock for all ranks of a host.
    pub called_unix_ns: u64,
}

/// Which ranks of a group came last to its recent collectives, as far as their host can tell.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupArrivals {
    /// Store of the job, as in [`RankReading`].
    pub store: Option<String>,
    /// Description of the group, or its name if there is none.
    pub group: String,
    /// Number of ranks in the group, on all hosts.
    pub size: u32,
    /// Ranks in the job that are on this host, in ascending order.
    pub ranks: Vec<u32>,
    /// Number of recent collectives to which the arrivals of all these ranks were observed.
    pub collectives: u32,
    /// Ranks that came last to at least one of the collectives, alone.
    pub last: Vec<LastArrivals>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LastArrivals {
    pub rank: u32,
    /// Number of collectives to which the rank came last.
    pub count: u32,
    /// Median time after the first rank.
    #[serde(rename = "lateness_ms")]
    pub lateness: Millis,
}

impl Work {
    /// Returns the name of the operation as users know it: `ALLGATHER` for PyTorch's `_ALLGATHER_BASE`.
    pub fn operation_name(&self) -> &str {
        let name = self.operation.trim_start_matches('_');
        name.strip_suffix("_BASE").unwrap_or(name)
    }
}

impl PendingWork {
    /// Returns the time of the call.
    pub fn called_at(&self) -> Mono {
        Mono(self.called_ns / 1_000_000)
    }
}

impl ProcessGroup {
    /// Returns the rank in the job of a rank of this group.
    pub fn member(&self, rank: u32) -> Option<u32> {
        match &self.members {
            Some(members) => members.get(usize::try_from(rank).ok()?).copied(),
            None => (rank < self.size).then_some(rank),
        }
    }
}
