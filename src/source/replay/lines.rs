//! The lines of one minute, decompressed as they are asked for and bounded in every direction.

use std::io::{BufRead, BufReader, Read, Take};
use std::sync::Arc;

use zstd::stream::read::Decoder;

use super::contents::{Contents, Section};
use crate::source::layout::{MAX_LINE_BYTES, MAX_MINUTE_BYTES, WINDOW_LOG};

/// Where a minute stops being readable: its end is missing, or it is damaged there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Broken;

pub struct Lines {
    // The writer closes a minute after the line that goes over the bound, hence one line more.
    text: Take<BufReader<Decoder<'static, BufReader<Section>>>>,
    line: Vec<u8>,
}

impl Lines {
    pub fn new(contents: &Arc<Contents>, at: u64, end: u64) -> Result<Self, Broken> {
        let stretch = Section {
            contents: Arc::clone(contents),
            at,
            end,
        };
        let mut decoder = Decoder::with_buffer(BufReader::with_capacity(32 << 10, stretch))
            .map_err(|_| Broken)?
            .single_frame();
        decoder.window_log_max(WINDOW_LOG).map_err(|_| Broken)?;
        let text = BufReader::with_capacity(64 << 10, decoder);
        Ok(Self {
            text: text.take(MAX_MINUTE_BYTES + MAX_LINE_BYTES),
            line: Vec::new(),
        })
    }

    /// The next whole line without its line feed; `None` after the last.
    pub fn next(&mut self) -> Result<Option<&[u8]>, Broken> {
        self.line.clear();
        let read = (&mut self.text)
            .take(MAX_LINE_BYTES)
            .read_until(b'\n', &mut self.line)
            .map_err(|_| Broken)?;
        match self.line.pop() {
            Some(b'\n') => Ok(Some(&self.line)),
            None if read == 0 && self.text.limit() > 0 => Ok(None),
            _ => Err(Broken),
        }
    }

    /// What is left of the bound on a minute: how much was decompressed can be told from it.
    pub fn left(&self) -> u64 {
        self.text.limit()
    }
}
