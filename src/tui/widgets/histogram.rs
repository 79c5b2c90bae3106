//! Free blocks by size as horizontal bars: `<=   1M ########  812  0.20`.

use gputop_allocator::fragmentation::Bucket;
use gputop_model::units::{Bytes, apportion};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::cells::{put, put_line, put_right};
use crate::tui::theme::{Role, Theme};
use crate::tui::widgets::area::row;

/// Width of a size label: `<=   1M `.
const LABEL: u16 = 8;
const COUNT: u16 = 7;
/// Minimum width of a bar. With less room, the count column is one character narrower.
const MIN_BAR: u16 = 3;
const SIZE: u16 = 7;

/// Returns the unit of the size column, which suits the sum of all sizes.
fn unit(sizes: &[Bytes]) -> (Bytes, &'static str) {
    let sum = sizes.iter().map(|size| size.0).fold(0, u64::saturating_add);
    if sum < Bytes::gib(1).0 { (Bytes::mib(1), "MiB") } else { (Bytes::gib(1), "GiB") }
}

/// Merges neighbouring powers of two until all groups fit into `rows`. The last group ends with the largest power.
pub fn merged(buckets: &[Bucket], rows: usize) -> Vec<Bucket> {
    let size = buckets.len().div_ceil(rows.max(1)).max(1);
    let (head, tail) = buckets.split_at(buckets.len() % size);
    std::iter::once(head)
        .filter(|head| !head.is_empty())
        .chain(tail.chunks(size))
        .map(|group| Bucket {
            up_to: group.last().map(|b| b.up_to).unwrap_or_default(),
            count: group.iter().map(|b| b.count).sum(),
            bytes: Bytes(group.iter().map(|b| b.bytes.0).sum()),
        })
        .collect()
}

/// Draws a cache's free blocks.
pub fn draw(buckets: &[Bucket], area: Rect, buffer: &mut Buffer, theme: &Theme) {
    let title = if area.width >= 34 { "FREE BLOCKS by size" } else { "FREE BLOCKS" };
    draw_titled(title, "no free blocks", buckets, area, buffer, theme);
}

/// Draws a histogram, which needs one row for the heading and one for each bar. The bars show bytes. `empty` is shown
/// if there are no buckets.
pub fn draw_titled(
    title: &str,
    empty: &str,
    buckets: &[Bucket],
    area: Rect,
    buffer: &mut Buffer,
    theme: &Theme,
) {
    if area.height < 2 || area.width < LABEL + count_width(area) + SIZE {
        return;
    }
    let shown = merged(buckets, usize::from(area.height) - 1);
    let sizes: Vec<Bytes> = shown.iter().map(|b| b.bytes).collect();
    let (unit, unit_name) = unit(&sizes);
    heading(title, unit_name, area, buffer, theme);
    if shown.is_empty() {
        put_line(buffer, row(area, area.y + 1), empty, Role::Dim, theme);
        return;
    }
    let largest = sizes.iter().max().copied().unwrap_or_default();
    // Round to hundredths of the unit.
    let hundredfold: Vec<Bytes> =
        sizes.iter().map(|size| Bytes(size.0.saturating_mul(100))).collect();
    let printed = apportion(&hundredfold, unit.0);
    for (y, (bucket, printed)) in (area.y + 1..area.bottom()).zip(shown.iter().zip(printed)) {
        draw_row(bucket, &amount(bucket, printed, unit), largest, row(area, y), buffer, theme);
    }
}

fn heading(title: &str, unit: &str, area: Rect, buffer: &mut Buffer, theme: &Theme) {
    put(
        buffer,
        area.x,
        area.y,
        title,
        area.width - SIZE - count_width(area),
        theme.style(Role::Title),
    );
    let dim = theme.style(Role::Dim);
    let right = area.right();
    put_right(buffer, area.x, right, area.y, unit, dim);
    put_right(buffer, area.x, right - SIZE, area.y, "COUNT", dim);
}

fn count_width(area: Rect) -> u16 {
    if area.width < LABEL + MIN_BAR + COUNT + SIZE { COUNT - 1 } else { COUNT }
}

