//! Early warnings: the most urgent as a line, all of them after the metrics.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::Shown;
use super::metrics::Metric;
use crate::allocator::warnings::Note;
use crate::model::units::Mono;
use crate::tui::theme::Role;
use crate::tui::widgets::cells::put_line;

impl Shown<'_> {
    /// Returns a past time by the clock.
    pub(super) fn clock(&self, at: Mono) -> String {
        let frame = &self.app.frame;
        let back = i64::try_from(frame.mono.since(at).0).unwrap_or(0);
        let time = crate::model::units::UnixMillis(frame.time.0.saturating_sub(back));
        self.theme.clock(time, "%H:%M")
    }

    pub(super) fn note(&self, note: &Note, area: Rect, buffer: &mut Buffer) {
        let text = format!("note  since {}: {}", self.clock(note.since), note.text);
        put_line(buffer, area, &text, Role::Warn, self.theme);
    }

    /// Returns all notes if there are several.
    pub(super) fn note_lines(&self) -> Vec<Metric> {
        if self.notes.len() < 2 {
            return Vec::new();
        }
        let heading = Metric {
            name: "NOTES".into(),
            value: String::new(),
            description: String::new(),
        };
        let line = |note: &Note| Metric {
            name: format!("since {}", self.clock(note.since)),
            value: " ".into(),
            description: note.text.clone(),
        };
        std::iter::once(heading)
            .chain(self.notes.iter().map(line))
            .collect()
    }
}
