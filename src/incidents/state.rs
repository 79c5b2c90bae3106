//! What happened to the incidents since: which were read, and of which somebody was told.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::uid::Uid;
use crate::model::units::UnixMillis;
use crate::user_files;

const SCHEMA: u32 = 1;
pub(super) const NAME: &str = "state.json";
/// Two times for each incident there can be are far less.
const MAX_BYTES: u64 = 1 << 20;

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct State {
    pub(super) schema: u32,
    /// When each was opened.
    pub(super) read: BTreeMap<Uid, UnixMillis>,
    /// When `on_incident` was begun for each.
    pub(super) told: BTreeMap<Uid, UnixMillis>,
    #[serde(flatten)]
    more: Map<String, Value>,
}

impl State {
    /// One that is missing or damaged is empty: then incidents are unread again, and nothing is lost.
    ///
    /// # Errors
    /// The version of a state that is newer than this program; it must not be overwritten.
    pub(super) fn read(folder: &Path) -> Result<Self, u64> {
        let read = || -> io::Result<Value> {
            let bytes = user_files::read(&folder.join(NAME), MAX_BYTES)?;
            Ok(serde_json::from_slice(&bytes)?)
        };
        let state = read().unwrap_or_default();
        // The number first: the rest of a newer one may have any shape.
        match state.get("schema").and_then(Value::as_u64) {
            Some(schema) if schema > SCHEMA.into() => Err(schema),
            _ => Ok(serde_json::from_value(state).unwrap_or_default()),
        }
    }

    pub(super) fn write(&mut self, folder: &Path) -> io::Result<()> {
        self.schema = SCHEMA;
        let mut bytes = serde_json::to_vec(self)?;
        bytes.push(b'\n');
        user_files::replace(&folder.join(NAME), &bytes)
    }

    /// Forgets incidents that are no more.
    pub(super) fn keep(&mut self, is_there: impl Fn(&Uid) -> bool) {
        self.read.retain(|uid, _| is_there(uid));
        self.told.retain(|uid, _| is_there(uid));
    }
}
