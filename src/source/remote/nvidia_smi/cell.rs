//! One field of `nvidia-smi` output, in the units used by `nvidia-smi`: memory in MiB, power in W, clocks in MHz,
//! shares in percent. Missing values are in brackets.

use gputop_model::text::visible;
use gputop_model::{Bytes, Celsius, MegaHertz, MilliWatts, Missing, Percent, Reading, Reason};

const MAX_TEXT: usize = 96;

/// A field of `nvidia-smi` output for one GPU, or the reason why the field is missing.
#[derive(Debug)]
pub(super) struct SmiCell<'a>(Result<&'a str, Missing>);

impl<'a> SmiCell<'a> {
    pub(super) fn of(text: &'a str) -> Self {
        let text = text.trim();
        let Some(bracketed) = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')) else {
            return Self(match text {
                "" | "N/A" => Err(Reason::Unsupported.into()),
                "ERR!" => Err(Missing::new(Reason::Unknown, "nvidia-smi reports: ERR!")),
                text => Ok(text),
            });
        };
        let reason = match bracketed {
            "N/A" | "Not Supported" => return Self(Err(Reason::Unsupported.into())),
            "Insufficient Permissions" => Reason::Denied,
            "GPU is lost" | "Not Found" => Reason::Gone,
            _ => Reason::Unknown,
        };
        let shown = visible(bracketed.as_bytes(), 60);
        Self(Err(Missing::new(reason, format!("nvidia-smi reports: {shown}"))))
    }

    pub(super) fn missing(why: Missing) -> Self {
        Self(Err(why))
    }

    /// Returns the cell for a field that this `nvidia-smi` does not support.
    pub(super) fn unknown() -> Self {
        let why = "not supported by the nvidia-smi on that host";
        Self(Err(Missing::new(Reason::Unsupported, why)))
    }

    pub(super) fn text(&self) -> Reading<String> {
        let text = self.0.clone();
        text.map(|text| visible(text.as_bytes(), MAX_TEXT)).into()
    }

    pub(super) fn read<T>(&self, read: impl FnOnce(&str) -> Option<T>) -> Reading<T> {
        match &self.0 {
            Err(why) => Reading::Missing(why.clone()),
            Ok(text) => read(text).map_or_else(
                || {
                    let shown = visible(text.as_bytes(), 40);
                    Reading::missing(Reason::Unknown, format!("nvidia-smi reports: {shown}"))
                },
                Reading::Value,
            ),
        }
    }

    pub(super) fn number<N: std::str::FromStr>(&self) -> Reading<N> {
        self.read(|text| text.parse().ok())
    }

    /// Parses a value in MiB.
    pub(super) fn bytes(&self) -> Reading<Bytes> {
        self.read(|text| Some(Bytes(text.parse::<u64>().ok()?.checked_mul(1 << 20)?)))
    }

    pub(super) fn percent(&self) -> Reading<Percent> {
        self.number::<u32>().at_most(100).map(|n| Percent(n.into()))
    }

    /// Parses a value in W, such as `124.71`. Rejects values of 20 kW or more, which no single GPU uses.
    pub(super) fn power(&self) -> Reading<MilliWatts> {
        let watts = self.read(|text| text.parse().ok().filter(|watts| *watts >= 0.0));
        watts.at_most(20_000.0).map(|watts: f64| MilliWatts((watts * 1_000.0).round() as u32))
    }

    pub(super) fn celsius(&self) -> Reading<Celsius> {
        self.number().at_most(250).map(Celsius)
    }

    pub(super) fn clock(&self) -> Reading<MegaHertz> {
        self.number().at_most(100_000).map(MegaHertz)
    }

    /// Parses `Enabled` or `Yes` as true, `Disabled` or `No` as false.
    pub(super) fn is_set(&self) -> Reading<bool> {
        self.read(|text| match text {
            "Enabled" | "Yes" => Some(true),
            "Disabled" | "No" => Some(false),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_and_invalid_values_become_reasons() {
        let why = |text| SmiCell::of(text).bytes().why().map(ToString::to_string);
        assert_eq!(why("[N/A]").as_deref(), Some("not supported here"));
        assert_eq!(why("[Not Supported]").as_deref(), Some("not supported here"));
        assert_eq!(why("[Unknown Error]").as_deref(), Some("nvidia-smi reports: Unknown Error"));
        assert_eq!(why("\u{1b}[2J7").as_deref(), Some("nvidia-smi reports: ^[[2J7"));
        assert_eq!(why("99999999999999999999").map(|why| why.len()), Some(40));
        assert_eq!(why("18446744073709551615").map(|why| why.len()), Some(40));
        assert_eq!(SmiCell::of(" 143771").bytes().get(), Some(Bytes::mib(143_771)));
        for power in ["-1", "nan", "inf", "1e9"] {
            assert!(SmiCell::of(power).power().why().is_some(), "{power}");
        }
        assert_eq!(SmiCell::of("124.71").power().get(), Some(MilliWatts(124_710)));
        assert!(SmiCell::of("101").percent().why().is_some());
    }
}
