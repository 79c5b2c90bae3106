//! Decides when a recorder requests the maps of memory pools: all pools in turn, one at a time, and additionally pools
//! that are new or have changed.
//!
//! A round starts every [`DEFAULT_PERIOD`], or at a user-defined period. The map of a pool is requested out of turn if
//! the pool is new, if its `num_ooms` increased, or if its reserved memory reached a new maximum. Only one request is
//! pending at a time, because the stream between a source and its reader has room for only one map.
//!
//! Eight training pools with 1500 blocks each take 40 kB per round, compressed. One round per minute would take 62 MB a
//! day, two thirds as much space as the same machine's frames. If the user sets no period, a budget therefore applies:
//! [`MAX_BUDGET`] at the start, plus [`BUDGET_PER_MINUTE`]. Each round waits until the budget allows it.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};

use gputop_model::protocol::Request;
use gputop_model::{Bytes, Frame, Millis, Mono, Pool, PoolMap, ProcessKey};

pub const DEFAULT_PERIOD: Millis = Millis(60_000);
/// Initial and maximum budget for maps.
pub const MAX_BUDGET: Bytes = Bytes(1 << 20);
/// Growth of the budget: 5 MB a day.
pub const BUDGET_PER_MINUTE: Bytes = Bytes(3_500);
/// The minimum time between additional maps of one pool is the period divided by this number.
const EARLY_DIVISOR: u64 = 6;
/// A new maximum counts only if reserved memory grew by more than 1/`RISE_DIVISOR` (2 %). Without this threshold, every
/// segment allocated during warm-up would count.
const RISE_DIVISOR: u64 = 50;
/// Number of frames to wait for a reply before sending the next request.
const MAX_FRAMES_WITHOUT_ANSWER: u32 = 2;

/// How often to record the maps of all pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MapPeriod {
    /// Every [`DEFAULT_PERIOD`], or less often if a day's maps would take too much space.
    #[default]
    Sparing,
    Period(Millis),
    Never,
}

type PoolKey = (ProcessKey, u32);

/// Scheduler that chooses a recorder's next map request based on the frames.
#[derive(Debug)]
pub struct MapScheduler {
    every: MapPeriod,
    known: BTreeMap<PoolKey, PoolState>,
    /// Pools whose maps must be requested, in the order of the requests.
    queue: VecDeque<PoolKey>,
    asked: Option<(PoolKey, u32)>,
    /// Start time of the last round. A round requests the maps of all pools.
    round: Option<Mono>,
    budget: Budget,
}

/// State of a pool when its map was last requested.
#[derive(Debug, Clone, Copy)]
struct PoolState {
    at: Mono,
    num_ooms: u64,
    reserved: Bytes,
}

impl PoolState {
    fn of(pool: &Pool, now: Mono) -> Self {
        Self { at: now, num_ooms: pool.stats.num_ooms, reserved: pool.stats.reserved.max() }
    }
}

#[derive(Debug)]
struct Budget {
    left: i64,
    at: Option<Mono>,
}

impl Budget {
    fn grow(&mut self, now: Mono) {
        let passed = self.at.map_or(Millis(0), |at| now.since(at));
        let grown = passed.0.saturating_mul(BUDGET_PER_MINUTE.0) / 60_000;
        let grown = i64::try_from(grown).unwrap_or(i64::MAX);
        // Advance the time only after adding at least one whole byte, so that fractions of a byte are not lost.
        if grown > 0 || self.at.is_none_or(|at| now < at) {
            self.left = self.left.saturating_add(grown).min(MAX_BUDGET.0 as i64);
            self.at = Some(now);
        }
    }
}

impl MapScheduler {
    pub fn new(every: MapPeriod) -> Self {
        Self {
            every,
            known: BTreeMap::new(),
            queue: VecDeque::new(),
            asked: None,
            round: None,
            budget: Budget { left: MAX_BUDGET.0 as i64, at: None },
        }
    }

