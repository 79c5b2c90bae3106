//! The fields that `nvidia-smi --query-gpu` is asked for, and the model fields that they set.
//!
//! A line of output of driver 580 for `index,uuid,name,memory.total,power.draw,fan.speed,pstate`:
//!
//! ```text
//! 0, GPU-c4a36e9e-b12e-ae04-21f0-6dc4ff6d2da6, NVIDIA H200, 143771, 124.71, [N/A], P0
//! ```

use super::cell::Cell;
use crate::model::gpu::{Board, Gpu, Throttle};
use crate::model::reading::Reading;
use crate::model::units::GpuUuid;

/// A GPU that is being assembled.
#[derive(Debug, Default)]
pub(super) struct Card {
    pub gpu: Gpu,
    pub board: Board,
    pub driver: Reading<String>,
}

pub(super) struct Field {
    /// Names in `nvidia-smi`, newest first.
    pub names: &'static [&'static str],
    pub put: fn(&mut Card, &Cell<'_>),
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
    // The first name is used since driver 535.
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
