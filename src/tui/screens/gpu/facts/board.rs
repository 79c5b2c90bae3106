//! Identity and modes of the board, and whether it answers.

use crate::model::gpu::{Gpu, HealthState};
use crate::model::reading::Reading;
use crate::tui::theme::{Role, Theme};
use crate::tui::widgets::facts::Fact;

pub(super) fn board_facts(gpu: &Gpu, theme: &Theme) -> Vec<Fact> {
    let board = &gpu.board;
    let text = |reading: &Reading<String>, name| {
        Fact::reading(name, reading, "once", theme, String::clone)
    };
    let health = match gpu.health.state {
        HealthState::Answering => "answering".to_owned(),
        HealthState::Silent => "a driver call has not returned".to_owned(),
        HealthState::Lost => gpu.health.detail.clone().unwrap_or_else(|| "lost".into()),
        HealthState::Unknown => "unknown".to_owned(),
    };
    vec![
        Fact::Blank,
        Fact::Heading("Board".into()),
        Fact::Value("health", health, Role::Text, "every sample"),
        Fact::Value("UUID", gpu.uuid.to_string(), Role::Text, "once"),
        text(&board.pci_bus, "PCI bus"),
        Fact::reading("device file", &board.minor, "once", theme, |n| {
            format!("/dev/nvidia{n}")
        }),
        text(&board.serial, "serial"),
        text(&board.vbios, "VBIOS"),
        text(&board.architecture, "architecture"),
        text(&board.compute_capability, "compute capability"),
        text(&board.compute_mode, "compute mode"),
        Fact::reading(
            "persistence mode",
            &board.persistence,
            "once",
            theme,
            |on| if *on { "on".into() } else { "off".into() },
        ),
        Fact::reading("MIG mode", &gpu.mig_enabled, "10 s", theme, |on| {
            if *on { "on".into() } else { "off".into() }
        }),
    ]
}
