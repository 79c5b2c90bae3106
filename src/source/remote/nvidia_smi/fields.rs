//! The fields requested with `nvidia-smi --query-gpu`, and the model fields they fill.
//!
//! Example output line from driver 580 for `index,uuid,name,memory.total,power.draw,fan.speed,pstate`:
//!
//! ```text
//! 0, GPU-c4a36e9e-b12e-ae04-21f0-6dc4ff6d2da6, NVIDIA H200, 143771, 124.71, [N/A], P0
//! ```

use gputop_model::gpu::{Board, Field, GPU_FIGURES, RecoveryAction};
use gputop_model::{BytesPerSecond, Gpu, GpuUuid, MilliJoules, Missing, Reading, Throttle};

use super::cell::SmiCell;

/// A GPU being assembled from `nvidia-smi` fields.
#[derive(Debug, Default)]
pub(super) struct Card {
    pub gpu: Gpu,
    pub driver: Reading<String>,
}

/// A field that is not a metric: its names, newest first, and the function that stores its value.
type IdentityField = (&'static [&'static str], fn(&mut Card, &SmiCell<'_>));

const IDENTITY: &[IdentityField] = &[
    (&["index"], |card, cell| {
        card.gpu.index = cell.number().get().unwrap_or_default();
    }),
    (&["uuid", "gpu_uuid"], |card, cell| {
        card.gpu.uuid = GpuUuid(cell.text().value().map_or("", String::as_str).into());
    }),
    (&["name"], |card, cell| {
        let name = cell.text();
        card.gpu.name = name.value().cloned().unwrap_or_else(|| "unnamed GPU".into());
    }),
    (&["driver_version"], |card, cell| card.driver = cell.text()),
];

/// Returns the names of each requested field, newest first, in the order of the query.
pub(super) fn field_names() -> impl Iterator<Item = &'static [&'static str]> {
    let figures = GPU_FIGURES.iter().map(|figure| figure.nvidia_smi);
    let figures = figures.filter(|names| !names.is_empty());
    IDENTITY.iter().map(|(names, _)| *names).chain(figures)
}

/// Assembles a GPU. `next` returns the cell of the field with the given names. Metrics that `nvidia-smi` does not
/// report are marked as missing for the reason `unavailable`.
pub(super) fn card<'a>(
    mut next: impl FnMut(&[&'static str]) -> SmiCell<'a>,
    unavailable: &Missing,
) -> Card {
    let mut card = Card::default();
    for (names, put) in IDENTITY {
        put(&mut card, &next(names));
    }
    for figure in GPU_FIGURES {
        match figure.nvidia_smi {
            [] => figure.field.set_missing(&mut card.gpu, unavailable.clone()),
            names => put(&figure.field, &mut card.gpu, &next(names)),
        }
    }
    let board = std::sync::Arc::make_mut(&mut card.gpu.board);
    board.pci_bus = std::mem::take(&mut board.pci_bus).map(|bus| Board::bus_of(&bus));
    // `Exclusive_Process`
    let words = |mode: String| mode.to_lowercase().replace('_', " ");
    board.compute_mode = std::mem::take(&mut board.compute_mode).map(words);
    card
}

/// Stores the value of a cell in a GPU field.
fn put(field: &Field, gpu: &mut Gpu, cell: &SmiCell<'_>) {
    match field {
        Field::Bytes(_, of) => *of(gpu) = cell.bytes(),
        Field::Percent(_, of) => *of(gpu) = cell.percent(),
        Field::Power(_, of) => *of(gpu) = cell.power(),
        Field::Energy(_, of) => *of(gpu) = cell.number().map(MilliJoules),
        Field::Temperature(_, of) => *of(gpu) = cell.celsius(),
        Field::Clock(_, of) => *of(gpu) = cell.clock(),
        Field::Rate(_, of) => *of(gpu) = cell.number().map(BytesPerSecond),
        Field::Count(_, of) | Field::Lanes(_, of) | Field::DeviceFile(_, of) => {
            *of(gpu) = cell.number();
        }
        Field::LongCount(_, of) => *of(gpu) = cell.number(),
        Field::PState(_, of) => {
            *of(gpu) = cell.read(|text| text.strip_prefix('P')?.parse().ok()).at_most(15);
        }
        Field::Flag(_, of) | Field::Switch(_, of) => *of(gpu) = cell.is_set(),
        Field::Text(_, of) => *of(gpu) = cell.text(),
        Field::Recovery(_, of) => *of(gpu) = cell.read(RecoveryAction::of_words),
        Field::Throttle(_, of) => {
            let mask = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
            *of(gpu) = cell.read(mask).map(Throttle::of_mask);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gputop_model::reading::Reason;

    #[test]
    fn every_figure_has_a_value_or_a_reason() {
        let unavailable = Missing::new(Reason::Unsupported, "unavailable");
        let mut asked = 0;
        let next = |_: &[&'static str]| {
            asked += 1;
            SmiCell::of("[N/A]")
        };
        let card = card(next, &unavailable);
        assert_eq!(asked, field_names().count());
        for figure in GPU_FIGURES {
            let why = figure.field.read(&card.gpu).expect_err("no cell had a value");
            assert_eq!(*why == unavailable, figure.nvidia_smi.is_empty(), "{}", figure.name);
            assert_eq!(why.reason, Reason::Unsupported, "{}", figure.name);
        }
    }
}
