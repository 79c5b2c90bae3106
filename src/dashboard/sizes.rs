//! Sizes and shares as text.

use gputop_model::units::Bytes;

/// A size that is not zero, but would be shown as 0.0.
const SMALL: &str = "<0.1";

/// Formats a size in GiB with one decimal, as in the table headings.
pub fn gib(bytes: Bytes) -> String {
    match bytes.0 {
        // Use another unit for sums of 10,000 GiB or more, which occur in very large groups and do not fit the column.
        _ if bytes >= Bytes::gib(10_000) => bytes.short(),
        0 => "0.0".to_owned(),
        _ if bytes < Bytes::mib(52) => SMALL.to_owned(),
        _ => format!("{:.1}", bytes.as_gib()),
    }
}

/// Formats a size like [`gib`], but rounded down, so that a request of the displayed size fits.
pub fn gib_down(bytes: Bytes) -> String {
    let tenth = Bytes::gib(1).0 / 10;
    match bytes.0 {
        size if (1..tenth).contains(&size) => SMALL.to_owned(),
        size => gib(Bytes(size / tenth * tenth)),
    }
}

/// Formats a percentage: `41 %`, or `<1 %` for a small share.
pub fn percent_words(percent: f64) -> String {
    if percent > 0.0 && percent < 1.0 { "<1 %".into() } else { format!("{percent:.0} %") }
}

/// Formats a size with three significant digits: `120 MiB`, `1.20 GiB`.
pub fn rounded(size: Bytes) -> String {
    let text = size.to_string();
    let Some((number, unit)) = text.split_once(' ') else { return text };
    let Ok(number) = number.parse::<f64>() else { return text };
    let digits = match unit {
        "bytes" => 0,
        _ if number >= 100.0 => 0,
        _ if number >= 10.0 => 1,
        _ => 2,
    };
    format!("{number:.digits$} {unit}")
}
