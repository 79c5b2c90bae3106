//! One process over several looks: its newest positions, and for how long nothing has moved.

use std::sync::Arc;

use gputop_model::process_group::{RankReading, Work};
use gputop_model::reading::{Missing, Reading, Reason};
use gputop_model::stack::PythonStack;
use gputop_model::text::visible;
use gputop_model::units::{Millis, Mono};

use super::group_position::{GroupPosition, age};
use super::observation::{ProcessStatus, RankExit, RankObservation};
use super::stack_place::{StackPlace, calls};

/// An older reading says nothing about what a rank has called by now.
const MAX_READING_AGE: Millis = Millis(3_000);
pub(super) const MAX_STORE_CHARS: usize = 120;
/// Maximum number of groups of one rank.
const MAX_GROUPS: usize = 256;

/// Newest positions of a process, and what changed since the previous look.
#[derive(Debug)]
pub(super) struct RankTrack {
    pub(super) host: Arc<str>,
    pub(super) rank: Option<u32>,
    pub(super) world_size: Option<u32>,
    pub(super) store: Option<Box<str>>,
    pub(super) gpu: Option<u32>,
    pub(super) status: ProcessStatus,
    pub(super) positions: Vec<GroupPosition>,
    /// Reason why the newest reading has no groups.
    missing: Option<Missing>,
    /// Time of the newest reading with groups, by the clock of the host.
    pub(super) at: Mono,
    /// Time of the look that brought it, by the clock of this program.
    fresh_at: Mono,
    /// Time of the first reading with the present positions, by the clock of the host.
    moved_at: Mono,
    /// Number of calls between the last two readings, and the time between them.
    pub(super) calls: u64,
    pub(super) elapsed: Millis,
    /// Place of the main thread, and its innermost functions.
    pub(super) place: Option<(Mono, StackPlace)>,
    pub(super) stack_calls: Vec<String>,
    is_fresh: bool,
}

/// Whether the positions of a process are known.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Readability {
    Readable,
    NotReadYet,
    NotReadable(Missing),
    Exited,
}

impl RankTrack {
    pub(super) fn new(host: Arc<str>) -> Self {
        Self {
            host,
            rank: None,
            world_size: None,
            store: None,
            gpu: None,
            status: ProcessStatus::Running,
            positions: Vec::new(),
            missing: None,
            at: Mono(0),
            fresh_at: Mono(0),
            moved_at: Mono(0),
            calls: 0,
            elapsed: Millis(0),
            place: None,
            stack_calls: Vec::new(),
            is_fresh: false,
        }
    }

    pub(super) fn update(&mut self, now: Mono, observation: &RankObservation) {
        let reading = &observation.reading;
        self.status = observation.status.clone();
        self.gpu = observation.gpu.or(self.gpu);
        self.rank = reading.rank.or(self.rank);
        self.world_size = reading.world_size.or(self.world_size);
        if let Some(store) = &reading.store {
            self.store = Some(visible(store.as_bytes(), MAX_STORE_CHARS).into());
        }
        self.calls = 0;
        let is_exited = matches!(self.status, ProcessStatus::Exited(_));
        match &reading.groups {
            // Keep the last positions of a process that has exited.
            Reading::Value(groups) if is_exited && groups.is_empty() => {}
            Reading::Value(_) => self.move_to(now, reading),
            Reading::Missing(missing) => self.missing = Some(missing.clone()),
        }
        self.is_fresh = now.since(self.fresh_at) <= MAX_READING_AGE;
        self.take_stack(reading.stack.as_deref());
    }

