//! Reads the stream of a remote agent as updates. The stream is decompressed and limited in size, and its text is
//! escaped.

use std::borrow::Cow;
use std::io::{self, BufRead, BufReader, Read};

use gputop_model::protocol::{Line, Update};
use gputop_model::text::escape_json_strings;
use zstd::stream::read::Decoder;

use super::limits::{MAX_EVENT_BYTES, MAX_LINE, MAX_WINDOW_LOG};
use crate::source::named_zstd_error;

/// Capacity of a line buffer, which is allocated before a line is read and freed afterwards. The buffer is large enough
/// to get its own memory mapping. On the shared heap, freed buffers would be split into small allocations during
/// parsing, which would increase memory use with many hosts.
const LINE_CAPACITY: usize = 160 << 10;

/// The stream of a remote agent after the greeting.
pub(super) struct Incoming<R: BufRead> {
    text: BufReader<Decoder<'static, R>>,
}

/// Reason why reading a remote stream stopped early.
#[derive(Debug, thiserror::Error)]
pub(super) enum StreamError {
    #[error("a received line is longer than {} MiB", MAX_LINE >> 20)]
    TooLong,
    #[error("the remote gputop requires {0}, which this version does not support")]
    Needs(String),
    #[error("the received data is damaged: {0}")]
    Read(#[from] io::Error),
}

impl<R: BufRead> Incoming<R> {
    pub(super) fn new(from: R) -> io::Result<Self> {
        let mut decoder = Decoder::with_buffer(from)?;
        decoder.window_log_max(MAX_WINDOW_LOG)?;
        Ok(Self { text: BufReader::with_capacity(4 << 10, decoder) })
    }

    /// Returns the next update, or `None` at the end of the stream. Skips lines of unknown kinds.
    pub(super) fn next(&mut self) -> Result<Option<Update>, StreamError> {
        loop {
            let mut line = Vec::with_capacity(LINE_CAPACITY);
            let read = (&mut self.text).take(MAX_LINE).read_until(b'\n', &mut line);
            let read = read.map_err(named_zstd_error)?;
            if read == 0 {
                return Ok(None);
            }
            if line.last() != Some(&b'\n') {
                // The line was truncated because the connection closed or the size limit was reached.
                let is_cut = (line.len() as u64) < MAX_LINE;
                return if is_cut { Ok(None) } else { Err(StreamError::TooLong) };
            }
            // Escaping can make a line longer, so do not keep the unescaped copy in memory as well.
            let text = match escape_json_strings(&line, MAX_LINE as usize) {
                None => return Err(StreamError::TooLong),
                Some(Cow::Owned(text)) => text,
                Some(Cow::Borrowed(_)) => line,
            };
            let update = match Line::read(&text).map(Line::update) {
                Ok(Ok(Some(update))) => update,
                Ok(Ok(None)) => continue,
                Ok(Err(error)) => {
                    tracing::warn!("skipped a map from the remote host: {error}");
                    continue;
                }
                Err(error) => {
                    tracing::warn!("skipped a line from the remote host: {error}");
                    continue;
                }
            };
            if matches!(update, Update::Event(_)) && update.memory_size() > MAX_EVENT_BYTES {
                tracing::warn!("skipped an event from the remote host: it is too large");
                continue;
            }
            if let Update::Hello(hello) = &update
                && let Some(needs) = hello.requires.first()
            {
                return Err(StreamError::Needs(needs.chars().take(60).collect()));
            }
            return Ok(Some(update));
        }
    }
}

/// Reads an agent's output after its greeting. Entry point for the fuzz targets.
pub fn read_agent_stream(stream: &[u8]) -> Vec<Update> {
    let mut updates = Vec::new();
    let Ok(mut incoming) = Incoming::new(stream) else { return updates };
    while let Ok(Some(update)) = incoming.next() {
        updates.push(update);
    }
    updates
}
