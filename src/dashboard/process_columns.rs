//! The columns of the process table, in screen order. A narrow screen hides the columns with the highest priority
//! numbers first.

use gputop_allocator::fits::fragmented;
use gputop_model::pool::PoolStats;
use gputop_model::process::{Process, RunState};
use gputop_model::units::Bytes;
use jiff::tz::TimeZone;

use super::rows::ProcessRow;
use crate::dashboard::emphasis::Emphasis;
use crate::dashboard::sizes::gib;
use crate::dashboard::table::{Cell, Column, First, Hidden, SortKey};
use crate::dashboard::times::{clock_text, span_text};

fn vram(row: &ProcessRow, _: &TimeZone) -> Cell {
    match (row.vram().get(), row.ended()) {
        (Some(peak), Some(_)) => Cell::new(gib(peak), Emphasis::Dim),
        (Some(vram), None) => Cell::text(gib(vram)),
        (None, _) => Cell::missing(),
    }
}

fn sm(row: &ProcessRow, _: &TimeZone) -> Cell {
    Cell::reading(&row.sm(), |p| format!("{:.0}", p.0))
}

fn cpu(row: &ProcessRow, _: &TimeZone) -> Cell {
    Cell::reading(&row.live_fact(|f| &f.cpu), |p| format!("{:.0}", p.0))
}

fn rss(row: &ProcessRow, _: &TimeZone) -> Cell {
    Cell::reading(&row.live_fact(|f| &f.rss), |b| b.short())
}

/// Stands for an unknown command line, also beside other words.
const UNKNOWN: &str = "–";

/// Returns the program, then in parentheses the framework other than PyTorch, whose pools follow other rules, and the state,
/// then the arguments: `serve.py (JAX, idle 6m) --port 80`. The program is first, so that its column looks the same in any
/// state.
fn with_state(row: &ProcessRow, command: &str, state: Option<String>) -> String {
    let pool = row.reported_pools().next().filter(|_| row.pool().is_none());
    let framework = pool.map(|pool| pool.framework.words().to_owned());
    let words: Vec<String> = framework.into_iter().chain(state).collect();
    if words.is_empty() {
        return command.to_owned();
    }
    let (program, arguments) = command.split_once(' ').unwrap_or((command, ""));
    let text = format!("{program} ({}) {arguments}", words.join(", "));
    text.trim_end().to_owned()
}

fn command(row: &ProcessRow, zone: &TimeZone) -> Cell {
    let command = row.command();
    let (state, emphasis) = state(row, zone);
    match command.value() {
        None if state.is_none() => Cell::new(row.why_no_command(), Emphasis::Dim),
        command => {
            let command = command.map_or(UNKNOWN, String::as_str);
            Cell::new(with_state(row, command, state), emphasis)
        }
    }
}

/// Returns what is special about a process now, such as `OOM 14:25` or `idle 6m`.
fn state(row: &ProcessRow, zone: &TimeZone) -> (Option<String>, Emphasis) {
    if let Some(ended) = row.ended() {
        let when = clock_text(ended.time, zone, "%H:%M");
        // The cause implies that the process exited.
        let cause = ended.cause();
        let emphasis = if cause.is_some() { Emphasis::Warn } else { Emphasis::Dim };
        let cause = cause.unwrap_or_else(|| "exited".to_owned());
        return (Some(format!("{cause} {when}")), emphasis);
    }
    match row.run_state() {
        RunState::Zombie => (Some("zombie".to_owned()), Emphasis::Bad),
        // A program that reads files is often blocked briefly. It is stuck only if it uses no CPU meanwhile.
        RunState::Blocked if row.live_fact(|f| &f.cpu).get().is_none_or(|cpu| cpu.0 < 1.0) => {
            (Some("blocked".to_owned()), Emphasis::Warn)
        }
        RunState::Stopped => (Some("stopped".to_owned()), Emphasis::Warn),
        _ => match (row.warning(), row.unused_for()) {
            (Some(warning), _) => (Some(warning.word().to_owned()), Emphasis::Warn),
            (None, Some(unused)) => (Some(format!("idle {unused}")), Emphasis::Dim),
            (None, None) => (None, Emphasis::Normal),
        },
    }
}

