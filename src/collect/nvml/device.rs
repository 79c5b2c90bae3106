//! Functions that read one GPU, one for each group in the schedule. Implausible values become missing values with a
//! reason.

use std::sync::Arc;

use gputop_model::gpu::{Board, Ecc, Traffic};
use gputop_model::text::visible;
use gputop_model::{
    Bytes, BytesPerSecond, Celsius, ContextKind, Gpu, GpuProcess, GpuUuid, MegaHertz, Memory,
    MigInstance, MilliJoules, MilliWatts, Mono, Percent, Pid, Reading, Reason, Throttle,
};
use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{
    Clock, ComputeMode, EccCounter, MemoryError, PcieUtilCounter, TemperatureSensor,
    TemperatureThreshold,
};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id::NVML_FI_DEV_MEMORY_TEMP;

use super::raw;
use super::reason::{is_fatal, reading};

/// Maximum plausible power in mW. No single GPU draws 20 kW, but NVML has been observed to return a value with all bits
/// set.
const MAX_MILLIWATTS: u32 = 20_000_000;

fn percent(value: Reading<u32>) -> Reading<Percent> {
    value.at_most(100).map(|v| Percent(f64::from(v)))
}

fn power(result: Result<u32, NvmlError>) -> Reading<MilliWatts> {
    reading(result).at_most(MAX_MILLIWATTS).map(MilliWatts)
}

fn celsius(result: Result<u32, NvmlError>) -> Reading<Celsius> {
    reading(result).at_most(250).map(|t| Celsius(i32::try_from(t).unwrap_or(0)))
}

fn clock(result: Result<u32, NvmlError>) -> Reading<MegaHertz> {
    reading(result).at_most(100_000).map(MegaHertz)
}

/// Converts text from the driver: limits its length and escapes control characters, as is done for all external text.
fn text(result: Result<String, NvmlError>) -> Reading<String> {
    reading(result).map(|text| visible(text.as_bytes(), 96))
}

/// Reads the identity of a GPU, which suffices for the first frame.
pub fn open(device: &Device<'_>, index: u32) -> Result<Gpu, NvmlError> {
    let uuid = device.uuid()?;
    Ok(Gpu {
        index,
        uuid: GpuUuid(visible(uuid.as_bytes(), 96).into()),
        name: text(device.name()).value().cloned().unwrap_or_else(|| "unnamed GPU".into()),
        ..Gpu::default()
    })
}

/// Reads the facts about a GPU that do not change while the driver is loaded.
pub fn describe(device: &Device<'_>, gpu: &mut Gpu) {
    gpu.board = Arc::new(board(device));
    gpu.pcie.max_generation = reading(device.max_pcie_link_gen());
    gpu.pcie.max_width = reading(device.max_pcie_link_width());
}

fn board(device: &Device<'_>) -> Board {
    Board {
        pci_bus: text(device.pci_info().map(|p| Board::bus_of(&p.bus_id))),
        minor: reading(device.minor_number()),
        serial: text(device.serial()),
        vbios: text(device.vbios_version()),
        compute_capability: reading(device.cuda_compute_capability())
            .map(|c| format!("{}.{}", c.major, c.minor)),
        architecture: reading(device.architecture()).map(|a| a.to_string()),
        persistence: reading(device.is_in_persistent_mode()),
        compute_mode: reading(device.compute_mode()).map(|mode| compute_mode(&mode).into()),
        max_sm_clock: clock(device.max_clock_info(Clock::SM)),
        max_memory_clock: clock(device.max_clock_info(Clock::Memory)),
        power_cap_default: power(device.power_management_limit_default()),
        slowdown_temperature: celsius(device.temperature_threshold(TemperatureThreshold::Slowdown)),
        shutdown_temperature: celsius(device.temperature_threshold(TemperatureThreshold::Shutdown)),
    }
}

fn compute_mode(mode: &ComputeMode) -> &'static str {
    match mode {
        ComputeMode::Default => "default",
        ComputeMode::ExclusiveThread => "exclusive thread",
        ComputeMode::Prohibited => "prohibited",
        ComputeMode::ExclusiveProcess => "exclusive process",
    }
}

