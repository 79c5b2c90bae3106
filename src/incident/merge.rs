//! Decides whether two incident records describe the same incident, and merges them.
//!
//! Several observers may report the same failure: dashboards connected to the host's agent, a recorder, and `gputop
//! run`, whose record reaches other hosts through the store of its own host. Each observer has different data and knows
//! nothing about the others. The conclusions arrive in any order, and some arrive several times.
//!
//! - From **one observer**, the later conclusion wins regardless of confidence, because it is based on at least as much
//!   data.
//! - From **two observers**, the better source wins: the program's own messages are better than counters, and counters
//!   are better than the fact that the program exited.
//! - If the sources are equally good, the **better informed** conclusion wins. The criteria are, in this order: fixes
//!   that were replayed under other settings, more fields (a message that was read only partly yields fewer), evidence
//!   on more causes, and higher confidence.
//! - If both conclusions are equally good, the existing one is retained, so that repeated merges do not alternate
//!   between them.
//!
//! The final result therefore does not depend on the order of arrival or on repetitions. Data from the rejected
//! conclusion is added to the chosen one: fields, log location, quotation and consequences. The higher severity is
//! used.

use std::cmp::Ordering;
use std::sync::Arc;

use gputop_model::incident::Fields;
use gputop_model::incident_record::{Evidence, Excerpt, SCHEMA, Track};
use gputop_model::{DetectedBy, Event, Incident, Millis, Quote, Record, Severity, Variable};
use serde_json::{Map, Value};

/// Maximum time between an incident and the exit that it caused. The live diagnosis uses the same limit.
const MAX_EXIT_DELAY: Millis = Millis(30_000);

/// Returns true if both records describe the same incident: they have the same key, describe the exit of the same
/// process, or describe an exit and its cause.
pub fn is_same(one: &Record, other: &Record) -> bool {
    let is_exit = |record: &Record| {
        record.key.process.is_some() && record.incident.severity == Severity::Fatal
    };
    one.key.is_same(&other.key)
        // The command may exit later than one of its processes.
        || (one.key.has_same_subject(&other.key) && is_exit(one) && is_exit(other))
        || (one.key.shares_subject(&other.key)
            && (is_exit_after(one, other) || is_exit_after(other, one)))
}

/// Returns true if `exit` was diagnosed when a process exited, from log text of unknown time, and `before` may describe
/// the error in that text. The exit may come much later than the error, because interpreters may take a long time to
/// exit.
fn is_exit_after(exit: &Record, before: &Record) -> bool {
    let exited = exit.key.first;
    exit.evidence.events.is_empty()
        && before.concluded_by.is_some()
        && exit.key.process.is_some()
        && exit.incident.severity == Severity::Fatal
        && exit.incident.family == before.incident.family
        && before.key.first <= exited
        && exited.since(before.key.first) <= MAX_EXIT_DELAY
}

/// Merges two records. The result has the better explanation (that of `one` if both are equally good), the higher
/// severity, all data of both records, and the name of `one`.
pub fn merge(one: Record, other: Record) -> Record {
    let is_better = is_better(&other, &one);
    let key = one.key.merged(other.key);
    let mut incident = merged(one.incident, other.incident, is_better);
    if let Some(part) = key.process.filter(|_| key.run.is_some()) {
        incident.fields.pid = Some(part.pid);
    }
    Record {
        schema: SCHEMA,
        incident,
        key,
        concluded_by: if is_better { other.concluded_by } else { one.concluded_by },
        command: one.command.or(other.command),
        excerpt: longer(one.excerpt, other.excerpt),
        evidence: Evidence {
            events: events(one.evidence.events, other.evidence.events),
            measured: filled(other.evidence.measured, one.evidence.measured),
        },
        scene: match (one.scene, other.scene) {
            (Some(ours), Some(theirs)) => {
                let [ours, theirs] = [ours, theirs].map(Arc::unwrap_or_clone);
                Some(Arc::new(ours.filled(theirs)))
            }
            (ours, theirs) => ours.or(theirs),
        },
        history: tracks(one.history, other.history),
        environment: variables(one.environment, other.environment),
        versions: other.versions.into_iter().chain(one.versions).collect(),
        more: filled(one.more, other.more),
    }
}

/// Incident fields that describe where the failure happened instead of what happened.
const LOCATION_FIELDS: [&str; 6] = ["pid", "program", "gpu_index", "rank", "pci_bus", "exit_code"];

/// Returns true if `new`'s conclusion replaces `old`'s.
fn is_better(new: &Record, old: &Record) -> bool {
    let has_same_observer = new.concluded_by.is_some() && new.concluded_by == old.concluded_by;
    let by_source = source_rank(&new.incident).cmp(&source_rank(&old.incident));
    by_source
        .then_with(|| match has_same_observer {
            true if has_seen_as_much(&new.evidence.events, &old.evidence.events) => {
                Ordering::Greater
            }
            true => Ordering::Less,
            false => compare_information(&new.incident, &old.incident),
        })
        .is_gt()
}

