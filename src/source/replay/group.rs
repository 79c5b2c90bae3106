//! Several recordings of one time, played on one clock.
//!
//! Each has its own reader and stream, as if it played alone; here is who says when. The clock is the wall's, since that
//! of each boot is its own: a recording's first frame tells by how much they differ. A host that is not recorded yet, or
//! not any more, says so as one that is not heard.
//!
//! Whoever asks to move, from a host's screen or from the list of them, moves all.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use super::file::{OpenError, Recording};
use super::next_frame::Ahead;
use super::player::{Player, lasting, sane};
use super::seek_target::{Target, ordinal};
use super::{Options, spawn};
use crate::model::link::Link;
use crate::model::units::{Millis, Mono};
use crate::source::stream::{Feed, Source, stream};
use crate::source::{Play, Position, Request, Update};

/// Where it stands is told to all at most so often while it plays.
const TELL: Duration = Duration::from_millis(500);
/// A step of the list, which has no frames of its own.
const STEP: i64 = 1_000;
const MAX_STEPS: u64 = 64;
/// Nothing for so many intervals and a while is silence, as of a living host.
const SILENT_AFTER: u64 = 3;
const A_WHILE: u64 = 2_000;

/// Plays them all on a thread of its own until nobody reads any. First what the list of them reads, which is told where the
/// clock stands, then the source of each.
///
/// # Errors
/// Where one holds no frame that can be read.
pub fn play_all(
    recordings: Vec<(String, Recording)>,
    options: Options,
) -> Result<(Source, Vec<Source>), OpenError> {
    let (asked, requests) = mpsc::channel();
    let (lead, from_list, list) = stream();
    pass_on(None, from_list, asked.clone());
    let (mut members, mut sources) = (Vec::new(), Vec::new());
    for (name, recording) in recordings {
        let offset = recording.wall_offset().ok_or(OpenError::NoFrames(name))?;
        let (feed, from_host, source) = stream();
        pass_on(Some(members.len()), from_host, asked.clone());
        members.push(Member::new(recording, feed, offset));
        sources.push(source);
    }
    drop(asked);
    let group = Group::new(members, lead, options);
    spawn(move || group.run(&requests));
    Ok((list, sources))
}

/// Who asks, a member or the list, and for what.
type GroupRequest = (Option<usize>, Request);

/// One place to listen for what all of them ask.
fn pass_on(who: Option<usize>, from: Receiver<Request>, to: Sender<GroupRequest>) {
    spawn(move || {
        let _ = from.iter().try_for_each(|request| to.send((who, request)));
    });
}

/// Milliseconds since 1970.
type Wall = i64;

struct Member {
    player: Player,
    /// What its own clock lacks to the wall's.
    offset: i64,
    link: Option<Link>,
}

struct Group {
    members: Vec<Member>,
    lead: Feed,
    start: Wall,
    end: Wall,
    now: Wall,
    /// When `now` was due.
    due: Instant,
    speed: f32,
    paused: bool,
    /// So many frames of a member are to be shown at once.
    owed: Option<(usize, u64)>,
    told: Instant,
}

/// What comes next.
enum Next {
    /// It is not known before this one has looked.
    Look(usize),
    Frame(usize, Wall),
    End,
}

impl Member {
    fn new(recording: Recording, feed: Feed, offset: i64) -> Self {
        Self {
            player: Player::led(recording, feed),
            offset,
            link: None,
        }
    }

    fn wall(&self, moment: Mono) -> Wall {
        i64::try_from(moment.0)
            .unwrap_or(i64::MAX)
            .saturating_add(self.offset)
    }

    /// A moment before its boot is its first.
    fn moment(&self, wall: Wall) -> Mono {
        Mono(u64::try_from(wall.saturating_sub(self.offset)).unwrap_or(0))
    }

    fn span(&self) -> (Wall, Wall) {
        let (start, end) = self.player.reader.recording.span();
        (self.wall(start), self.wall(end))
    }

