//! The simulated card and its driver's behaviour, parsed from TOML.

use std::ffi::c_int;
use std::thread;
use std::time::Duration;

use serde::Deserialize;

const MIB: u64 = 1 << 20;

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scenario {
    pub version: c_int,
    pub uuid: String,
    pub total_mib: u64,
    /// Memory used by processes that are not simulated.
    pub used_mib: u64,
    pub context_mib: u64,
    /// Maximum size of a single allocation, however much is free, because the free pages are scattered.
    pub largest_mib: Option<u64>,
    /// As `CUcomputemode`.
    pub compute_mode: c_int,
    /// Numbers of the device attributes that are 0.
    pub lacks: Vec<c_int>,
    pub call: Vec<Call>,
}

/// Effect on every call of this name.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Call {
    pub name: String,
    pub takes_ms: u64,
    /// The call never returns.
    pub hangs: bool,
    /// A `CUresult`.
    pub fails: Option<c_int>,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            version: 12_080,
            uuid: "GPU-fa4e0000-0000-4000-8000-000000000000".into(),
            total_mib: 16 * 1_024,
            used_mib: 0,
            context_mib: 512,
            largest_mib: None,
            compute_mode: 0,
            lacks: Vec::new(),
            call: Vec::new(),
        }
    }
}

impl Scenario {
    pub fn read() -> Self {
        let Some(file) = std::env::var_os("FAKE_CUDA_SCENARIO") else { return Self::default() };
        let text = std::fs::read_to_string(file).expect("the scenario");
        toml::from_str(&text).expect("a scenario")
    }

    pub fn meet(&self, name: &str) -> Result<(), c_int> {
        for call in self.call.iter().filter(|call| call.name == name) {
            thread::sleep(Duration::from_millis(call.takes_ms));
            if call.hangs {
                loop {
                    thread::park();
                }
            }
            if let Some(code) = call.fails {
                return Err(code);
            }
        }
        Ok(())
    }

    pub fn total(&self) -> u64 {
        self.total_mib * MIB
    }

    pub fn uuid_bytes(&self) -> [u8; 16] {
        let bare = self.uuid.trim_start_matches("GPU-").trim_start_matches("MIG-");
        let digits: String = bare.chars().filter(|c| *c != '-').collect();
        let mut bytes = [0; 16];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[at * 2..at * 2 + 2], 16).expect("a UUID");
        }
        bytes
    }
}
