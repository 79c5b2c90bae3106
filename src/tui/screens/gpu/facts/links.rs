//! PCIe and NVLink: their widths, and their traffic, which is expensive to read.

use crate::model::gpu::{Gpu, Traffic};
use crate::model::reading::{Reading, Reason};
use crate::model::units::{BytesPerSecond, MilliJoules, Mono};
use crate::tui::theme::Theme;
use crate::tui::widgets::facts::Fact;

/// When the expensive calls are made.
const SHOWN: &str = "while shown";

pub(super) fn link_facts(gpu: &Gpu, theme: &Theme) -> Vec<Fact> {
    let pcie = &gpu.pcie;
    let traffic = gpu.traffic.clone().unwrap_or_else(not_shown);
    let number = |name, of, source| Fact::reading(name, of, source, theme, u32::to_string);
    let width = |name, of: &Reading<u32>, source| {
        Fact::reading(name, of, source, theme, |width| format!("x{width}"))
    };
    let rate = |name, of| Fact::reading(name, of, SHOWN, theme, rate_words);
    let energy =
        |e: &MilliJoules| format!("{:.2} kWh since the driver was loaded", e.0 as f64 / 3.6e9);
    vec![
        Fact::Blank,
        Fact::Heading("Links".into()),
        number("PCIe generation", &pcie.generation, "10 s"),
        number("  maximum", &pcie.max_generation, "once"),
        width("PCIe width", &pcie.width, "10 s"),
        width("  maximum", &pcie.max_width, "once"),
        rate("PCIe to host", &traffic.pcie_tx),
        rate("PCIe from host", &traffic.pcie_rx),
        number("PCIe replays", &traffic.pcie_replays, SHOWN),
        rate("NVLink sent", &traffic.nvlink_tx),
        rate("NVLink received", &traffic.nvlink_rx),
        Fact::reading("energy", &traffic.energy, SHOWN, theme, energy),
    ]
}

/// Returns the traffic before its first reading: the screen was just opened, or the recording was made while no screen
/// showed it.
fn not_shown() -> Traffic {
    fn unread<T>() -> Reading<T> {
        Reading::missing(Reason::NotRead, "read and recorded while shown")
    }
    Traffic {
        at: Mono::default(),
        pcie_tx: unread(),
        pcie_rx: unread(),
        pcie_replays: unread(),
        nvlink_tx: unread(),
        nvlink_rx: unread(),
        energy: unread(),
    }
}

fn rate_words(value: &BytesPerSecond) -> String {
    match value.0 {
        n if n < 10_000_000 => format!("{:.1} MB/s", n as f64 / 1e6),
        n if n < 10_000_000_000 => format!("{:.0} MB/s", n as f64 / 1e6),
        n => format!("{:.1} GB/s", n as f64 / 1e9),
    }
}
