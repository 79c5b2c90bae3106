//! The time window of a chart.

use gputop_model::units::{Millis, Mono, UnixMillis};

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimeAxis {
    pub end: Mono,
    pub length: Millis,
    /// End of the window, or `None` if the window ends now.
    pub past: Option<AxisEnd>,
}

/// End of a past window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AxisEnd {
    /// Wall-clock time of the end.
    pub time: UnixMillis,
    /// Time since the end; 0 if the window does not move, as in a printed chart.
    pub ago: Millis,
}

impl TimeAxis {
    /// Returns a window of `length` that ends at the current time `end`.
    pub fn until(end: Mono, length: Millis) -> Self {
        Self { end, length, past: None }
    }

    /// Returns the end of the time interval of a column in a chart of `width` columns.
    pub fn time(&self, column: u16, width: u16) -> Mono {
        let step = (self.length.0 / u64::from(width.max(1))).max(1);
        let back = u64::from(width.saturating_sub(1).saturating_sub(column));
        // The columns are aligned to multiples of the step.
        let end_of_column = (self.end.0 / step).saturating_sub(back) * step + step - 1;
        Mono(end_of_column.min(self.end.0))
    }

    /// Returns the column of a time in a chart of `width` columns, or `None` if the time is outside the window.
    pub fn column(&self, time: Mono, width: u16) -> Option<u16> {
        if time > self.end {
            return None;
        }
        // Use the same column boundaries as the columns of a series.
        let step = (self.length.0 / u64::from(width.max(1))).max(1);
        let back = (self.end.0 / step).checked_sub(time.0 / step)?;
        width.checked_sub(1)?.checked_sub(u16::try_from(back).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_column_of_a_time() {
        let axis = TimeAxis { end: Mono(100_000), length: Millis(10_000), past: None };
        let of = |at| axis.column(Mono(at), 10);
        assert_eq!([of(100_000), of(99_000), of(91_999)], [Some(9), Some(8), Some(0)]);
        assert_eq!([of(90_999), of(100_500), of(101_000)], [None; 3]);
        for column in 0..10 {
            assert_eq!(of(axis.time(column, 10).0), Some(column));
        }
    }
}
