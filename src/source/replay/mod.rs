//! Plays a recording as a source: the same updates as from a live machine, at the recorded pace.
//!
//! A jump sends what a screen needs to look as if it had been watching: summaries of the hour before, the events of
//! that hour, and the current minute's frames. Only that minute is read, and earlier ones where the map of a pool is
//! wanted that it does not hold; nothing is kept of it but the next frame. What came before that hour is told a quarter
//! of an hour at a time, as the charts reach for it ([`Play::Past`](super::Play::Past)), so that neither a jump nor the
//! memory grows with the day. Damage costs the seconds it lies in: a notice says so and playing goes on behind it.

mod contents;
mod file;
mod group;
mod jump;
mod lines;
mod maps;
mod next_frame;
mod player;
mod seek_target;
mod walk;

pub use file::{OpenError, Recording};
pub use group::play_all;

use self::player::Player;
use super::stream::{Source, stream};

/// How to play.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// Begin paused on the first frame.
    pub paused: bool,
    pub speed: f32,
    /// Start over at the end instead of pausing there.
    pub repeat: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            paused: false,
            speed: 1.0,
            repeat: false,
        }
    }
}

/// Plays on a thread of its own until the reader is gone. A machine that gives no thread ends the stream at once.
pub fn play(recording: Recording, options: Options) -> Source {
    let (feed, requests, source) = stream();
    spawn(move || Player::new(recording, feed, options).run(&requests));
    source
}

fn spawn(work: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().name("replay".into());
    if let Err(error) = thread.spawn(work) {
        tracing::error!("no thread to play the recording: {error}");
    }
}
