//! Ranks of a distributed job that have waited for each other for at least a minute, as an incident.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use gputop_model::event::{Event, Observation};
use gputop_model::frame::Frame;
use gputop_model::incident::Quote;
use gputop_model::phases::Phase;
use gputop_model::process::ProcessKey;
use gputop_model::stack::PythonStack;
use gputop_model::text::visible;
use gputop_model::units::{Millis, Mono};

use super::windows::SAME_FAILURE_WINDOW;
use crate::catalogue::Catalogue;
use crate::fields::FieldMap;
use crate::log::{LogFindings, Sighting, TextSource};
use crate::ranks::{
    Cause, JobKey, JobReport, JoinedJobs, RankExit, RankList, RankObservation, RankRow, Verdict,
};

pub const CARD: &str = "rank-stall";

/// Time that a rank must have waited.
const MIN_WAIT: Millis = Millis(60_000);
/// Minimum time between two looks at the ranks.
const PERIOD: Millis = Millis(900);
/// Maximum number of exits that are kept to explain why a rank is missing, and their maximum age.
const MAX_EXITS: usize = 1_024;
const MAX_EXIT_AGE: Millis = Millis(30 * 60_000);
/// Maximum number of stacks that are quoted, and of characters of one.
const MAX_STACKS: usize = 6;
const MAX_STACK_CHARS: usize = 160;

/// Looks at the ranks of each frame for stalls.
#[derive(Debug, Default)]
pub struct StallWatch {
    /// The ranks of this host, and of the hosts that are watched with it.
    jobs: JoinedJobs,
    looked_at: Mono,
    had_ranks: bool,
    exits: VecDeque<(Mono, ProcessKey, RankExit)>,
    /// Wait from which on each open stall is reported again. It doubles with each report.
    reported: BTreeMap<JobKey, Millis>,
    /// Recent stalls of ranks of this host by a rank of another host, newest last.
    by_other_hosts: Vec<(Mono, Stall)>,
}

/// A stall at one look.
#[derive(Debug, Clone)]
pub struct Stall {
    /// Process of the rank that holds up the others, or of a rank that waits if none can be named. For a failure that a
    /// stall of another host explains, the process that failed.
    pub process: ProcessKey,
    pub since: Mono,
    pub stack: Option<Arc<PythonStack>>,
    /// All ranks of the job on this host.
    pub ranks: Vec<ProcessKey>,
    /// True if the incident is new or much longer than it was at the last report.
    pub is_news: bool,
    /// True if the rank named by the stall is on this host, so that the stall is an incident of this host.
    pub is_here: bool,
    rank: Option<u32>,
    kind: StallKind,
    sentence: String,
    evidence: String,
    quote: String,
}

/// What the cards tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StallKind {
    Loader,
    Saves,
    Busy,
    /// What the rank does is not known.
    Behind,
    Diverged,
    InsideNccl,
    Exited,
    NotCompleted,
    Stopped,
}

impl StallKind {
    /// Returns `None` if the verdict does not say what the culprits do.
    fn of(verdict: &Verdict) -> Option<Self> {
        let place = verdict.place.as_ref();
        let activity = place.and_then(|place| place.activity).map(|known| known.phase);
        Some(match (&verdict.cause, activity) {
            (Cause::Behind | Cause::PointToPoint, Some(phase)) if phase.is_loader() => Self::Loader,
            (Cause::Behind | Cause::PointToPoint, Some(Phase::Checkpoint)) => Self::Saves,
            (Cause::Behind | Cause::PointToPoint, _) if place.is_some() => Self::Busy,
            (Cause::Behind | Cause::PointToPoint, _) => Self::Behind,
            (
                Cause::WaitsAlone { .. }
                | Cause::OtherOperation { .. }
                | Cause::OtherOrder { .. }
                | Cause::Deadlock { .. },
                _,
            ) => Self::Diverged,
            (Cause::InsideNccl, _) => Self::InsideNccl,
            (Cause::NoProcess(_), _) => Self::Exited,
            (Cause::NotCompleted, _) => Self::NotCompleted,
            (Cause::Stopped, _) => Self::Stopped,
            _ => return None,
        })
    }

    /// Returns the name by which cards know it (`evidence::ranks`).
    fn name(self) -> &'static str {
        match self {
            Self::Loader => "loader",
            Self::Saves => "saves",
            Self::Busy => "busy",
            Self::Behind => "behind",
            Self::Diverged => "diverged",
            Self::InsideNccl => "inside-nccl",
            Self::Exited => "exited",
            Self::NotCompleted => "not-completed",
            Self::Stopped => "stopped",
        }
    }
}

impl StallWatch {
    /// Watches the ranks of this host together with those of other hosts.
    pub fn new(jobs: JoinedJobs) -> Self {
        Self { jobs, ..Self::default() }
    }

    /// Forgets the ranks of a host.
    pub fn forget(&mut self, host: &str) {
        self.jobs.forget(host);
        *self = Self::new(self.jobs.clone());
    }

    /// Remembers how a process exited.
    pub fn event(&mut self, event: &Event) {
        if let (Some(key), Observation::Exit(exit)) = (event.process, &event.observation) {
            if self.exits.len() >= MAX_EXITS {
                self.exits.pop_front();
            }
            self.exits.push_back((event.mono, key, RankExit::of(exit)));
        }
    }

    /// Returns the stall that a rank of another host has caused for a process shortly before `at`, about that process.
    pub fn by_other_host(&self, process: ProcessKey, at: Mono) -> Option<Stall> {
        self.by_other_hosts.iter().rev().find_map(|(then, stall)| {
            let is_recent = at.since(*then) <= SAME_FAILURE_WINDOW;
            let is_match = is_recent && stall.ranks.contains(&process);
            is_match.then(|| Stall { process, ..stall.clone() })
        })
    }

