//! Errors of the memory: counted, and rows that were replaced for them.

use crate::model::gpu::Gpu;
use crate::tui::theme::Theme;
use crate::tui::widgets::facts::Fact;

pub(super) fn error_facts(gpu: &Gpu, theme: &Theme) -> Vec<Fact> {
    let yes = |b: &bool| {
        if *b {
            "yes".to_owned()
        } else {
            "no".to_owned()
        }
    };
    let ecc = &gpu.ecc;
    vec![
        Fact::Blank,
        Fact::Heading("Memory errors".into()),
        Fact::reading("ECC on", &ecc.enabled, "10 s", theme, yes),
        Fact::reading("corrected", &ecc.corrected, "10 s", theme, u64::to_string),
        Fact::reading(
            "uncorrected",
            &ecc.uncorrected,
            "10 s",
            theme,
            u64::to_string,
        ),
        Fact::reading(
            "rows remapped",
            &ecc.remapped_correctable,
            "10 s",
            theme,
            u32::to_string,
        ),
        Fact::reading(
            "after uncorrectable",
            &ecc.remapped_uncorrectable,
            "10 s",
            theme,
            u32::to_string,
        ),
        Fact::reading(
            "remap waits for reset",
            &ecc.remap_pending,
            "10 s",
            theme,
            yes,
        ),
        Fact::reading("remap failed", &ecc.remap_failed, "10 s", theme, yes),
    ]
}
