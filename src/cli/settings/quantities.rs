//! Parsers for durations and memory sizes.

use std::ops::RangeInclusive;

use gputop_model::text::quoted;
use gputop_model::{Bytes, Millis};
use jiff::SignedDuration;

use crate::source::map_schedule::MapPeriod;

/// Accepted range of a duration setting. If the hint ends with `off`, the values `off` and 0 are accepted too.
struct DurationRange {
    name: &'static str,
    range: RangeInclusive<u64>,
    hint: &'static str,
}

/// Range of the sampling interval. NVML calls are too expensive to repeat more often than every 100 ms.
const INTERVAL: DurationRange =
    DurationRange { name: "interval", range: 100..=3_600_000, hint: "use 100ms to 1h" };
const MAP_INTERVAL: DurationRange = DurationRange {
    name: "map interval",
    range: 1_000..=86_400_000,
    hint: "use 1s to 24h, or off",
};
/// Range of the length of a recording.
const LENGTH: DurationRange =
    DurationRange { name: "length", range: 1..=31_536_000_000, hint: "use 90s, 5m or 8h" };
/// Range of the maximum time for which a probe holds GPU memory.
#[cfg(local)]
const TIME_LIMIT: DurationRange =
    DurationRange { name: "time limit", range: 10..=60_000, hint: "use 10ms to 1m" };

/// Range of the interval of `gputop memory --watch`. Each reading takes up to 2 s.
#[cfg(local)]
const WATCH_INTERVAL: DurationRange =
    DurationRange { name: "interval", range: 1_000..=3_600_000, hint: "use 1s to 1h" };
/// Range of the time for which `gputop why` watches a program. In less than 2 s there are too few samples.
#[cfg(local)]
const SAMPLED_TIME: DurationRange =
    DurationRange { name: "time", range: 2_000..=600_000, hint: "use 2s to 10m" };

impl DurationRange {
    /// Parses a duration: `1s`, `500ms`, `2m`, or a number of seconds. Returns `None` for `off`.
    fn parse(&self, text: &str) -> Result<Option<Millis>, String> {
        let Self { name, range, hint } = self;
        let shown = quoted(text);
        if hint.ends_with("off") && matches!(text, "off" | "0") {
            return Ok(None);
        }
        let is_number = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        let with_unit = if is_number { format!("{text}s") } else { text.to_owned() };
        let span: SignedDuration =
            with_unit.parse().map_err(|_| format!("`{shown}` is not a duration; {hint}"))?;
        match u64::try_from(span.as_millis()) {
            Ok(ms) if range.contains(&ms) => Ok(Some(Millis(ms))),
            _ => Err(format!("{name} {shown} is out of range; {hint}")),
        }
    }

    fn parse_on(&self, text: &str) -> Result<Millis, String> {
        Ok(self.parse(text)?.unwrap_or_default())
    }
}

pub fn interval_argument(text: &str) -> Result<Millis, String> {
    INTERVAL.parse_on(text)
}

/// Parses the value of a setting called `name`: a time from 10 s to 24 h, or `off`.
pub fn time_or_off(name: &'static str, text: &str) -> Result<Option<Millis>, String> {
    DurationRange { name, range: 10_000..=86_400_000, hint: "use 10s to 24h, or off" }.parse(text)
}

pub fn length_argument(text: &str) -> Result<Millis, String> {
    LENGTH.parse_on(text)
}

#[cfg(local)]
pub fn limit_argument(text: &str) -> Result<Millis, String> {
    TIME_LIMIT.parse_on(text)
}

#[cfg(local)]
pub fn watch_argument(text: &str) -> Result<Millis, String> {
    WATCH_INTERVAL.parse_on(text)
}

#[cfg(local)]
pub fn sampled_time_argument(text: &str) -> Result<Millis, String> {
    SAMPLED_TIME.parse_on(text)
}

pub fn maps_argument(text: &str) -> Result<MapPeriod, String> {
    Ok(MAP_INTERVAL.parse(text)?.map_or(MapPeriod::Never, MapPeriod::Period))
}

