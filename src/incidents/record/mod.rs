//! The stored form of an incident: the output of `explain --json`, and the evidence.

mod conclusion;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use self::conclusion::{filled, is_better, merge};
use super::key::Key;
use super::uid::Uid;
use crate::model::event::Event;
use crate::model::history::Span;
use crate::model::incident::{Incident, Severity};
use crate::model::process::Variable;
use crate::model::remote_incident::RemoteIncident;
use crate::model::scene::Scene;
use crate::model::units::{Millis, Mono};

/// The version of the file format. New fields do not change it; only changes that older readers would misread do.
pub(super) const SCHEMA: u32 = 1;
/// Maximum size of the log excerpt in bytes.
const MAX_EXCERPT: usize = 256 << 10;
const MAX_EVENTS: usize = 64;
const MAX_TRACKS: usize = 64;
/// Maximum number of values of a track; the latest are retained.
const MAX_VALUES: usize = 720;
const MAX_VARIABLES: usize = 256;
/// Maximum time between an incident and the exit that it caused, as in the live diagnosis.
const MAX_EXIT_DELAY: Millis = Millis(30_000);

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    pub schema: u32,
    #[serde(flatten)]
    pub incident: Incident,
    pub observed: Key,
    /// The agent of the first event behind this conclusion. `None` for `gputop run`, which watches the command itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concluded_by: Option<String>,
    /// The command line of the process, without secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub excerpt: Option<Excerpt>,
    pub evidence: Evidence,
    /// The state of the machine at the time; only observers of the process have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scene: Option<Box<Scene>>,
    /// Measured values before and after it, one track for each series.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<Track>,
    /// Environment variables of the process whose values may be stored by the privacy rule.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub environment: Vec<Variable>,
    /// Versions of `gputop`, `kernel`, `driver`, `cuda` and `torch`, as far as known.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub versions: BTreeMap<String, String>,
    /// Fields of later versions, which are preserved when this version revises the file.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// The log around the error, without secrets.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Excerpt {
    pub text: String,
    /// True if the beginning was left out.
    pub is_cut: bool,
}

/// Events and measurements.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Evidence {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<Event>,
    /// Measurements of the diagnosis by name.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub measured: Map<String, Value>,
}

/// A series in equal time steps.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Track {
    /// The text of a [`SeriesKey`](crate::model::history::SeriesKey).
    pub series: String,
    /// Start of the first step.
    pub start: Mono,
    pub step: Millis,
    /// Minimum and maximum of each step; `null` if there was no value.
    pub values: Vec<Option<Span>>,
}

/// The reason why a record cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnreadableRecord {
    /// The version of the file.
    #[error("it was written by a newer gputop (schema {0})")]
    Newer(u64),
    #[error("it is damaged ({0})")]
    Damaged(#[from] serde_json::Error),
}

impl Record {
    /// Parses a record. Checks the version first, because the rest of a newer record may have any format.
    pub(super) fn read(value: Value) -> Result<Self, UnreadableRecord> {
        let schema = value.get("schema").and_then(Value::as_u64);
        if let Some(schema) = schema.filter(|schema| *schema > u64::from(SCHEMA)) {
            return Err(UnreadableRecord::Newer(schema));
        }
        Ok(serde_json::from_value(value)?)
    }

    /// Parses an incident of another host's store; `None` if this version cannot read it.
    #[must_use]
    pub fn from_remote(remote: &RemoteIncident) -> Option<Self> {
        let mut record = Self::read(remote.record.clone()).ok()?;
        record.incident.uid = None;
        Some(record)
    }

    /// Returns the parts that belong in a recording: not data that was read on request, and not the evidence, which the
    /// recording contains as events.
    #[must_use]
    pub fn recorded(self) -> Self {
        Self {
            environment: Vec::new(),
            evidence: Evidence::default(),
            history: Vec::new(),
            scene: None,
            more: Map::new(),
            ..self
        }
    }

    /// Creates a record with empty sections.
    #[must_use]
    pub fn new(incident: Incident, observed: Key) -> Self {
        Self {
            schema: SCHEMA,
            incident,
            observed,
            ..Self::default()
        }
    }

    #[must_use]
    pub fn uid(&self) -> Option<Uid> {
        self.incident.uid.as_ref()?.parse().ok()
    }

