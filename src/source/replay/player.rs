//! Plays a recording at the selected speed: shows each frame when it is due, and handles requests in between.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use gputop_model::frame::SCHEMA;
use gputop_model::protocol::stream::Feed;
use gputop_model::protocol::{Position, Request, Update};
use gputop_model::{Frame, Millis, Mono};

use super::file::Recording;
use super::next_frame::{FramePosition, NextFrame, Reader};
use super::seek_target::Target;
use crate::source::replay::options::Options;

/// Maximum time between two frames during playback. Longer gaps, for example from a suspended laptop, are shortened to
/// this time.
const MAX_GAP: Millis = Millis(5_000);
pub(super) struct Player {
    pub reader: Reader,
    pub feed: Feed,
    pub speed: f32,
    pub paused: bool,
    repeat: bool,
    /// Position at which playback starts, and at which it restarts after the end.
    start: Target,
    /// True if this player belongs to a group, which controls the clock and sends the replay position.
    is_in_group: bool,
    pub shown: Option<Shown>,
    /// Number of frames to show immediately, even if playback is paused: for steps, or to show the first readable frame
    /// after a jump into a damaged part.
    pub pending_frames: u64,
    /// True if the selected map, or the reason for its absence, has been sent since the last jump.
    pub is_map_sent: bool,
}

/// The recorded frame that is shown on the screen.
#[derive(Clone, Copy)]
pub(super) struct Shown {
    pub position: FramePosition,
    pub mono: Mono,
    /// Recorded interval between frames.
    pub interval: Millis,
    /// Instant at which the frame was due. Scheduling from the due time instead of the send time prevents delays from
    /// accumulating.
    pub due: Instant,
}

impl Player {
    pub fn new(recording: Recording, feed: Feed, options: Options) -> Self {
        let start = match options.start {
            Millis(0) => Target::START,
            Millis(after) => Target::Time(Mono(recording.span().0.0.saturating_add(after))),
        };
        Self {
            start,
            reader: Reader::new(recording),
            feed,
            speed: clamp_speed(options.speed),
            paused: options.paused,
            repeat: options.repeat,
            is_in_group: false,
            shown: None,
            pending_frames: 0,
            is_map_sent: false,
        }
    }

    /// Creates a member of a replay group. The member is inactive until the group controls it.
    pub fn in_group(recording: Recording, feed: Feed) -> Self {
        Self { is_in_group: true, ..Self::new(recording, feed, Options::default()) }
    }

