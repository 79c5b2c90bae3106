//! What is kept of a process, also after its end: who it was, as far as an incident asks.

use crate::model::process::{Process, ProcessKey};
use crate::model::reading::Reading;
use crate::model::units::Pid;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessInfo {
    pub command: Option<String>,
    pub rank: Option<u32>,
    /// The batch system's id.
    pub job: Option<String>,
    /// Who started it.
    pub parent: Option<Pid>,
    /// The `gputop run` that it is a part of.
    pub run: Option<ProcessKey>,
}

impl ProcessInfo {
    pub fn of(process: &Process) -> Self {
        Self {
            command: process.command.value().cloned(),
            rank: process.rank.get(),
            job: process.job.value().cloned(),
            parent: process.parent.as_ref().map(|parent| parent.pid),
            run: process.run,
        }
    }

    /// Whether nothing is to be learnt from how the process is now.
    pub fn is_still(&self, process: &Process) -> bool {
        let is_text = |known: &Option<String>, now: &Reading<String>| known.as_ref() == now.value();
        is_text(&self.command, &process.command)
            && self.rank == process.rank.get()
            && is_text(&self.job, &process.job)
            && self.run == process.run
    }
}
