//! Seeks in a recording: executes seek requests, and sends the data that a screen needs after a jump.

use std::ops::Range;
use std::time::Instant;

use gputop_model::history::Summary;
use gputop_model::protocol::{Play, Request, Update};
use gputop_model::{Event, Missing, Mono, Reason};

use super::next_frame::NextFrame;
use super::player::{Player, clamp_speed};
use super::seek_target::{self, Target, Until};

/// Number of minutes of history that a jump sends before its target.
const PAST_MINUTES: usize = 60;
/// Number of minutes of history sent for each request for earlier data. A screen can process this many minutes between
/// two frames.
const MORE_PAST_MINUTES: usize = 15;
/// Maximum memory of the notes read for one jump. The notes for one hour of 8 GPUs and 64 processes amount to 2 MB of
/// JSON.
const MAX_PAST_MEMORY: usize = 8 << 20;
/// Approximate maximum number of frames sent by a jump. The stream cannot buffer more, and the finest chart resolution
/// is one second.
const MAX_JUMP_FRAMES: u64 = 125;
/// Maximum number of frames to step forward. Longer moves use a jump.
const MAX_FORWARD_STEPS: u64 = 16;

/// Returns the reason why a recording cannot fulfil a request.
fn missing_reason(request: &Request) -> Missing {
    let (reason, hint) = match request {
        Request::Detail(_) => {
            (Reason::NotRead, "recordings do not contain the environment or the full command line")
        }
        Request::Stacks(_) => (
            Reason::NotRead,
            "recordings contain stacks only for failed allocations and new maxima",
        ),
        Request::Holders(_) => (
            Reason::NotRead,
            "a recording contains the names of tensors only from the times at which they were recorded, with `record_names = true`",
        ),
        Request::Phases(_) => (
            Reason::NotRead,
            "this recording has no samples of what the process does up to this time",
        ),
        Request::Log(_) | Request::Watch { .. } => {
            (Reason::NotRead, "recordings contain only excerpts from logs")
        }
        Request::Signal { .. } => (
            Reason::Unsupported,
            "the process belongs to a recording and does not run on this host",
        ),
        _ => (Reason::Unsupported, "a recording is playing, and its GPU is not on this host"),
    };
    Missing::new(reason, hint)
}

impl Player {
    /// Handles all pending requests before seeking, so that holding down a seek key does not decode one minute per key
    /// repeat.
    pub fn handle_requests(&mut self, requests: impl Iterator<Item = Request>) {
        let mut target = None;
        let mut map = self.reader.wanted_map;
        for request in requests {
            match request {
                Request::Play(play) => target = self.handle_play(play, target),
                Request::Map(wanted) => map = wanted,
                request => {
                    let answer = request.refused(missing_reason(&request));
                    answer.into_iter().for_each(|update| self.feed.push(update));
                }
            }
        }
        self.select_map(map);
        match target {
            Some(target) => self.move_to(target),
            None => self.send_position(),
        }
    }

    /// Combines a request with the seek target of earlier pending requests, and returns the new seek target.
    fn handle_play(&mut self, play: Play, target: Option<Target>) -> Option<Target> {
        match play {
            Play::Pause(pause) => {
                let is_restart =
                    self.paused && !pause && matches!(self.reader.next_frame(), NextFrame::End);
                self.paused = pause;
                self.restart_clock();
                if is_restart && target.is_none() {
                    return Some(Target::START);
                }
                target
            }
            Play::Speed(speed) => {
                self.speed = clamp_speed(speed);
                self.restart_clock();
                target
            }
            Play::Step(frames) => {
                self.paused = true;
                let from = self.frame_of(target);
                Some(Target::Frame(from.saturating_add_signed(frames.into())))
            }
            Play::Skip(millis) => {
                let from = self.time_of(target);
                Some(Target::Time(Mono(from.0.saturating_add_signed(millis))))
            }
            Play::To(time) => Some(Target::Time(time)),
            Play::Start => Some(Target::START),
            Play::End => {
                self.paused = true;
                Some(Target::END)
            }
            Play::Past(before) => {
                self.send_past(before);
                target
            }
        }
    }

    /// After a pause or a speed change, restarts the wait for the next frame.
    fn restart_clock(&mut self) {
        if let Some(shown) = &mut self.shown {
            shown.due = Instant::now();
        }
    }

    fn frame_of(&mut self, target: Option<Target>) -> u64 {
        if let Some(Target::Frame(frame)) = target {
            return frame;
        }
        self.move_to_pending(target);
        let shown = self
            .shown
            .map_or(0, |shown| seek_target::ordinal(&self.reader.recording, shown.position));
        // Include steps that were requested but have not been shown yet.
        shown.saturating_add(self.pending_frames)
    }

    /// Returns the time from which a skip starts. Half an interval is added, because a jump shows the last frame before its
    /// target. Otherwise, a skip back and a skip forward would end one frame early.
    fn time_of(&mut self, target: Option<Target>) -> Mono {
        if let Some(Target::Time(time)) = target {
            return time;
        }
        self.move_to_pending(target);
        self.shown.map_or(Mono(0), |shown| Mono(shown.mono.0 + shown.interval.0 / 2))
    }

    fn move_to_pending(&mut self, target: Option<Target>) {
        if let Some(target) = target {
            self.move_to(target);
        }
    }

    fn move_to(&mut self, target: Target) {
        match self.steps_to(target) {
            Some(steps) if steps > 0 && !matches!(self.reader.next_frame(), NextFrame::End) => {
                self.pending_frames = steps;
            }
            Some(_) => self.send_position(),
            None => self.jump(target),
        }
    }

