//! Power, temperatures and clocks, each with its limit.

use crate::model::gpu::{Gpu, Throttle};
use crate::model::reading::Reading;
use crate::model::units::{Celsius, MegaHertz, MilliWatts};
use crate::tui::theme::Theme;
use crate::tui::widgets::facts::Fact;

pub(super) fn power_facts(gpu: &Gpu, theme: &Theme) -> Vec<Fact> {
    let watts = |name, of: &Reading<MilliWatts>, source| {
        let text = |w: &MilliWatts| format!("{:.1} W", f64::from(w.0) / 1_000.0);
        Fact::reading(name, of, source, theme, text)
    };
    let celsius = |name, of: &Reading<Celsius>, source| {
        let text = |t: &Celsius| format!("{} {}C", t.0, theme.glyphs.degree);
        Fact::reading(name, of, source, theme, text)
    };
    let clock = |name, of: &Reading<MegaHertz>, source| {
        Fact::reading(name, of, source, theme, |c| format!("{} MHz", c.0))
    };
    let board = &gpu.board;
    vec![
        Fact::Blank,
        Fact::Heading("Power, heat, clocks".into()),
        watts("power", &gpu.power, "every sample"),
        watts("power cap", &gpu.power_cap, "10 s"),
        watts("default cap", &board.power_cap_default, "once"),
        celsius("temperature", &gpu.temperature, "every sample"),
        celsius("memory temperature", &gpu.memory_temperature, "10 s"),
        celsius("slowdown limit", &board.slowdown_temperature, "once"),
        celsius("shutdown limit", &board.shutdown_temperature, "once"),
        Fact::reading("fan", &gpu.fan, "10 s", theme, |p| format!("{:.0} %", p.0)),
        clock("SM clock", &gpu.sm_clock, "every sample"),
        clock("maximum SM clock", &board.max_sm_clock, "once"),
        clock("memory clock", &gpu.memory_clock, "every sample"),
        clock("maximum memory clock", &board.max_memory_clock, "once"),
        Fact::reading(
            "performance state",
            &gpu.pstate,
            "every sample",
            theme,
            |p| format!("P{p}"),
        ),
        Fact::reading(
            "throttle reasons",
            &gpu.throttle,
            "every sample",
            theme,
            |r| reasons(r),
        ),
    ]
}

fn reasons(list: &[Throttle]) -> String {
    if list.is_empty() {
        return "none".into();
    }
    let words: Vec<_> = list.iter().map(|reason| reason.words()).collect();
    words.join(", ")
}
