//! A centred box with a title, drawn over a screen.

use ratatui::buffer::Buffer;
use ratatui::layout::{Margin, Rect};
use ratatui::text::Line;
use ratatui::widgets::{Block, Borders, Clear, Widget};

use crate::tui::theme::{Role, Theme};

/// Returns a centred box limited to the available area, and the interior of the box.
pub fn panel_area(width: u16, height: u16, area: Rect) -> (Rect, Rect) {
    let (width, height) = (width.min(area.width), height.min(area.height));
    let rect = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    if width < 4 || height < 3 {
        return (rect, rect);
    }
    (rect, rect.inner(Margin::new(1, 1)))
}

/// Clears a centred box, draws its border, and returns its interior.
pub fn panel(
    title: &str,
    width: u16,
    height: u16,
    area: Rect,
    theme: &Theme,
    buffer: &mut Buffer,
) -> Rect {
    let (rect, inner) = panel_area(width, height, area);
    Clear.render(rect, buffer);
    if inner == rect {
        return rect;
    }
    // A box that spans the full width needs no borders on its left and right.
    let borders =
        if rect.width < area.width { Borders::ALL } else { Borders::TOP | Borders::BOTTOM };
    let title = Line::styled(format!(" {title} "), theme.style(Role::Title));
    let block = Block::new().borders(borders).border_set(theme.border());
    block.border_style(theme.style(Role::Dim)).title(title).render(rect, buffer);
    inner
}
