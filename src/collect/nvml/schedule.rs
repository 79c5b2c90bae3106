//! Schedule of NVML calls. One call takes from 1 µs to 21 ms (measured on H200s). Cheap calls therefore run on every
//! tick. Expensive calls run when their value may have changed or when a screen shows it.

use gputop_model::gpu::{GPU_FIGURES, GpuFigure, Period, SLOW_INTERVAL};
use gputop_model::units::Millis;

/// Condition under which a group of NVML calls is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    Tick,
    /// Due when used memory has changed since the last tick, or when this much time has passed since the last run.
    MemoryChanged(Millis),
    Every(Millis),
    /// Due at this interval, but only for the GPU whose screen is open.
    Focused(Millis),
    /// Due once, when the GPU is opened.
    Once,
}

/// Group of NVML calls that are made together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// All values of a GPU that have this read period.
    Figures(Period),
    Processes,
    ProcessUtilization,
    /// Performance metrics of a GPU that computes, from Hopper on.
    Performance,
}

/// All groups of NVML calls, as listed by `gputop doctor`.
pub const GROUPS: [Group; 7] = [
    Group::Figures(Period::Once),
    Group::Figures(Period::Tick),
    Group::Processes,
    Group::ProcessUtilization,
    Group::Performance,
    Group::Figures(Period::Slow),
    Group::Figures(Period::WhileShown),
];

impl Group {
    pub fn due(self) -> Due {
        match self {
            Self::Figures(Period::Once) => Due::Once,
            Self::Figures(Period::Tick) => Due::Tick,
            Self::Figures(Period::Slow) => Due::Every(SLOW_INTERVAL),
            Self::Figures(Period::WhileShown) => Due::Focused(Millis(2_000)),
            Self::Processes => Due::MemoryChanged(Millis(5_000)),
            Self::ProcessUtilization | Self::Performance => Due::Every(Millis(5_000)),
        }
    }

    /// Returns the values that the group reads, as a list of noun phrases for `gputop doctor`.
    pub fn contents(self) -> String {
        match self {
            Self::Figures(period) => {
                let figures = GPU_FIGURES.iter().filter(|figure| figure.period == period);
                figures.map(GpuFigure::label).collect::<Vec<_>>().join(", ")
            }
            Self::Processes => "processes and their memory".into(),
            Self::ProcessUtilization => "utilization by process".into(),
            Self::Performance => "SM active and tensor cores, while a process computes".into(),
        }
    }
}

/// Timer for one group of NVML calls on one GPU.
#[derive(Debug, Clone, Copy)]
pub struct Timer {
    group: Group,
    /// Monotonic time of the group's last run, in milliseconds.
    last: Option<u64>,
}

impl Timer {
    pub fn new(group: Group) -> Self {
        Self { group, last: None }
    }

    /// Returns true if the group is due. In that case, also records that it has run. `changed` means that used memory
    /// has changed, and `focused` that the GPU's screen is open.
    pub fn due(&mut self, now: u64, changed: bool, focused: bool) -> bool {
        // Allow for ticks that come slightly early. Without this slack, a period of 5 s would become 6 s.
        let passed = |period: Millis| {
            self.last.is_none_or(|last| now.saturating_sub(last) + 250 >= period.0)
        };
        let due = match self.group.due() {
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

    /// Postpones the group's first run until one period after `now`, for groups that the first frame does not need.
    pub fn postpone(&mut self, now: u64) {
        self.last = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_processes_on_change_and_at_least_every_five_seconds() {
        let mut timer = Timer::new(Group::Processes);
        assert!(timer.due(0, false, false));
        assert!(!timer.due(1_000, false, false));
        assert!(timer.due(2_000, true, false));
        assert!(!timer.due(6_000, false, false));
        assert!(timer.due(6_990, false, false));
    }

    #[test]
    fn runs_expensive_calls_only_while_their_screen_is_open() {
        let mut timer = Timer::new(Group::Figures(Period::WhileShown));
        assert!(!timer.due(0, true, false));
        assert!(timer.due(0, false, true));
        assert!(!timer.due(1_000, false, true));
        assert!(timer.due(2_000, false, true));
    }
}
