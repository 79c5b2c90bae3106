//! Incidents: an observer's conclusions from events and text, in the format of `explain --json` (stable, schema 1).
//!
//! An incident contains only data that was read from text or measured. Unknown values are omitted, never guessed.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::trace_replay::SettingResult;
use super::units::Pid;

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Incident {
    /// ID of the explanation: `oom-fragmentation`.
    pub id: String,
    pub family: String,
    pub severity: Severity,
    pub title: String,
    /// Probability from 0 to 1 that the explanation `id` is correct.
    pub confidence: f64,
    pub count: u32,
    pub uid: Option<String>,
    /// Time of the incident in RFC 3339 format.
    pub time: Option<String>,
    pub host: Option<String>,
    pub detected_by: DetectedBy,
    pub log: Option<LogLocation>,
    pub fields: Fields,
    pub causes: Vec<Cause>,
    pub fixes: Vec<Fix>,
    /// Popular advice that does not help with this incident, one phrase each.
    pub not_helpful: Vec<String>,
    pub references: Vec<Reference>,
    /// Headline in capitals: `OUT OF MEMORY`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub headline: String,
    #[serde(skip_serializing_if = "Quote::is_empty")]
    pub quote: Quote,
    /// Location in the user's program: `train.py:57  loss.backward()`.
    pub at: Option<String>,
    /// Sentence that explains why this incident is listed first.
    pub why_first: Option<String>,
    /// Checks that would increase the confidence, with instructions, one sentence each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<String>,
    /// Incidents caused by this incident.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub secondary: Vec<Self>,
}

impl Incident {
    /// Returns true if a GPU had too little memory for a request by any library.
    pub fn is_gpu_oom(&self) -> bool {
        self.family == "oom" || self.family.starts_with("oom-")
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Quote {
    /// The quoted text, escaped for display. May contain line breaks.
    pub text: String,
    /// Labels sorted by position, without overlaps.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<Label>,
}

impl Quote {
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }
}

/// Label for a part of a [`Quote`]. Positions are byte offsets in the quoted text.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Label {
    pub start: usize,
    pub end: usize,
    /// Short label text, such as `wanted`.
    #[serde(rename = "text", alias = "says")]
    pub says: String,
}

impl Incident {
    /// Returns true if this incident should be shown again to a user who has read `before`, its previous version: the
    /// severity increased or the diagnosis changed. Changed numbers in a sentence are ignored.
    pub fn should_notify_after(&self, before: &Self) -> bool {
        self.severity > before.severity
            || (&self.id, &self.headline) != (&before.id, &before.headline)
    }
}

crate::named! {
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Severity {
        /// A notice; nothing failed.
        Note = "note",
        /// A failure that the program survived.
        Caught = "caught",
        Fatal = "fatal",
        #[default]
        #[serde(other)]
        Unknown = "unknown",
    }
    fn word;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DetectedBy {
    Log,
    Allocator,
    Exit,
    Xid,
    Hook,
    /// Process groups, read from the memory of the ranks.
    Ranks,
    #[default]
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LogLocation {
    pub file: String,
    /// Number of the first line, counted from 1. 0 if reading started in the middle of the log, so that the position is
    /// unknown.
    pub first_line: u64,
    pub last_line: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
}

/// Values of an incident under standard names. Sizes are in bytes.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Fields {
    pub requested_bytes: Option<u64>,
    pub gpu_index: Option<u32>,
    pub total_bytes: Option<u64>,
    pub free_bytes: Option<u64>,
    pub process_bytes: Option<u64>,
    pub allocated_bytes: Option<u64>,
    pub reserved_bytes: Option<u64>,
    pub reserved_unallocated_bytes: Option<u64>,
    pub allowed_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub other_processes: Vec<OtherProcess>,
    pub cuda_error: Option<String>,
    pub cuda_error_code: Option<i32>,
    pub status: Option<String>,
    pub api_call: Option<String>,
    pub kernel_file: Option<String>,
    pub kernel_line: Option<u32>,
    pub kernel: Option<String>,
    pub assertion: Option<String>,
    pub block: Option<[u32; 3]>,
    pub thread: Option<[u32; 3]>,
    pub xid: Option<u32>,
    pub source_file: Option<String>,
    pub source_line: Option<u32>,
    /// The program: its script, module or command, `notebook`, or the name of a server or tool.
    pub program: Option<String>,
    /// Innermost file of the program's own code.
    pub python_file: Option<String>,
    pub python_line: Option<u32>,
    pub rank: Option<u32>,
    pub pid: Option<Pid>,
    pub pci_bus: Option<String>,
    pub exit_code: Option<i32>,
    /// Additional fields that an explanation extracts under nonstandard names.
    #[serde(flatten)]
    pub more: serde_json::Map<String, serde_json::Value>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OtherProcess {
    pub pid: Pid,
    pub bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Cause {
    pub id: String,
    pub title: String,
    pub verdict: Verdict,
    /// Supporting evidence with measured values, one sentence each.
    pub r#for: Vec<String>,
    pub against: Vec<String>,
    /// Check that would settle an open verdict, with instructions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needs: Option<String>,
}

crate::named! {
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Verdict {
        Likely = "likely",
        Possible = "possible",
        RuledOut = "ruled out",
        /// Verdict unknown, or added by a later version.
        #[default]
        #[serde(other)]
        Unknown = "unknown",
    }
    fn words;
}

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Fix {
    pub title: String,
    /// ID of the cause addressed by the fix.
    pub for_cause: Option<String>,
    /// Exact text of the change to apply.
    pub change: String,
    pub kind: FixKind,
    pub effect: Option<String>,
    /// Result of replaying the program's allocation trace with the setting that the fix changes.
    pub replayed: Option<SettingResult>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FixKind {
    Env,
    Code,
    Command,
    Config,
    Hardware,
    #[default]
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Reference {
    pub title: String,
    pub url: String,
}
