//! Plays several recordings of the same period, synchronized to one clock.
//!
//! Each recording has its own reader and stream, as if it were played alone. The group decides when frames are shown.
//! It uses wall time, because each boot has its own monotonic clock. The first frame of a recording gives the offset
//! between the two clocks. A host is shown as not yet recorded before its recording starts, and as silent after its
//! recording ends.
//!
//! A seek request from a host's screen or the host list moves all recordings to the same time.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use gputop_model::protocol::stream::{Feed, Source, stream};
use gputop_model::protocol::{Play, Position, Request, Update};
use gputop_model::{Link, Millis, Mono};

use super::file::{OpenError, Recording};
use super::next_frame::NextFrame;
use super::player::{Player, clamp_speed, playback_duration};
use super::seek_target::{Target, ordinal};
use crate::source::replay::options::Options;
use crate::source::replay::thread::spawn;

const POSITION_INTERVAL: Duration = Duration::from_millis(500);
/// Length in milliseconds of one step in the host list, which has no frames of its own.
const STEP_MILLIS: i64 = 1_000;
const MAX_STEPS: u64 = 64;
/// A recorded host counts as silent after this many intervals plus a grace period without a frame. Live hosts follow
/// the same rule.
const MAX_SILENT_INTERVALS: u64 = 3;
const SILENCE_GRACE_MILLIS: u64 = 2_000;

/// Plays all recordings on a new thread until no reader is left. Returns the host list's source, which sends the replay
/// position, and the source of each recording. Fails if a recording contains no readable frame.
pub fn play_all(
    recordings: Vec<(String, Recording)>,
    options: Options,
) -> Result<(Source, Vec<Source>), OpenError> {
    let (asked, requests) = mpsc::channel();
    let (list_feed, from_list, list) = stream();
    forward_requests(None, from_list, asked.clone());
    let (mut members, mut sources) = (Vec::new(), Vec::new());
    for (name, recording) in recordings {
        let offset = recording.wall_offset().ok_or(OpenError::NoFrames(name))?;
        let (feed, from_host, source) = stream();
        forward_requests(Some(members.len()), from_host, asked.clone());
        members.push(Member::new(recording, feed, offset));
        sources.push(source);
    }
    drop(asked);
    let group = Group::new(members, list_feed, options);
    spawn(move || group.run(&requests));
    Ok((list, sources))
}

/// A request and the member that sent it, or `None` if the host list sent it.
type GroupRequest = (Option<usize>, Request);

fn forward_requests(member: Option<usize>, from: Receiver<Request>, to: Sender<GroupRequest>) {
    spawn(move || {
        let _ = from.iter().try_for_each(|request| to.send((member, request)));
    });
}

/// Wall time in milliseconds since 1970.
type Wall = i64;

struct Member {
    player: Player,
    /// Wall time minus the recording's monotonic clock.
    offset: i64,
    link: Option<Link>,
}

struct Group {
    members: Vec<Member>,
    list_feed: Feed,
    start: Wall,
    end: Wall,
    now: Wall,
    /// Instant at which playback was scheduled to reach the wall time `now`.
    due: Instant,
    speed: f32,
    paused: bool,
    /// Index of the member to step forward, and the number of its frames still to be shown without waiting.
    pending_steps: Option<(usize, u64)>,
    position_sent_at: Instant,
}

enum NextStep {
    /// The member with this index must read its next frame before the group can continue.
    ReadAhead(usize),
    Frame(usize, Wall),
    End,
}

impl Member {
    fn new(recording: Recording, feed: Feed, offset: i64) -> Self {
        Self { player: Player::in_group(recording, feed), offset, link: None }
    }

    fn wall(&self, monotonic: Mono) -> Wall {
        i64::try_from(monotonic.0).unwrap_or(i64::MAX).saturating_add(self.offset)
    }

    /// Converts wall time to the recording's monotonic clock. A time before the boot becomes 0.
    fn monotonic(&self, wall: Wall) -> Mono {
        Mono(u64::try_from(wall.saturating_sub(self.offset)).unwrap_or(0))
    }

    fn span(&self) -> (Wall, Wall) {
        let (start, end) = self.player.reader.recording.span();
        (self.wall(start), self.wall(end))
    }

