//! Checks that the fake NVML behaves like NVML, through the wrapper and the raw symbols that gputop uses.

use std::ptr;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{
    Clock, EccCounter, MemoryError, MemoryLocation, PcieUtilCounter, PerformanceState,
    TemperatureSensor, TemperatureThreshold,
};
use nvml_wrapper::enums::device::{DeviceArchitecture, SampleValue, UsedGpuMemory};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings as nvml;

use crate::support::deadline::DEADLINE;
use crate::support::fake_machine::wait_until;
use crate::support::fake_nvml::FakeNvml;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn one(keys: &str) -> FakeNvml {
    FakeNvml::new(&format!("[[gpu]]\n{keys}"))
}

#[test]
fn the_system_has_versions_and_names() {
    let fake = FakeNvml::h200s(
        1,
        "[driver]\nversion = \"555.42\"\n[[process]]\npid = 7\nname = \"/x/train\"\n",
    );
    let nvml = fake.load();
    assert_eq!(nvml.sys_driver_version().unwrap(), "555.42");
    assert_eq!(nvml.sys_nvml_version().unwrap(), "13.580.159.03");
    assert_eq!(nvml.sys_cuda_driver_version().unwrap(), 13000);
    assert_eq!(nvml.sys_process_name(7, 64).unwrap(), "/x/train");
    assert!(matches!(nvml.sys_process_name(8, 64), Err(NvmlError::NotFound)));
}

#[test]
fn init_fails_as_the_scenario_says() {
    for (init, code) in [("driver_not_loaded", 9), ("no_permission", 4), ("mismatch", 18)] {
        let fake = FakeNvml::new(&format!("[driver]\ninit = \"{init}\"\n"));
        let error = fake.try_load().unwrap_err();
        assert_eq!(nvml::nvmlReturn_t::from(error), code, "{init}");
    }
    let fake = FakeNvml::new("");
    assert_eq!(fake.load().device_count().unwrap(), 0);
}

#[test]
fn a_scenario_that_was_never_good_fails_init() {
    let fake = FakeNvml::new("");
    fake.write_raw("no = [ sense");
    assert!(matches!(fake.try_load(), Err(NvmlError::Unknown)));
}

#[test]
fn devices_are_found_by_index_uuid_and_bus() {
    let fake = FakeNvml::h200s(8, "");
    let nvml = fake.load();
    assert_eq!(nvml.device_count().unwrap(), 8);
    for index in 0..8 {
        let device = nvml.device_by_index(index).unwrap();
        assert_eq!(device.index().unwrap(), index);
        assert_eq!(device.minor_number().unwrap(), index);
        let uuid = device.uuid().unwrap();
        let bus = device.pci_info().unwrap().bus_id;
        assert_eq!(uuid.len(), 40);
        assert_eq!(nvml.device_by_uuid(uuid).unwrap().index().unwrap(), index);
        assert_eq!(nvml.device_by_pci_bus_id(bus).unwrap().index().unwrap(), index);
    }
    assert!(matches!(nvml.device_by_index(8), Err(NvmlError::InvalidArg)));
    assert!(matches!(nvml.device_by_uuid("GPU-x"), Err(NvmlError::NotFound)));
    let elsewhere = nvml.device_by_pci_bus_id("0000:99:00.0");
    assert!(matches!(elsewhere, Err(NvmlError::NotFound)));
}

#[test]
fn a_gpu_says_what_it_is() {
    let fake = one("pci_bus = \"00000001:3B:00.0\"\nserial = \"S\"\ncompute_mode = 3\n");
    let nvml = fake.load();
    let device = nvml.device_by_index(0).unwrap();
    let pci = device.pci_info().unwrap();
    assert_eq!((pci.domain, pci.bus, pci.device), (1, 0x3b, 0));
    assert_eq!(pci.bus_id, "00000001:3B:00.0");
    assert_eq!(device.name().unwrap(), "NVIDIA H200");
    assert_eq!(device.serial().unwrap(), "S");
    assert_eq!(device.board_part_number().unwrap(), "675-25520-0010-000");
    assert_eq!(device.vbios_version().unwrap(), "96.00.B7.00.01");
    assert_eq!(device.architecture().unwrap(), DeviceArchitecture::Hopper);
    assert_eq!(device.cuda_compute_capability().unwrap().major, 9);
    assert!(device.is_in_persistent_mode().unwrap());
    assert_eq!(format!("{:?}", device.compute_mode().unwrap()), "ExclusiveProcess");
    device.brand().unwrap();
}