fn draw_row(
    bucket: &Bucket,
    amount: &str,
    largest: Bytes,
    row: Rect,
    buffer: &mut Buffer,
    theme: &Theme,
) {
    let label = format!("<={:>5}", size_text(bucket.up_to));
    put(buffer, row.x, row.y, &label, LABEL, theme.style(Role::Dim));
    let room = row.width - LABEL - count_width(row) - SIZE;
    let cells = u128::from(bucket.bytes.0) * u128::from(room) / u128::from(largest.0.max(1));
    let mut cells = u16::try_from(cells).unwrap_or(room).min(room);
    if bucket.count > 0 && room > 0 {
        cells = cells.max(1);
    }
    let bar = theme.glyphs.allocated.repeat(usize::from(cells));
    put(buffer, row.x + LABEL, row.y, &bar, cells, theme.style(Role::Cached));
    let text = theme.style(if bucket.count > 0 { Role::Text } else { Role::Dim });
    let (right, count) = (row.right(), bucket.count.to_string());
    put_right(buffer, right - SIZE - count_width(row), right - SIZE, row.y, &count, text);
    put_right(buffer, right - SIZE, right, row.y, amount, text);
}

/// Formats a size in `unit` with two decimals. A size that would be shown as 0.00 is shown as `<0.01`.
fn amount(bucket: &Bucket, printed: Bytes, unit: Bytes) -> String {
    if printed.0 == 0 && bucket.bytes.0 > 0 {
        "<0.01".into()
    } else {
        format!("{:.2}", (printed.0 / unit.0) as f64 / 100.0)
    }
}

/// Formats a power of two without decimals: `512`, `64K`, `1M`, `16G`.
pub fn size_text(size: Bytes) -> String {
    match size.0 {
        n if n >= 1 << 40 => format!("{}T", n >> 40),
        n if n >= 1 << 30 => format!("{}G", n >> 30),
        n if n >= 1 << 20 => format!("{}M", n >> 20),
        n if n >= 1 << 10 => format!("{}K", n >> 10),
        n => n.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tui::picture::text_of;
    use crate::tui::theme::Palette;

    fn buckets() -> Vec<Bucket> {
        let bucket = |power: u32, count, mib| Bucket {
            up_to: Bytes(1 << power),
            count,
            bytes: Bytes::mib(mib),
        };
        vec![
            bucket(20, 812, 204),
            bucket(21, 0, 0),
            bucket(22, 3, 9),
            bucket(23, 200, 3_165),
            bucket(24, 9, 3_584),
        ]
    }

    fn drawn(height: u16) -> String {
        let theme = Theme::new(Palette::None, true, jiff::tz::TimeZone::UTC);
        let area = Rect::new(0, 0, 40, height);
        let mut buffer = Buffer::empty(area);
        draw(&buckets(), area, &mut buffer, &theme);
        text_of(&buffer)
    }

    #[test]
    fn draws_bytes_as_bars_and_keeps_rows_of_empty_sizes() {
        insta::assert_snapshot!(drawn(6), @r#"
        FREE BLOCKS by size         COUNT    GiB
        <=   1M #                     812   0.20
        <=   2M                         0   0.00
        <=   4M #                       3   0.01
        <=   8M ###############       200   3.09
        <=  16M ##################      9   3.50
        "#);
    }

    #[test]
    fn small_sums_are_shown_in_mib() {
        let theme = Theme::new(Palette::None, true, jiff::tz::TimeZone::UTC);
        let area = Rect::new(0, 0, 30, 3);
        let mut buffer = Buffer::empty(area);
        draw(&buckets()[..3], area, &mut buffer, &theme);
        insta::assert_snapshot!(text_of(&buffer), @r#"
        FREE BLOCKS       COUNT    MiB
        <=   1M ########    812 204.00
        <=   4M #             3   9.00
        "#);
    }

    #[test]
    fn merges_neighbouring_sizes_in_few_rows() {
        insta::assert_snapshot!(drawn(4), @r#"
        FREE BLOCKS by size         COUNT    GiB
        <=   1M #                     812   0.20
        <=   4M #                       3   0.01
        <=  16M ##################    209   6.59
        "#);
        let counts: u64 = merged(&buckets(), 2).iter().map(|b| b.count).sum();
        assert_eq!(counts, 1_024);
        assert_eq!(merged(&[], 5), []);
    }
}
