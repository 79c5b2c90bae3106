//! The values of `GPU_FIGURES`, by section.

use gputop_model::gpu::{GPU_FIGURES, Gpu, Period, Section};

use crate::tui::theme::{Role, Theme};
use crate::tui::widgets::facts::Fact;

/// Returns the GPU values in a section. Those that are read live only share one line while they are not read.
pub(super) fn section_facts(
    section: Section,
    gpu: &Gpu,
    theme: &Theme,
) -> impl Iterator<Item = Fact> {
    let mut has_unread = false;
    let figures = GPU_FIGURES.iter().filter(move |figure| figure.section == section);
    figures.filter_map(move |figure| {
        let is_unread = figure.period == Period::WhileShown && gpu.traffic.is_none();
        if is_unread && std::mem::replace(&mut has_unread, true) {
            return None;
        }
        let (text, role) = match figure.field.read(gpu) {
            Ok(value) => (value.text().replace('°', theme.glyphs.degree), Role::Text),
            Err(why) => (format!("{} {why}", theme.glyphs.absent), Role::Dim),
        };
        let title = if is_unread { "live figures" } else { figure.title };
        Some(Fact::Value(title, text, role, figure.period.words()))
    })
}
