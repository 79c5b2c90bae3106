//! The memory of one process on one device, from inside its allocator: the accounting, what fits, the pool over time,
//! the map of its segments, the histogram of its free blocks, and the metrics by their standard names.
//!
//! Statistics come with every frame; the map is asked for while this screen is open and may be a second older. Parts
//! of the screen leave from below when there is little room; in a pane too small for any of them it is a few lines.

mod accounting;
mod analysed_map;
mod copy_text;
mod cursor_line;
mod figures;
mod fits;
mod headline;
mod large;
mod map;
mod metrics;
mod notes;
mod panes;
mod small;
mod stack;
mod table;
mod title;
mod unavailable;

use std::cell::RefCell;
use std::sync::Arc;

use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};

use self::analysed_map::Read;
use self::figures::Figures;
use super::{Hit, Screen, ScreenDef, Step, moved};
use crate::allocator::warnings::Note;
use crate::model::gpu::Gpu;
use crate::model::pool::Pool;
use crate::model::process::ProcessKey;
use crate::model::units::{GpuUuid, Mono};
use crate::source::Request;
use crate::tui::action::Action;
use crate::tui::app::App;
use crate::tui::clipboard::Copied;
use crate::tui::marks;
use crate::tui::pools;
use crate::tui::rows::{ProcessRow, RowId};
use crate::tui::theme::Theme;
use crate::tui::widgets::segment_map::{Cursor, cell_at};

pub const DEF: ScreenDef = ScreenDef {
    id: "memory",
    title: "Memory",
    words: &[
        (
            "allocated",
            "Bytes in live tensors: torch.cuda.memory_allocated().",
        ),
        (
            "idle",
            "Cached by the allocator, in no tensor: reserved - allocated.",
        ),
        (
            "stuck",
            "The part of idle beside live tensors (inactive split): only smaller requests of its stream can use it. \
             Of expandable segments, what is not a whole free page.",
        ),
        (
            "returnable",
            "The part of idle in whole free segments, which the allocator gives back by itself when it must.",
        ),
        (
            "kept",
            "Whole free segments of a CUDA graph or a MemPool: nobody else can use them.",
        ),
        (
            "waiting",
            "Freed, but another stream may still use it (record_stream).",
        ),
        (
            "other",
            "What the process holds beside its pool: CUDA context, libraries, other allocators. ~ when the samples \
             are of different moments.",
        ),
        (
            "elsewhere",
            "Used on this card by other processes, or by none that is visible here.",
        ),
        (
            "FITS",
            "The largest request that succeeds now: from the cache, from the driver, or after the cache is flushed.",
        ),
        (
            "retry",
            "A request for which the allocator had to flush its cache first.",
        ),
        marks::WORDS[0],
        marks::WORDS[1],
        marks::WORDS[2],
    ],
    sample: |app| {
        // The one with the most to see.
        let idle = |row: &&ProcessRow| row.pool().map(|pool| pool.stats.idle());
        let with_pool = app
            .rows
            .iter()
            .filter(|row| row.pool().is_some())
            .max_by_key(idle);
        let row = with_pool.or(app.rows.first())?;
        Some(Box::new(MemoryScreen::new(row.id())))
    },
};

/// What the keys move in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pane {
    Map,
    Histogram,
    Metrics,
}

/// Where a part was drawn last, which a press of the mouse must know.
#[derive(Debug, Clone, Copy)]
struct DrawnAreas {
    pane: Pane,
    area: Rect,
    /// The first row in it.
    first: usize,
}

#[derive(Debug)]
pub struct MemoryScreen {
    process: ProcessKey,
    /// The GPU it was opened on.
    gpu: Option<GpuUuid>,
    /// The device as chosen with [ and ], by the process's own number.
    ordinal: Option<u32>,
    pane: Pane,
    cursor: Cursor,
    scroll: usize,
    /// The Python stack is to be asked for.
    ask_stack: bool,
    /// It lies below other things and takes no keys: no cursor in the map.
    lies_below: bool,
    drawn: RefCell<Vec<DrawnAreas>>,
    /// The newest map of this pool.
    read: Option<Read>,
}

impl MemoryScreen {
    /// Whose memory it shows.
    pub fn process_key(&self) -> ProcessKey {
        self.process
    }

    pub fn new(id: RowId) -> Self {
        Self {
            process: id.key,
            gpu: id.gpu,
            ordinal: None,
            pane: Pane::Map,
            cursor: Cursor::default(),
            scroll: 0,
            ask_stack: false,
            lies_below: false,
            drawn: RefCell::default(),
            read: None,
        }
    }

