//! Names of the calls in scenarios, errors, latencies and the call log.

use serde::Deserialize;

macro_rules! calls {
    ($($call:ident $name:literal,)*; $($number:ident $key:ident = $value:literal: $symbol:ident,)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Call {
            $(#[serde(rename = $name)] $call,)*
            $($number,)*
            /// Every call.
            #[serde(rename = "*")]
            Any,
        }

        impl Call {
            pub const ALL: &[Self] = &[$(Self::$call,)* $(Self::$number,)*];

            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$call => $name,)*
                    $(Self::$number => stringify!($key),)*
                    Self::Any => "*",
                }
            }
        }
    };
}

numbers! { calls!
    Init "init",
    Shutdown "shutdown",
    DriverVersion "driver_version",
    NvmlVersion "nvml_version",
    CudaVersion "cuda_version",
    ProcessName "process_name",
    DeviceCount "device_count",
    Handle "handle",
    Name "name",
    Uuid "uuid",
    Serial "serial",
    BoardPartNumber "board_part_number",
    Minor "minor",
    Index "index",
    PciInfo "pci_info",
    Vbios "vbios",
    ComputeCapability "compute_capability",
    Persistence "persistence",
    Memory "memory",
    MemoryV1 "memory_v1",
    Bar1 "bar1",
    Utilization "utilization",
    Encoder "encoder",
    Decoder "decoder",
    Power "power",
    PowerManagementLimit "power_management_limit",
    PowerConstraints "power_constraints",
    Energy "energy",
    Temperature "temperature",
    TemperatureThreshold "temperature_threshold",
    MemoryTemperature "memory_temperature",
    Fan "fan",
    FanCount "fan_count",
    Clock "clock",
    MaxClock "max_clock",
    Throttle "throttle",
    SupportedThrottle "supported_throttle",
    PcieThroughput "pcie_throughput",
    EccMode "ecc_mode",
    EccErrors "ecc_errors",
    MemoryErrorCounter "memory_error_counter",
    RemappedRows "remapped_rows",
    MigMode "mig_mode",
    MigCount "mig_count",
    MigHandle "mig_handle",
    IsMig "is_mig",
    MigParent "mig_parent",
    GpuInstance "gpu_instance",
    ComputeInstance "compute_instance",
    Attributes "attributes",
    ProcessList "process_list",
    GraphicsProcessList "graphics_process_list",
    MpsProcessList "mps_process_list",
    ProcessUtilization "process_utilization",
    FieldValues "field_values",
    NvlinkCounters "nvlink_counters",
    NvlinkState "nvlink_state",
    EventCreate "event_create",
    EventRegister "event_register",
    EventTypes "event_types",
    EventWait "event_wait",
    EventFree "event_free",
    GpmSupport "gpm_support",
    GpmSample "gpm_sample",
    GpmMetrics "gpm_metrics",
}

impl Call {
    /// Returns the name whose settings also apply to this call by default, because the driver does the same work for
    /// both.
    fn group(self) -> Self {
        match self {
            Self::GraphicsProcessList | Self::MpsProcessList => Self::ProcessList,
            Self::MemoryV1 => Self::Memory,
            Self::NvlinkCounters => Self::FieldValues,
            other => other,
        }
    }

    /// Looks up this call, then its group, then `*`.
    pub fn lookup<T>(self, find: impl Fn(Self) -> Option<T>) -> Option<T> {
        [self, self.group(), Self::Any].into_iter().find_map(find)
    }
}
