//! What a log is made of: a file that is read, or text that is brought.

use std::io;

use super::piped_log::Fed;
use super::tail::{News, Tail};
use crate::model::units::Mono;

#[derive(Debug)]
pub enum Body {
    File(Tail),
    Fed(Fed),
}

impl Body {
    /// Up to where it was read.
    pub fn offset(&self) -> u64 {
        match self {
            Self::File(tail) => tail.offset(),
            Self::Fed(fed) => fed.offset(),
        }
    }

    /// The text since the last look, into `buffer`; of a file at most `most` bytes.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn read(&mut self, buffer: &mut Vec<u8>, most: u64, now: Mono) -> io::Result<News> {
        match self {
            Self::File(tail) => tail.read(buffer, most, now),
            Self::Fed(fed) => Ok(fed.read(buffer)),
        }
    }

    /// The text between two places, as far as it is still there.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn between(&self, from: u64, to: u64) -> io::Result<Vec<u8>> {
        match self {
            Self::File(tail) => tail.between(from, to),
            Self::Fed(fed) => Ok(fed.between(from, to)),
        }
    }

    /// What there is to bring is wanted now; a file is read when it is looked at.
    pub fn hurry(&self) {
        if let Self::Fed(fed) = self {
            fed.hurry();
        }
    }

    /// The number of the line at a place, where lines have numbers that can be told.
    pub fn line_at(&self, offset: u64) -> Option<u64> {
        match self {
            Self::File(tail) => tail.line_at(offset),
            Self::Fed(_) => None,
        }
    }
}