/// Reads the values of a GPU that are needed on every tick. Fails only if the GPU or the driver as a whole is
/// unavailable. Any other failure becomes the reason why a value is missing.
pub fn tick(device: &Device<'_>, gpu: &mut Gpu) -> Result<(), NvmlError> {
    gpu.memory = memory(device)?;
    let utilization = reading(device.utilization_rates());
    gpu.sm = percent(utilization.clone().map(|u| u.gpu));
    gpu.memory_bandwidth = percent(utilization.map(|u| u.memory));
    gpu.power = power(device.power_usage());
    gpu.temperature = celsius(device.temperature(TemperatureSensor::Gpu));
    gpu.sm_clock = clock(device.clock_info(Clock::SM));
    gpu.memory_clock = clock(device.clock_info(Clock::Memory));
    gpu.pstate = pstate(device);
    gpu.throttle =
        reading(device.current_throttle_reasons()).map(|mask| Throttle::of_mask(mask.bits()));
    for instance in &mut gpu.mig {
        instance.memory = mig_memory(device, instance.index);
    }
    Ok(())
}

fn memory(device: &Device<'_>) -> Result<Memory, NvmlError> {
    match device.memory_info() {
        Ok(info) => Ok(Memory {
            total: Bytes(info.total).into(),
            used: Bytes(info.used).into(),
            reserved: Bytes(info.reserved).into(),
            free: Bytes(info.free).into(),
        }
        .checked()),
        Err(error) if is_fatal(&error) => Err(error),
        Err(error) => Ok(memory_v1(device).unwrap_or_else(|_| {
            let why = super::reason::missing(&error);
            Memory {
                total: Reading::Missing(why.clone()),
                used: Reading::Missing(why.clone()),
                reserved: Reading::Missing(why.clone()),
                free: Reading::Missing(why),
            }
        })),
    }
}

fn memory_v1(device: &Device<'_>) -> Result<Memory, NvmlError> {
    let (total, free, used) = raw::memory_v1(device)?;
    Ok(Memory {
        total: Bytes(total).into(),
        used: Bytes(used).into(),
        reserved: Reading::missing(
            Reason::Unsupported,
            "drivers before 510 include reserved memory in used memory",
        ),
        free: Bytes(free).into(),
    }
    .checked())
}

fn pstate(device: &Device<'_>) -> Reading<u8> {
    match reading(device.performance_state()) {
        // Exclude `Unknown`, which has the number 32 (nvml.h, `nvmlPstates_t`).
        Reading::Value(state) => {
            let state = u8::try_from(state.as_c()).ok().filter(|state| *state < 16);
            Reading::or_missing(state, Reason::Unknown, "unknown to the driver")
        }
        Reading::Missing(missing) => Reading::Missing(missing),
    }
}

/// Reads the values of a GPU that rarely change.
pub fn slow(device: &Device<'_>, gpu: &mut Gpu) {
    gpu.power_cap = power(device.enforced_power_limit());
    gpu.fan = fan(device);
    gpu.encoder = percent(reading(device.encoder_utilization()).map(|u| u.utilization));
    gpu.decoder = percent(reading(device.decoder_utilization()).map(|u| u.utilization));
    gpu.memory_temperature = memory_temperature(device);
    gpu.pcie.generation = reading(device.current_pcie_link_gen());
    gpu.pcie.width = reading(device.current_pcie_link_width());
    gpu.ecc = ecc(device);
    gpu.mig_enabled = reading(device.mig_mode()).map(|mode| mode.current == 1);
    gpu.mig = if gpu.mig_enabled.get() == Some(true) { mig(device) } else { Vec::new() };
}

/// Reads the fan speed. For data-centre GPUs, which have no fan, the driver rejects the query as an invalid argument.
fn fan(device: &Device<'_>) -> Reading<Percent> {
    match device.num_fans() {
        Ok(0) => Reading::missing(Reason::Unsupported, "the GPU does not have a fan"),
        _ => percent(reading(device.fan_speed(0))),
    }
}

fn memory_temperature(device: &Device<'_>) -> Reading<Celsius> {
    let value =
        device.field_values_for(&[FieldId(NVML_FI_DEV_MEMORY_TEMP)]).and_then(|mut values| {
            match values.pop().ok_or(NvmlError::NoData)??.value? {
                SampleValue::U32(t) => Ok(t),
                _ => Err(NvmlError::NoData),
            }
        });
    // Treat 0 as missing, because GPUs without this sensor report 0.
    match celsius(value) {
        Reading::Value(Celsius(0)) => Reading::Missing(Reason::Unsupported.into()),
        other => other,
    }
}

