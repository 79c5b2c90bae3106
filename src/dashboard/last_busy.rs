//! Finds processes that hold GPU memory but do not use the GPU.

use std::collections::HashMap;

use gputop_model::frame::Frame;
use gputop_model::process::ProcessKey;
use gputop_model::units::{Millis, Mono};

/// Time without use after which a process counts as idle.
const MIN_IDLE: Millis = Millis(60_000);

/// The time at which each listed process was last known or assumed to use the SMs of a GPU.
#[derive(Debug, Default)]
pub struct LastBusy(HashMap<ProcessKey, Mono>);

impl LastBusy {
    pub fn push(&mut self, frame: &Frame) {
        let mut times: HashMap<ProcessKey, Mono> = HashMap::new();
        let listed = frame.gpus.iter().filter_map(|gpu| gpu.processes.value()).flatten();
        for process in listed {
            let key = process.key();
            // A process whose use is unknown may be busy.
            let is_idle = process.sm.get().is_some_and(|sm| sm.0 <= 0.0);
            let before = self.0.get(&key).copied().filter(|_| is_idle);
            let time = before.unwrap_or(frame.mono);
            times.entry(key).and_modify(|known| *known = time.max(*known)).or_insert(time);
        }
        self.0 = times;
    }

    /// Returns how long the process has not used a GPU, as far as that is known.
    pub fn unused(&self, process: ProcessKey, now: Mono) -> Option<Millis> {
        Some(now.since(*self.0.get(&process)?))
    }

    /// Returns how long the process has not used a GPU, if that is more than a minute.
    pub fn idle(&self, process: ProcessKey, now: Mono) -> Option<Millis> {
        self.unused(process, now).filter(|time| *time >= MIN_IDLE)
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
            last_busy.idle(key, mono)
        };
        let sm = |percent: f64| Reading::Value(Percent(percent));
        assert_eq!(idle_at(1, [sm(0.0), sm(0.0)]), None);
        assert_eq!(idle_at(2, [sm(0.0), sm(0.0)]), Some(Millis(60_000)));
        assert_eq!(idle_at(7, [sm(0.0), sm(3.0)]), None);
        assert_eq!(idle_at(13, [sm(0.0), Reading::default()]), None);
        assert_eq!(idle_at(19, [sm(0.0), sm(0.0)]), Some(Millis(360_000)));
        assert_eq!(last_busy.idle(ProcessKey::new(1, 1), Mono(9_000_000)), None);
    }
}