#[test]
fn memory_adds_up_in_both_versions() {
    let fake = one("context = \"1 GiB\"\n[[process]]\npid = 1\nused = \"2 GiB\"\n\
                    [[process]]\npid = 2\nused = \"unavailable\"\n");
    let nvml = fake.load();
    let device = nvml.device_by_index(0).unwrap();
    let info = device.memory_info().unwrap();
    assert_eq!(info.total, 143_771 * MIB);
    assert_eq!(info.reserved, 616 * MIB);
    assert_eq!(info.used, 3 * GIB);
    assert_eq!(info.total, info.used + info.free + info.reserved);
    let first = memory_v1(&device);
    assert_eq!(first.used, info.used + info.reserved);
    assert_eq!(first.total, first.used + first.free);
    assert_eq!(device.bar1_memory_info().unwrap().total, 262_144 * MIB);
}

fn memory_v1(device: &Device<'_>) -> nvml::nvmlMemory_t {
    let mut info = nvml::nvmlMemory_t { total: 0, free: 0, used: 0 };
    let lib = device.nvml().lib();
    let call = lib.nvmlDeviceGetMemoryInfo.as_ref().unwrap();
    // SAFETY: one out-pointer to a struct of the version the symbol is for.
    #[allow(unsafe_code)]
    let code = unsafe { call(device.handle(), &raw mut info) };
    assert_eq!(code, 0);
    info
}

#[test]
fn values_may_be_absurd() {
    let fake = one("sm = 4294967295\nused = \"18446744073709551615\"\nfree = 5\npstate = 77\n");
    let nvml = fake.load();
    let device = nvml.device_by_index(0).unwrap();
    assert_eq!(device.utilization_rates().unwrap().gpu, u32::MAX);
    let info = device.memory_info().unwrap();
    assert_eq!((info.used, info.free), (u64::MAX, 5));
    assert!(device.performance_state().is_err());
}

#[test]
fn load_power_heat_and_clocks() {
    let fake = one(
        "sm = 97\nmemory_bandwidth = 40\nencoder = 3\ndecoder = 4\npower = 131000\ntemperature = 44\n\
         memory_temperature = 50\nfans = [30, 60]\nsm_clock = 1500\nthrottle = [\"sw_power_cap\", \"hw_thermal\"]\n",
    );
    let nvml = fake.load();
    let device = nvml.device_by_index(0).unwrap();
    let rates = device.utilization_rates().unwrap();
    assert_eq!((rates.gpu, rates.memory), (97, 40));
    assert_eq!(device.encoder_utilization().unwrap().utilization, 3);
    assert_eq!(device.decoder_utilization().unwrap().utilization, 4);
    assert_eq!(device.power_usage().unwrap(), 131_000);
    assert_eq!(device.enforced_power_limit().unwrap(), 700_000);
    assert_eq!(device.power_management_limit().unwrap(), 700_000);
    assert_eq!(device.power_management_limit_default().unwrap(), 700_000);
    let limits = device.power_management_limit_constraints().unwrap();
    assert_eq!((limits.min_limit, limits.max_limit), (200_000, 700_000));
    assert!(device.total_energy_consumption().unwrap() >= 1_000_000_000);
    assert_eq!(device.temperature(TemperatureSensor::Gpu).unwrap(), 44);
    let threshold = |which| device.temperature_threshold(which).unwrap();
    assert_eq!(threshold(TemperatureThreshold::Shutdown), 92);
    assert_eq!(threshold(TemperatureThreshold::Slowdown), 89);
    assert_eq!(device.num_fans().unwrap(), 2);
    assert_eq!(device.fan_speed(1).unwrap(), 60);
    assert_eq!(device.clock_info(Clock::SM).unwrap(), 1500);
    assert_eq!(device.clock_info(Clock::Memory).unwrap(), 3201);
    assert_eq!(device.max_clock_info(Clock::Graphics).unwrap(), 1980);
    assert_eq!(device.performance_state().unwrap(), PerformanceState::Zero);
    assert_eq!(
        device.current_throttle_reasons().unwrap(),
        ThrottleReasons::SW_POWER_CAP | ThrottleReasons::HW_THERMAL_SLOWDOWN
    );
    device.supported_throttle_reasons().unwrap();
}

