//! Lines of the accounting: each part of the memory with its figure.

use super::Shown;
use super::figures::{Card, gib};
use crate::model::history::SeriesKey;
use crate::model::units::{Bytes, Millis};
use crate::tui::pools;
use crate::tui::theme::Role;

/// A line of the accounting.
pub(super) struct AccountingRow {
    pub(super) shape: Option<(&'static str, Role)>,
    pub(super) name: &'static str,
    pub(super) description: String,
    pub(super) size: String,
    pub(super) peak: String,
    pub(super) compare: String,
}

/// Returns a line without a peak and a figure to compare with.
fn line(
    shape: Option<(&'static str, Role)>,
    name: &'static str,
    description: &str,
    size: String,
) -> AccountingRow {
    AccountingRow {
        shape,
        name,
        description: description.into(),
        size,
        peak: String::new(),
        compare: String::new(),
    }
}

impl Shown<'_> {
    pub(super) fn lines(&self) -> Vec<AccountingRow> {
        let mut lines = Vec::from(self.pool_lines());
        lines.extend(self.idle_lines());
        lines.push(self.other_line());
        lines.push(self.process_line());
        lines.extend(self.card_lines());
        lines
    }

    fn pool_lines(&self) -> [AccountingRow; 2] {
        let (figures, glyphs) = (&self.figures, &self.theme.glyphs);
        let peak = self.pool.stats.allocated_peak;
        let shape = Some((glyphs.allocated, Role::Allocated));
        let size = gib(figures.allocated);
        let allocated = AccountingRow {
            peak: if peak.0 > 0 { gib(peak) } else { String::new() },
            compare: "memory_allocated()".into(),
            ..line(shape, "allocated", "live tensors", size)
        };
        let shape = Some((glyphs.idle, Role::Idle));
        let size = gib(figures.idle);
        let reserved = gib(Bytes(figures.allocated.0 + figures.idle.0));
        let idle = AccountingRow {
            compare: format!("reserved {reserved}"),
            ..line(shape, "idle", "reserved - allocated", size)
        };
        [allocated, idle]
    }

    /// Returns the parts of idle memory. Rare parts are omitted while they are 0.
    fn idle_lines(&self) -> Vec<AccountingRow> {
        let Some(parts) = self.figures.idle_parts else {
            let words = "only known from the map";
            let absent = self.theme.glyphs.absent.to_owned();
            return vec![line(None, "  stuck", words, absent)];
        };
        let part = |name, words, size| line(None, name, words, gib(size));
        let mut lines = vec![
            part("  stuck", "beside live tensors", parts.stuck),
            part("  returnable", self.returnable_words(), parts.returnable),
        ];
        if parts.private.0 > 0 {
            lines.push(part("  private", "CUDA graphs and MemPools", parts.private));
        }
        if parts.waiting.0 > 0 {
            lines.push(part("  waiting", "for another stream", parts.waiting));
        }
        lines
    }

    fn other_line(&self) -> AccountingRow {
        let (figures, glyphs) = (&self.figures, &self.theme.glyphs);
        let about = if figures.approximate { "~" } else { "" };
        let size = figures
            .other
            .map_or_else(|| glyphs.absent.into(), |o| format!("{about}{}", gib(o)));
        let shape = Some((glyphs.other, Role::OtherVram));
        line(shape, "other", "context, libraries", size)
    }

    /// Returns the lines of memory outside the process.
    fn card_lines(&self) -> Vec<AccountingRow> {
        let glyphs = &self.theme.glyphs;
        let Some(card) = self.figures.card else {
            return Vec::new();
        };
        let mut lines = Vec::new();
        if card.elsewhere.0 > 0 {
            let shape = Some((glyphs.whole, Role::Processes));
            let words = "other processes";
            lines.push(line(shape, "elsewhere", words, gib(card.elsewhere)));
        }
        let shape = Some((glyphs.free, Role::Free));
        let words = self.free_words(card);
        lines.push(line(shape, "free", &words, gib(card.free)));
        lines
    }

    fn free_words(&self, card: Card) -> String {
        let elsewhere = if card.elsewhere.0 > 0 {
            " - elsewhere"
        } else {
            ""
        };
        let (total, driver) = (gib(card.total), gib(card.driver));
        if self.wide {
            format!("card {total} - driver {driver} - process{elsewhere}")
        } else {
            format!("{total} - {driver} - process{elsewhere}")
        }
    }

    fn returnable_words(&self) -> &'static str {
        match &self.screen.analysed_map {
            Some(map) if map.fragmentation.expandable => "free segments and pages",
            _ => "whole free segments",
        }
    }

    fn process_line(&self) -> AccountingRow {
        let vram = pools::vram(&self.app.frame, self.pool);
        let peak = self.gpu.and_then(|gpu| {
            let key = SeriesKey::Vram(self.screen.process, gpu.uuid.clone());
            let day = Millis(86_400_000);
            let series = self.app.history.series(&key)?;
            series.window(self.app.frame.mono, day, 1)[0]
        });
        let peak = peak.map_or(String::new(), |span| gib(Bytes(span.1 as u64)));
        AccountingRow {
            shape: None,
            name: "process",
            description: String::new(),
            size: gib(self.figures.process),
            peak,
            compare: match vram {
                Some(vram) => format!("nvidia-smi {} MiB", vram.0 >> 20),
                None => "not listed by the driver".into(),
            },
        }
    }
}

pub(super) fn len(lines: &[AccountingRow]) -> u16 {
    u16::try_from(lines.len()).unwrap_or(u16::MAX)
}
