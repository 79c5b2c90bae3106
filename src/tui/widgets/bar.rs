//! A bar whose parts add up to its width. A part that fills at least an eighth of a cell gets at least one cell if
//! there is room.

use ratatui::buffer::Buffer;
use ratatui::style::Style;

use super::cells::put_glyph;
use crate::dashboard::memory_parts::divide;

#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    pub amount: u64,
    pub glyph: &'a str,
    pub style: Style,
}

pub fn draw(buffer: &mut Buffer, x: u16, y: u16, width: u16, parts: &[Part<'_>]) {
    let amounts: Vec<u64> = parts.iter().map(|p| p.amount).collect();
    let mut at = x;
    for (part, cells) in parts.iter().zip(divide(&amounts, usize::from(width))) {
        for _ in 0..cells {
            put_glyph(buffer, at, y, part.glyph, part.style);
            at += 1;
        }
    }
}
