//! The screen of a process whose allocator cannot be shown: the title and the reason.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::super::Screen;
use super::MemoryScreen;
use super::stack::stack_lines;
use super::title::process_name;
use crate::model::reported_pool::ReportedPool;
use crate::model::units::{Bytes, GpuUuid};
use crate::tui::app::App;
use crate::tui::marks;
use crate::tui::pools;
use crate::tui::rows::ProcessRow;
use crate::tui::theme::Role;
use crate::tui::widgets::cells::{put, put_lines, wrap_words};
use crate::tui::widgets::pool_chart::PoolChart;

/// Draws the title and the reason. For an exited process, it also draws its pool over time and returns the area of that
/// chart.
pub(super) fn draw(
    screen: &MemoryScreen,
    app: &App,
    area: Rect,
    buffer: &mut Buffer,
) -> Option<Rect> {
    let theme = &app.theme;
    let row = screen.row(app);
    let name = row.map_or("process".into(), process_name);
    let title = format!("{name} {}", screen.process.pid);
    let x = area.x + 1;
    let width = area.width.saturating_sub(2);
    put(buffer, x, area.y, &title, width, theme.style(Role::Title));
    let why = match row {
        Some(row) if row.ended().is_some() => "the process has exited".to_owned(),
        None => "the process no longer uses the GPU".to_owned(),
        Some(_) => pools::why_no_pool(&app.frame, screen.process).to_string(),
    };
    let reported = row.into_iter().flat_map(ProcessRow::reported_pools);
    let mut lines: Vec<String> = reported.map(reported_words).collect();
    if lines.is_empty() {
        lines.push(format!("Allocator not available: {why}"));
    } else {
        lines.push("Reported by the program once per second; its blocks are not known".into());
    }
    if let Some(vram) = row.and_then(|row| row.vram().get()) {
        lines.push(format!("VRAM reported by the driver: {vram}"));
    }
    let lines = lines
        .iter()
        .flat_map(|line| wrap_words(line, usize::from(width.max(10))));
    let mut y = area.y + 1;
    for line in lines.take(usize::from(area.height.saturating_sub(1))) {
        put(buffer, x, y, &line, width, theme.style(Role::Warn));
        y += 1;
    }
    let chart = exited_chart(
        screen,
        app,
        Rect {
            x,
            y,
            width,
            ..area
        },
        area.bottom(),
    );
    if let Some((chart, place)) = &chart {
        chart.draw(*place, buffer, theme);
        y = place.bottom();
    }
    let stack = stack_lines(app, screen.process, width, 3);
    let rest = Rect {
        x,
        y: y.min(area.bottom()),
        width,
        height: area.bottom().saturating_sub(y),
    };
    put_lines(buffer, rest, &stack, theme);
    chart.map(|(_, place)| place)
}

/// Returns `JAX, XLA BFC, device 0: allocated 1.2 GiB, reserved 3.0 GiB, idle 1.8 GiB`, with the figures that are
/// reported.
fn reported_words(pool: &ReportedPool) -> String {
    let figures = [
        ("allocated", pool.allocated.get()),
        ("reserved", pool.reserved.get()),
        ("idle", pool.idle().get()),
        ("limit", pool.limit.get()),
        ("largest free block", pool.largest_free_block.get()),
    ];
    let known = figures
        .into_iter()
        .filter_map(|(name, size)| Some(format!("{name} {}", size?)));
    let known: Vec<String> = known.collect();
    let words = match pool.allocated.why() {
        Some(why) if known.is_empty() => why.to_string(),
        _ => known.join(", "),
    };
    format!("{}, device {}: {words}", pool.name(), pool.ordinal)
}

/// Returns the pool chart of an exited process and its area, if there is room below `top.y`.
fn exited_chart<'a>(
    screen: &MemoryScreen,
    app: &'a App,
    top: Rect,
    bottom: u16,
) -> Option<(PoolChart<'a>, Rect)> {
    let ended = screen.exited_at(app)?;
    let ordinal = app.history.pools_of(screen.process).into_iter().next()?;
    let height = bottom.saturating_sub(top.y + 1).min(14);
    let place = Rect {
        y: top.y + 1,
        height,
        ..top
    };
    let total = |uuid: &GpuUuid| {
        let gpu = app.frame.gpus.iter().find(|gpu| gpu.uuid == *uuid)?;
        gpu.memory.total.get()
    };
    let exit = &screen.row(app)?.ended()?.exit;
    let chart = PoolChart {
        history: &app.history,
        process: screen.process,
        ordinal,
        axis: app.time_axis(Some(ended)),
        marks: marks::of_process(app, screen.process, Some(ended)),
        top: exit.gpus.iter().find_map(total).unwrap_or(Bytes::gib(1)),
    };
    (height >= 4).then_some((chart, place))
}
