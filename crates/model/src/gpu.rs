//! A GPU as described by NVML, and the table of GPU figures.
//!
//! Every figure is a [`Reading`], which contains the reason if a consumer card, a MIG parent or an old driver cannot
//! provide the figure. The figures of one GPU come from several calls with different periods
//! (`collect/nvml/schedule.rs`).
//!
//! To add a figure, add its field and its row in [`GPU_FIGURES`] here, and the NVML call in `collect/nvml/device.rs`.
//! The GPU screen, the GPU table, CSV, the exporter, doctor's schedule and the nvidia-smi source then include it automatically.

mod figure;
mod process;
mod recovery_action;
mod throttle;

use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};
use serde_with::{apply, skip_serializing_none};

use self::figure::figure;
pub use self::figure::{Field, GpuFigure, Period, SLOW_INTERVAL, Section, Value};
pub use self::process::{ContextKind, GpuProcess, Unattributed, UnattributedCause};
pub use self::recovery_action::RecoveryAction;
pub use self::throttle::Throttle;
use super::reading::{Missing, Reading, Reason};
use super::units::{
    Bytes, BytesPerSecond, Celsius, GpuUuid, MegaHertz, MilliJoules, MilliWatts, Mono, Percent,
};

#[skip_serializing_none]
#[apply(Reading => #[serde(skip_serializing_if = "Reading::is_not_read")])]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Gpu {
    /// NVML's GPU index, in `nvidia-smi`'s order. Not CUDA's ordinal.
    pub index: u32,
    pub uuid: GpuUuid,
    /// Product name: `NVIDIA H200`.
    pub name: String,
    pub health: Health,
    /// Time of the last read of the values that are read at every sampling interval.
    pub at: Mono,
    /// Constant board data, shared between frames because its dozen or so strings never change.
    pub board: Arc<Board>,
    pub memory: Memory,
    /// Share of the last sample period during which a kernel was running.
    pub sm: Reading<Percent>,
    /// Share of the last sample period during which device memory was read or written.
    pub memory_bandwidth: Reading<Percent>,
    pub encoder: Reading<Percent>,
    pub decoder: Reading<Percent>,
    #[serde(rename = "power_mw", alias = "power")]
    pub power: Reading<MilliWatts>,
    /// Power limit currently in force (NVML's enforced limit).
    #[serde(rename = "power_cap_mw", alias = "power_cap")]
    pub power_cap: Reading<MilliWatts>,
    #[serde(rename = "temperature_c", alias = "temperature")]
    pub temperature: Reading<Celsius>,
    #[serde(rename = "memory_temperature_c", alias = "memory_temperature")]
    pub memory_temperature: Reading<Celsius>,
    /// Speed of the fastest fan. May exceed 100 %.
    pub fan: Reading<Percent>,
    /// Speed of each fan.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fans: Vec<Reading<Percent>>,
    #[serde(rename = "sm_clock_mhz", alias = "sm_clock")]
    pub sm_clock: Reading<MegaHertz>,
    #[serde(rename = "memory_clock_mhz", alias = "memory_clock")]
    pub memory_clock: Reading<MegaHertz>,
    /// Performance state: 0 is the fastest, 15 the slowest.
    pub pstate: Reading<u8>,
    pub throttle: Reading<Vec<Throttle>>,
    pub ecc: Ecc,
    /// What the driver asks for, so that the GPU recovers from an error.
    pub recovery_action: Reading<RecoveryAction>,
    pub pcie: Pcie,
    /// Number of NVLinks that are up.
    pub nvlinks_up: Reading<u32>,
    /// True if MIG mode is on. Memory and processes then belong to the MIG instances.
    pub mig_enabled: Reading<bool>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mig: Vec<MigInstance>,
    /// Why an instance could not be read, if one could not.
    pub mig_unread: Option<Missing>,
    /// Every process listed by the driver on this GPU, in the driver's PID namespace.
    pub processes: Reading<Vec<GpuProcess>>,
    /// Used memory not held by any visible process, in parts with their likely causes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unattributed: Vec<Unattributed>,
    /// Time of the last read of `processes`, which is not read at every sampling interval.
    pub processes_at: Option<Mono>,
    /// Time of the last read of the processes' utilization, which is read even less often than `processes`.
    pub utilization_at: Option<Mono>,
    /// PCIe and NVLink traffic, read only while a screen shows it, because the calls are expensive.
    pub traffic: Option<Traffic>,
}

