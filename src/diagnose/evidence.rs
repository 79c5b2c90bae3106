//! What speaks for and against a cause: named predicates over the figures of a text, the stack above it, the other
//! incidents of the same crash, and what was measured. Cards name them; each brings its own sentence.
//!
//! From text today; a live process adds [`Measured`], and the same predicates then know more. A predicate that
//! cannot know says nothing: nothing is ruled out for lack of data.

mod measured;
mod oom;
mod stack;

pub use measured::{Holes, Measured, Pins};

use super::card::Card;
use super::fields::FieldMap;
use super::traceback::Frame;

/// All that is known about one incident.
#[derive(Debug, Clone, Copy)]
pub struct Case<'a> {
    pub found: &'a FieldMap,
    /// The text around it.
    pub context: &'a str,
    /// The Python frames above it, outermost first.
    pub frames: &'a [Frame],
    /// The cards of the other incidents of the same crash.
    pub beside: &'a [&'a str],
    /// How many ranks report it.
    pub ranks: usize,
    /// The card that a table of assertions or Xids names for it.
    pub table: Option<&'a str>,
    pub measured: &'a Measured,
}

/// What one predicate says about a case, a clause with its figures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    For(String),
    /// For it, but not enough to call it likely.
    Hint(String),
    Against(String),
    /// It cannot know.
    Silent,
}

impl Finding {
    #[must_use]
    pub fn is_for(&self) -> bool {
        matches!(self, Self::For(_))
    }
}

/// One kind of evidence.
pub struct Evidence {
    pub name: &'static str,
    pub judge: fn(&Case<'_>) -> Finding,
}

/// Every kind, by the name that cards use.
pub const EVIDENCE: &[&[Evidence]] = &[oom::EVIDENCE, stack::EVIDENCE, measured::EVIDENCE];

/// What the evidence `name` says for `card`; `None` when there is no such evidence.
#[must_use]
pub fn judge(name: &str, card: &Card, case: &Case<'_>) -> Option<Finding> {
    if let Some(pattern) = name.strip_prefix("beside:") {
        return Some(beside(pattern, case));
    }
    match name {
        "many-ranks" => Some(many_ranks(case)),
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

/// Whether a condition of a card holds: one name, `a|b` for either, `!a` for not.
#[must_use]
pub fn holds(condition: &str, card: &Card, case: &Case<'_>) -> bool {
    condition
        .split('|')
        .any(|name| match name.strip_prefix('!') {
            Some(name) => !judge(name, card, case).is_some_and(|f| f.is_for()),
            None => judge(name, card, case).is_some_and(|f| f.is_for()),
        })
}

/// Whether a card may name this evidence.
#[must_use]
pub fn is_known(name: &str) -> bool {
    name.starts_with("beside:")
        || ["many-ranks", "assertion-table", "xid-table"].contains(&name)
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
