//! The columns of the process table. Order here is the order on screen; priority decides who leaves when it is
//! narrow.

use super::pools;
use super::rows::ProcessRow;
use super::theme::{Role, Theme};
use super::widgets::table::{Align, Cell, Column, First, Hidden, Sort, SortKey};
use super::widgets::timeline::span_words;
use crate::allocator::fits::stuck;
use crate::model::frame::Frame;
use crate::model::pool::PoolStats;
use crate::model::process::{Process, RunState};
use crate::model::units::Bytes;

/// Sizes in GiB with one decimal, as the headings of the overview promise; small ones say their unit.
pub fn gib(bytes: Bytes) -> String {
    // What a group of thousands holds together would not fit its column.
    let fits = bytes < Bytes::gib(10_000);
    if fits && (bytes >= Bytes::mib(52) || bytes.0 == 0) {
        format!("{:.1}", bytes.as_gib())
    } else {
        bytes.short()
    }
}

/// Like [`gib`], rounded down: what is promised to fit does.
pub fn gib_down(bytes: Bytes) -> String {
    let tenth = Bytes::gib(1).0 / 10;
    if bytes.0 >= tenth {
        gib(Bytes(bytes.0 / tenth * tenth))
    } else {
        bytes.short()
    }
}

fn vram(row: &ProcessRow, theme: &Theme) -> Cell {
    match (row.vram().get(), row.ended()) {
        (Some(peak), Some(_)) => Cell::new(format!("^{}", gib(peak)), Role::Dim),
        (Some(vram), None) => Cell::text(gib(vram)),
        (None, _) => Cell::absent(theme),
    }
}

fn sm(row: &ProcessRow, theme: &Theme) -> Cell {
    Cell::reading(&row.sm(), theme, |p| format!("{:.0}", p.0))
}

fn cpu(row: &ProcessRow, theme: &Theme) -> Cell {
    Cell::reading(&row.live_fact(|f| &f.cpu), theme, |p| format!("{:.0}", p.0))
}

fn rss(row: &ProcessRow, theme: &Theme) -> Cell {
    Cell::reading(&row.live_fact(|f| &f.rss), theme, |b| b.short())
}

fn age(row: &ProcessRow, theme: &Theme) -> Cell {
    row.shown_age()
        .map_or_else(|| Cell::absent(theme), |age| Cell::text(span_words(age)))
}

fn command(row: &ProcessRow, theme: &Theme) -> Cell {
    let command = row.command();
    let command = command.value().map_or(theme.glyphs.absent, String::as_str);
    if let Some(ended) = row.ended() {
        let when = theme.clock(ended.time, "%H:%M");
        // Where it is known what ended it, that says that it ended: there is little room.
        let end = match ended.cause() {
            Some(cause) => format!("{when} {cause}:"),
            None => format!("ended {when}"),
        };
        return Cell::new(format!("{end} {command}"), Role::Warn);
    }
    match row.run_state() {
        RunState::Zombie => Cell::new(format!("zombie {command}"), Role::Bad),
        RunState::Blocked => Cell::new(format!("blocked {command}"), Role::Warn),
        RunState::Stopped => Cell::new(format!("stopped {command}"), Role::Warn),
        _ => match row.warning() {
            Some(warning) => Cell::new(format!("{} {command}", warning.word()), Role::Warn),
            None => Cell::text(command),
        },
    }
}

/// A size, or a dash.
fn size(size: Option<Bytes>, theme: &Theme) -> Cell {
    size.map_or_else(|| Cell::absent(theme), |size| Cell::text(gib(size)))
}

fn size_key(size: Option<Bytes>) -> SortKey {
    SortKey::whole(size.map(|size| size.0))
}

/// How often something went wrong: nothing is quiet, anything is not.
fn count(row: &ProcessRow, theme: &Theme, role: Role, of: fn(&PoolStats) -> u64) -> Cell {
    let Some(pool) = row.pool() else {
        return Cell::absent(theme);
    };
    match of(&pool.stats) {
        0 => Cell::new("0", Role::Dim),
        n => Cell::new(n.to_string(), role),
    }
}

fn pool_key(row: &ProcessRow, of: fn(&PoolStats) -> Option<u64>) -> SortKey {
    SortKey::whole(row.pool().and_then(|pool| of(&pool.stats)))
}

const fn right(
    title: &'static str,
    width: u16,
    priority: u8,
    cell: fn(&ProcessRow, &Theme) -> Cell,
    sort: Option<Sort<ProcessRow>>,
    help: &'static str,
) -> Column<ProcessRow> {
    Column {
        sort,
        ..Column::right(title, width, priority, cell, help)
    }
}

const fn largest(key: fn(&ProcessRow) -> SortKey) -> Option<Sort<ProcessRow>> {
    Some(Sort {
        first: First::Largest,
        key,
    })
}

const fn smallest(key: fn(&ProcessRow) -> SortKey) -> Option<Sort<ProcessRow>> {
    Some(Sort {
        first: First::Smallest,
        key,
    })
}

pub const CONTAINER: &str = "CONTAINER";

/// Columns that only pools fill: without one they are the first to leave.
pub const POOL_COLUMNS: &[&str] = &["ALLOC", "RESV", "IDLE", "STUCK", "FITS", "RETRY", "OOM"];

/// What is hidden on this frame: the person's choice, and the containers where no process is in one.
pub fn hidden(chosen: Hidden, frame: &Frame) -> Hidden {
    let mut hidden = chosen;
    let mut processes = frame.processes.iter().flat_map(|list| &*list.list);
    if !processes.any(|process| process.container.value().is_some()) {
        let at = PROCESS_COLUMNS
            .iter()
            .position(|column| column.title == CONTAINER);
        at.into_iter().for_each(|at| hidden.hide(at));
    }
    hidden
}

