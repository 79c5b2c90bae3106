//! Builds incidents from sightings: groups the sightings, finds the cause, and chooses the card.
//!
//! A sighting is a match of an error signature in a log. Sightings that are close to each other in a log belong to one
//! crash. A sighting is a consequence if another sighting of the same crash can have caused it, according to their
//! cards. Among the remaining sightings, the most severe one is the cause (the earliest if several are equally severe),
//! and the others are listed below it. If several ranks report the same error, they become one incident. The last crash
//! comes first.

mod build;
mod causes;
mod diagnosis;
mod grouping;
mod jobs;
mod rank_comparison;
mod standard_time;

pub(super) use self::diagnosis::{Diagnosis, Item};

use std::collections::BTreeSet;
use std::fmt::Write as _;

use gputop_model::incident::{DetectedBy, Incident, Severity};
pub use jobs::jobs;

use self::grouping::{EXITS, FirstFailure, REPORTS};
use super::card::Card;
use super::catalogue::Catalogue;
use super::evidence::{self, Case, Measured};
use super::log::{LogFindings, TextSource};
use super::recovery::recover;

/// Returns the incidents in a job's logs, latest first, each with its consequences.
#[must_use]
pub fn diagnose(catalogue: &Catalogue, logs: &[LogFindings], measured: &Measured) -> Vec<Incident> {
    let diagnosis = Diagnosis { catalogue, logs, measured };
    let crashes = recover(|| grouping::crashes(&diagnosis)).unwrap_or_default();
    let mut incidents: Vec<Incident> = Vec::new();
    for items in crashes.into_iter().rev() {
        // Continue after a panic, so that a crash that gputop fails to diagnose does not affect the others.
        let Some(incident) = recover(|| diagnosis.incident(items)).flatten() else {
            continue;
        };
        // Count repeated incidents instead of listing each one, because a retry loop can report the same error many
        // times.
        match incidents.iter_mut().find(|known| is_same(known, &incident)) {
            Some(known) => known.count = known.count.saturating_add(incident.count),
            None => incidents.push(incident),
        }
    }
    fatal_first(&mut incidents);
    incidents
}

/// Moves fatal incidents to the front, and otherwise preserves the order.
pub fn fatal_first(incidents: &mut [Incident]) {
    incidents.sort_by_key(|incident| incident.severity != Severity::Fatal);
}

fn is_same(a: &Incident, b: &Incident) -> bool {
    a.id == b.id
        && a.at == b.at
        && a.fields.rank == b.fields.rank
        && a.fields.xid == b.fields.xid
        && a.log.as_ref().map(|l| &l.file) == b.log.as_ref().map(|l| &l.file)
}

/// Returns true if the incident and its consequences only say that processes exited, as a launcher's table does.
fn only_reports_exits(incident: &Incident) -> bool {
    let is_exit = |incident: &Incident| EXITS.contains(&incident.family.as_str());
    is_exit(incident) && incident.secondary.iter().all(is_exit)
}

