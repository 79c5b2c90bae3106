//! The overview for a pane too small for tables: one GPU in a few lines, or one cell for each GPU. Can be drawn at any
//! size.

use gputop_allocator::fits::fragmented;
use gputop_allocator::warnings::Note;
use gputop_model::gpu::Gpu;
use gputop_model::history::{GpuMetric, SeriesKey};
use gputop_model::units::Bytes;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::gpu_table::parts;
use crate::dashboard::emphasis::Emphasis;
use crate::dashboard::fleet::gpus_text;
use crate::dashboard::gpu_columns::{notes, share, why_no_gpus};
use crate::dashboard::memory_parts::{has_pools, split_of};
use crate::dashboard::pools;
use crate::dashboard::rows::ProcessRow;
use crate::dashboard::sizes::gib;
use crate::dashboard::times::span_text;
use crate::tui::app::App;
use crate::tui::chrome;
use crate::tui::theme::{Role, Theme};
use crate::tui::widgets::area::{row, split_left, split_top};
use crate::tui::widgets::bar;
use crate::tui::widgets::cells::{
    join_fitting, put, put_all, put_line, put_line_right, put_lines, put_right,
};
use crate::tui::widgets::table::mark;
use crate::tui::widgets::timeline::columns;

/// Draws a single GPU, or a grid if there are several. Shows the process under the cursor in one line.
pub fn draw(
    app: &App,
    selected: Option<&Gpu>,
    process: Option<&ProcessRow>,
    area: Rect,
    buffer: &mut Buffer,
) {
    match app.host.frame.gpus.as_slice() {
        [] => {
            put_line(buffer, area, &why_no_gpus(&app.host.frame), Role::Dim, &app.ui.theme);
        }
        [gpu] => draw_gpu(app, gpu, process, area, buffer),
        gpus => draw_grid(app, gpus, selected, process, area, buffer),
    }
}

/// Draws the most important lines that fit.
fn draw_gpu(app: &App, gpu: &Gpu, process: Option<&ProcessRow>, area: Rect, buffer: &mut Buffer) {
    let theme = &app.ui.theme;
    gauge(app, gpu, &format!("GPU{}", gpu.index), row(area, area.y), buffer);
    let mut lines = vec![
        (String::new(), Role::Text),
        (memory_text(app, gpu, false, area.width), Role::Dim),
        (String::new(), Role::Text),
    ];
    let running = || app.host.processes.rows.iter().find(|row| row.ended().is_none());
    lines.extend(match process {
        Some(row) => Some((cursor_text(row, theme), Role::Text)),
        None => running()
            .or(app.host.processes.rows.first())
            .map(|row| (process_text(row, theme), Role::Text)),
    });
    if let Some(note) = notes(gpu, &app.host.frame).into_iter().next() {
        lines.push((note.text, note.emphasis.into()));
    } else if let Some(note) = warning(app, gpu) {
        lines.push((note.text, Role::Warn));
    }
    let [_, below] = split_top(area, 1);
    put_lines(buffer, below, &lines, theme);
    if area.height > 1 {
        figures(app, gpu, row(area, area.y + 1), buffer);
    }
    if area.height > 3 {
        history(app, gpu, row(area, area.y + 3), buffer);
    }
}

/// Draws `GPU0 ####....  91%`: a bar split into parts, and the share in use.
fn gauge(app: &App, gpu: &Gpu, label: &str, area: Rect, buffer: &mut Buffer) {
    let theme = &app.ui.theme;
    let is_unresponsive = gpu.health.state.is_failure();
    let role = if is_unresponsive { Role::Bad } else { Role::Text };
    let used = put(buffer, area.x, area.y, label, area.width, theme.style(role)) + 1;
    let Some(split) = split_of(gpu, &app.host.frame) else {
        put(buffer, area.x + used, area.y, theme.glyphs.absent, area.width, theme.style(Role::Dim));
        return;
    };
    let share = share(&gpu.memory, app.host.chart_memory(gpu));
    let (right, role) = if is_unresponsive {
        (" !".into(), role)
    } else {
        (format!("{:>4}%", theme.glyphs.cell_text(&share.content)), share.emphasis.into())
    };
    let bar = area.width.saturating_sub(used + 6);
    bar::draw(
        buffer,
        area.x + used,
        area.y,
        bar,
        &parts(&split, pools::any(&app.host.frame), theme),
    );
    put_right(buffer, area.x + used, area.right(), area.y, &right, theme.style(role));
}

