//! What `nvidia-smi --query-gpu` is asked for of each GPU, and where it goes.
//!
//! A line of its answer, as a driver 580 gave it for `index,uuid,name,memory.total,power.draw,fan.speed,pstate`:
//!
//! ```text
//! 0, GPU-c4a36e9e-b12e-ae04-21f0-6dc4ff6d2da6, NVIDIA H200, 143771, 124.71, [N/A], P0
//! ```
//!
//! Memory is in MiB, power in W, clocks in MHz, shares in percent. What it cannot tell stands in brackets.

use crate::model::gpu::{Board, Gpu, Throttle};
use crate::model::reading::{Missing, Reading, Reason};
use crate::model::text::visible;
use crate::model::units::{Bytes, Celsius, GpuUuid, MegaHertz, MilliWatts, Percent};

const MOST_WORD: usize = 96;

/// A GPU while it is put together.
#[derive(Debug, Default)]
pub(super) struct Card {
    pub gpu: Gpu,
    pub board: Board,
    pub driver: Reading<String>,
}

pub(super) struct Field {
    /// As `nvidia-smi` calls it; the newest name first.
    pub names: &'static [&'static str],
    pub put: fn(&mut Card, &Cell<'_>),
}

/// A field of one GPU as it was told, or why it was not.
#[derive(Debug)]
pub(super) struct Cell<'a>(Result<&'a str, Missing>);

impl<'a> Cell<'a> {
    pub(super) fn of(text: &'a str) -> Self {
        let text = text.trim();
        let Some(inside) = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')) else {
            return Self(match text {
                "" | "N/A" => Err(Reason::Unsupported.into()),
                "ERR!" => Err(Missing::new(Reason::Unknown, "nvidia-smi says: ERR!")),
                text => Ok(text),
            });
        };
        let reason = match inside {
            "N/A" | "Not Supported" => return Self(Err(Reason::Unsupported.into())),
            "Insufficient Permissions" => Reason::Denied,
            "GPU is lost" | "Not Found" => Reason::Gone,
            _ => Reason::Unknown,
        };
        let words = visible(inside.as_bytes(), 60);
        Self(Err(Missing::new(
            reason,
            format!("nvidia-smi says: {words}"),
        )))
    }

    /// Of a field that this `nvidia-smi` does not have.
    pub(super) fn unknown() -> Self {
        let why = "the nvidia-smi there is too old for it";
        Self(Err(Missing::new(Reason::Unsupported, why)))
    }

    pub(super) fn text(&self) -> Reading<String> {
        let word = self.0.clone();
        word.map(|text| visible(text.as_bytes(), MOST_WORD)).into()
    }

    fn read<T>(&self, read: impl FnOnce(&str) -> Option<T>) -> Reading<T> {
        match &self.0 {
            Err(why) => Reading::Missing(why.clone()),
            Ok(text) => read(text).map_or_else(
                || {
                    let words = visible(text.as_bytes(), 40);
                    Reading::missing(Reason::Unknown, format!("nvidia-smi says: {words}"))
                },
                Reading::Value,
            ),
        }
    }

    fn number<N: std::str::FromStr>(&self) -> Reading<N> {
        self.read(|text| text.parse().ok())
    }

    /// From MiB.
    pub(super) fn bytes(&self) -> Reading<Bytes> {
        self.read(|text| Some(Bytes(text.parse::<u64>().ok()?.checked_mul(1 << 20)?)))
    }

    fn percent(&self) -> Reading<Percent> {
        self.number::<u32>().at_most(100).map(|n| Percent(n.into()))
    }

    /// From W, as `124.71`. No single GPU draws 20 kW.
    fn power(&self) -> Reading<MilliWatts> {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let milliwatts = |watts: f64| MilliWatts((watts * 1_000.0).round() as u32);
        let watts = self.read(|text| text.parse().ok().filter(|watts| *watts >= 0.0));
        watts.at_most(20_000.0).map(milliwatts)
    }

    fn celsius(&self) -> Reading<Celsius> {
        self.number().at_most(250).map(Celsius)
    }

    fn clock(&self) -> Reading<MegaHertz> {
        self.number().at_most(100_000).map(MegaHertz)
    }

    /// `Enabled`, `Yes`
    fn is_set(&self) -> Reading<bool> {
        self.read(|text| match text {
            "Enabled" | "Yes" => Some(true),
            "Disabled" | "No" => Some(false),
            _ => None,
        })
    }
}

const fn field(names: &'static [&'static str], put: fn(&mut Card, &Cell<'_>)) -> Field {
    Field { names, put }
}

