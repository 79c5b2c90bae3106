//! Command output that passed through the pty: the newest part as text, and log findings from the rest. Read if the
//! command fails.
//!
//! The relay appends and never waits. A separate low-priority thread parses the text once enough has accumulated.
//! When output arrives faster than it is parsed, the oldest text is dropped, because a log reports failures at its
//! end.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use super::unsafe_calls;
use crate::diagnose::{Catalogue, LogFindings, LogReader, recovery};

/// Maximum size of the text that is not parsed yet.
const MAX_UNREAD_BYTES: usize = 4 << 20;
/// Minimum size at which the text is parsed while the command runs.
const MIN_BATCH: usize = 256 << 10;
/// Log name in incidents.
const NAME: &str = "output";

#[derive(Default)]
pub(super) struct CapturedOutput {
    shared: Arc<Shared>,
    reader: Option<JoinHandle<(LogFindings, Vec<String>)>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    unread: VecDeque<u8>,
    has_dropped: bool,
    is_finished: bool,
}

/// Result of parsing the captured output.
pub(super) struct OutputSummary {
    pub(super) findings: LogFindings,
    /// True if no text was dropped, so that line numbers are right.
    pub(super) is_whole: bool,
}

impl CapturedOutput {
    pub(super) fn push(&mut self, chunk: &[u8]) {
        if chunk.is_empty() {
            return;
        }
        let mut state = self.shared.lock();
        let surplus = (state.unread.len() + chunk.len()).saturating_sub(MAX_UNREAD_BYTES);
        if surplus > 0 {
            state.unread.drain(..surplus);
            state.has_dropped = true;
        }
        state.unread.extend(chunk);
        let has_batch = state.unread.len() >= MIN_BATCH;
        drop(state);
        if has_batch {
            self.start();
            self.shared.changed.notify_one();
        }
    }

    fn start(&mut self) {
        if self.reader.is_none() {
            let shared = Arc::clone(&self.shared);
            let reader = thread::Builder::new().name("output".into());
            self.reader = reader.spawn(move || shared.read()).ok();
        }
    }

    /// Parses the remaining text. Returns `None` if the reader thread failed; the explanation then uses the other
    /// logs.
    pub(super) fn finish(mut self) -> Option<OutputSummary> {
        self.shared.lock().is_finished = true;
        self.start();
        self.shared.changed.notify_one();
        let (findings, failures) = self.reader?.join().ok()?;
        recovery::add_failures(failures);
        Some(OutputSummary {
            findings,
            is_whole: !self.shared.lock().has_dropped,
        })
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the findings and the failures that occurred while parsing.
    fn read(&self) -> (LogFindings, Vec<String>) {
        unsafe_calls::lower_priority();
        let mut log = LogReader::new(Catalogue::embedded(), NAME);
        loop {
            let waited = self.changed.wait_while(self.lock(), |state| {
                !state.is_finished && state.unread.len() < MIN_BATCH
            });
            let mut state = waited.unwrap_or_else(PoisonError::into_inner);
            let is_finished = state.is_finished;
            let text = std::mem::take(&mut state.unread);
            drop(state);
            let (older, newer) = text.as_slices();
            log.push(older);
            log.push(newer);
            if is_finished {
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
    fn finds_an_error_pushed_in_small_chunks() {
        let mut output = CapturedOutput::default();
        for chunk in OOM.as_bytes().chunks(7) {
            output.push(chunk);
        }
        let summary = output.finish().expect("it can be read");
        assert!(summary.is_whole);
        assert_eq!(summary.findings.sightings.len(), 1);
    }

    #[test]
    fn drops_the_oldest_text_beyond_the_limit() {
        let output = CapturedOutput {
            // No reader thread, as if it were infinitely slow.
            reader: None,
            shared: Arc::default(),
        };
        let mut state = output.shared.lock();
        state.unread.extend(vec![b'.'; MAX_UNREAD_BYTES]);
        drop(state);
        let mut output = output;
        output.push(format!("\n{OOM}").as_bytes());
        let summary = output.finish().expect("it can be read");
        assert!(!summary.is_whole);
        assert_eq!(summary.findings.sightings.len(), 1);
    }
}