    /// Stores the positions of a reading that has groups.
    fn move_to(&mut self, now: Mono, reading: &RankReading) {
        self.missing = None;
        if reading.at == self.at && !self.positions.is_empty() {
            return;
        }
        let groups = reading.groups.value().map_or(&[][..], Vec::as_slice);
        let groups = groups.iter().take(MAX_GROUPS);
        let mut positions: Vec<_> = groups.filter_map(GroupPosition::of).collect();
        self.rank = self.rank.or_else(|| rank_in_largest(reading));
        positions.retain(|p| self.rank.is_some_and(|rank| p.group.contains(rank)));
        let pairs = || positions.iter().zip(&self.positions);
        let is_same_length = positions.len() == self.positions.len();
        self.calls = pairs().map(|(new, old)| new.calls_since(old)).max().unwrap_or(0);
        self.elapsed = reading.at.since(self.at);
        if !is_same_length || !pairs().all(|(new, old)| new.is_unchanged(old)) {
            self.moved_at = reading.at;
        }
        for (at, position) in positions.iter_mut().enumerate() {
            let old = self.positions.get(at).filter(|old| {
                old.group == position.group && old.called == position.called && old.is_inside_call()
            });
            let since = old.and_then(|old| old.inside_since).unwrap_or(reading.at);
            position.inside_since = position.is_inside_call().then_some(since);
        }
        self.positions = positions;
        self.at = reading.at;
        self.fresh_at = now;
    }

    fn take_stack(&mut self, stack: Option<&PythonStack>) {
        self.place = stack.and_then(|stack| Some((stack.at, StackPlace::of(stack)?)));
        self.stack_calls = stack.map_or_else(Vec::new, calls);
    }

    /// Records that the process was no longer found.
    pub(super) fn vanish(&mut self) {
        if !matches!(self.status, ProcessStatus::Exited(_)) {
            self.status = ProcessStatus::Exited(RankExit::default());
        }
        self.calls = 0;
    }

    pub(super) fn readability(&self) -> Readability {
        let is_known = !self.positions.is_empty();
        match (&self.status, &self.missing) {
            (ProcessStatus::Exited(_), _) => Readability::Exited,
            (ProcessStatus::Starting, _) if !is_known => Readability::NotReadYet,
            (_, Some(missing)) if !is_known && missing.reason == Reason::NotRead => {
                Readability::NotReadYet
            }
            (_, Some(missing)) => Readability::NotReadable(missing.clone()),
            (_, None) if !is_known => Readability::NotReadYet,
            (_, None) if !self.is_fresh => {
                Readability::NotReadable(Missing::new(Reason::NotRead, "its last reading is old"))
            }
            (_, None) => Readability::Readable,
        }
    }

    /// Returns true if the process may be a rank that was not found yet. Others have no process group.
    pub(super) fn may_have_groups(&self) -> bool {
        let has_none = self.missing.as_ref().is_some_and(|m| m.reason == Reason::Unsupported);
        let is_exited = matches!(self.status, ProcessStatus::Exited(_));
        self.positions.is_empty() && !has_none && !is_exited
    }

    /// Returns the time for which no counter has moved.
    pub(super) fn quiet(&self) -> Millis {
        self.at.since(self.moved_at)
    }

    /// Returns the place of the main thread, if the stack was read in the last `time`.
    pub(super) fn place_within(&self, time: Millis) -> Option<&StackPlace> {
        let (at, place) = self.place.as_ref()?;
        (self.at.since(*at) <= time).then_some(place)
    }

    /// Returns the oldest pending collective, or the newest one that was called, and how long it has been pending.
    pub(super) fn last_work(&self) -> Option<(&GroupPosition, &Work, Option<Millis>)> {
        let pending = self.positions.iter().filter_map(|p| Some((p, p.collective.as_ref()?)));
        let oldest = pending.max_by_key(|(_, pending)| age(pending, self.at));
        if let Some((position, pending)) = oldest {
            return Some((position, &pending.work, Some(age(pending, self.at))));
        }
        let newest = self.positions.iter().filter(|p| p.called > Some(0));
        let position = newest.max_by_key(|p| p.called)?;
        let work = position.enqueued.as_ref().or(position.completed.as_ref())?;
        Some((position, work, None))
    }
}

fn rank_in_largest(reading: &RankReading) -> Option<u32> {
    let largest = reading.groups.value()?.iter().max_by_key(|group| group.size)?;
    largest.member(largest.rank)
}
