//! What is known of one rank at one look.

use std::sync::Arc;

use gputop_model::process_group::RankReading;

/// One process of a job at one look.
#[derive(Debug, Clone, Default)]
pub struct RankObservation {
    /// Name of the host. Numbers of collectives are compared between hosts, times are not.
    pub host: Arc<str>,
    /// Newest reading. For an exited process, any reading with its process key.
    pub reading: RankReading,
    pub status: ProcessStatus,
    /// Index of the GPU on its host.
    pub gpu: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ProcessStatus {
    #[default]
    Running,
    /// The process exists, and its groups have not been read yet.
    Starting,
    /// Stopped by a signal or a debugger (state `T`).
    Stopped,
    Exited(RankExit),
}

/// How a rank exited. Nothing is known if the process was only found to be missing.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct RankExit {
    /// A phrase without a subject: `exited with 1`.
    pub description: Option<Box<str>>,
    /// Title of the incident that explains the exit: `OUT OF MEMORY`.
    pub incident: Option<Box<str>>,
}
