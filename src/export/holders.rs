//! Formats text about what holds GPU memory: the sentence above the table, the state of a read, and the tensors of a
//! group.

use std::fmt::Write as _;

use gputop_model::holders::estimate::{Activations, training_minimum};
use gputop_model::holders::growth::{HolderGrowth, advice, missing_groups};
use gputop_model::holders::{HeldTensor, Quality};
use gputop_model::{Bytes, HolderClass, HolderGroup, Holders};

use super::probe::sentence as capitalized;
use super::summary::duration;
use crate::dashboard::holder_growth::named_rate;
use crate::dashboard::sizes::{percent_words, rounded};

/// Maximum number of holders in the sentence above the table.
const MAX_NAMED: usize = 3;
/// Minimum share of memory, in percent, for the sentence to name a group of holders instead of its class.
const MIN_NAMED_PERCENT: f64 = 5.0;

/// Part of the sentence about holders: a class, or a named group of that class.
struct Part {
    words: String,
    bytes: Bytes,
    rate: Option<Bytes>,
}

/// Returns a sentence: "Optimizer state 41 %, parameters 21 %, graph kept alive by `history[*]` 18 %."
pub fn sentence(holders: &Holders, growth: &HolderGrowth) -> String {
    if holders.allocated == Bytes(0) {
        return "PyTorch has allocated no GPU memory.".into();
    }
    let mut parts = parts(holders, growth);
    let fastest = parts.iter().enumerate().filter(|(_, part)| part.rate.is_some());
    let fastest = fastest.max_by_key(|(_, part)| part.rate).map(|(at, _)| at);
    // Name a growing group even if it is still small.
    if let Some(at) = fastest.filter(|at| *at >= MAX_NAMED) {
        parts.swap(MAX_NAMED - 1, at);
    }
    parts.truncate(MAX_NAMED);
    let words = parts.iter().map(|part| {
        let percent = percent_words(holders.percent(part.bytes));
        let rate = part
            .rate
            .map_or_else(String::new, |rate| format!(" and growing {} a minute", rounded(rate)));
        format!("{} {percent}{rate}", part.words)
    });
    capitalized(&words.collect::<Vec<_>>().join(", ")) + "."
}

/// Compares the allocated memory in two readings, and names the groups that no longer exist.
pub fn difference_lines(earlier: &Holders, now: &Holders) -> Vec<String> {
    let (before, after) = (earlier.allocated, now.allocated);
    let change = match after.0.checked_sub(before.0) {
        Some(0) => "unchanged".to_owned(),
        Some(more) => format!("+{}", Bytes(more)),
        None => format!("-{}", Bytes(before.0 - after.0)),
    };
    let total = format!(
        "Since the reading {} earlier: {before} -> {after} allocated ({change}).",
        duration(now.at.since(earlier.at))
    );
    let groups = match missing_groups(earlier, now) {
        None => Some("Groups are not compared, because a reading is incomplete.".to_owned()),
        Some(groups) if groups.is_empty() => None,
        Some(groups) => {
            let words = groups.iter().take(MAX_NAMED).map(|group| match &*group.name {
                "" => format!("{} {}", group.class_words(), group.bytes),
                name => format!("`{name}` {}", group.bytes),
            });
            let words: Vec<String> = words.collect();
            let others = match groups.len().saturating_sub(MAX_NAMED) {
                0 => String::new(),
                others => format!(", and {others} other groups"),
            };
            Some(format!("No longer allocated: {}{others}.", words.join(", ")))
        }
    };
    std::iter::once(total).chain(groups).collect()
}

/// Returns the parts of the sentence about holders, largest first. Large or growing groups kept alive by a variable get
/// their own part; all others are added up by class.
fn parts(holders: &Holders, growth: &HolderGrowth) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for group in &holders.groups {
        let rate = named_rate(group, growth);
        let is_large = holders.percent(group.bytes) >= MIN_NAMED_PERCENT;
        let named =
            Some(&group.name).filter(|name| !name.is_empty() && (is_large || rate.is_some()));
        let words = match (group.class, named) {
            (HolderClass::SavedForBackward, Some(name)) => format!("graph kept alive by `{name}`"),
            (HolderClass::Variable, Some(name)) => format!("`{name}`"),
            (class, _) => class.name().to_owned(),
        };
        let rate = rate.map(|rate| rate.bytes_per_minute);
        match parts.iter_mut().find(|part| part.words == words) {
            Some(part) => {
                part.bytes.0 = part.bytes.0.saturating_add(group.bytes.0);
                part.rate = part.rate.max(rate);
            }
            None => parts.push(Part { words, bytes: group.bytes, rate }),
        }
    }
    parts.sort_by_key(|part| std::cmp::Reverse(part.bytes));
    parts
}

