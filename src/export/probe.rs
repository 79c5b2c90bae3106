//! Formats a probe as text: three histograms side by side, a sentence about each, and the cost of the probe.

use std::fmt::Write as _;

use gputop_model::probe::{Bin, Fill, Outcome, PatternResult, ProcessFragmentation};
use gputop_model::units::apportion;
use gputop_model::{Bytes, Probe};

/// Width of a histogram bar in cells.
const BAR: usize = 7;
/// Rounding step for sizes in bytes: 0.01 GiB, as in all tables.
const STEP: u64 = Bytes::gib(1).0 / 100;

/// Formats the full report of a probe, 80 columns wide. `name` is the GPU's name: `GPU 0 NVIDIA H200`.
pub fn text(probe: &Probe, name: &str) -> String {
    let mut text = format!("{name}  {}\n", probe.gpu);
    if let Some(why) = &probe.reason {
        let _ = writeln!(text, "{}", sentence(why));
    }
    if probe.outcome == Outcome::NoContext {
        text.push_str("gputop cards context-refused-scattered\n");
    }
    if let (Some(total), Some(free)) = (probe.total_bytes.get(), probe.free_bytes.get()) {
        let _ = writeln!(
            text,
            "free {free} of {total}, {} of it kept free as headroom",
            probe.headroom_bytes
        );
    }
    if let Some(fill) = &probe.driver {
        let _ = writeln!(text, "\ndriver    {}", driver_words(fill));
    }
    if let Some(run) = probe.patterns.first() {
        let _ = writeln!(
            text,
            "pattern   {}: {} requests in an arena of {}; histogram for {}",
            run.source,
            run.requests,
            run.arena_bytes,
            run.policy.words()
        );
    }
    if let Some(side) = &probe.process {
        let _ = writeln!(text, "process   {}", process_text(side));
    }
    if probe.driver.is_some() || !probe.patterns.is_empty() {
        text.push('\n');
        write_histograms(&mut text, probe);
    }
    let policies = policy_lines(&probe.patterns);
    if !policies.is_empty() {
        text.push('\n');
        text.push_str(&policies.join("\n"));
        text.push('\n');
    }
    if let Some(fill) = &probe.driver {
        text.push('\n');
        write_latency(&mut text, fill);
    }
    if probe.outcome == Outcome::Done || probe.cost.held_peak_bytes > Bytes(0) {
        let _ = writeln!(text, "\ncost      {}", cost_words(probe));
    }
    text
}

/// Returns `clause` with its first letter in upper case.
pub fn sentence(clause: &str) -> String {
    let mut chars = clause.chars();
    chars.next().map(char::to_uppercase).into_iter().flatten().chain(chars).collect()
}

/// Describes the fill: `9.00 GiB of 9.00 GiB in 3 allocations, the largest 8.00 GiB: not fragmented`.
pub fn driver_words(fill: &Fill) -> String {
    let allocations: u64 = fill.histogram.iter().map(|bin| bin.count).sum();
    let verdict = if fill.cut_short {
        "stopped at the time limit; use --limit 2s to allow more time".to_owned()
    } else if fill.held_bytes == Bytes(0) && fill.wanted_bytes == Bytes(0) {
        "nothing allocated, because all free memory is headroom".to_owned()
    } else if fill.is_clean() {
        "not fragmented".to_owned()
    } else {
        fill.latency.iter().find(|size| size.failed > 0).map_or_else(String::new, |size| {
            format!("fragmented (a request of {} failed although more was free)", size.bytes)
        })
    };
    format!(
        "{} of {} in {allocations} allocations, the largest {}: {verdict}",
        fill.held_bytes, fill.wanted_bytes, fill.largest_bytes
    )
}

/// Describes the process's cache: `PID 418: 1.20 GiB free in its cache, the largest block 0.30 GiB`.
pub fn process_text(side: &ProcessFragmentation) -> String {
    let pid = side.process.pid;
    match &side.missing {
        Some(why) => format!("PID {pid}: {why}"),
        None => format!(
            "PID {pid}: {} free in its cache, the largest block {}{}",
            side.free_bytes,
            side.largest_free_block,
            if side.exact { "" } else { " (approximate)" }
        ),
    }
}

/// Describes the cost of the probe: `held up to 1.00 GiB for 30 ms (20 GiB x ms); CUDA context ~518.00 MiB; 500 ms in
/// total, 180 ms to start`.
pub fn cost_words(probe: &Probe) -> String {
    let cost = &probe.cost;
    let gib_ms = cost.held_byte_ms / Bytes::gib(1).0;
    let context = match cost.context_bytes.get() {
        Some(bytes) => format!("CUDA context ~{bytes}"),
        None => "CUDA context not measured".into(),
    };
    format!(
        "held up to {} for {} ms ({gib_ms} GiB x ms); {context}; {} ms in total, {} ms to start",
        cost.held_peak_bytes, cost.held_ms, cost.total_ms, cost.start_ms
    )
}

