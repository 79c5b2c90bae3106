//! Parsers for durations: the time between samples, probes and maps, and the time limit of a probe.

use color_eyre::Result;
use color_eyre::eyre::{WrapErr, bail};
use jiff::SignedDuration;

use crate::model::text::quoted;
use crate::model::units::Millis;
use crate::source::map_schedule::Every;

/// Parses `1s`, `500ms` or `2m`: at least 100 ms, because NVML calls are too expensive below that, and at most one hour.
pub fn parse(text: &str) -> Result<Millis> {
    let span: SignedDuration = text
        .parse()
        .wrap_err_with(|| format!("`{}` is not a duration; use 1s, 500ms or 2m", quoted(text)))?;
    match u64::try_from(span.as_millis()) {
        Ok(ms @ 100..=3_600_000) => Ok(Millis(ms)),
        _ => bail!("interval {text} is out of range; use 100ms to 1h"),
    }
}

/// Wraps [`parse`] for clap, which requires a plain error.
pub fn interval_argument(text: &str) -> Result<Millis, String> {
    parse(text).map_err(|report| report.to_string())
}

/// Parses `5m` or `30s`: from ten seconds to a day, or `off`.
pub fn parse_probe_interval(text: &str) -> Result<Option<Millis>> {
    if text == "off" {
        return Ok(None);
    }
    let span: SignedDuration = text
        .parse()
        .wrap_err_with(|| format!("`{}` is not a duration; use 5m, 30s or off", quoted(text)))?;
    match u64::try_from(span.as_millis()) {
        Ok(ms @ 10_000..=86_400_000) => Ok(Some(Millis(ms))),
        _ => bail!("probe interval {text} is out of range; use 10s to 24h, or off"),
    }
}

/// Parses `500ms` or `2s`: from 10 ms to one minute, the maximum time for which a probe fills the GPU.
#[cfg(local)]
pub fn limit_argument(text: &str) -> Result<Millis, String> {
    let span: SignedDuration = text
        .parse()
        .map_err(|_| format!("`{}` is not a duration; use 500ms or 2s", quoted(text)))?;
    match u64::try_from(span.as_millis()) {
        Ok(ms @ 10..=60_000) => Ok(Millis(ms)),
        _ => Err(format!("time limit {text} is out of range; use 10ms to 1m")),
    }
}

/// Parses `1m` or `10s`: from one second to a day, or `off` or `0` for no maps.
pub fn maps_argument(text: &str) -> Result<Every, String> {
    if text == "off" || text == "0" {
        return Ok(Every::Never);
    }
    let span: SignedDuration = text.parse().map_err(|_| {
        format!(
            "`{}` is not a duration; use 1m or 10s, or off for no maps",
            quoted(text)
        )
    })?;
    match u64::try_from(span.as_millis()) {
        Ok(ms @ 1_000..=86_400_000) => Ok(Every::Period(Millis(ms))),
        _ => Err(format!(
            "map interval {text} is out of range; use 1s to 24h, or off for no maps"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_intervals_out_of_range_with_an_example() {
        assert_eq!(parse("1s").expect("a second"), Millis(1_000));
        assert_eq!(parse("250ms").expect("a quarter"), Millis(250));
        assert_eq!(parse("1m30s").expect("ninety"), Millis(90_000));
        for wrong in ["", "1", "0s", "-1s", "5ms", "2h", "soon"] {
            let error = interval_argument(wrong).expect_err(wrong);
            assert!(
                error.contains("use 1s") || error.contains("use 100ms"),
                "{wrong}: {error}"
            );
        }
    }

    #[test]
    fn parses_probe_intervals_within_range_or_off() {
        let parsed = |text| parse_probe_interval(text).map_err(|report| report.to_string());
        assert_eq!(parsed("5m"), Ok(Some(Millis(300_000))));
        assert_eq!(parsed("off"), Ok(None));
        for wrong in ["", "1", "1s", "25h", "-1m"] {
            let error = parsed(wrong).expect_err(wrong);
            assert!(error.contains("or off"), "{wrong}: {error}");
        }
    }

    #[cfg(local)]
    #[test]
    fn rejects_time_limits_out_of_range() {
        assert_eq!(limit_argument("500ms"), Ok(Millis(500)));
        for wrong in ["", "500", "1ms", "2m", "-1s"] {
            let error = limit_argument(wrong).expect_err(wrong);
            assert!(
                error.contains("500ms") || error.contains("use 10ms"),
                "{wrong}: {error}"
            );
        }
    }

    #[test]
    fn parses_map_intervals_within_range_or_off() {
        assert_eq!(maps_argument("1m"), Ok(Every::Period(Millis(60_000))));
        assert_eq!(maps_argument("off"), Ok(Every::Never));
        assert_eq!(maps_argument("0"), Ok(Every::Never));
        for wrong in ["", "never", "10", "0s", "-1m", "500ms", "25h"] {
            let error = maps_argument(wrong).expect_err(wrong);
            assert!(error.contains("off for no"), "{wrong}: {error}");
        }
    }
}
