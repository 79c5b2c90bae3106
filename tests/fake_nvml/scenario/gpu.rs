//! A GPU. Keys that are not set have the values of an idle H200.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Deserializer, de};

use super::{Call, Errors, Latency, size};

/// NVML's value for "no GPU or compute instance".
pub const NO_INSTANCE: u32 = u32::MAX;

const MIB: u64 = 1 << 20;

#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gpu {
    pub name: String,
    /// Optional ids: if not set, this and the ids below are derived from the GPU's index.
    pub uuid: Option<String>,
    pub serial: Option<String>,
    pub minor: Option<u32>,
    /// `00000000:3B:00.0`
    pub pci_bus: Option<String>,
    pub pci_device_id: u32,
    pub pci_subsystem_id: u32,
    pub brand: u32,
    pub board_part_number: String,
    pub vbios: String,
    /// NVML's constant: 9 is Hopper.
    pub architecture: u32,
    pub compute_capability: [i32; 2],
    pub persistence: bool,
    /// NVML's constant: 0 default, 2 prohibited, 3 exclusive process.
    pub compute_mode: u32,

    #[serde(deserialize_with = "size::required")]
    pub total: u64,
    #[serde(deserialize_with = "size::required")]
    pub reserved: u64,
    /// Default: the sum of the processes and `context`.
    #[serde(deserialize_with = "size::optional")]
    pub used: Option<u64>,
    /// Default: the total without `used` and `reserved`.
    #[serde(deserialize_with = "size::optional")]
    pub free: Option<u64>,
    /// Memory used without belonging to a listed process.
    #[serde(deserialize_with = "size::required")]
    pub context: u64,
    #[serde(deserialize_with = "size::required")]
    pub bar1_total: u64,
    #[serde(deserialize_with = "size::required")]
    pub bar1_used: u64,

    pub sm: u32,
    pub memory_bandwidth: u32,
    pub encoder: u32,
    pub decoder: u32,

    /// Milliwatts, like the limits.
    pub power: u32,
    pub power_limit: u32,
    /// Default: the enforced limit.
    pub power_management_limit: Option<u32>,
    pub power_default_limit: u32,
    pub power_min_limit: u32,
    pub power_max_limit: u32,
    /// Millijoules at the time the library was loaded.
    pub energy: u64,

    pub temperature: u32,
    pub memory_temperature: u32,
    pub shutdown_temperature: u32,
    pub slowdown_temperature: u32,
    pub memory_max_temperature: u32,
    pub gpu_max_temperature: u32,
    /// Speed of each fan in percent. An H200 has no fans.
    pub fans: Vec<u32>,

    pub graphics_clock: u32,
    pub sm_clock: u32,
    pub memory_clock: u32,
    pub video_clock: u32,
    pub max_graphics_clock: u32,
    pub max_sm_clock: u32,
    pub max_memory_clock: u32,
    pub max_video_clock: u32,
    pub pstate: u32,
    /// NVML's bits, as a number or by name: `["sw_power_cap"]`.
    #[serde(deserialize_with = "throttle")]
    pub throttle: u64,
    #[serde(deserialize_with = "throttle")]
    pub supported_throttle: u64,

    pub pcie_generation: u32,
    pub pcie_width: u32,
    pub pcie_max_generation: u32,
    pub pcie_max_width: u32,
    /// KiB per second, NVML's unit.
    pub pcie_tx: u32,
    pub pcie_rx: u32,
    pub pcie_replays: u32,

    pub ecc: bool,
    pub ecc_pending: bool,
    pub ecc_corrected: u64,
    pub ecc_uncorrected: u64,
    pub ecc_corrected_lifetime: u64,
    pub ecc_uncorrected_lifetime: u64,
    pub remapped_correctable: u32,
    pub remapped_uncorrectable: u32,
    pub remap_pending: bool,
    pub remap_failed: bool,

    pub nvlinks: u32,
    /// Links that are down.
    pub nvlinks_down: BTreeSet<u32>,
    /// KiB per second over all links.
    pub nvlink_tx: u64,
    pub nvlink_rx: u64,

    /// Default: on if there are instances.
    pub mig_mode: Option<bool>,
    pub mig_supported: bool,
    pub max_mig: u32,
    pub mig: Vec<Mig>,

    pub event_types: u64,
    /// Field values by id. They override values from other keys.
    pub fields: BTreeMap<String, Number>,

    pub wobble: Option<bool>,
    pub errors: Errors,
    pub hang: BTreeSet<Call>,
    pub latency: Latency,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(untagged)]
pub enum Number {
    Whole(i64),
    Real(f64),
}

/// One MIG device.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mig {
    pub profile: String,
    pub gi: u32,
    #[serde(default)]
    pub ci: u32,
    /// Default: the GiB in the profile's name.
    #[serde(default, deserialize_with = "size::optional")]
    pub total: Option<u64>,
    /// Default: the memory of the processes with these instance ids.
    #[serde(default, deserialize_with = "size::optional")]
    pub used: Option<u64>,
    #[serde(default)]
    pub uuid: Option<String>,
}