    /// Returns the jobs that a rank of this host stalls, at most once a second.
    pub fn frame(&mut self, host: &str, frame: &Frame) -> Vec<Stall> {
        let has_ranks = !frame.ranks.is_empty();
        if !(has_ranks || self.had_ranks) || frame.mono.since(self.looked_at) < PERIOD {
            return Vec::new();
        }
        self.looked_at = frame.mono;
        self.had_ranks = has_ranks;
        let is_recent =
            |(at, ..): &&(Mono, ProcessKey, RankExit)| frame.mono.since(*at) < MAX_EXIT_AGE;
        let recent = self.exits.iter().filter(is_recent);
        let recent = recent.map(|(_, key, exit)| (*key, exit.clone()));
        let ranks = RankObservation::of_frame(host, frame, recent);
        let reports = self.jobs.push(host, frame.mono, ranks);
        let mut open = BTreeMap::new();
        let mut stalls = Vec::new();
        self.by_other_hosts.retain(|(at, _)| frame.mono.since(*at) <= SAME_FAILURE_WINDOW);
        for report in &reports {
            let long = report.verdicts.iter().filter(|verdict| verdict.waited >= MIN_WAIT);
            let known = long.filter_map(|verdict| Some((verdict, StallKind::of(verdict)?)));
            let Some(mut stall) = known
                .take(1)
                .find_map(|(verdict, kind)| Stall::new(host, frame, report, verdict, kind))
            else {
                continue;
            };
            if !stall.is_here {
                self.by_other_hosts.push((frame.mono, stall));
                continue;
            }
            let waited = frame.mono.since(stall.since);
            let due = self.reported.get(&report.job).copied().unwrap_or_default();
            stall.is_news = waited >= due;
            let next = if stall.is_news { Millis(waited.0 * 2) } else { due };
            open.insert(report.job.clone(), next);
            stalls.push(stall);
        }
        self.reported = open;
        stalls
    }
}

impl Stall {
    /// Returns `None` if the rank is unknown, or on this host and no longer read.
    fn new(
        host: &str,
        frame: &Frame,
        report: &JobReport,
        verdict: &Verdict,
        kind: StallKind,
    ) -> Option<Self> {
        let named = verdict.culprits.first().or(verdict.waiting.first())?;
        let here = report.ranks.iter().filter(|row| *row.host == *host);
        let row = report.ranks.iter().find(|row| row.rank == *named)?;
        let is_here = *row.host == *host;
        let mut readings = frame.ranks.iter();
        let stack = match is_here {
            true => readings.find(|read| read.process == row.process)?.stack.clone(),
            false => None,
        };
        let process = |row: &RankRow| row.process;
        let text = verdict.to_string();
        Some(Self {
            process: row.process,
            since: if *verdict.host == *host {
                verdict.since
            } else {
                // The other host has another clock.
                Mono(frame.mono.0.saturating_sub(verdict.waited.0))
            },
            stack,
            ranks: here.map(process).collect(),
            is_news: false,
            is_here,
            rank: (is_here && verdict.culprits.len() == 1).then_some(*named),
            kind,
            evidence: format!(
                "{} {} in {} #{} of group {}",
                RankList(&verdict.waiting),
                if verdict.waiting.len() == 1 { "waits" } else { "wait" },
                verdict.work.operation_name(),
                verdict.work.seq,
                verdict.group
            ),
            quote: quote(report).unwrap_or_else(|| text.clone()),
            sentence: text,
        })
    }

    /// Returns what holds up the ranks: `rank 3 holds up 7 ranks for 60 s: it waits for its data loader (train.py:37)`.
    pub fn sentence(&self) -> &str {
        &self.sentence
    }

    /// Returns the stall as the findings of a log.
    pub fn findings(&self, catalogue: &Catalogue) -> LogFindings {
        let mut found = FieldMap::new();
        found.insert("stall_kind".into(), self.kind.name().into());
        found.insert("stall_sentence".into(), capitalized(&self.sentence).into());
        found.insert("stall_evidence".into(), self.evidence.as_str().into());
        found.insert("pid".into(), self.process.pid.0.into());
        if let Some(rank) = self.rank {
            found.insert("rank".into(), rank.into());
        }
        let card = catalogue.cards.iter().position(|card| card.id == CARD);
        // The names of its files show that it is a Python program.
        let frames = self.stack.iter().filter_map(|stack| stack.main()).flat_map(|t| &t.frames);
        let context: String = frames.map(|frame| format!("{frame}\n")).collect();
        let sighting = card.map(|card| Sighting {
            card,
            count: 1,
            found,
            rank: self.rank,
            first_line: 1,
            last_line: 1,
            quote: Quote { text: self.quote.clone(), labels: Vec::new() },
            own_context: context.len(),
            context: context.into(),
            ..Sighting::default()
        });
        LogFindings {
            source: TextSource::Ranks,
            sightings: sighting.into_iter().collect(),
            ..LogFindings::default()
        }
    }
}

/// Returns where the ranks are: `3 ranks wait in all_reduce < step; rank 3 is in next_batch < train`. `None` if no stack
/// was read.
fn quote(report: &JobReport) -> Option<String> {
    let stacks = report.stacks.iter().take(MAX_STACKS);
    let stacks = stacks.map(|stack| visible(stack.to_string().as_bytes(), MAX_STACK_CHARS));
    let text = stacks.collect::<Vec<_>>().join("; ");
    (!text.is_empty()).then_some(text)
}

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests;
