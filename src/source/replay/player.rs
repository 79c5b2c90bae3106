//! The clock of a replay: shows each frame when it is due and listens in between.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::Options;
use super::file::Recording;
use super::next_frame::{Ahead, FramePosition, Reader};
use super::seek_target::Target;
use crate::model::frame::{Frame, SCHEMA};
use crate::model::units::{Millis, Mono};
use crate::source::stream::Feed;
use crate::source::{Position, Request, Update};

/// A hole in the recording, as of a suspended laptop, is waited for no longer than this.
const LONGEST_GAP: Millis = Millis(5_000);
pub(super) struct Player {
    pub reader: Reader,
    pub feed: Feed,
    pub speed: f32,
    pub paused: bool,
    repeat: bool,
    /// Somebody else has the clock, and says where it stands.
    is_led: bool,
    pub shown: Option<Shown>,
    /// So many frames are to be shown at once, paused or not: steps, or the one after a jump into damage.
    pub owed: u64,
    /// The map that is wanted was told, or why there is none, since the last jump.
    pub has_map: bool,
}

/// The frame on the screen.
#[derive(Clone, Copy)]
pub(super) struct Shown {
    pub place: FramePosition,
    pub mono: Mono,
    /// As it was asked for between frames.
    pub interval: Millis,
    /// When it was due, not when it was sent, so that delays do not add up.
    pub due: Instant,
}

impl Player {
    pub fn new(recording: Recording, feed: Feed, options: Options) -> Self {
        Self {
            reader: Reader::new(recording),
            feed,
            speed: sane(options.speed),
            paused: options.paused,
            repeat: options.repeat,
            is_led: false,
            shown: None,
            owed: 0,
            has_map: false,
        }
    }

    /// One of several, which does nothing by itself.
    pub fn led(recording: Recording, feed: Feed) -> Self {
        Self {
            is_led: true,
            ..Self::new(recording, feed, Options::default())
        }
    }

