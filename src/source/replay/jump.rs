//! Moving in a recording: what was asked for, and what a screen needs after a jump.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::next_frame::Ahead;
use super::player::{Player, sane};
use super::seek_target::{self, Target, Until};
use crate::model::event::Event;
use crate::model::history::Summary;
use crate::model::log::LogView;
use crate::model::probe::{Outcome, Probe};
use crate::model::reading::{Missing, Reason};
use crate::model::signal::Signalled;
use crate::model::units::Mono;
use crate::source::{Play, Request, Update};

/// How much of the past a jump brings back, in minutes.
const PAST: usize = 60;
/// How much more of it is told at a time, in minutes: a screen takes that in between two frames.
const MORE: usize = 15;
/// An hour's notes of 8 GPUs and 64 processes are 2 MB of JSON.
const MAX_PAST_BYTES: u64 = 32 << 20;
/// A jump sends at most about so many frames: the stream holds no more, and a chart's finest step is a second.
const MAX_JUMP_FRAMES: u64 = 120;
/// Up to so many frames forward are stepped through, further ones jumped to.
const MAX_STEPS: u64 = 16;

const NO_STACK: &str = "a recording holds the stacks that were read when an allocation failed and at maxima, and no others";
const NO_LOG: &str = "a recording holds excerpts of logs and no log";

impl Player {
    /// Takes all requests that wait before moving, so that a held key does not decode a minute for each repeat.
    pub fn obey(&mut self, requests: impl Iterator<Item = Request>) {
        let mut target = None;
        let mut map = self.reader.wanted_map;
        for request in requests {
            match request {
                Request::Detail(key) => {
                    let why = Missing::new(
                        Reason::NotRead,
                        "a recording holds no environment or command line beyond the row's",
                    );
                    self.feed.push(Update::Detail(key, Box::new(Err(why))));
                }
                Request::Stacks(key) => {
                    let why = Missing::new(Reason::NotRead, NO_STACK);
                    self.feed.push(Update::Stacks(key, Arc::new(Err(why))));
                }
                Request::Log(process) => {
                    self.feed.push(Update::Log(Arc::new(LogView {
                        process,
                        missing: Some(Missing::new(Reason::NotRead, NO_LOG)),
                        ..LogView::default()
                    })));
                }
                Request::Watch { process, .. } => {
                    let why = Missing::new(Reason::NotRead, NO_LOG);
                    self.feed.push(Update::Watched(process, Err(why)));
                }
                Request::Signal { signal, processes } => {
                    let why = Missing::new(
                        Reason::Unsupported,
                        "it is a process of a recording, which does not run here",
                    );
                    let outcomes = processes.into_iter().map(|key| (key, Err(why.clone())));
                    self.feed.push(Update::Signalled(Signalled {
                        signal,
                        outcomes: outcomes.collect(),
                    }));
                }
                Request::Probe(wish) => {
                    self.feed.push(Update::Probed(Arc::new(Probe {
                        gpu: wish.gpu,
                        outcome: Outcome::Refused,
                        reason: Some("a recording plays: its GPU is not here".into()),
                        ..Probe::default()
                    })));
                }
                Request::Play(play) => target = self.obey_play(play, target),
                Request::Map(wanted) => map = wanted,
                Request::Focus(_) | Request::Interval(_) | Request::Connect => {}
            }
        }
        self.want_map(map);
        match target {
            Some(target) => self.go(target),
            None => self.tell_position(),
        }
    }

    /// Where to go after this request and the ones before it that have not been done.
    fn obey_play(&mut self, play: Play, target: Option<Target>) -> Option<Target> {
        match play {
            Play::Pause(pause) => {
                let over = self.paused && !pause && matches!(self.reader.ahead(), Ahead::End);
                self.paused = pause;
                self.start_pace();
                if over && target.is_none() {
                    return Some(Target::START);
                }
                target
            }
            Play::Speed(speed) => {
                self.speed = sane(speed);
                self.start_pace();
                target
            }
            Play::Step(frames) => {
                self.paused = true;
                let from = self.frame_of(target);
                Some(Target::Frame(from.saturating_add_signed(frames.into())))
            }
            Play::Skip(millis) => {
                let from = self.moment_of(target);
                Some(Target::Moment(Mono(from.0.saturating_add_signed(millis))))
            }
            Play::To(moment) => Some(Target::Moment(moment)),
            Play::Start => Some(Target::START),
            Play::Past(before) => {
                self.feed_more(before);
                target
            }
        }
    }

    /// The pace changed: the time to the next frame counts from now.
    fn start_pace(&mut self) {
        if let Some(shown) = &mut self.shown {
            shown.due = Instant::now();
        }
    }

    fn frame_of(&mut self, target: Option<Target>) -> u64 {
        if let Some(Target::Frame(frame)) = target {
            return frame;
        }
        self.go_if(target);
        let shown = self.shown.map_or(0, |shown| {
            seek_target::ordinal(&self.reader.recording, shown.place)
        });
        // With the steps that were asked for and are not done yet.
        shown.saturating_add(self.owed)
    }