/// Returns a table cell with a size, or with a dash if the size is unknown.
fn size(size: Option<Bytes>) -> Cell {
    Cell::known(size.map(gib))
}

fn size_key(size: Option<Bytes>) -> SortKey {
    SortKey::whole(size.map(|size| size.0))
}

/// Returns a table cell with an error count. Zero is dimmed.
fn count(row: &ProcessRow, emphasis: Emphasis, of: fn(&PoolStats) -> u64) -> Cell {
    let Some(pool) = row.pool() else {
        return Cell::missing();
    };
    match of(&pool.stats) {
        0 => Cell::new("0", Emphasis::Dim),
        n => Cell::new(n.to_string(), emphasis),
    }
}

fn pool_key(row: &ProcessRow, of: fn(&PoolStats) -> Option<u64>) -> SortKey {
    SortKey::whole(row.pool().and_then(|pool| of(&pool.stats)))
}

/// Columns that are hidden until a process has a value in them. All others are always shown, so that the table keeps its
/// form.
const HIDDEN_WHILE_EMPTY: [&str; 1] = ["CONTAINER"];

/// Shows the columns in which one of `rows` has a value. `hidden` are the columns without a value so far, or `None`
/// before the first rows.
pub fn still_empty(hidden: Option<Hidden>, rows: &[ProcessRow]) -> Hidden {
    let is_empty = |(at, column): &(usize, &Column<ProcessRow>)| {
        // Any time zone will do: none of these columns contains a time.
        let has_value = |row: &ProcessRow| !(column.cell)(row, &TimeZone::UTC).is_empty();
        HIDDEN_WHILE_EMPTY.contains(&column.title)
            && hidden.is_none_or(|hidden| hidden.has(*at))
            && !rows.iter().any(has_value)
    };
    let mut empty = Hidden::default();
    PROCESS_COLUMNS.iter().enumerate().filter(is_empty).for_each(|(at, _)| empty.hide(at));
    empty
}

/// Title of the column with the change in VRAM.
pub const GROWTH: &str = "GiB/min";

/// Returns a cell with the change in VRAM in GiB per minute, such as `+12.4`. The heading states the unit.
fn growth(row: &ProcessRow, _: &TimeZone) -> Cell {
    match row.growth_text() {
        Some(text) if text == "0.0" => Cell::new(text, Emphasis::Dim),
        Some(text) if row.fills_gpu_soon() => Cell::new(text, Emphasis::Warn),
        // Says that the memory in the column before is not in use any more.
        None if row.ended().is_some() && row.vram().get().is_some() => {
            Cell::new("peak", Emphasis::Dim)
        }
        text => Cell::known(text),
    }
}

/// Defines the process table columns: alignment, title, width, priority, cell, sort direction, sort key and help text.
macro_rules! columns {
    ($($align:ident $title:tt $width:literal $priority:literal, $cell:expr, $first:ident $key:expr, $help:literal;)*) => {
        pub const PROCESS_COLUMNS: &[Column<ProcessRow>] = &[$(
            Column::<ProcessRow>::$align($title, $width, $priority, $cell, $help)
                .sorted(First::$first, $key),
        )*];
    };
}

