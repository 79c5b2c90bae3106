//! Records the stream of a source in a file that can be played, searched with `jq` and read while it grows.
//!
//! The format is described in `layout.rs`. Every frame and event is flushed as its own zstd block, so a crash loses
//! only the data since the last flush. The index at the end only makes opening faster. Process details (environment,
//! full command line) are replies to requests and not part of the stream, so they are never recorded.
//!
//! A day of recording 8 GPUs and 64 processes, 8 of them training with PyTorch, takes less than 100 MB (`cargo bench
//! --bench recording`: 98.6 MB, of which 6.1 MB are maps). Every line contains a complete frame and can be read without
//! the others. Two kinds of rounding save about 30 MB of that:
//!
//! - CPU shares are rounded to a tenth of a percent. The kernel counts CPU time in ticks of 10 ms, so an interval of
//!   one second yields only whole percents. Further digits result only from dividing by an interval such as 1.0003 s,
//!   and they compress badly.
//! - Summaries in the notes are rounded to four digits, which is more precise than any chart.
//!
//! `map_schedule.rs` decides how often the map of each pool is written.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use gputop_model::history::{Span, Summarize, Summary};
use gputop_model::holders::summary::HolderSummary;
use gputop_model::protocol::map_line::MapLine;
use gputop_model::{
    Event, FailureMap, Frame, Hello, Holders, Mono, PhaseWindow, PoolMap, PythonStack,
};
use zstd::stream::write::Encoder;
use zstd::zstd_safe::CParameter;

use super::layout::{
    HELLO_MAGIC, INDEX_END, INDEX_FOOTER, INDEX_MAGIC, Index, MAX_HOLDERS_BYTES, MAX_LINE_BYTES,
    MAX_MINUTE_BYTES, MAX_NOTE_EVENT_BYTES, MINUTE, Minute, MinuteNote, NOTE_MAGIC,
    SKIPPABLE_HEADER, WINDOW_LOG, skippable_header,
};
use super::recording_file::{FileChange, PIPE_TIMEOUT, RecordingFile};

/// zstd level. It is as fast as the default level of 3 and makes files 7 % smaller, but needs 2 MB more memory.
const COMPRESSION_LEVEL: i32 = 6;
/// zstd level for many recordings at once. Connections use the same level.
const SMALL_COMPRESSION_LEVEL: i32 = 3;
const SMALL_WINDOW_LOG: u32 = 18;

#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("{path} already exists and is a recording. Choose another name, or use --force to replace it", path = .0.display())]
    IsRecording(PathBuf),
    #[error("{path} already exists and is not a gputop recording. Choose another name", path = .0.display())]
    IsForeign(PathBuf),
    #[error("cannot record to {path}: {by} is recording to it. Stop that process, or choose another name", path = .path.display(), by = .pid.map_or("another process".to_owned(), |pid| format!("process {pid}")))]
    InUse { path: PathBuf, pid: Option<u32> },
    #[error("cannot record to {path}: it is a device. Choose a file, or a pipe that another program reads", path = .0.display())]
    IsDevice(PathBuf),
    #[error("cannot record to {path}: no program reads this pipe. Start its reader first, or choose a file", path = .0.display())]
    NoReader(PathBuf),
    #[error(transparent)]
    Changed(#[from] FileChange),
    #[error("cannot write the recording: the reader of the pipe has taken no data for {} s. Record to a file instead", PIPE_TIMEOUT.as_secs())]
    Stalled,
    #[error("cannot create the recording {path}: {source}. Choose a writable folder", path = .path.display())]
    Create { path: PathBuf, source: io::Error },
    #[error(
        "cannot write the recording: the disk is full. The file is complete up to the previous second; free some space and start another recording"
    )]
    DiskFull(#[source] io::Error),
    #[error("cannot write the recording: {0}. The file is complete up to the previous second")]
    Write(#[source] io::Error),
}

fn write_failed(source: io::Error) -> RecordError {
    match source.downcast::<FileChange>() {
        Ok(change) => RecordError::Changed(change),
        Err(source) => match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                RecordError::DiskFull(source)
            }
            io::ErrorKind::TimedOut => RecordError::Stalled,
            _ => RecordError::Write(source),
        },
    }
}