/// Returns true if the `new` conclusion is based on at least as many events as the `old` one. Compares only the latest
/// event of one agent, because the `old` record may also contain events of other agents.
fn has_seen_as_much(new: &[Event], old: &[Event]) -> bool {
    let Some(last) = new.last() else { return true };
    let latest = |events: &[Event]| {
        events.iter().filter(|event| event.agent == last.agent).map(|event| event.seq).max()
    };
    latest(new) >= latest(old)
}

/// Ranks the source of an explanation: the program's own messages are better than observations from outside.
fn source_rank(incident: &Incident) -> u8 {
    match incident.detected_by {
        DetectedBy::Hook | DetectedBy::Log => 3,
        DetectedBy::Allocator | DetectedBy::Ranks => 2,
        DetectedBy::Xid => 1,
        DetectedBy::Exit | DetectedBy::Unknown => 0,
    }
}

/// Compares the amount of information in two conclusions whose sources are equally good.
fn compare_information(new: &Incident, old: &Incident) -> Ordering {
    let known = |incident: &Incident| {
        let causes = incident.causes.iter();
        let has_some = causes.filter(|cause| !cause.r#for.is_empty() || !cause.against.is_empty());
        let fields = count_fields(&incident.fields);
        (is_replayed(incident), fields, has_some.count())
    };
    known(new).cmp(&known(old)).then_with(|| new.confidence.total_cmp(&old.confidence))
}

/// Counts the fields that describe the failure itself, not its location.
fn count_fields(fields: &Fields) -> usize {
    let Ok(Value::Object(fields)) = serde_json::to_value(fields) else { return 0 };
    fields.keys().map(String::as_str).filter(|name| !LOCATION_FIELDS.contains(name)).count()
}

fn is_replayed(incident: &Incident) -> bool {
    incident.fixes.iter().any(|fix| fix.replayed.is_some())
}

/// Merges incidents `a` and `b`: returns the better conclusion with the other's data added. Keeps `a`'s name.
fn merged(a: Incident, b: Incident, is_better: bool) -> Incident {
    let (mut chosen, other) =
        if is_better { (b.clone(), a.clone()) } else { (a.clone(), b.clone()) };
    if chosen.id == other.id && is_replayed(&other) && !is_replayed(&chosen) {
        // `needs` explains what the replayed values are based on, so it is copied together with the fixes.
        (chosen.fixes, chosen.needs) = (other.fixes.clone(), other.needs.clone());
    }
    chosen.uid = a.uid.or(b.uid);
    chosen.severity = match (a.severity, b.severity) {
        // `Unknown` comes from a later gputop version, so any known severity is preferred.
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
    if let (Ok(Value::Object(ours)), Ok(Value::Object(theirs))) =
        (serde_json::to_value(&chosen.fields), serde_json::to_value(&other.fields))
    {
        let all = Value::Object(filled(ours, theirs));
        chosen.fields = serde_json::from_value(all).unwrap_or(chosen.fields);
    }
    for consequence in other.secondary {
        let is_known = |id: &str| chosen.secondary.iter().any(|known| known.id == id);
        if chosen.id != consequence.id && !is_known(&consequence.id) {
            chosen.secondary.push(consequence);
        }
    }
    chosen
}

/// Returns the earlier of two RFC 3339 times. Parses both times, because their texts cannot be compared directly if the
/// time zones differ.
fn earlier(a: Option<String>, b: Option<String>) -> Option<String> {
    let parse = |text: &String| text.parse::<jiff::Timestamp>().ok();
    match (a, b) {
        (Some(a), Some(b)) => match (parse(&a), parse(&b)) {
            (Some(first), Some(second)) if second < first => Some(b),
            (None, Some(_)) => Some(b),
            _ => Some(a),
        },
        (a, b) => a.or(b),
    }
}

/// Adds the entries of `b` that are missing from `a`.
fn filled(mut a: Map<String, Value>, b: Map<String, Value>) -> Map<String, Value> {
    for (name, value) in b {
        a.entry(name).or_insert(value);
    }
    a
}

fn longer(a: Option<Excerpt>, b: Option<Excerpt>) -> Option<Excerpt> {
    match (a, b) {
        (Some(a), Some(b)) if b.text.len() > a.text.len() => Some(b),
        (a, b) => a.or(b),
    }
}

fn events(mut a: Vec<Event>, b: Vec<Event>) -> Vec<Event> {
    let same = |x: &Event, y: &Event| x.agent == y.agent && x.seq == y.seq;
    for event in b {
        if !a.iter().any(|known| same(known, &event)) {
            a.push(event);
        }
    }
    a.sort_by_key(|event| event.time);
    a
}

fn tracks(mut a: Vec<Track>, b: Vec<Track>) -> Vec<Track> {
    for track in b {
        match a.iter_mut().find(|known| known.series == track.series) {
            Some(known) if track.known() > known.known() => *known = track,
            Some(_) => {}
            None => a.push(track),
        }
    }
    a
}

fn variables(mut a: Vec<Variable>, b: Vec<Variable>) -> Vec<Variable> {
    for variable in b {
        if a.iter().all(|known| known.name != variable.name) {
            a.push(variable);
        }
    }
    a
}

#[cfg(test)]
mod tests;
