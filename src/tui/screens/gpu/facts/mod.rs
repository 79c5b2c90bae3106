//! All NVML data about one GPU, and how often each value is read.

mod memory;
mod mig;
mod section;

use gputop_model::frame::Frame;
use gputop_model::gpu::{Gpu, HealthState, Period, Section};
use gputop_model::reading::Reading;
use gputop_model::units::{Mono, Percent};

use self::memory::memory_facts;
use self::mig::mig_facts;
use self::section::section_facts;
use crate::dashboard::times::span_text;
use crate::tui::theme::{Role, Theme};
use crate::tui::widgets::facts::Fact;

pub(super) fn facts_of(gpu: &Gpu, frame: &Frame, theme: &Theme) -> Vec<Fact> {
    let mut list = memory_facts(gpu, frame, theme);
    for section in
        [Section::Activity, Section::Power, Section::Links, Section::Errors, Section::Identity]
    {
        list.extend([Fact::Blank, Fact::Heading(section.title().into())]);
        if section == Section::Identity {
            list.extend(identity_facts(gpu));
        }
        list.extend(section_facts(section, gpu, theme));
        if section == Section::Power && gpu.fans.len() > 1 {
            let speed = |fan: &Reading<Percent>| {
                fan.get()
                    .map_or_else(|| theme.glyphs.absent.into(), |fan| format!("{:.0} %", fan.0))
            };
            let speeds: Vec<String> = gpu.fans.iter().map(speed).collect();
            let words = Period::Slow.words();
            list.push(Fact::Value("fans", speeds.join(", "), Role::Text, words));
        }
    }
    list.extend(mig_facts(gpu, theme));
    list.extend(read_facts(gpu, frame.mono));
    list
}

/// Returns the facts about a GPU that has no values, because it is asleep, lost or belongs to another job.
pub(super) fn identity_only(gpu: &Gpu) -> Vec<Fact> {
    let [health, uuid] = identity_facts(gpu);
    let health = match health {
        Fact::Value(name, text, role, _) if gpu.health.state == HealthState::Lost => Fact::Value(
            name,
            format!(
                "The GPU is lost: {text}. Programs on it fail. Xids and the kernel log (sudo dmesg) say why; a reset or a reboot brings it back."
            ),
            role,
            "",
        ),
        health => health,
    };
    let bus =
        gpu.board.pci_bus.value().map(|bus| Fact::Value("PCI bus", bus.clone(), Role::Text, ""));
    [Some(health), Some(uuid), bus].into_iter().flatten().collect()
}

/// Returns the health and the UUID of a GPU.
fn identity_facts(gpu: &Gpu) -> [Fact; 2] {
    let health = match gpu.health.state {
        HealthState::Answering => match gpu.why_no_figures() {
            Some(why) => format!("no figures: {why}"),
            None => "answering".to_owned(),
        },
        HealthState::Silent => "a driver call has not returned".to_owned(),
        HealthState::Lost => gpu.health.detail.clone().unwrap_or_else(|| "lost".into()),
        HealthState::Asleep => "asleep: nothing uses it".to_owned(),
        HealthState::Denied => "not yours: access denied".to_owned(),
        HealthState::Unknown => "unknown".to_owned(),
    };
    let fact = |name, text, period: Period| Fact::Value(name, text, Role::Text, period.words());
    [fact("health", health, Period::Tick), fact("UUID", gpu.uuid.to_string(), Period::Once)]
}

/// Returns facts with the age of each group of values.
fn read_facts(gpu: &Gpu, now: Mono) -> Vec<Fact> {
    let ago = |at: Option<Mono>| {
        at.map_or("never".into(), |at| format!("{} ago", span_text(now.since(at))))
    };
    let read = |name, at| Fact::Value(name, ago(at), Role::Text, "");
    vec![
        Fact::Blank,
        Fact::Heading("Read".into()),
        read("figures", Some(gpu.at)),
        read("processes", gpu.processes_at),
        read("process utilization", gpu.utilization_at),
    ]
}

/// Dims the last known values of an unresponsive GPU.
pub(super) fn dimmed(facts: Vec<Fact>) -> Vec<Fact> {
    let dim = |fact| match fact {
        Fact::Value(name, text, _, _) => Fact::Value(name, text, Role::Dim, "last known"),
        other => other,
    };
    facts.into_iter().map(dim).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tui::theme::Palette;
    use gputop_model::gpu::GPU_FIGURES;

    #[test]
    fn every_figure_is_a_fact_with_its_period() {
        let theme = Theme::new(Palette::None, false, jiff::tz::TimeZone::UTC);
        let gpu = Gpu { traffic: Some(Default::default()), ..Gpu::default() };
        let facts = facts_of(&gpu, &Frame::default(), &theme);
        for figure in GPU_FIGURES {
            let period = figure.period.words();
            let is_shown = |fact: &Fact| matches!(fact, Fact::Value(name, _, _, read) if *name == figure.title && *read == period);
            assert_eq!(facts.iter().filter(|fact| is_shown(fact)).count(), 1, "{}", figure.name);
        }
    }
}