/// Size of the window in which zstd searches for matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CompressionWindow {
    /// 4 MiB, plus 4 MiB for finding matches.
    Large,
    /// 256 KiB, as for connections. A hundred recordings with this window take less memory than ten with the large one.
    Small,
}

/// Writes one recording. The writer cannot be used after an error, but the part already written stays playable.
pub struct Recorder<W: Write = RecordingFile> {
    out: W,
    window: CompressionWindow,
    offset: u64,
    minute: Option<OpenMinute>,
    minutes: Vec<Minute>,
}

struct OpenMinute {
    /// Compressor that writes to memory. After each flush, its output is written immediately.
    encoder: Encoder<'static, Vec<u8>>,
    at: Minute,
    raw_bytes: u64,
    summary: Summarize,
    /// Events to repeat in the note that follows the minute, up to a limit. Further events are stored only in the
    /// minute.
    events: Vec<Event>,
    event_bytes: u64,
}

impl Recorder {
    /// Creates a recording. An existing file is not changed, unless it is empty.
    pub fn create(path: &Path, hello: &Hello) -> Result<Self, RecordError> {
        Self::new(RecordingFile::create(path, false)?, hello)
    }

    /// Creates a recording and replaces an existing one. A file that is not a recording is not changed.
    pub fn overwrite(path: &Path, hello: &Hello) -> Result<Self, RecordError> {
        Self::new(RecordingFile::create(path, true)?, hello)
    }

    /// Completes the recording and returns the length of its file. Fails if another program has changed the file.
    pub fn close(self) -> Result<u64, RecordError> {
        self.finish()?.close().map_err(write_failed)
    }

    /// Deletes the file. Call this for a recording without frames, which is useless.
    pub fn discard(&self) {
        self.out.discard();
    }
}

impl<W: Write> Recorder<W> {
    /// Starts a recording at the current position of any writer.
    pub fn new(out: W, hello: &Hello) -> Result<Self, RecordError> {
        let mut recorder = Self {
            out,
            window: CompressionWindow::Large,
            offset: 0,
            minute: None,
            minutes: Vec::new(),
        };
        let payload = json_entry("hello", hello).map_err(write_failed)?;
        recorder.skippable(HELLO_MAGIC, &payload).map_err(write_failed)?;
        Ok(recorder)
    }

    /// Reduces memory use at the cost of file size, for many concurrent recordings.
    #[must_use]
    pub fn with_small_window(self) -> Self {
        Self { window: CompressionWindow::Small, ..self }
    }

    pub fn frame(&mut self, frame: &Frame) -> Result<(), RecordError> {
        let line = json_entry("frame", frame);
        line.and_then(|line| {
            let minute = self.write_line(frame.mono, &line)?;
            minute.at.frames += 1;
            minute.summary.push(frame);
            Ok(())
        })
        .map_err(write_failed)
    }

    pub fn event(&mut self, event: &Event) -> Result<(), RecordError> {
        let line = json_entry("event", event);
        line.and_then(|line| {
            let minute = self.write_line(event.mono, &line)?;
            minute.add_event(event, line.len() as u64);
            Ok(())
        })
        .map_err(write_failed)
    }

    /// Writes what a process did, without the text of its source files.
    pub fn phases(&mut self, window: &PhaseWindow) -> Result<(), RecordError> {
        let line = json_entry("phase_window", &window.clone().recorded());
        line.and_then(|line| self.write_line(window.at, &line).map(drop)).map_err(write_failed)
    }

    /// Writes a Python stack captured when an allocation failed or memory reached a new maximum.
    pub fn stack(&mut self, stack: &PythonStack) -> Result<(), RecordError> {
        let line = json_entry("stack", stack);
        line.and_then(|line| self.write_line(stack.at, &line).map(drop)).map_err(write_failed)
    }

    /// Writes the sums of a process's memory holders. They are read when an allocation fails or memory is nearly full.
    pub fn holder_summary(&mut self, summary: &HolderSummary) -> Result<(), RecordError> {
        let line = json_entry("holder_summary", summary);
        line.and_then(|line| self.write_reading(summary.at, &line).map(drop)).map_err(write_failed)
    }