impl Gpu {
    /// Returns false if the driver has said nothing about this GPU yet: it may still be waking up.
    pub fn has_answered(&self) -> bool {
        self.health.state != HealthState::Silent || self.at != Mono::default()
    }

    /// Returns true if the GPU was read completely, apart from what needs an open screen, or does not answer. The first
    /// frame lacks the figures that rarely change.
    pub fn is_complete(&self) -> bool {
        let is_read = !self.ecc.enabled.is_not_read();
        self.has_answered() && (is_read || self.health.state != HealthState::Answering)
    }

    /// Returns true if the utilization of a process was not read yet.
    pub fn awaits_utilization(&self) -> bool {
        let is_awaited = |p: &GpuProcess| p.sm.why().is_some_and(|w| w.reason == Reason::NotRead);
        self.processes.value().is_some_and(|list| list.iter().any(is_awaited))
    }

    /// Returns the driver's error, if a GPU that answers gives no figure because of it.
    pub fn why_no_figures(&self) -> Option<&Missing> {
        let mut figures = GPU_FIGURES.iter().filter(|figure| figure.period == Tick);
        let is_failed = |why: &Missing| why.reason == Reason::Unknown;
        let are_failed = self.health.state == HealthState::Answering
            && figures.all(|figure| figure.field.read(self).is_err_and(is_failed));
        are_failed.then(|| self.memory.total.why()).flatten()
    }

    /// Returns true if the GPU's temperature is within 5 °C of the slowdown temperature.
    fn is_near_slowdown(&self) -> bool {
        let limit = self.board.slowdown_temperature.get();
        self.temperature.get().is_some_and(|now| limit.is_some_and(|limit| now.0 + 5 >= limit.0))
    }
}

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Health {
    pub state: HealthState,
    /// Time when the GPU stopped responding. `None` if it responds, or was already lost when it was first read.
    pub since: Option<Mono>,
    /// The driver's description of the error, a phrase without a period.
    pub detail: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HealthState {
    Answering,
    /// A driver call for the GPU has been pending for more than two sampling intervals.
    Silent,
    /// The driver reports that the GPU is lost, or the driver itself is no longer available.
    Lost,
    /// Nothing uses the GPU, so that it is suspended or may be at any time. Reading it would keep it awake.
    Asleep,
    /// The driver denies access to this GPU, which belongs to another job or container.
    Denied,
    #[default]
    #[serde(other)]
    Unknown,
}

impl HealthState {
    /// Returns true if the GPU should respond but does not.
    pub fn is_failure(self) -> bool {
        matches!(self, Self::Silent | Self::Lost)
    }
}

/// Properties of a GPU that do not change while the driver is loaded.
#[apply(Reading => #[serde(skip_serializing_if = "Reading::is_not_read")])]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Board {
    /// PCI address as in the kernel log's Xid lines: `0000:3b:00`.
    pub pci_bus: Reading<String>,
    /// The number N of /dev/nvidiaN.
    pub minor: Reading<u32>,
    pub serial: Reading<String>,
    pub vbios: Reading<String>,
    /// `9.0`
    pub compute_capability: Reading<String>,
    pub architecture: Reading<String>,
    pub persistence: Reading<bool>,
    /// Compute mode: `default`, `exclusive process` or `prohibited`.
    pub compute_mode: Reading<String>,
    #[serde(rename = "max_sm_clock_mhz", alias = "max_sm_clock")]
    pub max_sm_clock: Reading<MegaHertz>,
    #[serde(rename = "max_memory_clock_mhz", alias = "max_memory_clock")]
    pub max_memory_clock: Reading<MegaHertz>,
    #[serde(rename = "power_cap_default_mw", alias = "power_cap_default")]
    pub power_cap_default: Reading<MilliWatts>,
    /// Largest power limit that can be set.
    #[serde(rename = "power_cap_max_mw", alias = "power_cap_max")]
    pub power_cap_max: Reading<MilliWatts>,
    #[serde(rename = "slowdown_temperature_c", alias = "slowdown_temperature")]
    pub slowdown_temperature: Reading<Celsius>,
    #[serde(rename = "shutdown_temperature_c", alias = "shutdown_temperature")]
    pub shutdown_temperature: Reading<Celsius>,
}

