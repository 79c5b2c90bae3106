//! Reads the next frame of a recording, across minute boundaries and damaged parts.

use std::collections::HashSet;
use std::sync::Arc;

use gputop_model::protocol::map_line::MapLine;
use gputop_model::protocol::{Line, Update};
use gputop_model::{Frame, Holders, Missing, Mono, PoolMap, ProcessKey};

use super::file::Recording;
use super::lines::{DamagedMinute, Lines};

/// Position of a frame in a recording: its minute, and its number within the minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FramePosition {
    pub minute: usize,
    pub frame: u64,
}

pub enum NextFrame {
    /// The next frame has not been read yet, or reading was paused at the end of a minute or after many events.
    Unread,
    Frame(FramePosition, Arc<Frame>),
    End,
}

/// If the buffered events take this much memory, they are passed on without waiting for the next frame, and reading
/// pauses.
const MAX_EVENT_BYTES: usize = 1 << 20;

pub struct Reader {
    pub recording: Recording,
    /// Position of the next frame to read.
    position: FramePosition,
    lines: Option<Lines>,
    next_frame: NextFrame,
    /// Events recorded before the next frame, with their stacks and maps, and the readings of memory holders.
    events: Vec<Update>,
    event_bytes: usize,
    /// The pool whose maps are read. Maps of other pools are skipped.
    pub wanted_map: Option<(ProcessKey, u32)>,
    /// The newest map recorded before the next frame.
    map: Option<Arc<PoolMap>>,
    notices: Vec<String>,
    /// Minutes that have already been reported as damaged.
    reported_minutes: HashSet<usize>,
}

impl Reader {
    pub fn new(recording: Recording) -> Self {
        Self {
            recording,
            position: FramePosition { minute: 0, frame: 0 },
            lines: None,
            next_frame: NextFrame::Unread,
            events: Vec::new(),
            event_bytes: 0,
            wanted_map: None,
            map: None,
            notices: Vec::new(),
            reported_minutes: HashSet::new(),
        }
    }

    pub fn next_frame(&self) -> &NextFrame {
        &self.next_frame
    }

    pub fn seek(&mut self, minute: usize) {
        self.begin(minute);
        self.take_events();
        self.map = None;
    }

    pub fn frames_of(&self, minute: usize) -> u64 {
        self.recording.minutes.get(minute).map_or(0, |m| m.frames)
    }

    pub fn take_events(&mut self) -> Vec<Update> {
        self.event_bytes = 0;
        std::mem::take(&mut self.events)
    }

    pub fn take_map(&mut self) -> Option<Arc<PoolMap>> {
        self.map.take()
    }

    /// Returns true if reading pauses until the events are taken.
    pub fn is_paused(&self) -> bool {
        self.event_bytes >= MAX_EVENT_BYTES
    }

    fn add_event(&mut self, event: Update) {
        self.event_bytes += event.memory_size();
        self.events.push(event);
    }

    pub fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }

    pub fn take(&mut self) -> Option<(FramePosition, Arc<Frame>)> {
        self.take_if(|_, _| true)
    }

    /// Reads ahead, and takes the next frame if `wanted` returns true for it.
    pub fn take_if(
        &mut self,
        wanted: impl FnOnce(FramePosition, &Frame) -> bool,
    ) -> Option<(FramePosition, Arc<Frame>)> {
        self.read_ahead();
        match std::mem::replace(&mut self.next_frame, NextFrame::Unread) {
            NextFrame::Frame(position, frame) if wanted(position, &frame) => {
                Some((position, frame))
            }
            other => {
                self.next_frame = other;
                None
            }
        }
    }

    /// Reads the next frame. Stops at the end of the current minute and after too many events.
    pub fn read_ahead(&mut self) {
        if !matches!(self.next_frame, NextFrame::Unread) {
            return;
        }
        match self.read_frame() {
            Ok(Some(frame)) => {
                self.next_frame = NextFrame::Frame(self.position, frame);
                self.position.frame += 1;
            }
            Ok(None) if self.lines.is_some() => {}
            Ok(None) => self.leave_minute(),
            Err(DamagedMinute) => {
                // Do not report the last minute: unfinished recordings always end with an incomplete minute.
                if self.position.minute + 1 < self.recording.minutes.len() {
                    self.report_damage();
                }
                self.leave_minute();
            }
        }
    }

    fn read_frame(&mut self) -> Result<Option<Arc<Frame>>, DamagedMinute> {
        let Some(minute) = self.recording.minutes.get(self.position.minute) else {
            return Ok(None);
        };
        let mut lines = match self.lines.take() {
            Some(lines) => lines,
            None => self.recording.lines(minute)?,
        };
        while let Some(line) = lines.next()? {
            match Line::read(line) {
                Ok(Line::Update(Update::Frame(frame))) => {
                    self.lines = Some(lines);
                    return Ok(Some(frame));
                }
                Ok(Line::Update(
                    update @ (Update::Event(_)
                    | Update::Stacks(..)
                    | Update::Phases(..)
                    | Update::HolderSummary(_)),
                )) => {
                    self.add_event(update);
                }
                Ok(Line::Update(Update::Holders(_, reading))) => {
                    limited_holders(reading).into_iter().for_each(|update| self.add_event(update));
                }
                Ok(Line::Map(map)) => self.add_map(map),
                Ok(Line::Update(_) | Line::Unknown) => {}
                Err(_) => self.report_damage(),
            }
            if self.is_paused() {
                self.lines = Some(lines);
                return Ok(None);
            }
        }
        Ok(None)
    }

    fn add_map(&mut self, line: MapLine) {
        let is_wanted = self.wanted_map.is_some_and(|wanted| line.is_of(wanted));
        if !is_wanted && !line.is_of_failure() {
            return;
        }
        match Line::Map(line).update() {
            Ok(Some(Update::Map(map))) => self.map = Some(map),
            Ok(Some(Update::FailureMap(failed))) => {
                if is_wanted {
                    self.map = Some(Arc::new(failed.map.clone()));
                }
                self.add_event(Update::FailureMap(failed));
            }
            _ => self.report_damage(),
        }
    }

    fn leave_minute(&mut self) {
        // Set the minute's actual frame count, so that steps are correct after unreadable parts.
        if let Some(minute) = self.recording.minutes.get_mut(self.position.minute) {
            minute.frames = self.position.frame;
        }
        self.begin(self.position.minute + 1);
    }

    fn begin(&mut self, minute: usize) {
        self.position = FramePosition { minute, frame: 0 };
        self.lines = None;
        self.next_frame =
            if minute < self.recording.minutes.len() { NextFrame::Unread } else { NextFrame::End };
    }

    fn report_damage(&mut self) {
        let minute = self.position.minute;
        if !self.reported_minutes.insert(minute) {
            return;
        }
        let start = self.recording.span().0;
        let at = self.recording.minutes.get(minute).map(|m| m.start);
        self.notices.push(format!(
            "The recording is damaged {} after its start; unreadable parts are skipped.",
            minutes_and_seconds(at.unwrap_or(start), start)
        ));
    }
}

/// Returns a recorded reading within the limits of recordings, because a file can contain anything. Returns `None` for a
/// failed reading, which no recorder writes.
pub fn limited_holders(reading: Arc<Result<Holders, Missing>>) -> Option<Update> {
    let holders = Arc::unwrap_or_clone(reading).ok()?.recorded();
    Some(Update::Holders(holders.process, Arc::new(Ok(holders))))
}

fn minutes_and_seconds(at: Mono, start: Mono) -> String {
    let seconds = at.since(start).0 / 1_000;
    format!("{}:{:02} min", seconds / 60, seconds % 60)
}
