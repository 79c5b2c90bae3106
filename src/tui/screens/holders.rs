//! Holders of one process's GPU memory: groups of tensors by name, largest first, with their growth. Opening a group
//! lists its tensors.

use gputop_model::holders::HolderClass;
use gputop_model::holders::{GroupKey, Holders};
use gputop_model::process::ProcessKey;
use gputop_model::units::Bytes;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};

use super::holder_group::HolderGroupScreen;
use super::holder_screen::{HolderList, HolderScreen, program};
use super::list::ListRow;
use crate::dashboard::holder_columns::{HOLDER_COLUMNS, hidden};
use crate::dashboard::holders::{HolderRow, ProcessReading};
use crate::dashboard::pools::gpu_of;
use crate::dashboard::sizes::percent_words;
use crate::dashboard::table::{Column, Hidden};
use crate::dashboard::times::span_text;
use crate::export::holders::{advice_lines, estimates, sentence, state_text};
use crate::export::probe::sentence as capitalized;
use crate::export::tables;
use crate::export::text_width::columns;
use crate::tui::action::Action;
use crate::tui::app::App;
use crate::tui::clipboard::Copied;
use crate::tui::screen::{Effect, Screen, ScreenDef, is_small};
use crate::tui::theme::{Role, Theme};
use crate::tui::widgets::area::{margin, row, split_left};
use crate::tui::widgets::bar::{self, Part};
use crate::tui::widgets::cells::{
    put_all, put_fitting, put_line, put_line_right, put_lines, wrap_words,
};

pub const DEF: ScreenDef = ScreenDef {
    id: "holders",
    title: "Holders",
    glossary: &[
        (
            "NAME",
            "The shortest chain of Python names that leads to the tensors. * stands for any index or number.",
        ),
        ("autograd", "Saved for the backward pass. NAME is the tensor whose graph keeps it alive."),
        (
            "unnamed",
            "Tensor objects with no known chain of references, such as temporaries or garbage in a reference cycle.",
        ),
        (
            "C++",
            "Storages whose tensors have no Python object, such as the weights of a TorchScript module.",
        ),
        ("no tensor", "Blocks without a known tensor, such as the cuBLAS workspace."),
        (
            "MiB/min",
            "Growth rate of a group that grew in every reading. Readings are taken every 30 s while this screen is open.",
        ),
    ],
    sample: |app| Some(Box::new(HoldersScreen::new(app.host.holders.newest()?))),
};

pub type HoldersScreen = HolderScreen<HolderRow>;

const TITLE: &str = "HOLDERS  ";
impl ListRow for HolderRow {
    type Key = GroupKey;
    type Subject = ProcessKey;

    const DEF: &'static ScreenDef = &DEF;
    const COLUMNS: &'static [Column<Self>] = HOLDER_COLUMNS;
    const FOOTER: &'static [Action] =
        &[Action::Open, Action::Holders, Action::Filter, Action::Sort, Action::Copy, Action::Back];
    const NOUN: &'static str = "holders";
    const EMPTY: &'static str = "PyTorch has allocated no GPU memory";

    fn rows<'a>(app: &'a App, process: &ProcessKey) -> Vec<(usize, &'a Self)> {
        let rows = app.host.holders.of(*process).map(|reading| reading.rows.as_slice());
        rows.unwrap_or_default().iter().enumerate().collect()
    }

    fn key(&self) -> GroupKey {
        self.key.clone()
    }

    fn has_key(&self, key: &GroupKey) -> bool {
        self.key == *key
    }

    fn act(&self, _index: usize, action: Action) -> Effect {
        match action {
            Action::Open if self.lists_tensors => {
                Effect::Open(Box::new(HolderGroupScreen::new((self.process, self.key.clone()))))
            }
            Action::Open => Effect::Message("recordings contain no single tensors".into()),
            _ => Effect::Ignored,
        }
    }

    fn hidden(rows: &[(usize, &Self)]) -> Hidden {
        hidden(rows.iter().map(|(_, row)| *row))
    }
}