fn ecc(device: &Device<'_>) -> Ecc {
    let enabled = reading(device.is_ecc_enabled()).map(|mode| mode.currently_enabled);
    let count = |kind| reading(device.total_ecc_errors(kind, EccCounter::Volatile));
    let rows = reading(raw::remapped_rows(device));
    Ecc {
        enabled,
        corrected: count(MemoryError::Corrected),
        uncorrected: count(MemoryError::Uncorrected),
        remapped_correctable: rows.clone().map(|r| r.0),
        remapped_uncorrectable: rows.clone().map(|r| r.1),
        remap_pending: rows.clone().map(|r| r.2),
        remap_failed: rows.map(|r| r.3),
    }
}

fn mig(device: &Device<'_>) -> Vec<MigInstance> {
    let count = device.mig_device_count().unwrap_or(0).min(16);
    (0..count)
        .filter_map(|index| mig_instance(&device.mig_device_by_index(index).ok()?, index))
        .collect()
}

fn mig_instance(device: &Device<'_>, index: u32) -> Option<MigInstance> {
    let uuid = device.uuid().ok()?;
    Some(MigInstance {
        index,
        uuid: GpuUuid(visible(uuid.as_bytes(), 96).into()),
        gpu_instance: reading(raw::number(device, |lib| &lib.nvmlDeviceGetGpuInstanceId)),
        compute_instance: reading(raw::number(device, |lib| &lib.nvmlDeviceGetComputeInstanceId)),
        // The driver's name for the device ends with the profile: "NVIDIA H200 MIG 3g.71gb".
        profile: text(device.name())
            .map(|name| name.rsplit(' ').next().unwrap_or_default().to_owned()),
        memory: memory(device).unwrap_or_default(),
    })
}

fn mig_memory(parent: &Device<'_>, index: u32) -> Memory {
    parent.mig_device_by_index(index).and_then(|device| memory(&device)).unwrap_or_default()
}

/// Reads the processes on a GPU. Copies their utilization from the previous list, because utilization is read less
/// often.
pub fn processes(device: &Device<'_>, gpu: &mut Gpu, graphics: bool, buffers: &mut raw::Buffers) {
    let compute = raw::processes(device, ContextKind::Compute, buffers);
    let graphics = if graphics {
        raw::processes(device, ContextKind::Graphics, buffers).unwrap_or_default()
    } else {
        Vec::new()
    };
    let total = gpu.memory.total.get().unwrap_or(Bytes(u64::MAX));
    let before = std::mem::take(&mut gpu.processes);
    gpu.processes = reading(compute).map(|compute| {
        let mut list: Vec<GpuProcess> = Vec::with_capacity(compute.len() + graphics.len());
        for (kind, listed) in compute
            .iter()
            .map(|l| (ContextKind::Compute, l))
            .chain(graphics.iter().map(|l| (ContextKind::Graphics, l)))
        {
            merge(&mut list, kind, listed, total);
        }
        carry_over(before.value(), &mut list);
        list.sort_by_key(|p| p.pid);
        list
    });
}

fn merge(list: &mut Vec<GpuProcess>, kind: ContextKind, listed: &raw::DriverProcess, total: Bytes) {
    let known =
        list.iter_mut().find(|p| p.pid.0 == listed.pid && p.gpu_instance == listed.gpu_instance);
    if let Some(known) = known {
        // The driver's lists of compute and graphics processes both report the process's total memory, so the sizes
        // must not be added.
        if known.kind != kind {
            known.kind = ContextKind::Mixed;
        }
        return;
    }
    list.push(GpuProcess {
        pid: Pid(listed.pid),
        process: None,
        kind,
        vram: match listed.used {
            Some(used) => Reading::from(Bytes(used)).at_most(total),
            None => Reading::missing(
                Reason::Unsupported,
                "the driver does not report this process's memory",
            ),
        },
        sm: Reading::missing(Reason::NotRead, "no sample yet"),
        memory_bandwidth: Reading::missing(Reason::NotRead, "no sample yet"),
        gpu_instance: listed.gpu_instance,
        compute_instance: listed.compute_instance,
    });
}

