//! What comes from the far side, as updates: unpacked, bounded, harmless.

use std::borrow::Cow;
use std::io::{self, BufRead, BufReader, Read};
use std::sync::Arc;

use zstd::stream::read::Decoder;

use super::protocol::{MAX_LINE, MAX_WINDOW_LOG};
use crate::model::pool::FailureMap;
use crate::model::remote_incident::OnShelf;
use crate::model::text::harmless_json;
use crate::source::Update;
use crate::source::wire::WireLine;

/// What a line says. One at a time, on its way.
#[allow(clippy::large_enum_variant)]
pub(super) enum Said {
    Update(Update),
    /// What the incident store there holds.
    Shelf(Vec<OnShelf>),
}

/// Room for a line, made before it is read and given back behind it. It is so large that it is mapped by itself, where the heap
/// of many hosts is shared: holes as large as a line would be strewn with what comes out of the lines.
const LINE_ROOM: usize = 160 << 10;

/// What is said behind the greeting.
pub(super) struct Incoming<R: BufRead> {
    text: BufReader<Decoder<'static, R>>,
}

/// Why nothing more is read, beside the end of it.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    #[error("a line is longer than {} MiB", MAX_LINE >> 20)]
    TooLong,
    #[error("it needs {0}, which this version does not know")]
    Needs(String),
    #[error("what it sent is damaged: {0}")]
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

    /// What comes next; `None` at the end. Lines of kinds that this version does not know are passed over.
    pub(super) fn next(&mut self) -> Result<Option<Said>, Broken> {
        loop {
            let mut line = Vec::with_capacity(LINE_ROOM);
            let read = (&mut self.text)
                .take(MAX_LINE)
                .read_until(b'\n', &mut line)?;
            if read == 0 {
                return Ok(None);
            }
            if line.last() != Some(&b'\n') {
                // Cut by the end of the connection, or by the bound.
                let is_cut = (line.len() as u64) < MAX_LINE;
                return if is_cut {
                    Ok(None)
                } else {
                    Err(Broken::TooLong)
                };
            }
            // Escaping makes a line longer. Only one copy stays in memory.
            let text = match harmless_json(&line, MAX_LINE as usize) {
                None => return Err(Broken::TooLong),
                Some(Cow::Owned(text)) => text,
                Some(Cow::Borrowed(_)) => line,
            };
            match WireLine::read(&text).map(said) {
                Ok(Some(Said::Update(Update::Hello(hello)))) => {
                    if let Some(needs) = hello.requires.first() {
                        return Err(Broken::Needs(needs.chars().take(60).collect()));
                    }
                    return Ok(Some(Said::Update(Update::Hello(hello))));
                }
                Ok(Some(said)) => return Ok(Some(said)),
                Ok(None) => {}
                Err(error) => tracing::warn!("a line of the far side is left out: {error}"),
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
    while let Ok(Some(said)) = incoming.next() {
        if let Said::Update(update) = said {
            updates.push(update);
        }
    }
    updates
}

fn said(mut line: WireLine) -> Option<Said> {
    if line.from != 0 {
        return None;
    }
    let shelf = line.reply.as_mut().and_then(|reply| reply.shelf.take());
    shelf
        .map(Said::Shelf)
        .or_else(|| update(line).map(Said::Update))
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
                tracing::warn!("a map of the far side is left out: {error}");
                None
            }
        }
    } else {
        line.reply?.update()
    }
}
