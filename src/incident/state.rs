//! The saved state of incidents: which were opened, and for which `on_incident` ran.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use gputop_model::units::UnixMillis;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::uid::Uid;
use crate::user_files;

const SCHEMA: u32 = 1;
pub(super) const NAME: &str = "state.json";
/// Maximum size of the state file. Two timestamps for each incident in a full store take far less.
const MAX_BYTES: u64 = 1 << 20;
/// Maximum number of stored process notifications.
const MAX_ACTIVITY: usize = 1_024;

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct State {
    pub(super) schema: u32,
    /// Time at which the user opened each incident.
    pub(super) read: BTreeMap<Uid, UnixMillis>,
    /// Time at which `on_incident` started for each incident.
    #[serde(rename = "told")]
    pub(super) notified: BTreeMap<Uid, UnixMillis>,
    /// Time of the last notification about each exited or idle process.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) activity: BTreeMap<String, UnixMillis>,
    #[serde(flatten)]
    more: Map<String, Value>,
}

impl State {
    /// Reads the saved incident state. A missing or damaged file is treated as empty, which marks all incidents as
    /// unread. If a newer gputop wrote the file, returns its schema version, and the caller must not overwrite the
    /// file.
    pub(super) fn read(folder: &Path) -> Result<Self, u64> {
        let read = || -> io::Result<Value> {
            let bytes = user_files::read(&folder.join(NAME), MAX_BYTES)?;
            Ok(serde_json::from_slice(&bytes)?)
        };
        let state = read().unwrap_or_default();
        // Check the version first, because the remaining content of a newer file may have any format.
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

    /// Removes the oldest process notifications beyond the maximum.
    pub(super) fn forget_old_activity(&mut self) {
        let mut times: Vec<UnixMillis> = self.activity.values().copied().collect();
        if let Some(surplus) = times.len().checked_sub(MAX_ACTIVITY + 1) {
            times.sort_unstable();
            let oldest = times[surplus];
            self.activity.retain(|_, time| *time > oldest);
        }
    }

    pub(super) fn retain(&mut self, exists: impl Fn(&Uid) -> bool) {
        self.read.retain(|uid, _| exists(uid));
        self.notified.retain(|uid, _| exists(uid));
    }
}
