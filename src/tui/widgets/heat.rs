//! Histograms over time: one row per size and one column per time step, newest on the right. Fuller cells mean more
//! bytes.

use gputop_allocator::fragmentation::Bucket;
use gputop_model::units::Bytes;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::cells::{put, put_glyph, put_line, put_right};
use super::histogram::{merged, size_text};
use crate::tui::theme::{Role, Theme};

/// Width of a size label: `<=   1M `.
const LABEL: u16 = 8;

/// Draws `columns`, newest first, below a title row. Each column is a histogram with one row for each power-of-two
/// size.
pub fn draw(title: &str, columns: &[Vec<Bucket>], area: Rect, buffer: &mut Buffer, theme: &Theme) {
    if area.height < 2 || area.width <= LABEL {
        return;
    }
    let dim = theme.style(Role::Dim);
    put_line(buffer, area, title, Role::Title, theme);
    put_right(buffer, area.x, area.right(), area.y, "now", dim);
    let shown = &columns[..columns.len().min(usize::from(area.width - LABEL))];
    let rows = merged(&sizes(shown), usize::from(area.height) - 1);
    let mut above = 0;
    for (y, row) in (area.y + 1..area.bottom()).zip(&rows) {
        let label = format!("<={:>5}", size_text(row.up_to));
        put(buffer, area.x, y, &label, LABEL, dim);
        for (x, column) in (area.x + LABEL..area.right()).rev().zip(shown) {
            let buckets =
                column.iter().filter(|bucket| bucket.up_to.0 > above && bucket.up_to <= row.up_to);
            let bytes: u64 = buckets.map(|bucket| bucket.bytes.0).sum();
            let all: u64 = column.iter().map(|bucket| bucket.bytes.0).sum();
            let glyph = theme.glyphs.levels[level(bytes, all)];
            put_glyph(buffer, x, y, glyph, theme.style(Role::Cached));
        }
        above = row.up_to.0;
    }
}

/// Returns a cell's fill level from 0 to 8: the cell's share of the column's bytes, in eighths. The level is at least 1
/// if the cell represents any bytes.
fn level(bytes: u64, all: u64) -> usize {
    let eighths = u128::from(bytes) * 8 / u128::from(all.max(1));
    usize::try_from(eighths).unwrap_or(8).clamp(usize::from(bytes > 0), 8)
}

/// Returns all sizes from the smallest to the largest, without gaps.
fn sizes(columns: &[Vec<Bucket>]) -> Vec<Bucket> {
    let powers = || {
        let buckets = columns.iter().flatten();
        buckets.filter(|bucket| bucket.count > 0).map(|bucket| bucket.up_to.0.max(1).ilog2())
    };
    let (Some(min), Some(max)) = (powers().min(), powers().max()) else {
        return Vec::new();
    };
    (min..=max).map(|power| Bucket { up_to: Bytes(1_u64 << power), ..Bucket::default() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tui::picture::text_of;
    use crate::tui::theme::Palette;

    #[test]
    fn draws_the_newest_column_on_the_right() {
        let bucket =
            |power: u32, mib| Bucket { up_to: Bytes(1 << power), count: 1, bytes: Bytes::mib(mib) };
        let columns = [vec![bucket(20, 1), bucket(22, 7)], vec![bucket(20, 8)], vec![]];
        let theme = Theme::new(Palette::None, true, jiff::tz::TimeZone::UTC);
        let area = Rect::new(0, 0, 20, 4);
        let mut buffer = Buffer::empty(area);
        draw("HISTORY", &columns, area, &mut buffer, &theme);
        insta::assert_snapshot!(text_of(&buffer), @r"
        HISTORY          now
        <=   1M           #.
        <=   2M
        <=   4M            #
        ");
    }
}
