//! A history series: one metric over time, in two tiers.

use super::tier::{Merged, Span, Tier};
use crate::model::units::{Millis, Mono};

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
    pub fn put(&mut self, at: Mono, value: f32) {
        self.put_span(at, Span(value, value));
    }

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
        let level = |merged: Merged| Level { mean: merged.mean(), peak: merged.span.1 };
        self.merged_columns(end, length, columns)
            .into_iter()
            .map(|merged| merged.map(level))
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Computes the expected chart directly from the raw values: their minimum and maximum in each column.
    fn plain(raw: &[(u64, Span)], end: u64, length: u64, columns: u64) -> Vec<Option<Span>> {
        let step = length / columns;
        let last = end / step;
        let column = |column: u64| {
            let from = (last + column + 1).checked_sub(columns)? * step;
            let inside = raw.iter().filter(|(at, _)| (from..from + step).contains(at));
            inside.map(|(_, value)| *value).reduce(Span::join)
        };
        (0..columns).map(column).collect()
    }

    #[test]
    fn a_column_has_the_mean_and_the_peak_of_its_values() {
        let mut series = Series::default();
        for (second, value) in [0.0, 100.0, 100.0, 100.0, 40.0, 40.0].into_iter().enumerate() {
            series.put(Mono(second as u64 * 1_000), value);
        }
        let levels = series.levels(Mono(5_000), Millis(12_000), 3);
        let level = |mean, peak| Some(Level { mean, peak });
        assert_eq!(levels, [None, level(75.0, 100.0), level(40.0, 40.0)]);
    }

    #[test]
    fn one_second_spikes_survive_coarsening_and_gaps_stay() {
        let mut series = Series::default();
        for second in 0..86_400_u64 {
            if (20_000..21_000).contains(&second) {
                continue;
            }
            let value = if second == 40_007 { 99.0 } else { 1.0 };
            series.put(Mono(second * 1_000), value);
        }
        let now = Mono(86_399_000);
        for (length, columns) in
            [(DAY, 24), (DAY, 180), (DAY, 8_640), (Millis(DAY.0 * 2), 7), (Millis(21_600_000), 60)]
        {
            // The spikes in a chart must not depend on where the chart ends.
            let spikes = |end: Mono| {
                let window = series.window(end, length, columns);
                window.iter().filter(|s| **s == Some(Span(1.0, 99.0))).count()
            };
            let near = Mono(40_007_000 + length.0 / 2);
            let seen = if near < now { spikes(near) } else { spikes(now) };
            assert_eq!(seen, 1, "{length:?} in {columns}");
        }
        let day = series.window(now, DAY, 1_440);
        let gap = day.iter().filter(|span| span.is_none()).count();
        // The 1,000 seconds starting at second 20,000 contain 16 full minutes, 334 to 349.
        assert_eq!(gap, 16);
    }

    #[test]
    fn nothing_is_shown_before_the_first_value_and_after_the_last() {
        let mut series = Series::default();
        // The values begin and end in the middle of a coarse bucket.
        for second in 1_035..1_045_u64 {
            series.put(Mono(second * 1_000), 1.0);
        }
        let minute = |end| series.window(Mono(end), Millis(60_000), 60);
        let first = minute(1_044_000).iter().position(Option::is_some);
        assert_eq!(first, Some(50));
        let last = minute(1_060_000).iter().rposition(Option::is_some);
        assert_eq!(last, Some(43));
    }

    #[test]
    fn wide_columns_show_all_of_their_time() {
        let mut series = Series::default();
        for second in 0..80_000_u64 {
            series.put(Mono(second * 1_000), if second == 79_201 { 9.0 } else { 1.0 });
        }
        let day = series.window(Mono(79_999_000), Millis(80_000_000), 80);
        assert_eq!(day[79], Some(Span(1.0, 9.0)));
    }

    #[test]
    fn gaps_of_seconds_show_in_the_last_ten_minutes() {
        let mut series = Series::default();
        for second in (0..100_u64).chain(104..600) {
            series.put(Mono(second * 1_000), 1.0);
        }
        let minute = series.window(Mono(119_000), Millis(60_000), 60);
        let gaps: Vec<usize> = (0..60).filter(|i| minute[*i].is_none()).collect();
        assert_eq!(gaps, [40, 41, 42, 43]);
    }

    #[test]
    fn rare_values_count_for_the_time_since_the_previous_one() {
        let mut series = Series::default();
        series.put(Mono(30_000), 1.0);
        series.put_since(Mono(30_000), Mono(60_000), Span(2.0, 2.0));
        let minute = series.window(Mono(60_000), Millis(40_000), 40);
        assert_eq!(minute[9], Some(Span(1.0, 1.0)));
        assert!(minute[10..].iter().all(|s| *s == Some(Span(2.0, 2.0))));
    }

    #[test]
    fn memory_is_bounded_and_a_long_gap_restarts_the_series() {
        let mut series = Series::default();
        let mut max = 0;
        for second in 0..200_000_u64 {
            series.put(Mono(second * 1_000), (second % 97) as f32);
            max = max.max(series.bytes());
        }
        // A day of noise takes 9,360 buckets of 8 bytes, plus the chunk overhead.
        assert!(max < 86_000, "{max}");
        let mut constant = Series::default();
        (0..200_000).for_each(|second| constant.put(Mono(second * 1_000), 7.0));
        assert!(constant.bytes() < 5_000, "{}", constant.bytes());
        let mut cut = Series::default();
        let has_data = |second: &u64| second % 3_600 > 100;
        (0..200_000).filter(has_data).for_each(|second| cut.put(Mono(second * 1_000), 7.0));
        assert!(cut.bytes() < 5_000, "{}", cut.bytes());
        series.put(Mono(u64::MAX - 1), 2.0);
        assert!(series.bytes() < 2_000);
        series.put(Mono(5_000), 3.0);
        assert_eq!(series.window(Mono(5_000), Millis(1_000), 1), [Some(Span(3.0, 3.0))]);
    }

    #[test]
    fn the_peak_until_a_time_excludes_later_values() {
        let mut series = Series::default();
        for second in 0..300_u64 {
            series
                .put(Mono(second * 1_000), if second == 57 { 99.0 } else { second as f32 / 10.0 });
        }
        let peak = |second: u64| series.peak_until(Mono(second * 1_000));
        assert_eq!([peak(56), peak(57), peak(299)], [Some(5.6), Some(99.0), Some(99.0)]);
        assert_eq!(Series::default().peak_until(Mono(1_000)), None);
    }

    #[test]
    fn a_copy_is_unaffected_by_later_values() {
        let mut series = Series::default();
        for second in 0..1_000_u64 {
            series.put(Mono(second * 1_000), 1.0 + (second % 3) as f32);
        }
        let copy = series.clone();
        let shown = |s: &Series| s.window(Mono(999_000), Millis(1_000_000), 100);
        let before = shown(&copy);
        (995..90_000).for_each(|second| series.put(Mono(second * 1_000), 50.0));
        assert_eq!(shown(&copy), before);
        assert_ne!(shown(&series), before);
    }

    #[test]
    fn a_chart_excludes_values_after_its_end_and_shows_each_coarse_bucket_once() {
        let mut series = Series::default();
        for second in 0..120_u64 {
            let value = f32::from(u8::from(second >= 60));
            match second {
                0..60 => series.put_past(Mono(second / 10 * 10_000), Span(value, value)),
                _ => series.put(Mono(second * 1_000), value),
            }
        }
        // Columns of 7.5 s: the value is 0 before 60 s and 1 after it.
        let window = series.window(Mono(62_000), Millis(30_000), 4);
        let zero = Some(Span(0.0, 0.0));
        assert_eq!(window, [zero, zero, zero, Some(Span(1.0, 1.0))]);
        series.put(Mono(63_000), 9.0);
        assert_eq!(series.window(Mono(62_000), Millis(30_000), 4), window);
    }

    proptest! {
        /// The test data contains gaps, and earlier data that is filled in as values, as summaries, or as both.
        #[test]
        fn columns_have_the_minimum_and_maximum_of_the_raw_values(
            steps in proptest::collection::vec((1_u64..40, -50_i16..50), 1..400),
            filled in 0_usize..400,
            tens in 1_u64..30,
        ) {
            let mut at = 7_000_u64;
            let mut raw = Vec::new();
            for (seconds, value) in steps {
                at += seconds * 1_000;
                raw.push((at, Span(f32::from(value), f32::from(value) + 1.0)));
            }
            let mut series = Series::default();
            let (past, live) = raw.split_at(filled.min(raw.len()));
            live.iter().for_each(|(at, value)| series.put_span(Mono(*at), *value));
            // Earlier data is filled in newest first, as from a recording.
            past.iter().rev().for_each(|(at, value)| series.put_past(Mono(at / 10_000 * 10_000), *value));
            let (length, columns) = (tens * 10_000 * 20, 20);
            for end in [at, at / 2, at + 90_000] {
                // The last column ends at the end of the chart.
                let step = length / columns as u64;
                let end = (end / step + 1) * step - 1;
                prop_assert_eq!(
                    series.window(Mono(end), Millis(length), columns),
                    plain(&raw, end, length, columns as u64)
                );
            }
            // Removing the newest data leaves the minimum and maximum of the remaining values.
            let cut = at / 2 / 10_000 * 10_000;
            series.forget_from(Mono(cut));
            let remaining: Vec<_> = raw.iter().copied().filter(|(at, _)| *at < cut).collect();
            prop_assert_eq!(
                series.window(Mono(at), Millis(length), columns),
                plain(&remaining, at, length, columns as u64)
            );
        }
    }
}
