//! The baseline loop: it loads NVML as gputop does, makes the given calls at the given rates from one thread, once a
//! second, and ignores the results.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{
    Clock, EccCounter, MemoryError, PcieUtilCounter, TemperatureSensor, TemperatureThreshold,
};
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings as nvml;

use crate::rates::Rates;

const TICK: Duration = Duration::from_secs(1);

/// Prints `ready` on stdout once every GPU has a handle, then runs until it is killed.
pub fn run(rates: &Path) -> ! {
    let library = std::env::var_os("GPUTOP_NVML").unwrap();
    // The library and the handles live as long as the process.
    let nvml: &'static Nvml =
        Box::leak(Box::new(Nvml::builder().lib_path(&library).init().unwrap()));
    let count = nvml.device_count().unwrap();
    let devices: Vec<Device<'static>> =
        (0..count).map(|index| nvml.device_by_index(index).unwrap()).collect();
    println!("ready");
    let mut work = Work::new(devices, &Rates::read(rates));
    let mut next = Instant::now();
    loop {
        work.tick();
        next += TICK;
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

struct Work {
    devices: Vec<Device<'static>>,
    due: Vec<ScheduledCall>,
    buffers: Buffers,
}

/// A call with its rate in calls per second, and the GPU for the next call.
struct ScheduledCall {
    call: Call,
    rate: f64,
    pending_calls: f64,
    gpu: usize,
}

type Call = fn(&Device<'static>, &mut Buffers);

impl Work {
    fn new(devices: Vec<Device<'static>>, rates: &Rates) -> Self {
        let mut due = Vec::new();
        for (name, rate) in &rates.0 {
            match call(name) {
                Some(call) => {
                    due.push(ScheduledCall { call, rate: *rate, pending_calls: 0.0, gpu: 0 });
                }
                None if name == "event_wait" => wait_for_events(devices[0].nvml()),
                None => eprintln!("the loop does not make the call {name} ({rate}/s)"),
            }
        }
        Self { devices, due, buffers: Buffers::new() }
    }

    fn tick(&mut self) {
        for due in &mut self.due {
            due.pending_calls += due.rate * TICK.as_secs_f64();
            while due.pending_calls >= 1.0 {
                due.pending_calls -= 1.0;
                (due.call)(&self.devices[due.gpu], &mut self.buffers);
                due.gpu = (due.gpu + 1) % self.devices.len();
            }
        }
    }
}

/// Waits for events on a separate thread, because the wait blocks.
fn wait_for_events(nvml: &'static Nvml) {
    thread::spawn(move || {
        let set = nvml.create_event_set().unwrap();
        let device = nvml.device_by_index(0).unwrap();
        let set = device.register_events(EventTypes::CRITICAL_XID_ERROR, set);
        let Ok(set) = set else { return };
        loop {
            let _ = set.wait(1000);
        }
    });
}

const MAX_PROCESSES: usize = 256;

/// Buffers for the lists, reused between calls.
struct Buffers {
    processes: Vec<nvml::nvmlProcessInfo_t>,
    samples: Vec<nvml::nvmlProcessUtilizationSample_t>,
}

impl Buffers {
    fn new() -> Self {
        let process = nvml::nvmlProcessInfo_t {
            pid: 0,
            usedGpuMemory: 0,
            gpuInstanceId: 0,
            computeInstanceId: 0,
        };
        let sample = nvml::nvmlProcessUtilizationSample_t {
            pid: 0,
            timeStamp: 0,
            smUtil: 0,
            memUtil: 0,
            encUtil: 0,
            decUtil: 0,
        };
        Self { processes: vec![process; MAX_PROCESSES], samples: vec![sample; MAX_PROCESSES] }
    }
}

fn call(name: &str) -> Option<Call> {
    Some(match name {
        "memory" => |d, _| _ = d.memory_info(),
        "utilization" => |d, _| _ = d.utilization_rates(),
        "encoder" => |d, _| _ = d.encoder_utilization(),
        "decoder" => |d, _| _ = d.decoder_utilization(),
        "power" => |d, _| _ = d.power_usage(),
        "power_limit" => |d, _| _ = d.enforced_power_limit(),
        "power_constraints" => |d, _| _ = d.power_management_limit_constraints(),
        "energy" => |d, _| _ = d.total_energy_consumption(),
        "temperature" => |d, _| _ = d.temperature(TemperatureSensor::Gpu),
        "temperature_threshold" => {
            |d, _| _ = d.temperature_threshold(TemperatureThreshold::Slowdown)
        }
        "fan" => |d, _| _ = d.fan_speed(0),
        "fan_count" => |d, _| _ = d.num_fans(),
        "clock" => |d, _| _ = d.clock_info(Clock::SM),
        "max_clock" => |d, _| _ = d.max_clock_info(Clock::SM),
        "pstate" => |d, _| _ = d.performance_state(),
        "throttle" => |d, _| _ = d.current_throttle_reasons(),
        "pcie_generation" => |d, _| _ = d.current_pcie_link_gen(),
        "pcie_width" => |d, _| _ = d.current_pcie_link_width(),
        "pcie_max_generation" => |d, _| _ = d.max_pcie_link_gen(),
        "pcie_max_width" => |d, _| _ = d.max_pcie_link_width(),
        "pcie_throughput" => |d, _| _ = d.pcie_throughput(PcieUtilCounter::Send),
        "pcie_replays" => |d, _| _ = d.pcie_replay_counter(),
        "ecc_mode" => |d, _| _ = d.is_ecc_enabled(),
        "ecc_errors" => |d, _| _ = d.total_ecc_errors(MemoryError::Corrected, EccCounter::Volatile),
        "remapped_rows" => |d, _| remapped_rows(d),
        "mig_mode" => |d, _| _ = d.mig_mode(),
        "field_values" => |d, _| _ = d.field_values_for(&[FieldId(82), FieldId(230)]),
        "nvlink_state" => |d, _| _ = d.link_wrapper_for(0).is_active(),
        "nvlink_counters" => |d, _| _ = d.field_values_for(&[FieldId(138), FieldId(139)]),
        "process_list" => |d, buffers| {
            let lib = d.nvml().lib();
            list(d, lib.nvmlDeviceGetComputeRunningProcesses_v3.as_ref(), buffers);
        },
        "graphics_process_list" => |d, buffers| {
            let lib = d.nvml().lib();
            list(d, lib.nvmlDeviceGetGraphicsRunningProcesses_v3.as_ref(), buffers);
        },
        "process_utilization" => process_utilization,
        _ => return None,
    })
}

type ListProcesses = unsafe extern "C" fn(
    nvml::nvmlDevice_t,
    *mut u32,
    *mut nvml::nvmlProcessInfo_t,
) -> nvml::nvmlReturn_t;

/// Lists processes in one call, as gputop does. The wrapper makes two.
#[allow(unsafe_code)]
fn list<E>(device: &Device<'_>, call: Result<&ListProcesses, E>, buffers: &mut Buffers) {
    let Ok(call) = call else { return };
    let mut count = u32::try_from(MAX_PROCESSES).unwrap();
    let out = buffers.processes.as_mut_ptr();
    // SAFETY: `processes` has as many entries as `count` says.
    unsafe { call(device.handle(), &raw mut count, out) };
}

#[allow(unsafe_code)]
fn process_utilization(device: &Device<'static>, buffers: &mut Buffers) {
    let lib = device.nvml().lib();
    let Ok(call) = &lib.nvmlDeviceGetProcessUtilization else {
        return;
    };
    let mut count = u32::try_from(MAX_PROCESSES).unwrap();
    let out = buffers.samples.as_mut_ptr();
    // SAFETY: `samples` has as many entries as `count` says.
    unsafe { call(device.handle(), out, &raw mut count, since()) };
}

/// Returns the time five seconds ago on the clock of the samples, close to the last sample that gputop would have seen.
fn since() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    (now - Duration::from_secs(5)).as_micros().try_into().unwrap()
}

#[allow(unsafe_code)]
fn remapped_rows(device: &Device<'_>) {
    let Ok(call) = &device.nvml().lib().nvmlDeviceGetRemappedRows else {
        return;
    };
    let [mut a, mut b, mut c, mut d] = [0; 4];
    // SAFETY: four out-pointers to integers.
    unsafe { call(device.handle(), &raw mut a, &raw mut b, &raw mut c, &raw mut d) };
}