pub(super) const FIELDS: &[Field] = &[
    field(&["index"], |card, cell| {
        card.gpu.index = cell.number().get().unwrap_or_default();
    }),
    field(&["uuid", "gpu_uuid"], |card, cell| {
        card.gpu.uuid = GpuUuid(cell.text().value().map_or("", String::as_str).into());
    }),
    field(&["name"], |card, cell| {
        let name = cell.text();
        let name = name.value().cloned();
        card.gpu.name = name.unwrap_or_else(|| "unnamed GPU".into());
    }),
    field(&["driver_version"], |card, cell| card.driver = cell.text()),
    field(&["pci.bus_id"], |card, cell| {
        card.board.pci_bus = cell.text().map(|bus| Board::bus_of(&bus));
    }),
    field(&["serial"], |card, cell| card.board.serial = cell.text()),
    field(&["vbios_version"], |card, cell| {
        card.board.vbios = cell.text();
    }),
    field(&["compute_cap"], |card, cell| {
        card.board.compute_capability = cell.text();
    }),
    field(&["compute_mode"], |card, cell| {
        // `Exclusive_Process`
        let words = |mode: String| mode.to_lowercase().replace('_', " ");
        card.board.compute_mode = cell.text().map(words);
    }),
    field(&["persistence_mode"], |card, cell| {
        card.board.persistence = cell.is_set();
    }),
    field(&["memory.total"], |card, cell| {
        card.gpu.memory.total = cell.bytes();
    }),
    field(&["memory.reserved"], |card, cell| {
        card.gpu.memory.reserved = cell.bytes();
    }),
    field(&["memory.used"], |card, cell| {
        card.gpu.memory.used = cell.bytes();
    }),
    field(&["memory.free"], |card, cell| {
        card.gpu.memory.free = cell.bytes();
    }),
    field(&["utilization.gpu"], |card, cell| {
        card.gpu.sm = cell.percent();
    }),
    field(&["utilization.memory"], |card, cell| {
        card.gpu.memory_bandwidth = cell.percent();
    }),
    field(&["utilization.encoder"], |card, cell| {
        card.gpu.encoder = cell.percent();
    }),
    field(&["utilization.decoder"], |card, cell| {
        card.gpu.decoder = cell.percent();
    }),
    field(&["power.draw"], |card, cell| card.gpu.power = cell.power()),
    field(&["enforced.power.limit"], |card, cell| {
        card.gpu.power_cap = cell.power();
    }),
    field(&["power.default_limit"], |card, cell| {
        card.board.power_cap_default = cell.power();
    }),
    field(&["temperature.gpu"], |card, cell| {
        card.gpu.temperature = cell.celsius();
    }),
    field(&["temperature.memory"], |card, cell| {
        card.gpu.memory_temperature = cell.celsius();
    }),
    field(&["fan.speed"], |card, cell| card.gpu.fan = cell.percent()),
    field(&["clocks.sm"], |card, cell| {
        card.gpu.sm_clock = cell.clock();
    }),
    field(&["clocks.mem"], |card, cell| {
        card.gpu.memory_clock = cell.clock();
    }),
    field(&["clocks.max.sm"], |card, cell| {
        card.board.max_sm_clock = cell.clock();
    }),
    field(&["clocks.max.mem"], |card, cell| {
        card.board.max_memory_clock = cell.clock();
    }),
    field(&["pstate"], |card, cell| {
        let number = |text: &str| text.strip_prefix('P')?.parse().ok();
        card.gpu.pstate = cell.read(number).at_most(15);
    }),
    // Called so since driver 535.
    field(
        &[
            "clocks_event_reasons.active",
            "clocks_throttle_reasons.active",
        ],
        |card, cell| {
            let mask = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
            card.gpu.throttle = cell.read(mask).map(Throttle::of_mask);
        },
    ),
    field(&["ecc.mode.current"], |card, cell| {
        card.gpu.ecc.enabled = cell.is_set();
    }),
    field(&["ecc.errors.corrected.volatile.total"], |card, cell| {
        card.gpu.ecc.corrected = cell.number();
    }),
    field(&["ecc.errors.uncorrected.volatile.total"], |card, cell| {
        card.gpu.ecc.uncorrected = cell.number();
    }),
    field(&["remapped_rows.correctable"], |card, cell| {
        card.gpu.ecc.remapped_correctable = cell.number();
    }),
    field(&["remapped_rows.uncorrectable"], |card, cell| {
        card.gpu.ecc.remapped_uncorrectable = cell.number();
    }),
    field(&["remapped_rows.pending"], |card, cell| {
        card.gpu.ecc.remap_pending = cell.is_set();
    }),
    field(&["remapped_rows.failure"], |card, cell| {
        card.gpu.ecc.remap_failed = cell.is_set();
    }),
    field(&["pcie.link.gen.current"], |card, cell| {
        card.gpu.pcie.generation = cell.number();
    }),
    field(&["pcie.link.width.current"], |card, cell| {
        card.gpu.pcie.width = cell.number();
    }),
    field(&["pcie.link.gen.max"], |card, cell| {
        card.gpu.pcie.max_generation = cell.number();
    }),
    field(&["pcie.link.width.max"], |card, cell| {
        card.gpu.pcie.max_width = cell.number();
    }),
    field(&["mig.mode.current"], |card, cell| {
        card.gpu.mig_enabled = cell.is_set();
    }),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_told_is_a_reason_and_never_a_number() {
        let why = |text| Cell::of(text).bytes().why().map(ToString::to_string);
        assert_eq!(why("[N/A]").as_deref(), Some("not supported here"));
        assert_eq!(
            why("[Not Supported]").as_deref(),
            Some("not supported here")
        );
        assert_eq!(
            why("[Unknown Error]").as_deref(),
            Some("nvidia-smi says: Unknown Error")
        );
        assert_eq!(
            why("\u{1b}[2J7").as_deref(),
            Some("nvidia-smi says: ^[[2J7")
        );
        assert_eq!(why("99999999999999999999").map(|why| why.len()), Some(37));
        assert_eq!(why("18446744073709551615").map(|why| why.len()), Some(37));
        assert_eq!(Cell::of(" 143771").bytes().get(), Some(Bytes::mib(143_771)));
        for power in ["-1", "nan", "inf", "1e9"] {
            assert!(Cell::of(power).power().why().is_some(), "{power}");
        }
        assert_eq!(Cell::of("124.71").power().get(), Some(MilliWatts(124_710)));
        assert!(Cell::of("101").percent().why().is_some());
    }
}
