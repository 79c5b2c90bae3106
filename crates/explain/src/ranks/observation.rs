//! One rank at one look: its reading and the state of its process.

use std::sync::Arc;

use gputop_model::event::Exit;
use gputop_model::frame::Frame;
use gputop_model::pool_location::listed;
use gputop_model::process::{Process, ProcessKey, RunState};
use gputop_model::process_group::RankReading;
use gputop_model::reading::{Missing, Reading, Reason};
use gputop_model::units::Mono;

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

impl RankObservation {
    /// Returns all processes of a frame that are or may be ranks. `exits` are the processes that exited lately.
    pub fn of_frame(
        host: &str,
        frame: &Frame,
        exits: impl Iterator<Item = (ProcessKey, RankExit)>,
    ) -> Vec<Self> {
        let host: Arc<str> = host.into();
        let observe = |reading: RankReading, status| Self {
            host: Arc::clone(&host),
            gpu: gpu_of(frame, reading.process),
            reading,
            status,
        };
        let is_read = |key: ProcessKey| frame.ranks.iter().any(|reading| reading.process == key);
        let read = frame.ranks.iter().map(|reading| {
            let process = frame.process(reading.process);
            let rank = reading.rank.or_else(|| process?.rank.get());
            observe(RankReading { rank, ..reading.clone() }, status(process))
        });
        let processes = || frame.processes.iter().flat_map(|processes| &*processes.list);
        // A process with a rank of its own may belong to another job, or be the only one of its job.
        let is_sibling = |process: &Process| {
            let launcher = process.parent.as_ref().filter(|parent| parent.pid.0 > 1);
            let mut read = processes().filter(|other| is_read(other.key));
            launcher.is_some() && read.any(|read| read.parent.as_ref() == launcher)
        };
        let unread = processes().filter(|process| !is_read(process.key));
        let unread = unread.filter_map(|process| {
            let rank = process.rank.get().filter(|_| is_sibling(process))?;
            let reading = without_groups(process.key, Some(rank), frame.mono);
            Some(observe(reading, ProcessStatus::Starting))
        });
        let exited = exits.map(|(key, exit)| {
            observe(without_groups(key, None, frame.mono), ProcessStatus::Exited(exit))
        });
        read.chain(unread).chain(exited).collect()
    }
}

impl RankExit {
    /// Returns how a process exited, without the incident that explains it.
    pub fn of(exit: &Exit) -> Self {
        let description = match (exit.signal.get(), exit.status.get()) {
            (Some(signal), _) => format!("was killed by signal {signal}"),
            (None, Some(status)) => format!("exited with {status}"),
            (None, None) => "exited".to_owned(),
        };
        Self { description: Some(description.into()), incident: None }
    }
}

fn without_groups(process: ProcessKey, rank: Option<u32>, at: Mono) -> RankReading {
    let why = Missing::new(Reason::NotRead, "its process groups are not read yet");
    RankReading { process, at, rank, groups: Reading::Missing(why), ..RankReading::default() }
}

fn status(process: Option<&Process>) -> ProcessStatus {
    match process.map(|process| process.state) {
        Some(RunState::Stopped) => ProcessStatus::Stopped,
        _ => ProcessStatus::Running,
    }
}

fn gpu_of(frame: &Frame, process: ProcessKey) -> Option<u32> {
    let mut gpus = frame.gpus.iter();
    gpus.find(|gpu| listed(gpu, process).is_some()).map(|gpu| gpu.index)
}
