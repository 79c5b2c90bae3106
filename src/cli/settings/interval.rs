//! The time between samples, and between maps.

use color_eyre::Result;
use color_eyre::eyre::{WrapErr, bail};
use jiff::SignedDuration;

use crate::model::text::quoted;
use crate::model::units::Millis;
use crate::source::map_schedule::Every;

/// `1s`, `500ms`, `2m`: from 100 ms, below which NVML costs more than it tells, to an hour.
pub fn parse(text: &str) -> Result<Millis> {
    let span: SignedDuration = text
        .parse()
        .wrap_err_with(|| format!("`{}` is no time; write 1s, 500ms or 2m", quoted(text)))?;
    match u64::try_from(span.as_millis()) {
        Ok(ms @ 100..=3_600_000) => Ok(Millis(ms)),
        _ => bail!("an interval of {text} is out of range; from 100ms to 1h"),
    }
}

/// Clap wants a plain error.
pub fn interval_argument(text: &str) -> Result<Millis, String> {
    parse(text).map_err(|report| report.to_string())
}

/// `5m`, `30s`: from ten seconds to a day; `off` for never.
pub fn parse_probe_interval(text: &str) -> Result<Option<Millis>> {
    if text == "off" {
        return Ok(None);
    }
    let span: SignedDuration = text
        .parse()
        .wrap_err_with(|| format!("`{}` is no time; write 5m or 30s, or off", quoted(text)))?;
    match u64::try_from(span.as_millis()) {
        Ok(ms @ 10_000..=86_400_000) => Ok(Some(Millis(ms))),
        _ => bail!("a time of {text} between probes is out of range; from 10s to 24h, or off"),
    }
}

/// `500ms`, `2s`: from 10 ms to a minute, for which a card is held full at most.
#[cfg(local)]
pub fn limit_argument(text: &str) -> Result<Millis, String> {
    let span: SignedDuration = text
        .parse()
        .map_err(|_| format!("`{}` is no time; write 500ms or 2s", quoted(text)))?;
    match u64::try_from(span.as_millis()) {
        Ok(ms @ 10..=60_000) => Ok(Millis(ms)),
        _ => Err(format!(
            "a limit of {text} is out of range; from 10ms to 1m"
        )),
    }
}

/// `1m`, `10s`: from a second to a day; `off` or `0` for no maps.
pub fn maps_argument(text: &str) -> Result<Every, String> {
    if text == "off" || text == "0" {
        return Ok(Every::Never);
    }
    let span: SignedDuration = text.parse().map_err(|_| {
        format!(
            "`{}` is no time; write 1m or 10s, or off for no maps",
            quoted(text)
        )
    })?;
    match u64::try_from(span.as_millis()) {
        Ok(ms @ 1_000..=86_400_000) => Ok(Every::Period(Millis(ms))),
        _ => Err(format!(
            "a time of {text} between maps is out of range; from 1s to 24h, or off for no maps"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_bounded_and_explained() {
        assert_eq!(parse("1s").expect("a second"), Millis(1_000));
        assert_eq!(parse("250ms").expect("a quarter"), Millis(250));
        assert_eq!(parse("1m30s").expect("ninety"), Millis(90_000));
        for wrong in ["", "1", "0s", "-1s", "5ms", "2h", "soon"] {
            let error = interval_argument(wrong).expect_err(wrong);
            assert!(
                error.contains("write 1s") || error.contains("from 100ms"),
                "{wrong}: {error}"
            );
        }
    }

    #[test]
    fn the_time_between_probes_is_bounded_and_may_be_never() {
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
    fn a_limit_is_bounded() {
        assert_eq!(limit_argument("500ms"), Ok(Millis(500)));
        for wrong in ["", "500", "1ms", "2m", "-1s"] {
            let error = limit_argument(wrong).expect_err(wrong);
            assert!(
                error.contains("500ms") || error.contains("from 10ms"),
                "{wrong}: {error}"
            );
        }
    }

    #[test]
    fn the_time_between_maps_is_bounded_and_may_be_never() {
        assert_eq!(maps_argument("1m"), Ok(Every::Period(Millis(60_000))));
        assert_eq!(maps_argument("off"), Ok(Every::Never));
        assert_eq!(maps_argument("0"), Ok(Every::Never));
        for wrong in ["", "never", "10", "0s", "-1m", "500ms", "25h"] {
            let error = maps_argument(wrong).expect_err(wrong);
            assert!(error.contains("off for no"), "{wrong}: {error}");
        }
    }
}
