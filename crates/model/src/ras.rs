//! What NCCL itself says about the ranks of a job, on all its hosts.
//!
//! NCCL 2.28.7 and later answer questions on a local port, its RAS subsystem (reliability, availability, serviceability).
//! It counts how many collectives each rank has launched, not how many have completed.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::units::Millis;

/// The difference between two answers of NCCL.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RasReport {
    /// Version of NCCL: `2.28.9`.
    pub nccl_version: String,
    /// Number of processes in the answers, and of the hosts on which they are.
    pub processes: u32,
    pub hosts: u32,
    /// Number of communicators of the job, and of those whose counts moved between the two answers.
    pub communicators: u32,
    pub moving: u32,
    /// Time between the two answers.
    #[serde(rename = "apart_ms")]
    pub apart: Millis,
    /// Differences that were in both answers.
    pub differences: Vec<RasDifference>,
}

/// Ranks of a communicator that differ from its other ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RasDifference {
    /// Number of ranks of the communicator.
    pub size: u32,
    /// At least one, in ascending order.
    pub ranks: Vec<RasRank>,
    pub kind: RasDifferenceKind,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RasRank {
    /// Rank in the communicator.
    pub rank: u32,
    /// IP address of the host.
    pub host: String,
    /// PID in the namespace of the process.
    pub pid: u32,
}

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RasDifferenceKind {
    /// The ranks have launched a different number of these collectives than other ranks. `usual` is the number that more
    /// than half of the ranks have launched, if there is one.
    Launched {
        operation: String,
        count: u64,
        usual: Option<u64>,
    },
    /// The ranks report this error code of NCCL.
    Failed(i32),
    Unresponsive,
    /// NCCL has not heard of the ranks for a minute.
    ConsideredDead,
}
