//! A frame written as a separate file, with the name of its host and the state of the screen.
//!
//! `once --json` prints such a document, and the key that saves the current screen writes one. The added fields are at
//! the same level as the frame's own fields, so any program that reads frames can read the document.

use std::sync::Arc;

use serde::Serialize;
use serde_with::skip_serializing_none;

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

/// Screen state that is not part of a frame.
#[skip_serializing_none]
#[derive(Debug, Clone, Serialize)]
pub struct Shown {
    /// Name of the screen: `overview`, `memory`.
    pub id: &'static str,
    /// Name of the recording being played; absent for live data.
    pub recording: Option<String>,
    /// Segments and blocks of the pool shown on the screen.
    pub map: Option<Arc<PoolMap>>,
    /// Exited processes still shown on the screen.
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

    /// Returns indented JSON with a trailing newline.
    pub fn json(&self) -> serde_json::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }
}
