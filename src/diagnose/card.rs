//! One error card: what it looks like, what it can mean, what decides between the meanings, what to do.
//!
//! A card is a file in `assets/cards`: TOML between two lines of `+++`, then Markdown for who reads on. The TOML:
//!
//! ```toml
//! id = "cuda-example-700"          # the file's name
//! family = "launch"
//! headline = "ILLEGAL ADDRESS"     # capitals, before GPU and process
//! titles = ["A kernel of {python_file} touched {address}.", "A kernel touched an address it may not."]
//! severity = "fatal"               # note, caught, fatal
//! confidence = 0.95                # that the card is right when its text is there
//! follows = ["assert-*"]           # where one of these failed before, this is a consequence of it
//! needs = [
//!   "Which kernel: `CUDA_LAUNCH_BLOCKING=1 python train.py` names it.",
//!   { says = "The largest free block: ...", unless = "largest-free-block-too-small" },   # not where this evidence is there
//! ]
//! not_helpful = ["empty_cache(): nothing is full"]
//!
//! [[signature]]
//! match = 'CUDA error: an illegal memory access was encountered'
//! unless = ['is skipped']          # in the same message
//!
//! [[extract]]                      # more fields, from the text beside the match
//! match = 'GPU(?<gpu_index>\d+)'
//!
//! [labels]                         # what stands under a field where the message is quoted
//! address = "where"
//!
//! [[cause]]
//! id = "custom-kernel"
//! title = "a custom kernel"
//! seen = [{ match = 'flash_attn', says = "flash_attn is in the stack" }]
//! evidence = ["in-backward"]
//! against = ["many-ranks"]
//! needs = "the kernel's name: ..."
//!
//! [[fix]]
//! title = "find the kernel"
//! change = "CUDA_LAUNCH_BLOCKING=1 python train.py"
//! kind = "command"
//! for = "custom-kernel"
//!
//! [[example]]
//! text = '''...'''
//! fields = { rank = 1 }
//!
//! [[counterexample]]
//! text = '''...'''
//! ```
//!
//! Signatures are regular expressions, matched against text that [`super::text`] has made plain. A space in one
//! matches any run of white space, also the end of a line, since terminals and loggers wrap. `{SIZE}` stands for a
//! figure with its unit, `{ASSERT}` for the line that a failed device-side assertion prints. A named group is a field of [`crate::model::incident::Fields`]; what it is read as follows
//! from its name ([`super::fields`]).

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::model::incident::{FixKind, Severity};

/// What marks the beginning and the end of the TOML.
const FENCE: &str = "+++";

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Card {
    pub id: String,
    pub family: String,
    /// What happened in capitals: `OUT OF MEMORY`.
    pub headline: String,
    /// One sentence each, `{field}` filled in; the first whose fields are all known is taken.
    pub titles: Vec<String>,
    #[serde(default = "fatal")]
    pub severity: Severity,
    /// 0 to 1.
    #[serde(default = "quite_sure")]
    pub confidence: f64,
    /// Takes signatures, extracts and labels of that card; `when` decides between them.
    #[serde(default)]
    pub shares: Option<String>,
    /// Evidence that must speak for this card before it is chosen.
    #[serde(default)]
    pub when: Vec<String>,
    /// Of the cards whose text matched and whose `when` holds, the lowest is right.
    #[serde(default = "middle")]
    pub order: u32,
    /// Cards of which this is a consequence, `nccl-*` for a family of ids; `*` for any other.
    #[serde(default)]
    pub follows: Vec<String>,
    #[serde(default)]
    pub needs: Vec<CheckHint>,
    #[serde(default)]
    pub not_helpful: Vec<String>,
    /// What people search for when they mean this.
    #[serde(default)]
    pub aliases: Vec<String>,
    #[serde(default, rename = "signature")]
    pub signatures: Vec<Signature>,
    #[serde(default, rename = "extract")]
    pub extracts: Vec<Extract>,
    #[serde(default)]
    pub labels: Map<String, Value>,
    #[serde(default, rename = "cause")]
    pub causes: Vec<CauseRule>,
    #[serde(default, rename = "fix")]
    pub fixes: Vec<FixRule>,
    #[serde(default, rename = "reference")]
    pub references: Vec<crate::model::incident::Reference>,
    #[serde(default, rename = "example")]
    pub examples: Vec<Example>,
    #[serde(default, rename = "counterexample")]
    pub counterexamples: Vec<Example>,
    /// The Markdown after the TOML.
    #[serde(skip)]
    pub text: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Signature {
    pub r#match: String,
    /// None of these in the message, from the beginning of its line to 400 bytes after the match.
    #[serde(default)]
    pub unless: Vec<String>,
    /// Prose holds these words as well: they count where a machine printed them only.
    #[serde(default)]
    pub plain_words: bool,
    /// Says that it happened, but not what: of two matches of one card the one that says more is quoted.
    #[serde(default)]
    pub weak: bool,
    /// Literals of which each match holds one, worked out by the build.
    #[serde(default)]
    pub needles: Option<Vec<String>>,
}

/// A field that stands beside the match: all matches count for a repeated group, else the nearest.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Extract {
    pub r#match: String,
    #[serde(default)]
    pub reach: Reach,
}

