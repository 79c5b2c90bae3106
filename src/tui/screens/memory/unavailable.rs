//! The memory screen of a process without a readable allocator: the title, the reason, and charts of what is known.

use gputop_model::reported_pool::{PoolSource, ReportedPool, other_allocator};
use gputop_model::units::{Bytes, GpuUuid};
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Margin, Rect};

use super::state::MemoryScreen;
use super::text::stack_lines;
use crate::dashboard::pools;
use crate::dashboard::rows::ProcessRow;
use crate::tui::app::App;
use crate::tui::marks;
use crate::tui::screen::Screen;
use crate::tui::screens::process::timelines;
use crate::tui::theme::Role;
use crate::tui::widgets::cells::{put_line, put_lines, wrap_words};
use crate::tui::widgets::plot::plot;
use crate::tui::widgets::pool_chart::PoolChart;

/// Returns the lines below the title: the pools of JAX, TensorFlow or CuPy, or the reason why no data is available.
fn lines(screen: &MemoryScreen, app: &App, width: u16) -> Vec<(String, Role)> {
    let row = screen.row(app);
    let why = match row {
        Some(row) if row.ended().is_some() => "the process has exited".to_owned(),
        None => "the process no longer uses the GPU".to_owned(),
        Some(_) => pools::why_no_pool(&app.host.frame, screen.process).to_string(),
    };
    let reported: Vec<&ReportedPool> =
        row.into_iter().flat_map(ProcessRow::reported_pools).collect();
    let mut lines: Vec<String> = reported.iter().map(|pool| reported_text(pool)).collect();
    if lines.is_empty() {
        lines.push(format!("Allocator not available: {why}"));
    } else if reported.iter().any(|pool| pool.source == PoolSource::Hook) {
        lines.push(
            "The program reports this memory once per second; individual blocks are unknown".into(),
        );
    } else {
        lines.push("gputop reads this memory once per second".into());
    }
    let conf = row.and_then(|row| row.facts()?.pool_conf.as_deref());
    if let Some(conf) = conf.filter(|_| reported.is_empty()) {
        let why = other_allocator(conf);
        lines.push(why.unwrap_or_else(|| format!("Set in this process: {conf}")));
    }
    lines.extend(reported.iter().filter_map(|pool| pool.preallocation(conf)));
    lines.extend(pinned(screen, app));
    if let Some(vram) = row.and_then(|row| row.vram().get()) {
        lines.push(format!("VRAM reported by the driver: {vram}"));
    }
    let lines = lines.iter().flat_map(|line| wrap_words(line, usize::from(width.max(10))));
    lines.map(|line| (line, Role::Warn)).collect()
}

/// Returns a line about the pinned host memory of the process, which is not part of its GPU memory.
fn pinned(screen: &MemoryScreen, app: &App) -> Option<String> {
    let sum = pools::pinned_host(&app.host.frame, screen.process)?;
    Some(format!("Pinned memory of the host for copies: {sum}, not part of GPU memory"))
}

/// Returns the areas of the title, the lines, the charts, and the stack.
fn areas(screen: &MemoryScreen, app: &App, area: Rect) -> [Rect; 4] {
    let inner = area.inner(Margin::new(1, 0));
    let lines = u16::try_from(lines(screen, app, inner.width).len()).unwrap_or(u16::MAX);
    let left = inner.height.saturating_sub(1).saturating_sub(lines);
    let chart = Some(left.saturating_sub(1).min(14)).filter(|height| *height >= 4).unwrap_or(0);
    let [title, lines, _, chart, stack] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(lines),
        Constraint::Length(u16::from(chart > 0)),
        Constraint::Length(chart),
        Constraint::Fill(1),
    ])
    .areas(inner);
    [title, lines, chart, stack]
}

/// Returns the areas over the time axes of the charts.
pub(super) fn plots(screen: &MemoryScreen, app: &App, area: Rect) -> Vec<Rect> {
    let [_, _, area, _] = areas(screen, app, area);
    match chart(screen, app) {
        _ if area.is_empty() => Vec::new(),
        Some(_) => plot(area).into_iter().collect(),
        None => timelines(app, screen.process).plots(area),
    }
}

pub(super) fn draw(screen: &MemoryScreen, app: &App, area: Rect, buffer: &mut Buffer) {
    let theme = &app.ui.theme;
    let name = screen.row(app).map_or("process".into(), ProcessRow::program);
    let [title, below, charts, rest] = areas(screen, app, area);
    let words = format!("{name} {}", screen.process.pid);
    put_line(buffer, title, &words, Role::Title, theme);
    put_lines(buffer, below, &lines(screen, app, below.width), theme);
    match chart(screen, app) {
        _ if charts.is_empty() => {}
        Some(chart) => chart.draw(charts, buffer, theme),
        None => timelines(app, screen.process).draw(charts, buffer, theme),
    }
    let stack = stack_lines(app, screen.process, rest.width, 3);
    put_lines(buffer, rest, &stack, theme);
}

/// Formats the reported values: `JAX, XLA BFC, device 0: allocated 1.2 GiB, reserved 3.0 GiB, cached 1.8 GiB`. Missing
/// values are omitted.
fn reported_text(pool: &ReportedPool) -> String {
    let figures = [
        ("allocated", pool.allocated.get()),
        ("reserved", pool.reserved.get()),
        ("cached", pool.cached().get()),
        ("limit", pool.limit.get()),
        ("largest free block", pool.largest_free_block.get()),
    ];
    let known = figures.into_iter().filter_map(|(name, size)| Some(format!("{name} {}", size?)));
    let known: Vec<String> = known.collect();
    let words = match pool.allocated.why() {
        Some(why) if known.is_empty() => why.to_string(),
        _ => known.join(", "),
    };
    format!("{}, device {}: {words}", pool.name(), pool.ordinal)
}

/// Returns the pool chart of an exited process whose pool was read.
fn chart<'a>(screen: &MemoryScreen, app: &'a App) -> Option<PoolChart<'a>> {
    let ended = screen.exited_at(app)?;
    let ordinal = app.host.history.pools_of(screen.process).into_iter().next()?;
    let total = |uuid: &GpuUuid| {
        app.host.frame.gpus.iter().find(|gpu| gpu.uuid == *uuid)?.memory.total.get()
    };
    let exit = &screen.row(app)?.ended()?.exit;
    Some(PoolChart {
        history: &app.host.history,
        process: screen.process,
        ordinal,
        axis: app.host.time_axis(Some(ended)),
        marks: marks::of_process(app, screen.process, Some(ended)),
        top: exit.gpus.iter().find_map(total).unwrap_or(Bytes::gib(1)),
    })
}
