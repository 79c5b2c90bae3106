//! A list of named values with their sources. If a value is missing, the reason is shown instead.

use gputop_model::reading::Reading;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

use super::area::{split_left, split_right};
use super::cells::{put_line, put_line_right, wrap_words};
use crate::tui::theme::{Role, Theme};

/// A line in a list of facts.
#[derive(Debug, Clone, PartialEq)]
pub enum Fact {
    Heading(String),
    /// A fact: name, text (wrapped between words), role of the text, and source (`NVML 10 s`).
    Value(&'static str, String, Role, &'static str),
    /// Long text, such as a command line, wrapped at any character. Without a name, it is as wide as the list.
    Long(&'static str, String),
    /// A paragraph as wide as the list, wrapped between words.
    Text(String, Role),
    Blank,
}

impl Fact {
    pub fn reading<T>(
        name: &'static str,
        reading: &Reading<T>,
        source: &'static str,
        theme: &Theme,
        text: impl FnOnce(&T) -> String,
    ) -> Self {
        match reading {
            Reading::Value(value) => Self::Value(name, text(value), Role::Text, source),
            Reading::Missing(why) => {
                Self::Value(name, format!("{} {why}", theme.glyphs.absent), Role::Dim, source)
            }
        }
    }
}

const NAME_WIDTH: u16 = 22;

/// Returns the width of the names in lines of this width.
fn name_width(width: u16) -> u16 {
    NAME_WIDTH.min(width * 9 / 20)
}

/// Returns the lines of `facts` for a width. Text that does not fit is wrapped.
pub fn lines(facts: &[Fact], width: u16) -> Vec<Fact> {
    let room = usize::from(width - name_width(width)).max(10);
    let width = usize::from(width).max(10);
    let mut lines = Vec::new();
    for fact in facts {
        let (name, wrapped, role, source) = match fact {
            Fact::Long("", text) => {
                lines
                    .extend(wrap(text, width).into_iter().map(|line| Fact::Text(line, Role::Text)));
                continue;
            }
            Fact::Text(text, role) => {
                lines.extend(
                    wrap_words(text, width).into_iter().map(|line| Fact::Text(line, *role)),
                );
                continue;
            }
            Fact::Long(name, text) => (*name, wrap(text, room), Role::Text, ""),
            Fact::Value(name, text, role, source) => {
                (*name, wrap_words(text, room), *role, *source)
            }
            Fact::Heading(_) | Fact::Blank => {
                lines.push(fact.clone());
                continue;
            }
        };
        let firsts = std::iter::once((name, source)).chain(std::iter::repeat(("", "")));
        let wrapped = firsts.zip(wrapped);
        lines.extend(wrapped.map(|((name, source), line)| Fact::Value(name, line, role, source)));
    }
    lines
}

/// Wraps text at the last column. Users copy this text, so wrapping must not add or remove spaces.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut used = 0;
    for grapheme in text.graphemes(true) {
        let more = grapheme.width();
        if used + more > width {
            lines.push(String::new());
            used = 0;
        }
        if let Some(line) = lines.last_mut() {
            line.push_str(grapheme);
        }
        used += more;
    }
    lines
}

/// Draws lines starting at `offset`, in as many columns of at least `min_width` as fit. Shows the source of each value
/// on request.
pub fn draw(
    lines: &[Fact],
    offset: usize,
    area: Rect,
    min_width: u16,
    (theme, shows_sources): (&Theme, bool),
    buffer: &mut Buffer,
) {
    let (columns, width) = columns_of(area.width, min_width);
    let height = usize::from(area.height);
    for (i, line) in lines.iter().skip(offset).take(height * usize::from(columns)).enumerate() {
        let column = u16::try_from(i / height.max(1)).unwrap_or(0);
        let row = u16::try_from(i % height.max(1)).unwrap_or(0);
        let x = area.x + column * (area.width / columns);
        draw_line(line, Rect::new(x, area.y + row, width, 1), shows_sources, buffer, theme);
    }
}

/// Returns the number of columns of at least `min_width` that fit, and the width of a line in one of them.
fn columns_of(width: u16, min_width: u16) -> (u16, u16) {
    let columns = (width / min_width.max(1)).max(1);
    (columns, (width / columns).saturating_sub(2 * u16::from(columns > 1)))
}

/// Returns the width of a fact if the area is divided into as many columns of at least `min_width` as fit.
pub fn line_width(area: Rect, min_width: u16) -> u16 {
    columns_of(area.width, min_width).1
}

/// Returns the number of lines that fit.
pub fn capacity(area: Rect, min_width: u16) -> usize {
    usize::from((area.width / min_width.max(1)).max(1)) * usize::from(area.height)
}

fn draw_line(line: &Fact, row: Rect, shows_sources: bool, buffer: &mut Buffer, theme: &Theme) {
    match line {
        Fact::Heading(text) => put_line(buffer, row, text, Role::Title, theme),
        Fact::Text(text, role) => put_line(buffer, row, text, *role, theme),
        Fact::Value(name, text, role, source) => {
            let [label, value] = split_left(row, name_width(row.width));
            let [label, _] = split_right(label, 1);
            put_line(buffer, label, name, Role::Dim, theme);
            put_line(buffer, value, text, *role, theme);
            let left = usize::from(value.width).saturating_sub(text.width());
            if shows_sources && !source.is_empty() && left > source.width() + 1 {
                put_line_right(buffer, value, source, Role::Dim, theme);
            }
        }
        Fact::Long(..) | Fact::Blank => {}
    }
}
