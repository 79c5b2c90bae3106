//! The first two lines: the pool with the age of the figures, and the headline.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::Shown;
use crate::model::gpu::Gpu;
use crate::model::units::{Millis, Mono};
use crate::tui::rows::ProcessRow;
use crate::tui::theme::Role;
use crate::tui::widgets::cells::{put_all, put_line, put_right};

impl Shown<'_> {
    pub(super) fn title(&self, area: Rect, buffer: &mut Buffer) {
        let theme = self.theme;
        let name = self
            .screen
            .row(self.app)
            .map_or("process".into(), process_name);
        let pid = format!(" {}  ", self.screen.process.pid);
        let gpu = match self.gpu {
            Some(gpu) => format!("GPU{} {}", gpu.index, card_name(gpu)),
            None => format!("cuda:{} (GPU not identified)", self.pool.ordinal),
        };
        let devices = self.screen.devices(self.app).len();
        let devices = if devices > 1 {
            format!("  cuda:{} of {devices} ([ ])", self.pool.ordinal)
        } else {
            String::new()
        };
        let state = if area.width < 60 {
            format!("{} ago", self.age())
        } else {
            self.map_state()
        };
        let right = put_right(
            buffer,
            area.x,
            area.right(),
            area.y,
            &state,
            theme.style(Role::Dim),
        );
        let library = format!("  {}", self.pool.library);
        let dim = theme.style(Role::Dim);
        let pieces = [
            (name.as_str(), theme.style(Role::Title)),
            (pid.as_str(), theme.style(Role::Title)),
            (gpu.as_str(), theme.style(Role::Text)),
            (devices.as_str(), theme.style(Role::Key)),
            (library.as_str(), dim),
        ];
        put_all(buffer, area.x, area.y, right.saturating_sub(1), &pieces);
    }

    /// Returns the age of the newest part of the screen.
    fn age(&self) -> String {
        let at = match &self.screen.analysed_map {
            Some(read) => read.map.at,
            None => self.pool.at,
        };
        ago(self.app.frame.mono, at)
    }

    fn map_state(&self) -> String {
        let exact = match &self.screen.analysed_map {
            None => "",
            Some(read) if read.map.exact => "exact, ",
            Some(_) => "approximate, ",
        };
        format!("{exact}read {} ago", self.age())
    }

    pub(super) fn headline(&self, area: Rect, buffer: &mut Buffer) {
        let text = self.figures.headline();
        let role = if text.contains("but no request") {
            Role::Warn
        } else {
            Role::Good
        };
        put_line(buffer, area, &text, role, self.theme);
    }
}

/// Returns the program without its arguments: `train.py`.
pub(super) fn process_name(row: &ProcessRow) -> String {
    let command = row.command();
    let first = command.value().and_then(|c| c.split(' ').next());
    first.unwrap_or("process").to_owned()
}

/// Shortens `NVIDIA GeForce RTX 4090` to `RTX 4090`.
fn card_name(gpu: &Gpu) -> &str {
    let name = gpu.name.strip_prefix("NVIDIA ").unwrap_or(&gpu.name);
    name.strip_prefix("GeForce ").unwrap_or(name)
}

/// Returns an age such as `0.2s` or `14s`.
fn ago(now: Mono, at: Mono) -> String {
    let ms = now.since(at).0;
    if ms < 10_000 {
        format!("{}.{}s", ms / 1_000, ms / 100 % 10)
    } else {
        crate::tui::widgets::timeline::span_words(Millis(ms))
    }
}
