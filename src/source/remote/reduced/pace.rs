//! When the loop there is asked for what: for the next round when the last was heard and an interval is over; for a sign of
//! life while one takes long.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::super::orders::Orders;
use crate::model::units::Millis;

/// `nvidia-smi` starts anew for each round and asks the driver for everything: more often costs the host too much.
const LEAST_INTERVAL: Millis = Millis(1_000);
/// A round that takes longer is asked after.
const PATIENCE: Duration = Duration::from_secs(2);
/// One that takes this long hangs.
const HANGS_AFTER: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct Pace {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The fields of a round, once they are known.
    query: Option<String>,
    /// The newest round that was asked for, or the facts, since when.
    asked: u64,
    since: Option<Instant>,
    /// The newest that was heard.
    heard: u64,
    due: Option<Instant>,
    is_over: bool,
}

impl Pace {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Between rounds.
    pub(super) fn interval(orders: &Orders) -> Millis {
        orders.interval().max(LEAST_INTERVAL)
    }

    /// Until [`end`](Self::end).
    pub(super) fn ask(&self, orders: &Orders) {
        let mut state = self.state();
        state.since = Some(Instant::now());
        orders.say("f");
        loop {
            if state.is_over {
                return;
            }
            let now = Instant::now();
            let left = state.due.map_or(Duration::ZERO, |due| due - now.min(due));
            if !left.is_zero() {
                let waited = self.changed.wait_timeout(state, left);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            state.due = Some(now + Duration::from_millis(Self::interval(orders).0));
            if let Some(line) = state.next(now) {
                orders.say(&line);
            }
        }
    }

    /// These fields are asked for from now on.
    pub(super) fn begin(&self, query: String) {
        let mut state = self.state();
        (state.query, state.due) = (Some(query), None);
        state.heard = state.asked;
        self.changed.notify_all();
    }

    pub(super) fn answered(&self, round: u64) {
        let mut state = self.state();
        state.heard = round.min(state.asked);
    }

    /// For how long what was asked for has hung, if it does.
    pub(super) fn overdue(&self) -> Option<Duration> {
        let state = self.state();
        let since = state.since.filter(|_| state.is_waiting())?.elapsed();
        (since > HANGS_AFTER).then_some(since)
    }

    pub(super) fn end(&self) {
        self.state().is_over = true;
        self.changed.notify_all();
    }
}

impl State {
    fn is_waiting(&self) -> bool {
        self.query.is_none() || self.heard < self.asked
    }

    fn next(&mut self, now: Instant) -> Option<String> {
        if self.is_waiting() {
            let is_long = self.since.is_some_and(|since| now - since > PATIENCE);
            return is_long.then(|| "h".to_owned());
        }
        self.asked += 1;
        self.since = Some(now);
        let query = self.query.as_deref().unwrap_or_default();
        Some(format!("r {} {query}", self.asked))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_asked_for_when_the_last_was_heard_and_never_beside_it() {
        let mut state = State::default();
        let now = Instant::now();
        state.since = Some(now);
        assert_eq!(state.next(now), None);
        assert_eq!(state.next(now + PATIENCE * 2), Some("h".into()));
        state.query = Some("index".into());
        assert_eq!(state.next(now), Some("r 1 index".into()));
        assert_eq!(state.next(now), None);
        assert_eq!(state.next(now + PATIENCE * 2), Some("h".into()));
        state.heard = 1;
        assert_eq!(state.next(now), Some("r 2 index".into()));
    }
}
