//! Shows GPU memory in parts that add up to the total.

use gputop_model::accounting::{Accounting, account_pools};
use gputop_model::frame::Frame;
use gputop_model::gpu::{Gpu, Period, Section};
use gputop_model::units::{Bytes, apportion};

use super::section::section_facts;
use crate::dashboard::memory_parts::has_pools;
use crate::tui::theme::{Role, Theme};
use crate::tui::widgets::facts::Fact;

/// Typical memory of a CUDA context, which a new process needs first.
const CONTEXT: Bytes = Bytes::mib(512);

/// Returns the memory accounting of a GPU, or the driver's values if no accounting is possible.
pub(super) fn memory_facts(gpu: &Gpu, frame: &Frame, theme: &Theme) -> Vec<Fact> {
    if let Some(split) = account_pools(gpu, frame.pools.as_ref()) {
        return accounting_facts(gpu, &split);
    }
    if gpu.memory.is_shared_with_host() {
        return shared_facts(gpu, frame);
    }
    std::iter::once(heading()).chain(section_facts(Section::Memory, gpu, theme)).collect()
}

/// Returns the memory of a GPU that shares the host's memory. What the host uses is not added to what the GPU uses.
fn shared_facts(gpu: &Gpu, frame: &Frame) -> Vec<Fact> {
    let host = frame.host.as_ref();
    let fact = |name, size: Option<Bytes>, words: &str| {
        let size = size.map_or("\u{2013}".into(), |size| format!("{:.2} GiB", size.as_gib()));
        Fact::Value(name, format!("{size:>12}  {words}"), Role::Text, "")
    };
    let total = host.and_then(|host| host.memory_total.get());
    let used = host.and_then(|host| host.memory_used.get());
    let available = total.zip(used).map(|(total, used)| Bytes(total.0.saturating_sub(used.0)));
    let cache = host.and_then(|host| host.page_cache.get());
    vec![
        heading(),
        fact("processes", gpu.memory.used.get(), "shared with the CPU"),
        fact("host memory", total, "total"),
        fact("  available", available, "to CPU and GPU"),
        fact("  page cache", cache, "mostly available"),
    ]
}

fn heading() -> Fact {
    Fact::Heading(Section::Memory.title().into())
}

/// Returns the lines of the memory accounting: the parts in GiB, and their sum.
fn accounting_facts(gpu: &Gpu, split: &Accounting) -> Vec<Fact> {
    let step = Bytes::gib(1).0 / 100;
    let printed = apportion(
        &[
            split.processes,
            split.unattributed,
            split.driver,
            split.free,
            split.allocated,
            split.cached,
            split.other,
        ],
        step,
    );
    let all = [printed[0], printed[4], printed[5], printed[6]];
    let processes = Bytes(all.iter().map(|b| b.0).sum());
    let text = |bytes: Bytes| format!("{:>8.2} GiB", bytes.as_gib());
    let sum = Bytes(printed.iter().map(|b| b.0).sum());
    let count = gpu.processes.value().map_or(0, Vec::len);
    let noun = if count == 1 { "process" } else { "processes" };
    let about = if split.approximate { "~" } else { "" };
    let remark =
        if split.processes_unknown { "includes processes with unknown memory" } else { "" };
    let mut list = vec![
        heading(),
        Fact::Value(
            "processes",
            format!("{}{about}  {count} {noun}", text(processes)),
            Role::Processes,
            "",
        ),
    ];
    if has_pools(split) {
        let part = |name, size, words: &str, role| {
            Fact::Value(name, format!("{}  {words}", text(size)), role, "20 Hz")
        };
        list.extend([
            part("  allocated", printed[4], "live tensors", Role::Allocated),
            part("  cached", printed[5], "not in tensors", Role::Cached),
            part("  other", printed[6], "context, libraries", Role::OtherVram),
        ]);
        if printed[0].0 > 0 {
            list.push(part("  not readable", printed[0], "", Role::Processes));
        }
    }
    list.extend([Fact::Value(
        "unattributed",
        format!("{}  {remark}", text(printed[1])),
        Role::Unattributed,
        "",
    )]);
    let sentences = gpu.unattributed.iter();
    list.extend(
        sentences.map(|part| Fact::Value("  cause", part.sentence.clone(), Role::Text, "")),
    );
    let fits = Bytes(printed[3].0.saturating_sub(CONTEXT.0));
    list.extend([
        Fact::Value(
            "driver",
            format!("{}  nvidia-smi: reserved", text(printed[2])),
            Role::Driver,
            "",
        ),
        Fact::Value("free", text(printed[3]), Role::Text, ""),
        Fact::Value("  FITS", format!("{}~  for a new process", text(fits)), Role::Text, ""),
        Fact::Value("total", text(sum), Role::Text, Period::Tick.words()),
    ]);
    list
}
