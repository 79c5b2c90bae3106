//! Groups sightings (signature matches in a log) into crashes, and finds the cause of each crash.

use std::collections::{BTreeMap, BTreeSet};

use gputop_model::incident::Severity;

use crate::card::Card;
use crate::conclusion::diagnosis::{Diagnosis, Item};
use crate::traceback::{Traceback, TracebackFrame};

/// Maximum number of lines between sightings of one crash.
const MAX_GAP: u64 = 500;
/// Maximum number of lines between a cause and an error that occurs long after it, such as a collective timeout.
const MAX_LATE_GAP: u64 = 20_000;
/// Maximum number of lines by which a consequence can precede its cause in a log with buffered output.
const MAX_REORDERING: u64 = 100;

/// Families of error cards for messages in which a launcher, server or scheduler reports that another process failed.
pub(super) const REPORTS: &[&str] = &["process", "server", "stopped"];
/// Families of those that say only how a process ended.
pub(super) const EXITS: &[&str] = &["process", "stopped"];

/// Groups the sightings in all logs by crash. The last crash of each log comes last.
pub(super) fn crashes<'a>(diagnosis: &Diagnosis<'a>) -> Vec<Vec<Item<'a>>> {
    let mut crashes = Vec::new();
    // If each rank has its own log, treat the last crashes of all logs as one crash.
    let mut last_crashes = Vec::new();
    for (log, findings) in diagnosis.logs.iter().enumerate() {
        let mut open: Vec<Item<'a>> = Vec::new();
        let mut last = None;
        for sighting in &findings.sightings {
            let item = Item { log, sighting, card: sighting.card };
            let gap = last.map_or(0, |last| sighting.first_line.saturating_sub(last));
            let reach = if comes_late(diagnosis.card(&item)) { MAX_LATE_GAP } else { MAX_GAP };
            if gap > reach {
                crashes.push(std::mem::take(&mut open));
                last = None;
            }
            last = last.max(Some(sighting.last_line));
            open.push(item);
        }
        if diagnosis.logs.len() > 1 {
            last_crashes.append(&mut open);
        } else if !open.is_empty() {
            crashes.push(open);
        }
    }
    if !last_crashes.is_empty() {
        crashes.push(last_crashes);
    }
    crashes
}

pub(super) fn comes_late(card: &Card) -> bool {
    card.follows.iter().any(|f| f == "*")
}

/// The process that failed first according to torchrun's table. torchrun polls its workers, so the table is in the
/// order of their exits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FirstFailure {
    pub(super) rank: u32,
    pub(super) pid: Option<u64>,
}

/// Returns the entry "Root Cause (first observed failure)" of torchrun's last table.
pub(super) fn first_failure(diagnosis: &Diagnosis<'_>, items: &[Item<'_>]) -> Option<FirstFailure> {
    items.iter().rev().find_map(|item| {
        let found = &item.sighting.found;
        let number = |name: &str| found.get(name).and_then(serde_json::Value::as_u64);
        let is_table = diagnosis.card(item).family == "process" && found.contains_key("local_rank");
        let rank = number("rank").filter(|_| is_table)?;
        Some(FirstFailure { rank: u32::try_from(rank).ok()?, pid: number("pid") })
    })
}

/// Returns the index of the item (a sighting with its card) that caused the other items of a crash.
pub(super) fn cause(
    diagnosis: &Diagnosis<'_>,
    items: &[Item<'_>],
    first_failure: Option<&FirstFailure>,
) -> usize {
    // Compare cards instead of items, because thousands of items may have the same few cards.
    let mut by_card: BTreeMap<usize, Vec<&Item<'_>>> = BTreeMap::new();
    for item in items {
        by_card.entry(item.card).or_default().push(item);
    }
    let is_consequence = |item: &Item<'_>| {
        let card = diagnosis.card(item);
        by_card.values().any(|others| {
            let cause = diagnosis.card(others[0]);
            // If two items can each cause the other, treat the earlier one as the cause.
            let mutual = cause.is_consequence_of(&card.id);
            let precedes =
                |other: &&Item<'_>| may_precede(other, item) && !(mutual && is_before(item, other));
            card.is_consequence_of(&cause.id)
                && severity_order(cause) <= severity_order(card)
                && others.iter().any(precedes)
        })
    };
    // Order items by time only if all of them have a time in the same format.
    let formats: BTreeSet<Option<u8>> = items
        .iter()
        .map(|item| time(item).and_then(|time| time.as_bytes().get(4).copied()))
        .collect();
    let has_times = formats.len() == 1 && !formats.contains(&None);
    let key = |(index, item): &(usize, &Item<'_>)| {
        let time = time(item).filter(|_| has_times).map(str::to_owned);
        (
            is_consequence(item),
            severity_order(diagnosis.card(item)),
            first_failure.is_some_and(|first| diagnosis.is_of_other_rank(item, first)),
            item.sighting.weak,
            time,
            *index,
        )
    };
    items.iter().enumerate().min_by_key(key).map_or(0, |(index, _)| index)
}

