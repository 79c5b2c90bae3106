//! One process's memory on one device, read from its allocator: the accounting, what fits, the pool over time, the
//! segment map, the histogram of free blocks, and metrics with standard names.
//!
//! Statistics arrive with every frame. The map is requested while this screen is open and may be up to a second older.
//! In a small area, the lowest parts are omitted; in a very small pane, the screen is reduced to a few lines.

mod analysed_map;
mod draw;
mod figures;
mod state;
mod text;
mod unavailable;

use std::sync::Arc;

use gputop_model::process::ProcessKey;
use gputop_model::units::Mono;
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};

use self::analysed_map::AnalysedMap;
pub use self::state::MemoryScreen;
use self::state::Pane;
use crate::dashboard::rows::ProcessRow;
use crate::tui::action::{Action, moved};
use crate::tui::app::App;
use crate::tui::clipboard::Copied;
use crate::tui::marks;
use crate::tui::screen::{Effect, Hit, Screen, ScreenDef};
use crate::tui::widgets::plot::plot;

pub const DEF: ScreenDef = ScreenDef {
    id: "memory",
    title: "Memory",
    glossary: &[
        ("allocated", "Bytes in live tensors: torch.cuda.memory_allocated()."),
        ("cached", "Cached by the allocator, but not in tensors: reserved - allocated."),
        (
            "fragmented",
            "Cached memory in segments that also hold live tensors (inactive split). Only requests from the same stream that \
             fit into a free block can use it. In expandable segments: cached memory in partly used pages.",
        ),
        (
            "returnable",
            "Cached memory in segments that are entirely free. The allocator releases it to the driver when necessary.",
        ),
        (
            "private",
            "Entirely free segments that belong to CUDA graphs and MemPools. No other request can use them.",
        ),
        ("waiting", "Freed, but another stream may still use it (record_stream)."),
        (
            "other",
            "GPU memory of the process outside its pool: CUDA context, libraries, other allocators.",
        ),
        (
            "~",
            "Computed from values that were read at different times, so it may be briefly inaccurate.",
        ),
        (
            "elsewhere",
            "GPU memory of other processes, and memory not attributed to any visible process.",
        ),
        (
            "FITS",
            "The largest request that succeeds now: from the cache, from the driver, or after the cache is flushed.",
        ),
        (
            "external fragmentation",
            "1 - largest free block / total free: 0 % means a single free block. It matters only for requests larger than \
             FITS.",
        ),
        ("RETRY", "Number of requests for which the allocator had to flush its cache."),
        marks::WORDS[0],
        marks::WORDS[1],
        marks::WORDS[2],
    ],
    sample: |app| {
        // Prefer the process with the most cached memory, because its screen shows the most detail.
        let cached = |row: &&ProcessRow| row.pool().map(|pool| pool.stats.cached());
        let with_pool =
            app.host.processes.rows.iter().filter(|row| row.pool().is_some()).max_by_key(cached);
        let row = with_pool.or(app.host.processes.rows.first())?;
        Some(Box::new(MemoryScreen::new(row.id())))
    },
};

impl Screen for MemoryScreen {
    fn draw(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        match self.pool(app) {
            Some(pool) => self.shown(app, pool, area.width >= 96).draw(area, buffer),
            None => unavailable::draw(self, app, area, buffer),
        }
    }

    fn plots(&self, app: &App, body: Rect) -> Vec<Rect> {
        let Some(pool) = self.pool(app) else {
            return unavailable::plots(self, app, body);
        };
        let chart = self.shown(app, pool, body.width >= 96).areas(body).chart;
        plot(chart).into_iter().collect()
    }

    fn exited_at(&self, app: &App) -> Option<Mono> {
        Some(self.row(app)?.ended()?.mono)
    }

    fn act(&mut self, action: Action, app: &App, body: Rect) -> Effect {
        match action {
            Action::Memory => {}
            Action::NextGpu => return self.switch(app, 1),
            Action::PreviousGpu => return self.switch(app, -1),
            Action::NextPane => {
                self.pane = match self.pane {
                    Pane::Map => Pane::Metrics,
                    Pane::Metrics if !draw::has_room_for_histogram(body) => Pane::Histogram,
                    Pane::Metrics | Pane::Histogram => Pane::Map,
                };
            }
            action if self.pane == Pane::Metrics => match moved(self.scroll, 100, 10, action) {
                Some(at) => self.scroll = at,
                None => return Effect::Ignored,
            },
            Action::Open => {
                let read = self.analysed_map.as_ref();
                let text = read.and_then(|read| self.map.next_largest(&read.map));
                return text.map_or(Effect::Ignored, Effect::Message);
            }
            action => {
                let map = self.analysed_map.as_ref().map(|read| &read.map);
                if !map.is_some_and(|map| self.map.act(action, map, 10)) {
                    return Effect::Ignored;
                }
            }
        }
        Effect::Done
    }

    /// Moves the cursor to the clicked cell of the map, or selects another pane.
    fn click(&mut self, app: &App, place: Position, body: Rect) -> Hit {
        let Some(pool) = self.pool(app) else {
            return Hit::Nothing;
        };
        let shown = self.shown(app, pool, body.width >= 96);
        let panes = shown.areas(body).panes;
        let Some(pane) = panes.pane_at(place) else {
            return Hit::Nothing;
        };
        let cells = panes.map;
        if let Some(read) = self.analysed_map.as_ref().filter(|_| pane == Pane::Map) {
            self.map.click(&read.map, cells, place);
        }
        self.pane = pane;
        Hit::Row
    }

    fn follow(&mut self, app: &App) {
        let Some(pool) = self.pool(app) else { return };
        let mine = app
            .host
            .map
            .as_ref()
            .filter(|map| map.process == self.process && map.ordinal == pool.ordinal)
            .filter(|map| map.allocator.is_bfc() == pool.allocator.is_bfc());
        let Some(map) = mine else {
            self.analysed_map = None;
            return;
        };
        if !self.analysed_map.as_ref().is_some_and(|read| Arc::ptr_eq(&read.map, map)) {
            self.analysed_map = Some(AnalysedMap::new(Arc::clone(map)));
            self.map.set_map();
        }
    }

    fn map(&self, app: &App, _body: Rect) -> Option<(ProcessKey, u32)> {
        Some((self.process, self.pool(app)?.ordinal))
    }

    fn process<'a>(&self, app: &'a App) -> Option<&'a ProcessRow> {
        self.row(app)
    }

    fn copied(&self, app: &App) -> Option<Copied> {
        Some(self.shown(app, self.pool(app)?, true).copied())
    }

    fn footer(&self) -> &'static [Action] {
        &[
            Action::Back,
            Action::Holders,
            Action::NextPane,
            Action::NextGpu,
            Action::Open,
            Action::Stack,
            Action::Copy,
            Action::Left,
            Action::Right,
            Action::Probe,
            Action::ZoomOut,
            Action::ScrollBack,
        ]
    }

    fn footer_label(&self, action: Action) -> Option<&'static str> {
        (action == Action::Open).then_some("largest blocks")
    }

    fn has_use_for(&self, action: Action, app: &App) -> bool {
        match action {
            Action::NextGpu => self.pools(app).len() > 1,
            Action::NextPane | Action::Open | Action::Left | Action::Right => {
                self.analysed_map.is_some()
            }
            Action::ZoomOut | Action::ScrollBack => self.pool(app).is_some(),
            _ => true,
        }
    }

    fn moves_sideways(&self) -> bool {
        self.analysed_map.is_some()
    }

    fn def(&self) -> &'static ScreenDef {
        &DEF
    }
}
