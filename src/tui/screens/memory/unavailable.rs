//! The screen of a process whose allocator cannot be shown: the title, and why.

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

/// The title, and why there is nothing below it. Of one that has ended, its pool over time: returns where.
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
        Some(row) if row.ended().is_some() => "the process has ended".to_owned(),
        None => "the process has left the GPU".to_owned(),
        Some(_) => pools::why_no_pool(&app.frame, screen.process).to_string(),
    };
    let told = row.into_iter().flat_map(ProcessRow::reported_pools);
    let mut lines: Vec<String> = told.map(told_words).collect();
    if lines.is_empty() {
        lines.push(format!("its allocator cannot be shown: {why}"));
    } else {
        lines.push("told by the program itself each second: of its blocks nothing is known".into());
    }
    if let Some(vram) = row.and_then(|row| row.vram().get()) {
        lines.push(format!("the driver counts {vram} for it"));
    }
    let lines = lines
        .iter()
        .flat_map(|line| wrap_words(line, usize::from(width.max(10))));
    let mut y = area.y + 1;
    for line in lines.take(usize::from(area.height.saturating_sub(1))) {
        put(buffer, x, y, &line, width, theme.style(Role::Warn));
        y += 1;
    }
    let chart = past(
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

/// `JAX, XLA BFC, device 0: allocated 1.2 GiB, reserved 3.0 GiB, idle 1.8 GiB`, as far as it is told.
fn told_words(told: &ReportedPool) -> String {
    let figures = [
        ("allocated", told.allocated.get()),
        ("reserved", told.reserved.get()),
        ("idle", told.idle().get()),
        ("at most", told.limit.get()),
        ("largest free block", told.largest_free_block.get()),
    ];
    let known = figures
        .into_iter()
        .filter_map(|(name, size)| Some(format!("{name} {}", size?)));
    let known: Vec<String> = known.collect();
    let words = match told.allocated.why() {
        Some(why) if known.is_empty() => why.to_string(),
        _ => known.join(", "),
    };
    format!("{}, device {}: {words}", told.name(), told.ordinal)
}

/// What the pool of a process that ended was, and where there is room for it from `top.y` on.
fn past<'a>(
    screen: &MemoryScreen,
    app: &'a App,
    top: Rect,
    bottom: u16,
) -> Option<(PoolChart<'a>, Rect)> {
    let ended = screen.ended(app)?;
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
