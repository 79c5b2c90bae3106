//! Parses error cards: how to recognize an error, its possible causes, evidence for and against each, and fixes.
//!
//! A card is a file in `assets/cards`: TOML between two lines of `+++`, then a description in Markdown. The TOML:
//!
//! ```toml
//! id = "cuda-example-700"          # same as the file name
//! family = "launch"
//! headline = "ILLEGAL ADDRESS"     # in capitals, printed before GPU and process
//! extract_sets = ["pytorch-oom"]   # extracts of assets/shared-rules.toml
//! titles = ["A kernel of {python_file} accessed {address}.", "A kernel accessed an invalid address."]
//! severity = "fatal"               # note, caught, fatal
//! confidence = 0.95                # probability that the card is right if a signature matches
//! follows = ["assert-*"]           # this error is a consequence if one of these cards came before
//! needs = [
//!   "Run `CUDA_LAUNCH_BLOCKING=1 python train.py` to see which kernel failed.",
//!   # omitted if this evidence was found:
//!   { says = "`gputop run` measures the largest free block.", unless = "largest-free-block-too-small" },
//!   # omitted if the log contains what the check asks for:
//!   { says = "`Loaded` shows the size of the weights.", unless = 'log:Loaded \d+' },
//! ]
//! not_helpful = ["Calling empty_cache(): memory is not full"]
//!
//! [error]                          # a CUDA error: adds the signatures and extracts in assets/shared-rules.toml
//! words = 'an illegal memory access was encountered'
//! names = 'cudaErrorIllegalAddress|CUDA_ERROR_ILLEGAL_ADDRESS'
//! codes = '700'
//! unless = ['NCCL WARN']           # as in a signature
//! generic = true                   # other programs print these words too
//!
//! [[signature]]                    # further signatures
//! match = 'CUDA error: an illegal memory access was encountered'
//! unless = ['is skipped']          # no match if this is in the same message
//!
//! [[extract]]                      # further fields, from text near the match
//! match = 'GPU(?<gpu_index>\d+)'
//!
//! [labels]                         # annotation under a field in the quoted message
//! address = "accessed address"
//!
//! [[cause]]
//! id = "custom-kernel"
//! title = "A custom kernel computes a wrong address"
//! # `in_code = true` also searches the source lines of the stack.
//! seen = [{ match = 'flash_attn', says = "the stack contains flash_attn" }]
//! evidence = ["in-backward"]
//! against = ["many-ranks"]
//! needs = "compare the kernel name with your extensions"
//!
//! [[fix]]
//! title = "Find the kernel"
//! change = "CUDA_LAUNCH_BLOCKING=1 python train.py"
//! kind = "command"
//! for = "custom-kernel"
//!
//! [[fix]]                          # the flag or the code of the program that failed
//! remedy = "match_free_memory"     # from assets/remedies.toml
//! value = "free-share"             # formula of `values`
//! when = ["in-load"]               # required evidence
//! only = ["server", "!vllm"]       # kinds of programs, or workloads; `!` excludes one; causes can also have `when` and
//!                                  # `only`; with programs and platforms, such as `["jax", "conda"]`, both must apply
//! proven = true                    # only with evidence for the cause in `for`
//!
//! [[example]]
//! text = '''...'''
//! fields = { rank = 1 }
//!
//! [[counterexample]]
//! text = '''...'''
//! ```
//!
//! Signatures are regular expressions, matched against text cleaned by `text`. A space matches any white
//! space, including line ends, because terminals and loggers wrap lines. `{SIZE}` matches a number with its unit, and
//! `{ASSERT}` matches the line of a failed device-side assertion. Named groups are fields of
//! [`gputop_model::incident::Fields`]; the name determines the field's type (`fields.rs`).

use gputop_model::incident::{FixKind, Severity};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::shared_rules;

