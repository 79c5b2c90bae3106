//! Tables as plain text, as printed by `gputop once` and `gputop memory`.

use gputop_model::accounting::Accounting;
use jiff::tz::TimeZone;
use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

use super::glyphs::{ASCII, Glyphs};
use super::text_width::{columns as columns_of, fit, fit_middle};
use crate::dashboard::gpu_columns::{BAR, GPU_COLUMNS, GpuRow, NOTE};
use crate::dashboard::holder_columns::{HOLDER_COLUMNS, hidden};
use crate::dashboard::holders::HolderRow;
use crate::dashboard::host_state::HostState;
use crate::dashboard::memory_parts::{self, amounts, divide};
use crate::dashboard::pools;
use crate::dashboard::process_columns::PROCESS_COLUMNS;
use crate::dashboard::table::{Align, Column, ColumnChoice, place};

/// Returns the table of GPUs, an empty line and the table of processes, without trailing spaces.
pub fn overview(host: &HostState, width: u16, glyphs: &Glyphs, zone: &TimeZone) -> String {
    gpu_table(host, width, glyphs, zone) + "\n" + &process_table(host, width, glyphs, zone)
}

fn gpu_table(host: &HostState, width: u16, glyphs: &Glyphs, zone: &TimeZone) -> String {
    let rows = GpuRow::of_frame(&host.frame);
    let pooled = pools::any(&host.frame);
    let cell = |column: &Column<GpuRow>, row: &GpuRow, width: usize| match column.title {
        BAR => row.split().map_or_else(String::new, |split| bar(&split, width, pooled, glyphs)),
        _ => glyphs.cell_text(&row.cell(column, zone).content).into_owned(),
    };
    // Notes are not cut while there is room.
    let note = GPU_COLUMNS.iter().position(|column| column.title == NOTE);
    let widened = note.map(|at| {
        let text = |row: &GpuRow| {
            let cell = row.cell(&GPU_COLUMNS[at], zone);
            columns_of(&glyphs.cell_text(&cell.content))
        };
        let longest = rows.iter().map(text).max().unwrap_or(0);
        (at, u16::try_from(longest).unwrap_or(u16::MAX))
    });
    let choice = ColumnChoice { widened, ..ColumnChoice::default() };
    table(&GPU_COLUMNS, &choice, &rows, width, glyphs, cell)
}

fn process_table(host: &HostState, width: u16, glyphs: &Glyphs, zone: &TimeZone) -> String {
    if host.processes.rows.is_empty() {
        return format!(" {}\n", host.why_no_rows());
    }
    // Unlike on a screen, columns need not stay in their places.
    let mut choice = host.processes.columns();
    for (at, column) in PROCESS_COLUMNS.iter().enumerate() {
        let rows = host.processes.rows.iter();
        if rows.map(|row| (column.cell)(row, zone)).all(|cell| cell.is_empty()) {
            choice.hidden.hide(at);
        }
    }
    plain(PROCESS_COLUMNS, &choice, &host.processes.rows, width, glyphs, zone)
}

/// Returns the table of memory holders.
pub fn holders(rows: &[HolderRow], width: u16, glyphs: &Glyphs) -> String {
    let choice = ColumnChoice { hidden: hidden(rows.iter()), ..ColumnChoice::default() };
    // The table contains no times.
    plain(HOLDER_COLUMNS, &choice, rows, width, glyphs, &TimeZone::UTC)
}

/// Returns a table without graphics.
pub(super) fn plain<T>(
    columns: &[Column<T>],
    choice: &ColumnChoice,
    rows: &[T],
    width: u16,
    glyphs: &Glyphs,
    zone: &TimeZone,
) -> String {
    let cell = |column: &Column<T>, row: &T, _| {
        glyphs.cell_text(&(column.cell)(row, zone).content).into_owned()
    };
    table(columns, choice, rows, width, glyphs, cell)
}

/// Returns a table. `cell` receives the width of the column.
fn table<T>(
    columns: &[Column<T>],
    choice: &ColumnChoice,
    rows: &[T],
    width: u16,
    glyphs: &Glyphs,
    cell: impl Fn(&Column<T>, &T, usize) -> String,
) -> String {
    // The first column is that of the cursor on the screen.
    let placed = place(columns, choice, 1, width.saturating_sub(1));
    let line = |text: &dyn Fn(&Column<T>, usize) -> String| {
        let mut line = Line { glyphs, text: String::new(), used: 0 };
        for place in &placed {
            let (column, width) = (&columns[place.column], usize::from(place.width));
            line.put(&text(column, width), column.align, usize::from(place.x), width);
        }
        line.text.truncate(line.text.trim_end().len());
        line.text + "\n"
    };
    let title = |column: &Column<T>, _| column.title.to_owned();
    let lines = rows.iter().map(|row| line(&|column, width| cell(column, row, width)));
    std::iter::once(line(&title)).chain(lines).collect()
}

/// A line of a table, to which the cells are appended from left to right.
struct Line<'g> {
    glyphs: &'g Glyphs,
    text: String,
    /// Number of terminal columns of the text.
    used: usize,
}

impl Line<'_> {
    /// Appends a cell that begins at the terminal column `x`.
    fn put(&mut self, text: &str, align: Align, x: usize, width: usize) {
        let text = match align {
            Align::LeftMiddle | Align::RestMiddle => fit_middle(text, width, self.glyphs.ellipsis),
            Align::Left | Align::Right | Align::Rest => fit(text, width, self.glyphs.ellipsis),
        };
        let indent = match align {
            Align::Right => width.saturating_sub(columns_of(&text)),
            _ => 0,
        };
        self.push(&" ".repeat((x + indent).saturating_sub(self.used)));
        for grapheme in text.graphemes(true).filter(|part| !part.contains(char::is_control)) {
            match grapheme {
                _ if *self.glyphs != ASCII || grapheme.is_ascii() => self.push(grapheme),
                "…" => self.push(ASCII.ellipsis),
                "–" => self.push(ASCII.absent),
                _ => self.push(&format!("{:1$}", "?", grapheme.width())),
            }
        }
    }

    fn push(&mut self, text: &str) {
        self.text.push_str(text);
        self.used += columns_of(text);
    }
}

fn bar(split: &Accounting, width: usize, pooled: bool, glyphs: &Glyphs) -> String {
    let parts = memory_parts::parts(pooled).into_iter().zip(divide(&amounts(split), width));
    parts.map(|(part, cells)| glyphs.memory_part(part).repeat(cells)).collect()
}
