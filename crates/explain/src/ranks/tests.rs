//! Tests with readings of small jobs. Each test looks twice, two seconds apart, unless it says otherwise.

mod frozen;
mod generated;
mod healthy;
mod reports;

use gputop_model::process::ProcessKey;
use gputop_model::process_group::{PendingWork, ProcessGroup, RankReading, RecordedCall, Work};
use gputop_model::reading::{Reading, Reason};
use gputop_model::stack::{PythonStack, StackFrame, StackThread};
use gputop_model::units::Mono;

use super::*;

/// Time of the first look by the clock of each host.
const START: u64 = 10_000_000;
const SIZE: u64 = 4_194_304;

/// A rank at the first look.
#[derive(Debug, Clone)]
struct Rank(RankObservation);

/// Returns a rank of a job on one host that has not created any group.
fn rank(number: u32) -> Rank {
    let mut rank = Rank(RankObservation { host: "node1".into(), ..RankObservation::default() });
    rank.0.reading.rank = Some(number);
    rank.0.reading.process = ProcessKey::new(1000 + number, 100);
    rank.0.reading.store = Some("10.0.0.1:29500".into());
    rank.0.reading.at = Mono(START);
    rank.0.reading.groups = Vec::new().into();
    rank
}

fn work(seq: u64, operation: &str, elements: u64) -> Work {
    let elements = Some((elements, elements));
    Work { seq, operation: operation.into(), elements, dtype: None }
}

impl Rank {
    /// Adds a group in which the rank has called and completed `called` collectives.
    fn group(mut self, name: &str, members: &[u32], called: u64) -> Self {
        let number = self.0.reading.rank.expect("a rank");
        let rank = members.iter().position(|member| *member == number).expect("a member");
        let done = (called > 0).then(|| work(called, "ALLREDUCE", SIZE));
        self.groups().push(ProcessGroup {
            name: name.into(),
            rank: rank.try_into().expect("small"),
            size: members.len().try_into().expect("small"),
            members: Some(members.into()),
            called: called.into(),
            called_p2p: 0.into(),
            enqueued: done.clone(),
            completed: done,
            pending: Vec::new().into(),
            ..ProcessGroup::default()
        });
        self
    }

    fn groups(&mut self) -> &mut Vec<ProcessGroup> {
        match &mut self.0.reading.groups {
            Reading::Value(groups) => groups,
            Reading::Missing(_) => panic!("no groups"),
        }
    }

    /// Adds a pending call to the newest group, made before the first look.
    fn pending(mut self, work: Work, seconds: f64) -> Self {
        let group = self.groups().last_mut().expect("a group");
        let is_p2p = ["SEND", "RECV", "COALESCED"].contains(&work.operation.as_str());
        match &mut group.called {
            Reading::Value(called) if !is_p2p => *called = work.seq.max(*called),
            _ => group.called_p2p = work.seq.into(),
        }
        group.enqueued = Some(work.clone());
        let called_ns = (START as f64 * 1e6 - seconds * 1e9) as u64;
        if let Reading::Value(works) = &mut group.pending {
            works.push(PendingWork { work, called_ns });
        }
        self
    }

    fn waits(self, seq: u64) -> Self {
        self.pending(work(seq, "ALLREDUCE", SIZE), 39.0)
    }

    /// Lets the rank call a collective from which NCCL does not return.
    fn inside(mut self) -> Self {
        let group = self.groups().last_mut().expect("a group");
        group.called = (group.called.get().expect("a number") + 1).into();
        self
    }

    /// Sets the main thread's stack, innermost frame first: `("step", "train.py", 88)`.
    fn stack(mut self, frames: &[(&str, &str, u32)]) -> Self {
        let frames = frames.iter().map(|(function, file, line)| StackFrame {
            function: (*function).into(),
            file: (*file).into(),
            line: *line,
        });
        let main = StackThread { is_main: true, frames: frames.collect(), ..Default::default() };
        let stack = PythonStack { at: Mono(START), threads: vec![main], ..Default::default() };
        self.0.reading.stack = Some(stack.into());
        self
    }

    fn status(mut self, status: ProcessStatus) -> Self {
        self.0.status = status;
        self
    }

    fn exited(self, description: &str, incident: Option<&str>) -> Self {
        self.status(ProcessStatus::Exited(RankExit {
            description: Some(description.into()),
            incident: incident.map(Into::into),
        }))
    }

    fn missing(mut self, reason: Reason) -> Self {
        self.0.reading.groups = Reading::Missing(reason.into());
        self
    }

    fn host(mut self, host: &str) -> Self {
        self.0.host = host.into();
        self
    }

    fn store(mut self, store: &str) -> Self {
        self.0.reading.store = Some(store.into());
        self
    }

    fn process(mut self, pid: u32) -> Self {
        self.0.reading.process = ProcessKey::new(pid, 100);
        self
    }

    /// Forgets what only the process's memory tells.
    fn unread(mut self) -> Self {
        self = self.missing(Reason::NotRead).status(ProcessStatus::Starting);
        (self.0.reading.rank, self.0.reading.store) = (None, None);
        self
    }

    /// Returns the rank as it looks `ms` later if nothing moves.
    fn later(&self, ms: u64) -> RankObservation {
        let mut observation = self.0.clone();
        observation.reading.at = Mono(START + ms);
        observation
    }
}

/// Looks at an unchanged job at these times in milliseconds, and returns the last reports.
fn look(ranks: &[Rank], times: &[u64]) -> Vec<JobReport> {
    let mut watch = JobWatch::default();
    let mut reports = Vec::new();
    for ms in times {
        let ranks: Vec<_> = ranks.iter().map(|rank| rank.later(*ms)).collect();
        reports = watch.observe(Mono(500 + ms), &ranks);
    }
    reports
}

fn sentences(reports: &[JobReport]) -> Vec<String> {
    reports.iter().flat_map(|report| &report.verdicts).map(ToString::to_string).collect()
}

/// Returns the sentences of a job at the second look.
fn say(ranks: &[Rank]) -> Vec<String> {
    sentences(&look(ranks, &[0, 2000]))
}

/// Returns ranks 0 to `n` - 1 after `make`.
fn ranks(n: u32, make: impl Fn(u32, Rank) -> Rank) -> Vec<Rank> {
    (0..n).map(|number| make(number, rank(number))).collect()
}

fn all(n: u32) -> Vec<u32> {
    (0..n).collect()
}

/// Numbers from a seed (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}
