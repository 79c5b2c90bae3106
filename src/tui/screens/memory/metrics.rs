//! Metrics of the memory screen: standard name, value, and a line that describes it.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::analysed_map::AnalysedMap;
use super::figures::{STEP, gib};
use super::{Pane, Shown};
use crate::allocator::fragmentation::StreamPool;
use crate::model::pool::Pool;
use crate::model::units::Bytes;
use crate::tui::theme::{Role, Theme};
use crate::tui::widgets::cells::{fit, put, put_right};
use crate::tui::widgets::segment_map::{pool_words, stream_words};

/// A metric with its standard name and description.
pub struct Metric {
    pub name: String,
    /// Empty for a heading.
    pub value: String,
    pub description: String,
}

/// Returns all metrics, with headings.
pub fn metric_lines(pool: &Pool, read: &AnalysedMap, theme: &Theme) -> Vec<Metric> {
    let of = &read.fragmentation;
    let metric = |name: &str, value: String, description: &str| Metric {
        name: name.into(),
        value,
        description: description.into(),
    };
    let absent = || theme.glyphs.absent.to_owned();
    let mut lines = vec![
        metric("METRICS", String::new(), ""),
        metric(
            "external fragmentation",
            of.external().map_or_else(absent, percent),
            "1 - largest free block / total free: 0 % is one free block",
        ),
        metric(
            "free blocks",
            small_gib(of.free),
            "all free blocks of the cache",
        ),
        metric(
            "largest free block",
            small_gib(of.largest),
            "in any stream and pool",
        ),
        metric(
            "inactive split bytes",
            small_gib(of.inactive_split),
            if of.expandable {
                "PyTorch counts none for expandable segments"
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
            "allocated - requested; blocks are multiples of 512 bytes",
        ),
        metric(
            "segments",
            pool.stats.segments.to_string(),
            "contiguous regions from the driver",
        ),
    ];
    lines.extend(stream_pool_lines(read));
    lines.push(metric("UNUSABLE FREE SPACE", String::new(), ""));
    lines.extend(curve_lines(read, theme));
    lines
}

/// Returns the free memory by stream and pool if there are several.
fn stream_pool_lines(read: &AnalysedMap) -> Vec<Metric> {
    let stream_pools = &read.fragmentation.by_stream;
    if stream_pools.len() < 2 {
        return Vec::new();
    }
    let heading = Metric {
        name: "FREE BY STREAM AND POOL".into(),
        value: String::new(),
        description: String::new(),
    };
    let line = |part: &StreamPool| Metric {
        name: format!(
            "stream {} {}",
            stream_words(part.stream),
            pool_words(part.pool)
        ),
        value: small_gib(part.free),
        description: format!(
            "{} blocks, largest {}; not usable by other streams",
            part.count,
            small_gib(part.largest)
        ),
    };
    std::iter::once(heading)
        .chain(stream_pools.iter().map(line))
        .collect()
}

/// Returns the curve, starting at the largest size that can use all free memory.
fn curve_lines(read: &AnalysedMap, theme: &Theme) -> Vec<Metric> {
    let usable_sizes = read
        .curve
        .partition_point(|(_, unusable)| *unusable < 0.005);
    read.curve
        .iter()
        .skip(usable_sizes.saturating_sub(1))
        .map(|(size, unusable)| {
            let cells = (unusable * 24.0).round() as usize;
            Metric {
                name: format!("for a request of {}", size.short()),
                value: percent(*unusable),
                description: theme.glyphs.allocated.repeat(cells),
            }
        })
        .collect()
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Returns `3.20 GiB`, or a small size in its own unit.
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
            let words = fit(&line.description, usize::from(room), theme.glyphs.ellipsis);
            put(buffer, area.x + 40, y, &words, room, theme.style(Role::Dim));
        }
    }
}