    pub fn run(mut self, requests: &Receiver<Request>) {
        self.send_hello();
        self.jump(self.start);
        loop {
            let request = match self.wait() {
                Some(wait) => requests.recv_timeout(wait),
                None => requests.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match request {
                Ok(request) => {
                    self.handle_requests(std::iter::once(request).chain(requests.try_iter()));
                }
                Err(RecvTimeoutError::Timeout) => self.advance(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    pub fn send_hello(&self) {
        let hello = self.reader.recording.hello();
        self.feed.push(Update::Hello(Arc::new(hello.clone())));
        if hello.schema > SCHEMA {
            self.feed.push(Update::Notice(format!(
                "The recording was made by a newer gputop ({}). Data that this version does not support is skipped.",
                hello.version
            )));
        }
    }

    /// Returns how long to wait for requests, or `None` to wait until a request arrives.
    fn wait(&self) -> Option<Duration> {
        match (self.reader.next_frame(), self.shown) {
            (NextFrame::Unread, _) => Some(Duration::ZERO),
            (NextFrame::Frame(..), _) if self.pending_frames > 0 => Some(Duration::ZERO),
            _ if self.paused => None,
            (NextFrame::Frame(_, frame), Some(shown)) => {
                Some(self.time_left(shown, frame.mono.since(shown.mono)))
            }
            (NextFrame::End, Some(shown)) if self.repeat => {
                Some(self.time_left(shown, Millis(1_000)))
            }
            (_, None) | (NextFrame::End, _) => None,
        }
    }

    fn time_left(&self, shown: Shown, gap: Millis) -> Duration {
        (shown.due + self.playback_duration(gap)).saturating_duration_since(Instant::now())
    }

    fn playback_duration(&self, gap: Millis) -> Duration {
        playback_duration(gap, self.speed)
    }

    /// Reads ahead, then shows the next frame or restarts playback.
    fn advance(&mut self) {
        match self.reader.next_frame() {
            NextFrame::Unread => self.read_ahead(),
            NextFrame::Frame(..) => self.show_next(),
            NextFrame::End => self.jump(self.start),
        }
    }

    /// Reads ahead, at most to the end of the current minute, so that requests are handled even if the file is damaged.
    pub fn read_ahead(&mut self) {
        self.reader.read_ahead();
        self.send_notices();
        if self.reader.is_paused() {
            self.send_events();
        }
        if self.check_end() {
            self.send_position();
        }
    }

    fn check_end(&mut self) -> bool {
        let is_at_end = matches!(self.reader.next_frame(), NextFrame::End);
        if is_at_end {
            self.send_events();
            self.paused |= !self.repeat;
            self.pending_frames = 0;
        }
        is_at_end
    }

    pub fn show_next(&mut self) {
        self.send_events();
        if let Some((position, frame)) = self.reader.take() {
            let due = self.due(&frame);
            self.pending_frames = self.pending_frames.saturating_sub(1);
            self.mark_shown(position, &frame, due);
            self.push_frame(frame);
            self.finish_frame();
        }
    }

    /// Waits until the frame has room, because a frame of a recording must not replace an unread one only because it is
    /// large.
    pub fn push_frame(&self, frame: Arc<Frame>) {
        self.feed.wait_for_room();
        self.feed.push(Update::Frame(frame));
    }

    fn due(&self, frame: &Frame) -> Instant {
        let now = Instant::now();
        let due = self
            .shown
            .map(|shown| shown.due + self.playback_duration(frame.mono.since(shown.mono)));
        // After a long delay, for example because the laptop was suspended, continue playback from the current time
        // instead of catching up.
        due.filter(|due| *due <= now && now - *due < Duration::from_secs(1)).unwrap_or(now)
    }

    pub fn mark_shown(&mut self, position: FramePosition, frame: &Frame, due: Instant) {
        self.shown = Some(Shown { position, mono: frame.mono, interval: frame.interval, due });
    }

    /// Finishes a frame by sending the replay position, which also indicates whether the frame is the last one.
    pub fn finish_frame(&mut self) {
        if matches!(self.reader.next_frame(), NextFrame::Unread) {
            self.reader.read_ahead();
            self.send_notices();
        }
        self.check_end();
        self.send_earlier_map();
        self.send_position();
    }

    pub fn send_position(&self) {
        if !self.is_in_group {
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
            at_end: matches!(self.reader.next_frame(), NextFrame::End),
            has_holders: self.reader.recording.has_holders(),
        })
    }

    /// Sends the events that were recorded between the current frame and the next one, and the newest map.
    pub fn send_events(&mut self) {
        for event in self.reader.take_events() {
            self.feed.wait_for_room();
            self.feed.push(event);
        }
        self.send_map();
    }

    pub fn send_notices(&mut self) {
        for notice in self.reader.take_notices() {
            self.feed.push(Update::Notice(notice));
        }
    }
}

/// Returns how long a gap between two frames takes during playback.
pub(super) fn playback_duration(gap: Millis, speed: f32) -> Duration {
    Duration::from_millis(gap.0.min(MAX_GAP.0)).div_f32(speed)
}

/// Limits the playback speed to the supported range. A non-finite speed becomes 1.
pub(super) fn clamp_speed(speed: f32) -> f32 {
    if speed.is_finite() { speed.clamp(0.125, 64.0) } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::record::Recorder;
    use gputop_model::host::Hello;
    use gputop_model::protocol::stream::stream;

    fn recording() -> Recording {
        let mut recorder = Recorder::new(Vec::new(), &Hello::default()).expect("records");
        for seconds in 0..90 {
            let frame = Frame { mono: Mono(seconds * 1_000), ..Frame::default() };
            recorder.frame(&frame).expect("records");
        }
        Recording::from_bytes(recorder.finish().expect("records").into()).expect("opens")
    }

    #[test]
    fn the_thread_ends_when_the_reader_is_dropped() {
        for paused in [true, false] {
            let (feed, requests, source) = stream();
            let options = Options { paused, ..Options::default() };
            let player = Player::new(recording(), feed, options);
            drop(source);
            // If `run` did not return, this test would hang.
            player.run(&requests);
        }
    }

    #[test]
    fn shortens_long_gaps_and_applies_the_speed() {
        let (feed, _requests, _source) = stream();
        let options = Options { speed: 2.0, ..Options::default() };
        let player = Player::new(recording(), feed, options);
        assert_eq!(player.playback_duration(Millis(1_000)), Duration::from_millis(500));
        assert_eq!(player.playback_duration(Millis(86_400_000)), Duration::from_millis(2_500));
    }
}
