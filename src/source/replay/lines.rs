//! Reads the lines of one recorded minute, decompressing them on demand, with limits on line length, size and memory.

use std::io::{BufRead, BufReader, Read, Take};
use std::sync::Arc;

use gputop_model::{Mono, UnixMillis};
use serde::Deserialize;
use serde::de::IgnoredAny;
use zstd::stream::read::Decoder;

use super::contents::{Contents, Section};
use crate::source::layout::{MAX_LINE_BYTES, MAX_MINUTE_BYTES, MAX_WINDOW_LOG};

/// Error returned if a minute cannot be read beyond a certain point, because it is truncated or damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DamagedMinute;

pub struct Lines {
    // Allow one line more than the limit, because the writer closes a minute only after a line has exceeded the limit.
    text: Take<BufReader<Decoder<'static, BufReader<Section>>>>,
    line: Vec<u8>,
}

impl Lines {
    pub fn new(contents: &Arc<Contents>, at: u64, end: u64) -> Result<Self, DamagedMinute> {
        let section = Section { contents: Arc::clone(contents), at, end };
        let mut decoder = Decoder::with_buffer(BufReader::with_capacity(32 << 10, section))
            .map_err(|_| DamagedMinute)?
            .single_frame();
        decoder.window_log_max(MAX_WINDOW_LOG).map_err(|_| DamagedMinute)?;
        let text = BufReader::with_capacity(64 << 10, decoder);
        Ok(Self { text: text.take(MAX_MINUTE_BYTES + MAX_LINE_BYTES), line: Vec::new() })
    }

    /// Returns the next complete line without its line feed, or `None` after the last line.
    pub fn next(&mut self) -> Result<Option<&[u8]>, DamagedMinute> {
        self.line.clear();
        let read = (&mut self.text)
            .take(MAX_LINE_BYTES)
            .read_until(b'\n', &mut self.line)
            .map_err(|_| DamagedMinute)?;
        match self.line.pop() {
            Some(b'\n') => Ok(Some(&self.line)),
            None if read == 0 && self.text.limit() > 0 => Ok(None),
            _ => Err(DamagedMinute),
        }
    }

    /// Returns how many more bytes of the minute may be decompressed.
    pub fn left(&self) -> u64 {
        self.text.limit()
    }
}

/// A recorded line of which only the frame time is parsed. This is faster than parsing the whole line.
#[derive(Default, Deserialize)]
#[serde(default)]
pub struct TimedLine {
    pub from: u32,
    pub frame: Option<FrameTime>,
    pub map: Option<IgnoredAny>,
    pub holder_reading: Option<IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub struct FrameTime {
    pub time: UnixMillis,
    pub mono: Mono,
}
