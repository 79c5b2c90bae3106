//! A process as the driver lists it on one GPU; one on two GPUs is written twice.

use serde::{Deserialize, Deserializer, de};

use super::size;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    pub pid: u32,
    #[serde(default)]
    pub gpu: usize,
    /// None: the driver cannot tell (`"unavailable"`).
    #[serde(default = "half_a_gibibyte", deserialize_with = "used")]
    pub used: Option<u64>,
    #[serde(default)]
    pub kind: Kind,
    #[serde(default)]
    pub gi: Option<u32>,
    #[serde(default)]
    pub ci: Option<u32>,
    /// Shares of the GPU in percent; a process with none of the four has no utilisation sample.
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
    /// True when the driver saw it work in the last sample period.
    pub fn is_busy(&self) -> bool {
        self.sm != 0 || self.mem != 0 || self.enc != 0 || self.dec != 0
    }
}

/// About what a bare CUDA context costs.
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