/// Returns a sort key that is lower for higher severity. `Note` is last, because a notice does not explain a failure.
fn severity_order(card: &Card) -> u8 {
    match card.severity {
        Severity::Fatal => 0,
        Severity::Caught => 1,
        Severity::Note | Severity::Unknown => 2,
    }
}

/// Returns the log time of an item, or `None` if its format is not comparable.
fn time<'i>(item: &Item<'i>) -> Option<&'i str> {
    // ISO and glog times can be compared as strings. Other formats contain the name of the month.
    item.sighting
        .time
        .as_deref()
        .filter(|time| time.as_bytes().first().is_some_and(u8::is_ascii_digit))
}

fn is_before(a: &Item<'_>, b: &Item<'_>) -> bool {
    match (time(a), time(b)) {
        (Some(x), Some(y)) if x != y && x.as_bytes().get(4) == y.as_bytes().get(4) => x < y,
        _ => (a.log, a.sighting.first_line) < (b.log, b.sighting.first_line),
    }
}

/// Returns true if `cause` was early enough to have caused `consequence`.
fn may_precede(cause: &Item<'_>, consequence: &Item<'_>) -> bool {
    let (a, b) = (&cause.sighting.found, &consequence.sighting.found);
    if a.contains_key("xid") && b.contains_key("xid") {
        // Compare line numbers, PIDs and GPUs. Lines of the kernel log are in chronological order, and each is about
        // one GPU and one process.
        let differs =
            |name: &str| matches!((a.get(name), b.get(name)), (Some(x), Some(y)) if x != y);
        let earlier = cause.sighting.first_line <= consequence.sighting.first_line;
        return earlier && !differs("pid") && !differs("pci_bus");
    }
    cause.log != consequence.log
        || cause.sighting.first_line <= consequence.sighting.last_line + MAX_REORDERING
}

/// Returns the ordinary Python exception that caused a failure. It comes from another rank, or was printed well before
/// the failure.
pub(super) fn exception<'a>(
    diagnosis: &Diagnosis<'a>,
    card: &Card,
    cause: &Item<'a>,
    first_failure: Option<&FirstFailure>,
) -> Option<(usize, &'a Traceback)> {
    if !card.follows.iter().any(|f| f == "program-exception") {
        return None;
    }
    let failed = cause.sighting;
    // Also accept a traceback directly above a launcher's report, because it may be the failed worker's traceback.
    let is_report = REPORTS.contains(&card.family.as_str());
    let max_gap = if is_report { MAX_GAP } else { MAX_LATE_GAP };
    let all = diagnosis.logs.iter().enumerate().flat_map(|(log, findings)| {
        findings
            .tracebacks
            .iter()
            .filter(move |t| {
                let elsewhere = log != cause.log
                    || (t.rank.is_some() && t.rank != diagnosis.rank(cause))
                    || t.writer != failed.writer;
                let earlier =
                    t.last_line < failed.first_line && failed.first_line - t.last_line <= max_gap;
                !t.is_wrapper()
                && !t.exception.is_empty()
                && (log != cause.log || earlier)
                && (elsewhere || is_report || is_alone(t, failed.first_line))
                // Skip exceptions inside a server's own code, because they are not errors in the user's program.
                && (!is_report || t.frames.iter().any(TracebackFrame::is_users))
            })
            .map(move |t| (log, t))
    });
    let is_of_other_rank = |(log, t): &(usize, &Traceback)| {
        let rank = t.rank.or(diagnosis.logs[*log].rank);
        first_failure.is_some_and(|first| rank.is_some_and(|rank| rank != first.rank))
    };
    all.min_by_key(is_of_other_rank)
}

/// Returns the first exception of a server's own code near the report that its engine stopped.
pub(super) fn engine_exception<'a>(
    diagnosis: &Diagnosis<'a>,
    item: &Item<'a>,
) -> Option<&'a Traceback> {
    /// Messages of exceptions that only report the failure of another process.
    const WRAPPERS: &[&str] =
        &["See root cause", "See stack trace", "initialization failed", "check the stack trace"];
    let report = item.sighting;
    let lines = report.first_line.saturating_sub(MAX_GAP)..=report.last_line + MAX_GAP;
    diagnosis.logs[item.log].tracebacks.iter().find(|t| {
        let name = t.name();
        let is_report = t.is_wrapper()
            || name.ends_with("DeadError")
            || WRAPPERS.iter().any(|words| t.message.contains(words));
        lines.contains(&t.last_line) && !name.is_empty() && !is_report
    })
}

/// Returns true if the traceback is not part of the exception chain that ends in the failure.
fn is_alone(traceback: &Traceback, failed: u64) -> bool {
    failed - traceback.last_line > 40
}
