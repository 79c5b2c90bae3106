//! Utilisation of the parts of the GPU.

use crate::model::gpu::Gpu;
use crate::model::units::Percent;
use crate::tui::theme::Theme;
use crate::tui::widgets::facts::Fact;

pub(super) fn activity_facts(gpu: &Gpu, theme: &Theme) -> Vec<Fact> {
    let percent = |p: &Percent| format!("{:.0} %", p.0);
    vec![
        Fact::Blank,
        Fact::Heading("Activity".into()),
        Fact::reading("SM", &gpu.sm, "every sample", theme, percent),
        Fact::reading(
            "memory bandwidth",
            &gpu.memory_bandwidth,
            "every sample",
            theme,
            percent,
        ),
        Fact::reading("encoder", &gpu.encoder, "10 s", theme, percent),
        Fact::reading("decoder", &gpu.decoder, "10 s", theme, percent),
    ]
}
