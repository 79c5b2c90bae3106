//! The GPU table: one row for each GPU and each MIG instance, drawn the same way on every screen with a list of GPUs.

use std::sync::{Arc, LazyLock};

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::dashboard::pools;
use crate::dashboard::sizes::gib;
use crate::model::accounting::{Accounting, account_pools};
use crate::model::frame::Frame;
use crate::model::gpu::{GPU_FIGURES, Gpu, GpuFigure, HealthState, Memory, MigInstance, Throttle};
use crate::model::history::{GpuMetric, SeriesKey};
use crate::model::reading::Reason;
use crate::model::units::{Bytes, Millis};
use crate::tui::app::App;
use crate::tui::marks;
use crate::tui::rows::{ProcessRow, full_in};
use crate::tui::theme::{Role, Theme};
use crate::tui::widgets::bar::{self, Part};
use crate::tui::widgets::table::{Align, Cell, Column, View, draw, place};
use crate::tui::widgets::time_axis::{TimeAxis, span_text};
use crate::tui::widgets::timeline::sparkline;

/// A GPU or a MIG instance in a frame.
#[derive(Debug, Clone)]
pub struct GpuRow {
    frame: Arc<Frame>,
    gpu: usize,
    mig: Option<usize>,
    /// A note about a memory holder that is growing on this GPU, if any.
    growth: Option<String>,
}

impl GpuRow {
    /// Returns a row for each GPU in NVML order, each followed by its MIG instances.
    pub fn of_frame(frame: &Arc<Frame>) -> Vec<Self> {
        let row = |gpu, mig| Self { frame: Arc::clone(frame), gpu, mig, growth: None };
        frame
            .gpus
            .iter()
            .enumerate()
            .flat_map(|(g, gpu)| {
                std::iter::once(row(g, None))
                    .chain((0..gpu.mig.len()).map(move |m| row(g, Some(m))))
            })
            .collect()
    }

    /// Returns the GPU rows of the newest frame, including notes that need data from outside the frame.
    pub fn of_app(app: &App) -> Vec<Self> {
        let mut rows = Self::of_frame(&app.frame);
        for row in &mut rows {
            let growth = app.holders.growth_note(row.gpu(), &app.frame);
            row.growth = growth.or_else(|| full_soon(app, row.gpu()));
        }
        rows
    }

    pub fn gpu(&self) -> &Gpu {
        &self.frame.gpus[self.gpu]
    }

    fn mig(&self) -> Option<&MigInstance> {
        self.gpu().mig.get(self.mig?)
    }

    /// Returns the index of the row's GPU, not counting MIG instances.
    pub fn position(&self) -> usize {
        self.gpu
    }

    pub fn is_instance(&self) -> bool {
        self.mig.is_some()
    }

    fn memory(&self) -> &Memory {
        self.mig().map_or(&self.gpu().memory, |m| &m.memory)
    }

    /// Returns the parts of the memory in use.
    fn split(&self) -> Option<Accounting> {
        match self.mig() {
            Some(mig) => instance_split(&mig.memory),
            None => account_pools(self.gpu(), self.frame.pools.as_ref()),
        }
    }

    fn is_stale(&self) -> bool {
        self.gpu().health.state != HealthState::Answering
    }

    /// Returns the cell of a GPU, or a dash in the row of a MIG instance.
    fn gpu_only(&self, theme: &Theme, cell: impl FnOnce(&Gpu) -> Cell) -> Cell {
        if self.is_instance() { Cell::absent(theme) } else { cell(self.gpu()) }
    }
}

/// Returns `full in ~31s` if the steady growth of its processes will soon fill the GPU.
fn full_soon(app: &App, gpu: &Gpu) -> Option<String> {
    let is_on_gpu = |row: &&ProcessRow| row.gpu().is_some_and(|own| own.uuid == gpu.uuid);
    let growth = app.all_rows.iter().filter(is_on_gpu).map(ProcessRow::expected_growth).sum();
    let time = full_in(gpu.memory.free.get()?, growth)?;
    Some(format!("full in ~{}", span_text(time)))
}

