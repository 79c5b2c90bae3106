//! Schedules requests to the remote script. A round is requested once the last one has been received and an interval
//! has passed. A detail query is requested between two rounds every few seconds. Heartbeats are requested while a round
//! takes a long time.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gputop_model::units::Millis;

use super::super::outgoing::RequestWriter;
use super::view::OptionalQueries;

/// Minimum interval between rounds. Each round restarts `nvidia-smi` and queries the driver for everything, so a
/// shorter interval would put too much load on the host.
const MIN_INTERVAL: Millis = Millis(1_000);
/// Time without a reply after which a heartbeat is requested.
const HEARTBEAT_DELAY: Duration = Duration::from_secs(2);
/// Minimum time between detail queries: a fixed time, and a multiple of the last query's duration, so that detail
/// queries take at most a tenth of the host's time.
const MIN_DETAILS_INTERVAL: Duration = Duration::from_secs(5);
const DETAILS_INTERVAL_FACTOR: u32 = 10;
/// Time after which a request is considered hung.
const HANG_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct PollSchedule {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Fields to request in each round, once they are known.
    query: Option<String>,
    /// Number of the newest round or detail request. `since` is the time of the newest request of any kind, including
    /// the one for the facts.
    asked: u64,
    since: Option<Instant>,
    answered_number: u64,
    due: Option<Instant>,
    /// Number of the newest detail request.
    details: u64,
    /// Time at which the next detail query is due, set after the first round.
    details_due: Option<Instant>,
    wants: OptionalQueries,
    is_over: bool,
}

impl PollSchedule {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn interval(writer: &RequestWriter) -> Millis {
        writer.interval().max(MIN_INTERVAL)
    }

    /// Sends requests until [`end`](Self::end) is called.
    pub(super) fn send_requests(&self, writer: &RequestWriter) {
        let mut state = self.state();
        state.since = Some(Instant::now());
        writer.send_script_line("f");
        loop {
            if state.is_over {
                return;
            }
            let now = Instant::now();
            if let Some(line) = state.next_details(now) {
                writer.send_script_line(&line);
                continue;
            }
            let left = state.due.map_or(Duration::ZERO, |due| due - now.min(due));
            if !left.is_zero() {
                let waited = self.changed.wait_timeout(state, left);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            state.due = Some(now + Duration::from_millis(Self::interval(writer).0));
            if let Some(line) = state.next(now) {
                writer.send_script_line(&line);
            }
        }
    }

    /// Sets the fields requested in all later rounds.
    pub(super) fn set_query(&self, query: String) {
        let mut state = self.state();
        (state.query, state.due) = (Some(query), None);
        state.answered_number = state.asked;
        self.changed.notify_all();
    }

    /// Records that a complete reply to a request was received, and sets the optional queries of later requests.
    pub(super) fn answered(&self, number: u64, wants: OptionalQueries) {
        let mut state = self.state();
        state.answered(number, Instant::now());
        state.wants = wants;
        self.changed.notify_all();
    }

    /// Returns how long the pending request has been hanging, or `None` if no request is hanging.
    pub(super) fn overdue(&self) -> Option<Duration> {
        let state = self.state();
        let since = state.since.filter(|_| state.is_waiting())?.elapsed();
        (since > HANG_TIMEOUT).then_some(since)
    }

    pub(super) fn end(&self) {
        self.state().is_over = true;
        self.changed.notify_all();
    }
}

impl State {
    fn is_waiting(&self) -> bool {
        self.query.is_none() || self.answered_number < self.asked
    }

    fn next(&mut self, now: Instant) -> Option<String> {
        if self.is_waiting() {
            let is_slow = self.since.is_some_and(|since| now - since > HEARTBEAT_DELAY);
            return is_slow.then(|| "h".to_owned());
        }
        self.asked += 1;
        self.since = Some(now);
        let query = self.query.as_deref().unwrap_or_default();
        let pids = self.wants.pids.iter().map(|pid| format!(" {pid}"));
        Some(format!("r {} {query}{}", self.asked, pids.collect::<String>()))
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
        self.answered_number = number.min(self.asked);
        if self.details == 0 {
            self.details_due = Some(now);
        } else if self.answered_number == self.details {
            let duration = self.since.map_or(Duration::ZERO, |since| now - since);
            self.details_due =
                Some(now + MIN_DETAILS_INTERVAL.max(duration * DETAILS_INTERVAL_FACTOR));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gputop_model::units::Pid;

    #[test]
    fn requests_a_round_only_after_the_last_was_answered() {
        let mut state = State::default();
        let now = Instant::now();
        state.since = Some(now);
        assert_eq!(state.next(now), None);
        assert_eq!(state.next(now + HEARTBEAT_DELAY * 2), Some("h".into()));
        state.query = Some("index".into());
        assert_eq!(state.next(now), Some("r 1 index".into()));
        assert_eq!(state.next(now), None);
        assert_eq!(state.next(now + HEARTBEAT_DELAY * 2), Some("h".into()));
        state.answered_number = 1;
        assert_eq!(state.next(now), Some("r 2 index".into()));
    }

    #[test]
    fn requests_details_between_rounds_and_less_often_if_slow() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let mut state = State { query: Some("index".into()), ..State::default() };
        assert_eq!(state.next_details(begun), None, "no round is complete yet");
        assert_eq!(state.next(begun), Some("r 1 index".into()));
        assert_eq!(state.next_details(begun), None);
        state.answered(1, begun);
        assert_eq!(state.next_details(begun), Some("d 2".into()));
        assert_eq!(state.next(begun), None, "one request at a time");
        state.answered(2, at(1));
        state.wants = OptionalQueries { instances: true, pids: [Pid(7), Pid(31)].into() };
        assert_eq!(state.next(at(1)), Some("r 3 index 7 31".into()));
        state.answered(3, at(2));
        // The detail query took 1 s, so the next one is due after 10 s.
        assert_eq!(state.next_details(at(10)), None);
        assert_eq!(state.next_details(at(11)), Some("d 4 mig".into()));
    }
}