/// Line that precedes and follows the TOML in a card file.
const FENCE: &str = "+++";

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Card {
    pub id: String,
    /// Heading under which `gputop cards` lists the card.
    pub family: String,
    /// Headline of the error in capitals: `OUT OF MEMORY`.
    pub headline: String,
    /// Title templates with `{field}` placeholders. The first template whose fields are all known is used.
    pub titles: Vec<String>,
    #[serde(default = "fatal")]
    pub severity: Severity,
    /// Probability, from 0 to 1, that the card is right if one of its signatures matches.
    #[serde(default = "default_confidence")]
    pub confidence: f64,
    /// Card whose signatures, extraction rules and labels this card shares. `when` decides which of the cards applies.
    #[serde(default)]
    pub shares: Option<String>,
    /// Evidence required for this card to apply.
    #[serde(default)]
    pub when: Vec<String>,
    /// Priority among the cards whose signature and `when` condition match. The lowest number has the highest priority.
    #[serde(default = "default_order")]
    pub order: u32,
    /// Workload that prints this error, used if the surrounding text does not identify one.
    #[serde(default)]
    pub workload: Option<String>,
    /// Cards that can cause this error: an ID, `nccl-*` for all IDs with that prefix, or `*` for any.
    #[serde(default)]
    pub follows: Vec<String>,
    #[serde(default)]
    pub needs: Vec<CheckHint>,
    #[serde(default)]
    pub not_helpful: Vec<String>,
    /// Additional search terms for the card.
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
    pub references: Vec<gputop_model::incident::Reference>,
    #[serde(default, rename = "example")]
    pub examples: Vec<Example>,
    #[serde(default, rename = "counterexample")]
    pub counterexamples: Vec<Example>,
    /// Markdown description that follows the card's TOML.
    #[serde(default)]
    pub text: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Signature {
    pub r#match: String,
    /// Expressions that prevent a match if they occur between the start of the line and 400 bytes after the match.
    #[serde(default)]
    pub unless: Vec<String>,
    /// Expressions that prevent a match if they occur anywhere later in the excerpt, several KiB long: a stopped job
    /// continued.
    #[serde(default)]
    pub unless_later: Vec<String>,
    /// True if ordinary prose can contain the signature's words. In that case, the signature does not match inside a
    /// sentence, a quotation or a list item.
    #[serde(default)]
    pub plain_words: bool,
    /// True if the signature identifies the error but contains no details. Another match for the same card is then
    /// preferred as the quote.
    #[serde(default)]
    pub weak: bool,
    /// Anchors for the search in logs, in place of those that the build script derives. Needed only if the required words
    /// are ordinary ones, or are printed with several spaces between them.
    #[serde(default)]
    pub anchors: Vec<String>,
    /// Literals, at least one of which occurs in every match. Computed by the build script.
    #[serde(default)]
    pub needles: Option<Vec<String>>,
    /// Further sets of literals. Every match contains one literal of each set. Computed by the build script.
    #[serde(default)]
    pub further_needles: Vec<Vec<String>>,
}

/// A regular expression that extracts fields from the text near a match. It uses the first value of each field, except
/// for the list of other processes, which contains all matches.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Extract {
    pub r#match: String,
    #[serde(default)]
    pub reach: FieldReach,
}

/// A line for the CHECK section, omitted if the evidence named in `unless` was found.
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

    #[must_use]
    pub fn unless(&self) -> Option<&String> {
        match self {
            Self::Always(_) => None,
            Self::Unless { unless, .. } => Some(unless),
        }
    }
}

