//! A log that is not a file: a separate thread queries a program and delivers the text. The latest text is retained for
//! views of earlier output.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::command::Running;
use super::tail::TailRead;

/// Maximum size of the retained text.
const MAX_RETAINED: usize = 256 << 10;
/// Maximum size of the unread text; beyond this the oldest is dropped.
const MAX_WAITING: usize = 256 << 10;

/// Number of immediate captures after a program exits: one for its last output, and one for the last line, which is
/// held back until two captures agree on it.
const URGENT_CAPTURES: u8 = 2;
/// Time between those captures.
const URGENT_INTERVAL: Duration = Duration::from_millis(60);

/// The writing end, used by the delivering thread.
#[derive(Debug, Clone)]
pub struct Mailbox(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    text: VecDeque<u8>,
    skipped: u64,
    /// Number of captures that are requested immediately.
    urgent: u8,
    is_closed: bool,
}

/// The reading end was dropped.
#[derive(Debug)]
pub struct ReaderDropped;

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mailbox {
    pub fn is_read(&self) -> bool {
        !self.0.waiting().is_closed
    }

    pub fn put(&self, text: &[u8]) -> Result<(), ReaderDropped> {
        let mut waiting = self.0.waiting();
        if waiting.is_closed {
            return Err(ReaderDropped);
        }
        waiting.text.extend(text);
        let surplus = waiting.text.len().saturating_sub(MAX_WAITING);
        waiting.text.drain(..surplus);
        waiting.skipped += surplus as u64;
        Ok(())
    }

    /// Waits until the next capture is due: after `pause`, or earlier if the reader requested one.
    pub fn pause(&self, pause: Duration) -> Result<(), ReaderDropped> {
        let until = Instant::now() + pause;
        let mut waiting = self.0.waiting();
        while !waiting.is_closed {
            let now = Instant::now();
            let left = match waiting.urgent {
                URGENT_CAPTURES.. => Duration::ZERO,
                1.. => URGENT_INTERVAL,
                0 => until.saturating_duration_since(now),
            };
            if left.is_zero() {
                waiting.urgent = waiting.urgent.saturating_sub(1);
                return Ok(());
            }
            let before = waiting.urgent;
            let waited = self.0.changed.wait_timeout(waiting, left);
            let timed_out;
            (waiting, timed_out) = waited.unwrap_or_else(PoisonError::into_inner);
            if timed_out.timed_out() && waiting.urgent == before {
                waiting.urgent = before.saturating_sub(1);
                return if waiting.is_closed {
                    Err(ReaderDropped)
                } else {
                    Ok(())
                };
            }
        }
        Err(ReaderDropped)
    }
}

/// The reading end.
#[derive(Debug)]
pub struct PipedLog {
    shared: Arc<Shared>,
    retained: VecDeque<u8>,
    /// Total length of the text that was read.
    offset: u64,
    /// The program that writes the text, if it runs continuously.
    _source: Option<Running>,
}

impl Drop for PipedLog {
    fn drop(&mut self) {
        self.shared.waiting().is_closed = true;
        self.shared.changed.notify_all();
    }
}

impl PipedLog {
    pub fn new(source: Option<Running>) -> (Self, Mailbox) {
        let shared: Arc<Shared> = Arc::default();
        let mailbox = Mailbox(Arc::clone(&shared));
        let log = Self {
            shared,
            retained: VecDeque::new(),
            offset: 0,
            _source: source,
        };
        (log, mailbox)
    }

    /// Requests captures immediately, because a writer exited or failed.
    pub fn hurry(&self) {
        self.shared.waiting().urgent = URGENT_CAPTURES;
        self.shared.changed.notify_all();
    }

    pub fn offset(&self) -> u64 {
        self.offset
    }

    pub fn read(&mut self, buffer: &mut Vec<u8>) -> TailRead {
        buffer.clear();
        let mut waiting = self.shared.waiting();
        let (text, skipped) = (
            std::mem::take(&mut waiting.text),
            std::mem::take(&mut waiting.skipped),
        );
        drop(waiting);
        buffer.extend(text);
        self.offset += buffer.len() as u64 + skipped;
        if skipped > 0 {
            self.retained.clear();
        }
        self.retained.extend(&*buffer);
        let surplus = self.retained.len().saturating_sub(MAX_RETAINED);
        self.retained.drain(..surplus);
        TailRead {
            is_new_file: false,
            skipped,
            bytes: buffer.len(),
        }
    }

    /// Returns the text between two offsets, as far as it is retained.
    pub fn between(&self, from: u64, to: u64) -> Vec<u8> {
        let first = self.offset - self.retained.len() as u64;
        let index = |at: u64| {
            let at = at.clamp(first, self.offset) - first;
            usize::try_from(at).unwrap_or(usize::MAX)
        };
        let range = index(from)..index(to).max(index(from));
        self.retained.range(range).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skips_excess_text_and_reports_it() {
        let (mut log, mailbox) = PipedLog::new(None);
        let mut buffer = Vec::new();
        mailbox.put(b"one\n").expect("read");
        assert_eq!(log.read(&mut buffer).bytes, 4);
        mailbox.put(&vec![b'x'; MAX_WAITING]).expect("read");
        mailbox.put(b"end\n").expect("read");
        let read = log.read(&mut buffer);
        assert_eq!((read.skipped, buffer.len()), (4, MAX_WAITING));
        assert_eq!(log.offset(), 4 + 4 + MAX_WAITING as u64);
        assert_eq!(log.between(log.offset() - 4, u64::MAX), b"end\n");
        assert_eq!(log.between(0, 8), b"");
        drop(log);
        assert!(mailbox.put(b"x").is_err());
    }

    #[test]
    fn hurry_requests_two_captures_and_then_waits_again() {
        let (log, mailbox) = PipedLog::new(None);
        let long = Duration::from_secs(3_600);
        log.hurry();
        for _ in 0..URGENT_CAPTURES {
            mailbox.pause(long).expect("it is read");
        }
        let waits = std::thread::spawn(move || mailbox.pause(long).is_err());
        drop(log);
        assert!(waits.join().expect("a thread"), "the reader was dropped");
    }
}
