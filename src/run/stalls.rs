//! Ranks that stall while the command runs.
//!
//! A thread reads the NCCL process groups of the command's programs, and reports each stall of a minute once. A wrapper
//! of a single rank does not use it, because it sees none of the others.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use gputop_explain::live::StallWatch;
use gputop_model::frame::{Frame, ProcessList};
use gputop_model::{Mono, Pid, PidNamespace, ProcessKey};
use gputop_peek::clock::now_mono;

use crate::collect::candidates::{Candidate, CandidateFinder};
use crate::collect::process::ProcessTable;
use crate::collect::process::container::Files;
use crate::collect::ranks::RankReader;

/// Time between two looks at the ranks.
const PERIOD: Duration = Duration::from_secs(1);

/// Paths and output for the thread that reports stalls.
pub struct StallReporter {
    pub proc_root: PathBuf,
    pub container_files: Files,
    /// Prints one line. Called on another thread, while the command runs.
    pub report: fn(&str),
}

/// Programs that have loaded CUDA since the search began.
pub(super) struct NewPrograms {
    reporter: StallReporter,
    finder: CandidateFinder,
    found: Receiver<Candidate>,
}

impl StallReporter {
    /// Begins the search for programs. Call it before the command starts, because only new processes are found, and
    /// after signals are blocked, because threads inherit that.
    pub(super) fn search(self) -> io::Result<NewPrograms> {
        let (sender, found) = mpsc::channel();
        let send = move |candidate| {
            let _ = sender.send(candidate);
        };
        let finder = CandidateFinder::start(&self.proc_root, self.container_files.clone(), send)?;
        Ok(NewPrograms { reporter: self, finder, found })
    }
}

impl NewPrograms {
    /// Reports stalls of the command's ranks until the returned handle is dropped.
    pub(super) fn report_stalls(self, command: ProcessKey) -> io::Result<CandidateFinder> {
        let Self { reporter, finder, found } = self;
        let run = move || {
            let mut ranks = CommandRanks::new(&reporter, command);
            loop {
                let candidate = match ranks.programs.is_empty() {
                    true => found.recv().map_err(|_| RecvTimeoutError::Disconnected),
                    false => found.recv_timeout(PERIOD),
                };
                match candidate {
                    Ok(candidate) => ranks.add(&candidate),
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {
                        if let Some(line) = ranks.look() {
                            (reporter.report)(&line);
                        }
                    }
                }
            }
        };
        std::thread::Builder::new().name("stalls".into()).spawn(run)?;
        Ok(finder)
    }
}

/// Programs of the command that have loaded CUDA.
struct CommandRanks {
    command: ProcessKey,
    programs: BTreeSet<ProcessKey>,
    table: ProcessTable,
    reader: RankReader,
    lines: StallLines,
}

impl CommandRanks {
    fn new(reporter: &StallReporter, command: ProcessKey) -> Self {
        let StallReporter { proc_root, container_files, .. } = reporter;
        Self {
            command,
            programs: BTreeSet::new(),
            // The namespace matters only for the PIDs of the driver.
            table: ProcessTable::new(proc_root, container_files.clone(), PidNamespace::Host),
            reader: RankReader::new(proc_root),
            lines: StallLines::default(),
        }
    }

    fn add(&mut self, candidate: &Candidate) {
        let key = candidate.process.key;
        if key == self.command || candidate.ancestors.contains(&self.command) {
            self.programs.insert(key);
        }
    }

    fn look(&mut self) -> Option<String> {
        let pids: Vec<Pid> = self.programs.iter().map(|key| key.pid).collect();
        let mono = now_mono();
        let list = self.table.read(&pids, mono).list;
        self.programs.retain(|key| list.iter().any(|process| process.key == *key));
        self.reader.watch(&self.programs.iter().copied().collect::<Vec<_>>());
        self.lines.line(&Frame {
            mono,
            processes: Some(ProcessList { at: mono, list: Arc::new(list) }),
            ranks: Arc::new(self.reader.read()),
            ..Frame::default()
        })
    }
}

/// Lines about stalls.
#[derive(Default)]
struct StallLines {
    stalls: StallWatch,
    /// Time of the newest line.
    printed_at: Mono,
}

impl StallLines {
    /// Returns the line about a stall that began after the newest line.
    fn line(&mut self, frame: &Frame) -> Option<String> {
        let stalls = self.stalls.frame("", frame);
        let new = stalls.iter().find(|stall| stall.since > self.printed_at)?;
        self.printed_at = frame.mono;
        Some(format!("{}. `gputop ranks` lists all ranks.", new.sentence()))
    }
}

#[cfg(test)]
mod tests {
    use gputop_model::process_group::{PendingWork, ProcessGroup, RankReading, Work};

    use super::*;

    /// Returns the frame of a job of two ranks. Since `began`, rank 0 waits for rank 1; before, both call a collective
    /// each second.
    fn frame(second: u64, began: u64) -> Frame {
        let work = |seq| Work { seq, operation: "ALLREDUCE".into(), ..Work::default() };
        let at = Mono(second * 1_000);
        let rank = |rank: u32| {
            let waits = rank == 0 && second >= began;
            let completed = second.min(began);
            let called = completed + u64::from(waits);
            let pending = PendingWork { work: work(called), called_ns: began * 1_000_000_000 };
            let group = ProcessGroup {
                name: "0".into(),
                rank,
                size: 2,
                called: called.into(),
                called_p2p: 0.into(),
                enqueued: Some(work(called)),
                completed: Some(work(completed)),
                pending: if waits { vec![pending] } else { Vec::new() }.into(),
                ..ProcessGroup::default()
            };
            RankReading {
                process: ProcessKey::new(400 + rank, 5_000),
                at,
                store: Some("127.0.0.1:29500".into()),
                rank: Some(rank),
                world_size: Some(2),
                groups: vec![group].into(),
                stack: None,
            }
        };
        Frame { mono: at, ranks: Arc::new(vec![rank(0), rank(1)]), ..Frame::default() }
    }

    #[test]
    fn each_stall_of_a_minute_is_one_line() {
        let mut lines = StallLines::default();
        let first: Vec<_> = (100..500).filter_map(|s| lines.line(&frame(s, 110))).collect();
        let text = "rank 1 holds up rank 0 for 60 s: it has not come to ALLREDUCE #111 in group 0. `gputop ranks` lists all ranks.";
        assert_eq!(first, [text]);
        // The job goes on, and stalls again.
        let second: Vec<_> = (500..700).filter_map(|s| lines.line(&frame(s, 510))).collect();
        assert_eq!(second, [text.replace("#111", "#511")]);
    }
}