    /// Returns the number of frames to step forward to a target, or `None` if the target is not near. The recording may
    /// have fewer frames than its counts indicate.
    fn steps_to(&self, target: Target) -> Option<u64> {
        let Target::Frame(frame) = target else { return None };
        let now = seek_target::ordinal(&self.reader.recording, self.shown?.position);
        let steps = frame.checked_sub(now)?;
        (steps <= MAX_FORWARD_STEPS).then_some(steps)
    }

    /// Jumps to a target. If the target's minute contains no readable frame, shows the next readable frame, or the
    /// previous one if there is no later frame.
    pub fn jump(&mut self, target: Target) {
        self.jump_into_minute(target);
        while self.shown.is_none() && matches!(self.reader.next_frame(), NextFrame::End) {
            // Each attempt lowers the total frame count, because reading a minute replaces its expected frame count
            // with the actual one.
            match seek_target::count(&self.reader.recording).checked_sub(1) {
                Some(last) => self.jump_into_minute(Target::Frame(last)),
                None => break,
            }
        }
        self.pending_frames = u64::from(self.shown.is_none());
        if self.shown.is_some() || matches!(self.reader.next_frame(), NextFrame::End) {
            self.finish_frame();
        }
    }

    pub fn jump_into_minute(&mut self, target: Target) {
        let (minute, until) = target.resolve(&self.reader.recording);
        let first = self.first_minute(minute);
        self.send_jump(first);
        self.send_earlier_holders(first);
        self.reader.seek(first);
        self.shown = None;
        self.is_map_sent = false;
        if first < minute {
            self.send_minute(first, Until::Frame(u64::MAX));
            self.shown = None;
        }
        self.send_minute(minute, until);
    }

    /// Returns the first minute whose frames a jump sends: the minute before the target's minute if both together have
    /// few enough frames, otherwise the target's minute. The earlier minute can help to explain a failure that happens
    /// soon after the jump target.
    fn first_minute(&self, minute: usize) -> usize {
        let start = |at: usize| self.reader.recording.minutes.get(at).map(|m| m.start);
        let frames = |at| self.reader.frames_of(at);
        minute
            .checked_sub(1)
            .filter(|&before| start(before) < start(minute) && frames(before) > 0)
            .filter(|&before| frames(before).saturating_add(frames(minute)) <= MAX_JUMP_FRAMES)
            .unwrap_or(minute)
    }

    fn send_minute(&mut self, minute: usize, until: Until) {
        let every = self.reader.frames_of(minute).div_ceil(MAX_JUMP_FRAMES).max(1);
        let mut last_skipped = None;
        loop {
            let taken = self.reader.take_if(|position, frame| {
                position.minute == minute && until.includes(position, frame)
            });
            let is_paused = self.reader.is_paused();
            if taken.is_some() || is_paused {
                self.send_events();
            }
            let Some((position, frame)) = taken else {
                if is_paused && matches!(self.reader.next_frame(), NextFrame::Unread) {
                    continue;
                }
                break;
            };
            self.mark_shown(position, &frame, Instant::now());
            if position.frame.is_multiple_of(every) {
                self.push_frame(frame);
                last_skipped = None;
            } else {
                last_skipped = Some(frame);
            }
        }
        last_skipped.into_iter().for_each(|frame| self.push_frame(frame));
    }

    fn send_jump(&mut self, minute: usize) {
        let minutes = minute.saturating_sub(PAST_MINUTES)..minute;
        let start = |minute: usize| self.reader.recording.minutes.get(minute).map(|m| m.start);
        let from = start(minutes.start).min(start(minute)).unwrap_or_default();
        let (summaries, events) = self.notes(minutes);
        self.feed.push(Update::Jump { from, summaries });
        self.send_past_events(events);
    }

    pub fn send_past(&mut self, before: Mono) {
        let minutes = self.minutes_before(before);
        let oldest = self.reader.recording.minutes.get(minutes.clone());
        let oldest = oldest.and_then(|minutes| minutes.first());
        let from = oldest.map_or(Mono(0), |minute| minute.start);
        let (summaries, events) = self.notes(minutes);
        self.feed.push(Update::Past { before, from, summaries });
        self.send_past_events(events);
    }

    /// Returns the last minutes before a time, limited to minutes from the same boot as the shown frame. Times from
    /// different boots are not comparable.
    fn minutes_before(&self, before: Mono) -> Range<usize> {
        let minutes = &self.reader.recording.minutes;
        let here = self.shown.map_or(0, |shown| shown.position.minute);
        let is_boot = |at: &usize| minutes[at - 1].start > minutes[*at].start;
        let boot = (1..=here).rev().find(is_boot).unwrap_or(0);
        let of_boot = minutes.get(boot..=here).unwrap_or_default();
        let end = boot + of_boot.iter().take_while(|m| m.start < before).count();
        end.saturating_sub(MORE_PAST_MINUTES).max(boot)..end
    }

    /// Reads the notes of the given minutes, newest first, so that the memory limit drops the oldest notes.
    fn notes(&self, minutes: Range<usize>) -> (Vec<Summary>, Vec<Event>) {
        let recording = &self.reader.recording;
        let mut room = MAX_PAST_MEMORY;
        let mut notes: Vec<_> = recording
            .minutes
            .get(minutes)
            .unwrap_or_default()
            .iter()
            .rev()
            .filter_map(|minute| recording.note(minute, &mut room))
            .collect();
        notes.reverse();
        let (summaries, events): (Vec<_>, Vec<_>) =
            notes.into_iter().map(|note| (note.summary, note.events)).unzip();
        (summaries, events.into_iter().flatten().collect())
    }

    fn send_past_events(&self, events: Vec<Event>) {
        for event in events {
            self.feed.wait_for_room();
            self.feed.push(Update::Event(event));
        }
    }
}