    fn moment_of(&mut self, target: Option<Target>) -> Mono {
        if let Some(Target::Moment(moment)) = target {
            return moment;
        }
        self.go_if(target);
        self.shown.map_or(Mono(0), |shown| shown.mono)
    }

    fn go_if(&mut self, target: Option<Target>) {
        if let Some(target) = target {
            self.go(target);
        }
    }

    fn go(&mut self, target: Target) {
        match self.steps_to(target) {
            Some(steps) if steps > 0 && !matches!(self.reader.ahead(), Ahead::End) => {
                self.owed = steps;
            }
            Some(_) => self.tell_position(),
            None => self.jump(target),
        }
    }

    /// How many frames forward the target is, when it is near. The end may be nearer: counts are not trusted.
    fn steps_to(&self, target: Target) -> Option<u64> {
        let Target::Frame(frame) = target else {
            return None;
        };
        let now = seek_target::ordinal(&self.reader.recording, self.shown?.place);
        let steps = frame.checked_sub(now)?;
        (steps <= MAX_STEPS).then_some(steps)
    }

    /// When the minute holds no frame that can be read, the next that can is due at once; when none follows, the
    /// last before it is the target.
    pub fn jump(&mut self, target: Target) {
        self.jump_into_minute(target);
        while self.shown.is_none() && matches!(self.reader.ahead(), Ahead::End) {
            // Shrinks with every try, since what was read is known by now to hold nothing.
            match seek_target::count(&self.reader.recording).checked_sub(1) {
                Some(last) => self.jump_into_minute(Target::Frame(last)),
                None => break,
            }
        }
        self.owed = u64::from(self.shown.is_none());
        if self.shown.is_some() || matches!(self.reader.ahead(), Ahead::End) {
            self.settle();
        }
    }

    pub fn jump_into_minute(&mut self, target: Target) {
        let (minute, until) = target.resolve(&self.reader.recording);
        self.feed_past(minute);
        self.reader.seek(minute);
        self.shown = None;
        self.has_map = false;
        self.feed_minute(minute, until);
    }

    fn feed_minute(&mut self, minute: usize, until: Until) {
        let every = self
            .reader
            .frames_of(minute)
            .div_ceil(MAX_JUMP_FRAMES)
            .max(1);
        let mut held = None;
        while let Some((place, frame)) = self
            .reader
            .take_if(|place, frame| place.minute == minute && until.includes(place, frame))
        {
            self.feed_events();
            self.mark_shown(place, &frame, Instant::now());
            if place.frame.is_multiple_of(every) {
                self.feed.push(Update::Frame(frame));
                held = None;
            } else {
                held = Some(frame);
            }
        }
        held.into_iter()
            .for_each(|frame| self.feed.push(Update::Frame(frame)));
    }

    fn feed_past(&mut self, minute: usize) {
        let minutes = minute.saturating_sub(PAST)..minute;
        let start = |minute: usize| self.reader.recording.minutes.get(minute).map(|m| m.start);
        let from = start(minutes.start).min(start(minute)).unwrap_or_default();
        let (summaries, events) = self.notes(minutes);
        self.feed.push(Update::Jump { from, summaries });
        self.feed_old(events);
    }

    pub fn feed_more(&mut self, before: Mono) {
        let minutes = self.minutes_before(before);
        let oldest = self.reader.recording.minutes.get(minutes.clone());
        let oldest = oldest.and_then(|minutes| minutes.first());
        let from = oldest.map_or(Mono(0), |minute| minute.start);
        let (summaries, events) = self.notes(minutes);
        self.feed.push(Update::Past {
            before,
            from,
            summaries,
        });
        self.feed_old(events);
    }

    /// Some minutes that began before a moment, the last of them, and of the boot whose frame is shown: the clock of
    /// another has nothing in common with it.
    fn minutes_before(&self, before: Mono) -> Range<usize> {
        let minutes = &self.reader.recording.minutes;
        let here = self.shown.map_or(0, |shown| shown.place.minute);
        let is_boot = |at: &usize| minutes[at - 1].start > minutes[*at].start;
        let boot = (1..=here).rev().find(is_boot).unwrap_or(0);
        let of_boot = minutes.get(boot..=here).unwrap_or_default();
        let end = boot + of_boot.iter().take_while(|m| m.start < before).count();
        end.saturating_sub(MORE).max(boot)..end
    }

    /// What the notes of these minutes hold. Newest first, so that a limit on memory costs the oldest.
    fn notes(&self, minutes: Range<usize>) -> (Vec<Summary>, Vec<Event>) {
        let recording = &self.reader.recording;
        let mut room = MAX_PAST_BYTES;
        let mut notes: Vec<_> = recording
            .minutes
            .get(minutes)
            .unwrap_or_default()
            .iter()
            .rev()
            .filter_map(|minute| recording.note(minute, &mut room))
            .collect();
        notes.reverse();
        let (summaries, events): (Vec<_>, Vec<_>) = notes
            .into_iter()
            .map(|note| (note.summary, note.events))
            .unzip();
        (summaries, events.into_iter().flatten().collect())
    }

    fn feed_old(&self, events: Vec<Event>) {
        for event in events {
            self.feed.push(Update::Event(event));
        }
    }
}
