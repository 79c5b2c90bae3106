//! The tensors kept alive by one holder, such as a Python list, and the references that keep the selected tensor alive.

use gputop_model::holders::{GroupKey, HeldTensor, HolderGroup};
use gputop_model::process::ProcessKey;
use gputop_model::units::Bytes;
use jiff::tz::TimeZone;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::holder_screen::{HolderList, HolderScreen, program};
use super::list::ListRow;
use crate::dashboard::table::{Cell, Column, First, SortKey};
use crate::export::holders::{path_text, size_text, tensors};
use crate::tui::action::Action;
use crate::tui::app::App;
use crate::tui::clipboard::Copied;
use crate::tui::screen::{Effect, Screen, ScreenDef, is_small};
use crate::tui::theme::Role;
use crate::tui::widgets::area::{margin, split_bottom, split_top};
use crate::tui::widgets::cells::{put_line, put_lines, wrap_words};

pub const DEF: ScreenDef = ScreenDef {
    id: "holder_group",
    title: "Tensors of a holder",
    glossary: &[
        (
            "Kept alive by",
            "The references that lead to the tensor, from a root such as a module or the frame of a function.",
        ),
        (
            "view",
            "The tensor covers only a part of its storage. The size shown is that of the entire storage.",
        ),
    ],
    sample: |app| {
        let process = app.host.holders.newest()?;
        let rows = &app.host.holders.of(process)?.rows;
        let key = rows.iter().find(|row| !row.key.name.is_empty())?.key.clone();
        Some(Box::new(HolderGroupScreen::new((process, key))))
    },
};

type Subject = (ProcessKey, GroupKey);

pub type HolderGroupScreen = HolderScreen<HeldTensor>;

const COLUMNS: &[Column<HeldTensor>] = &[
    Column::right(
        "MiB",
        9,
        0,
        |tensor: &HeldTensor, _| {
            Cell::text(format!("{:.2}", tensor.bytes.0 as f64 / Bytes::mib(1).0 as f64))
        },
        "Size of the block.",
    )
    .sorted(First::Largest, |tensor| SortKey::whole(Some(tensor.bytes.0))),
    Column::left(
        "DTYPE",
        8,
        2,
        |tensor: &HeldTensor, _| Cell::text(tensor.dtype.clone()),
        "Type of the tensor.",
    ),
    Column::left(
        "SHAPE",
        13,
        3,
        |tensor: &HeldTensor, _| Cell::text(tensor.shape_text()),
        "Shape of the tensor.",
    ),
    Column::left(
        "VIEW",
        4,
        4,
        |tensor: &HeldTensor, _| Cell::text(if tensor.is_view { "view" } else { "" }),
        "Marks tensors that cover only a part of their storage.",
    ),
    Column::rest("NAME", 22, 1, name, "Full name of the tensor.")
        .shortened_in_middle()
        .sorted(First::Smallest, |tensor| SortKey::text(Some(&tensor.name))),
];

fn name(tensor: &HeldTensor, _: &TimeZone) -> Cell {
    match tensor.name.as_str() {
        "" => Cell::missing(),
        name => Cell::text(name),
    }
}

/// Returns sentences about the references that keep a tensor alive, and about the tensor's other names.
fn tensor_words(tensor: &HeldTensor) -> Vec<String> {
    let path = match path_text(tensor) {
        Some(path) => format!("Kept alive by {path}"),
        None => "No reference path known".into(),
    };
    let mut words = vec![path];
    if !tensor.aliases.is_empty() {
        words.push(format!("Also named {}", tensor.aliases.join(", ")));
    }
    if tensor.is_view {
        words.push("A view: the size shown is that of the entire storage".into());
    }
    words
}

fn group<'a>(app: &'a App, (process, key): &Subject) -> Option<&'a HolderGroup> {
    app.host.holders.of(*process)?.group(key)
}

impl ListRow for HeldTensor {
    type Key = u64;
    type Subject = Subject;

