//! The schedule of NVML calls. One call takes from 1 µs to 21 ms (measured on H200s). So cheap calls run on every
//! tick, and expensive calls run when their value may have changed or when a screen shows it.

use crate::model::units::Millis;

/// Condition under which a group of calls is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// On every tick.
    Tick,
    /// When used memory has changed since the last tick, and at the latest after this time.
    MemoryChanged(Millis),
    Every(Millis),
    /// With this period, but only for the GPU whose screen is open.
    Focused(Millis),
    /// Once, when the GPU is opened.
    Once,
}

/// A group of calls that share a period.
#[derive(Debug, Clone, Copy)]
pub struct Group {
    /// A noun phrase, listed by doctor.
    pub name: &'static str,
    pub due: Due,
    /// NVML names of the calls.
    pub calls: &'static [&'static str],
}

pub const TICK: Group = Group {
    name: "memory, utilisation, power, temperature, clocks, throttle reasons",
    due: Due::Tick,
    calls: &[
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetClockInfo",
        "nvmlDeviceGetPerformanceState",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
    ],
};

pub const PROCESSES: Group = Group {
    name: "processes and their memory",
    due: Due::MemoryChanged(Millis(5_000)),
    calls: &[
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetGraphicsRunningProcesses_v3",
    ],
};

pub const PROCESS_UTILIZATION: Group = Group {
    name: "utilisation by process",
    due: Due::Every(Millis(5_000)),
    calls: &["nvmlDeviceGetProcessUtilization"],
};

pub const SLOW: Group = Group {
    name: "ECC, remapped rows, PCIe link, power cap, fan, encoder, memory temperature, MIG layout",
    due: Due::Every(Millis(10_000)),
    calls: &[
        "nvmlDeviceGetTotalEccErrors",
        "nvmlDeviceGetRemappedRows",
        "nvmlDeviceGetCurrPcieLinkGeneration",
        "nvmlDeviceGetCurrPcieLinkWidth",
        "nvmlDeviceGetEnforcedPowerLimit",
        "nvmlDeviceGetFanSpeed_v2",
        "nvmlDeviceGetEncoderUtilization",
        "nvmlDeviceGetDecoderUtilization",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetMigMode",
    ],
};

pub const TRAFFIC: Group = Group {
    name: "PCIe and NVLink throughput, energy",
    due: Due::Focused(Millis(2_000)),
    calls: &[
        "nvmlDeviceGetPcieThroughput",
        "nvmlDeviceGetPcieReplayCounter",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetTotalEnergyConsumption",
    ],
};

pub const BOARD: Group = Group {
    name: "name, UUID, bus, serial, limits",
    due: Due::Once,
    calls: &[
        "nvmlDeviceGetName",
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetPciInfo_v3",
    ],
};

/// All groups, for doctor.
pub const GROUPS: &[Group] = &[BOARD, TICK, PROCESSES, PROCESS_UTILIZATION, SLOW, TRAFFIC];

/// Decides when one group is due on one GPU.
#[derive(Debug, Clone, Copy, Default)]
pub struct Timer {
    /// Monotonic milliseconds of the last run.
    last: Option<u64>,
}

impl Timer {
    /// Returns true if the group is due, and marks it as run. `changed`: used memory has changed. `focused`: the GPU's
    /// screen is open.
    pub fn due(&mut self, group: Group, now: u64, changed: bool, focused: bool) -> bool {
        // A tick may be slightly early. Without this slack, a period of 5 s would become 6 s.
        let passed = |period: Millis| {
            self.last
                .is_none_or(|last| now.saturating_sub(last) + 250 >= period.0)
        };
        let due = match group.due {
            Due::Tick => true,
            Due::MemoryChanged(period) => changed || passed(period),
            Due::Every(period) => passed(period),
            Due::Focused(period) => focused && passed(period),
            Due::Once => self.last.is_none(),
        };
        if due {
            self.last = Some(now);
        }
        due
    }

    /// Postpones the first run by one period from `now`: for groups that the first frame does not need.
    pub fn postpone(&mut self, now: u64) {
        self.last = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_processes_on_change_and_at_least_every_five_seconds() {
        let mut timer = Timer::default();
        assert!(timer.due(PROCESSES, 0, false, false));
        assert!(!timer.due(PROCESSES, 1_000, false, false));
        assert!(timer.due(PROCESSES, 2_000, true, false));
        assert!(!timer.due(PROCESSES, 6_000, false, false));
        assert!(timer.due(PROCESSES, 6_990, false, false));
    }

    #[test]
    fn runs_expensive_calls_only_while_their_screen_is_open() {
        let mut timer = Timer::default();
        assert!(!timer.due(TRAFFIC, 0, true, false));
        assert!(timer.due(TRAFFIC, 0, false, true));
        assert!(!timer.due(TRAFFIC, 1_000, false, true));
        assert!(timer.due(TRAFFIC, 2_000, false, true));
    }
}
