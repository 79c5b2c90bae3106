//! Reads the frame that comes next, over the borders of minutes and over damage.

use std::collections::HashSet;
use std::sync::Arc;

use super::file::Recording;
use super::lines::{Broken, Lines};
use crate::model::frame::Frame;
use crate::model::pool::{FailureMap, PoolMap};
use crate::model::process::ProcessKey;
use crate::model::units::Mono;
use crate::source::Update;
use crate::source::map_line::MapLine;
use crate::source::wire::WireLine;

/// A frame's minute, and its number within that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FramePosition {
    pub minute: usize,
    pub frame: u64,
}

pub enum Ahead {
    /// Not looked yet, or looked to the end of a minute, or over many events, without finding a frame.
    Unread,
    Frame(FramePosition, Arc<Frame>),
    End,
}

/// More events between two frames are passed on without waiting for the second.
const MANY_EVENTS: usize = 1_000;
/// Reading pauses at this many events until they are passed on. No recorder writes as many between two frames.
const MAX_EVENTS: usize = 4_096;

pub struct Reader {
    pub recording: Recording,
    /// Of the next line.
    place: FramePosition,
    lines: Option<Lines>,
    ahead: Ahead,
    /// The events before `ahead`, and the stacks and maps that were read because of what happened.
    events: Vec<Update>,
    /// The pool whose maps are read; others are passed over.
    pub wanted_map: Option<(ProcessKey, u32)>,
    /// The newest of them before `ahead`.
    map: Option<Arc<PoolMap>>,
    notices: Vec<String>,
    /// Minutes whose damage was told.
    told: HashSet<usize>,
}

impl Reader {
    pub fn new(recording: Recording) -> Self {
        Self {
            recording,
            place: FramePosition {
                minute: 0,
                frame: 0,
            },
            lines: None,
            ahead: Ahead::Unread,
            events: Vec::new(),
            wanted_map: None,
            map: None,
            notices: Vec::new(),
            told: HashSet::new(),
        }
    }

    pub fn ahead(&self) -> &Ahead {
        &self.ahead
    }

    pub fn seek(&mut self, minute: usize) {
        self.begin(minute);
        self.events.clear();
        self.map = None;
    }

    pub fn frames_of(&self, minute: usize) -> u64 {
        self.recording.minutes.get(minute).map_or(0, |m| m.frames)
    }

    pub fn take_events(&mut self) -> Vec<Update> {
        std::mem::take(&mut self.events)
    }

    pub fn take_map(&mut self) -> Option<Arc<PoolMap>> {
        self.map.take()
    }

    pub fn holds_many_events(&self) -> bool {
        self.events.len() >= MANY_EVENTS
    }

    pub fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }

    pub fn take(&mut self) -> Option<(FramePosition, Arc<Frame>)> {
        self.take_if(|_, _| true)
    }

    /// Looks, and takes the frame if it is wanted; one that is not stays ahead.
    pub fn take_if(
        &mut self,
        wanted: impl FnOnce(FramePosition, &Frame) -> bool,
    ) -> Option<(FramePosition, Arc<Frame>)> {
        self.look();
        match std::mem::replace(&mut self.ahead, Ahead::Unread) {
            Ahead::Frame(place, frame) if wanted(place, &frame) => Some((place, frame)),
            other => {
                self.ahead = other;
                None
            }
        }
    }

    /// Finds out what is ahead, reading no further than to the end of the current minute, nor over too many events.
    pub fn look(&mut self) {
        if !matches!(self.ahead, Ahead::Unread) {
            return;
        }
        match self.read_on() {
            Ok(Some(frame)) => {
                self.ahead = Ahead::Frame(self.place, Arc::new(frame));
                self.place.frame += 1;
            }
            Ok(None) if self.lines.is_some() => {}
            Ok(None) => self.leave_minute(),
            Err(Broken) => {
                // The last minute of a recording that was never finished ends like this.
                if self.place.minute + 1 < self.recording.minutes.len() {
                    self.tell_damage();
                }
                self.leave_minute();
            }
        }
    }

    fn read_on(&mut self) -> Result<Option<Frame>, Broken> {
        let Some(minute) = self.recording.minutes.get(self.place.minute) else {
            return Ok(None);
        };
        let mut lines = match self.lines.take() {
            Some(lines) => lines,
            None => self.recording.lines(minute)?,
        };
        while let Some(line) = lines.next()? {
            let Ok(line) = WireLine::<Frame>::read(line) else {
                self.tell_damage();
                continue;
            };
            // Of several hosts only the first can be shown.
            if line.from != 0 {
                continue;
            }
            self.events.extend(line.event.map(Update::Event));
            if let Some(stack) = line.stack {
                let update = Update::Stacks(stack.process, Arc::new(Ok(stack)));
                self.events.push(update);
            }
            if let Some(map) = line.map {
                self.pass_map(&map, line.failed_since);
            }
            if line.frame.is_some() {
                self.lines = Some(lines);
                return Ok(line.frame);
            }
            if self.events.len() >= MAX_EVENTS {
                self.lines = Some(lines);
                return Ok(None);
            }
        }
        Ok(None)
    }

    fn pass_map(&mut self, map: &MapLine, failed_since: Option<Mono>) {
        let is_wanted = self.wanted_map.is_some_and(|wanted| map.is_of(wanted));
        if !is_wanted && failed_since.is_none() {
            return;
        }
        let Ok(map) = map.read() else {
            self.tell_damage();
            return;
        };
        if is_wanted {
            self.map = Some(Arc::new(map.clone()));
        }
        if let Some(since) = failed_since {
            let failed = FailureMap { since, map };
            self.events.push(Update::FailureMap(Arc::new(failed)));
        }
    }

    fn leave_minute(&mut self) {
        // What was really there, so that steps count right where a part cannot be read.
        if let Some(minute) = self.recording.minutes.get_mut(self.place.minute) {
            minute.frames = self.place.frame;
        }
        self.begin(self.place.minute + 1);
    }

    fn begin(&mut self, minute: usize) {
        self.place = FramePosition { minute, frame: 0 };
        self.lines = None;
        self.ahead = if minute < self.recording.minutes.len() {
            Ahead::Unread
        } else {
            Ahead::End
        };
    }

    fn tell_damage(&mut self) {
        let minute = self.place.minute;
        if !self.told.insert(minute) {
            return;
        }
        let start = self.recording.span().0;
        let at = self.recording.minutes.get(minute).map(|m| m.start);
        self.notices.push(format!(
            "The recording is damaged {} after its start; what cannot be read there is left out.",
            minutes_and_seconds(at.unwrap_or(start), start)
        ));
    }
}

fn minutes_and_seconds(at: Mono, start: Mono) -> String {
    let seconds = at.since(start).0 / 1_000;
    format!("{}:{:02} min", seconds / 60, seconds % 60)
}
