//! A history series: one metric over time, in two tiers.

use super::tier::{Merged, Span, Tier};
use crate::units::{Millis, Mono};

/// Bucket width in milliseconds, and maximum number of chunks of 60 buckets, finest tier first: one second for ten
/// minutes, ten seconds for a day. Each tier has one extra chunk because the newest is incomplete.
const TIERS: [(u64, u64); 2] = [(1_000, 11), (COARSE.0, 145)];

/// Width of a coarse history bucket, also used by a recording's summaries.
pub const COARSE: Millis = Millis(10_000);

/// Maximum time covered by a series.
pub const DAY: Millis = Millis(86_400_000);

/// The value of a chart column.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Level {
    /// Mean of the values. Of data older than ten minutes, only the minimum and maximum of each ten seconds are known;
    /// the middle between them then stands for the values.
    pub mean: f32,
    pub peak: f32,
}

#[derive(Debug, Clone, Default)]
pub struct Series {
    tiers: [Tier; TIERS.len()],
    /// Time of the first value. The coarse bucket that contains the value may begin earlier.
    since: Option<Mono>,
    until: Option<Mono>,
    last: Option<(Mono, f32)>,
}

impl Series {
    /// Adds the minimum and maximum of several values.
    pub fn put_span(&mut self, at: Mono, value: Span) {
        for (tier, (width, most)) in self.tiers.iter_mut().zip(TIERS) {
            tier.put(at.0 / width, value, most, true);
        }
        self.extend_range(at, Mono(at.0.saturating_add(1)));
        self.last = Some((at, value.1));
    }

    /// Adds a value for the entire time since `before`, the time of the last value. Frames may be less frequent than
    /// buckets.
    pub(super) fn put_since(&mut self, before: Mono, at: Mono, value: Span) {
        for (tier, (width, most)) in self.tiers.iter_mut().zip(TIERS) {
            let first = (before.0 / width + 1).max((at.0 / width).saturating_sub(most * 60));
            for index in first..at.0 / width {
                tier.put(index, value, most, true);
            }
        }
        self.put_span(at, value);
    }

    /// Fills in a bucket of the coarse tiers for a past time. The finest tier stays empty for that time.
    pub(super) fn put_past(&mut self, at: Mono, value: Span) {
        for (tier, (width, most)) in self.tiers.iter_mut().zip(TIERS).skip(1) {
            tier.put(at.0 / width, value, most, false);
        }
        self.extend_range(at, Mono(at.0.saturating_add(COARSE.0)));
    }

    fn extend_range(&mut self, from: Mono, to: Mono) {
        self.since = Some(self.since.map_or(from, |since| since.min(from)));
        self.until = Some(self.until.map_or(to, |until| until.max(to)));
    }

    pub fn last(&self) -> Option<(Mono, f32)> {
        self.last
    }

    pub fn since(&self) -> Option<Mono> {
        self.since
    }

    pub fn until(&self) -> Option<Mono> {
        self.until
    }

    pub(super) fn forget_before(&mut self, time: Mono) {
        for (tier, (width, _)) in self.tiers.iter_mut().zip(TIERS) {
            tier.forget_before(time.0 / width);
        }
    }

    pub(super) fn forget_fine(&mut self) {
        self.tiers[0].forget();
    }

    /// Removes all data from `time` on. Also removes all fine buckets, because the next data may begin much later, and
    /// only coarse buckets can represent such a gap.
    pub(super) fn forget_from(&mut self, time: Mono) {
        self.forget_fine();
        let [_, coarse] = &mut self.tiers;
        coarse.forget_from(time.0 / COARSE.0);
        self.until = self.until.map(|until| until.min(time));
        self.last = self.last.filter(|(at, _)| *at < time);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tiers.iter().all(Tier::is_empty)
    }

    /// Returns the size on the heap in bytes. Copies of this series share most of that memory.
    pub fn bytes(&self) -> usize {
        self.tiers.iter().map(Tier::bytes).sum()
    }

