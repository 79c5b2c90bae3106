//! Which sightings are one crash, and which of them is its cause.

use std::collections::BTreeMap;

use super::{Item, Judge};
use crate::diagnose::card::Card;
use crate::diagnose::traceback::Traceback;
use crate::model::incident::Severity;

/// Sightings further apart than this many lines of one log are different crashes …
const APART: u64 = 500;
/// … unless the later one is the kind of thing that comes long after its cause, as a collective's timeout does.
const LATE: u64 = 20_000;
/// A consequence may be printed this many lines before its cause: output is buffered.
const BEFORE: u64 = 100;

/// Exceptions that end a program without being its fault, or only pass a failure on.
const NOT_CAUSES: &[&str] = &[
    "KeyboardInterrupt",
    "SystemExit",
    "BrokenPipeError",
    "ConnectionResetError",
    "EOFError",
    "ChildFailedError",
    "DistBackendError",
    "DistStoreError",
    "DistNetworkError",
    "ProcessExitedException",
    "ProcessRaisedException",
    "CalledProcessError",
    "SignalException",
    "RayTaskError",
    "ActorDiedError",
    "RayActorError",
    "WorkerCrashedError",
    "CancelledError",
    "TimeoutError",
    "Empty",
    "GeneratorExit",
    "StopIteration",
];

/// The sightings of all logs, crash by crash, in their order.
pub(super) fn crashes<'a>(judge: &Judge<'a>) -> Vec<Vec<Item<'a>>> {
    let mut crashes = Vec::new();
    // Where ranks log to files of their own, the ends of all files are one crash.
    let mut ends = Vec::new();
    for (log, findings) in judge.logs.iter().enumerate() {
        let mut open: Vec<Item<'a>> = Vec::new();
        let mut last = None;
        for sighting in &findings.sightings {
            let item = Item {
                log,
                sighting,
                card: sighting.card,
            };
            let gap = last.map_or(0, |last| sighting.first_line.saturating_sub(last));
            let reach = if comes_late(judge.card(&item)) {
                LATE
            } else {
                APART
            };
            if gap > reach {
                crashes.push(std::mem::take(&mut open));
                last = None;
            }
            last = last.max(Some(sighting.last_line));
            open.push(item);
        }
        if judge.logs.len() > 1 {
            ends.append(&mut open);
        } else if !open.is_empty() {
            crashes.push(open);
        }
    }
    if !ends.is_empty() {
        crashes.push(ends);
    }
    crashes
}

fn comes_late(card: &Card) -> bool {
    card.follows.iter().any(|f| f == "*")
}

/// The index of the item that the others follow from.
pub(super) fn cause(judge: &Judge<'_>, items: &[Item<'_>]) -> usize {
    // Thousands of items have few cards between them.
    let mut by_card: BTreeMap<usize, Vec<&Item<'_>>> = BTreeMap::new();
    for item in items {
        by_card.entry(item.card).or_default().push(item);
    }
    let is_consequence = |item: &Item<'_>| {
        let card = judge.card(item);
        by_card.values().any(|others| {
            let cause = judge.card(others[0]);
            // Two that could each follow from the other: the earlier counts.
            let mutual = cause.is_consequence_of(&card.id);
            let precedes =
                |other: &&Item<'_>| may_precede(other, item) && !(mutual && is_before(item, other));
            card.is_consequence_of(&cause.id)
                && grave(cause) <= grave(card)
                && others.iter().any(precedes)
        })
    };
    // A time that only some lines have cannot order all.
    let has_times = items.iter().all(|item| time(item).is_some());
    let key = |(index, item): &(usize, &Item<'_>)| {
        let time = time(item).filter(|_| has_times).map(str::to_owned);
        (
            is_consequence(item),
            grave(judge.card(item)),
            item.sighting.weak,
            time,
            *index,
        )
    };
    let first = items.iter().enumerate().min_by_key(key);
    first.map_or(0, |(index, _)| index)
}

/// The graver, the lower: a note explains no failure.
fn grave(card: &Card) -> u8 {
    match card.severity {
        Severity::Fatal => 0,
        Severity::Caught => 1,
        Severity::Note | Severity::Unknown => 2,
    }
}

/// Times of one log are comparable where all lines have one; across logs a missing time says nothing.
fn time<'i>(item: &Item<'i>) -> Option<&'i str> {
    // Without a year and a zone two formats cannot be compared, ISO can.
    item.sighting
        .time
        .as_deref()
        .filter(|time| time.as_bytes().first().is_some_and(u8::is_ascii_digit))
}

fn is_before(a: &Item<'_>, b: &Item<'_>) -> bool {
    match (time(a), time(b)) {
        (Some(x), Some(y)) if x != y => x < y,
        _ => (a.log, a.sighting.first_line) < (b.log, b.sighting.first_line),
    }
}

/// Whether `cause` was early enough to have led to `consequence`.
fn may_precede(cause: &Item<'_>, consequence: &Item<'_>) -> bool {
    let (a, b) = (&cause.sighting.found, &consequence.sighting.found);
    if a.contains_key("xid") && b.contains_key("xid") {
        // Lines of the kernel log are in order, and each is about one GPU and one process.
        let other = |name: &str| matches!((a.get(name), b.get(name)), (Some(x), Some(y)) if x != y);
        let earlier = cause.sighting.first_line <= consequence.sighting.first_line;
        return earlier && !other("pid") && !other("pci_bus");
    }
    cause.log != consequence.log
        || cause.sighting.first_line <= consequence.sighting.last_line + BEFORE
}

/// The plain exception that a GPU-looking failure followed from: of another rank, or well before it.
pub(super) fn exception<'a>(
    judge: &Judge<'a>,
    card: &Card,
    cause: &Item<'a>,
) -> Option<(usize, &'a Traceback)> {
    if !card.follows.iter().any(|f| f == "program-exception") {
        return None;
    }
    let failed = cause.sighting;
    judge.logs.iter().enumerate().find_map(|(log, findings)| {
        let mut all = findings.tracebacks.iter();
        let found = all.find(|t| {
            let name = t.exception.rsplit('.').next().unwrap_or(&t.exception);
            let elsewhere = log != cause.log
                || (t.rank.is_some() && t.rank != judge.rank(cause))
                || t.writer != failed.writer;
            let earlier =
                t.last_line < failed.first_line && failed.first_line - t.last_line <= LATE;
            !NOT_CAUSES.contains(&name)
                && !t.exception.is_empty()
                && (log != cause.log || earlier)
                && (elsewhere || is_alone(t, failed.first_line))
        });
        found.map(|t| (log, t))
    })
}

/// Not part of the chain of exceptions that ends in the failure itself.
fn is_alone(traceback: &Traceback, failed: u64) -> bool {
    failed - traceback.last_line > 40
}
