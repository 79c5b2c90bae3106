//! Evaluates the memory figures that a program prints while it runs, such as `step 200 | loss 4.1 | mem_alloc 5.9 GB`.

use crate::evidence::case::{Case, EvidenceRule, Finding, supports};
use crate::fields;
use regex::Regex;
use std::sync::LazyLock;

pub(super) const EVIDENCE: &[EvidenceRule] = &[("log-shows-growth", grows)];

/// Minimum number of printed figures for a trend.
const MIN_FIGURES: usize = 5;
/// Minimum growth from the first figure to the last, as a fraction of the last figure.
const MIN_GROWTH: f64 = 0.25;
/// Accepted range for the fraction of the growth that occurs in the second half of the figures. The fraction is lower
/// during a warm-up, and higher while a program searches for the largest batch.
const SECOND_HALF: std::ops::RangeInclusive<f64> = 0.3..=0.7;
/// Maximum drop between two consecutive figures, as a fraction of the earlier one.
const MAX_DROP: f64 = 0.02;

/// Words that identify progress lines. Each progress line contains at least one of them.
const PROGRESS: [&str; 7] = ["step", "iter", "epoch", "batch", "micro", "it/s", "loss"];
/// Words in lines about memory that grows by design: while a model is loaded, or while the batch size is increased.
const INTENDED: [&str; 6] = ["batch_size", "batch size", "seq_len", "shard", "loading", "layer"];
/// Words in the labels of figures other than the currently allocated memory.
const OTHER_FIGURES: [&str; 9] =
    ["peak", "max", "res", "total", "free", "cach", "limit", "host", "cpu"];

static FIGURE: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let expression = r"(?i-u)([a-z_ ]{0,24}?(?:mem|alloc|vram)[a-z_ ]{0,14})[=: ]{1,3}(\d+(?:\.\d+)? ?[mg]i?b?)\b";
    Regex::new(expression).ok()
});

/// A memory figure in a line of the log.
struct PrintedFigure<'a> {
    label: &'a str,
    text: &'a str,
    bytes: f64,
}

fn grows(case: &Case<'_>) -> Option<Finding> {
    let all: Vec<PrintedFigure<'_>> = case.context.lines().filter_map(figure).collect();
    let figures: Vec<&PrintedFigure<'_>> = all.iter().filter(|f| f.label == all[0].label).collect();
    let (first, last) = (figures.first()?, figures.last()?);
    let growth = last.bytes - first.bytes;
    let second_half = (last.bytes - figures[figures.len() / 2].bytes) / growth;
    let is_steady = figures.len() >= MIN_FIGURES
        && growth >= last.bytes * MIN_GROWTH
        && SECOND_HALF.contains(&second_half)
        && figures.windows(2).all(|pair| pair[1].bytes >= pair[0].bytes * (1.0 - MAX_DROP));
    supports(is_steady, || {
        format!(
            "the log prints `{}` {} times, rising steadily from {} to {}",
            first.label,
            figures.len(),
            first.text,
            last.text
        )
    })
}

/// Returns the allocated memory printed in a progress line.
fn figure(line: &str) -> Option<PrintedFigure<'_>> {
    let lower = line.to_ascii_lowercase();
    let is_progress = PROGRESS.iter().any(|word| lower.contains(word))
        && !INTENDED.iter().any(|word| lower.contains(word));
    if !is_progress {
        return None;
    }
    FIGURE.as_ref()?.captures_iter(line).find_map(|captures| {
        let (_, [label, text]) = captures.extract();
        let lower = label.to_ascii_lowercase();
        let bytes = fields::size(text)? as f64;
        let is_other = OTHER_FIGURES.iter().any(|word| lower.contains(word));
        (!is_other).then_some(PrintedFigure { label: label.trim(), text, bytes })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::in_log;

    fn printed(line: impl Fn(f64) -> String, figures: &[f64]) -> Option<Finding> {
        let lines: Vec<String> = figures.iter().map(|figure| line(*figure)).collect();
        in_log(grows, &lines.join("\n"))
    }

    #[test]
    fn steady_growth_in_progress_lines_is_found() {
        let figures = [5.89, 6.68, 7.47, 8.26, 9.05, 9.84];
        let found = printed(
            |gb| format!("step 200 | loss 4.06 | mem_alloc {gb:.2} GB | mem_res 10.00 GB"),
            &figures,
        );
        let clause = "the log prints `mem_alloc` 6 times, rising steadily from 5.89 GB to 9.84 GB";
        assert_eq!(found, Some(Finding::For(clause.into())));
        assert!(
            printed(|gb| format!("[micro 1/16] loss=2.3 alloc={gb:.2}GiB peak=80.00GiB"), &figures)
                .is_some()
        );
    }

    #[test]
    fn growth_that_levels_off_or_is_intended_is_not_a_leak() {
        let step = |gb: f64| format!("step 1 loss 2.0 mem_alloc {gb} GB");
        assert_eq!(printed(step, &[4.0, 9.0, 9.5, 9.6, 9.6, 9.6]), None);
        assert_eq!(printed(step, &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0]), None);
        assert_eq!(printed(step, &[4.0, 5.0, 4.0, 5.0, 6.0, 7.0]), None);
        assert_eq!(printed(step, &[4.0, 5.0, 6.0]), None);
        let steady = [4.0, 5.0, 6.0, 7.0, 8.0, 9.0];
        assert!(printed(step, &steady).is_some());
        let loading = |gb: f64| format!("Loading checkpoint shards, step 3: mem_alloc {gb} GB");
        assert_eq!(printed(loading, &steady), None);
        let peak = |gb: f64| format!("step 1 loss 2.0 max_mem {gb} GB");
        assert_eq!(printed(peak, &steady), None);
    }
}
