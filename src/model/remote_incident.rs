//! Incidents in the store of another host: first a list, then each incident that is requested.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// An entry in the list of a host's incident store.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct IncidentFile {
    /// The incident's ID in that store.
    pub uid: String,
    /// Time of the last change in nanoseconds since 1970, and size in bytes. If both are unchanged, the file is
    /// unchanged.
    pub modified: i64,
    pub bytes: u64,
    /// True if a user has opened the incident on that host.
    pub is_read: bool,
}

/// An incident as saved in its file in the store, but without the blocks of its map.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RemoteIncident {
    /// The incident's ID in that store.
    pub uid: String,
    pub is_read: bool,
    /// Null if the incident was deleted or cannot be read.
    pub record: Value,
}
