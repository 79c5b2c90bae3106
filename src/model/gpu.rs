//! One GPU as NVML describes it.
//!
//! Every figure is a [`Reading`]: a figure that a consumer card, a MIG parent or an old driver cannot provide carries
//! the reason. The figures of one GPU come from several calls with different periods (`collect/nvml/schedule.rs`).
//! A figure that is not read every second carries the time of its last read.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::process::ProcessKey;
use super::reading::Reading;
use super::units::{
    Bytes, BytesPerSecond, Celsius, GpuUuid, MegaHertz, MilliJoules, MilliWatts, Mono, Percent, Pid,
};

/// One physical GPU: its identity, its state and its processes.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Gpu {
    /// NVML's index, which is `nvidia-smi`'s order; not CUDA's ordinal.
    pub index: u32,
    pub uuid: GpuUuid,
    /// The product name: `NVIDIA H200`.
    pub name: String,
    pub health: Health,
    /// Time of the readings that are taken on every tick.
    pub at: Mono,
    /// Shared between frames, because its dozen strings never change.
    pub board: Arc<Board>,
    pub memory: Memory,
    /// Share of the last sample period during which a kernel was running.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub sm: Reading<Percent>,
    /// Share of the last sample period during which device memory was read or written.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub memory_bandwidth: Reading<Percent>,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub encoder: Reading<Percent>,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub decoder: Reading<Percent>,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub power: Reading<MilliWatts>,
    /// The limit currently in force (NVML's enforced limit).
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
    /// True if MIG mode is on; memory and processes then belong to the instances.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub mig_enabled: Reading<bool>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mig: Vec<MigInstance>,
    /// Every process that the driver lists on this GPU, in the driver's PID namespace.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub processes: Reading<Vec<GpuProcess>>,
    /// Used memory that no visible process holds, in parts, each with its likely cause.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unattributed: Vec<Unattributed>,
    /// Time of the last read of `processes`, which does not happen on every tick.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes_at: Option<Mono>,
    /// Time of the last read of the processes' utilisation, which happens even less often.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub utilization_at: Option<Mono>,
    /// Expensive figures, read only while a screen shows them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic: Option<Traffic>,
}

/// Health of the GPU.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Health {
    pub state: HealthState,
    /// Time at which the GPU stopped answering, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Mono>,
    /// The driver's description, as a clause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HealthState {
    Answering,
    /// A call has not returned for longer than two ticks.
    Silent,
    /// The driver reports that the GPU is lost, or the driver itself is gone.
    Lost,
    #[default]
    #[serde(other)]
    Unknown,
}

/// Properties that do not change while the driver is loaded.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Board {
    /// PCI address as in the kernel log's Xid lines: `0000:3b:00`.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub pci_bus: Reading<String>,
    /// The N of /dev/nvidiaN.
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
    /// Converts NVML's `00000000:3B:00.0` to `0000:3b:00`, the form of the kernel log's Xid lines: four domain digits
    /// and no function.
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

/// Device memory as split by `nvmlDeviceGetMemoryInfo_v2`: total = used + reserved + free.
///
/// Drivers before 510 offer only version 1, whose `used` includes the reserved part; `reserved` is then missing.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub total: Reading<Bytes>,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub used: Reading<Bytes>,
    /// Memory that the driver reserves for itself.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub reserved: Reading<Bytes>,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub free: Reading<Bytes>,
}

impl Memory {
    /// Drops any part that is larger than the total, so that no bar is drawn from it.
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

    /// Returns all memory that is not free, including the driver's own part. The screen calls it USED.
    pub fn taken(&self) -> Option<Bytes> {
        match (self.total.get(), self.free.get()) {
            (Some(total), Some(free)) => Some(Bytes(total.0.saturating_sub(free.0))),
            _ => self.used.get(),
        }
    }
}

/// Reasons for clocks below the requested ones.
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

/// Bit order of nvmlClocksEventReason… in nvml.h.
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
    /// Returns the reasons in a mask from NVML. Unknown bits are ignored.
    pub fn of_mask(mask: u64) -> Vec<Self> {
        let bits = THROTTLE_BITS.into_iter().enumerate();
        bits.filter(|(bit, _)| mask >> bit & 1 == 1)
            .map(|(_, reason)| reason)
            .collect()
    }

    /// Returns a noun phrase for a narrow column: `power cap`.
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

    /// Returns true if the user should act: heat or the power supply slows the card down.
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

/// Error counters. A healthy card has only zeros and nothing pending.
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
    /// A row is waiting for a GPU reset to be replaced.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub remap_pending: Reading<bool>,
    /// A row could not be replaced: the card should be exchanged.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub remap_failed: Reading<bool>,
}

/// Current and maximum PCIe link.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Pcie {
    /// The current generation; an idle card lowers it to save power.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub generation: Reading<u32>,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub width: Reading<u32>,
    /// Maximum that card, slot and mainboard support together.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub max_generation: Reading<u32>,
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub max_width: Reading<u32>,
}

/// Figures whose calls take 2 to 40 ms, read for one GPU while its screen is open.
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
    /// Sum over all links, from the difference between two counter reads.
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
    /// The profile name that nvidia-smi shows: `3g.71gb`.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub profile: Reading<String>,
    pub memory: Memory,
}

/// An entry in the driver's process list of one GPU.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuProcess {
    /// PID in the driver's namespace, which is the host's.
    pub pid: Pid,
    /// The matching kernel process, if it was found at the same time. This is the only link between this entry and
    /// [`Process`](super::process::Process). Absent inside a container, where PIDs do not match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessKey>,
    pub kind: ContextKind,
    /// Device memory of this process as counted by the driver; NVML under-reports managed memory.
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
    /// Returns the key of this process's history: the kernel's if known, otherwise the driver's PID alone.
    pub fn key(&self) -> ProcessKey {
        self.process.unwrap_or(ProcessKey {
            pid: self.pid,
            ..ProcessKey::default()
        })
    }
}

/// A part of a GPU's used memory that cannot be attributed to a visible process.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Unattributed {
    pub bytes: Bytes,
    pub cause: UnattributedCause,
    /// The processes that the sentence mentions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pids: Vec<Pid>,
    /// The explanation with its figures, ending with a period.
    pub sentence: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnattributedCause {
    /// gputop runs in a container, and the holder runs in another container or on the host.
    OutsideContainer,
    /// The driver lists processes that this user is not permitted to see.
    Hidden,
    /// The driver lists a process that does not exist.
    Gone,
    /// A process has exited, but some of its threads may still run.
    Zombie,
    /// A process has the GPU open, but the driver lists no memory for it.
    HeldOpen,
    /// The MPS server is running, and not all of its clients are listed.
    MpsServer,
    /// Not examined yet; the next frame has the result.
    NotRead,
    /// No observation explains it.
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