fn label(row: &GpuRow, _: &Theme) -> Cell {
    match row.mig() {
        Some(mig) => {
            Cell::new(format!(":{}", mig.gpu_instance.get().unwrap_or(mig.index)), Role::Dim)
        }
        None => Cell::text(row.gpu().index.to_string()),
    }
}

fn bytes(value: Option<Bytes>, theme: &Theme) -> Cell {
    value.map_or_else(|| Cell::absent(theme), |b| Cell::text(gib(b)))
}

/// Percentage of memory in use above which the next request may fail.
const NEARLY_FULL: f64 = 95.0;
const NEARLY_FULL_NOTE: &str = "nearly full";

/// Returns a cell with the percentage of memory in use: `42`, or `!97` in the error colour.
pub fn share(memory: &Memory, theme: &Theme) -> Cell {
    let (Some(total), Some(used)) = (memory.total.get(), memory.taken()) else {
        return Cell::absent(theme);
    };
    let percent = used.0 as f64 * 100.0 / total.0.max(1) as f64;
    if is_nearly_full(memory) {
        Cell::new(format!("!{percent:.0}"), Role::Bad)
    } else {
        Cell::text(format!("{percent:.0}"))
    }
}

fn is_nearly_full(memory: &Memory) -> bool {
    let (total, used) = (memory.total.get(), memory.taken());
    total
        .zip(used)
        .is_some_and(|(total, used)| used.0 as f64 * 100.0 > total.0 as f64 * NEARLY_FULL)
}

/// Returns the cell of a GPU metric, or a dash in the row of a MIG instance, for which there are no metrics.
fn figure_cell(figure: &GpuFigure, row: &GpuRow, theme: &Theme) -> Cell {
    row.gpu_only(theme, |gpu| match figure.field.read(gpu) {
        Ok(value) if (figure.is_bad)(gpu) => Cell::new(value.cell(), Role::Bad),
        Ok(value) => Cell::text(value.cell()),
        Err(_) => Cell::absent(theme),
    })
}

fn pcie(row: &GpuRow, theme: &Theme) -> Cell {
    row.gpu_only(theme, |gpu| match (gpu.pcie.generation.get(), gpu.pcie.width.get()) {
        (Some(generation), Some(width)) => Cell::text(format!("{generation}x{width}")),
        _ => Cell::absent(theme),
    })
}

fn note(row: &GpuRow, _: &Theme) -> Cell {
    if let Some(mig) = row.mig() {
        return Cell::new(mig.profile.value().map_or("MIG", String::as_str), Role::Dim);
    }
    // Growth, such as `full in ~9s`, says more than that the GPU is nearly full.
    let is_useful = |note: &Cell| row.growth.is_none() || note.text != NEARLY_FULL_NOTE;
    let first = notes(row.gpu(), &row.frame).into_iter().find(is_useful);
    match (first, &row.growth) {
        (Some(note), _) if note.role == Role::Bad => note,
        (Some(note), Some(growth)) => Cell::new(format!("{growth}, {}", note.text), Role::Warn),
        (None, Some(growth)) => Cell::new(growth, Role::Warn),
        (first, None) => first.unwrap_or_else(|| Cell::text("")),
    }
}

