//! The metrics of the memory screen: each by its standard name, with its value and a line on what it means.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::analysed_map::Read;
use super::figures::{STEP, gib};
use super::{Pane, Shown};
use crate::allocator::fragmentation::StreamPool;
use crate::model::pool::Pool;
use crate::model::units::Bytes;
use crate::tui::theme::{Role, Theme};
use crate::tui::widgets::cells::{fit, put, put_right};
use crate::tui::widgets::segment_map::{pool_words, stream_words};

/// A metric by its standard name, with what it means.
pub struct Metric {
    pub name: String,
    /// Empty for a heading.
    pub value: String,
    pub words: String,
}

/// All of them, with headings between.
pub fn metric_lines(pool: &Pool, read: &Read, theme: &Theme) -> Vec<Metric> {
    let of = &read.fragmentation;
    let metric = |name: &str, value: String, words: &str| Metric {
        name: name.into(),
        value,
        words: words.into(),
    };
    let absent = || theme.glyphs.absent.to_owned();
    let mut lines = vec![
        metric("METRICS", String::new(), ""),
        metric(
            "external fragmentation",
            of.external().map_or_else(absent, percent),
            "1 - largest free block / all that is free: 0 is one hole",
        ),
        metric(
            "free blocks",
            small_gib(of.free),
            "all free blocks of the cache",
        ),
        metric(
            "largest free block",
            small_gib(of.largest),
            "of any stream and pool",
        ),
        metric(
            "inactive split bytes",
            small_gib(of.inactive_split),
            if of.expandable {
                "as PyTorch counts: none of expandable segments"
            } else {
                "free, in segments that also hold a live block"
            },
        ),
        metric(
            "rounding waste",
            if of.rounding_known {
                small_gib(of.rounding)
            } else {
                absent()
            },
            "allocated - requested: blocks are multiples of 512 bytes",
        ),
        metric(
            "segments",
            pool.stats.segments.to_string(),
            "got from the driver, each in one piece",
        ),
    ];
    lines.extend(shelf_lines(read));
    lines.push(metric("UNUSABLE FREE SPACE", String::new(), ""));
    lines.extend(curve_lines(read, theme));
    lines
}

/// Free memory by stream and pool; of one alone there is nothing to tell apart.
fn shelf_lines(read: &Read) -> Vec<Metric> {
    let shelves = &read.fragmentation.by_stream;
    if shelves.len() < 2 {
        return Vec::new();
    }
    let heading = Metric {
        name: "FREE BY STREAM AND POOL".into(),
        value: String::new(),
        words: String::new(),
    };
    let line = |shelf: &StreamPool| Metric {
        name: format!(
            "stream {} {}",
            stream_words(shelf.stream),
            pool_words(shelf.pool)
        ),
        value: small_gib(shelf.free),
        words: format!(
            "{} blocks, the largest {}; no other stream can use them",
            shelf.count,
            small_gib(shelf.largest)
        ),
    };
    std::iter::once(heading)
        .chain(shelves.iter().map(line))
        .collect()
}

/// The curve from the largest size that can use all of it.
fn curve_lines(read: &Read, theme: &Theme) -> Vec<Metric> {
    let useless = read
        .curve
        .partition_point(|(_, unusable)| *unusable < 0.005);
    read.curve
        .iter()
        .skip(useless.saturating_sub(1))
        .map(|(size, unusable)| {
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let cells = (unusable * 24.0).round() as usize;
            Metric {
                name: format!("for a request of {}", size.short()),
                value: percent(*unusable),
                words: theme.glyphs.allocated.repeat(cells),
            }
        })
        .collect()
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// `3.20 GiB`, or in its own unit what would read 0.00.
fn small_gib(size: Bytes) -> String {
    if size.0 >= STEP * 10 || size.0 == 0 {
        format!("{} GiB", gib(size))
    } else {
        size.to_string()
    }
}

impl Shown<'_> {
    pub(super) fn metrics(&self, lines: &[Metric], area: Rect, buffer: &mut Buffer) {
        if area.height == 0 {
            return;
        }
        let theme = self.theme;
        let last = lines.len().saturating_sub(usize::from(area.height));
        let first = self.screen.scroll.min(last);
        self.remember(Pane::Metrics, area, first);
        for (y, line) in (area.y..area.bottom()).zip(lines.iter().skip(first)) {
            let style = theme.style(if line.value.is_empty() {
                Role::Title
            } else {
                Role::Dim
            });
            put(buffer, area.x, y, &line.name, 26, style);
            let value = theme.style(Role::Text);
            put_right(buffer, area.x + 26, area.x + 38, y, &line.value, value);
            let room = area.width.saturating_sub(40);
            let words = fit(&line.words, usize::from(room), theme.glyphs.ellipsis);
            put(buffer, area.x + 40, y, &words, room, theme.style(Role::Dim));
        }
    }
}