    /// Sends the host's link state, which shows whether its displayed frame is up to date.
    fn send_link(&mut self, now: Wall) {
        let link = match self.player.shown {
            None => Link::Later { begins_in: Millis(whole_seconds(self.span().0 - now)) },
            Some(shown) => {
                let lag = now.saturating_sub(self.wall(shown.mono));
                let since = Millis(whole_seconds(lag));
                if u64::try_from(lag).unwrap_or(0)
                    > shown.interval.0 * MAX_SILENT_INTERVALS + SILENCE_GRACE_MILLIS
                {
                    Link::Silent { since }
                } else {
                    Link::Up
                }
            }
        };
        if self.link.as_ref() != Some(&link) {
            self.player.feed.push(Update::Link(link.clone()));
            self.link = Some(link);
        }
    }
}

/// Rounds milliseconds down to whole seconds, so that an increasing value changes at most once a second. Returns 0 for
/// negative values.
fn whole_seconds(millis: i64) -> u64 {
    u64::try_from(millis).unwrap_or(0) / 1_000 * 1_000
}

impl Group {
    fn new(members: Vec<Member>, list_feed: Feed, options: Options) -> Self {
        let spans = || members.iter().map(Member::span);
        let start = spans().map(|span| span.0).min().unwrap_or(0);
        Self {
            start,
            end: spans().map(|span| span.1).max().unwrap_or(start),
            members,
            list_feed,
            now: start,
            due: Instant::now(),
            speed: clamp_speed(options.speed),
            paused: options.paused,
            pending_steps: None,
            position_sent_at: Instant::now(),
        }
    }

