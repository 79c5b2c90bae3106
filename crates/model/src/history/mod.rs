//! One day of history for all values of a host, in bounded memory.
//!
//! A [`Series`] has one bucket per second for the last ten minutes and one per ten seconds for the last day. Each
//! bucket contains the minimum and the maximum, so that a spike remains visible in coarse buckets. Missing data (a GPU
//! that hung, a collector that stopped, a machine that was suspended) leaves a gap. Times are [`Mono`], so setting the
//! wall clock back causes neither overlapping data nor a gap.
//!
//! Data flow: [`samples`] extracts the values of a frame, [`History::push`] adds each to its series, and a chart asks
//! [`Series::window`] for one span per column. A recording's notes contain the coarse buckets ([`Summary`]), from which
//! [`History::push_summary`] fills in earlier data in any order.
//!
//! Memory: a day of 8 GPUs and 64 processes with their pools takes 25 MiB (`cargo bench --bench history`).
//! `retention.rs` removes data beyond the limits. Copies of a history share all data that has not changed since they
//! were made.

mod key;
mod retention;
mod samples;
mod series;
mod summary;
mod tier;

use std::collections::HashMap;
use std::collections::hash_map::Entry;

pub use self::key::{GpuMetric, HostMetric, PoolMetric, ProcessMetric, SeriesKey, UnknownSeries};
pub use self::retention::worth;
pub use self::samples::samples;
pub use self::series::{COARSE, DAY, Level, Series};
use self::summary::MAX_SERIES;
pub use self::summary::{Summarize, Summary};
pub use self::tier::Span;
use super::frame::Frame;
use super::process::ProcessKey;
use super::units::{Millis, Mono};

#[derive(Debug, Clone, Default)]
pub struct History {
    series: HashMap<SeriesKey, Series>,
    newest: Option<Mono>,
    last_check: Mono,
    reach: Reach,
}

/// How much history to retain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reach {
    /// All series, for one day.
    #[default]
    Whole,
    /// All series, with a lower memory limit, so the series of processes cover only the latest hours. Used for a
    /// previously viewed host.
    Part,
    /// Only GPU and host series for the last hour, in coarse buckets: 0.2 MiB with 8 GPUs. Used when there are many
    /// hosts.
    Outline,
}

/// Interval between checks of the history's memory limits. Between two checks, each series grows by at most one chunk.
const RETENTION_CHECK_INTERVAL: Millis = Millis(60_000);

impl History {
    /// Sets the amount of history to retain, and removes older data.
    pub fn keep(&mut self, reach: Reach) {
        self.reach = reach;
        if reach == Reach::Outline {
            self.series.retain(|key, _| key.process().is_none());
            self.series.shrink_to_fit();
            self.series.values_mut().for_each(Series::forget_fine);
        }
        if let Some(newest) = self.newest {
            self.keep_within_bounds(newest);
        }
    }

    pub fn is_outline(&self) -> bool {
        self.reach == Reach::Outline
    }

    /// Returns an empty history with the same retention.
    #[must_use]
    pub fn empty_copy(&self) -> Self {
        Self { reach: self.reach, ..Self::default() }
    }

    fn push_outline(&mut self, frame: &Frame) {
        self.newest = Some(frame.mono);
        samples(frame, |key, value| {
            if key.process().is_none()
                && let Some(series) = self.room_for(key)
            {
                series.put_past(frame.mono, value);
            }
        });
    }

    pub fn push(&mut self, frame: &Frame) {
        if self.is_outline() {
            self.push_outline(frame);
            self.check_retention(frame.mono);
            return;
        }
        let before = self.newest.replace(frame.mono).filter(|before| {
            // If a single frame is late or lost, the history continues without a gap. A longer pause leaves a gap.
            let interval = frame.interval.0.clamp(1_000, 3_600_000);
            *before < frame.mono && frame.mono.since(*before).0 <= interval * 5 / 2
        });
        samples(frame, |key, value| {
            let Some(series) = self.room_for(key) else { return };
            // If the previous frame has no value for the series, the time since that frame remains a gap.
            let last = series.last().map(|(at, _)| at);
            match before.filter(|before| last == Some(*before)) {
                Some(before) => series.put_since(before, frame.mono, value),
                None => series.put_span(frame.mono, value),
            }
        });
        self.check_retention(frame.mono);
    }

    fn check_retention(&mut self, now: Mono) {
        let is_due =
            now < self.last_check || now.since(self.last_check) >= RETENTION_CHECK_INTERVAL;
        if is_due {
            self.last_check = now;
            self.keep_within_bounds(now);
        }
    }

    /// Adds earlier data from a recording's summary to the history.
    pub fn push_summary(&mut self, summary: &Summary) {
        for (key, buckets) in &summary.series {
            let Ok(key) = key.parse() else { continue };
            let Some(series) = self.room_for(key) else { continue };
            for (i, span) in buckets.iter().enumerate() {
                let after = COARSE.0.saturating_mul(i as u64);
                let at = Mono(summary.start.0.saturating_add(after));
                span.iter().for_each(|&span| series.put_past(at, span));
            }
        }
    }

    /// Returns the series for a key, creating it if needed. Returns `None` if there are too many series.
    fn room_for(&mut self, key: SeriesKey) -> Option<&mut Series> {
        let is_full = self.series.len() >= MAX_SERIES;
        match self.series.entry(key) {
            Entry::Occupied(series) => Some(series.into_mut()),
            Entry::Vacant(_) if is_full => None,
            Entry::Vacant(entry) => Some(entry.insert(Series::default())),
        }
    }

    /// Removes all history from `time` on. Used when playback jumps and continues at that time.
    pub fn forget_from(&mut self, time: Mono) {
        self.series.values_mut().for_each(|series| series.forget_from(time));
        self.series.retain(|_, series| !series.is_empty());
        (self.newest, self.last_check) = (None, time);
    }

    pub fn series(&self, key: &SeriesKey) -> Option<&Series> {
        self.series.get(key)
    }

    /// Returns the indices, as seen by the process, of all devices on which it has had a pool.
    pub fn pools_of(&self, process: ProcessKey) -> Vec<u32> {
        let ordinal = |key: &SeriesKey| match key {
            SeriesKey::Pool(of, ordinal, PoolMetric::Reserved) if *of == process => Some(*ordinal),
            _ => None,
        };
        let mut list: Vec<u32> = self.series.keys().filter_map(ordinal).collect();
        list.sort_unstable();
        list
    }

    /// Returns the size on the heap in bytes. Copies of this history share most of that memory.
    pub fn bytes(&self) -> usize {
        let entry = size_of::<(SeriesKey, Series)>();
        let series: usize = self.series.values().map(Series::bytes).sum();
        self.series.capacity() * entry + series
    }
}

#[cfg(test)]
mod tests;