/// What would make it surer, and how to get it: a sentence, or one that falls away once this evidence is there.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub enum CheckHint {
    Always(String),
    Unless { says: String, unless: String },
}

impl CheckHint {
    #[must_use]
    pub fn says(&self) -> &str {
        match self {
            Self::Always(says) | Self::Unless { says, .. } => says,
        }
    }

    /// The evidence that makes it needless.
    #[must_use]
    pub fn unless(&self) -> Option<&String> {
        match self {
            Self::Always(_) => None,
            Self::Unless { unless, .. } => Some(unless),
        }
    }
}

/// Where an extract looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reach {
    /// From the beginning of the match's line to 2 KiB after the match.
    #[default]
    Message,
    /// The whole excerpt.
    Around,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CauseRule {
    pub id: String,
    /// A clause: `a custom kernel`.
    pub title: String,
    /// Names of [`super::evidence::EVIDENCE`] that speak for it.
    #[serde(default)]
    pub evidence: Vec<String>,
    /// Names of evidence that speaks against it.
    #[serde(default)]
    pub against: Vec<String>,
    /// Text that speaks for it.
    #[serde(default)]
    pub seen: Vec<TextClue>,
    /// Text that speaks against it.
    #[serde(default)]
    pub denied: Vec<TextClue>,
    /// What is taken when nothing speaks: `possible`, or `unknown` for a cause that only a measurement can show.
    #[serde(default)]
    pub prior: Prior,
    /// What would tell, and how to get it; shown while the verdict is open.
    #[serde(default)]
    pub needs: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Prior {
    Likely,
    #[default]
    Possible,
    Unknown,
}

/// A sentence that holds where the text is seen.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextClue {
    pub r#match: String,
    pub says: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FixRule {
    pub title: String,
    /// The exact text to use, `{field}` filled in.
    pub change: String,
    pub kind: FixKind,
    #[serde(default)]
    pub r#for: Option<String>,
    #[serde(default)]
    pub effect: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Example {
    pub text: String,
    /// Fields that must be found, by their JSON names.
    #[serde(default)]
    pub fields: Map<String, Value>,
}

fn fatal() -> Severity {
    Severity::Fatal
}

fn quite_sure() -> f64 {
    0.9
}

fn middle() -> u32 {
    50
}

/// Why a file is no card.
#[derive(Debug, thiserror::Error)]
pub enum CardError {
    #[error("it does not begin with `+++`, TOML and `+++`")]
    NoFence,
    #[error("{0}")]
    Toml(#[from] toml::de::Error),
    #[error("{0}")]
    Json(#[from] serde_json::Error),
}

impl Card {
    /// Reads the text of a card's file.
    ///
    /// # Errors
    /// When the TOML is not between its fences, or not a card's.
    pub fn parse(file: &str) -> Result<Self, CardError> {
        let rest = file.strip_prefix(FENCE).ok_or(CardError::NoFence)?;
        let end = rest.find("\n+++").ok_or(CardError::NoFence)?;
        let mut card: Self = toml::from_str(&rest[..end])?;
        card.text = rest[end + 1 + FENCE.len()..].trim().to_owned();
        Ok(card)
    }

    /// Reads a card as the build embeds it: the TOML as JSON, and the Markdown.
    ///
    /// # Errors
    /// When the JSON is not a card's.
    pub fn embedded(front: &str, text: &'static str) -> Result<Self, CardError> {
        let mut card: Self = serde_json::from_str(front)?;
        text.clone_into(&mut card.text);
        Ok(card)
    }

    /// Whether an incident of the card `other` explains one of this card.
    #[must_use]
    pub fn is_consequence_of(&self, other: &str) -> bool {
        self.id != other && self.follows.iter().any(|pattern| covers(pattern, other))
    }
}

/// `nccl-*` covers all ids that begin with `nccl-`.
fn covers(pattern: &str, id: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => id.starts_with(beginning),
        None => pattern == id,
    }
}
