//! What a reader concludes from events and text: the shape of `explain --json` (a contract, schema 1).
//!
//! Only what the text or a measurement really holds is present; everything else is left out, never guessed.

use serde::{Deserialize, Serialize};

use super::replay_result::SettingResult;
use super::units::Pid;

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Incident {
    /// The card: `oom-fragmentation`.
    pub id: String,
    pub family: String,
    pub severity: Severity,
    /// What happened, one sentence.
    pub title: String,
    /// 0 to 1: that `id` is right.
    pub confidence: f64,
    /// How often the same thing was seen.
    pub count: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    pub detected_by: DetectedBy,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<LogPlace>,
    pub fields: Fields,
    pub causes: Vec<Cause>,
    pub fixes: Vec<Fix>,
    /// What people try that does not help here, a clause each.
    pub not_helpful: Vec<String>,
    pub references: Vec<Reference>,
    /// What happened in capitals: `OUT OF MEMORY`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub headline: String,
    /// The message in its own words.
    #[serde(skip_serializing_if = "Quote::is_empty")]
    pub quote: Quote,
    /// Where the user's program was, as `train.py:57  loss.backward()`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// Why this one is first, where there are others: a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why_first: Option<String>,
    /// What would make it surer, and how to get it, a sentence each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<String>,
    /// Consequences of this incident, not causes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub secondary: Vec<Self>,
}

impl Incident {
    /// A GPU had too little memory for a request, whichever library asked.
    #[must_use]
    pub fn is_gpu_oom(&self) -> bool {
        self.family == "oom" || self.family.starts_with("oom-")
    }
}

/// Text and what its parts are.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Quote {
    /// Harmless to show; may hold line breaks.
    pub text: String,
    /// By their place, none over another.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<Label>,
}

impl Quote {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }
}

/// A part of a [`Quote`], in bytes of its text.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Label {
    pub start: usize,
    pub end: usize,
    /// Few words: `wanted`.
    #[serde(rename = "text", alias = "says")]
    pub says: String,
}

impl Incident {
    /// Whether who has read `before` has to read this, which took its place: it got worse, or turned out to be something
    /// else. The figures of a sentence may change at any time.
    #[must_use]
    pub fn is_news_after(&self, before: &Self) -> bool {
        self.severity > before.severity
            || (&self.id, &self.headline) != (&before.id, &before.headline)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Worth knowing; nothing failed.
    Note,
    /// Failed and was survived.
    Caught,
    Fatal,
    #[default]
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DetectedBy {
    Log,
    Allocator,
    Exit,
    Xid,
    Hook,
    #[default]
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LogPlace {
    pub file: String,
    /// Counted from 1; 0 where the log was read from its middle on and nobody has counted.
    pub first_line: u64,
    pub last_line: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
}

/// The figures of an incident, by their standard names; sizes in bytes.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Fields {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_index: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocated_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved_unallocated_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub other_processes: Vec<OtherProcess>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda_error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda_error_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_call: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_line: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub assertion: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block: Option<[u32; 3]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<[u32; 3]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub xid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_line: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub python_file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub python_line: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<Pid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci_bus: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// What a card reads beyond these, by its own names.
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
    /// Evidence for it, a sentence each with its figures.
    pub r#for: Vec<String>,
    pub against: Vec<String>,
    /// What would tell, and how to get it, while the verdict is open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needs: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Likely,
    Possible,
    RuledOut,
    /// Not known, also when the word itself is a later version's.
    #[default]
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Fix {
    pub title: String,
    /// The cause it answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub for_cause: Option<String>,
    /// The exact text to use.
    pub change: String,
    pub kind: FixKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
    /// What came of it when the program's allocation trace was played under it.
    #[serde(skip_serializing_if = "Option::is_none")]
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
