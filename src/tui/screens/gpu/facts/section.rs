//! The values of `GPU_FIGURES`, by section.

use gputop_model::gpu::{GPU_FIGURES, Gpu, Section};

use crate::tui::theme::{Role, Theme};
use crate::tui::widgets::facts::Fact;

/// Returns the GPU values in a section.
pub(super) fn section_facts(
    section: Section,
    gpu: &Gpu,
    theme: &Theme,
) -> impl Iterator<Item = Fact> {
    GPU_FIGURES.iter().filter(move |figure| figure.section == section).map(|figure| {
        let (text, role) = match figure.field.read(gpu) {
            Ok(value) => (value.text().replace('°', theme.glyphs.degree), Role::Text),
            Err(why) => (format!("{} {why}", theme.glyphs.absent), Role::Dim),
        };
        Fact::Value(figure.title, text, role, figure.period.words())
    })
}
