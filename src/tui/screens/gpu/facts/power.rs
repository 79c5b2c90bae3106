//! Power, temperatures and clocks, each with its limit.

use crate::model::gpu::{Gpu, Throttle};
use crate::model::units::{Celsius, MegaHertz, MilliWatts};
use crate::tui::theme::Theme;
use crate::tui::widgets::facts::Fact;

pub(super) fn power_facts(gpu: &Gpu, theme: &Theme) -> Vec<Fact> {
    let watts = |w: &MilliWatts| format!("{:.1} W", f64::from(w.0) / 1_000.0);
    let celsius = |t: &Celsius| format!("{} {}C", t.0, theme.glyphs.degree);
    let clock = |c: &MegaHertz| format!("{} MHz", c.0);
    let reasons = |list: &Vec<Throttle>| match list.as_slice() {
        [] => "none".into(),
        list => list
            .iter()
            .map(|r| r.words())
            .collect::<Vec<_>>()
            .join(", "),
    };
    let board = &gpu.board;
    vec![
        Fact::Blank,
        Fact::Heading("Power, heat, clocks".into()),
        Fact::reading("power", &gpu.power, "each tick", theme, watts),
        Fact::reading("power cap", &gpu.power_cap, "10 s", theme, watts),
        Fact::reading(
            "default cap",
            &board.power_cap_default,
            "once",
            theme,
            watts,
        ),
        Fact::reading("temperature", &gpu.temperature, "each tick", theme, celsius),
        Fact::reading(
            "memory temperature",
            &gpu.memory_temperature,
            "10 s",
            theme,
            celsius,
        ),
        Fact::reading(
            "slows down at",
            &board.slowdown_temperature,
            "once",
            theme,
            celsius,
        ),
        Fact::reading(
            "shuts down at",
            &board.shutdown_temperature,
            "once",
            theme,
            celsius,
        ),
        Fact::reading("fan", &gpu.fan, "10 s", theme, |p| format!("{:.0} %", p.0)),
        Fact::reading("SM clock", &gpu.sm_clock, "each tick", theme, clock),
        Fact::reading(
            "SM clock at most",
            &board.max_sm_clock,
            "once",
            theme,
            clock,
        ),
        Fact::reading("memory clock", &gpu.memory_clock, "each tick", theme, clock),
        Fact::reading(
            "memory clock at most",
            &board.max_memory_clock,
            "once",
            theme,
            clock,
        ),
        Fact::reading("performance state", &gpu.pstate, "each tick", theme, |p| {
            format!("P{p}")
        }),
        Fact::reading("slowed by", &gpu.throttle, "each tick", theme, reasons),
    ]
}
