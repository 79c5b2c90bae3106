//! Which rank is slow: the one whose counter of collectives moves last, again and again.
//!
//! It needs the counters 20 to 50 times a second, because the other ranks wait for the slow one only for milliseconds.

use std::collections::{BTreeMap, VecDeque};

use gputop_model::units::{Millis, Mono};

/// Number of recent collectives that are judged.
const MAX_ARRIVALS: usize = 200;
const MIN_ARRIVALS: usize = 100;
/// Minimum share of the collectives to which the slow rank comes last, in percent.
const MIN_SHARE: usize = 80;

/// Watches the counters of one group.
#[derive(Debug, Default)]
pub struct Lateness {
    /// Number of the collective whose arrivals are awaited.
    next: u64,
    /// Time of the first sweep that saw the rank at `next` or later.
    arrivals: BTreeMap<u32, Option<Mono>>,
    /// For each recent collective the rank that came last, alone, and how long after the first.
    last: VecDeque<Option<(u32, Millis)>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlowRank {
    pub rank: u32,
    /// Share of the recent collectives to which it came last, in percent.
    pub share: u8,
    /// Median time after the first rank.
    pub lateness: Millis,
}

impl Lateness {
    /// Adds one sweep over all ranks of the group: pairs of rank and number of collectives called. Ranks that move between
    /// two sweeps count as simultaneous, because the ranks of a sweep are read one after the other.
    pub fn sweep(&mut self, at: Mono, called: &[(u32, u64)]) {
        let is_same = called.len() == self.arrivals.len()
            && called.iter().all(|(rank, _)| self.arrivals.contains_key(rank));
        if !is_same {
            *self = Self::default();
            self.start(called);
            return;
        }
        self.mark_arrivals(at, called);
        if self.arrivals.values().all(Option::is_some) {
            self.judge();
            self.start(called);
            self.mark_arrivals(at, called);
        }
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
        self.last.push_back(is_last.then(|| (*rank, latest.since(first.0))));
        if self.last.len() > MAX_ARRIVALS {
            self.last.pop_front();
        }
    }

    /// Returns the number of recent collectives of which the arrivals are known, and the number that a judgement needs.
    pub fn seen(&self) -> (usize, usize) {
        (self.last.len(), MIN_ARRIVALS)
    }

    /// Returns the slow rank, once enough collectives have been seen and most of them waited for the same rank.
    pub fn slow(&self) -> Option<SlowRank> {
        if self.last.len() < MIN_ARRIVALS {
            return None;
        }
        let mut late: BTreeMap<u32, Vec<Millis>> = BTreeMap::new();
        for (rank, lateness) in self.last.iter().flatten() {
            late.entry(*rank).or_default().push(*lateness);
        }
        let (rank, mut times) = late.into_iter().max_by_key(|(_, times)| times.len())?;
        let share = times.len() * 100 / self.last.len();
        times.sort_unstable();
        let lateness = *times.get(times.len() / 2)?;
        (share >= MIN_SHARE).then_some(SlowRank {
            rank,
            share: u8::try_from(share).ok()?,
            lateness,
        })
    }
}