/// Returns the block sizes (powers of two) that occur in any of the histograms, largest first.
pub fn powers(histograms: &[&[Bin]]) -> Vec<Bytes> {
    let mut sizes: Vec<Bytes> = histograms
        .iter()
        .flat_map(|bins| bins.iter())
        .filter(|bin| bin.count > 0)
        .map(|bin| bin.up_to_bytes)
        .collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    sizes.dedup();
    sizes
}

fn write_histograms(text: &mut String, probe: &Probe) {
    let driver = probe.driver.as_ref().map(|fill| &fill.histogram[..]);
    let pattern = probe.patterns.first();
    let process = probe.process.as_ref().filter(|side| side.missing.is_none());
    let columns = [
        ("DRIVER".to_owned(), driver),
        ("PATTERN".to_owned(), pattern.map(|run| &run.free_histogram[..])),
        (
            process.map_or("PROCESS".into(), |side| format!("PID {}", side.process.pid)),
            process.map(|side| &side.free_histogram[..]),
        ),
    ];
    let mut heading = format!("{:>5} ", "up to");
    for (title, bins) in &columns {
        let units = if bins.is_some() { "count     GiB" } else { "" };
        let width = BAR + 16;
        let left = width - units.len() - 1;
        let title: String = title.chars().take(left).collect();
        let _ = write!(heading, " {title:<left$}{units:>0$} ", width - left - 1);
    }
    let _ = writeln!(text, "{}", heading.trim_end());
    let shown: Vec<&[Bin]> = columns.iter().filter_map(|(_, bins)| *bins).collect();
    for size in powers(&shown) {
        let mut line = format!("{:>5} ", size.short());
        for (_, bins) in &columns {
            line.push(' ');
            line.push_str(&bins.map_or_else(|| " ".repeat(BAR + 16), |bins| cell(bins, size)));
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
}

/// Formats the histogram cell for a block size: a bar, the number of blocks and their total size.
fn cell(bins: &[Bin], size: Bytes) -> String {
    let sizes: Vec<Bytes> = bins.iter().map(|bin| bin.bytes).collect();
    let printed = apportion(&sizes, STEP);
    let max = sizes.iter().max().copied().unwrap_or_default().0.max(1);
    let found = bins.iter().zip(printed).find(|(bin, _)| bin.up_to_bytes == size && bin.count > 0);
    let Some((bin, printed)) = found else {
        return format!("{:BAR$} {:>5} {:>8} ", "", "", "");
    };
    let cells = u128::from(bin.bytes.0) * BAR as u128 / u128::from(max);
    let bar = "#".repeat(usize::try_from(cells).unwrap_or(BAR).clamp(1, BAR));
    let amount =
        if printed.0 == 0 { bin.bytes.short() } else { format!("{:.2}", printed.as_gib()) };
    format!("{bar:<BAR$} {:>5} {amount:>8} ", bin.count)
}

/// Formats the results of all allocation policies: a heading and one line per policy.
pub fn policy_lines(runs: &[PatternResult]) -> Vec<String> {
    if runs.is_empty() {
        return Vec::new();
    }
    let mut lines = vec![format!(
        "{:<11}{:>10}{:>11}{:>9}{:>9}{:>10}{:>8}{:>9}",
        "policy", "reserved", "allocated", "free", "largest", "ext.frag", "failed", "ms"
    )];
    for run in runs {
        if run.missing.is_some() && run.requests_made == 0 {
            let why = run.missing.as_deref().unwrap_or_default();
            lines.push(format!("{:<11} - {why}", run.policy.name()));
            continue;
        }
        let external =
            run.external_fragmentation.map_or("-".into(), |share| format!("{:.0}%", share * 100.0));
        lines.push(format!(
            "{:<11}{:>10}{:>11}{:>9}{:>9}{external:>10}{:>8}{:>9.1}",
            run.policy.name(),
            run.reserved_bytes.short(),
            run.allocated_bytes.short(),
            run.free_bytes.short(),
            run.largest_free_block.short(),
            run.failures,
            run.us as f64 / 1e3
        ));
        if let Some(why) = &run.missing {
            lines.push(format!("  after {} requests: {why}", run.requests_made));
        }
    }
    lines
}

fn write_latency(text: &mut String, fill: &Fill) {
    if fill.latency.is_empty() {
        return;
    }
    let _ =
        writeln!(text, "{:<11}{:>10}{:>11}{:>12}", "cudaMalloc", "count", "failed", "longest ms");
    for size in &fill.latency {
        let _ = writeln!(
            text,
            "{:<11}{:>10}{:>11}{:>12.2}",
            size.bytes.short(),
            size.count,
            size.failed,
            size.longest_us as f64 / 1e3
        );
    }
}
