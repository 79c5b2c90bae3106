//! One process's memory on one device, read from its allocator: the accounting, what fits, the pool over time, the
//! segment map, the histogram of free blocks, and metrics with standard names.
//!
//! Statistics arrive with every frame. The map is requested while this screen is open and may be up to a second older.
//! In a small area, the lowest parts are omitted; in a very small pane, the screen is reduced to a few lines.

mod draw;
mod figures;
mod text;
mod unavailable;

use std::cell::RefCell;
use std::sync::Arc;

use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};

use self::figures::Figures;
use crate::allocator::fits::{FitConditions, Fits};
use crate::allocator::fragmentation::{Fragmentation, unusable_curve};
use crate::allocator::warnings::Note;
use crate::model::gpu::Gpu;
use crate::model::pool::{Pool, PoolMap};
use crate::model::process::ProcessKey;
use crate::model::units::{Bytes, GpuUuid, Millis, Mono};
use crate::tui::action::{Action, moved};
use crate::tui::app::App;
use crate::tui::clipboard::Copied;
use crate::tui::rows::{ProcessRow, RowId};
use crate::tui::screen::{Effect, Hit, Screen, ScreenDef, no_more_gpus};
use crate::tui::theme::Theme;
use crate::tui::widgets::segment_map::MapPane;
use crate::tui::{marks, pools};

pub const DEF: ScreenDef = ScreenDef {
    id: "memory",
    title: "Memory",
    glossary: &[
        ("allocated", "Bytes in live tensors: torch.cuda.memory_allocated()."),
        ("idle", "Cached by the allocator, but not in tensors: reserved - allocated."),
        (
            "stuck",
            "Idle memory in segments that also hold live tensors (inactive split). Only requests from the same stream that \
             fit into a free block can use it. In expandable segments: idle memory in partly used pages.",
        ),
        (
            "returnable",
            "Idle memory in segments that are entirely free. The allocator releases it to the driver when necessary.",
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
        // Prefer the process with the most idle memory, because its screen shows the most detail.
        let idle = |row: &&ProcessRow| row.pool().map(|pool| pool.stats.idle());
        let with_pool = app.rows.iter().filter(|row| row.pool().is_some()).max_by_key(idle);
        let row = with_pool.or(app.rows.first())?;
        Some(Box::new(MemoryScreen::new(row.id())))
    },
};

/// The pane with the keyboard focus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pane {
    Map,
    Histogram,
    Metrics,
}

#[derive(Debug)]
pub struct MemoryScreen {
    process: ProcessKey,
    /// The GPU from which the screen was opened.
    gpu: Option<GpuUuid>,
    /// Device index as seen by the process, if chosen with [ and ].
    ordinal: Option<u32>,
    pane: Pane,
    map: MapPane,
    scroll: usize,
    /// True if this screen is part of another screen, which handles the keys. The map then has no cursor.
    is_embedded: bool,
    /// Newest map of the displayed pool.
    analysed_map: Option<AnalysedMap>,
}

impl MemoryScreen {
    /// Returns the process shown on this screen.
    pub fn process_key(&self) -> ProcessKey {
        self.process
    }

    pub fn new(id: RowId) -> Self {
        Self {
            process: id.key,
            gpu: id.gpu,
            ordinal: None,
            pane: Pane::Map,
            map: MapPane::default(),
            scroll: 0,
            is_embedded: false,
            analysed_map: None,
        }
    }