#[test]
fn an_h200_has_no_fan() {
    let nvml_of = one("");
    let nvml = nvml_of.load();
    let device = nvml.device_by_index(0).unwrap();
    assert_eq!(device.num_fans().unwrap(), 0);
    assert!(matches!(device.fan_speed(0), Err(NvmlError::NotSupported)));
}

#[test]
fn the_pcie_link() {
    let fake = one(
        "pcie_generation = 1\npcie_width = 8\npcie_tx = 1000\npcie_rx = 2000\npcie_replays = 9\n",
    );
    let nvml = fake.load();
    let device = nvml.device_by_index(0).unwrap();
    assert_eq!(device.current_pcie_link_gen().unwrap(), 1);
    assert_eq!(device.current_pcie_link_width().unwrap(), 8);
    assert_eq!(device.max_pcie_link_gen().unwrap(), 5);
    assert_eq!(device.max_pcie_link_width().unwrap(), 16);
    let throughput = |which| device.pcie_throughput(which).unwrap();
    assert_eq!(throughput(PcieUtilCounter::Send), 1000);
    assert_eq!(throughput(PcieUtilCounter::Receive), 2000);
    assert_eq!(device.pcie_replay_counter().unwrap(), 9);
}

#[test]
fn memory_errors_and_remapped_rows() {
    let fake = one(
        "ecc_corrected = 3\necc_uncorrected_lifetime = 2\nremapped_correctable = 1\nremap_pending = true\n",
    );
    let nvml = fake.load();
    let device = nvml.device_by_index(0).unwrap();
    assert!(device.is_ecc_enabled().unwrap().currently_enabled);
    let total = |kind, counter| device.total_ecc_errors(kind, counter).unwrap();
    assert_eq!(total(MemoryError::Corrected, EccCounter::Volatile), 3);
    assert_eq!(total(MemoryError::Uncorrected, EccCounter::Aggregate), 2);
    let here = device.memory_error_counter(
        MemoryError::Corrected,
        EccCounter::Volatile,
        MemoryLocation::Device,
    );
    assert_eq!(here.unwrap(), 3);
    assert_eq!(remapped_rows(&device), [1, 0, 1, 0]);
}

fn remapped_rows(device: &Device<'_>) -> [u32; 4] {
    let lib = device.nvml().lib();
    let call = lib.nvmlDeviceGetRemappedRows.as_ref().unwrap();
    let [mut a, mut b, mut c, mut d] = [7; 4];
    // SAFETY: four out-pointers to integers.
    #[allow(unsafe_code)]
    let code = unsafe { call(device.handle(), &raw mut a, &raw mut b, &raw mut c, &raw mut d) };
    assert_eq!(code, 0);
    [a, b, c, d]
}

#[test]
fn processes_are_listed_with_their_memory() {
    let fake = FakeNvml::h200s(
        2,
        "[[process]]\npid = 1\nused = 1000\n[[process]]\npid = 2\nused = \"unavailable\"\n\
         [[process]]\npid = 3\ngpu = 1\n[[process]]\npid = 4\nkind = \"graphics\"\n[[process]]\npid = 5\nkind = \"mps\"\n",
    );
    let nvml = fake.load();
    let device = nvml.device_by_index(0).unwrap();
    let list = device.running_compute_processes().unwrap();
    let pids = |list: &[nvml_wrapper::struct_wrappers::device::ProcessInfo]| {
        list.iter().map(|p| p.pid).collect::<Vec<_>>()
    };
    assert_eq!(pids(&list), [1, 2]);
    assert_eq!(list[0].used_gpu_memory, UsedGpuMemory::Used(1000));
    assert_eq!(list[1].used_gpu_memory, UsedGpuMemory::Unavailable);
    assert_eq!(list[0].gpu_instance_id, None);
    assert_eq!(pids(&device.running_compute_processes_v2().unwrap()), [1, 2]);
    assert_eq!(pids(&device.running_graphics_processes().unwrap()), [4]);
    assert_eq!(pids(&device.mps_running_compute_processes().unwrap()), [5]);
}

