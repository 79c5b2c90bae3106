//! Layout and drawing of the memory screen. The parts are placed from top to bottom. If there is not enough space, the
//! lowest parts are omitted first.

use gputop_model::pool::{Allocator, BlockState};
use gputop_model::units::Bytes;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Position, Rect};

use super::analysed_map::AnalysedMap;
use super::figures::down;
use super::state::{Pane, Shown};
use super::text::card_name;
use crate::dashboard::holders::HolderRow;
use crate::dashboard::memory_parts::MemoryPart;
use crate::dashboard::rows::ProcessRow;
use crate::export::text_width::fit;
use crate::tui::action::Action;
use crate::tui::marks;
use crate::tui::theme::Role;
use crate::tui::widgets::area::{margin, row, split_left, split_top};
use crate::tui::widgets::bar::{self, Part};
use crate::tui::widgets::cells::{
    join_fitting, put, put_all, put_fitting, put_line, put_lines, put_right, wrap_words,
};
use crate::tui::widgets::histogram;
use crate::tui::widgets::pool_chart::PoolChart;
use crate::tui::widgets::segment_map::CellContents;

/// Areas of the memory screen's parts. Parts that do not fit are empty.
#[derive(Default)]
pub(super) struct Areas {
    title: Rect,
    headline: Rect,
    table: Rect,
    fits: Rect,
    note: Rect,
    stack: Rect,
    pub(super) chart: Rect,
    /// Areas of the bar and the text lines that replace everything above the panes on a small screen.
    bar: Rect,
    lines: Rect,
    pub(super) panes: PaneAreas,
}

#[derive(Default)]
pub(super) struct PaneAreas {
    /// Area for the reason why the memory map is missing.
    missing: Rect,
    /// Area of the map's cells, below the title of the map.
    pub(super) map: Rect,
    /// Area of the line that describes the cell under the cursor.
    under: Rect,
    histogram: Rect,
    metrics: Rect,
}

impl PaneAreas {
    pub(super) fn pane_at(&self, at: Position) -> Option<Pane> {
        [(Pane::Metrics, self.metrics), (Pane::Histogram, self.histogram), (Pane::Map, self.map)]
            .into_iter()
            .find_map(|(pane, area)| area.contains(at).then_some(pane))
    }
}

fn rows(count: usize) -> u16 {
    u16::try_from(count).unwrap_or(u16::MAX)
}

/// Minimum width for the memory map with the histogram beside it.
const MIN_WIDTH_FOR_BOTH: u16 = 76;

/// Returns true if the histogram is drawn beside the map, so that it needs no pane of its own.
pub(super) fn has_room_for_histogram(body: Rect) -> bool {
    let is_small = Shown::is_small(body);
    let width = if is_small { body.width } else { margin(body).width };
    width >= MIN_WIDTH_FOR_BOTH
}

