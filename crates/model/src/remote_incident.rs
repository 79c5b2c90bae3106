//! Incidents in another host's store. The remote host first sends a list of them, and then each incident that is
//! requested.

use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct IncidentFile {
    /// The incident's ID in the remote host's store.
    pub uid: String,
    /// Time of the last change in nanoseconds since 1970. If time and size are unchanged, the file is assumed to be
    /// unchanged.
    pub modified: i64,
    pub bytes: u64,
    /// True if a user has opened the incident on the remote host.
    pub is_read: bool,
}

/// A remote host's incident as saved in its file, but without the blocks of its pool map.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RemoteIncident {
    /// The incident's ID in the remote host's store.
    pub uid: String,
    pub is_read: bool,
    /// The incident record, or null if the incident was deleted or cannot be read.
    pub record: Value,
}
