//! When the loop there is asked for what: for the next round when the last was heard and an interval is over; for the details
//! between two rounds, every few seconds; for a sign of life while one takes long.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::super::outgoing::Orders;
use super::view::OptionalQueries;
use crate::model::units::Millis;

/// `nvidia-smi` starts anew for each round and asks the driver for everything: more often costs the host too much.
const MIN_INTERVAL: Millis = Millis(1_000);
/// A round that takes longer is asked after.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two lists of details, and how many times as long as one takes: that is a tenth of the host's time at most.
const DETAILS_EVERY: Duration = Duration::from_secs(5);
const DETAILS_SHARE: u32 = 10;
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
    /// The newest round, or details, that was asked for, or the facts, since when.
    asked: u64,
    since: Option<Instant>,
    /// The newest that was heard.
    heard: u64,
    due: Option<Instant>,
    /// The newest details that were asked for.
    details: u64,
    /// After the first round.
    details_due: Option<Instant>,
    wants: OptionalQueries,
    is_over: bool,
}

impl Pace {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Between rounds.
    pub(super) fn interval(orders: &Orders) -> Millis {
        orders.interval().max(MIN_INTERVAL)
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
            if let Some(line) = state.next_details(now) {
                orders.say(&line);
                continue;
            }
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

    /// All that was asked for under this number has come; the next questions are of `wants`.
    pub(super) fn answered(&self, number: u64, wants: OptionalQueries) {
        let mut state = self.state();
        state.answered(number, Instant::now());
        state.wants = wants;
        self.changed.notify_all();
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
        let pids = self.wants.pids.iter().map(|pid| format!(" {pid}"));
        Some(format!(
            "r {} {query}{}",
            self.asked,
            pids.collect::<String>()
        ))
    }

    fn next_details(&mut self, now: Instant) -> Option<String> {
        if self.is_waiting() || self.details_due? > now {
            return None;
        }
        self.asked += 1;
        (self.since, self.details) = (Some(now), self.asked);
        let mig = if self.wants.instances { " mig" } else { "" };
        Some(format!("d {}{mig}", self.asked))
    }

    fn answered(&mut self, number: u64, now: Instant) {
        self.heard = number.min(self.asked);
        if self.details == 0 {
            self.details_due = Some(now);
        } else if self.heard == self.details {
            let took = self.since.map_or(Duration::ZERO, |since| now - since);
            self.details_due = Some(now + DETAILS_EVERY.max(took * DETAILS_SHARE));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::units::Pid;

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

    #[test]
    fn details_are_asked_for_between_rounds_and_seldom_where_they_are_dear() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let mut state = State {
            query: Some("index".into()),
            ..State::default()
        };
        assert_eq!(state.next_details(begun), None, "nothing is known yet");
        assert_eq!(state.next(begun), Some("r 1 index".into()));
        assert_eq!(state.next_details(begun), None);
        state.answered(1, begun);
        assert_eq!(state.next_details(begun), Some("d 2".into()));
        assert_eq!(state.next(begun), None, "one thing at a time");
        state.answered(2, at(1));
        state.wants = OptionalQueries {
            instances: true,
            pids: [Pid(7), Pid(31)].into(),
        };
        assert_eq!(state.next(at(1)), Some("r 3 index 7 31".into()));
        state.answered(3, at(2));
        // One took a second, so the next is not due before another ten.
        assert_eq!(state.next_details(at(10)), None);
        assert_eq!(state.next_details(at(11)), Some("d 4 mig".into()));
    }
}
