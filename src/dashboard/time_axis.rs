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
    }
}
