//! The MIG instances of a GPU, each with its memory.

use crate::model::gpu::Gpu;
use crate::tui::theme::{Role, Theme};
use crate::tui::widgets::facts::Fact;

pub(super) fn mig_facts(gpu: &Gpu, theme: &Theme) -> Vec<Fact> {
    let mut list = Vec::new();
    for mig in &gpu.mig {
        let profile = mig
            .profile
            .value()
            .map_or("profile unknown", String::as_str);
        list.push(Fact::Blank);
        list.push(Fact::Heading(format!(
            "MIG instance {}  {profile}",
            mig.gpu_instance.get().unwrap_or(mig.index)
        )));
        list.push(Fact::Value(
            "UUID",
            mig.uuid.to_string(),
            Role::Text,
            "10 s",
        ));
        list.push(Fact::reading(
            "used",
            &mig.memory.used,
            "each tick",
            theme,
            ToString::to_string,
        ));
        list.push(Fact::reading(
            "free",
            &mig.memory.free,
            "each tick",
            theme,
            ToString::to_string,
        ));
        list.push(Fact::reading(
            "total",
            &mig.memory.total,
            "each tick",
            theme,
            ToString::to_string,
        ));
    }
    list
}
