//! Helpers that fit text into a fixed number of terminal columns.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use crate::export::glyphs::ASCII;
use crate::export::text_width::{columns, fit};
use crate::tui::theme::{Role, Theme};
use crate::tui::widgets::area::row;

/// Joins the parts of a line that fit into `width` columns. The most important part comes first.
pub fn join_fitting(parts: &[String], width: u16) -> String {
    let mut line = String::new();
    for part in parts.iter().filter(|part| !part.is_empty()) {
        let gap = usize::from(!line.is_empty());
        if columns(&line) + gap + columns(part) > usize::from(width) {
            break;
        }
        line.push_str(&" "[..gap]);
        line.push_str(part);
    }
    line
}

/// Wraps text at word boundaries. A number and its unit stay together. Text that fits keeps its spaces.
pub fn wrap_words(text: &str, width: usize) -> Vec<String> {
    if columns(text) <= width {
        return vec![text.to_owned()];
    }
    let is_unit =
        |word: &&str| ["%", "GiB", "MiB"].contains(&word.trim_end_matches(['.', ',', ';', ':']));
    let mut lines = vec![String::new()];
    let mut words = text.split(' ').peekable();
    while let Some(word) = words.next() {
        let unit = words.peek().filter(|next| is_unit(next)).map_or(0, |unit| 1 + unit.len());
        let last = lines.len() - 1;
        let used = lines[last].chars().count() + 1 + word.chars().count() + unit;
        if !lines[last].is_empty() && used > width {
            lines.push(word.to_owned());
        } else {
            if !lines[last].is_empty() {
                lines[last].push(' ');
            }
            lines[last].push_str(word);
        }
    }
    lines
}

/// Writes `text`, clipped to `width` columns and to the buffer. Returns the number of columns used.
pub fn put(buffer: &mut Buffer, x: u16, y: u16, text: &str, width: u16, style: Style) -> u16 {
    let area = buffer.area;
    if y < area.top() || y >= area.bottom() || x < area.left() || x >= area.right() || width == 0 {
        return 0;
    }
    let width = width.min(area.right() - x);
    if text.is_ascii() {
        return put_ascii(buffer, x, y, text, width, style);
    }
    let (end, _) = buffer.set_stringn(x, y, text, usize::from(width), style);
    end - x
}

/// Writes ASCII text. This is a fast path for most of the screen, because ASCII needs no search for grapheme
/// boundaries.
fn put_ascii(buffer: &mut Buffer, x: u16, y: u16, text: &str, width: u16, style: Style) -> u16 {
    let mut at = x;
    for letter in text.chars().filter(|c| !c.is_ascii_control()).take(usize::from(width)) {
        buffer[(at, y)].set_char(letter).set_style(style);
        at += 1;
    }
    at - x
}

/// Sets one cell if it is inside the buffer.
pub fn put_glyph(buffer: &mut Buffer, x: u16, y: u16, glyph: &str, style: Style) {
    if let Some(cell) = buffer.cell_mut((x, y)) {
        cell.set_symbol(glyph).set_style(style);
    }
}

/// Writes a line into the first row of `area`. A truncated line ends with an ellipsis.
pub fn put_line(buffer: &mut Buffer, area: Rect, text: &str, role: Role, theme: &Theme) {
    let text = fit(text, usize::from(area.width), theme.glyphs.ellipsis);
    put(buffer, area.x, area.y, &text, area.width, theme.style(role));
}

/// Writes as many lines as fit into the area, one below the other.
pub fn put_lines<'l>(
    buffer: &mut Buffer,
    area: Rect,
    lines: impl IntoIterator<Item = &'l (String, Role)>,
    theme: &Theme,
) {
    for (y, (text, role)) in (area.y..area.bottom()).zip(lines) {
        put_line(buffer, row(area, y), text, *role, theme);
    }
}

/// Writes several strings side by side. Returns the first column after the last string.
pub fn put_all(buffer: &mut Buffer, x: u16, y: u16, right: u16, pieces: &[(&str, Style)]) -> u16 {
    let mut at = x;
    for (text, style) in pieces {
        at += put(buffer, at, y, text, right.saturating_sub(at), *style);
    }
    at
}

/// Writes parts with two columns between them, up to the first part that does not fit. The first part is cut.
pub fn put_fitting<'p>(
    buffer: &mut Buffer,
    area: Rect,
    parts: impl IntoIterator<Item = (&'p str, Role)>,
    theme: &Theme,
) {
    let mut at = area.x;
    for (text, role) in parts {
        let left = usize::from(area.right().saturating_sub(at));
        if at > area.x && columns(text) > left {
            break;
        }
        let text = fit(text, left, theme.glyphs.ellipsis);
        at += put(buffer, at, area.y, &text, area.width, theme.style(role)) + 2;
    }
}

/// Writes text that ends at `right`. Returns the text's first column.
pub fn put_right(
    buffer: &mut Buffer,
    left: u16,
    right: u16,
    y: u16,
    text: &str,
    style: Style,
) -> u16 {
    let width = u16::try_from(columns(text)).unwrap_or(u16::MAX).min(right.saturating_sub(left));
    put(buffer, right - width, y, text, width, style);
    right - width
}

/// Writes a line that ends at the right edge of `area`. Returns the line's first column.
pub fn put_line_right(
    buffer: &mut Buffer,
    area: Rect,
    text: &str,
    role: Role,
    theme: &Theme,
) -> u16 {
    put_right(buffer, area.x, area.right(), area.y, text, theme.style(role))
}

/// Replaces non-ASCII characters if the theme is ASCII-only. gputop itself then draws only ASCII, but text from other
/// programs may contain other characters.
pub fn replace_non_ascii(buffer: &mut Buffer, theme: &Theme) {
    if theme.glyphs != ASCII {
        return;
    }
    for cell in &mut buffer.content {
        match cell.symbol() {
            symbol if symbol.is_ascii() => {}
            // The collector marks truncated text with an ellipsis, which has an ASCII replacement.
            "…" => drop(cell.set_symbol(ASCII.ellipsis)),
            "–" => drop(cell.set_symbol(ASCII.absent)),
            _ => drop(cell.set_symbol("?")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joins_only_whole_parts() {
        let parts = ["FITS 103.3", "alloc 30.3", "", "cached 28.4"].map(str::to_owned);
        assert_eq!(join_fitting(&parts, 40), "FITS 103.3 alloc 30.3 cached 28.4");
        assert_eq!(join_fitting(&parts, 30), "FITS 103.3 alloc 30.3");
        assert_eq!(join_fitting(&parts, 5), "");
    }
}