/// Minimum size accepted without a unit. A smaller number is probably missing its unit.
const MIN_BYTES_WITHOUT_UNIT: f64 = (1 << 20) as f64;

/// Parses a memory size such as `512M`, `1.5GiB` or `0`: a number with a binary unit, or a number of bytes.
pub fn size_argument(text: &str) -> Result<Bytes, String> {
    let text = text.trim();
    let wrong = || format!("`{}` is not a size; use 512MiB or 1.5GiB", quoted(text));
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.'));
    let (digits, unit) = text.split_at(end.unwrap_or(text.len()));
    let number: f64 = digits.parse().map_err(|_| wrong())?;
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" if number != 0.0 && number < MIN_BYTES_WITHOUT_UNIT => {
            return Err(format!("unit missing; use `{text}GiB` or `{text}MiB`"));
        }
        "" | "b" => 0,
        "k" | "kib" | "kb" => 10,
        "m" | "mib" | "mb" => 20,
        "g" | "gib" | "gb" => 30,
        "t" | "tib" | "tb" => 40,
        _ => return Err(wrong()),
    };
    let bytes = number * (1_u64 << shift) as f64;
    // Limit sizes to 1 PiB, more than any GPU has. Above 8 PiB, a float cannot represent every number of bytes.
    if bytes > (1_u64 << 50) as f64 {
        return Err("size out of range; use at most 1024TiB".to_owned());
    }
    Ok(Bytes(bytes as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_without_a_unit_is_a_number_of_seconds() {
        assert_eq!(interval_argument("5"), Ok(Millis(5_000)));
        assert_eq!(interval_argument("0.5"), Ok(Millis(500)));
        assert_eq!(time_or_off("t", "30"), Ok(Some(Millis(30_000))));
        assert_eq!(length_argument("5"), Ok(Millis(5_000)));
        assert_eq!(
            length_argument("soon"),
            Err("`soon` is not a duration; use 90s, 5m or 8h".to_owned())
        );
    }

    #[test]
    fn parses_durations_within_their_range() {
        assert_eq!(interval_argument("250ms"), Ok(Millis(250)));
        assert_eq!(interval_argument("1m30s"), Ok(Millis(90_000)));
        assert_eq!(time_or_off("t", "5m"), Ok(Some(Millis(300_000))));
        assert_eq!(maps_argument("1m"), Ok(MapPeriod::Period(Millis(60_000))));
        for off in ["off", "0"] {
            assert_eq!(time_or_off("t", off), Ok(None));
            assert_eq!(maps_argument(off), Ok(MapPeriod::Never));
        }
        for wrong in ["", "0s", "-1s", "5ms", "25h", "soon", ".", "1.2.3"] {
            let error = time_or_off("probe interval", wrong).expect_err(wrong);
            assert!(error.ends_with("use 10s to 24h, or off"), "{wrong}: {error}");
            for range in [&INTERVAL, &MAP_INTERVAL] {
                let error = range.parse(wrong).expect_err(wrong);
                assert!(error.ends_with(range.hint), "{wrong}: {error}");
            }
        }
        assert!(interval_argument("off").is_err());
    }

    #[test]
    fn parses_sizes_with_and_without_units() {
        for (text, bytes) in [
            ("0", 0),
            ("1073741824", 1 << 30),
            ("512 B", 512),
            ("512M", 512 << 20),
            ("1.5GiB", 3 << 29),
            ("2 gb", 2 << 30),
        ] {
            assert_eq!(size_argument(text), Ok(Bytes(bytes)), "{text}");
        }
        let error = size_argument("24").expect_err("no unit");
        assert!(error.contains("`24GiB`"), "{error}");
        for wrong in ["", "M", "1x", "-1", "1.2.3", "1 GiB more", "1e3", "9999T", "4 pages"] {
            assert!(size_argument(wrong).is_err(), "{wrong}");
        }
    }
}
