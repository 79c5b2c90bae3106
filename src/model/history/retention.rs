//! What a history forgets, so that its memory is bounded.
//!
//! Everything older than a day goes. Of processes that have ended, so many are kept, and those go first that are
//! [`worth`] least: small ones and those that ended long ago. When that does not suffice, the processes that live
//! lose the oldest part of their day. The series of GPUs and host are few and always whole.

use std::collections::{HashMap, HashSet};

use super::key::{PoolMetric, SeriesKey};
use super::series::DAY;
use super::{COARSE, History, Reach};
use crate::model::process::ProcessKey;
use crate::model::units::{Bytes, Millis, Mono};

/// What a history may take. A day of 8 GPUs and 64 processes takes less.
const MAX_BYTES: usize = 40 << 20;
/// One of which a part is kept: a day of 8 GPUs takes four of these.
const MAX_PART_BYTES: usize = 8 << 20;

/// How far an outline reaches back.
const OUTLINE: Millis = Millis(3_600_000);

/// Processes that have ended and whose series are kept.
const MAX_ENDED: usize = 256;

/// A process of which nothing was read for so long has ended, or has left the GPU.
const SILENT: Millis = Millis(60_000);

/// What the memory of a process that ended is worth: the VRAM it held at most by the time since. Of two that ended
/// at once the smaller one is forgotten first, of two alike the older one.
#[allow(clippy::cast_precision_loss)]
pub fn worth(peak: Bytes, ended: Millis) -> f64 {
    // Of the last minute they are worth the same by their age.
    peak.0 as f64 / ended.0.max(60_000) as f64
}

#[derive(Default)]
struct OfProcess {
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
                self.forget_before(Mono(now.0.saturating_sub(OUTLINE.0)), |_| true);
            }
        }
    }

    fn keep_within(&mut self, now: Mono, most: usize) {
        let yesterday = Mono(now.0.saturating_sub(DAY.0));
        self.forget_before(yesterday, |_| true);
        self.forget_ended(now, most);
        let mut horizon = yesterday;
        let is_of_process = |key: &SeriesKey| key.process().is_some();
        while self.bytes() > most && horizon < now {
            horizon = Mono(horizon.0 + COARSE.0 * 60);
            self.forget_before(horizon, is_of_process);
        }
    }

    fn forget_before(&mut self, moment: Mono, which: impl Fn(&SeriesKey) -> bool) {
        for (_, series) in self.series.iter_mut().filter(|(key, _)| which(key)) {
            series.forget_before(moment);
        }
        self.series.retain(|_, series| !series.is_empty());
    }

    fn forget_ended(&mut self, now: Mono, most: usize) {
        let mut of: HashMap<ProcessKey, OfProcess> = HashMap::new();
        for (key, series) in &self.series {
            if let Some(process) = key.process() {
                let process = of.entry(process).or_default();
                process.until = process.until.max(series.until().unwrap_or_default());
                process.bytes += series.bytes();
            }
        }
        of.retain(|_, process| now.since(process.until) >= SILENT);
        let mut bytes = self.bytes();
        if of.len() <= MAX_ENDED && bytes <= most {
            return;
        }
        for (key, series) in &self.series {
            let is_memory = matches!(
                key,
                SeriesKey::Vram(..) | SeriesKey::Pool(_, _, PoolMetric::Reserved)
            );
            let process = key.process().filter(|_| is_memory);
            if let Some(process) = process.and_then(|process| of.get_mut(&process)) {
                process.peak = process.peak.max(series.peak());
            }
        }
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let worth_of =
            |process: &OfProcess| worth(Bytes(process.peak as u64), now.since(process.until));
        let mut ended: Vec<_> = of.into_iter().collect();
        ended.sort_by(|(_, a), (_, b)| worth_of(a).total_cmp(&worth_of(b)));
        let mut count = ended.len();
        let mut gone = HashSet::new();
        for (key, process) in ended {
            if count <= MAX_ENDED && bytes <= most {
                break;
            }
            count -= 1;
            bytes = bytes.saturating_sub(process.bytes);
            gone.insert(key);
        }
        let is_gone = |key: &SeriesKey| key.process().is_some_and(|key| gone.contains(&key));
        self.series.retain(|key, _| !is_gone(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::history::GpuMetric;
    use crate::model::units::{GpuUuid, Pid};

    fn process(number: u32) -> ProcessKey {
        ProcessKey {
            pid: Pid(number),
            ..ProcessKey::default()
        }
    }

    #[test]
    fn without_room_the_ended_go_first_and_then_the_oldest_part_of_those_that_live() {
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
        // Of another size than the first: the table itself does not shrink.
        history.keep_within(now, all - 1_000);
        assert!(history.series(&vram(2)).is_none(), "the one that ended");
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
    fn the_small_and_the_old_are_worth_least() {
        let hour = Millis(3_600_000);
        let (small, large) = (Bytes::gib(1), Bytes::gib(80));
        assert!(worth(small, hour) < worth(large, hour));
        assert!(worth(small, hour) < worth(small, Millis(0)));
        // A day later a trainer is worth what a small process was after a quarter of an hour.
        assert!(worth(large, DAY) > worth(small, hour));
    }
}
