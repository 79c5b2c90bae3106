//! One incident as it is kept: what `explain --json` prints of it, and what it was concluded from.

mod conclusion;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use self::conclusion::{filled, is_better, one_of};
use super::key::Key;
use super::uid::Uid;
use crate::model::event::Event;
use crate::model::history::Span;
use crate::model::incident::{Incident, Severity};
use crate::model::process::Variable;
use crate::model::remote_incident::RemoteIncident;
use crate::model::scene::Scene;
use crate::model::units::{Millis, Mono};

/// The version of the file. Fields are only added; another number is for what an older reader would get wrong.
pub(super) const SCHEMA: u32 = 1;
/// Text of the log that is kept, in bytes.
const MAX_EXCERPT: usize = 256 << 10;
const MAX_EVENTS: usize = 64;
const MAX_TRACKS: usize = 64;
/// Values of a track that are kept, the newest.
const MAX_VALUES: usize = 720;
const MAX_VARIABLES: usize = 256;
/// As long as whoever watches a process takes its end for one of what happened before.
const ENDED_OF_IT: Millis = Millis(30_000);

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    pub schema: u32,
    #[serde(flatten)]
    pub incident: Incident,
    pub observed: Key,
    /// Whose conclusion it is: the agent of the first thing that was seen of it. None of whoever watched the command itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concluded_by: Option<String>,
    /// The command line of the process, without secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub excerpt: Option<Excerpt>,
    pub evidence: Evidence,
    /// What was there around it; only who watched the process knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scene: Option<Box<Scene>>,
    /// The figures before and after it, a track each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<Track>,
    /// Of the process; only variables that carry a value by the privacy rule.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub environment: Vec<Variable>,
    /// `gputop`, `kernel`, `driver`, `cuda`, `torch`, as far as known.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub versions: BTreeMap<String, String>,
    /// What a later version writes beside these, kept when this one revises the file.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// The log around what was found in it, without secrets.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Excerpt {
    pub text: String,
    /// There was more; the beginning is what is missing.
    pub is_cut: bool,
}

/// What was seen and measured.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Evidence {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<Event>,
    /// By the names of the diagnosis' measurements.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub measured: Map<String, Value>,
}

/// A series in even steps.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Track {
    /// The text of a [`SeriesKey`](crate::model::history::SeriesKey).
    pub series: String,
    /// Where the first step begins.
    pub start: Mono,
    pub step: Millis,
    /// Least and greatest of each step; `null` where there was no value.
    pub values: Vec<Option<Span>>,
}

/// Why a text is no record.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoRecord {
    /// The version of the file.
    #[error("it was written by a newer gputop (schema {0})")]
    Newer(u64),
    #[error("it is damaged ({0})")]
    Damaged(#[from] serde_json::Error),
}

impl Record {
    /// The number first: the rest of a newer one may have any shape.
    pub(super) fn read(value: Value) -> Result<Self, NoRecord> {
        let schema = value.get("schema").and_then(Value::as_u64);
        if let Some(schema) = schema.filter(|schema| *schema > u64::from(SCHEMA)) {
            return Err(NoRecord::Newer(schema));
        }
        Ok(serde_json::from_value(value)?)
    }

    /// Of another host's store; `None` where it is none that this version can read.
    #[must_use]
    pub fn told(kept: &RemoteIncident) -> Option<Self> {
        let mut record = Self::read(kept.record.clone()).ok()?;
        record.incident.uid = None;
        Some(record)
    }

    /// What of it belongs into a recording: nothing that was read on request, and not twice what lies there as events.
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

    /// Of an incident and whom it is about; its sections are still empty.
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

    /// Whether `other` tells of the same: of one process within a few seconds, or twice of its end, since a process ends
    /// only once; or one of what the other then saw it end of.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let is_end = |record: &Self| record.incident.severity == Severity::Fatal;
        let is_end_twice = || self.observed.process.is_some() && is_end(self) && is_end(other);
        let is_one = self.observed.is_about_same(&other.observed);
        (is_one || self.observed.is_part(&other.observed))
            && (self.observed.is_near(&other.observed)
                // A command may outlive one of its parts.
                || (is_one && is_end_twice())
                || self.is_end_of(other)
                || other.is_end_of(self))
    }

    /// Whether it was concluded when the process ended, of words that came when nobody noted the time, and `before` may have
    /// been what they said: interpreters take their time to end.
    fn is_end_of(&self, before: &Self) -> bool {
        let ended = self.observed.first;
        self.evidence.events.is_empty()
            && before.concluded_by.is_some()
            && self.observed.process.is_some()
            && self.incident.severity == Severity::Fatal
            && self.incident.family == before.incident.family
            && before.observed.first <= ended
            && ended.since(before.observed.first) <= ENDED_OF_IT
    }

    /// Both in one: the better explanation, the graver severity, and all that either knows. Of two that are equally good,
    /// this one's. Its name stays.
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
        let mut incident = one_of(self.incident, other.incident, is_better);
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

    /// Without what is more than may be kept.
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
    /// The end is what tells of a failure.
    fn cut(&mut self) {
        let surplus = self.text.len().saturating_sub(MAX_EXCERPT);
        if surplus > 0 {
            let rest = (surplus..self.text.len()).find(|at| self.text.is_char_boundary(*at));
            let from = rest.unwrap_or(self.text.len());
            // Whole lines, where there are lines.
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