impl Board {
    /// Converts NVML's PCI address `00000000:3B:00.0` to `0000:3b:00` as in the kernel log's Xid lines: four domain
    /// digits and no function.
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

/// Reason for the missing total of a GPU that has no memory of its own.
const SHARED_WITH_HOST: &str =
    "the GPU shares the host's memory, so that it has no total of its own";

/// Device memory as split by `nvmlDeviceGetMemoryInfo_v2`: total = used + reserved + free.
///
/// Drivers before 510 offer only version 1, whose `used` includes the reserved part; `reserved` is then missing.
#[apply(Reading => #[serde(skip_serializing_if = "Reading::is_not_read")])]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    #[serde(rename = "total_bytes", alias = "total")]
    pub total: Reading<Bytes>,
    #[serde(rename = "used_bytes", alias = "used")]
    pub used: Reading<Bytes>,
    #[serde(rename = "reserved_bytes", alias = "reserved")]
    pub reserved: Reading<Bytes>,
    #[serde(rename = "free_bytes", alias = "free")]
    pub free: Reading<Bytes>,
}

impl Memory {
    /// Returns the memory of a GPU whose driver reports none, for this reason.
    pub fn missing(why: &Missing) -> Self {
        let missing = || Reading::Missing(why.clone());
        Self { total: missing(), used: missing(), reserved: missing(), free: missing() }
    }

    /// Returns the memory of a GPU that has no memory of its own.
    pub fn shared_with_host() -> Self {
        Self::missing(&Missing::new(Reason::Unsupported, SHARED_WITH_HOST))
    }

    /// Returns true if the GPU uses the host's memory (GB10, Jetson).
    pub fn is_shared_with_host(&self) -> bool {
        self.total.why().is_some_and(|why| why.hint.as_deref() == Some(SHARED_WITH_HOST))
    }

    /// Removes any memory size larger than the total, so that no bar is drawn from it.
    #[must_use]
    pub fn checked(self) -> Self {
        let Some(total) = self.total.get() else { return self };
        Self {
            used: self.used.at_most(total),
            reserved: self.reserved.at_most(total),
            free: self.free.at_most(total),
            total: self.total,
        }
    }

    /// Returns all memory that is not free, including memory reserved by the driver. Screens call it USED.
    pub fn taken(&self) -> Option<Bytes> {
        match (self.total.get(), self.free.get()) {
            (Some(total), Some(free)) => Some(Bytes(total.0.saturating_sub(free.0))),
            _ => self.used.get(),
        }
    }
}

/// ECC error counters of a GPU. A healthy GPU has only zeros and no pending row remapping.
#[apply(Reading => #[serde(skip_serializing_if = "Reading::is_not_read")])]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Ecc {
    pub enabled: Reading<bool>,
    /// Corrected errors since the driver was loaded.
    pub corrected: Reading<u64>,
    pub uncorrected: Reading<u64>,
    /// Memory rows remapped after correctable errors, over the GPU's lifetime.
    pub remapped_correctable: Reading<u32>,
    pub remapped_uncorrectable: Reading<u32>,
    /// True if a memory row will be remapped at the next GPU reset.
    pub remap_pending: Reading<bool>,
    /// True if a memory row could not be remapped, so the GPU should be replaced.
    pub remap_failed: Reading<bool>,
}

