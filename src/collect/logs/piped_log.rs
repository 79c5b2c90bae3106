//! A log that is no file: text that a thread of its own brings from where it can only be asked for, and the newest of
//! it kept for whoever looks back.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::command::Running;
use super::tail::News;

/// What is kept to look back on.
const KEPT: usize = 256 << 10;
/// What waits to be read; more than that pushes out the oldest.
const MAX_WAITING: usize = 256 << 10;

/// Captures that are made at once where a program has ended: one for its words, one for the last line, which is held
/// back until it holds still.
const AT_THE_END: u8 = 2;
/// Between those.
const STILL: Duration = Duration::from_millis(60);

/// Where the thread puts what it brings. It ends when nobody takes it any more.
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
    passed_over: u64,
    /// Captures that are wanted before their time.
    hurry: u8,
    is_closed: bool,
}

/// Nobody reads the log any more.
#[derive(Debug)]
pub struct Unread;

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mailbox {
    pub fn is_read(&self) -> bool {
        !self.0.waiting().is_closed
    }

    pub fn put(&self, text: &[u8]) -> Result<(), Unread> {
        let mut waiting = self.0.waiting();
        if waiting.is_closed {
            return Err(Unread);
        }
        waiting.text.extend(text);
        let surplus = waiting.text.len().saturating_sub(MAX_WAITING);
        waiting.text.drain(..surplus);
        waiting.passed_over += surplus as u64;
        Ok(())
    }

    /// Until it is time to ask again: after `pause`, or soon where the reader is in a hurry.
    pub fn pause(&self, pause: Duration) -> Result<(), Unread> {
        let until = Instant::now() + pause;
        let mut waiting = self.0.waiting();
        while !waiting.is_closed {
            let now = Instant::now();
            let left = match waiting.hurry {
                AT_THE_END.. => Duration::ZERO,
                1.. => STILL,
                0 => until.saturating_duration_since(now),
            };
            if left.is_zero() {
                waiting.hurry = waiting.hurry.saturating_sub(1);
                return Ok(());
            }
            let before = waiting.hurry;
            let waited = self.0.changed.wait_timeout(waiting, left);
            let timed_out;
            (waiting, timed_out) = waited.unwrap_or_else(PoisonError::into_inner);
            if timed_out.timed_out() && waiting.hurry == before {
                waiting.hurry = before.saturating_sub(1);
                return if waiting.is_closed {
                    Err(Unread)
                } else {
                    Ok(())
                };
            }
        }
        Err(Unread)
    }
}

/// The reading end.
#[derive(Debug)]
pub struct Fed {
    shared: Arc<Shared>,
    kept: VecDeque<u8>,
    /// How much was read in all.
    offset: u64,
    /// The program that the text comes from, if it runs all the time.
    _source: Option<Running>,
}

impl Drop for Fed {
    fn drop(&mut self) {
        self.shared.waiting().is_closed = true;
        self.shared.changed.notify_all();
    }
}

impl Fed {
    pub fn new(source: Option<Running>) -> (Self, Mailbox) {
        let shared: Arc<Shared> = Arc::default();
        let mailbox = Mailbox(Arc::clone(&shared));
        let fed = Self {
            shared,
            kept: VecDeque::new(),
            offset: 0,
            _source: source,
        };
        (fed, mailbox)
    }

    /// A writer has ended, or failed: what there is to bring is wanted now.
    pub fn hurry(&self) {
        self.shared.waiting().hurry = AT_THE_END;
        self.shared.changed.notify_all();
    }

    pub fn offset(&self) -> u64 {
        self.offset
    }

    pub fn read(&mut self, buffer: &mut Vec<u8>) -> News {
        buffer.clear();
        let mut waiting = self.shared.waiting();
        let (text, passed_over) = (
            std::mem::take(&mut waiting.text),
            std::mem::take(&mut waiting.passed_over),
        );
        drop(waiting);
        buffer.extend(text);
        self.offset += buffer.len() as u64 + passed_over;
        if passed_over > 0 {
            self.kept.clear();
        }
        self.kept.extend(&*buffer);
        let surplus = self.kept.len().saturating_sub(KEPT);
        self.kept.drain(..surplus);
        News {
            is_new: false,
            passed_over,
            bytes: buffer.len(),
        }
    }

    /// As far as it is kept.
    pub fn between(&self, from: u64, to: u64) -> Vec<u8> {
        let first = self.offset - self.kept.len() as u64;
        let place = |at: u64| {
            let at = at.clamp(first, self.offset) - first;
            usize::try_from(at).unwrap_or(usize::MAX)
        };
        let range = place(from)..place(to).max(place(from));
        self.kept.range(range).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_much_is_passed_over_and_told() {
        let (mut fed, mailbox) = Fed::new(None);
        let mut buffer = Vec::new();
        mailbox.put(b"one\n").expect("read");
        assert_eq!(fed.read(&mut buffer).bytes, 4);
        mailbox.put(&vec![b'x'; MAX_WAITING]).expect("read");
        mailbox.put(b"end\n").expect("read");
        let news = fed.read(&mut buffer);
        assert_eq!((news.passed_over, buffer.len()), (4, MAX_WAITING));
        assert_eq!(fed.offset(), 4 + 4 + MAX_WAITING as u64);
        assert_eq!(fed.between(fed.offset() - 4, u64::MAX), b"end\n");
        assert_eq!(fed.between(0, 8), b"");
        drop(fed);
        assert!(mailbox.put(b"x").is_err());
    }

    #[test]
    fn who_is_in_a_hurry_is_brought_two_captures_at_once_and_then_waits_again() {
        let (fed, mailbox) = Fed::new(None);
        let long = Duration::from_secs(3_600);
        fed.hurry();
        for _ in 0..AT_THE_END {
            mailbox.pause(long).expect("it is read");
        }
        let waits = std::thread::spawn(move || mailbox.pause(long).is_err());
        drop(fed);
        assert!(waits.join().expect("a thread"), "the log was closed");
    }
}