    fn run(mut self, requests: &Receiver<GroupRequest>) {
        self.members.iter().for_each(|member| member.player.send_hello());
        self.seek(self.start);
        loop {
            let asked = match self.wait() {
                Some(wait) => requests.recv_timeout(wait),
                None => requests.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match asked {
                Ok(asked) => {
                    self.handle_requests(std::iter::once(asked).chain(requests.try_iter()));
                }
                Err(RecvTimeoutError::Timeout) => self.advance(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn next(&self) -> NextStep {
        let mut next = NextStep::End;
        for (at, member) in self.members.iter().enumerate() {
            match member.player.reader.next_frame() {
                NextFrame::Unread => return NextStep::ReadAhead(at),
                NextFrame::Frame(_, frame) => {
                    let wall = member.wall(frame.mono);
                    if !matches!(next, NextStep::Frame(_, first) if first <= wall) {
                        next = NextStep::Frame(at, wall);
                    }
                }
                NextFrame::End => {}
            }
        }
        next
    }

    /// Returns how long to wait for requests, or `None` to wait until a request arrives.
    fn wait(&self) -> Option<Duration> {
        match self.next() {
            NextStep::ReadAhead(_) => Some(Duration::ZERO),
            NextStep::Frame(..) if self.pending_steps.is_some() => Some(Duration::ZERO),
            _ if self.paused => None,
            NextStep::Frame(_, wall) => {
                let due = self.due + self.playback_duration(wall);
                Some(due.saturating_duration_since(Instant::now()))
            }
            // Do not wait, so that the end of the recordings is reported immediately.
            NextStep::End => Some(Duration::ZERO),
        }
    }

    fn playback_duration(&self, until: Wall) -> Duration {
        let gap = u64::try_from(until.saturating_sub(self.now)).unwrap_or(0);
        playback_duration(Millis(gap), self.speed)
    }

    fn advance(&mut self) {
        match self.next() {
            NextStep::ReadAhead(at) => self.members[at].player.read_ahead(),
            NextStep::Frame(at, wall) => self.show(at, wall),
            NextStep::End => {
                (self.paused, self.pending_steps) = (true, None);
                self.send_position();
            }
        }
    }

    fn show(&mut self, at: usize, wall: Wall) {
        let now = Instant::now();
        let due = self.due + self.playback_duration(wall);
        // After a long delay, restart the schedule at the current time instead of catching up.
        let is_late = due > now || now - due > Duration::from_secs(1);
        self.due = if is_late { now } else { due };
        self.now = self.now.max(wall);
        self.members[at].player.show_next();
        if let Some((_, left)) = self.pending_steps.as_mut().filter(|(member, _)| *member == at) {
            *left -= 1;
            if *left == 0 {
                self.pending_steps = None;
                self.send_position();
            }
        }
        if self.position_sent_at.elapsed() > POSITION_INTERVAL {
            self.send_position();
        } else {
            self.send_position_to(at);
        }
    }

    /// Handles all pending requests before seeking, so that holding down a seek key does not decode one minute per key
    /// repeat.
    fn handle_requests(&mut self, asked: impl Iterator<Item = GroupRequest>) {
        let (mut target, mut is_move) = (None, false);
        for (member, request) in asked {
            match (member, request) {
                (Some(at), Request::Play(Play::Past(before))) => {
                    self.members[at].player.send_past(before);
                }
                (_, Request::Play(play)) => {
                    is_move = true;
                    target = self.handle_play(member, play, target);
                }
                (Some(at), request) => {
                    self.members[at].player.handle_requests(std::iter::once(request));
                }
                (None, _) => {}
            }
        }
        match target {
            Some(target) => self.seek(target),
            None if is_move => self.send_position(),
            None => {}
        }
    }

    /// Combines a request with the seek target of earlier pending requests, and returns the new seek target.
    fn handle_play(
        &mut self,
        member: Option<usize>,
        play: Play,
        target: Option<Wall>,
    ) -> Option<Wall> {
        let from = target.unwrap_or(self.now);
        match play {
            Play::Pause(pause) => {
                let is_over = self.paused && !pause && matches!(self.next(), NextStep::End);
                self.paused = pause;
                self.due = Instant::now();
                target.or(is_over.then_some(self.start))
            }
            Play::Speed(speed) => {
                self.speed = clamp_speed(speed);
                self.due = Instant::now();
                target
            }
            Play::Step(frames) => {
                self.paused = true;
                let Some(at) = member else {
                    return Some(from.saturating_add(i64::from(frames) * STEP_MILLIS));
                };
                target.into_iter().for_each(|target| self.seek(target));
                self.step(at, frames)
            }
            Play::Skip(millis) => Some(from.saturating_add(millis)),
            Play::To(monotonic) => Some(match member {
                Some(at) => self.members[at].wall(monotonic),
                None => self.list_wall(monotonic),
            }),
            Play::Start => Some(self.start),
            Play::End => Some(self.end),
            // Ignore the request, because the host list has no charts and needs no earlier data.
            Play::Past(_) => target,
        }
    }

    /// Steps forward or back by a number of one member's frames. A step back jumps to an earlier frame and returns its
    /// wall time.
    fn step(&mut self, at: usize, frames: i32) -> Option<Wall> {
        if let Ok(forward) = u64::try_from(frames) {
            let pending_steps = self.pending_steps.filter(|(member, _)| *member == at);
            let steps = pending_steps.map_or(0, |(_, left)| left) + forward;
            self.pending_steps = Some((at, steps.min(MAX_STEPS))).filter(|(_, steps)| *steps > 0);
            return None;
        }
        let member = &mut self.members[at];
        let shown = member.player.shown?;
        let number = ordinal(&member.player.reader.recording, shown.position);
        let back = number.saturating_add_signed(frames.into());
        member.player.jump_into_minute(Target::Frame(back));
        Some(member.wall(member.player.shown.map_or(shown.mono, |shown| shown.mono)))
    }

    fn seek(&mut self, to: Wall) {
        self.now = to.clamp(self.start, self.end);
        (self.due, self.pending_steps) = (Instant::now(), None);
        for member in &mut self.members {
            member.player.jump_into_minute(Target::Time(member.monotonic(self.now)));
            member.player.finish_frame();
        }
        self.send_position();
    }

    fn send_position(&mut self) {
        self.position_sent_at = Instant::now();
        (0..self.members.len()).for_each(|at| self.send_position_to(at));
        let of_list = |wall: Wall| Mono(u64::try_from(wall - self.start).unwrap_or(0));
        self.list_feed.push(self.position(false, of_list));
    }

    fn send_position_to(&mut self, at: usize) {
        self.members[at].send_link(self.now);
        let member = &self.members[at];
        let has_holders = member.player.reader.recording.has_holders();
        member.player.feed.push(self.position(has_holders, |wall| member.monotonic(wall)));
    }

    /// Converts a host list time, which is measured from the start of the recordings, to wall time.
    fn list_wall(&self, monotonic: Mono) -> Wall {
        self.start.saturating_add(i64::try_from(monotonic.0).unwrap_or(i64::MAX))
    }

    fn position(&self, has_holders: bool, monotonic: impl Fn(Wall) -> Mono) -> Update {
        Update::Position(Position {
            start: monotonic(self.start),
            end: monotonic(self.end),
            now: monotonic(self.now),
            speed: self.speed,
            paused: self.paused,
            at_end: matches!(self.next(), NextStep::End),
            has_holders,
        })
    }
}

#[cfg(test)]
mod tests;
