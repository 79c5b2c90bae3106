//! Per-minute summaries in a recording, so that charts are complete after a seek.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::key::SeriesKey;
use super::samples::samples;
use super::series::COARSE;
use super::tier::Span;
use crate::frame::Frame;
use crate::units::Mono;

/// Maximum number of series in a history, enough for 16 GPUs and 1,000 processes. Further series are not recorded.
pub(super) const MAX_SERIES: usize = 8_192;

/// Maximum number of buckets in a one-minute summary. A clock that jumps must not make the summary larger.
const MAX_BUCKETS: usize = 60;

/// Ten-second buckets of every series for one minute, stored in a recording so that charts are complete after a seek.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Summary {
    /// Start of the first bucket, a multiple of the bucket width ([`COARSE`]).
    pub start: Mono,
    /// Buckets by the text form of their [`SeriesKey`]. `null` is a bucket without a value.
    pub series: HashMap<String, Vec<Option<Span>>>,
}

impl Summary {
    pub fn end(&self) -> Mono {
        let buckets = self.series.values().map(Vec::len).max().unwrap_or(0);
        Mono(self.start.0.saturating_add(COARSE.0.saturating_mul(buckets as u64)))
    }
}

#[derive(Debug, Default)]
pub struct Summarize {
    start: Option<Mono>,
    series: HashMap<SeriesKey, Vec<Option<Span>>>,
}

impl Summarize {
    pub fn push(&mut self, frame: &Frame) {
        let width = COARSE.0;
        let start = *self.start.get_or_insert(Mono(frame.mono.0 / width * width));
        let at = usize::try_from(frame.mono.since(start).0 / width).unwrap_or(usize::MAX);
        if at >= MAX_BUCKETS {
            return;
        }
        samples(frame, |key, value| {
            if self.series.len() >= MAX_SERIES && !self.series.contains_key(&key) {
                return;
            }
            let buckets = self.series.entry(key).or_default();
            if buckets.len() <= at {
                buckets.resize(at + 1, None);
            }
            buckets[at] = Some(buckets[at].map_or(value, |old| old.join(value)));
        });
    }

    pub fn take(&mut self) -> Summary {
        let whole = std::mem::take(self);
        Summary {
            start: whole.start.unwrap_or_default(),
            series: whole
                .series
                .into_iter()
                .map(|(key, buckets)| (key.to_string(), buckets))
                .collect(),
        }
    }
}
