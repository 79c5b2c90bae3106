//! The state of the memory screen: its process, the pool that it shows and the cursor.

use gputop_allocator::warnings::Note;
use gputop_model::gpu::Gpu;
use gputop_model::pool::Pool;
use gputop_model::process::ProcessKey;
use gputop_model::units::GpuUuid;

use super::analysed_map::AnalysedMap;
use super::figures::Figures;
use crate::dashboard::pools;
use crate::dashboard::rows::{ProcessRow, RowId};
use crate::tui::app::App;
use crate::tui::screen::{Effect, no_more_gpus};
use crate::tui::theme::Theme;
use crate::tui::widgets::segment_map::MapPane;

/// The pane with the keyboard focus.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Pane {
    #[default]
    Map,
    Histogram,
    Metrics,
}

#[derive(Debug, Default)]
pub struct MemoryScreen {
    pub(super) process: ProcessKey,
    /// The GPU from which the screen was opened.
    pub(super) gpu: Option<GpuUuid>,
    /// Device index as seen by the process, if chosen with [ and ].
    pub(super) ordinal: Option<u32>,
    pub(super) pane: Pane,
    pub(super) map: MapPane,
    pub(super) scroll: usize,
    /// Newest map of the displayed pool.
    pub(super) analysed_map: Option<AnalysedMap>,
}

impl MemoryScreen {
    pub fn new(id: RowId) -> Self {
        Self { process: id.key, gpu: id.gpu, ..Self::default() }
    }

    /// Returns the process with the most memory on a GPU. Processes with a known pool take precedence.
    pub fn largest<'a>(rows: &'a [ProcessRow], gpu: &GpuUuid) -> Option<&'a ProcessRow> {
        rows.iter()
            .filter(|row| row.ended().is_none() && row.id().gpu.as_ref() == Some(gpu))
            .max_by_key(|row| (row.pool().is_some(), row.vram().get()))
    }

    /// Returns the pools of the process, ordered by device index.
    pub(super) fn devices<'a>(&self, app: &'a App) -> Vec<&'a Pool> {
        let pools = app.host.frame.pools.as_ref();
        let mut list: Vec<&Pool> =
            pools.into_iter().flat_map(|pools| pools.of(self.process)).collect();
        list.sort_unstable_by_key(|pool| pool.ordinal);
        list
    }

    /// Returns the pool of the chosen device. If no device was chosen, returns the pool on the GPU from which the
    /// screen was opened. If there is no such pool, returns the first one.
    pub(super) fn pool<'a>(&self, app: &'a App) -> Option<&'a Pool> {
        let devices = self.devices(app);
        let opened = |pool: &&&Pool| {
            let on = pools::gpu_of(&app.host.frame, pool).map(|gpu| &gpu.uuid);
            on.is_some() && on == self.gpu.as_ref()
        };
        devices
            .iter()
            .find(|pool| Some(pool.ordinal) == self.ordinal)
            .or_else(|| devices.iter().find(opened))
            .or(devices.first())
            .copied()
    }

    pub(super) fn shown<'a>(&'a self, app: &'a App, pool: &'a Pool, wide: bool) -> Shown<'a> {
        Shown {
            screen: self,
            app,
            theme: &app.ui.theme,
            pool,
            gpu: pools::gpu_of(&app.host.frame, pool),
            notes: app.host.pool_notes(self.process, pool.ordinal),
            figures: Figures::of(&app.host.frame, pool, self.analysed_map.as_ref()),
            wide,
        }
    }

    pub(super) fn row<'a>(&self, app: &'a App) -> Option<&'a ProcessRow> {
        let mut rows = app.host.processes.all_rows.iter().filter(|r| r.id().key == self.process);
        let first = rows.clone().next();
        rows.find(|row| row.id().gpu == self.gpu).or(first)
    }

    pub(super) fn switch(&mut self, app: &App, step: isize) -> Effect {
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

/// Everything needed to draw the screen once.
pub(super) struct Shown<'a> {
    pub(super) screen: &'a MemoryScreen,
    pub(super) app: &'a App,
    pub(super) theme: &'a Theme,
    pub(super) pool: &'a Pool,
    pub(super) gpu: Option<&'a Gpu>,
    pub(super) notes: Vec<Note>,
    pub(super) figures: Figures,
    /// True if full labels fit.
    pub(super) wide: bool,
}
