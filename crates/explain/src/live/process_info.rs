//! Process properties needed for incidents, retained after the process exits.

use gputop_model::process::{Process, ProcessKey};
use gputop_model::reading::Reading;
use gputop_model::units::Pid;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessInfo {
    pub command: Option<String>,
    pub rank: Option<u32>,
    /// Job ID of the batch system.
    pub job: Option<String>,
    pub parent: Option<Pid>,
    /// Command started by `gputop run` to which the process belongs.
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

    /// Returns the approximate memory in bytes.
    pub fn bytes(&self) -> usize {
        let texts = self.command.iter().chain(&self.job);
        size_of::<Self>() + texts.map(String::len).sum::<usize>()
    }

    pub fn is_unchanged(&self, process: &Process) -> bool {
        let is_same = |known: &Option<String>, now: &Reading<String>| known.as_ref() == now.value();
        is_same(&self.command, &process.command)
            && self.rank == process.rank.get()
            && is_same(&self.job, &process.job)
            && self.run == process.run
    }
}