/// Draws the status line: `21.9 of 24.0 GiB SM 97% 388W     12:04:31`.
fn figures(app: &App, gpu: &Gpu, area: Rect, buffer: &mut Buffer) {
    let theme = &app.ui.theme;
    let absent = app.ui.theme.glyphs.absent;
    let size = |b: Option<Bytes>| b.map_or(absent.into(), gib);
    let sm = gpu.sm.get().map_or(absent.into(), |p| format!("{:.0}%", p.0));
    let watts = gpu.power.get().map_or(absent.into(), |w| format!("{}", w.0 / 1_000));
    let clock = theme.clock(app.host.frame.time, " %H:%M:%S");
    let (used, total) = (size(gpu.memory.taken()), size(app.host.chart_memory(gpu)));
    let source = if app.host.recording.is_some() { "REPLAY " } else { "" };
    let parts = [format!("{source}{used} of {total} GiB"), format!("SM {sm}"), format!("{watts}W")];
    let style = theme.style(Role::Text);
    // Show that the link is lost in place of the clock, which has stopped.
    let (right, style) = match app.host.link.as_ref().and_then(chrome::link_text) {
        Some((words, emphasis)) => (words, theme.style(emphasis.into())),
        None => (clock, style),
    };
    let end = put_right(buffer, area.x, area.right(), area.y, right.trim_end(), style);
    let text = join_fitting(&parts, end.saturating_sub(area.x));
    put(buffer, area.x, area.y, &text, area.width, theme.style(Role::Text));
}

/// Returns the most urgent warning among the GPU's pools.
fn warning(app: &App, gpu: &Gpu) -> Option<Note> {
    let on =
        app.host.processes.all_rows.iter().filter(|row| row.id().gpu.as_ref() == Some(&gpu.uuid));
    let pools = on.filter_map(ProcessRow::pool);
    pools
        .flat_map(|pool| app.host.pool_notes(pool.process, pool.ordinal))
        .min_by_key(|note| note.kind)
}

/// Describes the GPU's memory: the allocator's values if the GPU has a single process, or the parts of its total memory
/// otherwise. Begins with the largest request that fits if `with_fits`.
fn memory_text(app: &App, gpu: &Gpu, with_fits: bool, width: u16) -> String {
    let part = |name: &str, size: Bytes| format!("{name} {}", gib(size));
    let unit = "GiB".to_owned();
    if let Some(parts) = pool_parts(app, gpu) {
        let fits = with_fits.then(|| fits(app, gpu)).flatten().unwrap_or_default();
        let [allocated, cached, rest] = parts;
        return join_fitting(&[unit, fits, allocated, cached, rest], width);
    }
    match split_of(gpu, &app.host.frame) {
        Some(split) if has_pools(&split) => {
            let other = split.total.0 - split.allocated.0 - split.cached.0 - split.free.0;
            let parts = [
                unit,
                part("free", split.free),
                part("alloc", split.allocated),
                part("cached", split.cached),
                part("other", Bytes(other)),
            ];
            join_fitting(&parts, width)
        }
        Some(split) => {
            let parts = [
                unit,
                part("free", split.free),
                part("proc", split.processes),
                part("other", split.unattributed),
                part("drv", split.driver),
            ];
            join_fitting(&parts, width)
        }
        None => gpu.memory.total.why().map(ToString::to_string).unwrap_or_default(),
    }
}

/// Returns the counters of all pools on the GPU, such as `RETRY 2 OOM 1`, or an empty string.
fn trouble_text(app: &App, gpu: &Gpu) -> String {
    let on =
        app.host.processes.all_rows.iter().filter(|row| row.id().gpu.as_ref() == Some(&gpu.uuid));
    let (mut retries, mut ooms) = (0, 0);
    for stats in on.filter_map(ProcessRow::pool).map(|pool| &pool.stats) {
        retries += stats.num_alloc_retries;
        ooms += stats.num_ooms;
    }
    match (retries, ooms) {
        (0, 0) => String::new(),
        (retries, 0) => format!(" RETRY {retries}"),
        (retries, ooms) => format!(" RETRY {retries} OOM {ooms}"),
    }
}

/// Returns the GPU's only running process.
fn only_process<'a>(app: &'a App, gpu: &Gpu) -> Option<&'a ProcessRow> {
    let mut on = app
        .host
        .processes
        .all_rows
        .iter()
        .filter(|row| row.ended().is_none() && row.id().gpu.as_ref() == Some(&gpu.uuid));
    on.next().filter(|_| on.next().is_none())
}

/// Returns `FITS 3.0` if the GPU's only process has a known pool.
fn fits(app: &App, gpu: &Gpu) -> Option<String> {
    let row = only_process(app, gpu).filter(|row| row.pool().is_some())?;
    let fits = row.fits_text().unwrap_or_else(|| app.ui.theme.glyphs.absent.into());
    Some(format!("FITS {fits}"))
}