    /// Returns true if both records describe the same incident. They do if they are about one process within a few
    /// seconds, if both are about its exit, or if one is about the cause of the exit that the other describes.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let is_exit = |record: &Self| record.incident.severity == Severity::Fatal;
        let are_both_exits = || self.observed.process.is_some() && is_exit(self) && is_exit(other);
        let has_same_subject = self.observed.is_about_same(&other.observed);
        (has_same_subject || self.observed.is_part(&other.observed))
            && (self.observed.is_near(&other.observed)
                // A command may outlive one of its processes.
                || (has_same_subject && are_both_exits())
                || self.is_exit_after(other)
                || other.is_exit_after(self))
    }

    /// Returns true if `self` was concluded when the process exited, from log text of unknown time, and `before` may be
    /// the error in that text. Interpreters may take long to exit.
    fn is_exit_after(&self, before: &Self) -> bool {
        let exited = self.observed.first;
        self.evidence.events.is_empty()
            && before.concluded_by.is_some()
            && self.observed.process.is_some()
            && self.incident.severity == Severity::Fatal
            && self.incident.family == before.incident.family
            && before.observed.first <= exited
            && exited.since(before.observed.first) <= MAX_EXIT_DELAY
    }

    /// Merges both records: the better explanation, the higher severity, and all data of either. If the explanations are
    /// equally good, this record's is used. Its name does not change.
    #[must_use]
    pub fn revised_by(self, other: Self) -> Self {
        let is_better = is_better(&other, &self);
        let (first, then) = if other.observed.first < self.observed.first {
            (other.observed, &self.observed)
        } else {
            (self.observed, &other.observed)
        };
        let part = [&first, then].into_iter().find(|key| key.run.is_some());
        let (process, run) = part.map_or((first.process, None), |part| (part.process, part.run));
        let observed = Key {
            process,
            run,
            gpu: first.gpu.clone().or_else(|| then.gpu.clone()),
            ..first
        };
        let mut incident = merge(self.incident, other.incident, is_better);
        if let Some(part) = observed.process.filter(|_| run.is_some()) {
            incident.fields.pid = Some(part.pid);
        }
        Self {
            schema: SCHEMA,
            incident,
            observed,
            concluded_by: match is_better {
                true => other.concluded_by,
                false => self.concluded_by,
            },
            command: self.command.or(other.command),
            excerpt: longer(self.excerpt, other.excerpt),
            evidence: Evidence {
                events: events(self.evidence.events, other.evidence.events),
                measured: filled(other.evidence.measured, self.evidence.measured),
            },
            scene: match (self.scene, other.scene) {
                (Some(ours), Some(theirs)) => Some(Box::new(ours.filled(*theirs))),
                (ours, theirs) => ours.or(theirs),
            },
            history: tracks(self.history, other.history),
            environment: variables(self.environment, other.environment),
            versions: other.versions.into_iter().chain(self.versions).collect(),
            more: filled(self.more, other.more),
        }
    }

    /// Truncates all sections to their limits.
    pub(super) fn bounded(mut self) -> Self {
        if let Some(excerpt) = &mut self.excerpt {
            excerpt.cut();
        }
        let events = &mut self.evidence.events;
        events.drain(..events.len().saturating_sub(MAX_EVENTS));
        if let Some(scene) = &mut self.scene {
            scene.cut();
        }
        self.history.truncate(MAX_TRACKS);
        self.history.iter_mut().for_each(Track::cut);
        self.environment.truncate(MAX_VARIABLES);
        self
    }
}

impl Excerpt {
    /// Removes the beginning, because the error is at the end.
    fn cut(&mut self) {
        let surplus = self.text.len().saturating_sub(MAX_EXCERPT);
        if surplus > 0 {
            let rest = (surplus..self.text.len()).find(|at| self.text.is_char_boundary(*at));
            let from = rest.unwrap_or(self.text.len());
            // Cut at a line break if there is one.
            let line = self.text[from..]
                .find('\n')
                .map_or(from, |at| from + at + 1);
            self.text.drain(..line);
            self.is_cut = true;
        }
    }
}

impl Track {
    fn cut(&mut self) {
        let surplus = self.values.len().saturating_sub(MAX_VALUES);
        self.values.drain(..surplus);
        let passed = self.step.0.saturating_mul(surplus as u64);
        self.start = Mono(self.start.0.saturating_add(passed));
    }

    fn known(&self) -> usize {
        self.values.iter().flatten().count()
    }
}

fn longer(a: Option<Excerpt>, b: Option<Excerpt>) -> Option<Excerpt> {
    match (a, b) {
        (Some(a), Some(b)) if b.text.len() > a.text.len() => Some(b),
        (a, b) => a.or(b),
    }
}

fn events(mut a: Vec<Event>, b: Vec<Event>) -> Vec<Event> {
    let same = |x: &Event, y: &Event| x.agent == y.agent && x.seq == y.seq;
    for event in b {
        if !a.iter().any(|known| same(known, &event)) {
            a.push(event);
        }
    }
    a.sort_by_key(|event| event.time);
    a
}

fn tracks(mut a: Vec<Track>, b: Vec<Track>) -> Vec<Track> {
    for track in b {
        match a.iter_mut().find(|known| known.series == track.series) {
            Some(known) if track.known() > known.known() => *known = track,
            Some(_) => {}
            None => a.push(track),
        }
    }
    a
}

fn variables(mut a: Vec<Variable>, b: Vec<Variable>) -> Vec<Variable> {
    for variable in b {
        if a.iter().all(|known| known.name != variable.name) {
            a.push(variable);
        }
    }
    a
}

#[cfg(test)]
mod tests;
