//! Evaluates evidence for and against causes: named predicates over the numbers in a message, the stack above the
//! message, other incidents of the same crash, and measurements. Cards refer to predicates by name. Each predicate
//! returns a phrase that states its evidence.
//!
//! A log provides only text. A live process adds [`Measured`], which enables further predicates. A predicate that has
//! no data returns `None`, so missing data never rules out a cause.

mod case;
mod measured;
mod measurements;
mod oom;
mod pools;
mod printed_memory;
mod printed_values;
mod ranks;
pub(super) mod smi;
mod stack;

use self::case::supports;
pub use self::case::{Case, EvidenceRule, Finding};

pub use measurements::{FreeBlockSummary, Measured, PinnedSegments, PoolAtFailure};
pub(super) use oom::fragmentation;
pub(super) use pools::{add_fields, add_preallocation};
pub(super) use stack::kernel_package;

use super::card::Card;
use super::catalogue::Catalogue;
use super::signature::Pattern;

/// All evidence predicates, with the names used in cards.
pub const EVIDENCE: &[&[EvidenceRule]] = &[
    oom::EVIDENCE,
    pools::EVIDENCE,
    printed_memory::EVIDENCE,
    printed_values::EVIDENCE,
    smi::EVIDENCE,
    stack::EVIDENCE,
    measured::EVIDENCE,
    ranks::EVIDENCE,
];

/// Evaluates the evidence predicate `name` for `card`. Returns `None` for an unknown name, and
/// without enough data for a result.
#[must_use]
pub fn evaluate(name: &str, card: &Card, case: &Case<'_>) -> Option<Finding> {
    if let Some(pattern) = name.strip_prefix("beside:") {
        return beside(pattern, case);
    }
    if let Some(pattern) = name.strip_prefix(LOG_PREFIX) {
        return in_text(pattern, case);
    }
    match name {
        "many-ranks" => many_ranks(case),
        "ranks-differ" => {
            supports(case.comparison.is_some(), || "the ranks report different operations".into())
        }
        "assertion-table" | "xid-table" => supports(case.table == Some(&card.id), String::new),
        _ => EVIDENCE.iter().copied().flatten().find(|(known, _)| *known == name)?.1(case),
    }
}

/// Evaluates a condition of a card. `a|b` means a or b, and `!a` means not a.
#[must_use]
pub fn holds(condition: &str, card: &Card, case: &Case<'_>) -> bool {
    let is_for = |name: &str| matches!(evaluate(name, card, case), Some(Finding::For(_)));
    condition.split('|').any(|name| match name.strip_prefix('!') {
        Some(name) => !is_for(name),
        None => is_for(name),
    })
}

/// Returns true if cards can refer to this name.
#[must_use]
pub fn is_known(name: &str) -> bool {
    name.starts_with("beside:")
        || name.starts_with(LOG_PREFIX)
        || ["many-ranks", "ranks-differ", "assertion-table", "xid-table"].contains(&name)
        || EVIDENCE.iter().copied().flatten().any(|(known, _)| *known == name)
}

fn beside(pattern: &str, case: &Case<'_>) -> Option<Finding> {
    let id = case.beside.iter().find(|id| match pattern.strip_suffix('*') {
        Some(beginning) => id.starts_with(beginning),
        None => **id == pattern,
    })?;
    let card = Catalogue::embedded().card(id);
    let name = card.map_or(*id, |card| card.headline.as_str());
    Some(Finding::For(format!("{name} was found in the same crash")))
}

/// Prefix of a condition that is an expression for the log: `log:Loaded \d+ blocks`.
const LOG_PREFIX: &str = "log:";

fn in_text(pattern: &str, case: &Case<'_>) -> Option<Finding> {
    let pattern = Pattern::new(pattern);
    let is_in = |text| pattern.groups(text).is_some();
    supports(is_in(case.context) || is_in(case.start), || "the log contains it".into())
}

fn many_ranks(case: &Case<'_>) -> Option<Finding> {
    supports(case.ranks > 1, || format!("{} ranks report this error", case.ranks))
}

/// Evaluates evidence for a log of which nothing else is known.
#[cfg(test)]
fn in_log(evaluate: fn(&Case<'_>) -> Option<Finding>, context: &str) -> Option<Finding> {
    evaluate(&Case {
        found: &super::fields::FieldMap::default(),
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