    /// Processes a frame. Returns the request to send now, if any.
    pub fn frame(&mut self, frame: &Frame) -> Option<Request> {
        let period = match self.every {
            MapPeriod::Never => return None,
            MapPeriod::Sparing => DEFAULT_PERIOD,
            MapPeriod::Period(period) => period,
        };
        let now = frame.mono;
        self.budget.grow(now);
        let has_budget = self.every != MapPeriod::Sparing || self.budget.left > 0;
        let pools = frame.pools.iter().flat_map(|pools| pools.with_map());
        let listed: BTreeMap<PoolKey, Cow<'_, Pool>> =
            pools.map(|pool| (key(&pool), pool)).collect();
        self.known.retain(|key, _| listed.contains_key(key));
        self.queue.retain(|key| listed.contains_key(key));
        // Also start a round if the clock went backwards, for example after a reboot.
        let is_round = self.round.is_none_or(|round| now < round || now.since(round) >= period);
        if is_round && has_budget && !listed.is_empty() {
            self.round = Some(now);
            for (&key, pool) in &listed {
                self.enqueue(key, PoolState::of(pool, now));
            }
        }
        let pause = if has_budget { Millis(period.0 / EARLY_DIVISOR) } else { period };
        for (&key, pool) in &listed {
            let is_due = match self.known.get(&key) {
                Some(known) => known.has_changed(pool) && now.since(known.at) >= pause,
                None => true,
            };
            if is_due {
                self.queue.retain(|queued| *queued != key);
                self.queue.push_front(key);
                self.known.insert(key, PoolState::of(pool, now));
            }
        }
        self.wait_or_ask()
    }

    /// Returns true if this map was requested and should be recorded. The caller must then call
    /// [`ask_next`](Self::ask_next).
    pub fn takes(&mut self, map: &PoolMap) -> bool {
        self.answered((map.process, map.ordinal))
    }

    /// Returns true if `map`, which was read because an allocation failed, should be recorded. If a budget applies, the
    /// map is recorded only while some of the budget is left. Until the next round, failures in that pool cause no
    /// further requests, because each failure comes with its own map.
    pub fn takes_failed(&mut self, map: &PoolMap) -> bool {
        let has_budget = match self.every {
            MapPeriod::Never => false,
            MapPeriod::Sparing => self.budget.left > 0,
            MapPeriod::Period(_) => true,
        };
        if let Some(known) = self.known.get_mut(&(map.process, map.ordinal))
            && has_budget
        {
            known.num_ooms = u64::MAX;
        }
        has_budget
    }

    /// Records that the request for a pool received a reply. Returns true if it was the pending request.
    pub fn answered(&mut self, pool: PoolKey) -> bool {
        let is_requested = self.asked.is_some_and(|(asked, _)| asked == pool);
        if is_requested {
            self.asked = None;
        }
        is_requested
    }

    /// Deducts the size of a written map from the budget.
    pub fn wrote(&mut self, bytes: u64) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.budget.left = self.budget.left.saturating_sub(bytes);
    }

    /// Returns the request for the next pool. If no pool is left, returns a request to cancel the previous one.
    pub fn ask_next(&mut self) -> Request {
        let next = self.queue.pop_front();
        self.asked = next.map(|key| (key, 0));
        Request::Map(next)
    }

    fn enqueue(&mut self, key: PoolKey, known: PoolState) {
        if !self.queue.contains(&key) {
            self.queue.push_back(key);
        }
        self.known.insert(key, known);
    }

    fn wait_or_ask(&mut self) -> Option<Request> {
        match &mut self.asked {
            Some((_, waited)) if *waited < MAX_FRAMES_WITHOUT_ANSWER => {
                *waited += 1;
                None
            }
            None if self.queue.is_empty() => None,
            _ => Some(self.ask_next()),
        }
    }
}

impl PoolState {
    fn has_changed(&self, pool: &Pool) -> bool {
        let higher = self.reserved.0.saturating_add(self.reserved.0 / RISE_DIVISOR);
        pool.stats.num_ooms > self.num_ooms || pool.stats.reserved.max().0 > higher
    }
}

fn key(pool: &Pool) -> PoolKey {
    (pool.process, pool.ordinal)
}

#[cfg(test)]
mod tests;
