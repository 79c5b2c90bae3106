//! The latency of each call, in microseconds of CPU time.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::Call;

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(from = "Form")]
pub struct Latency {
    preset: Preset,
    calls: BTreeMap<Call, u64>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Preset {
    #[default]
    None,
    /// Measured on 8 H200s with driver 580 (PRODUCT.md, figures).
    H200,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Form {
    Preset(Preset),
    Table {
        #[serde(default)]
        preset: Preset,
        #[serde(flatten)]
        calls: BTreeMap<Call, u64>,
    },
}

impl From<Form> for Latency {
    fn from(form: Form) -> Self {
        match form {
            Form::Preset(preset) => Self { preset, calls: BTreeMap::new() },
            Form::Table { preset, calls } => Self { preset, calls },
        }
    }
}

impl Latency {
    /// Returns `None` if no latency is set for the call.
    pub fn of(&self, call: Call) -> Option<u64> {
        let own = call.lookup(|name| self.calls.get(&name).copied());
        own.or(match self.preset {
            Preset::None => None,
            Preset::H200 => Some(h200(call)),
        })
    }
}

fn h200(call: Call) -> u64 {
    match call {
        Call::Memory | Call::MemoryV1 => 6,
        Call::ProcessList | Call::GraphicsProcessList | Call::MpsProcessList => 1_000,
        Call::ProcessUtilization => 1_700,
        Call::NvlinkCounters => 1_600,
        Call::Energy => 2_900,
        Call::PcieThroughput => 20_900,
        Call::PcieWidth | Call::PcieGeneration => 26,
        // Waiting for an event sleeps, and does not read anything.
        Call::EventWait => 0,
        _ => 1,
    }
}
