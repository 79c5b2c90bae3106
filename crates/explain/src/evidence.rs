//! Evaluates evidence for and against causes: named predicates over the numbers in a message, the stack above the
//! message, other incidents of the same crash, and measurements. Cards refer to predicates by name. Each predicate
//! returns a phrase that states its evidence.
//!
//! A log provides only text. A live process adds [`Measured`], which enables further predicates. A predicate that has
//! no data returns [`Finding::Silent`], so missing data never rules out a cause.

mod case;
mod measured;
mod measurements;
mod oom;
mod printed_memory;
mod printed_values;
pub(super) mod smi;
mod stack;

pub use self::case::{Case, EvidenceRule, Finding};

pub use measurements::{FreeBlockSummary, Measured, PinnedSegments};
pub(super) use oom::fragmentation;
pub(super) use stack::kernel_package;

use super::card::Card;
use super::catalogue::Catalogue;
use super::signature::Pattern;

/// All evidence predicates, with the names used in cards.
pub const EVIDENCE: &[&[EvidenceRule]] = &[
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
    if [case.context, case.start].into_iter().any(|text| pattern.groups(text).is_some()) {
        Finding::For("the log contains it".into())
    } else {
        Finding::Silent
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
