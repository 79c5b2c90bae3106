//! One GPU as NVML describes it.
//!
//! Every figure is a [`Reading`]: what a consumer card, a MIG parent or an old driver cannot tell says so. The
//! figures of one GPU come from several calls with different periods (`collect/nvml/schedule.rs`), so what is not
//! read each second carries the moment it was read.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::process::ProcessKey;
use super::reading::Reading;
use super::units::{
    Bytes, BytesPerSecond, Celsius, GpuUuid, MegaHertz, MilliJoules, MilliWatts, Mono, Percent, Pid,
};

/// One physical GPU: what it is, how it is, who is on it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Gpu {
    /// NVML's index, the order `nvidia-smi` lists them in; not CUDA's ordinal.
    pub index: u32,
    pub uuid: GpuUuid,
    /// The product name: `NVIDIA H200`.
    pub name: String,
    pub health: Health,
    /// When the readings of each tick were taken.
    pub at: Mono,
    /// Shared between frames: it is a dozen strings that never change.
    pub board: Arc<Board>,
    pub memory: Memory,
    /// Share of the last sample period in which a kernel ran.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub sm: Reading<Percent>,
    /// Share of the last sample period in which device memory was read or written.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub memory_bandwidth: Reading<Percent>,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub encoder: Reading<Percent>,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub decoder: Reading<Percent>,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub power: Reading<MilliWatts>,
    /// The limit in force now (NVML's enforced limit).
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub power_cap: Reading<MilliWatts>,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub temperature: Reading<Celsius>,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub memory_temperature: Reading<Celsius>,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub fan: Reading<Percent>,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub sm_clock: Reading<MegaHertz>,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub memory_clock: Reading<MegaHertz>,
    /// 0 is the fastest, 15 the slowest.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub pstate: Reading<u8>,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub throttle: Reading<Vec<Throttle>>,
    pub ecc: Ecc,
    pub pcie: Pcie,
    /// True when MIG mode is on; then memory and processes belong to the instances.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub mig_enabled: Reading<bool>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mig: Vec<MigInstance>,
    /// Every process that the driver lists on this GPU, in the driver's PID namespace.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub processes: Reading<Vec<GpuProcess>>,
    /// What is used and held by no living process that can be seen, in parts, each with what is known of why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unattributed: Vec<Unattributed>,
    /// When `processes` was read: not every tick.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes_at: Option<Mono>,
    /// When the processes' utilisation was read: rarer still.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub utilization_at: Option<Mono>,
    /// Costly figures, read only while a screen shows them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic: Option<Traffic>,
}

/// Whether the GPU answers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Health {
    pub state: HealthState,
    /// When it stopped answering, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Mono>,
    /// The driver's words, a clause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HealthState {
    Answering,
    /// A call has not returned for longer than two ticks.
    Silent,
    /// The driver says the GPU is gone, or the driver itself is.
    Lost,
    #[default]
    #[serde(other)]
    Unknown,
}

/// What does not change while the driver is loaded.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Board {
    /// `0000:3b:00`, as the kernel log names the GPU in an Xid line.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub pci_bus: Reading<String>,
    /// N of /dev/nvidiaN.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub minor: Reading<u32>,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub serial: Reading<String>,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub vbios: Reading<String>,
    /// `9.0`
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub compute_capability: Reading<String>,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub architecture: Reading<String>,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub persistence: Reading<bool>,
    /// `default`, `exclusive process` or `prohibited`.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub compute_mode: Reading<String>,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub max_sm_clock: Reading<MegaHertz>,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub max_memory_clock: Reading<MegaHertz>,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub power_cap_default: Reading<MilliWatts>,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub slowdown_temperature: Reading<Celsius>,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub shutdown_temperature: Reading<Celsius>,
}

impl Board {
    /// `00000000:3B:00.0`, as NVML names it, is `0000:3b:00`: the kernel log's Xid lines have four digits of domain and no
    /// function.
    pub fn bus_of(nvml: &str) -> String {
        let lower = nvml.to_lowercase();
        let lower = lower.strip_suffix(".0").unwrap_or(&lower);
        match lower.split_once(':') {
            Some((domain, rest)) if domain.len() == 8 && domain.starts_with("0000") => {
                format!("{}:{rest}", &domain[4..])
            }
            _ => lower.to_owned(),
        }
    }
}

/// Device memory as `nvmlDeviceGetMemoryInfo_v2` splits it: total = used + reserved + free.
///
/// Before driver 510 only version 1 exists, whose `used` holds the reserved part too; then `reserved` is missing.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub total: Reading<Bytes>,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub used: Reading<Bytes>,
    /// Kept by the driver for itself.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub reserved: Reading<Bytes>,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub free: Reading<Bytes>,
}

impl Memory {
    /// A part that is larger than the whole is dropped, so that no bar is drawn from it.
    #[must_use]
    pub fn checked(self) -> Self {
        let Some(total) = self.total.get() else {
            return self;
        };
        Self {
            used: self.used.at_most(total),
            reserved: self.reserved.at_most(total),
            free: self.free.at_most(total),
            total: self.total,
        }
    }

    /// Everything that is not free, the driver's own part included: what the screen calls USED.
    pub fn taken(&self) -> Option<Bytes> {
        match (self.total.get(), self.free.get()) {
            (Some(total), Some(free)) => Some(Bytes(total.0.saturating_sub(free.0))),
            _ => self.used.get(),
        }
    }
}