impl Default for Gpu {
    fn default() -> Self {
        Self {
            name: "NVIDIA H200".into(),
            uuid: None,
            serial: None,
            minor: None,
            pci_bus: None,
            pci_device_id: 0x2335_10de,
            pci_subsystem_id: 0x18be_10de,
            brand: 14,
            board_part_number: "675-25520-0010-000".into(),
            vbios: "96.00.B7.00.01".into(),
            architecture: 9,
            compute_capability: [9, 0],
            persistence: true,
            compute_mode: 0,
            total: 143_771 * MIB,
            reserved: 616 * MIB,
            used: None,
            free: None,
            context: 0,
            bar1_total: 262_144 * MIB,
            bar1_used: MIB,
            sm: 0,
            memory_bandwidth: 0,
            encoder: 0,
            decoder: 0,
            power: 76_000,
            power_limit: 700_000,
            power_management_limit: None,
            power_default_limit: 700_000,
            power_min_limit: 200_000,
            power_max_limit: 700_000,
            energy: 1_000_000_000,
            temperature: 31,
            memory_temperature: 33,
            shutdown_temperature: 92,
            slowdown_temperature: 89,
            memory_max_temperature: 95,
            gpu_max_temperature: 87,
            fans: Vec::new(),
            graphics_clock: 1_980,
            sm_clock: 1_980,
            memory_clock: 3_201,
            video_clock: 1_545,
            max_graphics_clock: 1_980,
            max_sm_clock: 1_980,
            max_memory_clock: 3_201,
            max_video_clock: 1_545,
            pstate: 0,
            throttle: 0x1,
            supported_throttle: 0x1ff,
            pcie_generation: 5,
            pcie_width: 16,
            pcie_max_generation: 5,
            pcie_max_width: 16,
            pcie_tx: 0,
            pcie_rx: 0,
            pcie_replays: 0,
            ecc: true,
            ecc_pending: true,
            ecc_corrected: 0,
            ecc_uncorrected: 0,
            ecc_corrected_lifetime: 0,
            ecc_uncorrected_lifetime: 0,
            remapped_correctable: 0,
            remapped_uncorrectable: 0,
            remap_pending: false,
            remap_failed: false,
            nvlinks: 18,
            nvlinks_down: BTreeSet::new(),
            nvlink_tx: 0,
            nvlink_rx: 0,
            mig_mode: None,
            mig_supported: true,
            max_mig: 7,
            mig: Vec::new(),
            event_types: 0xff9f,
            fields: BTreeMap::new(),
            wobble: None,
            errors: Errors::new(),
            hang: BTreeSet::new(),
            latency: Latency::default(),
        }
    }
}

/// PCI buses of the GPUs of an HGX H200, in NVML's order.
const BUSES: [u32; 8] = [0x18, 0x2a, 0x3a, 0x5d, 0x9a, 0xab, 0xba, 0xdb];

impl Gpu {
    pub fn uuid(&self, index: usize) -> String {
        let made = || format!("GPU-fa4e{index:04x}-0000-4000-8000-{index:012x}");
        self.uuid.clone().unwrap_or_else(made)
    }

    pub fn pci_bus(&self, index: usize) -> String {
        let bus = BUSES.get(index).copied().unwrap_or(index as u32 & 0xff);
        let made = || format!("00000000:{bus:02X}:00.0");
        self.pci_bus.clone().unwrap_or_else(made)
    }

    pub fn mig_enabled(&self) -> bool {
        self.mig_mode.unwrap_or(!self.mig.is_empty())
    }
}

impl Mig {
    pub fn uuid(&self, gpu: usize) -> String {
        let made = || {
            let (gi, ci) = (self.gi, self.ci);
            format!("MIG-fa4e{gpu:04x}-{gi:04x}-5000-8000-{ci:012x}")
        };
        self.uuid.clone().unwrap_or_else(made)
    }

    /// Returns the number of GPU slices: 3 for `3g.71gb`.
    pub fn slices(&self) -> u32 {
        let slices = self.profile.split_once("g.").map(|(slices, _)| slices);
        slices.and_then(|s| s.parse().ok()).unwrap_or(1)
    }

    pub fn total(&self) -> u64 {
        let named = || {
            let (_, rest) = self.profile.split_once("g.")?;
            rest.trim_end_matches("gb").parse::<u64>().ok()
        };
        self.total.unwrap_or_else(|| named().unwrap_or(1) << 30)
    }
}

const THROTTLES: &[(&str, u64)] = &[
    ("idle", 0x1),
    ("applications_clocks", 0x2),
    ("sw_power_cap", 0x4),
    ("hw_slowdown", 0x8),
    ("sync_boost", 0x10),
    ("sw_thermal", 0x20),
    ("hw_thermal", 0x40),
    ("hw_power_brake", 0x80),
    ("display_clocks", 0x100),
];

fn throttle<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form {
        Bits(u64),
        Names(Vec<String>),
    }
    let bit = |name: &String| {
        let found = THROTTLES.iter().find(|(n, _)| n == name);
        found
            .map(|(_, bit)| *bit)
            .ok_or_else(|| de::Error::custom(format!("no throttle reason is called {name:?}")))
    };
    match Form::deserialize(deserializer)? {
        Form::Bits(bits) => Ok(bits),
        Form::Names(names) => names.iter().try_fold(0, |bits, name| Ok(bits | bit(name)?)),
    }
}