/// Returns one sentence per growing group, fastest-growing first, that says what keeps the group's memory alive. The
/// sentences have no period.
pub fn advice_lines(holders: &Holders, growth: &HolderGrowth) -> Vec<String> {
    let growing = holders.groups.iter();
    let growing = growing.filter_map(|group| Some((group, named_rate(group, growth)?)));
    let mut growing: Vec<_> = growing.collect();
    growing.sort_by_key(|(_, rate)| std::cmp::Reverse(rate.bytes_per_minute));
    let mut advice_lines: Vec<String> = Vec::new();
    for (group, rate) in growing {
        advice_lines.extend(advice(group, rate).filter(|advice| !advice_lines.contains(advice)));
    }
    advice_lines
}

/// Maximum factor on the batch size in an estimate.
const MAX_FACTOR: u64 = 16;

/// Returns sentences with estimates based on a reading of the holders. `free` is the memory still available for
/// activations, if known.
pub fn estimates(holders: &Holders, free: Option<Bytes>) -> Vec<String> {
    let Some(activations) = Activations::of(holders) else { return Vec::new() };
    let (bytes, batch_size) = (activations.bytes, activations.batch_size);
    let mut sentences = vec![format!(
        "Activations take {} per sample at a batch size of {batch_size}, if the first dimension of the saved tensors is the batch \
         size. Parameters, gradients and optimizer state take {}.",
        rounded(activations.per_sample()),
        rounded(training_minimum(holders)),
    )];
    let fitting = free.and_then(|free| Some((free, activations.fitting_batch_size(free)?)));
    // Beyond a few times the batch size, other limits come first.
    let fitting = fitting.filter(|(_, size)| *size <= batch_size.saturating_mul(MAX_FACTOR));
    if let Some((free, size)) = fitting {
        sentences.push(format!(
            "A batch size of {size} would just fit if a step needs no more than the {} of activations in this reading, and \
             if activations can use all {} of free memory.",
            rounded(bytes),
            rounded(free),
        ));
    }
    sentences
}

/// Describes the state of a read of the holders: `exact, read in 610 ms`.
pub fn state_text(holders: &Holders) -> String {
    let quality = match holders.quality {
        Quality::Exact => "exact",
        Quality::Approximate => "approximate: memory changed during the read",
    };
    format!("{quality}, read in {} ms", holders.took.0)
}

/// Formats the references from a root to a tensor: `__main__ > .trainer > .history > [12]`.
pub fn path_text(tensor: &HeldTensor) -> Option<String> {
    (!tensor.path.is_empty()).then(|| tensor.path.join(" > "))
}

/// Formats the size of a group of holders: `1.18 GiB in 76 blocks, 16 %`.
pub fn size_text(holders: &Holders, group: &HolderGroup) -> String {
    let (bytes, count) = (group.bytes, group.count);
    let percent = percent_words(holders.percent(bytes));
    match count {
        0 => format!("{bytes}, {percent}"),
        1 => format!("{bytes} in 1 block, {percent}"),
        _ => format!("{bytes} in {count} blocks, {percent}"),
    }
}

/// Formats a group of holders and its tensors, with the references that keep each alive if `with_paths` is true.
pub fn tensors(holders: &Holders, group: &HolderGroup, with_paths: bool) -> String {
    let name = match group.name.as_str() {
        "" => group.class.name(),
        name => name,
    };
    let mut text = format!(
        "{name}\n  {}, device {}: {}\n",
        group.class_words(),
        group.ordinal,
        size_text(holders, group),
    );
    for tensor in &group.tensors {
        let view = if tensor.is_view { " (view)" } else { "" };
        let facts = [tensor.dtype.clone(), tensor.shape_text(), tensor.name.clone()];
        let facts: Vec<String> = facts.into_iter().filter(|fact| !fact.is_empty()).collect();
        let size = tensor.bytes.to_string();
        let _ = writeln!(text, "  {size:>12}  {}{view}", facts.join("  "));
        if !with_paths {
            continue;
        }
        if let Some(path) = path_text(tensor) {
            let _ = writeln!(text, "                kept alive by {path}");
        }
        if !tensor.aliases.is_empty() {
            let _ = writeln!(text, "                also {}", tensor.aliases.join(", "));
        }
    }
    let others = group.count.saturating_sub(group.tensors.len() as u64);
    if others > 0 {
        let _ = writeln!(text, "  and {others} smaller blocks");
    }
    text
}

#[cfg(test)]
mod tests;
