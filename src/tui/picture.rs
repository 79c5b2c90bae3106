//! Renders screens as text or SVG, for example for the pictures in the README.

use std::fmt::Write;

use ratatui::buffer::{Buffer, Cell};
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier};

use crate::export::text_width::columns;

const CELL_WIDTH: usize = 8;
const CELL_HEIGHT: usize = 17;
pub const BACKGROUND: &str = "#0f1216";
const FOREGROUND: &str = "#d5d8dd";

/// Renders a buffer as SVG. Each run of cells with the same style becomes one text element, stretched to the width of
/// its cells so that the columns stay aligned in any font.
pub fn svg(buffer: &Buffer) -> String {
    let mut out = opening(buffer.area);
    draw_cells(&mut out, buffer);
    out.push_str("</svg>\n");
    out
}

/// Returns the opening SVG tag and the background.
pub fn opening(area: Rect) -> String {
    let (width, height) =
        (usize::from(area.width) * CELL_WIDTH, usize::from(area.height) * CELL_HEIGHT);
    let mut out = String::new();
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\" font-size=\"13\">",
        width + 16,
        height + 16
    );
    let _ = writeln!(out, "<rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"{BACKGROUND}\"/>");
    out
}

/// Appends the cells of a buffer to an SVG.
pub fn draw_cells(out: &mut String, buffer: &Buffer) {
    let area = buffer.area;
    for y in area.top()..area.bottom() {
        for (x, run) in runs(buffer, y) {
            draw_run(out, x, usize::from(y - area.top()), &run);
        }
    }
}

struct TextRun {
    text: String,
    cells: usize,
    style: RunStyle,
}

#[derive(PartialEq, Clone)]
struct RunStyle {
    fg: String,
    bg: Option<String>,
    bold: bool,
}

fn runs(buffer: &Buffer, y: u16) -> Vec<(usize, TextRun)> {
    let mut runs: Vec<(usize, TextRun)> = Vec::new();
    for x in buffer.area.left()..buffer.area.right() {
        let cell = &buffer[(x, y)];
        let style = run_style(cell);
        match runs.last_mut() {
            Some((_, run)) if run.style == style => {
                run.text.push_str(cell.symbol());
                run.cells += 1;
            }
            _ => runs.push((
                usize::from(x - buffer.area.left()),
                TextRun { text: cell.symbol().to_owned(), cells: 1, style },
            )),
        }
    }
    runs
}

fn run_style(cell: &Cell) -> RunStyle {
    let (mut fg, mut bg) =
        (colour(cell.fg).unwrap_or_else(|| FOREGROUND.to_owned()), colour(cell.bg));
    if cell.modifier.contains(Modifier::REVERSED) {
        (fg, bg) = (bg.unwrap_or_else(|| BACKGROUND.to_owned()), Some(fg));
    }
    RunStyle { fg, bg, bold: cell.modifier.contains(Modifier::BOLD) }
}

fn colour(colour: Color) -> Option<String> {
    Some(match colour {
        Color::Rgb(r, g, b) => format!("#{r:02x}{g:02x}{b:02x}"),
        Color::Black => "#000000".into(),
        Color::DarkGray => "#7f868f".into(),
        Color::Red => "#e5534b".into(),
        Color::Yellow => "#d8a657".into(),
        Color::Blue => "#6cb6ff".into(),
        Color::Magenta => "#b083f0".into(),
        Color::Cyan => "#56d4bc".into(),
        _ => return None,
    })
}

fn draw_run(out: &mut String, x: usize, y: usize, run: &TextRun) {
    let (left, top) = (8 + x * CELL_WIDTH, 8 + y * CELL_HEIGHT);
    let width = run.cells * CELL_WIDTH;
    if let Some(bg) = &run.style.bg {
        let _ = writeln!(
            out,
            "<rect x=\"{left}\" y=\"{top}\" width=\"{width}\" height=\"{CELL_HEIGHT}\" fill=\"{bg}\"/>"
        );
    }
    let text = run.text.trim_end();
    if text.trim().is_empty() {
        return;
    }
    let indent = text.len() - text.trim_start().len();
    let shown = text.trim_start();
    let cells = shown.chars().count();
    let weight = if run.style.bold { " font-weight=\"bold\"" } else { "" };
    let _ = writeln!(
        out,
        "<text x=\"{}\" y=\"{}\" fill=\"{}\"{weight} textLength=\"{}\" lengthAdjust=\"spacingAndGlyphs\" xml:space=\"preserve\">{}</text>",
        left + indent * CELL_WIDTH,
        top + 13,
        run.style.fg,
        cells * CELL_WIDTH,
        escape(shown)
    );
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Returns the text of a buffer, line by line.
pub fn text_of(buffer: &Buffer) -> String {
    let mut out = String::new();
    for y in buffer.area.top()..buffer.area.bottom() {
        let mut line = String::new();
        let mut x = buffer.area.left();
        while x < buffer.area.right() {
            let symbol = buffer[(x, y)].symbol();
            line.push_str(symbol);
            // A wide character also covers the next cell, whose content is not shown.
            x = x.saturating_add(u16::try_from(columns(symbol)).unwrap_or(1).max(1));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}