    pub fn run(mut self, requests: &Receiver<Request>) {
        self.greet();
        self.jump(Target::START);
        loop {
            let request = match self.wait() {
                Some(wait) => requests.recv_timeout(wait),
                None => requests.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match request {
                Ok(request) => self.obey(std::iter::once(request).chain(requests.try_iter())),
                Err(RecvTimeoutError::Timeout) => self.go_on(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    pub fn greet(&self) {
        let hello = self.reader.recording.hello();
        self.feed.push(Update::Hello(Arc::new(hello.clone())));
        if hello.schema > SCHEMA {
            self.feed.push(Update::Notice(format!(
                "The recording was made by a newer gputop ({}); what this one does not know is left out.",
                hello.version
            )));
        }
    }

    /// How long nothing is to be done but to listen; `None` is until someone asks for something.
    fn wait(&self) -> Option<Duration> {
        match (self.reader.ahead(), self.shown) {
            (Ahead::Unread, _) => Some(Duration::ZERO),
            (Ahead::Frame(..), _) if self.owed > 0 => Some(Duration::ZERO),
            _ if self.paused => None,
            (Ahead::Frame(_, frame), Some(shown)) => {
                Some(self.left(shown, frame.mono.since(shown.mono)))
            }
            (Ahead::End, Some(shown)) if self.repeat => Some(self.left(shown, Millis(1_000))),
            (_, None) | (Ahead::End, _) => None,
        }
    }

    fn left(&self, shown: Shown, gap: Millis) -> Duration {
        (shown.due + self.lasting(gap)).saturating_duration_since(Instant::now())
    }

    fn lasting(&self, gap: Millis) -> Duration {
        lasting(gap, self.speed)
    }

    /// Does what is due: reads ahead, shows the next frame, or starts over.
    fn go_on(&mut self) {
        match self.reader.ahead() {
            Ahead::Unread => self.look_ahead(),
            Ahead::Frame(..) => self.show_next(),
            Ahead::End => self.jump(Target::START),
        }
    }

    /// Reads the next frame, at most to the end of one minute, so that a damaged file cannot keep it from listening.
    pub fn look_ahead(&mut self) {
        self.reader.look();
        self.tell_notices();
        if self.reader.holds_many_events() {
            self.feed_events();
        }
        if self.came_to_the_end() {
            self.tell_position();
        }
    }

    fn came_to_the_end(&mut self) -> bool {
        let over = matches!(self.reader.ahead(), Ahead::End);
        if over {
            self.feed_events();
            self.paused |= !self.repeat;
            self.owed = 0;
        }
        over
    }

    pub fn show_next(&mut self) {
        self.feed_events();
        if let Some((place, frame)) = self.reader.take() {
            let due = self.due(&frame);
            self.owed = self.owed.saturating_sub(1);
            self.mark_shown(place, &frame, due);
            self.feed.push(Update::Frame(frame));
            self.settle();
        }
    }

    fn due(&self, frame: &Frame) -> Instant {
        let now = Instant::now();
        let due = self
            .shown
            .map(|shown| shown.due + self.lasting(frame.mono.since(shown.mono)));
        // After a long delay, as of a suspended laptop, the pace starts anew instead of catching up.
        due.filter(|due| *due <= now && now - *due < Duration::from_secs(1))
            .unwrap_or(now)
    }

    pub fn mark_shown(&mut self, place: FramePosition, frame: &Frame, due: Instant) {
        self.shown = Some(Shown {
            place,
            mono: frame.mono,
            interval: frame.interval,
            due,
        });
    }

    /// After a frame: says where the recording stands, with whether it is the last.
    pub fn settle(&mut self) {
        if matches!(self.reader.ahead(), Ahead::Unread) {
            self.reader.look();
            self.tell_notices();
        }
        self.came_to_the_end();
        self.answer_map();
        self.tell_position();
    }

    pub fn tell_position(&self) {
        if !self.is_led {
            self.feed.push(self.position());
        }
    }

    fn position(&self) -> Update {
        let (start, end) = self.reader.recording.span();
        Update::Position(Position {
            start,
            end,
            now: self.shown.map_or(start, |shown| shown.mono),
            speed: self.speed,
            paused: self.paused,
            at_end: matches!(self.reader.ahead(), Ahead::End),
        })
    }

    /// Also the newest map, which like them lies before the frame ahead.
    pub fn feed_events(&mut self) {
        for event in self.reader.take_events() {
            self.feed.wait_for_room();
            self.feed.push(event);
        }
        self.feed_map();
    }

    pub fn tell_notices(&mut self) {
        for notice in self.reader.take_notices() {
            self.feed.push(Update::Notice(notice));
        }
    }
}

/// How long a hole in the recording is waited for.
pub(super) fn lasting(gap: Millis, speed: f32) -> Duration {
    let gap = Duration::from_millis(gap.0.min(LONGEST_GAP.0));
    gap.div_f32(speed)
}

/// Within what the keys offer; also for a number that is none.
pub(super) fn sane(speed: f32) -> f32 {
    if speed.is_finite() {
        speed.clamp(0.125, 64.0)
    } else {
        1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::host::Hello;
    use crate::source::record::Recorder;
    use crate::source::stream::stream;

    fn recording() -> Recording {
        let mut recorder = Recorder::new(Vec::new(), &Hello::default()).expect("records");
        for seconds in 0..90 {
            let frame = Frame {
                mono: Mono(seconds * 1_000),
                ..Frame::default()
            };
            recorder.frame(&frame).expect("records");
        }
        Recording::from_bytes(recorder.finish().expect("records").into()).expect("opens")
    }

    #[test]
    fn the_thread_ends_when_the_reader_is_gone_paused_or_playing() {
        for paused in [true, false] {
            let (feed, requests, source) = stream();
            let options = Options {
                paused,
                ..Options::default()
            };
            let player = Player::new(recording(), feed, options);
            drop(source);
            // Returns, or the test hangs.
            player.run(&requests);
        }
    }

    #[test]
    fn a_gap_is_capped_and_speed_divides_what_is_left() {
        let (feed, _requests, _source) = stream();
        let options = Options {
            speed: 2.0,
            ..Options::default()
        };
        let player = Player::new(recording(), feed, options);
        assert_eq!(player.lasting(Millis(1_000)), Duration::from_millis(500));
        assert_eq!(
            player.lasting(Millis(86_400_000)),
            Duration::from_millis(2_500)
        );
    }
}
