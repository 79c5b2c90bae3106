//! Which processes fail together: the ranks of one job, else each by itself.

use crate::model::event::Event;
use crate::model::process::{Process, ProcessKey};
use crate::model::units::{GpuUuid, Pid};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Group {
    /// The batch system's id.
    Job(String),
    /// Ranks of the same launcher.
    Launcher(Pid),
    Process(ProcessKey),
    /// Something about a GPU that names no process.
    Gpu(GpuUuid),
    Host,
}

impl Group {
    /// Of `event`; `process` are the facts of its process, as far as they are known.
    pub fn of(event: &Event, process: Option<&Process>) -> Self {
        let is_rank = process.is_some_and(|p| p.rank.value().is_some());
        if let Some(process) = process.filter(|_| is_rank) {
            if let Some(job) = process.job.value() {
                return Self::Job(job.clone());
            }
            if let Some(parent) = process.parent.as_ref().filter(|p| p.pid.0 > 1) {
                return Self::Launcher(parent.pid);
            }
        }
        match (event.process, &event.gpu) {
            (Some(key), _) => Self::Process(key),
            (None, Some(gpu)) => Self::Gpu(gpu.clone()),
            (None, None) => Self::Host,
        }
    }
}
