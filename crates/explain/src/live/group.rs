//! Groups processes that fail together: all ranks of a job, or a single process that belongs to no job.

use gputop_model::event::Event;
use gputop_model::process::ProcessKey;
use gputop_model::units::{GpuUuid, Pid};

use super::process_info::ProcessInfo;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Group {
    /// Job ID of the batch system.
    Job(String),
    /// PID of the ranks' launcher.
    Launcher(Pid),
    Process(ProcessKey),
    /// GPU with a failure that is not attributed to a process.
    Gpu(GpuUuid),
    Host,
}

impl Group {
    /// Returns the group of the event. `process` is the event's process, if known.
    pub fn of(event: &Event, process: Option<&ProcessInfo>) -> Self {
        let is_rank = process.is_some_and(|known| known.rank.is_some());
        if let Some(process) = process.filter(|_| is_rank) {
            if let Some(job) = &process.job {
                return Self::Job(job.clone());
            }
            if let Some(parent) = process.parent.filter(|parent| parent.0 > 1) {
                return Self::Launcher(parent);
            }
        }
        match (event.process, &event.gpu) {
            (Some(key), _) => Self::Process(key),
            (None, Some(gpu)) => Self::Gpu(gpu.clone()),
            (None, None) => Self::Host,
        }
    }
}
