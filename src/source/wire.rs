//! One line of the stream, with the same JSON in a recording and on a connection.
//!
//! A line is an object with one key that names its content. A key that this version does not know leaves all fields
//! empty, and the line is skipped.

use serde::{Deserialize, Serialize};

use super::live_message::Reply;
use super::map_line::MapLine;
use crate::model::bounded_json;
use crate::model::event::Event;
use crate::model::frame::Frame;
use crate::model::host::Hello;
use crate::model::stack::PythonStack;
use crate::model::units::Mono;

/// Maximum memory for the lists and maps of one line. A frame of 2,000 processes takes 3 MiB.
const MAX_LINE_MEMORY: usize = 12 << 20;

/// The content of a line: one of these fields, or none if unknown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, bound(deserialize = "F: Deserialize<'de>"))]
pub struct WireLine<F = Frame> {
    /// Index of the host. A reader that supports only one reads host 0.
    #[serde(skip_serializing_if = "is_first")]
    pub from: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hello: Option<Hello>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frame: Option<F>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<Event>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub map: Option<MapLine>,
    /// For a map that was read because an allocation failed: the last time before the failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_since: Option<Mono>,
    /// A stack read at a failed allocation or at a maximum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stack: Option<PythonStack>,
    /// Used only on connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reply: Option<Box<Reply>>,
}

impl<'de, F: Deserialize<'de>> WireLine<F> {
    /// Parses an untrusted line. Rejects a line that would take far more memory than its text.
    pub fn read(text: &'de [u8]) -> serde_json::Result<Self> {
        bounded_json::read(text, MAX_LINE_MEMORY).map(|(line, _)| line)
    }
}

fn is_first(from: &u32) -> bool {
    *from == 0
}

impl<F> Default for WireLine<F> {
    fn default() -> Self {
        Self {
            from: 0,
            hello: None,
            frame: None,
            event: None,
            map: None,
            failed_since: None,
            stack: None,
            reply: None,
        }
    }
}