columns! {
    right "RANK" 4 8, |row, _| Cell::reading(&row.rank(), u32::to_string),
        Smallest |row| SortKey::number(row.rank().get().map(f64::from)),
        "Rank in its job: RANK or SLURM_PROCID in its environment, or read from its process groups.";
    right "GPU" 4 1, |row, _| Cell::known(row.gpu_label()),
        Smallest |row| SortKey::Number(f64::from(row.gpu_index())),
        "NVML index of the GPU, followed by :N for a MIG instance.";
    right "PID" 7 0, |row, _| Cell::text(row.pid().to_string()),
        Smallest |row| SortKey::Number(f64::from(row.pid().0)),
        "Process ID.";
    left_middle "USER" 8 5, |row, _| Cell::reading(&row.fact(|f| &f.user), String::clone),
        Smallest |row| SortKey::text(row.fact(|f| &f.user).value()),
        "Owner of the process.";
    right "VRAM" 6 1, vram,
        Largest |row| SortKey::whole(row.vram().get().map(|v| v.0)),
        "Device memory of the process in GiB, as reported by the driver; the peak if the process has exited.";
    right GROWTH 7 4, growth,
        Largest |row| SortKey::number(row.growth()),
        "Growth of the peak VRAM: from the first ten seconds of the last minute to its last ten seconds; unknown for a new process.";
    right "ALLOC" 5 3, |row, _| size(row.allocated()),
        Largest |row| size_key(row.allocated()),
        "Memory in live tensors, in GiB.";
    right "RESV" 5 3, |row, _| size(row.reserved()),
        Largest |row| size_key(row.reserved()),
        "Memory that the allocator has reserved from the driver, in GiB: tensors and cache.";
    right "CACHED" 6 14, |row, _| size(row.cached()),
        Largest |row| size_key(row.cached()),
        "Memory cached by the allocator but not in use by tensors, in GiB.";
    right "FRAG" 5 7, |row, _| size(row.pool().and_then(|pool| fragmented(&pool.stats))),
        Largest |row| size_key(row.pool().and_then(|pool| fragmented(&pool.stats))),
        "Part of the cache in segments with live tensors, usable only for smaller requests; unknown with expandable segments, see the memory map (M).";
    right "FITS" 5 6, |row, _| Cell::known(row.fits_text()),
        Smallest |row| SortKey::whole(row.fits().map(|size| size.0)),
        "Largest request that would succeed now, in GiB; + marks a minimum: a larger one may succeed, see the memory map (M).";
    right "RETRY" 5 15, |row, _| count(row, Emphasis::Warn, |stats| stats.num_alloc_retries),
        Largest |row| pool_key(row, |stats| Some(stats.num_alloc_retries)),
        "Number of times the allocator flushed its cache.";
    right "OOM" 3 15, |row, _| count(row, Emphasis::Bad, |stats| stats.num_ooms),
        Largest |row| pool_key(row, |stats| Some(stats.num_ooms)),
        "Number of failed requests.";
    right "SM%" 4 3, sm,
        Largest |row| SortKey::number(row.sm().get().map(|v| v.0)),
        "Share of the GPU's compute time used by the process, read every 5 s. The GPU's SM% is read every second.";
    right "CPU%" 5 8, cpu,
        Largest |row| SortKey::number(row.live_fact(|f| &f.cpu).get().map(|v| v.0)),
        "CPU usage of the process; 100 is one core.";
    right "RSS" 5 13, rss,
        Largest |row| SortKey::whole(row.live_fact(|f| &f.rss).get().map(|v| v.0)),
        "Resident host memory of the process.";
    right "AGE" 5 7, |row, _| Cell::known(row.shown_age().map(span_text)),
        Largest |row| SortKey::whole(row.shown_age().map(|v| v.0)),
        "Run time of the process, up to its exit if it has exited.";
    left "CONTAINER" 16 16, |row, _| Cell::known(row.facts().and_then(Process::container_text)),
        Smallest |row| SortKey::text(row.facts().and_then(Process::container_text).as_ref()),
        "Name of the container, or its ID.";
    rest "COMMAND" 22 2, command,
        Smallest |row| SortKey::text(row.command().value()),
        "Command line, without secrets, with the cause and time of the exit, the state, the time for which it has not used its GPU, or a warning explained on the memory screen (M): oom, flushing, hoarding, growing.";
}