/// Returns the messages about a GPU, most urgent first.
pub fn notes(gpu: &Gpu, frame: &Frame) -> Vec<Cell> {
    let mut notes = Vec::new();
    let mut add = |role, text: String| notes.push(Cell::new(text, role));
    let since = gpu.health.since.map_or(Millis(0), |since| frame.mono.since(since));
    match gpu.health.state {
        HealthState::Lost => add(Role::Bad, format!("LOST {} ago", span_text(since))),
        HealthState::Silent => add(Role::Bad, format!("no answer {}", span_text(since))),
        _ => {}
    }
    if gpu.ecc.remap_failed.get() == Some(true) {
        add(Role::Bad, "row remap failed".into());
    }
    if let Some(errors) = gpu.ecc.uncorrected.get().filter(|&n| n > 0) {
        add(Role::Bad, format!("{errors} ECC uncorrected"));
    }
    if gpu.ecc.remap_pending.get() == Some(true) {
        add(Role::Warn, "row remap pending reset".into());
    }
    for reason in gpu.throttle.value().into_iter().flatten().filter(|r| r.is_trouble()) {
        add(Role::Bad, reason.words().into());
    }
    if is_nearly_full(&gpu.memory) {
        add(Role::Warn, NEARLY_FULL_NOTE.into());
    }
    if let (Some(width), Some(max)) = (gpu.pcie.width.get(), gpu.pcie.max_width.get())
        && width < max
    {
        add(Role::Warn, format!("PCIe x{width} of x{max}"));
    }
    if let Some(why) = gpu.processes.why().filter(|why| why.reason != Reason::NotRead) {
        add(Role::Warn, format!("processes: {}", why.reason.words()));
    }
    if let Some(split) = account_pools(gpu, frame.pools.as_ref())
        .filter(|s| s.unattributed > Bytes::gib(1) && !s.processes_unknown)
    {
        add(Role::Warn, format!("{} unattributed", split.unattributed.short()));
    }
    if let Some(mode) = gpu.board.compute_mode.value().filter(|mode| *mode != "default") {
        add(Role::Dim, mode.clone());
    }
    if !gpu.mig.is_empty() {
        add(Role::Dim, format!("MIG, {} instances", gpu.mig.len()));
    }
    let is_minor = |r: &&Throttle| !r.is_trouble() && **r != Throttle::Idle;
    for reason in gpu.throttle.value().into_iter().flatten().filter(is_minor) {
        add(Role::Dim, reason.words().into());
    }
    if let Some(count) = gpu.ecc.corrected.get().filter(|&n| n > 0) {
        add(Role::Dim, format!("{count} ECC corrected"));
    }
    notes
}

/// Titles of the columns that contain graphics instead of text.
const BAR: &str = "VRAM";
const SPARK: &str = "SM 2 MIN";

/// Columns for GPU metrics, shown between the memory and notes columns.
pub static GPU_COLUMNS: LazyLock<Vec<Column<GpuRow>>> = LazyLock::new(|| {
    let mut columns = Vec::from(MEMORY_COLUMNS);
    for figure in GPU_FIGURES {
        let Some(column) = figure.column else {
            continue;
        };
        let (title, help) = (column.title, column.help);
        columns.push(Column::right(title, column.width, column.priority, empty_cell, help));
        if figure.name == "sm" {
            let help = "SM% over the last two minutes.";
            columns.push(Column::left(SPARK, 16, 8, empty_cell, help));
        }
    }
    columns.extend(STATE_COLUMNS);
    columns
});

/// Returns the empty cell of a column drawn by [`draw_gpus`].
fn empty_cell(_: &GpuRow, _: &Theme) -> Cell {
    Cell::text("")
}

const MEMORY_COLUMNS: [Column<GpuRow>; 5] = [
    Column::right("GPU", 3, 0, label, "NVML index; :N is a MIG instance."),
    Column {
        align: Align::Rest,
        ..Column::right(
            BAR,
            16,
            1,
            empty_cell,
            "Memory of the GPU in parts that add up to its total.",
        )
    },
    Column::right(
        "VRAM%",
        5,
        2,
        |row, theme| share(row.memory(), theme),
        "Share of the GPU's memory in use; ! marks more than 95 %.",
    ),
    Column::right(
        "USED",
        6,
        2,
        |row, theme| bytes(row.memory().taken(), theme),
        "Memory in use in GiB, including memory reserved by the driver.",
    ),
    Column::right(
        "FREE",
        6,
        2,
        |row, theme| bytes(row.memory().free.get(), theme),
        "Memory in GiB that the driver can still allocate. A new process (FITS) can allocate about 0.5 GiB less.",
    ),
];

const STATE_COLUMNS: [Column<GpuRow>; 2] = [
    Column::right(
        "PCIE",
        5,
        10,
        pcie,
        "Current PCIe generation and width. An idle GPU lowers the generation.",
    ),
    Column::left(
        "NOTE",
        17,
        3,
        note,
        "Most urgent message: lost, not responding, ECC errors, throttling, reduced PCIe width.",
    ),
];

/// Returns true if the memory of at least one process on the GPU can be split into pool memory and other memory.
pub fn has_pools(split: &Accounting) -> bool {
    split.allocated.0 > 0 || split.idle.0 > 0 || split.other.0 > 0
}

