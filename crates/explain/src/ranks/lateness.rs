//! Which rank is slow: the one whose counter of collectives moves last, again and again.
//!
//! The flight recorders of PyTorch have the times of the calls. Without them, it needs the counters 20 to 50 times a
//! second, because the other ranks wait for the slow one only for milliseconds.

use std::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};

use gputop_model::process_group::{
    GroupArrivals, LastArrivals, ProcessGroup, RankReading, RecordedCall,
};
use gputop_model::text::visible;
use gputop_model::units::{Millis, Mono};

use super::group_position::{GroupKey, label};
use super::rank_track::MAX_STORE_CHARS;

/// Number of recent collectives that are judged.
const MAX_ARRIVALS: usize = 200;
/// Number of collectives that a judgement needs.
pub const MIN_ARRIVALS: u32 = 100;
/// Minimum share of the collectives to which the slow rank comes last, in percent.
const MIN_SHARE: u32 = 80;
/// Time after which a rank that cannot be read is no longer awaited.
const MAX_MISSING: Millis = Millis(10_000);
/// Maximum number of groups that are reported.
const MAX_GROUPS: usize = 64;
const MILLISECOND_NS: u64 = 1_000_000;

/// Watches when the ranks on one host come to the collectives of their groups: either by sweeps or by recorded calls.
#[derive(Debug, Default)]
pub struct ArrivalWatch {
    groups: BTreeMap<(Option<String>, GroupKey), Lateness>,
}

impl ArrivalWatch {
    /// Adds one sweep over all ranks.
    pub fn sweep(&mut self, at: Mono, readings: &[RankReading]) {
        self.add(at, readings, |group| group.called.get(), Lateness::sweep);
    }

    /// Adds the calls that the flight recorders of all ranks have.
    pub fn add_recorded(&mut self, at: Mono, readings: &[RankReading]) {
        self.add(at, readings, recorded, Lateness::add_recorded);
    }

    /// Adds what `read` returns for each rank to each group. Ranks for which it returns `None` are left out.
    fn add<'a, T: Copy>(
        &mut self,
        at: Mono,
        readings: &'a [RankReading],
        read: impl Fn(&'a ProcessGroup) -> Option<T>,
        add: impl Fn(&mut Lateness, Mono, &[(u32, T)]),
    ) {
        let mut found: BTreeMap<_, (String, Vec<(u32, T)>)> = BTreeMap::new();
        for reading in readings {
            for group in reading.groups.value().into_iter().flatten() {
                let rank = group.member(group.rank).zip(read(group));
                if let (Some(key), Some(rank)) = (GroupKey::of(group), rank) {
                    let entry = found.entry((reading.store.clone(), key));
                    entry.or_insert_with(|| (label(group), Vec::new())).1.push(rank);
                }
            }
        }
        for (key, (label, mut ranks)) in found {
            ranks.sort_unstable_by_key(|(rank, _)| *rank);
            let group = self.groups.entry(key).or_default();
            group.label = label;
            add(group, at, &ranks);
        }
        self.groups.retain(|_, group| at.since(group.swept_at) <= MAX_MISSING);
    }

    /// Returns the groups, those with the most collectives first.
    pub fn arrivals(&self) -> Vec<GroupArrivals> {
        let arrivals = self.groups.iter().map(|((store, key), group)| GroupArrivals {
            store: store.as_ref().map(|store| visible(store.as_bytes(), MAX_STORE_CHARS)),
            group: group.label.clone(),
            size: key.size,
            ranks: group.arrivals.keys().copied().collect(),
            collectives: u32::try_from(group.last.len()).unwrap_or(u32::MAX),
            last: group.last_arrivals(),
        });
        let mut arrivals: Vec<_> = arrivals.collect();
        arrivals.sort_by_key(|group| std::cmp::Reverse(group.collectives));
        arrivals.truncate(MAX_GROUPS);
        arrivals
    }
}

/// Returns the calls of a group in the flight recorder, if there are any.
fn recorded(group: &ProcessGroup) -> Option<&[RecordedCall]> {
    Some(&group.recorded[..]).filter(|calls| !calls.is_empty())
}

/// Watches the arrivals in one group.
#[derive(Debug, Default)]
pub(super) struct Lateness {
    label: String,
    /// Number of the collective whose arrivals are awaited, or of the first that was not counted.
    next: u64,
    /// Time of the first sweep that saw the rank at `next` or later.
    arrivals: BTreeMap<u32, Option<Mono>>,
    /// For each recent collective the rank that came last, alone, and how long after the first.
    last: VecDeque<Option<(u32, Millis)>>,
    /// Time of the last sweep that saw all ranks.
    swept_at: Mono,
}

/// A rank that comes last to most collectives of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlowRank {
    pub rank: u32,
    /// Share of the recent collectives to which it came last, in percent.
    pub share: u8,
    /// Median time after the first rank.
    pub lateness: Millis,
}

impl SlowRank {
    /// Returns the slow rank, once enough collectives have been seen and most of them waited for the same rank.
    pub fn of(group: &GroupArrivals) -> Option<Self> {
        let last = group.last.iter().max_by_key(|last| last.count)?;
        let share = last.count.saturating_mul(100).checked_div(group.collectives)?;
        let is_slow = group.collectives >= MIN_ARRIVALS && (MIN_SHARE..=100).contains(&share);
        let share = u8::try_from(share).ok().filter(|_| is_slow)?;
        Some(Self { rank: last.rank, share, lateness: last.lateness })
    }
}