impl<'a> Diagnosis<'a> {
    pub(super) fn card(&self, item: &Item<'_>) -> &'a Card {
        &self.catalogue.cards[item.card]
    }

    pub(super) fn rank(&self, item: &Item<'_>) -> Option<u32> {
        item.sighting.rank.or(self.logs[item.log].rank)
    }

    /// Collects the facts about `item` that the evidence predicates need. `beside` lists the other cards in the same
    /// crash.
    pub(super) fn case<'c>(&self, item: &Item<'c>, beside: &'c [&'c str], ranks: usize) -> Case<'c>
    where
        'a: 'c,
    {
        Case {
            found: &item.sighting.found,
            context: &item.sighting.context,
            start: &self.logs[item.log].start,
            frames: &item.sighting.frames,
            beside,
            ranks,
            table: item.sighting.table.as_deref(),
            comparison: None,
            measured: self.measured,
        }
    }

    /// Chooses a card for each item in a crash, based on the item's values and the other items.
    fn choose(&self, items: &mut [Item<'a>]) {
        let cards: BTreeSet<usize> = items.iter().map(|item| item.card).collect();
        let ids: Vec<&str> =
            cards.into_iter().map(|card| self.catalogue.cards[card].id.as_str()).collect();
        let ranks = self.ranks(items);
        for item in items {
            let case = self.case(item, &ids, ranks);
            let right = self.catalogue.meanings(item.card).into_iter().find(|&card| {
                let card = &self.catalogue.cards[card];
                card.when.iter().all(|condition| evidence::holds(condition, card, &case))
            });
            item.card = right.unwrap_or(item.card);
        }
    }

    fn ranks(&self, items: &[Item<'_>]) -> usize {
        let ranks: BTreeSet<Option<u32>> = items.iter().map(|item| self.rank(item)).collect();
        ranks.iter().flatten().count()
    }

    /// Returns true if an item is about another rank than the one that failed first according to the launcher.
    fn is_of_other_rank(&self, item: &Item<'_>, first: &FirstFailure) -> bool {
        let rank = self.rank(item);
        let pid = item.sighting.found.get("pid").and_then(serde_json::Value::as_u64);
        let is_match = rank == Some(first.rank) || (pid.is_some() && pid == first.pid);
        (rank.is_some() || pid.is_some()) && !is_match
    }

    /// Converts the items of a crash to an incident with its consequences. An ordinary exception of the program is an
    /// incident only if a GPU failure followed: its traceback says everything, unless it is the cause of other errors.
    fn incident(&self, mut items: Vec<Item<'a>>) -> Option<Incident> {
        self.choose(&mut items);
        let first_failure = grouping::first_failure(self, &items);
        let first = grouping::cause(self, &items, first_failure.as_ref());
        let cause = items.remove(first);
        let card = self.card(&cause);
        let (same, others): (Vec<_>, Vec<_>) = items.into_iter().partition(|item| {
            // An exception after a failed assertion is the same failure, described with fewer details.
            item.card == cause.card
                || (item.sighting.card == cause.sighting.card && item.sighting.weak)
        });
        let mut beside: Vec<&str> = Vec::new();
        for item in &others {
            let id = self.card(item).id.as_str();
            if !beside.contains(&id) {
                beside.push(id);
            }
        }
        let ranks: BTreeSet<u32> =
            same.iter().chain([&cause]).filter_map(|item| self.rank(item)).collect();
        let all = || std::iter::once(&cause).chain(&same).chain(&others);
        let comparison = rank_comparison::compare(all().map(|item| (self.rank(item), item)));
        let mut incident = build::incident(self, &cause, &beside, ranks.len(), comparison.as_ref());
        let again = same.iter().filter(|item| item.repeats(&cause));
        incident.count =
            again.fold(cause.sighting.count, |sum, item| sum.saturating_add(item.sighting.count));
        let source = self.logs[cause.log].source;
        if source == TextSource::KernelLog {
            let is_xid = incident.fields.xid.is_some();
            incident.detected_by = if is_xid { DetectedBy::Xid } else { DetectedBy::Exit };
        }
        if let Some(log) = incident.log.as_mut().filter(|_| source == TextSource::Log) {
            let in_same_log = same.iter().filter(|item| item.log == cause.log);
            log.last_line =
                in_same_log.map(|item| item.sighting.last_line).fold(log.last_line, u64::max);
        }
        let is_asynchronous = build::is_asynchronous(card);
        build::complete(&mut incident, &cause, is_asynchronous, same.iter().chain(&others));
        incident.secondary = self.consequences(&others);
        incident.why_first = match comparison {
            Some(comparison) => Some(comparison.sentence),
            None => self.why_first(&cause, &others, &ranks, first_failure.as_ref()),
        };
        match grouping::exception(self, card, &cause, first_failure.as_ref()) {
            Some(_) if only_reports_exits(&incident) => None,
            Some((log, traceback)) => Some(build::program(self, log, traceback, incident)),
            None => Some(incident),
        }
    }

    /// Returns the errors that followed from the cause of a crash, with one entry per card.
    fn consequences(&self, items: &[Item<'a>]) -> Vec<Incident> {
        let mut entries: Vec<(&Item<'a>, Incident)> = Vec::new();
        for item in items {
            match entries.iter_mut().find(|(first, _)| first.card == item.card) {
                Some((first, entry)) if item.repeats(first) => {
                    entry.count = entry.count.saturating_add(item.sighting.count);
                }
                Some(_) => {}
                None => entries.push((item, build::incident(self, item, &[], 1, None))),
            }
        }
        entries.into_iter().map(|(_, entry)| entry).collect()
    }

    fn why_first(
        &self,
        cause: &Item<'a>,
        others: &[Item<'a>],
        ranks: &BTreeSet<u32>,
        first_failure: Option<&FirstFailure>,
    ) -> Option<String> {
        let card = self.card(cause);
        let explained =
            others.iter().filter(|item| self.card(item).is_consequence_of(&card.id)).count();
        let is_reported = first_failure.is_some_and(|first| !self.is_of_other_rank(cause, first));
        let who = match self.rank(cause) {
            Some(rank) if ranks.len() > 1 && is_reported => {
                format!(
                    "torchrun's table names rank {rank} as the first of {} ranks to fail with this error",
                    ranks.len()
                )
            }
            Some(rank) if ranks.len() > 1 => {
                format!("Rank {rank} was the first of {} ranks to report this error", ranks.len())
            }
            Some(rank) if !others.is_empty() => format!("Rank {rank} failed first"),
            _ if explained > 0 => "This error came first".to_owned(),
            _ if !others.is_empty() => "This error is the first in the log".to_owned(),
            _ => return None,
        };
        let mut why = match explained {
            _ if is_reported && ranks.len() > 1 => format!("{who}."),
            0 => format!("{who}."),
            1 => format!("{who} and caused a later error."),
            n => format!("{who} and caused {n} later errors."),
        };
        if let Some(first) = first_failure.filter(|_| self.rank(cause).is_some() && !is_reported) {
            let is_report = |item: &Item<'_>| REPORTS.contains(&self.card(item).family.as_str());
            let mut own = others.iter().filter(|item| !is_report(item));
            let has_error = own.any(|item| !self.is_of_other_rank(item, first));
            let error = if has_error { "no earlier error" } else { "no error" };
            let _ = write!(
                why,
                " torchrun's table names rank {}, of which this log contains {error}.",
                first.rank
            );
        }
        Some(why)
    }
}
