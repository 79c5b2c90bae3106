//! Functions that read one GPU, one for each group in the schedule. Implausible values become missing values with a
//! reason.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use gputop_model::gpu::{Board, Ecc, RecoveryAction, Traffic};
use gputop_model::text::visible;
use gputop_model::{
    Bytes, BytesPerSecond, Celsius, ContextKind, Gpu, GpuProcess, GpuUuid, MegaHertz, Memory,
    MigInstance, MilliJoules, MilliWatts, Missing, Mono, Percent, Pid, Reading, Reason, Throttle,
};
use gputop_peek::clock::now_wall;
use nvml_wrapper::enum_wrappers::device::{
    Clock, ComputeMode, EccCounter, MemoryError, PcieUtilCounter, TemperatureSensor,
    TemperatureThreshold,
};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::{Bits, NvmlError};
use nvml_wrapper::gpm::{GpmSample, gpm_metrics_get};
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id::{
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, NVML_FI_DEV_MEMORY_TEMP,
};
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::NVML_NVLINK_MAX_LINKS;

use super::raw::{self, ProcessList};
use super::reason::{is_fatal, reading};

/// Maximum plausible power in mW of a GPU without a known limit. No single GPU draws 20 kW, but NVML has been observed
/// to return a value with all bits set.
const MAX_MILLIWATTS: u32 = 20_000_000;
/// Maximum plausible power as a multiple of the largest power limit. Short peaks exceed the limit, but not by so much.
const MAX_OVER_LIMIT: u32 = 3;

fn percent(value: Reading<u32>) -> Reading<Percent> {
    value.at_most(100).map(|v| Percent(f64::from(v)))
}

fn power(result: Result<u32, NvmlError>) -> Reading<MilliWatts> {
    reading(result).at_most(MAX_MILLIWATTS).map(MilliWatts)
}

/// Converts the power draw. A draw far above the largest power limit of the GPU is implausible.
fn power_draw(result: Result<u32, NvmlError>, board: &Board) -> Reading<MilliWatts> {
    let limits = [&board.power_cap_max, &board.power_cap_default];
    let limit = limits.into_iter().filter_map(Reading::get).find(|limit| limit.0 > 0);
    let max = limit.map_or(MAX_MILLIWATTS, |limit| limit.0.saturating_mul(MAX_OVER_LIMIT));
    power(result).at_most(MilliWatts(max))
}

