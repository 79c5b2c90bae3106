//! A log that is not a file: the text of a program, of which the latest part is retained for views of earlier output.

use std::collections::VecDeque;

use super::journal::Journal;
use super::pane::{Capture, Pane};
use super::tail::TailRead;
use crate::model::units::Mono;

/// Maximum size of the retained text.
const MAX_RETAINED: usize = 256 << 10;

#[derive(Debug)]
enum Source {
    Journal(Journal),
    Pane(Capture),
}

#[derive(Debug)]
pub struct Stream {
    source: Source,
    retained: VecDeque<u8>,
    /// Total length of the text that was read.
    offset: u64,
}

impl Stream {
    pub fn of_journal(journal: Journal) -> Self {
        Self::new(Source::Journal(journal))
    }

    pub fn of_pane(pane: Pane) -> Self {
        Self::new(Source::Pane(Capture::new(pane)))
    }

    fn new(source: Source) -> Self {
        Self {
            source,
            retained: VecDeque::new(),
            offset: 0,
        }
    }

    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Requests the text immediately, because a writer exited or failed.
    pub fn hurry(&mut self) {
        if let Source::Pane(capture) = &mut self.source {
            capture.hurry();
        }
    }

    /// Returns the time of the next read, given the usual one. `None` if there is nothing left to read.
    pub fn due(&self, usual: Mono) -> Option<Mono> {
        match &self.source {
            Source::Journal(_) => Some(usual),
            Source::Pane(capture) => capture.due(),
        }
    }

    /// Reads the text since the last call into `buffer`. If it is longer than `max_bytes`, only the latest text is used.
    pub fn read(&mut self, buffer: &mut Vec<u8>, max_bytes: usize, now: Mono) -> TailRead {
        buffer.clear();
        match &mut self.source {
            Source::Journal(journal) => journal.read(buffer, max_bytes),
            Source::Pane(capture) => capture.read(buffer, now),
        }
        let skipped = buffer.len().saturating_sub(max_bytes);
        buffer.drain(..skipped);
        self.offset += (skipped + buffer.len()) as u64;
        if skipped > 0 {
            self.retained.clear();
        }
        self.retained.extend(&*buffer);
        let surplus = self.retained.len().saturating_sub(MAX_RETAINED);
        self.retained.drain(..surplus);
        TailRead {
            is_new_file: false,
            skipped: skipped as u64,
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
    use std::path::Path;
    use std::time::{Duration, Instant};

    use super::super::command::start;
    use super::*;

    #[test]
    fn reads_a_program_and_retains_its_latest_text() {
        let script = "head -c 300000 /dev/zero; echo end; exec sleep 1000";
        let running = start(Path::new("/bin/sh"), &["-c", script]).expect("a shell");
        let mut log = Stream::of_journal(Journal::of(running).expect("it has an output"));
        let (mut buffer, begun) = (Vec::new(), Instant::now());
        while log.offset() < 300_004 {
            assert!(log.read(&mut buffer, 100_000, Mono(0)).bytes <= 100_000);
            assert!(begun.elapsed() < Duration::from_secs(20));
        }
        assert_eq!(log.between(log.offset() - 4, u64::MAX), b"end\n");
        assert_eq!(log.between(0, 8), b"");
        assert_eq!(log.between(0, u64::MAX).len(), MAX_RETAINED);
        assert_eq!(log.read(&mut buffer, 100_000, Mono(0)).bytes, 0);
    }
}
