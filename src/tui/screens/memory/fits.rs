//! The line on what fits, with the counters of retries and failures.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::Shown;
use super::figures::down;
use crate::model::units::Bytes;
use crate::tui::theme::Role;
use crate::tui::widgets::cells::{put_all, put_right};

impl Shown<'_> {
    pub(super) fn fits_line(&self, area: Rect, buffer: &mut Buffer) {
        let theme = self.theme;
        let size = |size: Option<Bytes>| size.map_or(theme.glyphs.absent.into(), down);
        let fits = &self.figures.fits;
        let names = if self.wide {
            [" cache ", "   driver ", "   after flush "]
        } else {
            ["cache ", "  driver ", "  flushed "]
        };
        let steps = [
            (names[0], size(fits.cache)),
            (names[1], size(fits.driver)),
            (names[2], size(fits.flushed)),
        ];
        let (dim, text) = (theme.style(Role::Dim), theme.style(Role::Text));
        let mut pieces = vec![("FITS GiB ", theme.style(Role::Title))];
        for (name, size) in &steps {
            pieces.extend([(*name, dim), (size.as_str(), text)]);
        }
        let end = put_all(buffer, area.x, area.y, area.right(), &pieces);
        put_right(
            buffer,
            end + 2,
            area.right(),
            area.y,
            &self.counters(),
            theme.style(self.counters_role()),
        );
    }

    /// Returns `RETRY 2 (11:58)  OOM 1 (caught)`.
    pub(super) fn counters(&self) -> String {
        use crate::allocator::warnings::NoteKind::{OomCaught, RetriesRising};
        let stats = &self.pool.stats;
        let since = |kind| {
            let note = self.notes.iter().find(|note| note.kind == kind);
            note.map_or(String::new(), |note| {
                format!(" ({})", self.clock(note.since))
            })
        };
        let caught = if stats.num_ooms > 0 { " (caught)" } else { "" };
        let oom = match since(OomCaught) {
            time if time.is_empty() => caught.to_owned(),
            time => time,
        };
        format!(
            "RETRY {}{}  OOM {}{oom}",
            stats.num_alloc_retries,
            since(RetriesRising),
            stats.num_ooms
        )
    }

    pub(super) fn counters_role(&self) -> Role {
        let stats = &self.pool.stats;
        if stats.num_ooms > 0 {
            Role::Bad
        } else if stats.num_alloc_retries > 0 {
            Role::Warn
        } else {
            Role::Dim
        }
    }
}
