//! The numbers that NVML returns as they are, one call for each. A row is all that the library needs to answer the call:
//! its name in errors and in the call log, the key and default of the number in a scenario, and NVML's symbol.

/// Invokes `macro! { tokens; rows }`.
macro_rules! numbers {
    ($macro:ident! $($tokens:tt)*) => { $macro! { $($tokens)*;
        // NVML's constant: 9 is Hopper.
        Architecture architecture = 9: nvmlDeviceGetArchitecture,
        Brand brand = 14: nvmlDeviceGetBrand,
        // NVML's constant: 0 default, 2 prohibited, 3 exclusive process.
        ComputeMode compute_mode = 0: nvmlDeviceGetComputeMode,
        PcieGeneration pcie_generation = 5: nvmlDeviceGetCurrPcieLinkGeneration,
        PcieMaxGeneration pcie_max_generation = 5: nvmlDeviceGetMaxPcieLinkGeneration,
        PcieMaxWidth pcie_max_width = 16: nvmlDeviceGetMaxPcieLinkWidth,
        PcieReplays pcie_replays = 0: nvmlDeviceGetPcieReplayCounter,
        PcieWidth pcie_width = 16: nvmlDeviceGetCurrPcieLinkWidth,
        // Milliwatts, like `power_limit`.
        PowerDefaultLimit power_default_limit = 700_000: nvmlDeviceGetPowerManagementDefaultLimit,
        PowerLimit power_limit = 700_000: nvmlDeviceGetEnforcedPowerLimit,
        Pstate pstate = 0: nvmlDeviceGetPerformanceState,
    } };
}
