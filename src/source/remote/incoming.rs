//! Reads the stream of a remote agent as updates: decompressed, limited in size, with escaped text.

use std::borrow::Cow;
use std::io::{self, BufRead, BufReader, Read};
use std::sync::Arc;

use zstd::stream::read::Decoder;

use super::protocol::{MAX_LINE, MAX_WINDOW_LOG};
use crate::model::pool::FailureMap;
use crate::model::remote_incident::IncidentFile;
use crate::model::text::harmless_json;
use crate::source::Update;
use crate::source::wire::WireLine;

/// The content of a line. Only one exists at a time.
#[allow(clippy::large_enum_variant)]
pub(super) enum Message {
    Update(Update),
    /// Contents of the remote incident store.
    IncidentList(Vec<IncidentFile>),
}

/// Capacity of a line buffer, allocated before a line is read and freed after it. It is large enough to get its own
/// memory mapping. In the heap that many hosts share, freed buffers of this size would be filled with small
/// allocations from the lines.
const LINE_CAPACITY: usize = 160 << 10;

/// The stream after the greeting.
pub(super) struct Incoming<R: BufRead> {
    text: BufReader<Decoder<'static, R>>,
}

/// Reason why reading stopped before the end.
#[derive(Debug, thiserror::Error)]
pub(super) enum StreamError {
    #[error("a received line is longer than {} MiB", MAX_LINE >> 20)]
    TooLong,
    #[error("the remote gputop requires {0}, which this version does not support")]
    Needs(String),
    #[error("the received data is damaged: {0}")]
    Read(#[from] io::Error),
}

impl<R: BufRead> Incoming<R> {
    pub(super) fn new(from: R) -> io::Result<Self> {
        let mut decoder = Decoder::with_buffer(from)?;
        decoder.window_log_max(MAX_WINDOW_LOG)?;
        Ok(Self {
            text: BufReader::with_capacity(4 << 10, decoder),
        })
    }

    /// Returns the next message, or `None` at the end. Skips lines of kinds that this version does not know.
    pub(super) fn next(&mut self) -> Result<Option<Message>, StreamError> {
        loop {
            let mut line = Vec::with_capacity(LINE_CAPACITY);
            let read = (&mut self.text)
                .take(MAX_LINE)
                .read_until(b'\n', &mut line)?;
            if read == 0 {
                return Ok(None);
            }
            if line.last() != Some(&b'\n') {
                // Cut off by the end of the connection, or by the limit.
                let is_cut = (line.len() as u64) < MAX_LINE;
                return if is_cut {
                    Ok(None)
                } else {
                    Err(StreamError::TooLong)
                };
            }
            // Escaping makes a line longer. Only one copy stays in memory.
            let text = match harmless_json(&line, MAX_LINE as usize) {
                None => return Err(StreamError::TooLong),
                Some(Cow::Owned(text)) => text,
                Some(Cow::Borrowed(_)) => line,
            };
            match WireLine::read(&text).map(message) {
                Ok(Some(Message::Update(Update::Hello(hello)))) => {
                    if let Some(needs) = hello.requires.first() {
                        return Err(StreamError::Needs(needs.chars().take(60).collect()));
                    }
                    return Ok(Some(Message::Update(Update::Hello(hello))));
                }
                Ok(Some(message)) => return Ok(Some(message)),
                Ok(None) => {}
                Err(error) => tracing::warn!("skipped a line from the remote host: {error}"),
            }
        }
    }
}

/// Reads everything that an agent sends after its greeting. Entry point for the fuzz targets.
pub fn read_agent_stream(stream: &[u8]) -> Vec<Update> {
    let mut updates = Vec::new();
    let Ok(mut incoming) = Incoming::new(stream) else {
        return updates;
    };
    while let Ok(Some(message)) = incoming.next() {
        if let Message::Update(update) = message {
            updates.push(update);
        }
    }
    updates
}

fn message(mut line: WireLine) -> Option<Message> {
    if line.from != 0 {
        return None;
    }
    let incident_list = line
        .reply
        .as_mut()
        .and_then(|reply| reply.stored_incidents.take());
    incident_list
        .map(Message::IncidentList)
        .or_else(|| update(line).map(Message::Update))
}

fn update(line: WireLine) -> Option<Update> {
    if let Some(hello) = line.hello {
        Some(Update::Hello(Arc::new(hello)))
    } else if let Some(frame) = line.frame {
        Some(Update::Frame(Arc::new(frame)))
    } else if let Some(event) = line.event {
        Some(Update::Event(event))
    } else if let Some(map) = line.map {
        match (map.read(), line.failed_since) {
            (Ok(map), None) => Some(Update::Map(Arc::new(map))),
            (Ok(map), Some(since)) => Some(Update::FailureMap(Arc::new(FailureMap { since, map }))),
            (Err(error), _) => {
                tracing::warn!("skipped a map from the remote host: {error}");
                None
            }
        }
    } else {
        line.reply?.update()
    }
}
