//! Evidence for and against causes: named predicates over the numbers in a message, the stack above it, other incidents
//! of the same crash, and measurements. Cards refer to them by name; each predicate provides its own sentence.
//!
//! A log alone provides text. A live process adds [`Measured`], which more predicates can use. A predicate without data
//! returns [`Finding::Silent`], so that missing data rules nothing out.

mod measured;
mod oom;
mod stack;

pub use measured::{FreeBlockSummary, Measured, PinnedSegments};

use super::card::Card;
use super::fields::FieldMap;
use super::traceback::Frame;

/// Everything that is known about one incident.
#[derive(Debug, Clone, Copy)]
pub struct Case<'a> {
    pub found: &'a FieldMap,
    /// Text around the message.
    pub context: &'a str,
    /// Python frames above the message, outermost first.
    pub frames: &'a [Frame],
    /// Ids of the cards of other incidents in the same crash.
    pub beside: &'a [&'a str],
    /// Number of ranks that report the incident.
    pub ranks: usize,
    /// Card that the table of assertions or Xids names for the message.
    pub table: Option<&'a str>,
    /// The difference between the ranks of a collective operation, as a sentence.
    pub comparison: Option<&'a str>,
    pub measured: &'a Measured,
}

/// Result of a predicate: a phrase with the measured values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    For(String),
    /// Supports the cause, but does not make it likely.
    Hint(String),
    Against(String),
    /// Not enough data.
    Silent,
}

impl Finding {
    #[must_use]
    pub fn is_for(&self) -> bool {
        matches!(self, Self::For(_))
    }
}

/// A named predicate.
pub struct Evidence {
    pub name: &'static str,
    pub judge: fn(&Case<'_>) -> Finding,
}

/// All predicates, by the names that cards use.
pub const EVIDENCE: &[&[Evidence]] = &[oom::EVIDENCE, stack::EVIDENCE, measured::EVIDENCE];

/// Evaluates the evidence `name` for `card`. Returns `None` for an unknown name.
#[must_use]
pub fn judge(name: &str, card: &Card, case: &Case<'_>) -> Option<Finding> {
    if let Some(pattern) = name.strip_prefix("beside:") {
        return Some(beside(pattern, case));
    }
    match name {
        "many-ranks" => Some(many_ranks(case)),
        "ranks-differ" => Some(case.comparison.map_or(Finding::Silent, |_| {
            Finding::For("the ranks report different operations".into())
        })),
        "assertion-table" | "xid-table" => Some(if case.table == Some(&card.id) {
            Finding::For(String::new())
        } else {
            Finding::Silent
        }),
        _ => {
            let all = EVIDENCE.iter().copied().flatten();
            all.into_iter()
                .find(|e| e.name == name)
                .map(|e| (e.judge)(case))
        }
    }
}

/// Returns true if a condition of a card holds. `a|b` means either, `!a` means not.
#[must_use]
pub fn holds(condition: &str, card: &Card, case: &Case<'_>) -> bool {
    condition
        .split('|')
        .any(|name| match name.strip_prefix('!') {
            Some(name) => !judge(name, card, case).is_some_and(|f| f.is_for()),
            None => judge(name, card, case).is_some_and(|f| f.is_for()),
        })
}

/// Returns true if cards can use this name.
#[must_use]
pub fn is_known(name: &str) -> bool {
    name.starts_with("beside:")
        || ["many-ranks", "ranks-differ", "assertion-table", "xid-table"].contains(&name)
        || EVIDENCE.iter().copied().flatten().any(|e| e.name == name)
}

fn beside(pattern: &str, case: &Case<'_>) -> Finding {
    let found = case
        .beside
        .iter()
        .find(|id| match pattern.strip_suffix('*') {
            Some(beginning) => id.starts_with(beginning),
            None => **id == pattern,
        });
    found.map_or(Finding::Silent, |id| {
        Finding::For(format!("{id} was found in the same crash"))
    })
}

fn many_ranks(case: &Case<'_>) -> Finding {
    if case.ranks > 1 {
        Finding::For(format!("{} ranks report this error", case.ranks))
    } else {
        Finding::Silent
    }
}
