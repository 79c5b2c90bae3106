//! Errors of the memory: counted, and rows that were replaced for them.

use crate::model::gpu::Gpu;
use crate::model::reading::Reading;
use crate::tui::theme::Theme;
use crate::tui::widgets::facts::Fact;

/// All of these are read this often.
const SOURCE: &str = "10 s";

pub(super) fn error_facts(gpu: &Gpu, theme: &Theme) -> Vec<Fact> {
    let is = |name, of: &Reading<bool>| {
        let text = |is: &bool| if *is { "yes" } else { "no" }.to_owned();
        Fact::reading(name, of, SOURCE, theme, text)
    };
    let errors = |name, of| Fact::reading(name, of, SOURCE, theme, u64::to_string);
    let rows = |name, of| Fact::reading(name, of, SOURCE, theme, u32::to_string);
    let ecc = &gpu.ecc;
    vec![
        Fact::Blank,
        Fact::Heading("Memory errors".into()),
        is("ECC on", &ecc.enabled),
        errors("corrected", &ecc.corrected),
        errors("uncorrected", &ecc.uncorrected),
        rows("rows remapped", &ecc.remapped_correctable),
        rows("after uncorrectable", &ecc.remapped_uncorrectable),
        is("remap waits for reset", &ecc.remap_pending),
        is("remap failed", &ecc.remap_failed),
    ]
}
