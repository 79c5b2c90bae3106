//! A process as the driver lists it on one GPU. A process on two GPUs has two entries.

use serde::{Deserialize, Deserializer, de};

use super::size;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    pub pid: u32,
    #[serde(default)]
    pub gpu: usize,
    /// `None` if the driver cannot report it (`"unavailable"`).
    #[serde(default = "half_a_gibibyte", deserialize_with = "used")]
    pub used: Option<u64>,
    #[serde(default)]
    pub kind: Kind,
    #[serde(default)]
    pub gi: Option<u32>,
    #[serde(default)]
    pub ci: Option<u32>,
    /// Utilization of the GPU in percent. A process where all four are 0 has no utilization sample.
    #[serde(default)]
    pub sm: u32,
    #[serde(default)]
    pub mem: u32,
    #[serde(default)]
    pub enc: u32,
    #[serde(default)]
    pub dec: u32,
    #[serde(default = "python")]
    pub name: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    #[default]
    Compute,
    Graphics,
    /// In both lists.
    Both,
    Mps,
}

impl Process {
    /// Returns true if the process did work in the last sample period.
    pub fn is_busy(&self) -> bool {
        self.sm != 0 || self.mem != 0 || self.enc != 0 || self.dec != 0
    }
}

/// Returns the approximate memory of a bare CUDA context.
fn half_a_gibibyte() -> Option<u64> {
    Some(512 << 20)
}

fn python() -> String {
    "/usr/bin/python3".into()
}

fn used<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    match size::Form::deserialize(deserializer)? {
        size::Form::Text(text) if text == "unavailable" => Ok(None),
        form => form.bytes().map(Some).map_err(de::Error::custom),
    }
}
