//! The state of the memory screen: its process, the pool that it shows and the cursor.

use std::borrow::Cow;

use gputop_allocator::warnings::Note;
use gputop_model::gpu::Gpu;
use gputop_model::pool::{Allocator, Pool};
use gputop_model::process::ProcessKey;
use gputop_model::reported_pool::{PoolSource, ReportedPool};
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
    /// Pool chosen with [ and ]: the device index as seen by the process, and the allocator.
    pub(super) chosen: Option<(u32, Allocator)>,
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

    /// Returns the pools of the process that gputop reads, ordered by device index.
    pub(super) fn pools<'a>(&self, app: &'a App) -> Vec<Cow<'a, Pool>> {
        let pools = app.host.frame.pools.as_ref();
        let torch = pools.into_iter().flat_map(|pools| pools.of(self.process));
        let others = pools.into_iter().flat_map(|pools| pools.reported_of(self.process));
        let read = others.filter(|pool| pool.source == PoolSource::Memory);
        let read = read.filter_map(ReportedPool::to_pool).map(Cow::Owned);
        let mut list: Vec<Cow<'_, Pool>> = torch.map(Cow::Borrowed).chain(read).collect();
        list.sort_by_key(|pool| pool.ordinal);
        list
    }

    /// Returns the pools that the process has on the same GPU in addition to the displayed pool.
    pub(super) fn beside<'a>(&self, app: &'a App, shown: &Pool) -> Vec<Cow<'a, Pool>> {
        let pools = app.host.frame.pools.as_ref();
        let torch = pools.into_iter().flat_map(|pools| pools.of(self.process)).map(Cow::Borrowed);
        let others = pools.into_iter().flat_map(|pools| pools.reported_of(self.process));
        let others = others.filter_map(ReportedPool::to_pool).map(Cow::Owned);
        let is_beside =
            |pool: &Cow<'_, Pool>| pool.ordinal == shown.ordinal && pool.library != shown.library;
        torch.chain(others).filter(is_beside).collect()
    }

    /// Returns the pool of the chosen device. If no device was chosen, returns the pool on the GPU from which the
    /// screen was opened. If there is no such pool, returns the first one.
    pub(super) fn pool<'a>(&self, app: &'a App) -> Option<Cow<'a, Pool>> {
        let pools = self.pools(app);
        let opened = |pool: &&Cow<'_, Pool>| {
            let on = pools::gpu_of(&app.host.frame, pool).map(|gpu| &gpu.uuid);
            on.is_some() && on == self.gpu.as_ref()
        };
        pools
            .iter()
            .find(|pool| Some(key(pool)) == self.chosen)
            .or_else(|| pools.iter().find(opened))
            .or(pools.first())
            .cloned()
    }

    pub(super) fn shown<'a>(&'a self, app: &'a App, pool: Cow<'a, Pool>, wide: bool) -> Shown<'a> {
        Shown {
            screen: self,
            app,
            theme: &app.ui.theme,
            gpu: pools::gpu_of(&app.host.frame, &pool),
            notes: app.host.pool_notes(self.process, pool.ordinal),
            figures: Figures::of(&app.host.frame, &pool, self.analysed_map.as_ref()),
            beside: self.beside(app, &pool),
            pool,
            wide,
        }
    }

    pub(super) fn row<'a>(&self, app: &'a App) -> Option<&'a ProcessRow> {
        let mut rows = app.host.processes.all_rows.iter().filter(|r| r.id().key == self.process);
        let first = rows.clone().next();
        rows.find(|row| row.id().gpu == self.gpu).or(first)
    }

    pub(super) fn switch(&mut self, app: &App, step: isize) -> Effect {
        let pools = self.pools(app);
        let now = self.pool(app).map(|pool| key(&pool));
        let at = pools.iter().position(|pool| Some(key(pool)) == now);
        let next = at.and_then(|at| pools.get(at.checked_add_signed(step)?));
        let Some(pool) = next else {
            return Effect::Message(no_more_gpus(pools.len(), step) + " of the process");
        };
        self.chosen = Some(key(pool));
        (self.analysed_map, self.map, self.scroll) = (None, MapPane::default(), 0);
        Effect::Done
    }
}

/// Returns what tells apart the pools of one process.
fn key(pool: &Pool) -> (u32, Allocator) {
    (pool.ordinal, pool.allocator)
}

/// Everything needed to draw the screen once.
pub(super) struct Shown<'a> {
    pub(super) screen: &'a MemoryScreen,
    pub(super) app: &'a App,
    pub(super) theme: &'a Theme,
    pub(super) pool: Cow<'a, Pool>,
    /// Other pools of the process on the same GPU.
    pub(super) beside: Vec<Cow<'a, Pool>>,
    pub(super) gpu: Option<&'a Gpu>,
    pub(super) notes: Vec<Note>,
    pub(super) figures: Figures,
    /// True if full labels fit.
    pub(super) wide: bool,
}
