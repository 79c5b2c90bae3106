//! Everything NVML reports about one GPU, with the reading interval of each figure.

mod activity;
mod board;
mod errors;
mod links;
mod memory;
mod mig;
mod power;

use self::activity::activity_facts;
use self::board::board_facts;
use self::errors::error_facts;
use self::links::link_facts;
use self::memory::memory_facts;
use self::mig::mig_facts;
use self::power::power_facts;
use crate::model::frame::Frame;
use crate::model::gpu::Gpu;
use crate::model::units::Mono;
use crate::tui::theme::{Role, Theme};
use crate::tui::widgets::facts::Fact;
use crate::tui::widgets::timeline::span_words;

pub(super) fn facts_of(gpu: &Gpu, frame: &Frame, theme: &Theme) -> Vec<Fact> {
    let mut list = memory_facts(gpu, frame, theme);
    list.extend(activity_facts(gpu, theme));
    list.extend(power_facts(gpu, theme));
    list.extend(link_facts(gpu, theme));
    list.extend(error_facts(gpu, theme));
    list.extend(board_facts(gpu, theme));
    list.extend(mig_facts(gpu, theme));
    list.extend(read_facts(gpu, frame.mono));
    list
}

/// Returns the age of each group of figures.
fn read_facts(gpu: &Gpu, now: Mono) -> Vec<Fact> {
    let ago = |at: Option<Mono>| {
        at.map_or("never".into(), |at| {
            format!("{} ago", span_words(now.since(at)))
        })
    };
    let read = |name, at| Fact::Value(name, ago(at), Role::Text, "");
    vec![
        Fact::Blank,
        Fact::Heading("Read".into()),
        read("figures", Some(gpu.at)),
        read("processes", gpu.processes_at),
        read("process utilisation", gpu.utilization_at),
    ]
}

/// Dims the last known figures of a GPU that does not answer.
pub(super) fn dimmed(facts: Vec<Fact>) -> Vec<Fact> {
    let dim = |fact| match fact {
        Fact::Value(name, text, _, _) => Fact::Value(name, text, Role::Dim, "last known"),
        other => other,
    };
    facts.into_iter().map(dim).collect()
}
