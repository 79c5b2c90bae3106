//! What went through our pty, for the case that the command fails: the newest of it, and what was found in the rest.
//!
//! The relay appends and never waits. A thread of its own reads, once there is enough to be worth one, in the time that
//! the command leaves of the processors; text that comes faster than it is read pushes out the oldest, since the end of
//! a log is what tells of a failure.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use super::unsafe_calls;
use crate::diagnose::{Catalogue, LogFindings, LogReader, recovery};

/// What is kept unread.
const MAX_UNREAD: usize = 4 << 20;
/// From here on it is read while the command runs.
const WORTH_READING: usize = 256 << 10;
/// How incidents name it.
const NAME: &str = "output";

#[derive(Default)]
pub(super) struct Tape {
    shared: Arc<Shared>,
    reader: Option<JoinHandle<(LogFindings, Vec<String>)>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    grown: Condvar,
}

#[derive(Default)]
struct State {
    unread: VecDeque<u8>,
    lost: bool,
    is_over: bool,
}

/// What a tape told.
pub(super) struct OutputSummary {
    pub(super) findings: LogFindings,
    /// Whether all of it was read, so that line numbers are right.
    pub(super) is_whole: bool,
}

impl Tape {
    pub(super) fn push(&mut self, piece: &[u8]) {
        if piece.is_empty() {
            return;
        }
        let mut state = self.shared.lock();
        let surplus = (state.unread.len() + piece.len()).saturating_sub(MAX_UNREAD);
        if surplus > 0 {
            state.unread.drain(..surplus);
            state.lost = true;
        }
        state.unread.extend(piece);
        let is_worth = state.unread.len() >= WORTH_READING;
        drop(state);
        if is_worth {
            self.start();
            self.shared.grown.notify_one();
        }
    }

    fn start(&mut self) {
        if self.reader.is_none() {
            let shared = Arc::clone(&self.shared);
            let reader = thread::Builder::new().name("tape".into());
            self.reader = reader.spawn(move || shared.read()).ok();
        }
    }

    /// Reads the rest. `None` if reading broke, which is nobody's business but ours.
    pub(super) fn finish(mut self) -> Option<OutputSummary> {
        self.shared.lock().is_over = true;
        self.start();
        self.shared.grown.notify_one();
        let (findings, failures) = self.reader?.join().ok()?;
        recovery::add_failures(failures);
        Some(OutputSummary {
            findings,
            is_whole: !self.shared.lock().lost,
        })
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the findings, and what was caught while reading.
    fn read(&self) -> (LogFindings, Vec<String>) {
        unsafe_calls::come_last();
        let mut log = LogReader::new(Catalogue::embedded(), NAME);
        loop {
            let waited = self.grown.wait_while(self.lock(), |state| {
                !state.is_over && state.unread.len() < WORTH_READING
            });
            let mut state = waited.unwrap_or_else(PoisonError::into_inner);
            let is_over = state.is_over;
            let text = std::mem::take(&mut state.unread);
            drop(state);
            let (older, newer) = text.as_slices();
            log.push(older);
            log.push(newer);
            if is_over {
                return (log.finish(), recovery::take_failures());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OOM: &str = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total \
        capacity of 23.69 GiB of which 1.06 GiB is free.\n";

    #[test]
    fn what_is_pushed_is_read() {
        let mut tape = Tape::default();
        for piece in OOM.as_bytes().chunks(7) {
            tape.push(piece);
        }
        let told = tape.finish().expect("it can be read");
        assert!(told.is_whole);
        assert_eq!(told.findings.sightings.len(), 1);
    }

    #[test]
    fn more_than_is_kept_loses_the_oldest_only() {
        let tape = Tape {
            // As if its reader were slow for ever.
            reader: None,
            shared: Arc::default(),
        };
        let mut state = tape.shared.lock();
        state.unread.extend(vec![b'.'; MAX_UNREAD]);
        drop(state);
        let mut tape = tape;
        tape.push(format!("\n{OOM}").as_bytes());
        let told = tape.finish().expect("it can be read");
        assert!(!told.is_whole);
        assert_eq!(told.findings.sightings.len(), 1);
    }
}