/// Part of the log in which an extraction rule searches for fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FieldReach {
    /// From the start of the signature's line to 2 KiB after the match.
    #[default]
    Message,
    /// The complete log excerpt.
    Around,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CauseRule {
    pub id: String,
    /// Title of the cause: a sentence without a period.
    pub title: String,
    /// Names from [`super::evidence::EVIDENCE`] that support the cause.
    #[serde(default)]
    pub evidence: Vec<String>,
    /// Names of evidence against the cause.
    #[serde(default)]
    pub against: Vec<String>,
    /// Expressions whose matches in the log support the cause.
    #[serde(default)]
    pub seen: Vec<TextClue>,
    /// Expressions whose matches in the log are evidence against the cause.
    #[serde(default)]
    pub denied: Vec<TextClue>,
    /// Verdict on the cause if there is no evidence: `possible`, or `unknown` for a cause that only a measurement can
    /// confirm.
    #[serde(default)]
    pub prior: Prior,
    /// Evidence required for the cause to apply.
    #[serde(default)]
    pub when: Vec<String>,
    /// Kinds of programs or workloads to which the cause applies. Empty means all.
    #[serde(default)]
    pub only: Vec<String>,
    /// Command or observation that checks the cause. Shown while the verdict is `possible` or `unknown`.
    #[serde(default)]
    pub needs: Option<CheckHint>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Prior {
    Likely,
    #[default]
    Possible,
    Unknown,
}

/// A regular expression, and the phrase to show as evidence if it matches.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextClue {
    pub r#match: String,
    pub says: String,
    /// True to also search the source lines of the stack.
    #[serde(default)]
    pub in_code: bool,
    /// True if the text suggests the cause without proving it. Two hints count as evidence.
    #[serde(default)]
    pub hint: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FixRule {
    #[serde(default)]
    pub title: String,
    /// The exact text to copy, with `{field}` placeholders. `{field|WORD}` becomes `WORD` if the field is unknown.
    #[serde(default)]
    pub change: String,
    #[serde(default)]
    pub kind: FixKind,
    /// ID of a remedy in `assets/remedies.toml`, used instead of `change` and `kind`. The remedy has a change for each
    /// kind of workload.
    #[serde(default)]
    pub remedy: Option<String>,
    /// Formula for the remedy's value, as defined in `values.rs`.
    #[serde(default)]
    pub value: Option<String>,
    /// Evidence required for the fix to apply.
    #[serde(default)]
    pub when: Vec<String>,
    /// True if the fix is offered only when evidence supports its cause.
    #[serde(default)]
    pub proven: bool,
    /// Programs or workloads to which the fix applies, or does not apply if prefixed with `!`. Empty means all.
    #[serde(default)]
    pub only: Vec<String>,
    #[serde(default)]
    pub r#for: Option<String>,
    #[serde(default)]
    pub effect: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Example {
    pub text: String,
    /// Expected incident fields, by their JSON names.
    #[serde(default)]
    pub fields: Map<String, Value>,
}

fn fatal() -> Severity {
    Severity::Fatal
}

fn default_confidence() -> f64 {
    0.9
}

fn default_order() -> u32 {
    50
}

#[derive(Debug, thiserror::Error)]
pub enum CardError {
    #[error("the file does not begin with TOML between two lines of `+++`")]
    NoFence,
    #[error("{0}")]
    Toml(#[from] toml::de::Error),
    #[error("{0}")]
    SharedRules(String),
    #[error("{0}")]
    Content(#[from] serde_json::Error),
}

/// Parses a table by way of JSON, the format of the embedded cards, because a second deserializer for the same types
/// would make the program larger.
pub(super) fn from_toml<T: DeserializeOwned>(table: &toml::Table) -> Result<T, CardError> {
    Ok(serde_json::from_str(&serde_json::to_string(table)?)?)
}

impl Card {
    pub fn parse(file: &str) -> Result<Self, CardError> {
        let rest = file.strip_prefix(FENCE).ok_or(CardError::NoFence)?;
        let end = rest.find("\n+++").ok_or(CardError::NoFence)?;
        let mut front: toml::Table = rest[..end].parse()?;
        shared_rules::expand(&mut front).map_err(CardError::SharedRules)?;
        let mut card: Self = from_toml(&front)?;
        card.text = rest[end + 1 + FENCE.len()..].trim().to_owned();
        Ok(card)
    }

    /// Returns true if the error described by the card `other` can cause the error described by this card.
    #[must_use]
    pub(crate) fn is_consequence_of(&self, other: &str) -> bool {
        self.id != other && self.follows.iter().any(|pattern| matches(pattern, other))
    }
}

/// Returns true if `pattern` equals `id`, or is a prefix of `id` followed by `*`.
fn matches(pattern: &str, id: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => id.starts_with(beginning),
        None => pattern == id,
    }
}
