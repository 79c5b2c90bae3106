//! The values of `GPU_FIGURES`, by section.

use gputop_model::gpu::{GPU_FIGURES, Gpu, Period, Section};
use gputop_model::reading::Reason;

use crate::tui::theme::{Role, Theme};
use crate::tui::widgets::facts::Fact;

/// Returns the GPU values in a section. While those that are read live only are not read, one line in the section of
/// the activity says so for all. Those that the GPU does not have share a line, too.
pub(super) fn section_facts(section: Section, gpu: &Gpu, theme: &Theme) -> Vec<Fact> {
    let absent = theme.glyphs.absent;
    let mut unsupported = Vec::new();
    let mut facts: Vec<Fact> = Vec::new();
    let mut has_unread = false;
    for figure in GPU_FIGURES.iter().filter(|figure| figure.section == section) {
        let is_unread = figure.period == Period::WhileShown && gpu.traffic.is_none();
        if is_unread && (has_unread || section != Section::Activity) {
            continue;
        }
        has_unread |= is_unread;
        let (text, role) = match figure.field.read(gpu) {
            Ok(value) => (value.text().replace('°', theme.glyphs.degree), Role::Text),
            Err(why) if *why == Reason::Unsupported.into() => {
                unsupported.push(figure.title);
                continue;
            }
            Err(why) => (format!("{absent} {why}"), Role::Dim),
        };
        let title = if is_unread { "live figures" } else { figure.title };
        facts.push(Fact::Value(title, text, role, figure.period.words()));
    }
    if !unsupported.is_empty() {
        let text = format!("{absent} {}", unsupported.join(", "));
        facts.push(Fact::Value("not supported here", text, Role::Dim, ""));
    }
    facts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tui::theme::Palette;
    use gputop_model::reading::Reading;
    use gputop_model::units::Celsius;

    #[test]
    fn figures_that_a_gpu_does_not_have_share_a_line() {
        let theme = Theme::new(Palette::None, false, jiff::tz::TimeZone::UTC);
        let mut gpu = Gpu { temperature: Reading::Value(Celsius(55)), ..Gpu::default() };
        let power = GPU_FIGURES.iter().filter(|figure| figure.section == Section::Power);
        for figure in power.filter(|figure| figure.name != "temperature") {
            figure.field.set_missing(&mut gpu, Reason::Unsupported.into());
        }
        let facts = section_facts(Section::Power, &gpu, &theme);
        let [Fact::Value("temperature", ..), rest @ ..] = &facts[..] else { panic!("{facts:?}") };
        let unsupported = rest.last().expect("a line");
        assert!(
            matches!(unsupported, Fact::Value("not supported here", text, ..) if text.contains("power cap, ")),
            "{facts:?}"
        );
    }
}
