//! Incident records: an incident with its evidence, as diagnosed by an observer and as stored. The JSON contains the
//! output of `explain --json`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use serde_with::skip_serializing_none;

use super::bounded_json;
use super::event::Event;
use super::history::Span;
use super::incident::Incident;
use super::incident_key::IncidentKey;
use super::process::{ProcessKey, Variable};
use super::remote_incident::RemoteIncident;
use super::scene::Scene;
use super::units::{Millis, Mono};

/// Version of the incident file format. It changes only if older readers would misinterpret the file, not for new
/// fields.
pub const SCHEMA: u32 = 1;
/// Maximum size of an incident's log excerpt in bytes.
pub const MAX_EXCERPT: usize = 256 << 10;
pub const MAX_EVENTS: usize = 64;
const MAX_TRACKS: usize = 64;
/// Maximum number of values in a track. If there are more, only the latest are retained.
const MAX_VALUES: usize = 720;
const MAX_VARIABLES: usize = 256;

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    pub schema: u32,
    #[serde(flatten)]
    pub incident: Incident,
    #[serde(rename = "observed")]
    pub key: IncidentKey,
    /// Agent that sent the first event on which the diagnosis is based. `None` for `gputop run`, which watches the
    /// command itself.
    pub concluded_by: Option<String>,
    /// Command line of the process, without secrets.
    pub command: Option<String>,
    pub excerpt: Option<Excerpt>,
    pub evidence: Evidence,
    /// State of the machine at the time of the incident, recorded only by observers of the process.
    pub scene: Option<Arc<Scene>>,
    /// Values measured before and after the incident, one track per series.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<Track>,
    /// The process's environment variables that are on the allow-list, so their values may be stored.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub environment: Vec<Variable>,
    /// Known versions of `gputop`, `kernel`, `driver`, `cuda` and `torch`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub versions: BTreeMap<String, String>,
    /// Fields added by later versions, preserved when this version revises the file.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// Log text around the error, without secrets.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Excerpt {
    pub text: String,
    /// True if the beginning of the log excerpt was left out.
    pub is_cut: bool,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Evidence {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<Event>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub measured: Map<String, Value>,
}

/// Values of a series at regular intervals.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Track {
    /// Text form of the [`SeriesKey`](crate::history::SeriesKey).
    pub series: String,
    pub start: Mono,
    pub step: Millis,
    /// Minimum and maximum in each time step, or `null` if there was no value.
    pub values: Vec<Option<Span>>,
}

#[derive(Debug, thiserror::Error)]
pub enum UnreadableRecord {
    /// Schema version of the record. This gputop version is too old to read it.
    #[error("it was written by a newer gputop (schema {0})")]
    Newer(u64),
    #[error("damaged ({0})")]
    Damaged(#[from] serde_json::Error),
}

impl Record {
    /// Parses an incident record. Checks the version first, because the remaining content of a newer record may have
    /// any format.
    pub fn read(value: &Value) -> Result<Self, UnreadableRecord> {
        let schema = value.get("schema").and_then(Value::as_u64);
        if let Some(schema) = schema.filter(|schema| *schema > u64::from(SCHEMA)) {
            return Err(UnreadableRecord::Newer(schema));
        }
        // Parsed from text, as other records are: each kind of deserializer gets its own copy of the generated code,
        // and `serde_json::from_value` would be a second kind.
        let (record, _) = bounded_json::read(value.to_string().as_bytes(), usize::MAX)?;
        Ok(record)
    }

    /// Parses an incident from another host's store. Returns `None` if this version cannot read it.
    pub fn from_remote(remote: &RemoteIncident) -> Option<Self> {
        let mut record = Self::read(&remote.record).ok()?;
        record.incident.uid = None;
        Some(record)
    }

    /// Returns the parts of an incident record that belong in a recording. Excludes data that was read only because a
    /// user requested it, and the evidence, which the recording already contains as events.
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

    pub fn new(incident: Incident, key: IncidentKey) -> Self {
        Self { schema: SCHEMA, incident, key, ..Self::default() }
    }

    pub fn processes(&self) -> Vec<ProcessKey> {
        let scene = self.scene.as_ref();
        let mut processes = scene.map_or_else(Vec::new, |scene| scene.processes.clone());
        let first = self.key.process;
        processes.extend(first.filter(|first| !processes.contains(first)));
        processes.sort_unstable();
        processes
    }

    pub fn forget_blocks(&mut self) {
        if let Some(scene) = self.scene.as_mut().filter(|scene| scene.map.is_some()) {
            Arc::make_mut(scene).forget_blocks();
        }
    }

    /// Truncates all sections of the incident record to their limits.
    pub fn bounded(mut self) -> Self {
        if let Some(excerpt) = &mut self.excerpt {
            excerpt.cut();
        }
        let events = &mut self.evidence.events;
        events.drain(..events.len().saturating_sub(MAX_EVENTS));
        if let Some(scene) = &mut self.scene {
            Arc::make_mut(scene).cut();
        }
        self.history.truncate(MAX_TRACKS);
        self.history.iter_mut().for_each(Track::cut);
        self.environment.truncate(MAX_VARIABLES);
        self
    }
}

impl Excerpt {
    /// Removes the beginning of the log excerpt, because the error is at the end.
    fn cut(&mut self) {
        let surplus = self.text.len().saturating_sub(MAX_EXCERPT);
        if surplus > 0 {
            let rest = (surplus..self.text.len()).find(|at| self.text.is_char_boundary(*at));
            let from = rest.unwrap_or(self.text.len());
            // Cut at a line break if there is one.
            let line = self.text[from..].find('\n').map_or(from, |at| from + at + 1);
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

    pub fn known(&self) -> usize {
        self.values.iter().flatten().count()
    }
}
