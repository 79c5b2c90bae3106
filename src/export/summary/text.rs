//! Formats a summary as text with a table in each section, or as a few lines.

use std::fmt::Write as _;

use gputop_model::{Bytes, Percent};

use super::table::{Section, SummaryColumn, duration, energy, fit_words, incident, overview_words};
use crate::export::summary::report::Report;
use crate::summary::{GpuSummary, PoolSummary, ProcessSummary, RunSummary};

/// Maximum number of lines that `gputop run --summary` prints before the recording's name.
const SHORT_LINES: usize = 9;
const GAP: usize = 1;
/// Tells the user how to find out in the next run whether a smaller GPU is large enough.
const UNTRACED: &str =
    "With --trace-allocs, the summary also names the smallest GPU that suffices.";

/// Formats the report as text with lines of at most `width` columns.
pub fn text(report: &Report, width: usize) -> String {
    let (title, sections) = report.sections();
    let mut out = cut(&title, width) + "\n";
    for section in sections {
        if !section.title.is_empty() {
            let _ = writeln!(out, "\n{}", cut(&section.title, width));
        }
        write_table(&mut out, &section, width);
        for note in &section.notes {
            write_wrapped(&mut out, note, width);
        }
    }
    out
}

fn write_table(out: &mut String, section: &Section, width: usize) {
    if section.rows.is_empty() {
        return;
    }
    let widths: Vec<usize> = section
        .columns
        .iter()
        .enumerate()
        .map(|(at, column)| {
            let cells = section.rows.iter().map(|row| row[at].chars().count());
            cells.max().unwrap_or(0).max(column.name.len())
        })
        .collect();
    let names: Vec<&str> = section.columns.iter().map(|column| column.name).collect();
    let mut line = |cells: &[&str]| {
        let cells = cells.iter().zip(&widths).zip(&section.columns);
        let line = cells.fold(String::new(), |line, ((cell, width), column)| {
            line + &aligned(cell, *width, *column)
        });
        let _ = writeln!(out, "{}", cut(line.trim_end(), width));
    };
    line(&names);
    for row in &section.rows {
        line(&row.iter().map(String::as_str).collect::<Vec<_>>());
    }
}

fn aligned(cell: &str, width: usize, column: SummaryColumn) -> String {
    let gap = " ".repeat(GAP);
    if column.is_text { format!("{gap}{cell:<width$}") } else { format!("{gap}{cell:>width$}") }
}

fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    kept + "…"
}

/// Appends a sentence, wrapped to `width`. Further lines are indented.
fn write_wrapped(out: &mut String, text: &str, width: usize) {
    for text in text.lines() {
        let mut line = String::from(" ");
        for word in text.split(' ') {
            if line.chars().count() + 1 + word.chars().count() > width && line.trim() != "" {
                let _ = writeln!(out, "{line}");
                line = "   ".into();
            }
            line.push_str(if line.ends_with(' ') { "" } else { " " });
            line.push_str(word);
        }
        let _ = writeln!(out, "{line}");
    }
}

/// Formats at most nine lines for the end of `gputop run`: the run, its GPUs, its processes and its incidents, and
/// whether a smaller GPU is large enough. If a traced run does not answer the last question, `unproven` gives the
/// reason.
pub fn short(run: &RunSummary, unproven: Option<&str>, width: usize) -> String {
    let mut lines = overview_words(run);
    let mut rest: Vec<String> = run.incidents.iter().flat_map(incident).collect();
    let fit: Vec<String> = run.processes.iter().filter_map(fit_words).collect();
    let mut pools = run.processes.iter().flat_map(|process| &process.pools);
    let fit = match (fit.is_empty(), unproven) {
        (false, _) => fit,
        (true, Some(why)) => vec![format!("Cannot tell whether a smaller GPU suffices: {why}.")],
        (true, None) if pools.any(PoolSummary::is_torch) => vec![UNTRACED.to_owned()],
        (true, None) => Vec::new(),
    };
    let mut wrapped = String::new();
    fit.iter().for_each(|sentence| write_wrapped(&mut wrapped, sentence, width));
    // Omit incidents to make room for complete sentences, because half a sentence is misleading.
    rest.truncate((SHORT_LINES - SHORT_LINES / 2).saturating_sub(wrapped.lines().count()));
    rest.extend(wrapped.lines().map(|line| line[1..].to_owned()));
    lines.extend(run.gpus.iter().map(gpu_line));
    lines.extend(run.processes.iter().map(process_line));
    if run.processes.is_empty() {
        lines.push("The command used no GPU during the recording.".into());
    }
    // Omit GPUs and processes before any incident, because incidents are more important.
    lines.truncate(SHORT_LINES.saturating_sub(rest.len()).max(SHORT_LINES / 2));
    lines.extend(rest);
    lines.truncate(SHORT_LINES);
    lines.iter().fold(String::new(), |text, line| {
        let line = line.lines().next().unwrap_or_default();
        text + &cut(line, width) + "\n"
    })
}

