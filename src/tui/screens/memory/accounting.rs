//! What the lines of the accounting say: each part of the card's memory with its figure.

use super::Shown;
use super::figures::{Card, gib};
use crate::model::history::SeriesKey;
use crate::model::units::{Bytes, Millis};
use crate::tui::pools;
use crate::tui::theme::Role;

/// One line of the accounting.
pub(super) struct Line {
    pub(super) shape: Option<(&'static str, Role)>,
    pub(super) name: &'static str,
    pub(super) words: String,
    pub(super) size: String,
    pub(super) peak: String,
    pub(super) compare: String,
}

impl Shown<'_> {
    pub(super) fn lines(&self) -> Vec<Line> {
        let (figures, glyphs) = (&self.figures, &self.theme.glyphs);
        let stats = &self.pool.stats;
        let peak = |size: Bytes| if size.0 > 0 { gib(size) } else { String::new() };
        let absent = || glyphs.absent.to_owned();
        let line = |shape, name, words: &str, size: String| Line {
            shape,
            name,
            words: words.into(),
            size,
            peak: String::new(),
            compare: String::new(),
        };
        let mut lines = vec![Line {
            peak: peak(stats.allocated_peak),
            compare: "memory_allocated()".into(),
            ..line(
                Some((glyphs.allocated, Role::Allocated)),
                "allocated",
                "in live tensors",
                gib(figures.allocated),
            )
        }];
        lines.push(Line {
            compare: format!(
                "reserved {}",
                gib(Bytes(figures.allocated.0 + figures.idle.0))
            ),
            ..line(
                Some((glyphs.idle, Role::Idle)),
                "idle",
                "reserved - allocated",
                gib(figures.idle),
            )
        });
        match figures.idle_parts {
            None => lines.push(line(
                None,
                "  stuck",
                "expandable segments: only the map tells",
                absent(),
            )),
            Some(parts) => {
                lines.push(line(
                    None,
                    "  stuck",
                    "beside live tensors",
                    gib(parts.stuck),
                ));
                let words = self.whole_words();
                lines.push(line(None, "  returnable", words, gib(parts.returnable)));
                if parts.kept.0 > 0 {
                    let words = "for CUDA graphs, MemPools";
                    lines.push(line(None, "  kept", words, gib(parts.kept)));
                }
                if parts.waiting.0 > 0 {
                    let words = "for another stream";
                    lines.push(line(None, "  waiting", words, gib(parts.waiting)));
                }
            }
        }
        let about = if figures.approximate { "~" } else { "" };
        let other = figures
            .other
            .map_or_else(absent, |o| format!("{about}{}", gib(o)));
        let shape = Some((glyphs.other, Role::OtherVram));
        lines.push(line(shape, "other", "context, libraries", other));
        lines.push(self.process_line());
        if let Some(card) = figures.card {
            if card.elsewhere.0 > 0 {
                let shape = Some((glyphs.whole, Role::Processes));
                let words = "other processes on the card";
                lines.push(line(shape, "elsewhere", words, gib(card.elsewhere)));
            }
            let words = self.free_words(card);
            let shape = Some((glyphs.free, Role::Free));
            lines.push(line(shape, "free", &words, gib(card.free)));
        }
        lines
    }

    pub(super) fn free_words(&self, card: Card) -> String {
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

    pub(super) fn whole_words(&self) -> &'static str {
        match &self.screen.read {
            Some(read) if read.fragmentation.expandable => "whole segments and pages",
            _ => "whole segments",
        }
    }

    pub(super) fn process_line(&self) -> Line {
        let vram = pools::vram(&self.app.frame, self.pool);
        let peak = self.gpu.and_then(|gpu| {
            let key = SeriesKey::Vram(self.screen.process, gpu.uuid.clone());
            let day = Millis(86_400_000);
            let series = self.app.history.series(&key)?;
            series.window(self.app.frame.mono, day, 1)[0]
        });
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let peak = peak.map_or(String::new(), |span| gib(Bytes(span.1 as u64)));
        Line {
            shape: None,
            name: "process",
            words: String::new(),
            size: gib(self.figures.process),
            peak,
            compare: match vram {
                Some(vram) => format!("nvidia-smi {} MiB", vram.0 >> 20),
                None => "not listed by the driver".into(),
            },
        }
    }
}

pub(super) fn len(lines: &[Line]) -> u16 {
    u16::try_from(lines.len()).unwrap_or(u16::MAX)
}
