//! The screen of a process whose allocator cannot be shown: the title, and why.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::MemoryScreen;
use super::stack::stack_lines;
use super::title::process_name;
use crate::tui::app::App;
use crate::tui::pools;
use crate::tui::theme::Role;
use crate::tui::widgets::cells::{put, put_lines, wrap_words};

/// The title, and why there is nothing below it.
pub(super) fn draw(screen: &MemoryScreen, app: &App, area: Rect, buffer: &mut Buffer) {
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
        Some(_) => pools::why_none(&app.frame, screen.process).to_string(),
    };
    let mut lines = vec![format!("its allocator cannot be shown: {why}")];
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
    let stack = stack_lines(app, screen.process, width, 3);
    let rest = Rect {
        x,
        y: y.min(area.bottom()),
        width,
        height: area.bottom().saturating_sub(y),
    };
    put_lines(buffer, rest, &stack, theme);
}