fn gpu_line(gpu: &GpuSummary) -> String {
    let mut words = Vec::new();
    let size = Bytes::short;
    if let (Some(used), Some(total)) = (gpu.used, gpu.total) {
        words.push(format!("peak {} of {}", size(used.peak), size(total)));
    }
    let share =
        |name: &str, share: Option<Percent>| share.map(|share| format!("{name} {:.0} %", share.0));
    words.extend(share("idle", gpu.idle_percent));
    words.extend(share("waiting", gpu.waiting_percent));
    words.extend(share("throttled", gpu.throttled_percent));
    words.extend(gpu.energy.map(|e| energy(e.joules)));
    if words.is_empty() {
        words.push("no readings".into());
    }
    format!("GPU {}: {}", gpu.index, words.join(", "))
}

fn process_line(process: &ProcessSummary) -> String {
    let mut words = vec![duration(process.duration)];
    let peak = |name: &str, peak: Bytes| format!("{name} {}", peak.short());
    words.extend(process.vram.map(|vram| peak("peak VRAM", vram.peak)));
    for pool in &process.pools {
        words.extend(pool.reserved.map(|sizes| peak("reserved", sizes.peak)));
        words.extend(pool.allocated.map(|sizes| peak("allocated", sizes.peak)));
    }
    words.extend(process.warnings.iter().map(|w| w.kind.to_owned()));
    let (pid, program) = (process.process.pid, process.program());
    format!("PID {pid} {program}: {}", words.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::{ProvenFit, RecordedLine, Totals, read};
    use gputop_model::host::Hello;

    fn run() -> RunSummary {
        let line = r#"{"frame":{"mono":1000,"gpus":[{"index":0,"uuid":"GPU-a","health":{"state":"answering"},
            "processes":[{"pid":7,"process":{"pid":7,"start":1},"vram":1073741824}]}],
            "pools":{"list":[{"process":{"pid":7,"start":1},"gpu":"GPU-a","stats":{"reserved":[9,9,9],"allocated":[5,5,5]}}]}}}"#;
        let mut totals = Totals::default();
        match read(line.as_bytes(), &mut Vec::new()).expect("a line") {
            RecordedLine::Frame(frame) => totals.push(&frame),
            other => panic!("{other:?}"),
        }
        totals.finish("run", &Hello::default(), 0, &[])
    }

    #[test]
    fn the_short_summary_wraps_the_sentence_about_a_smaller_gpu() {
        let mut run = run();
        run.processes[0].fit = Some(ProvenFit {
            card: Bytes::gib(24),
            outside: Bytes::gib(2),
            peak_reserved: Bytes::gib(20),
        });
        let text = short(&run, None, 80);
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            words.ends_with(
                "reserves at most 20.00 GiB, and 2.00 GiB is used outside the allocator."
            ),
            "{text}"
        );
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }

    #[test]
    fn the_short_summary_states_why_no_smaller_gpu_is_proven() {
        let mut run = run();
        let text = short(&run, Some("an allocation failed in the trace"), 80);
        assert!(
            text.ends_with(
                "Cannot tell whether a smaller GPU suffices: an allocation failed in the trace.\n"
            ),
            "{text}"
        );
        let text = short(&run, None, 80);
        assert!(text.contains("--trace-allocs"), "{text}");
        // --trace-allocs traces only PyTorch.
        run.processes[0].pools[0].framework = "JAX";
        assert!(!short(&run, None, 80).contains("--trace-allocs"));
    }
}