    /// Writes a reading of a process's memory holders without single tensors. The caller must have the user's permission
    /// to store names of tensors.
    pub fn holders(&mut self, holders: &Holders) -> Result<(), RecordError> {
        let line = json_entry("holder_reading", &holders.clone().recorded());
        line.and_then(|line| {
            // Omit a reading over the limit. Only a reading with 256 groups of unusually long names is that long.
            if line.len() <= MAX_HOLDERS_BYTES {
                self.write_reading(holders.at, &line)?.at.holders += 1;
            }
            Ok(())
        })
        .map_err(write_failed)
    }

    /// Writes a pool map and returns the number of bytes written.
    pub fn map(&mut self, map: &PoolMap) -> Result<u64, RecordError> {
        self.write_map(map, None)
    }

    /// Writes a pool map captured because of a failed allocation, like [`map`](Self::map).
    pub fn failure_map(&mut self, failed: &FailureMap) -> Result<u64, RecordError> {
        self.write_map(&failed.map, Some(failed.since))
    }

    fn write_map(&mut self, map: &PoolMap, since: Option<Mono>) -> Result<u64, RecordError> {
        let before = self.offset;
        let line = MapLine::new(map, since).map_err(io::Error::from);
        let line = line.and_then(|line| json_line(&line));
        line.and_then(|line| {
            // Omit lines over the limit, because readers reject them.
            if line.len() as u64 <= MAX_LINE_BYTES {
                let minute = self.write_line(map.at, &line)?;
                minute.at.maps += 1;
            }
            Ok(self.offset - before)
        })
        .map_err(write_failed)
    }

    pub fn bytes(&self) -> u64 {
        self.offset
    }

    /// Closes the last minute, writes the index and returns the writer.
    pub fn finish(mut self) -> Result<W, RecordError> {
        self.close_minute()
            .and_then(|()| self.write_index())
            .and_then(|()| self.out.flush())
            .map_err(write_failed)?;
        Ok(self.out)
    }

    /// Writes a reading that started at `at`. The minute may have started since then, because a reading takes seconds.
    fn write_reading(&mut self, at: Mono, line: &[u8]) -> io::Result<&mut OpenMinute> {
        let start = self.minute.as_ref().map(|minute| minute.at.start);
        self.write_line(start.map_or(at, |start| start.max(at)), line)
    }

    fn write_line(&mut self, at: Mono, line: &[u8]) -> io::Result<&mut OpenMinute> {
        if self.minute.as_ref().is_some_and(|m| m.is_over(at)) {
            self.close_minute()?;
        }
        let minute = match &mut self.minute {
            Some(minute) => minute,
            none => none.insert(OpenMinute::new(self.offset, at, self.window)?),
        };
        minute.at.end = minute.at.end.max(at);
        minute.raw_bytes += line.len() as u64;
        minute.encoder.write_all(line)?;
        minute.encoder.flush()?;
        self.offset += drain(minute.encoder.get_mut(), &mut self.out)?;
        Ok(minute)
    }

    fn close_minute(&mut self) -> io::Result<()> {
        let Some(mut minute) = self.minute.take() else { return Ok(()) };
        let mut rest = minute.encoder.finish()?;
        self.offset += drain(&mut rest, &mut self.out)?;
        minute.at.bytes = self.offset - minute.at.offset;
        let note = serde_json::to_vec(&MinuteNote {
            summary: rounded(minute.summary.take()),
            events: minute.events,
        })?;
        let mut payload = json_line(&minute.at)?;
        payload.extend(zstd::bulk::compress(&note, COMPRESSION_LEVEL)?);
        self.skippable(NOTE_MAGIC, &payload)?;
        minute.at.note = SKIPPABLE_HEADER + payload.len() as u64;
        self.minutes.push(minute.at);
        Ok(())
    }

    fn write_index(&mut self) -> io::Result<()> {
        let mut payload =
            json_line(&Index { offset: self.offset, minutes: std::mem::take(&mut self.minutes) })?;
        let whole = SKIPPABLE_HEADER + payload.len() as u64 + INDEX_FOOTER;
        let whole = u32::try_from(whole).map_err(io::Error::other)?;
        payload.extend(whole.to_le_bytes());
        payload.extend(INDEX_END);
        self.skippable(INDEX_MAGIC, &payload)
    }

