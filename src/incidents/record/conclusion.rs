//! Which of two conclusions about one failure stands.
//!
//! One failure may be seen by several: a dashboard that follows what the host's agent tells, another one elsewhere, a
//! recorder, and `gputop run` around the command itself, whose record reaches other hosts from the store of its own. Each
//! knows something else, none knows of the others, and they come in any order, some more than once.
//!
//! - Of **one observer** the later conclusion stands, however sure the earlier one was: it has seen at least as much.
//! - Of **two** the better founded one does: the program's own words before counters, those before its end.
//! - Of equally founded ones the **better informed**: what was replayed under other settings first, then who found all the
//!   fields of the other and more (a message that was read in part has fewer), then who has evidence on more causes, then
//!   who is surer.
//! - Of equal ones the one that is there stays, so that nothing flips.
//!
//! So the order in which they come changes nothing that is shown in the end, and what comes again changes nothing. What
//! the other one knew is added to what stands: fields, place in the log, quotation, consequences; the severity is the
//! graver of the two.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::Record;
use crate::model::event::Event;
use crate::model::incident::{DetectedBy, Fields, Incident, Quote, Severity};

/// Fields that say where it was, and nothing about what.
const PLACES: [&str; 5] = ["pid", "gpu_index", "rank", "pci_bus", "exit_code"];

/// Whether the conclusion of `new` takes the place of that of `old`.
pub(super) fn is_better(new: &Record, old: &Record) -> bool {
    let is_one_observers = new.concluded_by.is_some() && new.concluded_by == old.concluded_by;
    let founded = foundation(&new.incident).cmp(&foundation(&old.incident));
    founded
        .then_with(|| match is_one_observers {
            true if has_seen_as_much(&new.evidence.events, &old.evidence.events) => {
                Ordering::Greater
            }
            true => Ordering::Less,
            false => informed(&new.incident, &old.incident),
        })
        .is_gt()
}

/// By the newest that an agent told it; what others saw is in the old one as well.
fn has_seen_as_much(new: &[Event], old: &[Event]) -> bool {
    let Some(last) = new.last() else { return true };
    let of_it = |events: &[Event]| {
        let seen = events.iter().filter(|event| event.agent == last.agent);
        seen.map(|event| event.seq).max()
    };
    of_it(new) >= of_it(old)
}

/// How well founded an explanation is: the program's own words before what was seen from outside.
fn foundation(incident: &Incident) -> u8 {
    match incident.detected_by {
        DetectedBy::Hook | DetectedBy::Log => 3,
        DetectedBy::Allocator => 2,
        DetectedBy::Xid => 1,
        DetectedBy::Exit | DetectedBy::Unknown => 0,
    }
}

/// Which of two that are equally founded knows more.
fn informed(new: &Incident, old: &Incident) -> Ordering {
    let evidence = |incident: &Incident| {
        let causes = incident.causes.iter();
        let has_some = causes.filter(|cause| !cause.r#for.is_empty() || !cause.against.is_empty());
        has_some.count()
    };
    let (new_fields, old_fields) = (named(&new.fields), named(&old.fields));
    let has_more =
        |a: &BTreeSet<String>, b: &BTreeSet<String>| a.len() > b.len() && a.is_superset(b);
    is_replayed(new)
        .cmp(&is_replayed(old))
        .then(has_more(&new_fields, &old_fields).cmp(&has_more(&old_fields, &new_fields)))
        .then_with(|| evidence(new).cmp(&evidence(old)))
        .then_with(|| new.confidence.total_cmp(&old.confidence))
}

/// The names of those that tell what happened.
fn named(fields: &Fields) -> BTreeSet<String> {
    let Ok(Value::Object(fields)) = serde_json::to_value(fields) else {
        return BTreeSet::new();
    };
    let names = fields.into_iter().map(|(name, _)| name);
    names
        .filter(|name| !PLACES.contains(&name.as_str()))
        .collect()
}

fn is_replayed(incident: &Incident) -> bool {
    incident.fixes.iter().any(|fix| fix.replayed.is_some())
}

/// `b`'s conclusion if it is better, else `a`'s, with what the other knows beside it. The name is `a`'s.
pub(super) fn one_of(a: Incident, b: Incident, is_better: bool) -> Incident {
    let (mut chosen, other) = if is_better {
        (b.clone(), a.clone())
    } else {
        (a.clone(), b.clone())
    };
    if chosen.id == other.id && is_replayed(&other) && !is_replayed(&chosen) {
        // What the figures rest on is said among what is needed.
        (chosen.fixes, chosen.needs) = (other.fixes.clone(), other.needs.clone());
    }
    chosen.uid = a.uid.or(b.uid);
    chosen.severity = match (a.severity, b.severity) {
        // An unknown word is a later version's: it stands only where nothing else does.
        (Severity::Unknown, known) | (known, Severity::Unknown) => known,
        (a, b) => a.max(b),
    };
    chosen.count = a.count.max(b.count);
    chosen.time = earlier(a.time, b.time);
    chosen.host = chosen.host.or(other.host);
    chosen.log = chosen.log.or(other.log);
    if chosen.quote == Quote::default() && chosen.id == other.id {
        chosen.quote = other.quote;
    }
    chosen.at = chosen.at.or(other.at);
    if let (Ok(Value::Object(ours)), Ok(Value::Object(theirs))) = (
        serde_json::to_value(&chosen.fields),
        serde_json::to_value(&other.fields),
    ) {
        let all = Value::Object(filled(ours, theirs));
        chosen.fields = serde_json::from_value(all).unwrap_or(chosen.fields);
    }
    for one in other.secondary {
        if chosen.id != one.id && chosen.secondary.iter().all(|known| known.id != one.id) {
            chosen.secondary.push(one);
        }
    }
    chosen
}

/// RFC 3339 in one time zone sorts as text; in several the moment counts.
fn earlier(a: Option<String>, b: Option<String>) -> Option<String> {
    let moment = |text: &String| text.parse::<jiff::Timestamp>().ok();
    match (a, b) {
        (Some(a), Some(b)) => match (moment(&a), moment(&b)) {
            (Some(first), Some(second)) if second < first => Some(b),
            (None, Some(_)) => Some(b),
            _ => Some(a),
        },
        (a, b) => a.or(b),
    }
}

/// `a`, and of `b` what it lacks.
pub(super) fn filled(mut a: Map<String, Value>, b: Map<String, Value>) -> Map<String, Value> {
    for (name, value) in b {
        a.entry(name).or_insert(value);
    }
    a
}