type ProcessList = unsafe extern "C" fn(
    nvml::nvmlDevice_t,
    *mut u32,
    *mut nvml::nvmlProcessInfo_t,
) -> nvml::nvmlReturn_t;

/// Returns the code and the count for an array with this many entries.
fn call_with_capacity(call: ProcessList, device: &Device<'_>, room: usize) -> (u32, u32) {
    // SAFETY: integers only, for which zero is a value.
    #[allow(unsafe_code)]
    let mut list = vec![unsafe { std::mem::zeroed() }; room];
    let mut count = u32::try_from(room).unwrap();
    let out = match room {
        0 => ptr::null_mut(),
        _ => list.as_mut_ptr(),
    };
    // SAFETY: `list` has `count` entries.
    #[allow(unsafe_code)]
    let code = unsafe { call(device.handle(), &raw mut count, out) };
    (code, count)
}

#[test]
fn a_short_array_is_told_the_length_it_needs() {
    let fake = FakeNvml::h200s(2, &"[[process]]\npid = 1\n".repeat(3));
    let nvml = fake.load();
    let call = *nvml.lib().nvmlDeviceGetComputeRunningProcesses_v3.as_ref().unwrap();
    let busy = nvml.device_by_index(0).unwrap();
    let idle = nvml.device_by_index(1).unwrap();
    let too_small = nvml::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE;
    assert_eq!(call_with_capacity(call, &busy, 0), (too_small, 3));
    assert_eq!(call_with_capacity(call, &busy, 2), (too_small, 3));
    assert_eq!(call_with_capacity(call, &busy, 3), (0, 3));
    assert_eq!(call_with_capacity(call, &busy, 9), (0, 3));
    assert_eq!(call_with_capacity(call, &idle, 0), (0, 0));
}

#[test]
fn process_utilization_gives_what_is_newer() {
    let fake = FakeNvml::h200s(
        1,
        "[[process]]\npid = 1\nsm = 50\nmem = 20\n[[process]]\npid = 2\n[[process]]\npid = 3\nsm = 4294967295\n",
    );
    let nvml = fake.load();
    let device = nvml.device_by_index(0).unwrap();
    let samples = device.process_utilization_stats(None).unwrap();
    // The idle process has no sample. The absurd value is passed through unchanged.
    let read: Vec<_> = samples.iter().map(|s| (s.pid, s.sm_util, s.mem_util)).collect();
    assert_eq!(read, [(1, 50, 20), (3, u32::MAX, 0)]);
    let seen = samples[0].timestamp;
    let future_samples = device.process_utilization_stats(seen + 60_000_000);
    assert!(matches!(future_samples, Err(NvmlError::NotFound)));
    wait_until("a newer sample comes", || {
        device.process_utilization_stats(seen).is_ok_and(|newer| newer[0].timestamp > seen)
    });
}

const MIG: &str = "[[gpu]]\nmig = [{ profile = \"3g.71gb\", gi = 1 }, { profile = \"1g.18gb\", gi = 9, ci = 0, total = 1000, used = 400, uuid = \"MIG-x\" }]\n\
    [[process]]\npid = 1\ngi = 1\nci = 0\nused = 100\n[[process]]\npid = 2\ngi = 9\nci = 0\nused = 200\n";

#[test]
fn mig_devices_are_parts_of_their_gpu() {
    let fake = FakeNvml::new(MIG);
    let nvml = fake.load();
    let gpu = nvml.device_by_index(0).unwrap();
    assert_eq!(gpu.mig_mode().unwrap().current, 1);
    assert_eq!(gpu.mig_device_count().unwrap(), 7);
    assert!(!gpu.mig_is_mig_device_handle().unwrap());
    assert!(matches!(gpu.utilization_rates(), Err(NvmlError::NotSupported)));
    assert!(matches!(gpu.mig_device_by_index(2), Err(NvmlError::NotFound)));

    let part = gpu.mig_device_by_index(1).unwrap();
    assert!(part.mig_is_mig_device_handle().unwrap());
    assert_eq!(part.uuid().unwrap(), "MIG-x");
    assert_eq!(part.name().unwrap(), "NVIDIA H200 MIG 1g.18gb");
    let info = part.memory_info().unwrap();
    assert_eq!((info.total, info.used, info.free), (1000, 400, 600));
    assert_eq!(part.mig_parent_device().unwrap().uuid().unwrap(), gpu.uuid().unwrap());
    assert_eq!(part.attributes().unwrap().gpu_instance_slice_count, 1);
    assert!(matches!(part.power_usage(), Err(NvmlError::NotSupported)));
    assert_eq!(nvml.device_by_uuid("MIG-x").unwrap().name().unwrap(), part.name().unwrap());
    let first = gpu.mig_device_by_index(0).unwrap();
    assert_eq!(first.memory_info().unwrap().used, 100);
    assert_eq!(first.memory_info().unwrap().total, 71 * GIB);
    assert_eq!(instances(&part), (9, 0));
}

