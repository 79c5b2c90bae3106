//! Times as text: clock times in the user's time zone, and short durations.

use gputop_model::units::{Millis, UnixMillis};
use jiff::tz::TimeZone;

/// Formats a time with a `strftime` format. Returns an empty string for a time outside the years -9999 to 9999.
pub fn clock_text(time: UnixMillis, zone: &TimeZone, format: &str) -> String {
    jiff::Timestamp::from_millisecond(time.0)
        .map(|time| time.to_zoned(zone.clone()).strftime(format).to_string())
        .unwrap_or_default()
}

/// Formats a short duration for axes and ages, such as `10m`, `1h` or `30s`.
pub fn span_text(span: Millis) -> String {
    let seconds = span.0 / 1_000;
    match seconds {
        s if s < 60 => format!("{s}s"),
        s if s < 3_600 && s % 60 != 0 && s < 600 => format!("{}m{:02}", s / 60, s % 60),
        s if s < 3_600 => format!("{}m", s / 60),
        s if s < 86_400 && s % 3_600 >= 60 => format!("{}h{:02}", s / 3_600, s % 3_600 / 60),
        s if s < 86_400 => format!("{}h", s / 3_600),
        s => format!("{}d{:02}", s / 86_400, s % 86_400 / 3_600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_durations_in_a_few_characters() {
        for (ms, words) in [
            (0, "0s"),
            (59_000, "59s"),
            (60_000, "1m"),
            (90_000, "1m30"),
            (600_000, "10m"),
            (3_600_000, "1h"),
            (11_520_000, "3h12"),
            (90_000_000, "1d01"),
        ] {
            assert_eq!(span_text(Millis(ms)), words);
        }
    }
}