impl Shown<'_> {
    fn is_small(area: Rect) -> bool {
        area.height < 12 || area.width < 60
    }

    pub(super) fn areas(&self, area: Rect) -> Areas {
        if Self::is_small(area) {
            return self.small_areas(area);
        }
        let inner = margin(area);
        let stack = rows(self.large_stack(area).len());
        // Always there, so that nothing moves when a note appears.
        let note = u16::from(area.height >= 30);
        let [title, headline, note, table, fits, stack, rest] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Length(note),
            Constraint::Length(1 + rows(self.lines().len())),
            Constraint::Length(1),
            Constraint::Length(stack),
            Constraint::Fill(1),
        ])
        .areas(inner);
        let height = match rest.height {
            0..=9 => 0,
            10..=13 => 4,
            more => (more / 2).clamp(5, 16),
        };
        let [chart, panes] = split_top(rest, height);
        Areas {
            title,
            headline,
            table,
            fits,
            note,
            stack,
            chart,
            panes: self.pane_areas(panes),
            ..Areas::default()
        }
    }

    fn small_areas(&self, area: Rect) -> Areas {
        let lines = rows(self.small_lines(area.width).len());
        let [title, bar, lines, rest] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Length(lines),
            Constraint::Fill(1),
        ])
        .areas(area);
        let panes = match rest.height {
            0..=2 => PaneAreas::default(),
            _ => self.pane_areas(rest),
        };
        Areas { title, bar, lines, panes, ..Areas::default() }
    }

    /// Places as many panes (map, histogram, metrics) as fit. Tab shows the remaining panes.
    fn pane_areas(&self, area: Rect) -> PaneAreas {
        let mut areas = PaneAreas::default();
        if area.height < 2 {
            return areas;
        }
        if self.screen.analysed_map.is_none() {
            areas.missing = area;
            return areas;
        }
        let both = area.height >= 20;
        if self.screen.pane == Pane::Metrics && !both {
            areas.metrics = area;
            return areas;
        }
        let metrics = rows(self.metric_lines().len()).min(area.height / 2);
        let [upper, metrics] = split_top(area, area.height - if both { metrics } else { 0 });
        areas.metrics = metrics;
        let line = u16::from(upper.height >= 4);
        let [blocks, under] = split_top(upper, upper.height - line);
        if blocks.width >= MIN_WIDTH_FOR_BOTH {
            let right = Constraint::Length((area.width * 2 / 5).clamp(32, 60));
            let split = Layout::horizontal([Constraint::Fill(1), right]).spacing(2);
            [areas.map, areas.histogram] = split.areas(blocks);
        } else if self.screen.pane == Pane::Histogram {
            areas.histogram = blocks;
        } else {
            areas.map = blocks;
        }
        if areas.map.height > 0 {
            areas.under = under;
            [_, areas.map] = split_top(areas.map, 1);
        }
        areas
    }

    /// Returns the lines of the stack shown in a large area. If there is no room for both the stack and the chart, the
    /// stack takes precedence only if the user requested it.
    fn large_stack(&self, area: Rect) -> Vec<(String, Role)> {
        let min_height = if self.is_stack_requested() { 16 } else { 26 };
        if area.height < min_height {
            return Vec::new();
        }
        let max_lines = if area.height < 32 { 1 } else { 3 };
        self.stack_lines(area.width.saturating_sub(2), max_lines)
    }

    pub(super) fn draw(&self, area: Rect, buffer: &mut Buffer) {
        let (areas, theme) = (self.areas(area), self.theme);
        self.title(areas.title, buffer);
        if Self::is_small(area) {
            self.bar(areas.bar, buffer);
            put_lines(buffer, areas.lines, &self.small_lines(area.width), theme);
        } else {
            self.headline(areas.headline, buffer);
            self.table(areas.table, buffer);
            self.fits_line(areas.fits, buffer);
            match self.first_note() {
                _ if areas.note.is_empty() => {}
                Some(note) => put_line(buffer, areas.note, &note, Role::Warn, theme),
                None => self.holders(areas.note, buffer),
            }
            put_lines(buffer, areas.stack, &self.large_stack(area), theme);
            self.chart(areas.chart, buffer);
        }
        let panes = &areas.panes;
        let Some(read) = &self.screen.analysed_map else {
            return self.without_map(panes.missing, buffer);
        };
        if !panes.map.is_empty() {
            self.map(read, panes, buffer);
        }
        if !panes.histogram.is_empty() {
            histogram::draw(&read.fragmentation.histogram, panes.histogram, buffer, theme);
        }
        self.metrics(panes.metrics, buffer);
    }

    fn without_map(&self, area: Rect, buffer: &mut Buffer) {
        let pool = (self.pool.process, self.pool.ordinal);
        let missing = self.app.host.no_map.as_ref().filter(|(of, _)| *of == pool);
        let text = match missing {
            Some((_, why)) => format!("MAP  {why}"),
            None if self.is_hidden_by_torch() => format!(
                "MAP  the map of PyTorch's pool on this GPU is read instead. `gputop allocator {} --blocks` prints both",
                self.screen.process.pid
            ),
            None => "MAP  reading".to_owned(),
        };
        let lines = wrap_words(&text, usize::from(area.width));
        let lines: Vec<_> = lines.into_iter().map(|line| (line, Role::Dim)).collect();
        put_lines(buffer, area, &lines, self.theme);
    }

    /// Returns true if the map of this pool cannot be requested, because PyTorch has a pool on the same device.
    fn is_hidden_by_torch(&self) -> bool {
        let mut beside = self.beside.iter();
        self.pool.allocator.is_bfc() && beside.any(|pool| pool.allocator == Allocator::Native)
    }

    /// Draws the memory map, and a description of the cell under the cursor.
    fn map(&self, read: &AnalysedMap, areas: &PaneAreas, buffer: &mut Buffer) {
        let (pane, theme) = (&self.screen.map, self.theme);
        pane.draw(&read.map, read.map.exact, areas.map, buffer, theme);
        let under = pane.under(&read.map).filter(|_| !areas.under.is_empty());
        if let Some(under) = under {
            let shown = if areas.under.width >= 96 { 8 } else { 4 };
            let mut words = under.words(shown, theme);
            if let Some(owner) = self.owner_text(&under) {
                words = format!("{owner}  {words}");
            }
            put_line(buffer, areas.under, &words, Role::Text, theme);
        }
    }

    /// Describes the largest allocated block in a cell and its holder, if the holder is known: `# 27M held by
    /// model.emb.weight (parameters)`.
    fn owner_text(&self, cell: &CellContents<'_>) -> Option<String> {
        let reading = self.app.host.holders.of(self.screen.process)?;
        let blocks = cell.blocks.iter().filter(|block| block.state == BlockState::Allocated);
        let largest = blocks.max_by_key(|block| block.size)?;
        let owner = reading.owner_text(self.pool.ordinal, largest.address)?;
        let glyph = self.theme.glyphs.allocated;
        Some(format!("{glyph} {} {owner}", largest.size.short()))
    }

    fn title(&self, area: Rect, buffer: &mut Buffer) {
        let theme = self.theme;
        let name = self.screen.row(self.app).map_or("process".into(), ProcessRow::program);
        let name = format!("{name} {}", self.screen.process.pid);
        let gpu = match self.gpu {
            Some(gpu) => format!("GPU {} {}", gpu.index, card_name(gpu)),
            None => format!("cuda:{} (GPU not identified)", self.pool.ordinal),
        };
        let devices = self.screen.pools(self.app).len();
        let devices =
            (devices > 1).then(|| format!("cuda:{} of {devices} ([ ])", self.pool.ordinal));
        let state = if area.width < 60 { format!("{} ago", self.age()) } else { self.map_state() };
        let dim = theme.style(Role::Dim);
        let right = put_right(buffer, area.x, area.right(), area.y, &state, dim);
        let parts = [
            Some((name.as_str(), Role::Title)),
            Some((gpu.as_str(), Role::Text)),
            devices.as_deref().map(|devices| (devices, Role::Key)),
            Some((self.pool.library.as_str(), Role::Dim)),
        ];
        let [left, _] = split_left(row(area, area.y), right.saturating_sub(area.x + 1));
        put_fitting(buffer, left, parts.into_iter().flatten(), theme);
    }

    fn headline(&self, area: Rect, buffer: &mut Buffer) {
        let text = self.headline_text();
        // Growth matters more than fragments.
        let growth = self.screen.row(self.app).and_then(ProcessRow::growth_sentence);
        let is_bad = growth.is_some() || text.contains("but no request");
        let text = growth.map_or(text.clone(), |growth| format!("It {growth}. {text}"));
        let role = if is_bad { Role::Warn } else { Role::Good };
        put_line(buffer, area, &text, role, self.theme);
    }

    /// Names the largest holders if their names were read, or the key that reads them.
    fn holders(&self, area: Rect, buffer: &mut Buffer) {
        let theme = self.theme;
        let reading = self.app.host.holders.of(self.screen.process);
        let groups = reading.map_or(&[][..], |reading| &reading.rows);
        let mut parts = vec!["held by".to_owned()];
        let words = |row: &HolderRow| match row.key.name.as_str() {
            "" => format!("{} {},", row.key.class.name(), row.bytes.short()),
            name => format!("{name} {},", row.bytes.short()),
        };
        parts.extend(groups.iter().take(4).map(words));
        let action = Action::Holders;
        let key = format!("{} {}", self.app.ui.keymap.label(action), action.def().short);
        let right = put_right(buffer, area.x, area.right(), area.y, &key, theme.style(Role::Key));
        if !groups.is_empty() {
            let room = right.saturating_sub(area.x + 2);
            let text = join_fitting(&parts, room);
            let text = text.trim_end_matches(',');
            put(buffer, area.x, area.y, text, room, theme.style(Role::Text));
        }
    }

    /// Draws the memory bar and the column headings in one row, and the accounting lines below it.
    fn table(&self, area: Rect, buffer: &mut Buffer) {
        let theme = self.theme;
        // Limit the table's width, so that a name and its size stay close together.
        let area = Rect { width: area.width.min(120), ..area };
        let compare = if self.wide { 26 } else { 20 };
        let right = area.right().saturating_sub(compare + 2);
        let (peak_at, size_at) = (right, right.saturating_sub(8));
        let dim = theme.style(Role::Dim);
        self.bar(Rect { width: size_at.saturating_sub(area.x + 9), ..area }, buffer);
        put_right(buffer, area.x, size_at, area.y, "GiB", dim);
        put_right(buffer, area.x, peak_at, area.y, "PEAK", dim);
        put(buffer, right + 2, area.y, "COMPARE WITH", compare, dim);
        for (y, line) in (area.y + 1..area.bottom()).zip(self.lines()) {
            if let Some((glyph, role)) = line.shape {
                put(buffer, area.x, y, glyph, 1, theme.style(role));
            }
            let text = theme.style(Role::Text);
            put(buffer, area.x + 2, y, line.name, 13, text);
            let room = size_at.saturating_sub(area.x + 15 + 8);
            let words = fit(&line.description, usize::from(room), theme.glyphs.ellipsis);
            put(buffer, area.x + 15, y, &words, room, dim);
            put_right(buffer, area.x, size_at, y, &line.size, text);
            put_right(buffer, area.x, peak_at, y, &line.peak, dim);
            put(buffer, right + 2, y, &line.compare, compare, dim);
        }
    }

    fn bar(&self, area: Rect, buffer: &mut Buffer) {
        let figures = &self.figures;
        let card = figures.card.unwrap_or_default();
        let parts = [
            (figures.allocated, MemoryPart::Allocated),
            (figures.cached, MemoryPart::Cached),
            (figures.other.unwrap_or_default(), MemoryPart::Other),
            (card.elsewhere, MemoryPart::Unreadable),
            (card.driver, MemoryPart::Driver),
            (card.free, MemoryPart::Free),
        ]
        .map(|(size, part)| Part {
            amount: size.0,
            glyph: self.theme.memory_glyph(part),
            style: self.theme.style(part.into()),
        });
        bar::draw(buffer, area.x, area.y, area.width, &parts);
    }

    fn fits_line(&self, area: Rect, buffer: &mut Buffer) {
        let theme = self.theme;
        let size = |size: Option<Bytes>| size.map_or(theme.glyphs.absent.into(), down);
        let fits = &self.figures.fits;
        let names = match (self.wide, self.pool.allocator.is_bfc()) {
            (true, false) => [" cache ", "   driver ", "   after flush "],
            (false, false) => ["cache ", "  driver ", "  flushed "],
            (true, true) => [" pool ", "   new region ", ""],
            (false, true) => ["pool ", "  new region ", ""],
        };
        let steps = [
            (names[0], size(fits.cache)),
            (names[1], size(fits.driver)),
            (names[2], size(fits.flushed)),
        ];
        let (dim, text) = (theme.style(Role::Dim), theme.style(Role::Text));
        let mut pieces = vec![("FITS GiB ", theme.style(Role::Title))];
        // A pool of JAX or TensorFlow has no flush.
        for (name, size) in steps.iter().filter(|(name, _)| !name.is_empty()) {
            pieces.extend([(*name, dim), (size.as_str(), text)]);
        }
        let end = put_all(buffer, area.x, area.y, area.right(), &pieces);
        let role = theme.style(self.counters_role());
        put_right(buffer, end + 2, area.right(), area.y, &self.counters(), role);
    }

    fn chart(&self, area: Rect, buffer: &mut Buffer) {
        let top = self
            .gpu
            .and_then(|gpu| gpu.memory.total.get())
            .unwrap_or(self.pool.stats.reserved_peak);
        PoolChart {
            history: &self.app.host.history,
            process: self.screen.process,
            ordinal: self.pool.ordinal,
            axis: self.app.host.time_axis(None),
            marks: marks::of_process(self.app, self.screen.process, None),
            top,
        }
        .draw(area, buffer, self.theme);
    }

    fn metrics(&self, area: Rect, buffer: &mut Buffer) {
        let (theme, lines) = (self.theme, self.metric_lines());
        let last = lines.len().saturating_sub(usize::from(area.height));
        let first = self.screen.scroll.min(last);
        for (y, line) in (area.y..area.bottom()).zip(lines.iter().skip(first)) {
            if line.value.is_empty() {
                put_line(buffer, row(area, y), &line.name, Role::Title, theme);
                continue;
            }
            put(buffer, area.x, y, &line.name, 26, theme.style(Role::Dim));
            let value = theme.style(Role::Text);
            put_right(buffer, area.x + 26, area.x + 38, y, &line.value, value);
            let room = area.width.saturating_sub(40);
            let words = fit(&line.description, usize::from(room), theme.glyphs.ellipsis);
            put(buffer, area.x + 40, y, &words, room, theme.style(Role::Dim));
        }
    }
}
