//! A log that is no file: text that a thread of its own brings from where it can only be asked for, and the newest of
//! it kept for whoever looks back.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::command::Running;
use super::tail::News;

/// What is kept to look back on.
const KEPT: usize = 256 << 10;
/// What waits to be read; more than that pushes out the oldest.
const MOST_WAITING: usize = 256 << 10;

/// Where the thread puts what it brings. It ends when nobody takes it any more.
#[derive(Debug, Clone)]
pub struct Mailbox(Weak<Mutex<Waiting>>);

#[derive(Debug, Default)]
struct Waiting {
    text: VecDeque<u8>,
    passed_over: u64,
}

/// Nobody reads the log any more.
#[derive(Debug)]
pub struct Unread;

impl Mailbox {
    pub fn is_read(&self) -> bool {
        self.0.strong_count() > 0
    }

    pub fn put(&self, text: &[u8]) -> Result<(), Unread> {
        let waiting = self.0.upgrade().ok_or(Unread)?;
        let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.text.extend(text);
        let surplus = waiting.text.len().saturating_sub(MOST_WAITING);
        waiting.text.drain(..surplus);
        waiting.passed_over += surplus as u64;
        Ok(())
    }
}

/// The reading end.
#[derive(Debug)]
pub struct Fed {
    waiting: Arc<Mutex<Waiting>>,
    kept: VecDeque<u8>,
    /// How much was read in all.
    offset: u64,
    /// The program that the text comes from, if it runs all the time.
    _source: Option<Running>,
}

impl Fed {
    pub fn new(source: Option<Running>) -> (Self, Mailbox) {
        let waiting = Arc::default();
        let mailbox = Mailbox(Arc::downgrade(&waiting));
        let fed = Self {
            waiting,
            kept: VecDeque::new(),
            offset: 0,
            _source: source,
        };
        (fed, mailbox)
    }

    pub fn offset(&self) -> u64 {
        self.offset
    }

    pub fn read(&mut self, buffer: &mut Vec<u8>) -> News {
        buffer.clear();
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
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
        mailbox.put(&vec![b'x'; MOST_WAITING]).expect("read");
        mailbox.put(b"end\n").expect("read");
        let news = fed.read(&mut buffer);
        assert_eq!((news.passed_over, buffer.len()), (4, MOST_WAITING));
        assert_eq!(fed.offset(), 4 + 4 + MOST_WAITING as u64);
        assert_eq!(fed.between(fed.offset() - 4, u64::MAX), b"end\n");
        assert_eq!(fed.between(0, 8), b"");
        drop(fed);
        assert!(mailbox.put(b"x").is_err());
    }
}