fn carry_over(before: Option<&Vec<GpuProcess>>, list: &mut [GpuProcess]) {
    for process in list {
        let old = before
            .into_iter()
            .flatten()
            .find(|p| p.pid == process.pid && p.gpu_instance == process.gpu_instance);
        if let Some(old) = old {
            process.sm.clone_from(&old.sm);
            process.memory_bandwidth.clone_from(&old.memory_bandwidth);
        }
    }
}

/// Reads the utilization of each process on a GPU since the timestamp `since`. Returns the newest timestamp.
///
/// Drops samples over 100 %, which occur with zombies. A process without a sample was idle, because the driver does not
/// store samples for idle processes.
pub fn utilization(
    device: &Device<'_>,
    gpu: &mut Gpu,
    since: u64,
    buffers: &mut raw::Buffers,
) -> u64 {
    let samples = raw::process_utilization(device, since, buffers);
    let Reading::Value(list) = &mut gpu.processes else { return since };
    for process in list {
        let newest = samples.as_ref().map(|samples| {
            let own = samples.iter().filter(|sample| sample.pid == process.pid.0);
            own.max_by_key(|sample| sample.timeStamp)
        });
        (process.sm, process.memory_bandwidth) = match newest {
            Ok(Some(sample)) => (percent(sample.smUtil.into()), percent(sample.memUtil.into())),
            Ok(None) => (Percent(0.0).into(), Percent(0.0).into()),
            Err(error) => {
                let why = super::reason::missing(error);
                (Reading::Missing(why.clone()), Reading::Missing(why))
            }
        };
    }
    samples.unwrap_or_default().iter().map(|sample| sample.timeStamp).max().unwrap_or(since)
}

/// NVLink counters from the last read, for computing rates.
#[derive(Debug, Clone, Copy)]
pub struct NvlinkCounters {
    at: Mono,
    tx_kib: u64,
    rx_kib: u64,
}

/// Reads the values of a GPU that are shown only while its screen is open.
pub fn traffic(device: &Device<'_>, now: Mono, last: &mut Option<NvlinkCounters>) -> Traffic {
    // The driver counts 1000 bytes as a KB here (nvml.h: "PCIe throughput in KB/s").
    let pcie = |counter| {
        reading(device.pcie_throughput(counter)).map(|kb| BytesPerSecond(u64::from(kb) * 1_000))
    };
    let counters = raw::nvlink_counters(device).map(|(tx_kib, rx_kib)| NvlinkCounters {
        at: now,
        tx_kib,
        rx_kib,
    });
    let (nvlink_tx, nvlink_rx) = nvlink(*last, &counters);
    *last = counters.ok();
    Traffic {
        at: now,
        pcie_tx: pcie(PcieUtilCounter::Send),
        pcie_rx: pcie(PcieUtilCounter::Receive),
        pcie_replays: reading(device.pcie_replay_counter()),
        nvlink_tx,
        nvlink_rx,
        energy: reading(device.total_energy_consumption()).map(MilliJoules),
    }
}

fn nvlink(
    last: Option<NvlinkCounters>,
    now: &Result<NvlinkCounters, NvmlError>,
) -> (Reading<BytesPerSecond>, Reading<BytesPerSecond>) {
    let rate = |before: u64, after: u64, ms: u64| {
        BytesPerSecond(after.saturating_sub(before).saturating_mul(1_024 * 1_000) / ms.max(1))
            .into()
    };
    match (last, now) {
        (Some(last), Ok(now)) => {
            let ms = now.at.since(last.at).0;
            (rate(last.tx_kib, now.tx_kib, ms), rate(last.rx_kib, now.rx_kib, ms))
        }
        (None, Ok(_)) => {
            let wait = || Reading::missing(Reason::NotRead, "needs two readings");
            (wait(), wait())
        }
        (_, Err(error)) => {
            let why = super::reason::missing(error);
            (Reading::Missing(why.clone()), Reading::Missing(why))
        }
    }
}

pub fn any_graphics(gpu: &Gpu) -> bool {
    gpu.processes.value().is_some_and(|list| list.iter().any(|p| p.kind != ContextKind::Compute))
}