impl HoldersScreen {
    fn reading<'a>(&self, app: &'a App) -> Option<&'a ProcessReading> {
        app.host.holders.of(self.subject)
    }

    /// Returns the areas of the holders screen: title, bar, legend, notes and table.
    fn areas(&self, app: &App, area: Rect) -> [Rect; 5] {
        let is_small = is_small(area);
        let width = margin(area).width;
        let reading = self.reading(app);
        let bar = u16::from(reading.is_some_and(|reading| reading.holders().is_some()));
        let sentences = reading.map_or(0, |reading| sentences(reading, app, width).len());
        let sentences = u16::try_from(sentences).unwrap_or(u16::MAX);
        let (legend, max_sentences) = match area.height {
            _ if bar == 0 => (0, area.height),
            _ if is_small => (0, 1),
            0..16 => (1, 2),
            _ => (1, area.height / 3),
        };
        let [title, bar, legend, sentences, _, table] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(if is_small { 0 } else { bar }),
            Constraint::Length(legend * bar),
            Constraint::Length(sentences.min(max_sentences)),
            Constraint::Length(u16::from(!is_small)),
            Constraint::Fill(1),
        ])
        .areas(area);
        [margin(title), margin(bar), margin(legend), margin(sentences), table]
    }

    fn draw_title(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        let theme = &app.ui.theme;
        let holders = self.reading(app).and_then(ProcessReading::holders);
        let age = holders.map(|holders| app.host.frame.mono.since(holders.at));
        let name = program(self.subject, app);
        let title = format!("{TITLE}{name}");
        let allocated = holders.map(|holders| format!("{} allocated", holders.allocated));
        let allocated = allocated.unwrap_or_default();
        let age = age.map(|age| format!("{} ago", span_text(age))).unwrap_or_default();
        let state = holders.map(|holders| format!("{}, {age}", state_text(holders)));
        let needed =
            |state: &String| columns(&title) + 2 + columns(&allocated) + 2 + columns(state);
        let state = state.filter(|state| needed(state) <= usize::from(area.width)).unwrap_or(age);
        let right = put_line_right(buffer, area, &state, Role::Dim, theme);
        let [left, _] = split_left(area, right.saturating_sub(area.x + 1));
        let parts = [(title.as_str(), Role::Title), (allocated.as_str(), Role::Text)];
        put_fitting(buffer, left, parts, theme);
    }
}

/// Returns how many more bytes a single-GPU process could allocate: the memory that is free on the GPU plus the memory
/// cached by its allocator.
fn free_for_activations(holders: &Holders, app: &App) -> Option<Bytes> {
    let pools = app.host.frame.pools.iter().flat_map(|pools| &*pools.list);
    let mut own = pools.filter(|pool| pool.process == holders.process);
    let (pool, None) = (own.next()?, own.next()) else {
        return None;
    };
    let free = gpu_of(&app.host.frame, pool)?.memory.free.get()?;
    let cached = pool.stats.reserved.last().0.saturating_sub(holders.allocated.0);
    Some(Bytes(free.0.saturating_add(cached)))
}

/// Returns the text above the holders table: a summary, advice about growth, estimates, and read errors.
fn sentences(reading: &ProcessReading, app: &App, width: u16) -> Vec<(String, Role)> {
    let mut sentences = Vec::new();
    if let Some(holders) = reading.holders() {
        sentences.push((sentence(holders, &reading.growth), Role::Text));
        let advice_lines = advice_lines(holders, &reading.growth).into_iter();
        sentences.extend(advice_lines.map(|advice| (advice, Role::Warn)));
        let estimates = estimates(holders, free_for_activations(holders, app)).into_iter();
        sentences.extend(estimates.map(|estimate| (estimate, Role::Text)));
        sentences.extend(holders.limit.clone().map(|limit| (limit, Role::Dim)));
    }
    let failure = reading.failure.as_ref();
    sentences.extend(failure.map(|why| (format!("Holders not available: {why}"), Role::Warn)));
    let wrap = |(text, role): (String, Role)| {
        wrap_words(&text, usize::from(width.max(10))).into_iter().map(move |line| (line, role))
    };
    sentences.into_iter().flat_map(wrap).collect()
}

