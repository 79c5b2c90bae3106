//! Plays a recording at its recorded speed, as a source that sends the same updates as a live host.
//!
//! A jump sends everything that a screen would show if it had been open all along: summaries and events of the
//! preceding hour, and the frames of the current minute. Only that minute is read, plus earlier minutes if it does not
//! contain the map of the selected pool, and the last minutes with names of tensors. Only the next frame is buffered. Earlier data is sent in 15-minute steps when
//! the charts need it ([`Play::Past`](gputop_model::protocol::Play::Past)). The cost of a jump and the memory use therefore do
//! not depend on the recording's length. Damage affects only the damaged seconds: a notice reports the damage, and
//! playback continues after it.

mod contents;
mod file;
mod group;
mod holders;
mod jump;
mod lines;
mod maps;
mod next_frame;
mod options;
mod player;
mod seek_target;
mod thread;
mod walk;

pub use self::options::Options;
use self::thread::spawn;

pub use file::{OpenError, Recording};
use gputop_model::protocol::stream::{Source, stream};
pub use group::play_all;

use self::player::Player;

/// Plays the recording on a new thread until the reader is dropped. If no thread can be started, the stream ends
/// immediately.
pub fn play(recording: Recording, options: Options) -> Source {
    let (feed, requests, source) = stream();
    spawn(move || Player::new(recording, feed, options).run(&requests));
    source
}