/// Returns `alloc 14.1`, `cached 6.8` and `frag 5.9` if the GPU's only process has a known pool, or `alloc 14.1`, `cached
/// 6.8` and `JAX` if its framework reports only these values.
fn pool_parts(app: &App, gpu: &Gpu) -> Option<[String; 3]> {
    let row = only_process(app, gpu)?;
    let size = |size: Option<Bytes>| size.map_or(app.ui.theme.glyphs.absent.into(), gib);
    let framework = || Some(row.reported_pools().next()?.framework.words());
    let rest = match row.pool() {
        Some(pool) => format!("frag {}", size(fragmented(&pool.stats))),
        None => framework()?.to_owned(),
    };
    let (allocated, cached) = (size(row.allocated()), size(row.cached()));
    Some([format!("alloc {allocated}"), format!("cached {cached}"), rest])
}

/// Describes a process: `train.py 418  3h12  peak 20.1 GiB`. The size is the peak memory in live tensors, or the VRAM
/// in use if the peak is unknown.
fn process_text(row: &ProcessRow, theme: &Theme) -> String {
    let name = row.program();
    let age = row.shown_age().map_or(String::new(), |age| format!("  {}", span_text(age)));
    let exited = row.ended().map_or(String::new(), |e| {
        let when = theme.clock(e.time, "%H:%M");
        match e.cause() {
            Some(cause) => format!("{when} {cause} "),
            None => format!("exited {when} "),
        }
    });
    let peak = row.pool().map(|pool| pool.stats.allocated_peak);
    let memory = match (peak.filter(|peak| peak.0 > 0), row.vram().get()) {
        (Some(peak), _) => format!("  peak {} GiB", gib(peak)),
        (None, Some(vram)) => format!("  {} GiB", gib(vram)),
        (None, None) => String::new(),
    };
    format!("{exited}{name} {}{age}{memory}", row.pid())
}

/// Describes the process under the cursor, with the mark of the cursor.
fn cursor_text(row: &ProcessRow, theme: &Theme) -> String {
    format!("{}{}", theme.glyphs.cursor, process_text(row, theme))
}

/// Draws `FITS 3.0 GiB  10 min ..::|||  RETRY 2`: the largest request that fits, a chart of the memory in use, and the
/// counters of the pools.
fn history(app: &App, gpu: &Gpu, area: Rect, buffer: &mut Buffer) {
    let axis = app.host.time_axis(None);
    let text = app.ui.theme.style(Role::Text);
    let fits = fits(app, gpu).map_or(String::new(), |fits| format!("{fits} GiB  "));
    let fits = put(buffer, area.x, area.y, &fits, area.width, text);
    let [_, area] = split_left(area, fits);
    let (label, role) = match axis.past {
        Some(_) => (format!("{} ", axis.clock_text(&app.ui.theme)), Role::Warn),
        None => (format!("{} ", span_text(axis.length)), Role::Dim),
    };
    let used = put(buffer, area.x, area.y, &label, area.width, app.ui.theme.style(role));
    let words = trouble_text(app, gpu);
    let warn = app.ui.theme.style(Role::Warn);
    let right = put_right(buffer, area.x + used, area.right(), area.y, &words, warn);
    let plot = Rect { x: area.x + used, width: right.saturating_sub(area.x + used), ..area };
    let key = SeriesKey::Gpu(gpu.uuid.clone(), GpuMetric::Used);
    let (Some(series), Some(total)) = (app.host.history.series(&key), gpu.memory.total.get())
    else {
        return;
    };
    let levels = series.levels(axis.end, axis.length, usize::from(plot.width));
    columns(&levels, total.0 as f32, Role::Chart, plot, buffer, &app.ui.theme);
}