    pub(super) fn peak(&self) -> f32 {
        let all = self.tiers[1].span(0, u64::MAX);
        all.map_or(0.0, |span| span.1)
    }

    /// Returns the maximum up to a time. A coarse bucket that contains the time counts as a whole if no fine buckets reach
    /// back to it.
    pub fn peak_until(&self, time: Mono) -> Option<f32> {
        let bucket = time.0 / COARSE.0;
        let before = self.tiers[1].span(0, bucket);
        let rest = self.span(bucket * COARSE.0, time.0.saturating_add(1));
        before.into_iter().chain(rest).map(|span| span.1).reduce(f32::max)
    }

    /// Returns the maximum from `from` up to and including `to`, or `None` without a value in that time.
    pub fn peak_between(&self, from: Mono, to: Mono) -> Option<f32> {
        self.span(from.0, to.0.saturating_add(1)).map(|span| span.1)
    }

    /// Divides the time window of `length` that ends at `end` into `columns` columns, and returns each column's span,
    /// oldest first. A column without data is `None`.
    pub fn window(&self, end: Mono, length: Millis, columns: usize) -> Vec<Option<Span>> {
        let columns = self.merged_columns(end, length, columns);
        columns.into_iter().map(|merged| Some(merged?.span)).collect()
    }

    /// Returns the mean and the maximum of each column, like [`Self::window`].
    pub fn levels(&self, end: Mono, length: Millis, columns: usize) -> Vec<Option<Level>> {
        self.merged_columns(end, length, columns)
            .into_iter()
            .map(|merged| merged.map(|merged| Level { mean: merged.mean(), peak: merged.span.1 }))
            .collect()
    }

    fn merged_columns(&self, end: Mono, length: Millis, columns: usize) -> Vec<Option<Merged>> {
        let step = (length.0 / columns.max(1) as u64).max(1);
        // Columns are aligned to the step, so that a chart moves by whole columns and does not flicker.
        let last = end.0 / step;
        (0..columns as u64)
            .map(|column| {
                let index = (last + column + 1).checked_sub(columns as u64)?;
                // The history of a recording may continue after the playback position.
                let to = (index + 1).saturating_mul(step).min(end.0.saturating_add(1));
                self.merged(index * step, to)
            })
            .collect()
    }

    fn span(&self, from: u64, to: u64) -> Option<Span> {
        self.merged(from, to).map(|merged| merged.span)
    }

    /// Merges the buckets in a time range: the coarse ones before the first fine bucket, and the fine ones after it.
    fn merged(&self, from: u64, to: u64) -> Option<Merged> {
        let is_known = self.since.is_some_and(|since| to > since.0)
            && self.until.is_some_and(|until| from < until.0);
        if !is_known {
            return None;
        }
        let [fine, _] = &self.tiers;
        let fine_start = fine.start().map_or(u64::MAX, |start| start * TIERS[0].0);
        let middle = fine_start.clamp(from, to);
        let parts = [self.part(1, from, middle), self.part(0, middle, to)];
        parts.into_iter().flatten().reduce(Merged::join)
    }

    /// Merges the buckets of a tier that begin in a time range, so that neighbouring chart columns share no bucket. A range without the start of a bucket gets the bucket that contains it.
    fn part(&self, tier: usize, from: u64, to: u64) -> Option<Merged> {
        if from == to {
            return None;
        }
        let (tier, (width, _)) = (&self.tiers[tier], TIERS[tier]);
        // The bucket with the first value may begin before the range.
        let since = self.since.map(|since| since.0).filter(|since| (from..to).contains(since));
        let first = since.map_or(from.div_ceil(width), |since| since / width);
        let end = to.div_ceil(width);
        let (first, end) =
            if first < end { (first, end) } else { (from / width, from / width + 1) };
        tier.merged(first, end)
    }
}

#[cfg(test)]
mod tests;
