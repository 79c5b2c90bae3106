//! How far reading a long file is, on standard error of a terminal.

use std::io::{self, IsTerminal, Read};
use std::time::{Duration, Instant};

use crate::model::units::Bytes;

/// What is done sooner needs no word.
const SOON: Duration = Duration::from_millis(1500);
const STEP: Duration = Duration::from_millis(200);

/// Erases its line when it ends.
pub struct Progress {
    name: String,
    size: Option<u64>,
    read: u64,
    next: Option<Instant>,
    is_shown: bool,
}

impl Progress {
    /// Of the file `name`, whose size is known for a file.
    pub fn of(name: &str, size: Option<u64>) -> Self {
        let next = std::io::stderr()
            .is_terminal()
            .then(|| Instant::now() + SOON);
        Self {
            name: name.to_owned(),
            size,
            read: 0,
            next,
            is_shown: false,
        }
    }

    pub fn add(&mut self, bytes: usize) {
        self.read += bytes as u64;
        let Some(next) = self.next.filter(|next| Instant::now() >= *next) else {
            return;
        };
        self.next = Some(next + STEP.max(Instant::now() - next));
        self.is_shown = true;
        let read = Bytes(self.read);
        let share = self.size.filter(|size| *size > 0 && *size >= self.read);
        let share = share.map_or_else(String::new, |size| format!(" of {}", Bytes(size)));
        super::erase_line();
        super::say(&format!("{}: {read}{share}", self.name));
    }
}

/// A reader that says how far it is.
pub struct Followed<R> {
    pub reader: R,
    pub progress: Progress,
}

impl<R: Read> Read for Followed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.progress.add(count);
        Ok(count)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_shown {
            super::erase_line();
        }
    }
}