    fn skippable(&mut self, magic: u32, payload: &[u8]) -> io::Result<()> {
        let header = skippable_header(magic, payload.len())
            .ok_or_else(|| io::Error::other("a part of the recording is larger than 4 GiB"))?;
        let mut whole = [header.as_slice(), payload].concat();
        self.offset += drain(&mut whole, &mut self.out)?;
        Ok(())
    }
}

impl OpenMinute {
    fn new(offset: u64, start: Mono, window: CompressionWindow) -> io::Result<Self> {
        let (level, window_log) = match window {
            CompressionWindow::Large => (COMPRESSION_LEVEL, WINDOW_LOG),
            CompressionWindow::Small => (SMALL_COMPRESSION_LEVEL, SMALL_WINDOW_LOG),
        };
        let mut encoder = Encoder::new(Vec::new(), level)?;
        encoder.set_parameter(CParameter::WindowLog(window_log))?;
        encoder.long_distance_matching(window == CompressionWindow::Large)?;
        encoder.include_checksum(true)?;
        Ok(Self {
            encoder,
            at: Minute { offset, start, end: start, ..Minute::default() },
            raw_bytes: 0,
            summary: Summarize::default(),
            events: Vec::new(),
            event_bytes: 0,
        })
    }

    fn add_event(&mut self, event: &Event, bytes: u64) {
        self.event_bytes += bytes;
        if self.event_bytes <= MAX_NOTE_EVENT_BYTES {
            self.events.push(event.clone());
        }
    }

    /// Returns true if a frame at `now` must start a new minute. Also returns true if the clock went backwards, because
    /// the frame is then from another boot.
    fn is_over(&self, now: Mono) -> bool {
        let start = self.at.start;
        now < start || now.since(start) >= MINUTE || self.raw_bytes > MAX_MINUTE_BYTES
    }
}

fn rounded(mut summary: Summary) -> Summary {
    for bucket in summary.series.values_mut().flatten() {
        // Drop infinite values. JSON cannot represent infinity, and one such value would make the entire note
        // unreadable.
        *bucket = bucket
            .map(|span| Span(four_digits(span.0), four_digits(span.1)))
            .filter(|span| span.0.is_finite() && span.1.is_finite());
    }
    summary
}

fn four_digits(value: f32) -> f32 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    // Calculate in f64, because large powers of ten are not exact in f32.
    let wide = f64::from(value);
    let unit = 10_f64.powi(wide.abs().log10().floor() as i32 - 3);
    ((wide / unit).round() * unit) as f32
}

/// Returns an [`Update`](gputop_model::protocol::Update) as a line, without cloning its content.
fn json_entry(kind: &str, content: &impl serde::Serialize) -> io::Result<Vec<u8>> {
    json_line(&BTreeMap::from([(kind, content)]))
}

fn json_line(value: &impl serde::Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    Ok(line)
}

fn drain(from: &mut Vec<u8>, to: &mut impl Write) -> io::Result<u64> {
    to.write_all(from)?;
    let bytes = from.len() as u64;
    from.clear();
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_four_digits_of_any_magnitude() {
        assert_eq!(four_digits(9_000_123_456.0), 9_000_000_000.0);
        assert_eq!(four_digits(0.123_456), 0.1235);
        assert_eq!(four_digits(-99.996), -100.0);
        assert_eq!(four_digits(0.0), 0.0);
        assert!(four_digits(f32::NAN).is_nan());
    }

    #[test]
    fn an_infinite_value_drops_only_its_bucket() {
        let spans = vec![Some(Span(1.0, f32::INFINITY)), Some(Span(1.0, 2.0))];
        let summary =
            Summary { series: [("host/cpu".to_owned(), spans)].into(), ..Summary::default() };
        assert_eq!(rounded(summary).series["host/cpu"], [None, Some(Span(1.0, 2.0))]);
    }

    /// Checks that a recorder does not accumulate a day of data in memory.
    #[test]
    fn closes_a_minute_by_time_and_when_the_clock_goes_back() {
        let mut recorder = Recorder::new(io::sink(), &Hello::default()).expect("records");
        let mut at = |mono| {
            let frame = Frame { mono: Mono(mono), ..Frame::default() };
            recorder.frame(&frame).expect("records");
            recorder.minutes.len()
        };
        assert_eq!([at(5), at(60_004), at(60_005), at(5)], [0, 0, 1, 2]);
    }
}
