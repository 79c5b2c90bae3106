//! Shows the MIG instances of a GPU, each with its memory.

use gputop_model::gpu::{Gpu, MigInstance, Period};
use gputop_model::units::Bytes;

use crate::tui::theme::{Role, Theme};
use crate::tui::widgets::facts::Fact;

pub(super) fn mig_facts(gpu: &Gpu, theme: &Theme) -> Vec<Fact> {
    gpu.mig.iter().flat_map(|mig| instance_facts(mig, theme)).collect()
}

fn instance_facts(mig: &MigInstance, theme: &Theme) -> [Fact; 6] {
    let number = mig.gpu_instance.get().unwrap_or(mig.index);
    let profile = mig.profile.value();
    let profile = profile.map_or("profile unknown", String::as_str);
    let size = |name, of| Fact::reading(name, of, Period::Tick.words(), theme, Bytes::to_string);
    [
        Fact::Blank,
        Fact::Heading(format!("MIG instance {number}  {profile}")),
        Fact::Value("UUID", mig.uuid.to_string(), Role::Text, Period::Slow.words()),
        size("used", &mig.memory.used),
        size("free", &mig.memory.free),
        size("total", &mig.memory.total),
    ]
}
