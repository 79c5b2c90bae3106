//! Plays a recording as a source: the same updates as from a live host, at the recorded speed.
//!
//! A jump sends everything a screen needs to look as if it had been watching: summaries and events of the hour
//! before, and the frames of the current minute. Only that minute is read, plus earlier ones if it lacks the map of
//! the selected pool; only the next frame is kept. Earlier data is sent in steps of a quarter of an hour when the
//! charts need it ([`Play::Past`](crate::protocol::Play::Past)). The cost of a jump and the memory therefore do not grow with
//! the length of the recording. Damage costs the seconds that it affects: a notice reports it, and playback continues
//! after it.

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
use crate::model::units::Millis;

/// Playback options.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// Start paused on the first frame.
    pub paused: bool,
    pub speed: f32,
    /// Start over at the end instead of pausing there.
    pub repeat: bool,
    /// Distance from the start of the recording at which playback begins.
    pub start: Millis,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            paused: false,
            speed: 1.0,
            repeat: false,
            start: Millis(0),
        }
    }
}

/// Plays the recording on a new thread until the reader is dropped. If no thread can be started, the stream ends
/// immediately.
pub fn play(recording: Recording, options: Options) -> Source {
    let (feed, requests, source) = stream();
    spawn(move || Player::new(recording, feed, options).run(&requests));
    source
}

fn spawn(work: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().name("replay".into());
    if let Err(error) = thread.spawn(work) {
        tracing::error!("cannot play the recording: no thread could be started: {error}");
    }
}