/// Draws a headline, a grid with one cell per GPU in as many columns as fit, and the most urgent message.
fn draw_grid(
    app: &App,
    gpus: &[Gpu],
    selected: Option<&Gpu>,
    process: Option<&ProcessRow>,
    area: Rect,
    buffer: &mut Buffer,
) {
    let [_, body] = split_top(area, headline(app, area, buffer));
    if body.height == 0 {
        return;
    }
    let rows = usize::from(body.height.saturating_sub(u16::from(body.height > 2)).max(1));
    let across = gpus.len().div_ceil(rows).clamp(1, usize::from((body.width / 12).max(1)));
    let width = body.width / u16::try_from(across).unwrap_or(1);
    let at = |n: usize| u16::try_from(n).unwrap_or(0);
    let digits = if gpus.len() > 10 { 2 } else { 1 };
    for (i, gpu) in gpus.iter().take(rows * across).enumerate() {
        let cell = Rect {
            x: body.x + at(i % across) * width,
            y: body.y + at(i / across),
            width: width.saturating_sub(1),
            height: 1,
        };
        // The mark of the cursor needs a column of its own.
        let label = format!(" {:>digits$}", gpu.index);
        gauge(app, gpu, &label, cell, buffer);
        if selected.is_some_and(|selected| selected.uuid == gpu.uuid) {
            mark(cell, cell.y, buffer, &app.ui.theme);
        }
    }
    let last = row(body, body.bottom() - 1);
    match process {
        _ if body.height <= 2 => {}
        Some(row) => {
            put_line(buffer, last, &cursor_text(row, &app.ui.theme), Role::Text, &app.ui.theme);
        }
        None => draw_message(app, gpus, selected, last, buffer),
    }
}

/// Draws a line with host and time, unless the window is large enough for a header above. Returns its height.
fn headline(app: &App, area: Rect, buffer: &mut Buffer) -> u16 {
    if area.height < 2 || area.y > 0 {
        return 0;
    }
    let theme = &app.ui.theme;
    let link = app.host.link.as_ref().and_then(chrome::link_text);
    let (source, role) = match (&app.host.recording, &link) {
        (Some(recording), _) if recording.position.paused => (" REPLAY paused", Role::Banner),
        (Some(_), _) => (" REPLAY ", Role::Banner),
        (None, Some((words, emphasis))) => (words.trim(), (*emphasis).into()),
        (None, None) if app.host.paused => ("paused", Role::Warn),
        (None, None) if app.host.hello.reduced => ("nvidia-smi", Role::Warn),
        (None, None) => ("live", Role::Good),
    };
    let clock = app.ui.theme.clock(app.host.frame.time, " %H:%M:%S");
    let left = put_line_right(buffer, area, &clock, Role::Text, theme);
    let left = put_right(buffer, area.x, left, area.y, source, theme.style(role));
    let gpus = gpus_text(&app.host.frame);
    let job = chrome::job_text(&app.host.frame).unwrap_or_default();
    let pieces = [
        (gpus.as_str(), theme.style(Role::Title)),
        (" ", theme.style(Role::Dim)),
        (job.as_str(), theme.style(Role::Dim)),
    ];
    put_all(buffer, area.x, area.y, left.saturating_sub(1), &pieces);
    1
}

/// Draws the most urgent message in the line below the grid.
fn draw_message(app: &App, gpus: &[Gpu], selected: Option<&Gpu>, area: Rect, buffer: &mut Buffer) {
    let theme = &app.ui.theme;
    let reason = app.host.recording.as_ref().and_then(|r| r.reason.clone());
    let (text, role) = reason
        .map(|reason| (reason, Role::Warn))
        .or_else(|| trouble(app, gpus))
        .or_else(|| {
            (!app.host.processes.filter.is_empty()).then(|| (chrome::filter_text(app), Role::Warn))
        })
        .unwrap_or_else(|| {
            let gpu = selected.or(gpus.first());
            let words = |gpu: &Gpu| {
                let index = format!("GPU{} ", gpu.index);
                let width = area.width.saturating_sub(u16::try_from(index.len()).unwrap_or(0));
                index + &memory_text(app, gpu, true, width)
            };
            (gpu.map(words).unwrap_or_default(), Role::Dim)
        });
    put_line(buffer, area, &text, role, theme);
}

/// Returns the most urgent message of all GPUs: unresponsive GPUs first, then errors, other warnings, and pool
/// warnings.
fn trouble(app: &App, gpus: &[Gpu]) -> Option<(String, Role)> {
    let rank = |gpu: &Gpu, emphasis: Emphasis| match (gpu.health.state.is_failure(), emphasis) {
        (true, _) => Some(0),
        (_, Emphasis::Bad) => Some(1),
        (_, Emphasis::Warn) => Some(2),
        _ => None,
    };
    let worst = gpus.iter().filter_map(|gpu| {
        let note = notes(gpu, &app.host.frame).into_iter().next()?;
        Some((rank(gpu, note.emphasis)?, gpu.index, note))
    });
    let worst = worst.min_by_key(|(rank, index, _)| (*rank, *index));
    if let Some((_, index, note)) = worst {
        return Some((format!("GPU {index} {}", note.text), note.emphasis.into()));
    }
    let warned = gpus.iter().filter_map(|gpu| Some((gpu.index, warning(app, gpu)?)));
    let (index, note) = warned.min_by_key(|(_, note)| note.kind)?;
    Some((format!("GPU {index} {}", note.text), Role::Warn))
}