fn instances(device: &Device<'_>) -> (u32, u32) {
    let lib = device.nvml().lib();
    let call_with_capacity = |call: unsafe extern "C" fn(nvml::nvmlDevice_t, *mut u32) -> u32| {
        let mut id = 77;
        // SAFETY: one out-pointer to an integer.
        #[allow(unsafe_code)]
        let code = unsafe { call(device.handle(), &raw mut id) };
        assert_eq!(code, 0);
        id
    };
    (
        call_with_capacity(*lib.nvmlDeviceGetGpuInstanceId.as_ref().unwrap()),
        call_with_capacity(*lib.nvmlDeviceGetComputeInstanceId.as_ref().unwrap()),
    )
}

#[test]
fn mig_processes_carry_their_instance() {
    let fake = FakeNvml::new(MIG);
    let nvml = fake.load();
    let gpu = nvml.device_by_index(0).unwrap();
    let all = gpu.running_compute_processes().unwrap();
    let ids: Vec<_> = all.iter().map(|p| (p.pid, p.gpu_instance_id)).collect();
    assert_eq!(ids, [(1, Some(1)), (2, Some(9))]);
    let part = gpu.mig_device_by_index(1).unwrap();
    let own = part.running_compute_processes().unwrap();
    assert_eq!(own.iter().map(|p| p.pid).collect::<Vec<_>>(), [2]);
    let utilization = gpu.process_utilization_stats(None);
    assert!(matches!(utilization, Err(NvmlError::NotSupported)));
}

#[test]
fn field_values_answer_each_for_itself() {
    let fake = one("memory_temperature = 50\nnvlink_tx = 1000000\n[gpu.fields]\n999 = -4\n");
    let nvml = fake.load();
    let device = nvml.device_by_index(0).unwrap();
    let ids = [82, 91, 777, 999].map(FieldId);
    let values = device.field_values_for(&ids).unwrap();
    let value = |i: usize| values[i].as_ref().unwrap().value.as_ref();
    assert!(matches!(value(0), Ok(SampleValue::U32(50))));
    assert!(matches!(value(1), Ok(SampleValue::U32(18))));
    assert!(matches!(value(2), Err(NvmlError::NotSupported)));
    assert!(matches!(value(3), Ok(SampleValue::I64(-4))));
    assert_eq!(fake.calls().of("field_values"), 1);
    wait_until("the NVLink counter moves", || {
        let sent = device.field_values_for(&[FieldId(138)]).unwrap();
        let sent = sent[0].as_ref().unwrap().value.as_ref();
        matches!(sent, Ok(SampleValue::U64(kib)) if *kib > 0)
    });
    assert!(fake.calls().of("nvlink_counters") > 0);
    assert!(device.link_wrapper_for(17).is_active().unwrap());
    assert!(!device.gpm_support().unwrap());
}

#[test]
fn one_field_value_can_be_taken_away() {
    let fake = one("errors = { memory_temperature = \"not_supported\" }\n");
    let nvml = fake.load();
    let device = nvml.device_by_index(0).unwrap();
    let values = device.field_values_for(&[82, 91].map(FieldId)).unwrap();
    let value = |i: usize| values[i].as_ref().unwrap().value.as_ref();
    assert!(matches!(value(0), Err(NvmlError::NotSupported)));
    assert!(value(1).is_ok());
}

