//! This host as a source: the agent's threads write into a stream that a screen or a recorder reads.

use gputop_model::protocol::stream::{Source, stream};

use super::agent::{self, Options};

/// Starts collecting data on this host. The threads exit when the source is dropped.
pub fn start(options: Options) -> std::io::Result<Source> {
    let (feed, requests, source) = stream();
    feed.drop_when_full();
    agent::start(options, feed, requests)?;
    Ok(source)
}