impl Lateness {
    /// Adds one sweep over all ranks of the group: pairs of rank and number of collectives called. Ranks that move between
    /// two sweeps count as simultaneous, because the ranks of a sweep are read one after the other.
    pub(super) fn sweep(&mut self, at: Mono, called: &[(u32, u64)]) {
        match self.compare(called) {
            Some(Ordering::Equal) => self.swept_at = at,
            Some(_) => return,
            None => {
                self.restart(at);
                return self.start(called);
            }
        }
        self.mark_arrivals(at, called);
        if self.arrivals.values().all(Option::is_some) {
            self.judge();
            self.start(called);
            self.mark_arrivals(at, called);
        }
    }

    /// Adds the calls of all ranks of the group: those that all of them have, once. Ranks that call within a millisecond
    /// count as simultaneous.
    fn add_recorded(&mut self, at: Mono, recorded: &[(u32, &[RecordedCall])]) {
        let newest = recorded.iter().filter_map(|(_, calls)| Some(calls.first()?.seq)).max();
        match self.compare(recorded) {
            Some(Ordering::Equal) if newest.is_some_and(|newest| newest + 1 >= self.next) => {
                self.swept_at = at;
            }
            Some(Ordering::Less) => return,
            _ => {
                self.restart(at);
                self.arrivals = recorded.iter().map(|(rank, _)| (*rank, None)).collect();
            }
        }
        let mut called: BTreeMap<u64, BTreeMap<u32, u64>> = BTreeMap::new();
        for (rank, calls) in recorded {
            for call in calls.iter().filter(|call| call.seq >= self.next) {
                called.entry(call.seq).or_default().insert(*rank, call.called_unix_ns);
            }
        }
        for (seq, times) in called.into_iter().filter(|(_, times)| times.len() == recorded.len()) {
            let mut times: Vec<(u64, u32)> =
                times.into_iter().map(|(rank, at)| (at, rank)).collect();
            times.sort_unstable();
            let (Some((first, _)), Some((latest, rank))) = (times.first(), times.last()) else {
                continue;
            };
            let is_alone = times
                .iter()
                .rev()
                .skip(1)
                .take(1)
                .all(|(second, _)| latest - second >= MILLISECOND_NS);
            let is_last = is_alone && times.len() > 1;
            self.push(is_last.then(|| (*rank, Millis((latest - first) / MILLISECOND_NS))));
            self.next = seq + 1;
        }
    }

    /// Compares the ranks with those of the last time: fewer if one could not be read, `None` if there are others.
    fn compare<T>(&self, ranks: &[(u32, T)]) -> Option<Ordering> {
        let is_known = ranks.iter().all(|(rank, _)| self.arrivals.contains_key(rank));
        is_known.then(|| ranks.len().cmp(&self.arrivals.len()))
    }

    fn restart(&mut self, at: Mono) {
        let label = std::mem::take(&mut self.label);
        *self = Self { label, swept_at: at, ..Self::default() };
    }

    /// Awaits the collective after the last one that all ranks have called.
    fn start(&mut self, called: &[(u32, u64)]) {
        let common = called.iter().map(|(_, called)| *called).min();
        self.next = common.unwrap_or(0).saturating_add(1);
        self.arrivals = called.iter().map(|(rank, _)| (*rank, None)).collect();
    }

    fn mark_arrivals(&mut self, at: Mono, called: &[(u32, u64)]) {
        for (rank, called) in called {
            if let Some(arrival) = self.arrivals.get_mut(rank)
                && *called >= self.next
            {
                arrival.get_or_insert(at);
            }
        }
    }

    fn judge(&mut self) {
        let times: Vec<(Mono, u32)> =
            self.arrivals.iter().filter_map(|(rank, at)| Some(((*at)?, *rank))).collect();
        let (Some(first), Some((latest, rank))) = (times.iter().min(), times.iter().max()) else {
            return;
        };
        let is_alone = times.iter().filter(|(at, _)| at == latest).count() == 1;
        let is_last = is_alone && times.len() > 1;
        self.push(is_last.then(|| (*rank, latest.since(first.0))));
    }

    fn push(&mut self, last: Option<(u32, Millis)>) {
        self.last.push_back(last);
        if self.last.len() > MAX_ARRIVALS {
            self.last.pop_front();
        }
    }

    /// Returns the ranks that came last, alone.
    fn last_arrivals(&self) -> Vec<LastArrivals> {
        let mut late: BTreeMap<u32, Vec<Millis>> = BTreeMap::new();
        for (rank, lateness) in self.last.iter().flatten() {
            late.entry(*rank).or_default().push(*lateness);
        }
        let last = late.into_iter().filter_map(|(rank, mut times)| {
            times.sort_unstable();
            let lateness = *times.get(times.len() / 2)?;
            Some(LastArrivals { rank, count: u32::try_from(times.len()).ok()?, lateness })
        });
        last.collect()
    }
}