fn power_cap_max(device: &Device<'_>) -> Reading<MilliWatts> {
    power(device.power_management_limit_constraints().map(|limits| limits.max_limit))
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

/// Reads the identity of a GPU and its power limit, which suffices for the first frame. The UUID is empty if the driver
/// reports none.
pub fn open(device: &Device<'_>, index: u32) -> Result<Gpu, NvmlError> {
    let uuid = match device.uuid() {
        Err(error) if is_fatal(&error) => return Err(error),
        uuid => uuid.map(|uuid| GpuUuid(visible(uuid.as_bytes(), 96).into())),
    };
    Ok(Gpu {
        index,
        uuid: uuid.unwrap_or_default(),
        name: match raw::name(device) {
            Ok(name) => visible(&name, 96),
            Err(_) => "unnamed GPU".into(),
        },
        board: Arc::new(Board { power_cap_max: power_cap_max(device), ..Board::default() }),
        ..Gpu::default()
    })
}

/// Reads the facts about a GPU that do not change while the driver is loaded.
pub fn describe(device: &Device<'_>, gpu: &mut Gpu) {
    gpu.board = Arc::new(board(device));
    gpu.pcie.max_generation = link(gpu, device.max_pcie_link_gen());
    gpu.pcie.max_width = link(gpu, device.max_pcie_link_width());
}

/// Converts a figure of the PCIe link. A GPU that shares the host's memory is not on one, and its driver reports
/// placeholders.
fn link(gpu: &Gpu, result: Result<u32, NvmlError>) -> Reading<u32> {
    match reading(result) {
        Reading::Value(_) if gpu.memory.is_shared_with_host() => {
            Reading::missing(Reason::Unsupported, "the GPU is not connected by PCIe")
        }
        Reading::Value(0) => Reading::Missing(Reason::Unsupported.into()),
        other => other,
    }
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
        power_cap_max: power_cap_max(device),
        slowdown_temperature: above_zero(
            device.temperature_threshold(TemperatureThreshold::Slowdown),
        ),
        shutdown_temperature: above_zero(
            device.temperature_threshold(TemperatureThreshold::Shutdown),
        ),
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
    gpu.power = power_draw(device.power_usage(), &gpu.board);
    gpu.temperature = celsius(device.temperature(TemperatureSensor::Gpu));
    gpu.sm_clock = clock(device.clock_info(Clock::SM));
    gpu.memory_clock = clock(device.clock_info(Clock::Memory));
    gpu.pstate = pstate(device);
    gpu.throttle = reading(throttle_mask(device)).map(Throttle::of_mask);
    if !gpu.mig.is_empty() {
        read_mig_memory(device, gpu);
    }
    if gpu.memory.is_shared_with_host() {
        drop_placeholders(gpu);
    }
    Ok(())
}

/// Fails if the GPU was lost after [`tick`] had read its memory, so that some of the values are missing.
pub fn check_all_read(device: &Device<'_>, gpu: &Gpu) -> Result<(), NvmlError> {
    let (sm, power) = (gpu.sm.why(), gpu.power.why());
    let whys = [sm, power, gpu.temperature.why(), gpu.sm_clock.why(), gpu.processes.why()];
    if whys.into_iter().flatten().any(|why| why.reason == Reason::Gone) {
        memory(device)?;
    }
    Ok(())
}

fn memory(device: &Device<'_>) -> Result<Memory, NvmlError> {
    match device.memory_info() {
        Ok(info) if info.total == 0 => Ok(Memory::shared_with_host()),
        Ok(info) => Ok(Memory {
            total: Bytes(info.total).into(),
            used: Bytes(info.used).into(),
            reserved: Bytes(info.reserved).into(),
            free: Bytes(info.free).into(),
        }
        .checked()),
        Err(error) if is_fatal(&error) => Err(error),
        Err(error) => Ok(memory_v1(device).unwrap_or_else(|_| match error {
            // A GPU with memory of its own also has a BAR1, through which the CPU accesses that memory.
            NvmlError::NotSupported if device.bar1_memory_info().is_err() => {
                Memory::shared_with_host()
            }
            error => Memory::missing(&super::reason::missing(&error)),
        })),
    }
}

/// Sets the used memory of a GPU that shares the host's memory (GB10, Jetson) to the sum of its processes, because the
/// driver reports no memory.
pub fn sum_shared_memory(gpu: &mut Gpu) {
    if !gpu.memory.is_shared_with_host() {
        return;
    }
    let Some(processes) = gpu.processes.value() else { return };
    let mut pids = BTreeSet::new();
    let sizes = processes.iter().filter(|process| pids.insert(process.pid)).map(|p| &p.vram);
    let sizes = sizes.map(Reading::get).collect::<Option<Vec<Bytes>>>();
    if let Some(sizes) = sizes {
        let sum = sizes.iter().fold(0, |sum: u64, size| sum.saturating_add(size.0));
        gpu.memory.used = Bytes(sum).into();
    }
}

/// Removes values that are 0 only because the driver has none.
fn drop_placeholders(gpu: &mut Gpu) {
    fn drop<T: Copy + Default + PartialEq>(reading: &mut Reading<T>) {
        if reading.get() == Some(T::default()) {
            *reading = Reading::Missing(Reason::Unsupported.into());
        }
    }
    drop(&mut gpu.temperature);
    drop(&mut gpu.power);
    drop(&mut gpu.sm_clock);
    drop(&mut gpu.memory_clock);
}

fn memory_v1(device: &Device<'_>) -> Result<Memory, NvmlError> {
    let (total, free, used) = raw::memory_v1(device)?;
    if total == 0 {
        return Ok(Memory::shared_with_host());
    }
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

/// Reads the throttle reasons, including those that the wrapper does not know.
fn throttle_mask(device: &Device<'_>) -> Result<u64, NvmlError> {
    match device.current_throttle_reasons_strict() {
        Err(NvmlError::IncorrectBits(Bits::U64(mask))) => Ok(mask),
        known => known.map(|reasons| reasons.bits()),
    }
}

/// Reads the values of a GPU that rarely change.
pub fn slow(device: &Device<'_>, gpu: &mut Gpu) {
    gpu.power_cap = power(device.enforced_power_limit());
    gpu.fans = fans(device);
    gpu.fan = fastest(&gpu.fans);
    gpu.encoder = percent(reading(device.encoder_utilization()).map(|u| u.utilization));
    gpu.decoder = percent(reading(device.decoder_utilization()).map(|u| u.utilization));
    (gpu.memory_temperature, gpu.recovery_action) = field_values(device);
    gpu.pcie.generation = link(gpu, device.current_pcie_link_gen());
    gpu.pcie.width = link(gpu, device.current_pcie_link_width());
    gpu.nvlinks_up = nvlinks_up(device);
    gpu.ecc = ecc(device);
    read_mig(device, gpu);
}

/// Maximum plausible speed of a fan. NVML's documentation says that it may exceed 100 %.
const MAX_FAN_PERCENT: u32 = 300;
const MAX_FANS: u32 = 16;

/// Reads the speed of each fan. For data-centre GPUs, which have no fan, the driver rejects the query as an invalid
/// argument. Drivers that cannot count the fans know only the first.
fn fans(device: &Device<'_>) -> Vec<Reading<Percent>> {
    let speed = |fan| {
        let speed = reading(device.fan_speed(fan)).at_most(MAX_FAN_PERCENT);
        speed.map(|speed| Percent(f64::from(speed)))
    };
    (0..device.num_fans().unwrap_or(1).min(MAX_FANS)).map(speed).collect()
}

fn fastest(fans: &[Reading<Percent>]) -> Reading<Percent> {
    let speeds = fans.iter().filter_map(Reading::get);
    let fastest = speeds.max_by(|a, b| a.0.total_cmp(&b.0));
    match (fastest, fans.first()) {
        (Some(fastest), _) => fastest.into(),
        (None, Some(first)) => first.clone(),
        (None, None) => Reading::missing(Reason::Unsupported, "the GPU does not have a fan"),
    }
}

/// Reads the values that have no call of their own: the temperature of the memory, and the recovery action.
fn field_values(device: &Device<'_>) -> (Reading<Celsius>, Reading<RecoveryAction>) {
    const FIELDS: [FieldId; 2] =
        [FieldId(NVML_FI_DEV_MEMORY_TEMP), FieldId(NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)];
    let values = match device.field_values_for(&FIELDS) {
        Ok(values) => values,
        Err(error) => {
            let why = super::reason::missing(&error);
            return (Reading::Missing(why.clone()), Reading::Missing(why));
        }
    };
    let mut values = values.into_iter().map(|value| match value?.value? {
        SampleValue::U32(value) => Ok(value),
        _ => Err(NvmlError::NoData),
    });
    let mut next = || values.next().unwrap_or(Err(NvmlError::NoData));
    (above_zero(next()), reading(next()).map(RecoveryAction))
}

/// Counts the NVLinks that are up. On a GPU without NVLink, this is one call, which fails.
fn nvlinks_up(device: &Device<'_>) -> Reading<u32> {
    let is_up = |link| device.link_wrapper_for(link).is_active();
    let up = |first| {
        let others = (1..NVML_NVLINK_MAX_LINKS).filter(|link| is_up(*link).unwrap_or(false));
        u32::from(first) + u32::try_from(others.count()).unwrap_or(0)
    };
    reading(is_up(0)).map(up)
}

/// Converts a temperature that is 0 only because the GPU does not have the sensor or the limit.
fn above_zero(result: Result<u32, NvmlError>) -> Reading<Celsius> {
    match celsius(result) {
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

/// Returns the instances, and why one of them could not be read.
fn mig(device: &Device<'_>) -> (Vec<MigInstance>, Option<Missing>) {
    let count = device.mig_device_count().unwrap_or(0).min(16);
    let (mut instances, mut unread) = (Vec::new(), None);
    for index in 0..count {
        match device.mig_device_by_index(index) {
            Ok(found) => instances.extend(mig_instance(&found, index)),
            // There can be fewer instances than the GPU allows.
            Err(NvmlError::NotFound | NvmlError::InvalidArg) => {}
            Err(error) => unread = Some(super::reason::missing(&error)),
        }
    }
    (instances, unread)
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

/// Reads the memory of the known MIG instances. If one is gone or another has its index, lists them again.
fn read_mig_memory(device: &Device<'_>, gpu: &mut Gpu) {
    for instance in &mut gpu.mig {
        let found = device.mig_device_by_index(instance.index);
        let is_same = |mig: &Device<'_>| {
            mig.uuid().is_ok_and(|uuid| visible(uuid.as_bytes(), 96) == *instance.uuid.0)
        };
        match found {
            Ok(mig) if is_same(&mig) => instance.memory = memory(&mig).unwrap_or_default(),
            _ => return read_mig(device, gpu),
        }
    }
}

fn read_mig(device: &Device<'_>, gpu: &mut Gpu) {
    gpu.mig_enabled = reading(device.mig_mode()).map(|mode| mode.current == 1);
    let is_on = gpu.mig_enabled.get() == Some(true);
    (gpu.mig, gpu.mig_unread) = if is_on { mig(device) } else { Default::default() };
}

/// Reads the processes on a GPU from the list of compute processes and from `lists`. Copies their utilization from the
/// previous list, because utilization is read less often. Returns true if there are MPS clients.
pub fn processes(
    device: &Device<'_>,
    gpu: &mut Gpu,
    lists: &[ProcessList],
    buffers: &mut raw::Buffers,
) -> bool {
    let compute = raw::processes(device, ProcessList::Compute, buffers);
    let mut read = |list| {
        if lists.contains(&list) {
            raw::processes(device, list, buffers).unwrap_or_default()
        } else {
            Vec::new()
        }
    };
    let (graphics, mps) = (read(ProcessList::Graphics), read(ProcessList::Mps));
    let total = gpu.memory.total.get().unwrap_or(Bytes(u64::MAX));
    let before = std::mem::take(&mut gpu.processes);
    gpu.processes = reading(compute).map(|compute| {
        let mut list: Vec<GpuProcess> = Vec::with_capacity(compute.len() + graphics.len());
        // Clients of MPS are not in the list of compute processes, or not with every driver.
        for (kind, listed) in compute
            .iter()
            .chain(&mps)
            .map(|l| (ContextKind::Compute, l))
            .chain(graphics.iter().map(|l| (ContextKind::Graphics, l)))
        {
            merge(&mut list, kind, listed, total);
        }
        carry_over(before.value(), &mut list);
        list.sort_by_key(|p| p.pid);
        list
    });
    !mps.is_empty()
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

/// Maximum distance of a sample into the future. Later ones were made before the wall clock was set back.
const MAX_AHEAD_MICROS: u64 = 10_000_000;

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
    // The driver stamps samples with the wall clock. After a jump of the clock, older samples may lie in the future.
    let latest =
        now_wall().0.cast_unsigned().saturating_mul(1_000).saturating_add(MAX_AHEAD_MICROS);
    let since = if since > latest { 0 } else { since };
    let samples = raw::process_utilization(device, since, buffers);
    let Reading::Value(list) = &mut gpu.processes else { return since };
    for process in list {
        let newest = samples.as_ref().map(|samples| {
            let past = samples.iter().filter(|sample| sample.timeStamp <= latest);
            let own = past.filter(|sample| sample.pid == process.pid.0);
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
    let times = samples.unwrap_or_default().iter().map(|sample| sample.timeStamp);
    times.filter(|time| *time <= latest).max().unwrap_or(since)
}

/// NVLink counters from the last read, for computing rates.
#[derive(Debug, Clone, Copy)]
pub struct NvlinkCounters {
    at: Mono,
    tx_kib: u64,
    rx_kib: u64,
}

/// Metrics of the driver's performance monitor (GPM), in the order of the request.
const GPM_METRICS: [GpmMetricId; 7] = [
    GpmMetricId::SmUtil,
    GpmMetricId::AnyTensorUtil,
    GpmMetricId::DramBwUtil,
    GpmMetricId::PcieTxPerSec,
    GpmMetricId::PcieRxPerSec,
    GpmMetricId::NvlinkTotalTxPerSec,
    GpmMetricId::NvlinkTotalRxPerSec,
];

/// Returns true if the driver computes metrics from samples of this GPU's counters, as it does from Hopper on.
pub fn has_gpm(device: &Device<'_>) -> bool {
    device.gpm_support().unwrap_or(false)
}

/// Held while a thread uses the performance monitor. Two threads that computed metrics at the same time crashed the
/// driver's library (580.159.04, two H200s).
static PERFORMANCE_MONITOR: Mutex<()> = Mutex::new(());
/// Maximum time to wait for another GPU. A GPU takes about 2 ms, unless it hangs.
const MONITOR_TIMEOUT: Duration = Duration::from_millis(100);

fn lock_monitor() -> Option<MutexGuard<'static, ()>> {
    let start = Instant::now();
    loop {
        match PERFORMANCE_MONITOR.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if start.elapsed() > MONITOR_TIMEOUT => return None,
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Takes a sample and compares it with the last one. Returns a reading of each metric.
fn metrics<'n>(
    nvml: &'n Nvml,
    device: &Device<'n>,
    last: &mut Option<GpmSample<'n>>,
) -> Vec<Reading<f64>> {
    let missing = |why: Missing| vec![Reading::Missing(why); GPM_METRICS.len()];
    let Some(_guard) = lock_monitor() else {
        return missing(Missing::new(Reason::NotRead, "another GPU does not answer"));
    };
    let sample = match device.gpm_sample() {
        Ok(sample) => sample,
        Err(error) => {
            *last = None;
            return missing(super::reason::missing(&error));
        }
    };
    let metrics = match &*last {
        Some(last) => match gpm_metrics_get(nvml, last, &sample, &GPM_METRICS) {
            Ok(list) => {
                list.into_iter().map(|metric| reading(metric.map(|metric| metric.value))).collect()
            }
            Err(error) => missing(super::reason::missing(&error)),
        },
        None => missing(Missing::new(Reason::NotRead, "needs two readings")),
    };
    *last = Some(sample);
    metrics
}

/// Reads the values that are shown only while the screen of a GPU with GPM is open. `last` is the previous sample.
pub fn performance<'n>(
    nvml: &'n Nvml,
    device: &Device<'n>,
    now: Mono,
    last: &mut Option<GpmSample<'n>>,
) -> Traffic {
    let metrics = metrics(nvml, device, last);
    let value = |at: usize| metrics.get(at).cloned().unwrap_or_default();
    let share = |at: usize| match value(at) {
        Reading::Value(share) if !(0.0..=100.5).contains(&share) => {
            Reading::Missing(Reason::Implausible.into())
        }
        share => share.map(|share| Percent(share.min(100.0))),
    };
    // NVML's documentation and measurements agree on MiB/s for PCIe and NVLink.
    let rate = |at: usize, max: BytesPerSecond| match value(at) {
        Reading::Value(mib) if mib.is_finite() && mib >= 0.0 => {
            Reading::Value(BytesPerSecond((mib * MIB) as u64)).at_most(max)
        }
        Reading::Value(_) => Reading::Missing(Reason::Implausible.into()),
        Reading::Missing(why) => Reading::Missing(why),
    };
    Traffic {
        at: now,
        sm_active: share(0),
        tensor_active: share(1),
        memory_rate: share(2),
        pcie_tx: rate(3, MAX_PCIE),
        pcie_rx: rate(4, MAX_PCIE),
        nvlink_tx: rate(5, MAX_NVLINK),
        nvlink_rx: rate(6, MAX_NVLINK),
        pcie_replays: reading(device.pcie_replay_counter()),
        energy: reading(device.total_energy_consumption()).map(MilliJoules),
    }
}

const MIB: f64 = 1_048_576.0;
/// Maximum plausible traffic, several times that of the fastest links. The driver marks values that it does not have with
/// huge numbers.
const MAX_PCIE: BytesPerSecond = BytesPerSecond(1_000_000_000_000);
const MAX_NVLINK: BytesPerSecond = BytesPerSecond(20_000_000_000_000);

/// Reads the values that are shown only while the screen of a GPU without GPM is open.
pub fn traffic(device: &Device<'_>, now: Mono, last: &mut Option<NvlinkCounters>) -> Traffic {
    let no_gpm = || Reading::missing(Reason::Unsupported, "not measured by the driver");
    // The driver counts 1000 bytes as a KB here (nvml.h: "PCIe throughput in KB/s").
    let pcie = |counter| {
        let rate = reading(device.pcie_throughput(counter));
        rate.map(|kb| BytesPerSecond(u64::from(kb) * 1_000)).at_most(MAX_PCIE)
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
        sm_active: no_gpm(),
        tensor_active: no_gpm(),
        memory_rate: no_gpm(),
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

pub fn any_compute(gpu: &Gpu) -> bool {
    gpu.processes.value().is_some_and(|list| list.iter().any(|p| p.kind != ContextKind::Graphics))
}

pub fn any_graphics(gpu: &Gpu) -> bool {
    gpu.processes.value().is_some_and(|list| list.iter().any(|p| p.kind != ContextKind::Compute))
}
