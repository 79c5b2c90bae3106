//! Removes old history series to limit their memory use.
//!
//! Data older than a day is removed. The series of a limited number of exited processes are retained. Series with the
//! lowest [`worth`] are removed first: those of processes that used little memory or exited long ago. If that is not
//! enough, the oldest data of live processes is removed. The few series of GPUs and the host always remain complete.

use std::collections::{HashMap, HashSet};

use super::key::{PoolMetric, SeriesKey};
use super::series::DAY;
use super::{COARSE, History, Reach};
use crate::process::ProcessKey;
use crate::units::{Bytes, Millis, Mono};

/// Maximum size of a complete history. A day of 8 GPUs and 64 processes takes less.
const MAX_BYTES: usize = 40 << 20;
/// Maximum size of a partial history. A day of 8 GPUs takes a quarter of it.
const MAX_PART_BYTES: usize = 8 << 20;

const OUTLINE_LENGTH: Millis = Millis(3_600_000);

/// Maximum number of exited processes with retained series.
const MAX_EXITED: usize = 256;

/// If a process has no data for this long, it is assumed to have exited or stopped using the GPU.
const SILENT: Millis = Millis(60_000);

/// Returns the value of retaining an exited process's history: its peak VRAM divided by the time since its exit. If two
/// processes exited together, the smaller one is removed first. If two are equally large, the one that exited earlier
/// is removed first.
pub fn worth(peak: Bytes, ended: Millis) -> f64 {
    // The first minute after an exit does not lower the worth.
    peak.0 as f64 / ended.0.max(60_000) as f64
}

#[derive(Default)]
struct ProcessSize {
    until: Mono,
    bytes: usize,
    peak: f32,
}

impl History {
    pub(super) fn keep_within_bounds(&mut self, now: Mono) {
        match self.reach {
            Reach::Whole => self.keep_within(now, MAX_BYTES),
            Reach::Part => self.keep_within(now, MAX_PART_BYTES),
            Reach::Outline => {
                self.forget_before(Mono(now.0.saturating_sub(OUTLINE_LENGTH.0)), |_| true);
            }
        }
    }

    fn keep_within(&mut self, now: Mono, max_bytes: usize) {
        let yesterday = Mono(now.0.saturating_sub(DAY.0));
        self.forget_before(yesterday, |_| true);
        self.forget_exited(now, max_bytes);
        let mut horizon = yesterday;
        while self.bytes() > max_bytes && horizon < now {
            horizon = Mono(horizon.0 + COARSE.0 * 60);
            self.forget_before(horizon, |key| key.process().is_some());
        }
    }

    fn forget_before(&mut self, time: Mono, selects: impl Fn(&SeriesKey) -> bool) {
        for (_, series) in self.series.iter_mut().filter(|(key, _)| selects(key)) {
            series.forget_before(time);
        }
        self.series.retain(|_, series| !series.is_empty());
    }

    fn forget_exited(&mut self, now: Mono, max_bytes: usize) {
        let mut sizes: HashMap<ProcessKey, ProcessSize> = HashMap::new();
        for (key, series) in &self.series {
            if let Some(process) = key.process() {
                let process = sizes.entry(process).or_default();
                process.until = process.until.max(series.until().unwrap_or_default());
            }
        }
        sizes.retain(|_, process| now.since(process.until) >= SILENT);
        let mut bytes = self.bytes();
        if sizes.len() <= MAX_EXITED && bytes <= max_bytes {
            return;
        }
        for (key, series) in &self.series {
            let is_memory =
                matches!(key, SeriesKey::Vram(..) | SeriesKey::Pool(_, _, PoolMetric::Reserved));
            let process = key.process().and_then(|process| sizes.get_mut(&process));
            let Some(process) = process else { continue };
            process.bytes += series.bytes();
            if is_memory {
                process.peak = process.peak.max(series.peak());
            }
        }
        let worth_of =
            |process: &ProcessSize| worth(Bytes(process.peak as u64), now.since(process.until));
        let mut exited: Vec<_> = sizes.into_iter().collect();
        exited.sort_by(|(_, a), (_, b)| worth_of(a).total_cmp(&worth_of(b)));
        let mut count = exited.len();
        let mut removed = HashSet::new();
        for (key, process) in exited {
            if count <= MAX_EXITED && bytes <= max_bytes {
                break;
            }
            count -= 1;
            bytes = bytes.saturating_sub(process.bytes);
            removed.insert(key);
        }
        let is_removed = |key: &SeriesKey| key.process().is_some_and(|key| removed.contains(&key));
        self.series.retain(|key, _| !is_removed(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::GpuMetric;
    use crate::units::{GpuUuid, Pid};

    fn process(number: u32) -> ProcessKey {
        ProcessKey { pid: Pid(number), ..ProcessKey::default() }
    }

    #[test]
    fn removes_exited_processes_before_the_oldest_data_of_live_ones() {
        let gpu = GpuUuid("GPU-1".into());
        let sm = SeriesKey::Gpu(gpu.clone(), GpuMetric::Sm);
        let vram = |number| SeriesKey::Vram(process(number), gpu.clone());
        let mut history = History::default();
        for (number, until) in [(1, 40_000_u64), (2, 20_000), (3, 40_000)] {
            let series = history.room_for(vram(number)).expect("room");
            (0..until)
                .for_each(|s| series.put(Mono(s * 1_000), (s % 90 + u64::from(number)) as f32));
        }
        let series = history.room_for(sm.clone()).expect("room");
        (0..40_000).for_each(|s| series.put(Mono(s * 1_000), (s % 90) as f32));
        let now = Mono(40_000_000);
        let all = history.bytes();
        // The memory limit is below the current size. The hash table itself does not shrink.
        history.keep_within(now, all - 1_000);
        assert!(history.series(&vram(2)).is_none(), "the exited process");
        let left = history.bytes();
        let reach = |history: &History, key: &SeriesKey| {
            let hours = history.series(key).map(|s| s.window(now, DAY, 24));
            hours.map_or(0, |hours| hours.iter().flatten().count())
        };
        assert_eq!([reach(&history, &vram(1)), reach(&history, &sm)], [12, 12]);
        history.keep_within(now, left - 20_000);
        assert!(history.bytes() <= left - 20_000);
        assert!(reach(&history, &vram(1)) < 10 && reach(&history, &vram(3)) > 2);
        assert_eq!(reach(&history, &sm), 12);
    }

    #[test]
    fn small_and_old_processes_are_worth_least() {
        let hour = Millis(3_600_000);
        let (small, large) = (Bytes::gib(1), Bytes::gib(80));
        assert!(worth(small, hour) < worth(large, hour));
        assert!(worth(small, hour) < worth(small, Millis(0)));
        // A large process that exited a day ago is worth more than a small one that exited an hour ago.
        assert!(worth(large, DAY) > worth(small, hour));
    }
}