#[apply(Reading => #[serde(skip_serializing_if = "Reading::is_not_read")])]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Pcie {
    /// Current PCIe generation. An idle GPU lowers it to save power.
    pub generation: Reading<u32>,
    pub width: Reading<u32>,
    /// Maximum PCIe generation that the GPU, the slot and the mainboard all support.
    pub max_generation: Reading<u32>,
    pub max_width: Reading<u32>,
}

/// Values of one GPU that are read only while its screen is open. On GPUs before Hopper, the calls take 2 to 40 ms.
///
/// From Hopper on, the driver computes most of them from two samples of its counters (GPM). They are means over the time
/// between two readings.
#[apply(Reading => #[serde(skip_serializing_if = "Reading::is_not_read")])]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Traffic {
    pub at: Mono,
    /// Share of the time in which an SM had a warp, averaged over all SMs.
    pub sm_active: Reading<Percent>,
    /// Share of the time in which an SM used its tensor cores, averaged over all SMs.
    pub tensor_active: Reading<Percent>,
    /// Transfer rate of the device memory, as a share of its theoretical maximum.
    pub memory_rate: Reading<Percent>,
    /// Traffic from the GPU to the host. Without GPM, measured over NVML's 20 ms window.
    #[serde(rename = "pcie_tx_bytes_per_second", alias = "pcie_tx")]
    pub pcie_tx: Reading<BytesPerSecond>,
    #[serde(rename = "pcie_rx_bytes_per_second", alias = "pcie_rx")]
    pub pcie_rx: Reading<BytesPerSecond>,
    pub pcie_replays: Reading<u32>,
    /// NVLink traffic summed over all links, from the difference between two counter reads.
    #[serde(rename = "nvlink_tx_bytes_per_second", alias = "nvlink_tx")]
    pub nvlink_tx: Reading<BytesPerSecond>,
    #[serde(rename = "nvlink_rx_bytes_per_second", alias = "nvlink_rx")]
    pub nvlink_rx: Reading<BytesPerSecond>,
    #[serde(rename = "energy_mj", alias = "energy")]
    pub energy: Reading<MilliJoules>,
}

/// A MIG device: a GPU instance with its compute instance.
#[apply(Reading => #[serde(skip_serializing_if = "Reading::is_not_read")])]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MigInstance {
    /// NVML's index of the MIG device on its parent GPU.
    pub index: u32,
    pub uuid: GpuUuid,
    pub gpu_instance: Reading<u32>,
    pub compute_instance: Reading<u32>,
    /// MIG profile name as shown by nvidia-smi: `3g.71gb`.
    pub profile: Reading<String>,
    pub memory: Memory,
}

macro_rules! gpu {
    ($kind:ident, $($path:tt)+) => {
        Field::$kind(|gpu| &gpu.$($path)+, |gpu| &mut gpu.$($path)+)
    };
}

macro_rules! board {
    ($kind:ident, $name:ident) => {
        Field::$kind(|gpu| &gpu.board.$name, |gpu| &mut Arc::make_mut(&mut gpu.board).$name)
    };
}

/// Accesses a [`Traffic`] figure, which is absent while no screen shows it.
macro_rules! traffic {
    ($kind:ident, $name:ident) => {
        Field::$kind(
            |gpu| &gpu.traffic.as_ref().unwrap_or(&NOT_SHOWN).$name,
            |gpu| &mut gpu.traffic.get_or_insert_default().$name,
        )
    };
}

