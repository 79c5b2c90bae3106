//! One number over time, in two tiers.

use serde::{Deserialize, Serialize};

use super::tier::Tier;
use crate::model::units::{Millis, Mono};

/// The least and the greatest value in a stretch of time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Span(pub f32, pub f32);

impl Span {
    /// One that is absent (NaN) yields the other.
    pub(super) fn join(self, other: Self) -> Self {
        Self(self.0.min(other.0), self.1.max(other.1))
    }

    /// The same bits, so that an absent one is like another.
    pub(super) fn is(self, other: Self) -> bool {
        self.0.to_bits() == other.0.to_bits() && self.1.to_bits() == other.1.to_bits()
    }
}

/// Width of a bucket in milliseconds and how many chunks of 60 are kept, finest first: a second for ten minutes, ten
/// seconds for a day, each with one chunk more, since the newest is not full.
const TIERS: [(u64, u64); 2] = [(1_000, 11), (COARSE.0, 145)];

/// The width of a coarse bucket, which is also that of a recording's summaries.
pub const COARSE: Millis = Millis(10_000);

/// How far back a series reaches.
pub const DAY: Millis = Millis(86_400_000);

#[derive(Debug, Clone, Default)]
pub struct Series {
    tiers: [Tier; TIERS.len()],
    /// Nothing was read before: a coarse bucket begins earlier than the first value in it.
    since: Option<Mono>,
    /// Nothing was read from here on.
    until: Option<Mono>,
    last: Option<(Mono, f32)>,
}

impl Series {
    pub fn put(&mut self, at: Mono, value: f32) {
        self.put_span(at, Span(value, value));
    }

    /// Several values at once, of which the least and the greatest count.
    pub fn put_span(&mut self, at: Mono, value: Span) {
        for (tier, (width, most)) in self.tiers.iter_mut().zip(TIERS) {
            tier.put(at.0 / width, value, most, true);
        }
        self.covers(at, Mono(at.0.saturating_add(1)));
        self.last = Some((at, value.1));
    }

    /// The same for the time since `before`, when the last value was read: frames come seldom.
    pub(super) fn put_since(&mut self, before: Mono, at: Mono, value: Span) {
        for (tier, (width, most)) in self.tiers.iter_mut().zip(TIERS) {
            let first = (before.0 / width + 1).max((at.0 / width).saturating_sub(most * 60));
            for index in first..at.0 / width {
                tier.put(index, value, most, true);
            }
        }
        self.put_span(at, value);
    }

    /// Fills in the past, a coarse bucket; the finest tier stays empty there.
    pub(super) fn put_past(&mut self, at: Mono, value: Span) {
        for (tier, (width, most)) in self.tiers.iter_mut().zip(TIERS).skip(1) {
            tier.put(at.0 / width, value, most, false);
        }
        self.covers(at, Mono(at.0.saturating_add(COARSE.0)));
    }

    fn covers(&mut self, from: Mono, to: Mono) {
        self.since = Some(self.since.map_or(from, |since| since.min(from)));
        self.until = Some(self.until.map_or(to, |until| until.max(to)));
    }

    /// When it was last read, and the value then.
    pub fn last(&self) -> Option<(Mono, f32)> {
        self.last
    }

    /// Nothing was read from here on.
    pub fn until(&self) -> Option<Mono> {
        self.until
    }

    pub(super) fn forget_before(&mut self, moment: Mono) {
        for (tier, (width, _)) in self.tiers.iter_mut().zip(TIERS) {
            tier.forget_before(moment.0 / width);
        }
    }

    pub(super) fn forget_fine(&mut self) {
        self.tiers[0].forget();
    }

    /// Forgets everything from `moment` on, and what is fine: what comes next may leave a hole behind that only
    /// coarse buckets fill.
    pub(super) fn forget_from(&mut self, moment: Mono) {
        self.forget_fine();
        let [_, coarse] = &mut self.tiers;
        coarse.forget_from(moment.0 / COARSE.0);
        self.until = self.until.map(|until| until.min(moment));
        self.last = self.last.filter(|(at, _)| *at < moment);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tiers.iter().all(Tier::is_empty)
    }