    /// Returns the process with the most memory on a GPU. Processes with a known pool take precedence.
    pub fn largest<'a>(rows: &'a [ProcessRow], gpu: &GpuUuid) -> Option<&'a ProcessRow> {
        rows.iter()
            .filter(|row| row.ended().is_none() && row.id().gpu.as_ref() == Some(gpu))
            .max_by_key(|row| (row.pool().is_some(), row.vram().get()))
    }

    /// Creates a screen that is part of another screen. The other screen handles the keys.
    pub fn embedded(id: RowId) -> Self {
        Self { is_embedded: true, ..Self::new(id) }
    }

    /// Returns the pools of the process, ordered by device index.
    fn devices<'a>(&self, app: &'a App) -> Vec<&'a Pool> {
        let pools = app.frame.pools.as_ref();
        let mut list: Vec<&Pool> =
            pools.into_iter().flat_map(|pools| pools.of(self.process)).collect();
        list.sort_unstable_by_key(|pool| pool.ordinal);
        list
    }

    /// Returns the pool of the chosen device. If no device was chosen, returns the pool on the GPU from which the
    /// screen was opened. If there is no such pool, returns the first one.
    fn pool<'a>(&self, app: &'a App) -> Option<&'a Pool> {
        let devices = self.devices(app);
        let chosen = |pool: &&&Pool| Some(pool.ordinal) == self.ordinal;
        let opened = |pool: &&&Pool| {
            let on = pools::gpu_of(&app.frame, pool).map(|gpu| &gpu.uuid);
            on.is_some() && on == self.gpu.as_ref()
        };
        devices
            .iter()
            .find(chosen)
            .or_else(|| devices.iter().find(opened))
            .or(devices.first())
            .copied()
    }

    fn shown<'a>(&'a self, app: &'a App, pool: &'a Pool, wide: bool) -> Shown<'a> {
        Shown {
            screen: self,
            app,
            theme: &app.theme,
            pool,
            gpu: pools::gpu_of(&app.frame, pool),
            notes: app.pool_notes(self.process, pool.ordinal),
            figures: Figures::of(&app.frame, pool, self.analysed_map.as_ref()),
            wide,
        }
    }

    fn row<'a>(&self, app: &'a App) -> Option<&'a ProcessRow> {
        let mut rows = app.all_rows.iter().filter(|r| r.id().key == self.process);
        let first = rows.clone().next();
        rows.find(|row| row.id().gpu == self.gpu).or(first)
    }

    fn switch(&mut self, app: &App, step: isize) -> Effect {
        let devices = self.devices(app);
        let now = self.pool(app).map(|pool| pool.ordinal);
        let at = devices.iter().position(|pool| Some(pool.ordinal) == now);
        let next = at.and_then(|at| devices.get(at.checked_add_signed(step)?));
        let Some(pool) = next else {
            return Effect::Message(no_more_gpus(devices.len(), step) + " of the process");
        };
        self.ordinal = Some(pool.ordinal);
        (self.analysed_map, self.map, self.scroll) = (None, MapPane::default(), 0);
        Effect::Done
    }
}

impl Screen for MemoryScreen {
    fn draw(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        match self.pool(app) {
            Some(pool) => self.shown(app, pool, area.width >= 96).draw(area, buffer),
            None => unavailable::draw(self, app, area, buffer),
        }
    }

    fn charts(&self, app: &App, body: Rect) -> Option<Rect> {
        match self.pool(app) {
            Some(pool) => Some(self.shown(app, pool, body.width >= 96).areas(body).chart),
            None => unavailable::chart_area(self, app, body),
        }
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
        let Some(ordinal) = self.pool(app).map(|pool| pool.ordinal) else {
            return;
        };
        let mine =
            app.map.as_ref().filter(|map| map.process == self.process && map.ordinal == ordinal);
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
            Action::Left,
            Action::Right,
            Action::Stack,
            Action::Copy,
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
            Action::NextGpu => self.devices(app).len() > 1,
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

/// Maximum age of a map used for the accounting. An older map is still drawn.
const MAX_AGE: Millis = Millis(3_000);

/// A map, and values computed once from it.
#[derive(Debug)]
struct AnalysedMap {
    map: Arc<PoolMap>,
    fragmentation: Fragmentation,
    curve: Vec<(Bytes, f64)>,
    largest_allocated: Option<Bytes>,
    /// Largest request that fits, cached with the conditions for which it was computed.
    fits: RefCell<Option<(FitConditions, Fits)>>,
}

impl AnalysedMap {
    fn new(map: Arc<PoolMap>) -> Self {
        Self {
            fragmentation: Fragmentation::of(&map),
            curve: unusable_curve(&map),
            largest_allocated: map.largest_allocated().map(|block| block.size),
            map,
            fits: RefCell::new(None),
        }
    }

    /// Returns true if the map and the pool statistics were read at about the same time.
    fn is_fresh(&self, pool: &Pool) -> bool {
        let (map, stats) = (self.map.at, pool.at);
        map.since(stats).max(stats.since(map)) <= MAX_AGE
    }

    fn fits(&self, conditions: FitConditions) -> Fits {
        let mut cached = self.fits.borrow_mut();
        match *cached {
            Some((same, fits)) if same == conditions => fits,
            _ => cached.insert((conditions, Fits::of_map(&self.map, &conditions))).1,
        }
    }
}

/// Everything needed to draw the screen once.
struct Shown<'a> {
    screen: &'a MemoryScreen,
    app: &'a App,
    theme: &'a Theme,
    pool: &'a Pool,
    gpu: Option<&'a Gpu>,
    notes: Vec<Note>,
    figures: Figures,
    /// True if full labels fit.
    wide: bool,
}