/// Placeholder for missing traffic data: the GPU's screen was only just opened, or was not open when the recording was
/// made.
static NOT_SHOWN: LazyLock<Traffic> = LazyLock::new(|| {
    let mut gpu = Gpu::default();
    for figure in GPU_FIGURES.iter().filter(|figure| figure.period == WhileShown) {
        let why = Missing::new(Reason::NotRead, "read live on this screen only");
        figure.field.set_missing(&mut gpu, why);
    }
    gpu.traffic.unwrap_or_default()
});

use Period::{Once, Slow, Tick, WhileShown};
use Section::{Activity, Errors, Identity, Links, Memory as MemorySection, Power};

/// All GPU figures, in the order of the GPU screen, the columns of the GPU table, CSV and the exporter.
#[rustfmt::skip]
pub static GPU_FIGURES: &[GpuFigure] = &[
    figure("memory_total", "total", MemorySection, Tick, gpu!(Bytes, memory.total)).dcgm("DCGM_FI_DEV_FB_TOTAL")
        .nvidia_smi(&["memory.total"]),
    figure("memory_used", "used", MemorySection, Tick, gpu!(Bytes, memory.used)).dcgm("DCGM_FI_DEV_FB_USED")
        .nvidia_smi(&["memory.used"]),
    figure("memory_reserved", "reserved", MemorySection, Tick, gpu!(Bytes, memory.reserved))
        .dcgm("DCGM_FI_DEV_FB_RESERVED")
        .nvidia_smi(&["memory.reserved"]),
    figure("memory_free", "free", MemorySection, Tick, gpu!(Bytes, memory.free)).dcgm("DCGM_FI_DEV_FB_FREE")
        .nvidia_smi(&["memory.free"]),

    figure("sm", "SM", Activity, Tick, gpu!(Percent, sm)).dcgm("DCGM_FI_DEV_GPU_UTIL")
        .nvidia_smi(&["utilization.gpu"])
        .column("SM%", 4, 3, "Share of time during which a kernel ran. It does not show how much of the GPU the kernel used."),
    figure("memory_bandwidth", "memory bandwidth", Activity, Tick, gpu!(Percent, memory_bandwidth))
        .dcgm("DCGM_FI_DEV_MEM_COPY_UTIL")
        .nvidia_smi(&["utilization.memory"])
        .column("MBW%", 4, 8, "Share of time during which device memory was read or written."),
    figure("sm_active", "SM active", Activity, WhileShown, traffic!(Percent, sm_active)),
    figure("tensor_active", "tensor cores active", Activity, WhileShown, traffic!(Percent, tensor_active)),
    figure("memory_rate", "bandwidth used", Activity, WhileShown, traffic!(Percent, memory_rate)),
    figure("encoder", "encoder", Activity, Slow, gpu!(Percent, encoder)).dcgm("DCGM_FI_DEV_ENC_UTIL")
        .nvidia_smi(&["utilization.encoder"]),
    figure("decoder", "decoder", Activity, Slow, gpu!(Percent, decoder)).dcgm("DCGM_FI_DEV_DEC_UTIL")
        .nvidia_smi(&["utilization.decoder"]),

    figure("power", "power", Power, Tick, gpu!(Power, power)).dcgm("DCGM_FI_DEV_POWER_USAGE")
        .nvidia_smi(&["power.draw"])
        .column("W", 4, 4, "Power draw in watts."),
    figure("power_cap", "power cap", Power, Slow, gpu!(Power, power_cap)).dcgm("DCGM_FI_DEV_ENFORCED_POWER_LIMIT")
        .nvidia_smi(&["enforced.power.limit"]),
    figure("power_cap_default", "default cap", Power, Once, board!(Power, power_cap_default))
        .dcgm("DCGM_FI_DEV_POWER_MGMT_LIMIT_DEF")
        .nvidia_smi(&["power.default_limit"]),
    figure("power_cap_max", "maximum cap", Power, Once, board!(Power, power_cap_max))
        .dcgm("DCGM_FI_DEV_POWER_MGMT_LIMIT_MAX")
        .nvidia_smi(&["power.max_limit"]),
    figure("temperature", "temperature", Power, Tick, gpu!(Temperature, temperature)).dcgm("DCGM_FI_DEV_GPU_TEMP")
        .nvidia_smi(&["temperature.gpu"])
        .column("TEMP", 4, 5, "Temperature in degrees Celsius.").bad_if(Gpu::is_near_slowdown),
    figure("memory_temperature", "memory temperature", Power, Slow, gpu!(Temperature, memory_temperature))
        .dcgm("DCGM_FI_DEV_MEMORY_TEMP")
        .nvidia_smi(&["temperature.memory"]),
    figure("slowdown_temperature", "slowdown limit", Power, Once, board!(Temperature, slowdown_temperature))
        .dcgm("DCGM_FI_DEV_SLOWDOWN_TEMP"),
    figure("shutdown_temperature", "shutdown limit", Power, Once, board!(Temperature, shutdown_temperature))
        .dcgm("DCGM_FI_DEV_SHUTDOWN_TEMP"),
    figure("fan", "fan", Power, Slow, gpu!(Percent, fan)).dcgm("DCGM_FI_DEV_FAN_SPEED").nvidia_smi(&["fan.speed"]),
    figure("sm_clock", "SM clock", Power, Tick, gpu!(Clock, sm_clock)).dcgm("DCGM_FI_DEV_SM_CLOCK")
        .nvidia_smi(&["clocks.sm"])
        .column("MHZ", 5, 9, "SM clock in MHz."),
    figure("max_sm_clock", "maximum SM clock", Power, Once, board!(Clock, max_sm_clock))
        .dcgm("DCGM_FI_DEV_MAX_SM_CLOCK")
        .nvidia_smi(&["clocks.max.sm"]),
    figure("memory_clock", "memory clock", Power, Tick, gpu!(Clock, memory_clock)).dcgm("DCGM_FI_DEV_MEM_CLOCK")
        .nvidia_smi(&["clocks.mem"]),
    figure("max_memory_clock", "maximum memory clock", Power, Once, board!(Clock, max_memory_clock))
        .dcgm("DCGM_FI_DEV_MAX_MEM_CLOCK")
        .nvidia_smi(&["clocks.max.mem"]),
    figure("pstate", "performance state", Power, Tick, gpu!(PState, pstate)).dcgm("DCGM_FI_DEV_PSTATE")
        .nvidia_smi(&["pstate"]),
    // Drivers since 535 use the first field name.
    figure("throttle", "throttle reasons", Power, Tick, gpu!(Throttle, throttle))
        .nvidia_smi(&["clocks_event_reasons.active", "clocks_throttle_reasons.active"]),

    figure("pcie_generation", "PCIe generation", Links, Slow, gpu!(Count, pcie.generation))
        .dcgm("DCGM_FI_DEV_PCIE_LINK_GEN")
        .nvidia_smi(&["pcie.link.gen.current"]),
    figure("pcie_max_generation", "maximum generation", Links, Once, gpu!(Count, pcie.max_generation))
        .dcgm("DCGM_FI_DEV_PCIE_MAX_LINK_GEN")
        .nvidia_smi(&["pcie.link.gen.max"]),
    figure("pcie_width", "PCIe width", Links, Slow, gpu!(Lanes, pcie.width)).dcgm("DCGM_FI_DEV_PCIE_LINK_WIDTH")
        .nvidia_smi(&["pcie.link.width.current"]),
    figure("pcie_max_width", "maximum width", Links, Once, gpu!(Lanes, pcie.max_width))
        .dcgm("DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH")
        .nvidia_smi(&["pcie.link.width.max"]),
    figure("nvlinks_up", "NVLinks up", Links, Slow, gpu!(Count, nvlinks_up)).dcgm("gputop_gpu_nvlinks_up"),
    figure("pcie_tx", "PCIe to host", Links, WhileShown, traffic!(Rate, pcie_tx)),
    figure("pcie_rx", "PCIe from host", Links, WhileShown, traffic!(Rate, pcie_rx)),
    figure("pcie_replays", "PCIe replays", Links, WhileShown, traffic!(Count, pcie_replays)),
    figure("nvlink_tx", "NVLink sent", Links, WhileShown, traffic!(Rate, nvlink_tx)),
    figure("nvlink_rx", "NVLink received", Links, WhileShown, traffic!(Rate, nvlink_rx)),
    figure("energy", "energy", Power, WhileShown, traffic!(Energy, energy)),

    figure("ecc", "ECC", Errors, Slow, gpu!(Switch, ecc.enabled)).dcgm("DCGM_FI_DEV_ECC_CURRENT")
        .nvidia_smi(&["ecc.mode.current"]),
    figure("ecc_corrected", "corrected errors", Errors, Slow, gpu!(LongCount, ecc.corrected))
        .dcgm("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL")
        .nvidia_smi(&["ecc.errors.corrected.volatile.total"]),
    figure("ecc_uncorrected", "uncorrected errors", Errors, Slow, gpu!(LongCount, ecc.uncorrected))
        .dcgm("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL")
        .nvidia_smi(&["ecc.errors.uncorrected.volatile.total"]),
    figure("remapped_correctable", "rows remapped", Errors, Slow, gpu!(Count, ecc.remapped_correctable))
        .dcgm("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS")
        .nvidia_smi(&["remapped_rows.correctable"]),
    figure("remapped_uncorrectable", "rows uncorrectable", Errors, Slow, gpu!(Count, ecc.remapped_uncorrectable))
        .dcgm("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS")
        .nvidia_smi(&["remapped_rows.uncorrectable"]),
    figure("remap_pending", "remap pending reset", Errors, Slow, gpu!(Flag, ecc.remap_pending))
        .dcgm("DCGM_FI_DEV_ROW_REMAP_PENDING")
        .nvidia_smi(&["remapped_rows.pending"]),
    figure("remap_failed", "remap failed", Errors, Slow, gpu!(Flag, ecc.remap_failed))
        .dcgm("DCGM_FI_DEV_ROW_REMAP_FAILURE")
        .nvidia_smi(&["remapped_rows.failure"]),
    figure("recovery_action", "recovery action", Errors, Slow, gpu!(Recovery, recovery_action))
        .dcgm("gputop_gpu_recovery_action")
        .nvidia_smi(&["gpu_recovery_action"]),

    figure("pci_bus", "PCI bus", Identity, Once, board!(Text, pci_bus)).nvidia_smi(&["pci.bus_id"]),
    figure("minor", "device file", Identity, Once, board!(DeviceFile, minor)),
    figure("serial", "serial", Identity, Once, board!(Text, serial)).nvidia_smi(&["serial"]),
    figure("vbios", "VBIOS", Identity, Once, board!(Text, vbios)).nvidia_smi(&["vbios_version"]),
    figure("architecture", "architecture", Identity, Once, board!(Text, architecture)),
    figure("compute_capability", "compute capability", Identity, Once, board!(Text, compute_capability))
        .nvidia_smi(&["compute_cap"]),
    figure("compute_mode", "compute mode", Identity, Once, board!(Text, compute_mode))
        .nvidia_smi(&["compute_mode"]),
    figure("persistence", "persistence mode", Identity, Once, board!(Switch, persistence))
        .dcgm("DCGM_FI_DEV_PERSISTENCE_MODE")
        .nvidia_smi(&["persistence_mode"]),
    figure("mig", "MIG mode", Identity, Slow, gpu!(Switch, mig_enabled)).dcgm("DCGM_FI_DEV_MIG_MODE")
        .nvidia_smi(&["mig.mode.current"]),
];
