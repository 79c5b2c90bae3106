//! Limits for one read of the Python objects of a process, and messages about the data that each limit excluded.

use std::cell::{Cell, RefCell};
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    pub time_limit: Duration,
    /// Approximate maximum memory used by the read, in bytes.
    pub memory_limit: usize,
    pub maximums: Maximums,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Maximums {
    /// Maximum number of candidates: heap words that may belong to a tensor.
    pub candidates: usize,
    pub tensors: usize,
    pub interpreters: usize,
    pub threads: usize,
    /// Maximum number of Python frames per thread.
    pub frames: usize,
    /// Maximum number of local variables per frame.
    pub locals: u64,
    /// Maximum number of subclasses of `torch.Tensor`.
    pub classes: usize,
    /// Maximum number of references in one path to a tensor.
    pub depth: usize,
    /// Maximum number of items in one Python container, or of attributes of one instance.
    pub items: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            time_limit: Duration::from_secs(2),
            memory_limit: 64 << 20,
            maximums: Maximums {
                candidates: 1 << 20,
                tensors: 1 << 18,
                interpreters: 16,
                threads: 512,
                frames: 2_000,
                locals: 10_000,
                classes: 4_096,
                depth: 60,
                items: 1 << 23,
            },
        }
    }
}

/// Messages for [`Holders::limit`](gputop_model::holders::Holders::limit).
#[derive(Debug, Default)]
pub struct Limits {
    sentences: RefCell<Vec<String>>,
    is_incomplete: Cell<bool>,
}

impl Limits {
    /// Adds a message about data that can never be read in this process.
    pub fn add(&self, sentence: impl Into<String>) {
        let sentence = sentence.into();
        let mut sentences = self.sentences.borrow_mut();
        if !sentences.contains(&sentence) {
            sentences.push(sentence);
        }
    }

    /// Adds a message about a limit that stopped a part of this read.
    pub(crate) fn add_end(&self, sentence: impl Into<String>) {
        self.is_incomplete.set(true);
        self.add(sentence);
    }

    pub fn is_incomplete(&self) -> bool {
        self.is_incomplete.get()
    }

    pub fn text(&self) -> Option<String> {
        let sentences = self.sentences.borrow();
        (!sentences.is_empty()).then(|| sentences.join(" "))
    }
}