/// Why the clocks are below what was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Throttle {
    Idle,
    ApplicationsClocks,
    SwPowerCap,
    HwSlowdown,
    SyncBoost,
    SwThermal,
    HwThermal,
    HwPowerBrake,
    DisplayClocks,
    #[serde(other)]
    Unknown,
}

/// nvml.h: nvmlClocksEventReason…
const THROTTLE_BITS: [Throttle; 9] = [
    Throttle::Idle,
    Throttle::ApplicationsClocks,
    Throttle::SwPowerCap,
    Throttle::HwSlowdown,
    Throttle::SyncBoost,
    Throttle::SwThermal,
    Throttle::HwThermal,
    Throttle::HwPowerBrake,
    Throttle::DisplayClocks,
];

impl Throttle {
    /// The reasons of a mask as NVML gives it; bits that this version does not know are none.
    pub fn of_mask(mask: u64) -> Vec<Self> {
        let bits = THROTTLE_BITS.into_iter().enumerate();
        bits.filter(|(bit, _)| mask >> bit & 1 == 1)
            .map(|(_, reason)| reason)
            .collect()
    }

    /// A noun phrase for a narrow column: `power cap`.
    pub fn words(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::ApplicationsClocks => "clocks set by user",
            Self::SwPowerCap => "power cap",
            Self::HwSlowdown => "hardware slowdown",
            Self::SyncBoost => "sync boost",
            Self::SwThermal => "too warm",
            Self::HwThermal => "too hot",
            Self::HwPowerBrake => "power brake",
            Self::DisplayClocks => "display clocks",
            Self::Unknown => "throttled, reason unknown",
        }
    }

    /// True when a person should know: the card is slowed by heat or by its power supply.
    pub fn is_trouble(self) -> bool {
        matches!(
            self,
            Self::HwSlowdown
                | Self::SwThermal
                | Self::HwThermal
                | Self::HwPowerBrake
                | Self::Unknown
        )
    }
}

/// Error counters; all of them 0 and nothing pending is a clean card.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Ecc {
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub enabled: Reading<bool>,
    /// Since the driver was loaded.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub corrected: Reading<u64>,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub uncorrected: Reading<u64>,
    /// Rows replaced after correctable errors, over the card's life.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub remapped_correctable: Reading<u32>,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub remapped_uncorrectable: Reading<u32>,
    /// A row waits for a GPU reset to be replaced.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub remap_pending: Reading<bool>,
    /// A row could not be replaced: the card should be exchanged.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub remap_failed: Reading<bool>,
}

/// The PCIe link as it is and as it could be.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Pcie {
    /// The generation now: an idle card lowers it to save power.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub generation: Reading<u32>,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub width: Reading<u32>,
    /// What card, slot and board allow together.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub max_generation: Reading<u32>,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub max_width: Reading<u32>,
}

/// Figures whose calls cost 2 to 40 ms: read for one GPU while its screen is open.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Traffic {
    pub at: Mono,
    /// From the card to the host, over NVML's 20 ms window.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub pcie_tx: Reading<BytesPerSecond>,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub pcie_rx: Reading<BytesPerSecond>,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub pcie_replays: Reading<u32>,
    /// All links together, from the difference of two counter reads.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub nvlink_tx: Reading<BytesPerSecond>,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub nvlink_rx: Reading<BytesPerSecond>,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub energy: Reading<MilliJoules>,
}

/// One MIG device: a GPU instance with its compute instance.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MigInstance {
    /// NVML's MIG index on its parent.
    pub index: u32,
    pub uuid: GpuUuid,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub gpu_instance: Reading<u32>,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub compute_instance: Reading<u32>,
    /// The profile, as nvidia-smi names it: `3g.71gb`.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub profile: Reading<String>,
    pub memory: Memory,
}

/// A process as the driver lists it on one GPU.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuProcess {
    /// In the driver's PID namespace, which is the host's.
    pub pid: Pid,
    /// The process as the kernel names it, when it was found there at the same moment: the only link between this
    /// entry and [`Process`](super::process::Process). Absent inside a container, where PIDs do not match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessKey>,
    pub kind: ContextKind,
    /// Device memory as the driver counts it for this process; managed memory is under-reported by NVML.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub vram: Reading<Bytes>,
    /// Share of the GPU's SM time since the last sample.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub sm: Reading<Percent>,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub memory_bandwidth: Reading<Percent>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_instance: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute_instance: Option<u32>,
}

impl GpuProcess {
    /// A name for its history: the kernel's when it is known, else the driver's PID alone.
    pub fn key(&self) -> ProcessKey {
        self.process.unwrap_or(ProcessKey {
            pid: self.pid,
            ..ProcessKey::default()
        })
    }
}

/// A part of a GPU's memory that nobody here can be seen to hold.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Unattributed {
    pub bytes: Bytes,
    pub cause: UnattributedCause,
    /// Of whom the sentence speaks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pids: Vec<Pid>,
    /// With its figures and a period.
    pub sentence: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnattributedCause {
    /// This is a container, and whoever holds it is in another or on the host.
    OutsideContainer,
    /// The driver lists processes that this user may not see.
    Hidden,
    /// The driver lists a process that is not there.
    Gone,
    /// A process that has ended, perhaps not with all its threads.
    Zombie,
    /// A process that the driver lists no memory of has the GPU open.
    HeldOpen,
    /// The MPS server runs, whose clients are not all listed.
    MpsServer,
    /// Nobody has looked yet: the next frame tells.
    NotRead,
    /// Nothing that was seen tells.
    #[default]
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContextKind {
    #[default]
    Compute,
    Graphics,
    /// Listed as both.
    Mixed,
    #[serde(other)]
    Unknown,
}
