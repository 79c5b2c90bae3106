//! A GPU. Keys that are not set have the values of an idle H200.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Deserializer, de};

use super::{Call, Errors, Latency, size};

/// NVML's value for "no GPU or compute instance".
pub const NO_INSTANCE: u32 = u32::MAX;

const MIB: u64 = 1 << 20;

/// Declares [`Gpu`] from its keys, each with its default, and from the table of numbers.
macro_rules! gpu {
    (
        $($(#[$attribute:meta])* $key:ident: $type:ty = $default:expr,)*;
        $($call:ident $number:ident = $value:literal: $symbol:ident,)*
    ) => {
        #[derive(Debug, Clone, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Gpu {
            $($(#[$attribute])* pub $key: $type,)*
            $(pub $number: u32,)*
        }

        impl Default for Gpu {
            fn default() -> Self {
                Self { $($key: $default,)* $($number: $value,)* }
            }
        }
    };
}

numbers! { gpu!
    name: String = "NVIDIA H200".into(),
    /// Optional ids: if not set, this and the ids below are derived from the GPU's index.
    uuid: Option<String> = None,
    serial: Option<String> = None,
    minor: Option<u32> = None,
    /// `00000000:3B:00.0`
    pci_bus: Option<String> = None,
    pci_device_id: u32 = 0x2335_10de,
    pci_subsystem_id: u32 = 0x18be_10de,
    board_part_number: String = "675-25520-0010-000".into(),
    vbios: String = "96.00.B7.00.01".into(),
    compute_capability: [i32; 2] = [9, 0],
    persistence: bool = true,

    #[serde(deserialize_with = "size::required")]
    total: u64 = 143_771 * MIB,
    #[serde(deserialize_with = "size::required")]
    reserved: u64 = 616 * MIB,
    /// Default: the sum of the processes and `context`.
    #[serde(deserialize_with = "size::optional")]
    used: Option<u64> = None,
    /// Default: the total without `used` and `reserved`.
    #[serde(deserialize_with = "size::optional")]
    free: Option<u64> = None,
    /// Memory used without belonging to a listed process.
    #[serde(deserialize_with = "size::required")]
    context: u64 = 0,
    #[serde(deserialize_with = "size::required")]
    bar1_total: u64 = 262_144 * MIB,
    #[serde(deserialize_with = "size::required")]
    bar1_used: u64 = MIB,

    sm: u32 = 0,
    memory_bandwidth: u32 = 0,
    encoder: u32 = 0,
    decoder: u32 = 0,

    /// Milliwatts, like the limits.
    power: u32 = 76_000,
    /// Default: the enforced limit.
    power_management_limit: Option<u32> = None,
    power_min_limit: u32 = 200_000,
    power_max_limit: u32 = 700_000,
    /// Millijoules at the time the library was loaded.
    energy: u64 = 1_000_000_000,

    temperature: u32 = 31,
    memory_temperature: u32 = 33,
    shutdown_temperature: u32 = 92,
    slowdown_temperature: u32 = 89,
    memory_max_temperature: u32 = 95,
    gpu_max_temperature: u32 = 87,
    /// Speed of each fan in percent. An H200 has no fans.
    fans: Vec<u32> = Vec::new(),

    graphics_clock: u32 = 1_980,
    sm_clock: u32 = 1_980,
    memory_clock: u32 = 3_201,
    video_clock: u32 = 1_545,
    max_graphics_clock: u32 = 1_980,
    max_sm_clock: u32 = 1_980,
    max_memory_clock: u32 = 3_201,
    max_video_clock: u32 = 1_545,
    /// NVML's bits, as a number or by name: `["sw_power_cap"]`.
    #[serde(deserialize_with = "throttle")]
    throttle: u64 = 0x1,
    #[serde(deserialize_with = "throttle")]
    supported_throttle: u64 = 0x1ff,

    /// KiB per second, NVML's unit.
    pcie_tx: u32 = 0,
    pcie_rx: u32 = 0,

    ecc: bool = true,
    ecc_pending: bool = true,
    ecc_corrected: u64 = 0,
    ecc_uncorrected: u64 = 0,
    ecc_corrected_lifetime: u64 = 0,
    ecc_uncorrected_lifetime: u64 = 0,
    remapped_correctable: u32 = 0,
    remapped_uncorrectable: u32 = 0,
    remap_pending: bool = false,
    remap_failed: bool = false,
    /// NVML's constant: 0 none, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset.
    recovery_action: u32 = 0,

    nvlinks: u32 = 18,
    /// Links that are down.
    nvlinks_down: BTreeSet<u32> = BTreeSet::new(),
    /// KiB per second over all links.
    nvlink_tx: u64 = 0,
    nvlink_rx: u64 = 0,
    /// Performance metrics by NVML's number: `{ 2 = 62.5 }` is an SM use of 62.5 %. Supported if there are any.
    gpm: BTreeMap<String, f64> = BTreeMap::new(),

    /// Default: on if there are instances.
    mig_mode: Option<bool> = None,
    /// Mode after the next reset. Default: the current one.
    mig_pending: Option<bool> = None,
    mig_supported: bool = true,
    max_mig: u32 = 7,
    mig: Vec<Mig> = Vec::new(),

    /// The count of every process list, if it is not the number of its entries. The entries beyond are zeros.
    listed: Option<u32> = None,
    /// Utilization samples of the driver, instead of one for each busy process.
    samples: Option<Vec<Sample>> = None,

    event_types: u64 = 0xff9f,
    /// Field values by id. They override values from other keys.
    fields: BTreeMap<String, Number> = BTreeMap::new(),

    /// Milliseconds that this GPU needs to wake after the session began. All calls about it wait for that, asleep.
    wake_ms: u64 = 0,

    wobble: Option<bool> = None,
    errors: Errors = Errors::new(),
    hang: BTreeSet<Call> = BTreeSet::new(),
    latency: Latency = Latency::default(),
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(untagged)]
pub enum Number {
    Whole(i64),
    Real(f64),
}

/// A utilization sample, which need not belong to a listed process.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    pub pid: u32,
    /// Microseconds since 1970. Default: now.
    #[serde(default)]
    pub time: Option<u64>,
    #[serde(default)]
    pub sm: u32,
    #[serde(default)]
    pub mem: u32,
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
    /// Errors of calls about this instance only.
    #[serde(default)]
    pub errors: Errors,
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