/// The columns that have nothing to say on this frame.
pub fn late(frame: &Frame) -> &'static [&'static str] {
    if pools::any(frame) { &[] } else { POOL_COLUMNS }
}

pub const PROCESS_COLUMNS: &[Column<ProcessRow>] = &[
    right(
        "RANK",
        4,
        7,
        |row, theme| Cell::reading(&row.fact(|f| &f.rank), theme, u32::to_string),
        smallest(|row| SortKey::number(row.fact(|f| &f.rank).get().map(f64::from))),
        "The process's rank in its job: RANK or SLURM_PROCID of its environment.",
    ),
    right(
        "GPU",
        4,
        1,
        |row, theme| {
            row.gpu_label()
                .map_or_else(|| Cell::absent(theme), Cell::text)
        },
        smallest(|row| SortKey::Number(f64::from(row.gpu_index()))),
        "The GPU by its NVML index; with :N the MIG instance on it.",
    ),
    right(
        "PID",
        7,
        0,
        |row, _| Cell::text(row.pid().to_string()),
        smallest(|row| SortKey::Number(f64::from(row.pid().0))),
        "The process.",
    ),
    Column {
        title: "USER",
        width: 8,
        align: Align::Left,
        priority: 8,
        cell: |row, theme| Cell::reading(&row.fact(|f| &f.user), theme, String::clone),
        sort: smallest(|row| SortKey::text(row.fact(|f| &f.user).value())),
        help: "Whose process it is.",
    },
    right(
        "VRAM",
        6,
        1,
        vram,
        largest(|row| SortKey::whole(row.vram().get().map(|v| v.0))),
        "Device memory of the process in GiB as the driver counts it; ^ is the most that an ended one had.",
    ),
    right(
        "ALLOC",
        5,
        3,
        |row, theme| size(row.allocated(), theme),
        largest(|row| size_key(row.allocated())),
        "GiB in live tensors.",
    ),
    right(
        "RESV",
        5,
        12,
        |row, theme| size(row.reserved(), theme),
        largest(|row| size_key(row.reserved())),
        "GiB that the process's allocator holds from the driver.",
    ),
    right(
        "IDLE",
        5,
        3,
        |row, theme| size(row.idle(), theme),
        largest(|row| size_key(row.idle())),
        "GiB cached by the allocator, in no tensor.",
    ),
    right(
        "STUCK",
        5,
        4,
        |row, theme| size(row.pool().and_then(|pool| stuck(&pool.stats)), theme),
        largest(|row| size_key(row.pool().and_then(|pool| stuck(&pool.stats)))),
        "The part of IDLE beside live tensors: only smaller requests can use it; - with expandable segments, of \
         which only the map tells (M).",
    ),
    right(
        "FITS",
        5,
        4,
        |row, theme| {
            row.fits()
                .map_or_else(|| Cell::absent(theme), |size| Cell::text(gib_down(size)))
        },
        smallest(|row| SortKey::whole(row.fits().map(|size| size.0))),
        "The largest request in GiB that would succeed now; with expandable segments at least that, the map (M) may \
         tell of more.",
    ),
    right(
        "RETRY",
        5,
        5,
        |row, theme| count(row, theme, Role::Warn, |stats| stats.num_alloc_retries),
        largest(|row| pool_key(row, |stats| Some(stats.num_alloc_retries))),
        "How often the allocator had to flush its cache.",
    ),
    right(
        "OOM",
        3,
        5,
        |row, theme| count(row, theme, Role::Bad, |stats| stats.num_ooms),
        largest(|row| pool_key(row, |stats| Some(stats.num_ooms))),
        "How often a request failed.",
    ),
    right(
        "SM%",
        3,
        9,
        sm,
        largest(|row| SortKey::number(row.sm().get().map(|v| v.0))),
        "Share of the GPU's compute time that the process had.",
    ),
    right(
        "CPU%",
        5,
        10,
        cpu,
        largest(|row| SortKey::number(row.live_fact(|f| &f.cpu).get().map(|v| v.0))),
        "CPU time of the process; 100 is one core.",
    ),
    right(
        "RSS",
        5,
        11,
        rss,
        largest(|row| SortKey::whole(row.live_fact(|f| &f.rss).get().map(|v| v.0))),
        "Host memory of the process that is resident.",
    ),
    right(
        "AGE",
        5,
        6,
        age,
        largest(|row| SortKey::whole(row.shown_age().map(|v| v.0))),
        "How long the process has run, or had when it ended.",
    ),
    Column {
        title: CONTAINER,
        width: 16,
        align: Align::Left,
        priority: 13,
        cell: |row, theme| {
            let words = row.facts().and_then(Process::container_words);
            words.map_or_else(|| Cell::absent(theme), Cell::text)
        },
        sort: smallest(|row| {
            SortKey::text(row.facts().and_then(Process::container_words).as_ref())
        }),
        help: "The container it runs in, by name, else by id; shown while a process is in one and there is room.",
    },
    Column {
        title: "COMMAND",
        width: 12,
        align: Align::Rest,
        priority: 2,
        cell: command,
        sort: smallest(|row| SortKey::text(row.command().value())),
        help: "The command line, without secrets. Before it: when and how it ended, its state, or what M warns of: oom, flushing, \
               hoarding, growing.",
    },
];