    /// Of a GPU's processes the one whose pool is known and that holds the most; else the one that holds the most.
    pub fn largest<'a>(rows: &'a [ProcessRow], gpu: &GpuUuid) -> Option<&'a ProcessRow> {
        rows.iter()
            .filter(|row| row.ended().is_none() && row.id().gpu.as_ref() == Some(gpu))
            .max_by_key(|row| (row.pool().is_some(), row.vram().get()))
    }

    /// As a part of another screen, which has the keys.
    pub fn below(id: RowId) -> Self {
        Self {
            lies_below: true,
            ..Self::new(id)
        }
    }

    /// The process's pools, by their number inside it.
    fn devices<'a>(&self, app: &'a App) -> Vec<&'a Pool> {
        let pools = app.frame.pools.as_ref();
        let mut list: Vec<&Pool> = pools
            .into_iter()
            .flat_map(|pools| pools.of(self.process))
            .collect();
        list.sort_by_key(|pool| pool.ordinal);
        list
    }

    /// The chosen device's, else the one of the GPU it was opened on, else the first.
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
            figures: Figures::of(&app.frame, pool, self.read.as_ref()),
            wide,
        }
    }

    fn row<'a>(&self, app: &'a App) -> Option<&'a ProcessRow> {
        let mut rows = app.all_rows.iter().filter(|r| r.id().key == self.process);
        let first = rows.clone().next();
        rows.find(|row| row.id().gpu == self.gpu).or(first)
    }

    /// Returns where the chart is, if there is one.
    fn paint(&self, app: &App, area: Rect, buffer: &mut Buffer) -> Option<Rect> {
        let Some(pool) = self.pool(app) else {
            return unavailable::draw(self, app, area, buffer);
        };
        self.drawn.borrow_mut().clear();
        let view = self.shown(app, pool, area.width >= 96);
        if area.height < 12 || area.width < 60 {
            view.small(area, buffer);
            return None;
        }
        Some(view.large(area, buffer))
    }

    fn switch(&mut self, app: &App, step: isize) {
        let devices = self.devices(app);
        let now = self.pool(app).map(|pool| pool.ordinal);
        let at = devices.iter().position(|pool| Some(pool.ordinal) == now);
        let next = at.and_then(|at| devices.get(at.checked_add_signed(step)?));
        if let Some(pool) = next {
            self.ordinal = Some(pool.ordinal);
            (self.read, self.cursor, self.scroll) = (None, Cursor::default(), 0);
        }
    }

    fn move_cursor(&mut self, action: Action) -> Option<()> {
        let layout = self.read.as_ref().and_then(Read::drawn)?;
        let at = layout.nearest(self.cursor);
        self.cursor = match action {
            Action::Left => layout.left(at),
            Action::Right => layout.right(at),
            _ => Cursor {
                row: moved(at.row, layout.rows(), 10, action)?,
                ..self.cursor
            },
        };
        Some(())
    }
}

impl Screen for MemoryScreen {
    fn draw(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        self.paint(app, area, buffer);
    }

    fn charts(&self, app: &App, body: Rect) -> Option<Rect> {
        // Drawn to nowhere: only where the chart stands is asked.
        self.paint(app, body, &mut Buffer::empty(body))
    }

    fn ended(&self, app: &App) -> Option<Mono> {
        Some(self.row(app)?.ended()?.mono)
    }

    fn act(&mut self, action: Action, app: &App) -> Step {
        match action {
            Action::Memory => {}
            Action::Stack => self.ask_stack = true,
            Action::NextGpu => self.switch(app, 1),
            Action::PreviousGpu => self.switch(app, -1),
            Action::NextPane => {
                self.pane = match self.pane {
                    Pane::Map => Pane::Metrics,
                    Pane::Metrics => Pane::Histogram,
                    Pane::Histogram => Pane::Map,
                };
            }
            action if self.pane == Pane::Metrics => match moved(self.scroll, 100, 10, action) {
                Some(at) => self.scroll = at,
                None => return Step::Ignored,
            },
            action => {
                let moves = matches!(action, Action::Left | Action::Right)
                    || moved(0, 1, 1, action).is_some();
                if !moves {
                    return Step::Ignored;
                }
                self.move_cursor(action);
            }
        }
        Step::Stay
    }

    /// On a cell of the map the cursor goes there; on another part, the keys do.
    fn click(&mut self, _app: &App, place: Position, _body: Rect) -> Hit {
        let drawn = self.drawn.get_mut().iter();
        let hit = drawn.rev().find(|drawn| drawn.area.contains(place));
        let Some(DrawnAreas { pane, area, first }) = hit.copied() else {
            return Hit::Nothing;
        };
        self.pane = pane;
        let layout = self.read.as_ref().and_then(Read::drawn);
        if let (Pane::Map, Some(layout), Some(x)) = (pane, layout, cell_at(area, place.x)) {
            let row = first + usize::from(place.y - area.y);
            self.cursor = layout.nearest(Cursor { row, x });
        }
        Hit::Row
    }

    fn follow(&mut self, app: &App) {
        let Some(ordinal) = self.pool(app).map(|pool| pool.ordinal) else {
            return;
        };
        let mine = app
            .map
            .as_ref()
            .filter(|map| map.process == self.process && map.ordinal == ordinal);
        let Some(map) = mine else {
            self.read = None;
            return;
        };
        if !self
            .read
            .as_ref()
            .is_some_and(|read| Arc::ptr_eq(&read.map, map))
        {
            self.read = Some(Read::new(Arc::clone(map)));
        }
    }

    fn wants(&mut self, _app: &App) -> Option<Request> {
        std::mem::take(&mut self.ask_stack).then_some(Request::Stacks(self.process))
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
            Action::Right,
            Action::NextPane,
            Action::NextGpu,
            Action::Stack,
            Action::Copy,
            Action::Probe,
            Action::ZoomOut,
            Action::ScrollBack,
        ]
    }

    fn def(&self) -> &'static ScreenDef {
        &DEF
    }
}

impl Shown<'_> {
    fn remember(&self, pane: Pane, area: Rect, first: usize) {
        let drawn = DrawnAreas { pane, area, first };
        self.screen.drawn.borrow_mut().push(drawn);
    }
}

/// What one drawing needs.
struct Shown<'a> {
    screen: &'a MemoryScreen,
    app: &'a App,
    theme: &'a Theme,
    pool: &'a Pool,
    gpu: Option<&'a Gpu>,
    notes: Vec<Note>,
    figures: Figures,
    /// There is room for whole words.
    wide: bool,
}