    /// Says whether what is shown of it is of now.
    fn tell_link(&mut self, now: Wall) {
        let link = match self.player.shown {
            None => Link::Later {
                begins_in: Millis(whole_seconds(self.span().0 - now)),
            },
            Some(shown) => {
                let lag = now.saturating_sub(self.wall(shown.mono));
                let since = Millis(whole_seconds(lag));
                if u64::try_from(lag).unwrap_or(0) > shown.interval.0 * SILENT_AFTER + A_WHILE {
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

/// So that what changes all the time is told once a second at most; 0 for what is over.
fn whole_seconds(millis: i64) -> u64 {
    u64::try_from(millis).unwrap_or(0) / 1_000 * 1_000
}

impl Group {
    fn new(members: Vec<Member>, lead: Feed, options: Options) -> Self {
        let spans = || members.iter().map(Member::span);
        let start = spans().map(|span| span.0).min().unwrap_or(0);
        Self {
            start,
            end: spans().map(|span| span.1).max().unwrap_or(start),
            members,
            lead,
            now: start,
            due: Instant::now(),
            speed: sane(options.speed),
            paused: options.paused,
            owed: None,
            told: Instant::now(),
        }
    }

    fn run(mut self, requests: &Receiver<GroupRequest>) {
        self.members.iter().for_each(|one| one.player.greet());
        self.seek(self.start);
        loop {
            let asked = match self.wait() {
                Some(wait) => requests.recv_timeout(wait),
                None => requests.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match asked {
                Ok(asked) => self.obey(std::iter::once(asked).chain(requests.try_iter())),
                Err(RecvTimeoutError::Timeout) => self.go_on(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn next(&self) -> Next {
        let mut next = Next::End;
        for (at, one) in self.members.iter().enumerate() {
            match one.player.reader.ahead() {
                Ahead::Unread => return Next::Look(at),
                Ahead::Frame(_, frame) => {
                    let wall = one.wall(frame.mono);
                    if !matches!(next, Next::Frame(_, first) if first <= wall) {
                        next = Next::Frame(at, wall);
                    }
                }
                Ahead::End => {}
            }
        }
        next
    }

    /// How long nothing is to be done but to listen; `None` is until someone asks for something.
    fn wait(&self) -> Option<Duration> {
        match self.next() {
            Next::Look(_) => Some(Duration::ZERO),
            Next::Frame(..) if self.owed.is_some() => Some(Duration::ZERO),
            _ if self.paused => None,
            Next::Frame(_, wall) => {
                let due = self.due + self.lasting(wall);
                Some(due.saturating_duration_since(Instant::now()))
            }
            // To say that it is over.
            Next::End => Some(Duration::ZERO),
        }
    }

    fn lasting(&self, until: Wall) -> Duration {
        let gap = u64::try_from(until.saturating_sub(self.now)).unwrap_or(0);
        lasting(Millis(gap), self.speed)
    }

    fn go_on(&mut self) {
        match self.next() {
            Next::Look(at) => self.members[at].player.look_ahead(),
            Next::Frame(at, wall) => self.show(at, wall),
            Next::End => {
                (self.paused, self.owed) = (true, None);
                self.tell();
            }
        }
    }

    fn show(&mut self, at: usize, wall: Wall) {
        let now = Instant::now();
        let due = self.due + self.lasting(wall);
        // After a long delay the pace starts anew instead of catching up.
        let is_late = due > now || now - due > Duration::from_secs(1);
        self.due = if is_late { now } else { due };
        self.now = self.now.max(wall);
        self.members[at].player.show_next();
        if let Some((_, left)) = self.owed.as_mut().filter(|(whose, _)| *whose == at) {
            *left -= 1;
            if *left == 0 {
                self.owed = None;
                self.tell();
            }
        }
        if self.told.elapsed() > TELL {
            self.tell();
        } else {
            self.tell_one(at);
        }
    }

    /// Takes all requests that wait before moving, so that a held key does not decode a minute for each repeat.
    fn obey(&mut self, asked: impl Iterator<Item = GroupRequest>) {
        let (mut target, mut is_move) = (None, false);
        for (who, request) in asked {
            match (who, request) {
                (Some(at), Request::Play(Play::Past(before))) => {
                    self.members[at].player.feed_more(before);
                }
                (_, Request::Play(play)) => {
                    is_move = true;
                    target = self.obey_play(who, play, target);
                }
                (Some(at), request) => self.members[at].player.obey(std::iter::once(request)),
                (None, _) => {}
            }
        }
        match target {
            Some(target) => self.seek(target),
            None if is_move => self.tell(),
            None => {}
        }
    }

    /// Where to go after this request and the ones before it that have not been done.
    fn obey_play(&mut self, who: Option<usize>, play: Play, target: Option<Wall>) -> Option<Wall> {
        let from = target.unwrap_or(self.now);
        match play {
            Play::Pause(pause) => {
                let is_over = self.paused && !pause && matches!(self.next(), Next::End);
                self.paused = pause;
                self.due = Instant::now();
                target.or(is_over.then_some(self.start))
            }
            Play::Speed(speed) => {
                self.speed = sane(speed);
                self.due = Instant::now();
                target
            }
            Play::Step(frames) => {
                self.paused = true;
                let Some(at) = who else {
                    return Some(from.saturating_add(i64::from(frames) * STEP));
                };
                target.into_iter().for_each(|target| self.seek(target));
                self.step(at, frames)
            }
            Play::Skip(millis) => Some(from.saturating_add(millis)),
            Play::To(moment) => Some(match who {
                Some(at) => self.members[at].wall(moment),
                None => self.list_wall(moment),
            }),
            Play::Start => Some(self.start),
            // The list has no charts.
            Play::Past(_) => target,
        }
    }

    /// By so many frames of a member; back is a jump to where that one is.
    fn step(&mut self, at: usize, frames: i32) -> Option<Wall> {
        if let Ok(forward) = u64::try_from(frames) {
            let owed = self.owed.filter(|(whose, _)| *whose == at);
            let steps = owed.map_or(0, |(_, left)| left) + forward;
            self.owed = Some((at, steps.min(MAX_STEPS))).filter(|(_, steps)| *steps > 0);
            return None;
        }
        let one = &mut self.members[at];
        let shown = one.player.shown?;
        let number = ordinal(&one.player.reader.recording, shown.place);
        let back = number.saturating_add_signed(frames.into());
        one.player.jump_into_minute(Target::Frame(back));
        let moment = one.player.shown.map_or(shown.mono, |shown| shown.mono);
        Some(one.wall(moment))
    }

    fn seek(&mut self, to: Wall) {
        self.now = to.clamp(self.start, self.end);
        (self.due, self.owed) = (Instant::now(), None);
        for one in &mut self.members {
            let moment = one.moment(self.now);
            one.player.jump_into_minute(Target::Moment(moment));
            one.player.settle();
        }
        self.tell();
    }

    /// To all where the clock stands.
    fn tell(&mut self) {
        self.told = Instant::now();
        (0..self.members.len()).for_each(|at| self.tell_one(at));
        let of_list = |wall: Wall| Mono(u64::try_from(wall - self.start).unwrap_or(0));
        self.lead.push(self.position(of_list));
    }

    fn tell_one(&mut self, at: usize) {
        let now = self.now;
        self.members[at].tell_link(now);
        let one = &self.members[at];
        one.player.feed.push(self.position(|wall| one.moment(wall)));
    }

    /// The list's clock begins with the recordings.
    fn list_wall(&self, moment: Mono) -> Wall {
        self.start
            .saturating_add(i64::try_from(moment.0).unwrap_or(i64::MAX))
    }

    fn position(&self, moment: impl Fn(Wall) -> Mono) -> Update {
        Update::Position(Position {
            start: moment(self.start),
            end: moment(self.end),
            now: moment(self.now),
            speed: self.speed,
            paused: self.paused,
            at_end: matches!(self.next(), Next::End),
        })
    }
}

#[cfg(test)]
mod tests;
