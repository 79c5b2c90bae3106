//! Finds processes that hold GPU memory but do not use the GPU.

use std::collections::HashMap;
use std::fmt::{self, Display, Formatter};

use gputop_model::frame::Frame;
use gputop_model::process::ProcessKey;
use gputop_model::units::{Millis, Mono};

use super::times::span_text;

/// Time without use after which a process counts as idle.
const MIN_IDLE: Millis = Millis(60_000);

/// The last use of the SMs of a GPU by each listed process.
#[derive(Debug, Default)]
pub struct LastBusy(HashMap<ProcessKey, LastUse>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct LastUse {
    at: Mono,
    /// The process is known to have had no later use up to this time.
    until: Mono,
    /// False if the process was first seen at this time, or its use was unknown.
    is_known: bool,
}

/// How long a process has not used a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unused {
    pub time: Millis,
    /// True if the time may be longer, because gputop has not seen the last use.
    pub is_at_least: bool,
}

/// Formats the time as `1m18`, or as `>1m18` if it may be longer.
impl Display for Unused {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.is_at_least { ">" } else { "" }, span_text(self.time))
    }
}

impl LastBusy {
    pub fn push(&mut self, frame: &Frame) {
        let mut times: HashMap<ProcessKey, LastUse> = HashMap::new();
        let listed = frame.gpus.iter().filter_map(|gpu| gpu.processes.value()).flatten();
        for process in listed {
            let key = process.key();
            // A process whose use is unknown may be busy.
            let sm = process.sm.get().map(|sm| sm.0);
            let before = self.0.get(&key).copied().filter(|_| sm.is_some_and(|sm| sm <= 0.0));
            let is_known = sm.is_some_and(|sm| sm > 0.0);
            let now = LastUse { at: frame.mono, until: frame.mono, is_known };
            let last = before.unwrap_or(now);
            let last = LastUse { until: last.until.max(frame.mono), ..last };
            times.entry(key).and_modify(|known| *known = last.max(*known)).or_insert(last);
        }
        self.0 = times;
    }

    /// Returns how long the process has not used a GPU, as far as that is known.
    pub fn unused(&self, process: ProcessKey, now: Mono) -> Option<Unused> {
        let last = self.0.get(&process)?;
        Some(Unused { time: now.since(last.at), is_at_least: !last.is_known })
    }

    /// Returns how long the process has not used a GPU, if that is more than a minute.
    pub fn idle(&self, process: ProcessKey, now: Mono) -> Option<Unused> {
        self.unused(process, now).filter(|unused| unused.time >= MIN_IDLE)
    }

    /// Handles a jump within the part of a recording that was already shown. Forgets what is not known of that time.
    pub fn jump(&mut self, to: Mono) {
        self.0.retain(|_, last| (last.at..=last.until).contains(&to));
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gputop_model::gpu::{Gpu, GpuProcess};
    use gputop_model::reading::Reading;
    use gputop_model::units::Percent;

    #[test]
    fn a_process_is_idle_after_a_minute_without_use_of_any_gpu() {
        let key = ProcessKey::new(418, 7);
        let on = |sm: Reading<Percent>| Gpu {
            processes: vec![GpuProcess { process: Some(key), sm, ..GpuProcess::default() }].into(),
            ..Gpu::default()
        };
        let mut last_busy = LastBusy::default();
        let mut idle_at = |minute: u64, on_gpus: [Reading<Percent>; 2]| {
            let mono = Mono(minute * 60_000);
            last_busy.push(&Frame { mono, gpus: on_gpus.map(on).into(), ..Frame::default() });
            last_busy.idle(key, mono).map(|unused| unused.to_string())
        };
        let sm = |percent: f64| Reading::Value(Percent(percent));
        assert_eq!(idle_at(1, [sm(0.0), sm(0.0)]), None);
        assert_eq!(idle_at(2, [sm(0.0), sm(0.0)]), Some(">1m".into()));
        assert_eq!(idle_at(7, [sm(0.0), sm(3.0)]), None);
        assert_eq!(idle_at(9, [sm(0.0), sm(0.0)]), Some("2m".into()));
        assert_eq!(idle_at(13, [sm(0.0), Reading::default()]), None);
        assert_eq!(idle_at(19, [sm(0.0), sm(0.0)]), Some(">6m".into()));
        assert_eq!(last_busy.idle(ProcessKey::new(1, 1), Mono(9_000_000)), None);
    }

    #[test]
    fn an_idle_time_is_the_same_after_jumps_in_a_recording() {
        let key = ProcessKey::new(418, 1);
        let mut last_busy = LastBusy::default();
        let mut idle_at = |minute: u64, jumps: bool, percent: f64| {
            let mono = Mono(minute * 60_000);
            if jumps {
                last_busy.jump(mono);
            }
            let sm = Reading::Value(Percent(percent));
            let process = GpuProcess { process: Some(key), sm, ..GpuProcess::default() };
            let gpu = Gpu { processes: vec![process].into(), ..Gpu::default() };
            last_busy.push(&Frame { mono, gpus: vec![gpu], ..Frame::default() });
            last_busy.idle(key, mono).map(|unused| unused.to_string())
        };
        assert_eq!(idle_at(1, false, 5.0), None);
        assert_eq!(idle_at(9, false, 0.0), Some("8m".into()));
        // Back, and forth again.
        assert_eq!(idle_at(4, true, 0.0), Some("3m".into()));
        assert_eq!(idle_at(9, true, 0.0), Some("8m".into()));
        // After a use at an earlier time, the uses that followed are no longer known.
        assert_eq!(idle_at(0, true, 5.0), None);
        assert_eq!(idle_at(9, true, 0.0), None);
        assert_eq!(idle_at(11, false, 0.0), Some(">2m".into()));
    }
}