#[test]
fn errors_hit_the_calls_they_name() {
    let fake = FakeNvml::new(
        "[[gpu]]\nerrors = { power = \"not_supported\", process_list = \"no_permission\" }\n\
         [[gpu]]\nerrors = { \"*\" = \"gpu_is_lost\", power = 4711 }\n",
    );
    let nvml = fake.load();
    let first = nvml.device_by_index(0).unwrap();
    assert!(matches!(first.power_usage(), Err(NvmlError::NotSupported)));
    let denied = first.running_compute_processes();
    assert!(matches!(denied, Err(NvmlError::NoPermission)));
    let denied = first.running_graphics_processes();
    assert!(matches!(denied, Err(NvmlError::NoPermission)));
    first.memory_info().unwrap();
    assert!(matches!(nvml.device_by_index(1), Err(NvmlError::GpuLost)));
}

#[test]
fn a_gpu_can_be_lost_and_come_back() {
    let fake = FakeNvml::h200s(2, "");
    let nvml = fake.load();
    let second = nvml.device_by_index(1).unwrap();
    second.memory_info().unwrap();
    fake.replace("[[gpu]]\n");
    wait_until("the GPU is lost", || matches!(second.memory_info(), Err(NvmlError::GpuLost)));
    fake.replace("[[gpu]]\n[[gpu]]\n");
    wait_until("the GPU is back", || second.memory_info().is_ok());
}

#[test]
fn a_reloaded_driver_wants_a_new_session() {
    let fake = FakeNvml::h200s(1, "");
    let nvml = fake.load();
    let device = nvml.device_by_index(0).unwrap();
    fake.replace("[driver]\ngeneration = 1\n[[gpu]]\n");
    wait_until("the old session is dead", || {
        matches!(device.power_usage(), Err(NvmlError::GpuLost))
    });
    drop(nvml);
    let nvml = fake.load();
    nvml.device_by_index(0).unwrap().power_usage().unwrap();
}

#[test]
fn a_scenario_is_read_again_and_a_half_written_one_is_not() {
    let fake = one("sm = 10\n");
    let nvml = fake.load();
    let device = nvml.device_by_index(0).unwrap();
    let sm = || device.utilization_rates().unwrap().gpu;
    assert_eq!(sm(), 10);
    fake.replace("[[gpu]]\nsm = 20\n");
    wait_until("20 is read", || sm() == 20);
    fake.write_raw("[[gpu]]\nsm = 3");
    fake.write_raw("[[gpu]]\nsm = 30\n[[gp");
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(20) {
        assert!([3, 20].contains(&sm()));
    }
    fake.write_raw("[[gpu]]\nsm = 30\n");
    wait_until("30 is read", || sm() == 30);
}

#[test]
fn a_call_hangs_until_the_scenario_lets_it_go() {
    let fake = one("hang = [\"memory\"]\nsm = 5\n");
    let nvml = fake.load();
    let (done, hung) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            let device = nvml.device_by_index(0).unwrap();
            done.send(device.memory_info().map(|info| info.used)).unwrap();
        });
        fake.wait_calls("the call", |calls| calls.on("memory", 0) == 1);
        // Other calls on the same GPU still return.
        let device = nvml.device_by_index(0).unwrap();
        assert_eq!(device.utilization_rates().unwrap().gpu, 5);
        assert!(hung.recv_timeout(Duration::from_millis(30)).is_err());
        fake.replace("[[gpu]]\nused = 99\n");
        let released = hung.recv_timeout(DEADLINE);
        assert_eq!(released.unwrap().unwrap(), 99);
    });
}

#[test]
fn calls_are_counted_by_gpu() {
    let fake = FakeNvml::h200s(2, "");
    let nvml = fake.load();
    let second = nvml.device_by_index(1).unwrap();
    for _ in 0..3 {
        second.power_usage().unwrap();
    }
    let calls = fake.calls();
    assert_eq!((calls.on("power", 0), calls.on("power", 1)), (0, 3));
    assert_eq!(calls.of("init"), 1);
    drop(nvml);
    assert_eq!(fake.calls().of("shutdown"), 1);
    let nvml = fake.load();
    nvml.device_by_index(1).unwrap().power_usage().unwrap();
    assert_eq!(fake.calls().on("power", 1), 4);
    assert_eq!(fake.calls().of("init"), 2);
}

