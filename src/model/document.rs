//! A frame as a file of its own: with the name of its host, and with what a screen knew beside it.
//!
//! `once --json` prints one, the key that writes what is on screen makes one. It is read as a frame by whatever reads
//! frames: what is added stands beside the frame's fields.

use std::sync::Arc;

use serde::Serialize;

use super::event::Exit;
use super::frame::{Frame, SCHEMA};
use super::host::Hello;
use super::pool::PoolMap;
use super::process::ProcessKey;
use super::units::UnixMillis;

#[derive(Debug, Clone, Serialize)]
pub struct Document {
    schema: u32,
    host_name: String,
    boot_id: String,
    #[serde(flatten)]
    frame: Arc<Frame>,
    #[serde(skip_serializing_if = "Option::is_none")]
    screen: Option<Shown>,
}

/// What a screen showed that is in no frame.
#[derive(Debug, Clone, Serialize)]
pub struct Shown {
    /// Which one: `overview`, `memory`.
    pub id: &'static str,
    /// The name of the recording it was played from; none for live data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recording: Option<String>,
    /// The segments and blocks of the pool on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub map: Option<Arc<PoolMap>>,
    /// Processes whose rows stay.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ended: Vec<EndedProcess>,
}

#[derive(Debug, Clone, Serialize)]
pub struct EndedProcess {
    pub key: ProcessKey,
    pub time: UnixMillis,
    #[serde(flatten)]
    pub exit: Exit,
}

impl Document {
    pub fn new(hello: &Hello, frame: Arc<Frame>, screen: Option<Shown>) -> Self {
        Self {
            schema: SCHEMA,
            host_name: hello.host.clone(),
            boot_id: hello.boot_id.clone(),
            frame,
            screen,
        }
    }

    /// Indented, with a line end.
    ///
    /// # Errors
    /// None that a frame can cause: it is plain data.
    pub fn json(&self) -> serde_json::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }
}
