//! Shows the progress of reading large or many files on stderr, if stderr is a terminal.

use std::io::{self, IsTerminal, Read};
use std::time::{Duration, Instant};

use gputop_model::units::Bytes;

/// Time after which progress is shown. Faster reads show no progress.
const SHOW_AFTER: Duration = Duration::from_secs(1);
const UPDATE_INTERVAL: Duration = Duration::from_millis(200);

/// Progress line on stderr, erased when dropped.
pub struct Progress {
    name: String,
    size: Option<u64>,
    read: u64,
    next: Option<Instant>,
    is_shown: bool,
}

impl Progress {
    pub fn new(name: &str, size: Option<u64>) -> Self {
        let next = std::io::stderr().is_terminal().then(|| Instant::now() + SHOW_AFTER);
        Self { name: name.to_owned(), size, read: 0, next, is_shown: false }
    }

    /// Continues with the next input without restarting the timer, so that reading many small files also shows
    /// progress.
    pub fn next_input(&mut self, name: &str, size: Option<u64>) {
        (self.name, self.size, self.read) = (name.to_owned(), size, 0);
    }

    pub fn erase(&mut self) {
        if std::mem::take(&mut self.is_shown) {
            super::print::erase_line();
        }
    }

    pub fn add(&mut self, bytes: usize) {
        self.read += bytes as u64;
        let Some(next) = self.next.filter(|next| Instant::now() >= *next) else { return };
        self.next = Some(next + UPDATE_INTERVAL.max(Instant::now() - next));
        self.is_shown = true;
        let read = Bytes(self.read);
        let total = self.size.filter(|size| *size > 0 && *size >= self.read);
        let total = total.map_or_else(String::new, |size| format!(" of {}", Bytes(size)));
        super::print::erase_line();
        super::print::say(&format!("{}: {read}{total}", self.name));
    }
}

pub struct WithProgress<R> {
    pub reader: R,
    pub progress: Progress,
}

impl<R: Read> Read for WithProgress<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.progress.add(count);
        Ok(count)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.erase();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_small_inputs_show_progress() {
        let mut progress = Progress::new("a", None);
        progress.next = Instant::now().checked_sub(SHOW_AFTER / 2);
        progress.next_input("b", Some(3));
        assert!(!progress.is_shown);
        progress.add(3);
        assert!(progress.is_shown);
    }
}