#[test]
fn latency_costs_time() {
    let fake = FakeNvml::new("[latency]\npreset = \"h200\"\nname = 30000\n[[gpu]]\n");
    let nvml = fake.load();
    let device = nvml.device_by_index(0).unwrap();
    let time = |call: &dyn Fn()| {
        let start = Instant::now();
        call();
        start.elapsed()
    };
    assert!(time(&|| _ = device.name().unwrap()) >= Duration::from_millis(30));
    let throughput = || _ = device.pcie_throughput(PcieUtilCounter::Send).unwrap();
    assert!(time(&throughput) >= Duration::from_millis(20));
    let shortest = (0..50).map(|_| time(&|| _ = device.power_usage().unwrap()));
    assert!(shortest.min().unwrap() < Duration::from_millis(1));
}

#[test]
fn wobbling_values_move_and_churning_memory_changes() {
    let text = "wobble = true\nchurn = 0.01\n[[gpu]]\nsm = 90\npower = 600000\n[[process]]\npid = 1\nused = \"20 GiB\"\n";
    let fake = FakeNvml::new(text);
    let nvml = fake.load();
    let device = nvml.device_by_index(0).unwrap();
    let read = || {
        let power = device.power_usage().unwrap();
        (device.utilization_rates().unwrap().gpu, power)
    };
    let values: Vec<_> = (0..20).map(|_| read()).collect();
    assert!(values.iter().any(|value| *value != values[0]));
    assert!(values.iter().all(|(sm, _)| (72..=100).contains(sm)));
    let used = device.memory_info().unwrap().used;
    wait_until("used memory changes", || device.memory_info().unwrap().used != used);
    let again = FakeNvml::new(text);
    let nvml = again.load();
    let device = nvml.device_by_index(0).unwrap();
    let power: Vec<_> = (0..20).map(|_| device.power_usage().unwrap()).collect();
    assert!(power.iter().eq(values.iter().map(|(_, power)| power)));
}

#[test]
fn events_come_once_each_to_who_registered() {
    let fake = FakeNvml::h200s(2, "");
    let nvml = fake.load();
    let device = nvml.device_by_index(1).unwrap();
    let supported = device.supported_event_types().unwrap();
    assert!(supported.contains(EventTypes::CRITICAL_XID_ERROR));
    let set = nvml.create_event_set().unwrap();
    let set = device.register_events(EventTypes::CRITICAL_XID_ERROR, set).unwrap();
    assert!(matches!(set.wait(5), Err(NvmlError::Timeout)));
    let happened = "[[gpu]]\n[[gpu]]\n[[event]]\ngpu = 0\nkind = \"xid\"\ndata = 13\n\
        [[event]]\ngpu = 1\nkind = \"clock\"\n[[event]]\ngpu = 1\nkind = \"xid\"\ndata = 31\n";
    fake.replace(happened);
    let event = set.wait(20_000).unwrap();
    assert_eq!(event.device.index().unwrap(), 1);
    assert_eq!(format!("{:?}", event.event_data.unwrap()), "Value(31)");
    assert!(matches!(set.wait(5), Err(NvmlError::Timeout)));
    fake.replace(&format!("{happened}[[event]]\ngpu = 1\nkind = \"xid\"\ndata = 43\n"));
    let event = set.wait(20_000).unwrap();
    assert_eq!(format!("{:?}", event.event_data.unwrap()), "Value(43)");
}

#[test]
fn many_threads_at_once() {
    let fake = FakeNvml::h200s(4, "[[process]]\npid = 1\n");
    let nvml: Nvml = fake.load();
    thread::scope(|scope| {
        for gpu in 0..4 {
            let nvml = &nvml;
            scope.spawn(move || {
                let device = nvml.device_by_index(gpu).unwrap();
                for _ in 0..500 {
                    device.memory_info().unwrap();
                    device.power_usage().unwrap();
                }
            });
        }
        for sm in 0..20 {
            fake.replace(&"[[gpu]]\n".repeat(4).replace("]]\n", &format!("]]\nsm = {sm}\n")));
        }
    });
    assert_eq!(fake.calls().of("memory"), 2000);
}

#[test]
fn everything_the_wrapper_can_ask_is_there_or_left_out_on_purpose() {
    let fake = one("");
    let nvml = fake.load();
    let lib = nvml.lib();
    assert!(lib.nvmlDeviceGetCount_v2.is_ok());
    // Setters are missing on purpose: gputop must never call them.
    assert!(lib.nvmlDeviceSetPersistenceMode.is_err());
    assert!(lib.nvmlDeviceSetPowerManagementLimit.is_err());
}
