//! Times in logs.

/// Converts a time in a log to RFC 3339. Omits the time zone if the log does not contain it.
pub(super) fn standard_time(written: &str) -> Option<String> {
    let text = written.replacen(' ', "T", 1).replace(',', ".");
    if let Ok(time) = text.parse::<jiff::Timestamp>() {
        return Some(time.to_string());
    }
    text.parse::<jiff::civil::DateTime>().ok().map(|time| time.to_string())
}