/// Returns the glyph and role of each memory part, in drawing order. If any bar shows pools (`pooled`), processes with
/// an unreadable allocator get their own glyph.
fn shapes(pooled: bool, theme: &Theme) -> [(&'static str, Role); 7] {
    let glyphs = &theme.glyphs;
    let processes = if pooled { glyphs.whole } else { glyphs.processes };
    [
        (glyphs.allocated, Role::Allocated),
        (glyphs.idle, Role::Idle),
        (glyphs.other, Role::OtherVram),
        (processes, Role::Processes),
        (glyphs.unattributed, Role::Unattributed),
        (glyphs.driver, Role::Driver),
        (glyphs.free, Role::Free),
    ]
}

/// Returns the sizes of the memory parts, in drawing order.
fn amounts(split: &Accounting) -> [u64; 7] {
    [
        split.allocated.0,
        split.idle.0,
        split.other.0,
        split.processes.0,
        split.unattributed.0,
        split.driver.0,
        split.free.0,
    ]
}

/// Returns the parts of a memory bar, in drawing order.
pub fn parts(split: &Accounting, pooled: bool, theme: &Theme) -> [Part<'static>; 7] {
    let amounts = amounts(split);
    let shapes = shapes(pooled, theme);
    std::array::from_fn(|i| Part {
        amount: amounts[i],
        glyph: shapes[i].0,
        style: theme.style(shapes[i].1),
    })
}

/// Splits the memory of a MIG instance into used and free only, because an instance has no process list.
fn instance_split(memory: &Memory) -> Option<Accounting> {
    let (total, free) = (memory.total.get()?, memory.free.get()?);
    Some(Accounting { total, free, processes: memory.taken()?, ..Accounting::default() })
}

/// Draws the GPU table, where `rows` are the visible rows.
pub fn draw_gpus(
    rows: &[GpuRow],
    cursor: Option<usize>,
    area: Rect,
    app: &App,
    buffer: &mut Buffer,
) {
    let theme = &app.theme;
    let view = View { cursor, ..View::default() };
    draw(
        &GPU_COLUMNS,
        rows,
        |column, row| {
            let is_column =
                |figure: &&GpuFigure| figure.column.is_some_and(|c| c.title == column.title);
            let cell = match GPU_FIGURES.iter().find(is_column) {
                Some(figure) => figure_cell(figure, row, theme),
                None => (column.cell)(row, theme),
            };
            cell.dim_if(row.is_stale())
        },
        &view,
        area,
        buffer,
        theme,
    );
    let splits: Vec<_> = rows.iter().map(GpuRow::split).collect();
    for placed in place(&GPU_COLUMNS, area.x + 1, area.width.saturating_sub(1)) {
        let title = GPU_COLUMNS[placed.column].title;
        if title == BAR {
            let heading = Rect::new(placed.x, area.y, placed.width, 1);
            legend(splits.iter().flatten(), heading, pools::any(&app.frame), buffer, theme);
        }
        for (y, (row, split)) in (area.y + 1..area.bottom()).zip(rows.iter().zip(&splits)) {
            let cell = Rect::new(placed.x, y, placed.width, 1);
            match (title, split) {
                (BAR, Some(split)) => draw_bar(row, split, cell, buffer, theme),
                (SPARK, _) if !row.is_instance() => draw_spark(row, cell, app, buffer),
                _ => {}
            }
        }
    }
}

fn draw_bar(row: &GpuRow, split: &Accounting, cell: Rect, buffer: &mut Buffer, theme: &Theme) {
    let mut parts = parts(split, pools::any(&row.frame), theme);
    if row.is_stale() {
        parts.iter_mut().for_each(|part| part.style = theme.style(Role::Dim));
    }
    bar::draw(buffer, cell.x, cell.y, cell.width, &parts);
}

fn draw_spark(row: &GpuRow, cell: Rect, app: &App, buffer: &mut Buffer) {
    let key = SeriesKey::Gpu(row.gpu().uuid.clone(), GpuMetric::Sm);
    sparkline(
        app.history.series(&key),
        TimeAxis::until(app.frame.mono, Millis(120_000)),
        100.0,
        &marks::of_gpu(app, &row.gpu().uuid),
        cell,
        buffer,
        &app.theme,
    );
}

/// Legend labels of the memory parts, and shorter ones for narrow terminals.
const LABELS: [[&str; 7]; 2] = [
    ["alloc", "idle", "other", "not readable", "unattributed", "driver", "free"],
    ["alloc", "idle", "other", "proc", "unattr", "drv", "free"],
];

/// Label of the memory of processes while no pool is known, and a shorter one.
const PROCESSES_LABELS: [&str; 2] = ["processes", "proc"];

/// Forms of the legend, from the longest to the shortest: the set of labels, the gap between them, and the parts that
/// are omitted.
const LEGENDS: [(usize, &str, &[usize]); 8] = [
    (0, " ", &[]),
    (1, " ", &[]),
    (1, " ", &[DRIVER]),
    (1, " ", &[DRIVER, UNATTRIBUTED]),
    (1, "", &[DRIVER, UNATTRIBUTED]),
    (1, " ", &[DRIVER, UNATTRIBUTED, FREE]),
    (1, "", &[DRIVER, UNATTRIBUTED, FREE]),
    (1, "", &[DRIVER, UNATTRIBUTED, OTHER, FREE]),
];
const OTHER: usize = 2;
const PROCESSES: usize = 3;
const UNATTRIBUTED: usize = 4;
const DRIVER: usize = 5;
const FREE: usize = 6;

/// Draws the legend of the memory bars `splits` in the longest form that fits. Parts without a cell in any bar of that
/// width are omitted. `pooled` is true if any bar shows pools.
pub fn legend<'a>(
    splits: impl Iterator<Item = &'a Accounting>,
    area: Rect,
    pooled: bool,
    buffer: &mut Buffer,
    theme: &Theme,
) {
    let mut is_seen = [pooled, pooled, false, !pooled, false, false, true];
    for split in splits {
        let cells = bar::divide(&amounts(split), usize::from(area.width));
        for (seen, cells) in is_seen.iter_mut().zip(cells) {
            *seen |= cells > 0;
        }
    }
    let labels = |(form, gap, omitted): (usize, &'static str, &[usize])| {
        let shown = (0..LABELS[form].len()).filter(|i| is_seen[*i] && !omitted.contains(i));
        let label = |i| match i {
            PROCESSES if !pooled => PROCESSES_LABELS[form],
            _ => LABELS[form][i],
        };
        let labels: Vec<_> = shown.map(|i| (i, label(i))).collect();
        let width = labels.iter().map(|(_, label)| label.len() + 1 + gap.len()).sum::<usize>();
        (width <= usize::from(area.width) + gap.len()).then_some((labels, gap))
    };
    let Some((labels, gap)) = LEGENDS.into_iter().find_map(labels) else {
        return;
    };
    let shapes = shapes(pooled, theme);
    let mut pieces = Vec::new();
    for (i, label) in labels {
        let (glyph, role) = shapes[i];
        pieces.push((glyph, theme.style(role)));
        pieces.push((label, theme.style(Role::Dim)));
        pieces.push((gap, theme.style(Role::Dim)));
    }
    crate::tui::widgets::cells::put_all(buffer, area.x, area.y, area.right(), &pieces);
}

/// Returns the reason why the GPU table is empty: the driver does not respond, has failed, or reports no GPU.
pub fn why_no_gpus(frame: &Frame) -> String {
    let why = frame.driver.as_ref().and_then(|driver| driver.gpus.why());
    why.map_or("No GPU data yet".into(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tui::theme::Palette;

    #[test]
    fn every_figure_with_a_column_has_its_cell() {
        let theme = Theme::new(Palette::None, false, jiff::tz::TimeZone::UTC);
        let frame = Frame { gpus: vec![Gpu::default()], ..Frame::default() };
        let rows = GpuRow::of_frame(&Arc::new(frame));
        let titles: Vec<_> = GPU_COLUMNS.iter().map(|column| column.title).collect();
        for figure in GPU_FIGURES {
            let Some(column) = figure.column else {
                continue;
            };
            assert_eq!(titles.iter().filter(|title| **title == column.title).count(), 1);
            assert_eq!(figure_cell(figure, &rows[0], &theme), Cell::absent(&theme));
        }
    }
}
