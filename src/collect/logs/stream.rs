//! Log that is a program's output rather than a file. The latest part is retained, so that a view can show earlier
//! output.

use std::collections::VecDeque;
use std::io;

use gputop_model::{Millis, Mono};

use super::content::LogContent;
use super::journal::Journal;
use super::pane::{Pane, PaneCapture};
use crate::collect::logs::content::TailRead;

/// Maximum size of the text retained from a program's output.
const MAX_RETAINED: usize = 256 << 10;
/// Minimum time between two reads of the output, so that the read allowance can recover.
const MIN_INTERVAL: Millis = Millis(20);
const JOURNAL_INTERVAL: Millis = Millis(250);

#[derive(Debug)]
enum FollowedSource {
    Journal(Journal),
    Pane(PaneCapture),
}

#[derive(Debug)]
pub struct Stream {
    source: FollowedSource,
    retained: VecDeque<u8>,
    /// Total length of the text read so far.
    offset: u64,
}

impl Stream {
    pub fn of_journal(journal: Journal) -> Self {
        Self::new(FollowedSource::Journal(journal))
    }

    pub fn of_pane(pane: Pane) -> Self {
        Self::new(FollowedSource::Pane(PaneCapture::new(pane)))
    }

    fn new(source: FollowedSource) -> Self {
        Self { source, retained: VecDeque::new(), offset: 0 }
    }
}

impl LogContent for Stream {
    fn offset(&self) -> u64 {
        self.offset
    }

    fn request_now(&mut self) {
        if let FollowedSource::Pane(capture) = &mut self.source {
            capture.request_now();
        }
    }

    fn due(&self, last: Mono) -> Option<Mono> {
        let due = match &self.source {
            FollowedSource::Journal(_) => Mono(last.0 + JOURNAL_INTERVAL.0),
            FollowedSource::Pane(capture) => capture.due()?,
        };
        Some(due.max(Mono(last.0 + MIN_INTERVAL.0)))
    }

    fn read(&mut self, buffer: &mut Vec<u8>, max_bytes: u64, now: Mono) -> io::Result<TailRead> {
        let max_bytes = usize::try_from(max_bytes).unwrap_or(usize::MAX);
        buffer.clear();
        match &mut self.source {
            FollowedSource::Journal(journal) => journal.read(buffer, max_bytes),
            FollowedSource::Pane(capture) => capture.read(buffer, now),
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
        Ok(TailRead { is_new_file: false, skipped: skipped as u64, bytes: buffer.len() })
    }

    fn between(&self, from: u64, to: u64) -> io::Result<Vec<u8>> {
        let first = self.offset - self.retained.len() as u64;
        let index = |at: u64| {
            let at = at.clamp(first, self.offset) - first;
            usize::try_from(at).unwrap_or(usize::MAX)
        };
        Ok(self.retained.range(index(from)..index(to).max(index(from))).copied().collect())
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
        let mut log = Stream::of_journal(Journal::of(running).expect("a captured output"));
        let (mut buffer, begun) = (Vec::new(), Instant::now());
        while log.offset() < 300_004 {
            let read = log.read(&mut buffer, 100_000, Mono(0)).expect("read");
            assert!(read.bytes <= 100_000);
            assert!(begun.elapsed() < Duration::from_secs(20));
        }
        let between = |from, to| log.between(from, to).expect("retained");
        assert_eq!(between(log.offset() - 4, u64::MAX), b"end\n");
        assert_eq!(between(0, 8), b"");
        assert_eq!(between(0, u64::MAX).len(), MAX_RETAINED);
        let read = log.read(&mut buffer, 100_000, Mono(0)).expect("read");
        assert_eq!(read.bytes, 0);
    }
}