/// Returns the bar glyph and role of a holder class.
fn class_shape(class: HolderClass, theme: &Theme) -> (&'static str, Role) {
    let glyphs = &theme.glyphs;
    match class {
        HolderClass::Parameter => (glyphs.allocated, Role::Allocated),
        HolderClass::Gradient => (glyphs.driver, Role::Driver),
        HolderClass::OptimizerState => (glyphs.other, Role::OtherVram),
        HolderClass::Buffer => (glyphs.cached, Role::Cached),
        HolderClass::SavedForBackward => (glyphs.active, Role::Active),
        HolderClass::Variable => (glyphs.whole, Role::Processes),
        HolderClass::Unnamed | HolderClass::UnnamedArray => {
            (glyphs.unattributed, Role::Unattributed)
        }
        HolderClass::CppStorage => (glyphs.range, Role::ChartRange),
        HolderClass::GraphPool => (glyphs.retry, Role::Chart),
        HolderClass::Workspace | HolderClass::OutsideArrays | HolderClass::Unknown => {
            (glyphs.free, Role::Free)
        }
    }
}

fn draw_bar(holders: &Holders, [area, legend]: [Rect; 2], buffer: &mut Buffer, theme: &Theme) {
    let classes = holders.classes();
    let parts: Vec<Part<'_>> = classes
        .iter()
        .map(|(class, bytes)| {
            let (glyph, role) = class_shape(*class, theme);
            Part { amount: bytes.0, glyph, style: theme.style(role) }
        })
        .collect();
    if area.height > 0 {
        bar::draw(buffer, area.x, area.y, area.width, &parts);
    }
    if legend.height == 0 {
        return;
    }
    let mut x = legend.x;
    for (class, bytes) in classes {
        let (glyph, role) = class_shape(class, theme);
        let percent = percent_words(holders.percent(bytes));
        let words = format!(" {} {percent}", class.name());
        let width = u16::try_from(columns(&words) + 1).unwrap_or(u16::MAX);
        if x.saturating_add(width) > legend.right() {
            break;
        }
        let pieces = [(glyph, theme.style(role)), (words.as_str(), theme.style(Role::Dim))];
        x = put_all(buffer, x, legend.y, legend.right(), &pieces) + 2;
    }
}

impl HolderList for HolderRow {
    fn process(process: &ProcessKey) -> ProcessKey {
        *process
    }

    fn table_area(screen: &HoldersScreen, app: &App, area: Rect) -> Rect {
        let [.., table] = screen.areas(app, area);
        table
    }

    fn draw(screen: &HoldersScreen, app: &App, area: Rect, buffer: &mut Buffer) {
        let theme = &app.ui.theme;
        let [title, bar, legend, words, table] = screen.areas(app, area);
        screen.draw_title(app, title, buffer);
        let Some(reading) = screen.reading(app) else {
            let below = row(margin(area), area.y.saturating_add(1));
            if area.height > 1 {
                let missing = app.host.missing_holders(screen.subject).map(capitalized);
                let text = missing.unwrap_or_else(|| "Reading tensor names".into());
                put_line(buffer, below, &text, Role::Dim, theme);
            }
            return;
        };
        put_lines(buffer, words, &sentences(reading, app, words.width), theme);
        if let Some(holders) = reading.holders() {
            draw_bar(holders, [bar, legend], buffer, theme);
            screen.list.draw(app, table, buffer);
        }
    }

    fn copied(process: &ProcessKey, app: &App) -> Option<Copied> {
        let reading = app.host.holders.of(*process)?;
        let sentence = sentence(reading.holders()?, &reading.growth);
        let text =
            format!("{sentence}\n\n{}", tables::holders(&reading.rows, 120, &app.ui.theme.glyphs));
        Some(Copied::new("the memory holders", &text))
    }
}