    const DEF: &'static ScreenDef = &DEF;
    const COLUMNS: &'static [Column<Self>] = COLUMNS;
    const FOOTER: &'static [Action] = &[
        Action::Down,
        Action::PageDown,
        Action::Holders,
        Action::Filter,
        Action::Sort,
        Action::Copy,
        Action::Back,
    ];
    const NOUN: &'static str = "tensors";
    const EMPTY: &'static str = "No tensors are listed for this group";

    fn rows<'a>(app: &'a App, subject: &Subject) -> Vec<(usize, &'a Self)> {
        let tensors = group(app, subject).map(|group| group.tensors.as_slice());
        tensors.unwrap_or_default().iter().enumerate().collect()
    }

    fn key(&self) -> u64 {
        self.address
    }

    fn has_key(&self, key: &u64) -> bool {
        self.address == *key
    }

    fn act(&self, _index: usize, action: Action) -> Effect {
        match action {
            Action::Open => Effect::Done,
            _ => Effect::Ignored,
        }
    }
}

impl HolderGroupScreen {
    /// Returns the areas for the title, the table, and the sentences about the selected tensor.
    fn areas(&self, app: &App, area: Rect) -> [Rect; 3] {
        let [title, rest] = split_top(area, 1);
        let width = margin(area).width;
        let max_height = if is_small(area) { 1 } else { area.height / 3 };
        let height = u16::try_from(self.words(app, width).len()).unwrap_or(u16::MAX);
        let gap = u16::from(!is_small(area));
        let [table, _] = split_bottom(rest, height.min(max_height) + gap);
        let rows = group(app, &self.subject).map_or(0, |group| group.tensors.len());
        // Reserve rows for the heading and the filter.
        let rows = u16::try_from(rows + 2).unwrap_or(u16::MAX);
        let [table, words] = split_top(rest, table.height.min(rows));
        [margin(title), table, margin(words)]
    }

    /// Describes why the selected tensor is alive.
    fn words(&self, app: &App, width: u16) -> Vec<(String, Role)> {
        let Some(tensor) = self.list.selected(app) else {
            return Vec::new();
        };
        let wrap = |text: &String| wrap_words(text, usize::from(width.max(10)));
        let lines = tensor_words(tensor);
        lines.iter().flat_map(wrap).map(|line| (line, Role::Text)).collect()
    }

    /// Returns the screen title, such as `trainer.history[*], saved by autograd: 512.00 MiB in 40 blocks, 18 %`.
    fn title(&self, app: &App) -> String {
        let (process, key) = &self.subject;
        let name = match key.name.as_str() {
            "" => String::new(),
            name => format!("{name}, "),
        };
        let reading = app.host.holders.of(*process);
        let holders = reading.and_then(|reading| reading.holders());
        match (holders, group(app, &self.subject)) {
            (Some(holders), Some(group)) => {
                format!("{name}{}: {}", group.class_words(), size_text(holders, group))
            }
            _ => format!(
                "{name}{}: not found when gputop last read {}",
                key.class.name(),
                program(*process, app)
            ),
        }
    }
}

impl HolderList for HeldTensor {
    fn process((process, _): &Subject) -> ProcessKey {
        *process
    }

    fn table_area(screen: &HolderGroupScreen, app: &App, area: Rect) -> Rect {
        let [_, table, _] = screen.areas(app, area);
        table
    }

    fn draw(screen: &HolderGroupScreen, app: &App, area: Rect, buffer: &mut Buffer) {
        let [title, table, words] = screen.areas(app, area);
        put_line(buffer, title, &screen.title(app), Role::Title, &app.ui.theme);
        screen.list.draw(app, table, buffer);
        put_lines(buffer, words, &screen.words(app, words.width), &app.ui.theme);
    }

    fn copied(subject: &Subject, app: &App) -> Option<Copied> {
        let holders = app.host.holders.of(subject.0)?.holders()?;
        let text = tensors(holders, group(app, subject)?, true);
        Some(Copied::new("the tensors", &text))
    }
}
