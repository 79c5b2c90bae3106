//! Events in the order in which they happen. Each event set receives an event once. A test triggers an event by
//! appending it.

use serde::{Deserialize, Deserializer, de};

use super::gpu::NO_INSTANCE;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    #[serde(default)]
    pub gpu: usize,
    #[serde(deserialize_with = "kind")]
    pub kind: u64,
    /// For an Xid, its number.
    #[serde(default)]
    pub data: u64,
    #[serde(default = "no_instance")]
    pub gi: u32,
    #[serde(default = "no_instance")]
    pub ci: u32,
}

fn no_instance() -> u32 {
    NO_INSTANCE
}

const KINDS: &[(&str, u64)] = &[
    ("ecc_single", 0x1),
    ("ecc_double", 0x2),
    ("pstate", 0x4),
    ("xid", 0x8),
    ("clock", 0x10),
    ("power_source", 0x80),
    ("mig_config", 0x100),
];

/// Parses NVML's bit for the kind of event, given by name or as a number.
fn kind<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form {
        Bit(u64),
        Name(String),
    }
    match Form::deserialize(deserializer)? {
        Form::Bit(bit) => Ok(bit),
        Form::Name(name) => KINDS
            .iter()
            .find(|(n, _)| *n == name)
            .map(|(_, bit)| *bit)
            .ok_or_else(|| de::Error::custom(format!("no event is called {name:?}"))),
    }
}
