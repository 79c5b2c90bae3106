//! What the incident store of a host holds, as another host is told: a list of it, and then each incident that is asked for.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A file of the store, unopened.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OnShelf {
    /// Its name there.
    pub uid: String,
    /// When it was written last, in nanoseconds since 1970, and how large it is: both the same, nothing is new.
    pub modified: i64,
    pub bytes: u64,
    /// Somebody has opened it there.
    pub is_read: bool,
}

/// An incident of the store, as its file has it but without the blocks of its map.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RemoteIncident {
    /// Its name there.
    pub uid: String,
    pub is_read: bool,
    /// Null where it is gone, or cannot be read.
    pub record: Value,
}
