//! What a reader concludes from events and text: the shape of `explain --json` (a contract, schema 1).
//!
//! Only what the text or a measurement really holds is present; everything else is left out, never guessed.

use serde::{Deserialize, Serialize};

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
    /// Consequences of this incident, not causes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub secondary: Vec<Self>,
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
    /// Counted from 1.
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
