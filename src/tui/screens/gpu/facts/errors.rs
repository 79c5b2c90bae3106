//! Memory errors: their counts and the rows remapped because of them.

use crate::model::gpu::Gpu;
use crate::model::reading::Reading;
use crate::tui::theme::Theme;
use crate::tui::widgets::facts::Fact;

/// Reading interval of all these figures.
const SOURCE: &str = "10 s";

pub(super) fn error_facts(gpu: &Gpu, theme: &Theme) -> Vec<Fact> {
    let yes_no = |name, of: &Reading<bool>| {
        let text = |value: &bool| if *value { "yes" } else { "no" }.to_owned();
        Fact::reading(name, of, SOURCE, theme, text)
    };
    let errors = |name, of| Fact::reading(name, of, SOURCE, theme, u64::to_string);
    let rows = |name, of| Fact::reading(name, of, SOURCE, theme, u32::to_string);
    let ecc = &gpu.ecc;
    vec![
        Fact::Blank,
        Fact::Heading("Memory errors".into()),
        yes_no("ECC on", &ecc.enabled),
        errors("corrected", &ecc.corrected),
        errors("uncorrected", &ecc.uncorrected),
        rows("rows remapped", &ecc.remapped_correctable),
        rows("  uncorrectable", &ecc.remapped_uncorrectable),
        yes_no("remap pending reset", &ecc.remap_pending),
        yes_no("remap failed", &ecc.remap_failed),
    ]
}
