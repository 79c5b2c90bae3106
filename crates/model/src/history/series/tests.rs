use proptest::prelude::*;

use super::*;

impl Series {
    pub(crate) fn put(&mut self, at: Mono, value: f32) {
        self.put_span(at, Span(value, value));
    }
}

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
        series.put(Mono(second * 1_000), if second == 57 { 99.0 } else { second as f32 / 10.0 });
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
