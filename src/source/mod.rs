//! Sources of frames and events: a remote host or a recording, each read as one stream like this host
//! (`collect::local`).
//!
//! A source yields [`Update`](gputop_model::protocol::Update)s and accepts [`Request`](gputop_model::protocol::Request)s. Screens,
//! recorders and printers use only updates and requests, so they work the same for all three sources.

pub mod holder_schedule;
pub(crate) mod layout;
pub mod map_schedule;
pub mod record;
pub mod recording_file;
pub mod remote;
pub mod replay;

use std::io;

/// Names an error of zstd. The library is built for size, without its own texts.
pub fn named_zstd_error(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::Other => io::Error::new(io::ErrorKind::InvalidData, "invalid zstd data"),
        _ => error,
    }
}
