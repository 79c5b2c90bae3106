//! Evaluates evidence for and against causes: named predicates over the numbers in a message, the stack above the
//! message, other incidents of the same crash, and measurements. Cards refer to predicates by name. Each predicate
//! returns a phrase that states its evidence.
//!
//! A log provides only text. A live process adds [`Measured`], which enables further predicates. A predicate that has
//! no data returns [`Finding::Silent`], so missing data never rules out a cause.

mod measured;
mod oom;
mod printed_memory;
mod printed_values;
pub(super) mod smi;
mod stack;

pub use measured::{FreeBlockSummary, Measured, PinnedSegments};
pub(super) use oom::{are_close, fragmentation};
pub(super) use printed_values::largest_label;
pub(super) use stack::kernel_package;

use super::card::Card;
use super::catalogue::Catalogue;
use super::fields::FieldMap;
use super::signature::Pattern;
use super::traceback::Frame;

/// All known facts about one incident.
#[derive(Debug, Clone, Copy)]
pub struct Case<'a> {
    pub found: &'a FieldMap,
    /// Log text around the error message.
    pub context: &'a str,
    /// Beginning of the log.
    pub start: &'a str,
    /// Python frames above the error message, outermost first.
    pub frames: &'a [Frame],
    /// Card IDs of other incidents in the same crash.
    pub beside: &'a [&'a str],
    pub ranks: usize,
    /// Card that the table of assertions or Xids assigns to the error message.
    pub table: Option<&'a str>,
    /// Sentence about the difference between the ranks of a collective operation.
    pub comparison: Option<&'a str>,
    pub measured: &'a Measured,
}

/// Result of an evidence predicate, with a phrase that contains the measured values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    For(String),
    /// Weak evidence, which supports the cause without making it likely.
    Hint(String),
    Against(String),
    /// Not enough data for a result.
    Silent,
}

impl Finding {
    #[must_use]
    pub fn is_for(&self) -> bool {
        matches!(self, Self::For(_))
    }
}

pub struct Evidence {
    pub name: &'static str,
    pub evaluate: fn(&Case<'_>) -> Finding,
}

/// All evidence predicates, with the names used in cards.
pub const EVIDENCE: &[&[Evidence]] = &[
    oom::EVIDENCE,
    printed_memory::EVIDENCE,
    printed_values::EVIDENCE,
    smi::EVIDENCE,
    stack::EVIDENCE,
    measured::EVIDENCE,
];

/// Evaluates the evidence predicate `name` for `card`. Returns `None` for an unknown name.
#[must_use]
pub fn evaluate(name: &str, card: &Card, case: &Case<'_>) -> Option<Finding> {
    if let Some(pattern) = name.strip_prefix("beside:") {
        return Some(beside(pattern, case));
    }
    if let Some(pattern) = name.strip_prefix(LOG_PREFIX) {
        return Some(in_text(pattern, case));
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
            all.into_iter().find(|e| e.name == name).map(|e| (e.evaluate)(case))
        }
    }
}

/// Evaluates a condition of a card. `a|b` means a or b, and `!a` means not a.
#[must_use]
pub fn holds(condition: &str, card: &Card, case: &Case<'_>) -> bool {
    condition.split('|').any(|name| match name.strip_prefix('!') {
        Some(name) => !evaluate(name, card, case).is_some_and(|f| f.is_for()),
        None => evaluate(name, card, case).is_some_and(|f| f.is_for()),
    })
}

/// Returns true if cards can refer to this name.
#[must_use]
pub fn is_known(name: &str) -> bool {
    name.starts_with("beside:")
        || name.starts_with(LOG_PREFIX)
        || ["many-ranks", "ranks-differ", "assertion-table", "xid-table"].contains(&name)
        || EVIDENCE.iter().copied().flatten().any(|e| e.name == name)
}

fn beside(pattern: &str, case: &Case<'_>) -> Finding {
    let found = case.beside.iter().find(|id| match pattern.strip_suffix('*') {
        Some(beginning) => id.starts_with(beginning),
        None => **id == pattern,
    });
    found.map_or(Finding::Silent, |id| {
        let card = Catalogue::embedded().card(id);
        let name = card.map_or(*id, |card| card.headline.as_str());
        Finding::For(format!("{name} was found in the same crash"))
    })
}

/// Prefix of a condition that is an expression for the log: `log:Loaded \d+ blocks`.
const LOG_PREFIX: &str = "log:";

fn in_text(pattern: &str, case: &Case<'_>) -> Finding {
    let pattern = Pattern::new(pattern);
    match [case.context, case.start].into_iter().any(|text| pattern.groups(text).is_some()) {
        true => Finding::For("the log contains it".into()),
        false => Finding::Silent,
    }
}

fn many_ranks(case: &Case<'_>) -> Finding {
    if case.ranks > 1 {
        Finding::For(format!("{} ranks report this error", case.ranks))
    } else {
        Finding::Silent
    }
}

/// Evaluates evidence for a log of which nothing else is known.
#[cfg(test)]
fn in_log(evaluate: fn(&Case<'_>) -> Finding, context: &str) -> Finding {
    evaluate(&Case {
        found: &FieldMap::default(),
        context,
        start: "",
        frames: &[],
        beside: &[],
        ranks: 1,
        table: None,
        comparison: None,
        measured: &Measured::default(),
    })
}