    /// What it takes on the heap, of which a copy shares most.
    pub fn bytes(&self) -> usize {
        self.tiers.iter().map(Tier::bytes).sum()
    }

    /// The greatest value there is.
    pub(super) fn peak(&self) -> f32 {
        let all = self.tiers[1].span(0, u64::MAX);
        all.map_or(0.0, |span| span.1)
    }

    /// `columns` spans over the `length` that ends with `end`, oldest first; `None` where nothing was read.
    pub fn window(&self, end: Mono, length: Millis, columns: usize) -> Vec<Option<Span>> {
        let step = (length.0 / columns.max(1) as u64).max(1);
        // Columns are aligned to the step, so that a chart moves by whole columns and does not shimmer.
        let last = end.0 / step;
        (0..columns as u64)
            .map(|column| {
                let index = (last + column + 1).checked_sub(columns as u64)?;
                self.span(index * step, (index + 1).saturating_mul(step))
            })
            .collect()
    }

    /// From the fine tier where that reaches back to `from`, else from the coarse one.
    fn span(&self, from: u64, to: u64) -> Option<Span> {
        let is_known = self.since.is_some_and(|since| to > since.0)
            && self.until.is_some_and(|until| from < until.0);
        if !is_known {
            return None;
        }
        let reaches = |(tier, (width, _)): &(&Tier, (u64, u64))| {
            tier.start().is_some_and(|start| start * width <= from)
        };
        let mut tiers = self.tiers.iter().zip(TIERS);
        let (tier, (width, _)) = tiers.find(reaches).unwrap_or((&self.tiers[1], TIERS[1]));
        // A column narrower than a bucket shows the bucket it lies in.
        tier.span(from / width, to.div_ceil(width).max(from / width + 1))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What a chart must show: the least and the greatest of the raw values in each column.
    fn plain(raw: &[(u64, Span)], end: u64, length: u64, columns: u64) -> Vec<Option<Span>> {
        let step = length / columns;
        let last = end / step;
        let column = |column: u64| {
            let from = (last + column + 1).checked_sub(columns)? * step;
            let inside = raw
                .iter()
                .filter(|(at, _)| (from..from + step).contains(at));
            inside.map(|(_, value)| *value).reduce(Span::join)
        };
        (0..columns).map(column).collect()
    }

    #[test]
    fn a_spike_of_a_second_survives_every_coarsening_and_a_gap_stays_a_gap() {
        let mut series = Series::default();
        for second in 0..86_400_u64 {
            if (20_000..21_000).contains(&second) {
                continue;
            }
            let value = if second == 40_007 { 99.0 } else { 1.0 };
            series.put(Mono(second * 1_000), value);
        }
        let now = Mono(86_399_000);
        for (length, columns) in [
            (DAY, 24),
            (DAY, 180),
            (DAY, 8_640),
            (Millis(DAY.0 * 2), 7),
            (Millis(21_600_000), 60),
        ] {
            // Wherever the chart ends behind it.
            let spikes = |end: Mono| {
                let window = series.window(end, length, columns);
                window
                    .iter()
                    .filter(|s| **s == Some(Span(1.0, 99.0)))
                    .count()
            };
            let near = Mono(40_007_000 + length.0 / 2);
            let seen = if near < now {
                spikes(near)
            } else {
                spikes(now)
            };
            assert_eq!(seen, 1, "{length:?} in {columns}");
        }
        let day = series.window(now, DAY, 1_440);
        let gap = day.iter().filter(|span| span.is_none()).count();
        // 1,000 seconds from 20,000 on are the minutes 334 to 349 whole.
        assert_eq!(gap, 16);
    }

    #[test]
    fn nothing_is_shown_before_the_first_value_and_after_the_last() {
        let mut series = Series::default();
        // In the middle of a coarse bucket.
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
    fn a_column_wider_than_the_fine_tier_still_shows_all_of_its_time() {
        let mut series = Series::default();
        for second in 0..80_000_u64 {
            series.put(
                Mono(second * 1_000),
                if second == 79_201 { 9.0 } else { 1.0 },
            );
        }
        let day = series.window(Mono(79_999_000), Millis(80_000_000), 80);
        assert_eq!(day[79], Some(Span(1.0, 9.0)));
    }

    #[test]
    fn a_gap_of_some_seconds_is_a_gap_in_the_last_ten_minutes() {
        let mut series = Series::default();
        for second in (0..100_u64).chain(104..600) {
            series.put(Mono(second * 1_000), 1.0);
        }
        let minute = series.window(Mono(119_000), Millis(60_000), 60);
        let gaps: Vec<usize> = (0..60).filter(|i| minute[*i].is_none()).collect();
        assert_eq!(gaps, [40, 41, 42, 43]);
    }

    #[test]
    fn where_frames_come_seldom_a_value_stands_for_the_time_since_the_last() {
        let mut series = Series::default();
        series.put(Mono(30_000), 1.0);
        series.put_since(Mono(30_000), Mono(60_000), Span(2.0, 2.0));
        let minute = series.window(Mono(60_000), Millis(40_000), 40);
        assert_eq!(minute[9], Some(Span(1.0, 1.0)));
        assert!(minute[10..].iter().all(|s| *s == Some(Span(2.0, 2.0))));
    }

    #[test]
    fn memory_is_bounded_and_a_long_silence_starts_anew() {
        let mut series = Series::default();
        let mut most = 0;
        for second in 0..200_000_u64 {
            series.put(Mono(second * 1_000), (second % 97) as f32);
            most = most.max(series.bytes());
        }
        // A day of noise: 9,360 buckets of 8 bytes, and what the chunks take.
        assert!(most < 86_000, "{most}");
        let mut still = Series::default();
        (0..200_000).for_each(|second| still.put(Mono(second * 1_000), 7.0));
        assert!(still.bytes() < 5_000, "{}", still.bytes());
        let mut cut = Series::default();
        let is_heard = |second: &u64| second % 3_600 > 100;
        (0..200_000)
            .filter(is_heard)
            .for_each(|second| cut.put(Mono(second * 1_000), 7.0));
        assert!(cut.bytes() < 5_000, "{}", cut.bytes());
        series.put(Mono(u64::MAX - 1), 2.0);
        assert!(series.bytes() < 2_000);
        series.put(Mono(5_000), 3.0);
        assert_eq!(
            series.window(Mono(5_000), Millis(1_000), 1),
            [Some(Span(3.0, 3.0))]
        );
    }

    #[test]
    fn a_copy_keeps_what_was_while_the_original_goes_on() {
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

    proptest! {
        /// Gaps included, and whether the past came as values, as summaries behind them, or both.
        #[test]
        fn columns_have_the_least_and_the_greatest_of_the_raw_values(
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
            // The newest first, as a recording fills in.
            past.iter().rev().for_each(|(at, value)| series.put_past(Mono(at / 10_000 * 10_000), *value));
            let (length, columns) = (tens * 10_000 * 20, 20);
            for end in [at, at / 2, at + 90_000] {
                prop_assert_eq!(
                    series.window(Mono(end), Millis(length), columns),
                    plain(&raw, end, length, columns as u64)
                );
            }
            // The same after a part was forgotten.
            let cut = at / 2 / 10_000 * 10_000;
            series.forget_from(Mono(cut));
            let kept: Vec<_> = raw.iter().copied().filter(|(at, _)| *at < cut).collect();
            prop_assert_eq!(
                series.window(Mono(at), Millis(length), columns),
                plain(&kept, at, length, columns as u64)
            );
        }
    }
}
