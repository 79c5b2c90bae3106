//! What numbers have been: every series of a host for a day, in bounded memory.
//!
//! A [`Series`] has a bucket for each second of the last ten minutes and for each ten seconds of the last day, each
//! with the least and the greatest value in it, so that a spike survives coarsening. What was not read is absent and
//! stays a gap: a GPU that hangs, a section that is old, a machine asleep. The x axis is [`Mono`], so a wall clock
//! that is set back neither folds a chart nor leaves a hole in it.
//!
//! A datum's way: [`samples`] takes the numbers of a frame, [`History::push`] puts each into its series, a chart asks
//! [`Series::window`] for as many spans as it has columns. A recording's notes hold the coarse buckets
//! ([`Summary`]), with which [`History::push_summary`] fills in the past, in any order.
//!
//! Memory: a day of 8 GPUs and 64 processes with their pools takes 25 MiB (`cargo bench --bench history`), and
//! `keep.rs` says what goes when there is more. Copies share what neither of them has changed since.

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
pub use self::series::{COARSE, DAY, Series, Span};
pub use self::summary::{Summarise, Summary};
use super::frame::Frame;
use super::process::ProcessKey;
use super::units::{Millis, Mono};

/// All series of one host.
#[derive(Debug, Clone, Default)]
pub struct History {
    series: HashMap<SeriesKey, Series>,
    /// When the newest frame was taken.
    newest: Option<Mono>,
    /// When the bounds were looked at.
    looked: Mono,
    reach: Reach,
}

/// How much of the past is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reach {
    /// Everything, for a day.
    #[default]
    Whole,
    /// The same in less room: of the processes the latest hours. Of a host that somebody looked at before.
    Part,
    /// The last hour of GPUs and host, in coarse buckets. Of a host among many; a fifth of a mebibyte with 8 GPUs.
    Outline,
}

/// Of a machine with 16 GPUs and 1,000 processes; where there are more, later ones have no series.
const MAX_SERIES: usize = 8_192;

/// How often the bounds are looked at: what comes in between is at most a chunk for each series.
const LOOK: Millis = Millis(60_000);

impl History {
    /// From now on so much; what is beyond it goes.
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

    /// An empty one that keeps as much.
    #[must_use]
    pub fn anew(&self) -> Self {
        Self {
            reach: self.reach,
            ..Self::default()
        }
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
            self.look_at_bounds(frame.mono);
            return;
        }
        let before = self.newest.replace(frame.mono).filter(|before| {
            // A frame late or lost is bridged, a pause is a gap.
            let interval = frame.interval.0.clamp(1_000, 3_600_000);
            *before < frame.mono && frame.mono.since(*before).0 <= interval * 5 / 2
        });
        samples(frame, |key, value| {
            let Some(series) = self.room_for(key) else {
                return;
            };
            // One that was absent in the frame before stays absent there.
            let last = series.last().map(|(at, _)| at);
            match before.filter(|before| last == Some(*before)) {
                Some(before) => series.put_since(before, frame.mono, value),
                None => series.put_span(frame.mono, value),
            }
        });
        self.look_at_bounds(frame.mono);
    }

    fn look_at_bounds(&mut self, now: Mono) {
        let is_due = now < self.looked || now.since(self.looked) >= LOOK;
        if is_due {
            self.looked = now;
            self.keep_within_bounds(now);
        }
    }

    /// Fills in a part of the past.
    pub fn push_summary(&mut self, summary: &Summary) {
        for (key, buckets) in &summary.series {
            let Ok(key) = key.parse() else { continue };
            let Some(series) = self.room_for(key) else {
                continue;
            };
            for (i, span) in buckets.iter().enumerate() {
                let after = COARSE.0.saturating_mul(i as u64);
                let at = Mono(summary.start.0.saturating_add(after));
                span.iter().for_each(|&span| series.put_past(at, span));
            }
        }
    }

    /// The series of this name, which may be new; none when there are too many.
    fn room_for(&mut self, key: SeriesKey) -> Option<&mut Series> {
        let is_full = self.series.len() >= MAX_SERIES;
        match self.series.entry(key) {
            Entry::Occupied(series) => Some(series.into_mut()),
            Entry::Vacant(_) if is_full => None,
            Entry::Vacant(place) => Some(place.insert(Series::default())),
        }
    }

    /// Forgets everything from `moment` on: a recording jumped, and what it sends next begins there.
    pub fn forget_from(&mut self, moment: Mono) {
        self.series
            .values_mut()
            .for_each(|series| series.forget_from(moment));
        self.series.retain(|_, series| !series.is_empty());
        (self.newest, self.looked) = (None, moment);
    }

    pub fn series(&self, key: &SeriesKey) -> Option<&Series> {
        self.series.get(key)
    }

    /// The devices on which a process has had a pool, by its own numbers.
    pub fn pools_of(&self, process: ProcessKey) -> Vec<u32> {
        let ordinal = |key: &SeriesKey| match key {
            SeriesKey::Pool(of, ordinal, PoolMetric::Reserved) if *of == process => Some(*ordinal),
            _ => None,
        };
        let mut list: Vec<u32> = self.series.keys().filter_map(ordinal).collect();
        list.sort_unstable();
        list
    }

    /// What all of it takes on the heap; a copy shares most of it.
    pub fn bytes(&self) -> usize {
        let place = size_of::<(SeriesKey, Series)>();
        let series: usize = self.series.values().map(Series::bytes).sum();
        self.series.capacity() * place + series
    }
}

#[cfg(test)]
mod tests;
