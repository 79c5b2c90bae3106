//! One line of the stream: the same JSON in a recording and between two machines.
//!
//! A line is an object with one key that names what it holds. A key this version does not know leaves all fields
//! empty and the line is passed over; the stream goes on.

use serde::{Deserialize, Serialize};

use super::live_message::Reply;
use super::map_line::MapLine;
use crate::model::bounded_json;
use crate::model::event::Event;
use crate::model::frame::Frame;
use crate::model::host::Hello;
use crate::model::stack::PythonStack;
use crate::model::units::Mono;

/// Memory that the lists and maps of one line may take. A frame of 2,000 processes takes 3 MiB.
const MAX_LINE_MEMORY: usize = 12 << 20;

/// What one line holds: one of these, or nothing known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, bound(deserialize = "F: Deserialize<'de>"))]
pub struct WireLine<F = Frame> {
    /// Which of several hosts it is from. A reader that knows only one takes those of host 0.
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
    /// Beside a map that was read because an allocation failed: the last moment at which it had not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_since: Option<Mono>,
    /// A stack that was read because an allocation failed, or at a maximum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stack: Option<PythonStack>,
    /// Between two machines only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reply: Option<Box<Reply>>,
}

impl<'de, F: Deserialize<'de>> WireLine<F> {
    /// Reads a line from outside. One that would take far more memory than its text is refused.
    pub fn read(text: &'de [u8]) -> serde_json::Result<Self> {
        bounded_json::read(text, MAX_LINE_MEMORY).map(|(line, _)| line)
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)]
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
