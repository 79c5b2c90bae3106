//! Processes whose allocator is not readable, grouped by reason, with the fixes available to this user.

use gputop_model::frame::Frame;
use gputop_model::pool::Unread;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::dashboard::pools::kind_text;
use crate::tui::action::Action;
use crate::tui::app::App;
use crate::tui::clipboard::Copied;
use crate::tui::screen::{Effect, Screen, ScreenDef};
use crate::tui::theme::Role;
use crate::tui::widgets::area::margin;
use crate::tui::widgets::cells::{put_lines, wrap_words};
use crate::tui::widgets::scroll::Scroll;

pub const DEF: ScreenDef = ScreenDef {
    id: "unread",
    title: "Unreadable processes",
    glossary: &[
        (
            "ptrace",
            "On Linux, a process can be read by root, by its ancestors, and by processes that it permits (PR_SET_PTRACER). `gputop run` permits all \
             processes of the same user.",
        ),
        (
            "cudaMallocAsync",
            "PyTorch uses the driver's own pool, so there is no PyTorch allocator to read.",
        ),
        ("pluggable allocator", "The program uses its own allocator library."),
    ],
    sample: |_| Some(Box::new(Unreadable::default())),
};

#[derive(Debug, Default)]
pub struct Unreadable {
    scroll: Scroll,
}

/// A reason and the affected processes.
struct Group<'f> {
    kind: &'static str,
    why: String,
    list: Vec<&'f Unread>,
}

fn groups(frame: &Frame) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for unread in frame.pools.iter().flat_map(|pools| &*pools.unread) {
        let (kind, why) = (kind_text(unread), unread.why.to_string());
        match groups.iter_mut().find(|g| g.kind == kind && g.why == why) {
            Some(group) => group.list.push(unread),
            None => groups.push(Group { kind, why, list: vec![unread] }),
        }
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.list.len()));
    groups
}

/// Formats a process as a line: `    418  GPU 0   ana       train.py --lr 1`.
fn process_line(unread: &Unread, app: &App) -> String {
    let key = unread.process;
    let rows = || app.host.processes.all_rows.iter().filter(|row| row.id().key == key);
    let gpus: Vec<String> = rows().filter_map(|row| row.gpu_label()).collect();
    let absent = app.ui.theme.glyphs.absent;
    let facts = app.host.frame.process(key);
    let user = facts.and_then(|f| f.user.value()).map_or(absent, String::as_str);
    let command = rows().next().map(|row| row.command());
    let command = command.as_ref().and_then(|c| c.value()).map_or(absent, String::as_str);
    let gpus = if gpus.is_empty() { absent.to_owned() } else { format!("GPU {}", gpus.join(",")) };
    format!("{:>8}  {gpus:<8}{user:<10}{command}", key.pid)
}

fn lines(app: &App, width: u16) -> Vec<(String, Role)> {
    let mut lines = Vec::new();
    for group in groups(&app.host.frame) {
        let count = group.list.len();
        lines.push((format!("{} ({count})", group.kind), Role::Title));
        for part in wrap_words(&group.why, usize::from(width.max(20))) {
            lines.push((part, Role::Text));
        }
        for unread in group.list {
            lines.push((process_line(unread, app), Role::Dim));
        }
        lines.push((String::new(), Role::Text));
    }
    if lines.is_empty() {
        let text = match &app.host.frame.pools {
            Some(_) => "Every allocator found can be read",
            None => "Allocators are not read on this host",
        };
        lines.push((text.into(), Role::Dim));
    }
    lines
}

impl Screen for Unreadable {
    fn draw(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        let theme = &app.ui.theme;
        let inner = margin(area);
        let lines = lines(app, inner.width);
        let first = self.scroll.first(lines.len(), usize::from(inner.height));
        put_lines(buffer, inner, lines.iter().skip(first), theme);
    }

    fn act(&mut self, action: Action, app: &App, body: Rect) -> Effect {
        if action == Action::Unread {
            return Effect::Done;
        }
        let inner = margin(body);
        self.scroll.act(action, lines(app, inner.width).len(), usize::from(inner.height))
    }

    fn copied(&self, app: &App) -> Option<Copied> {
        let lines: Vec<String> = lines(app, 120).into_iter().map(|(line, _)| line).collect();
        Some(Copied::new("the list of unreadable processes", &lines.join("\n")))
    }

    fn footer(&self) -> &'static [Action] {
        &[Action::Back, Action::Down, Action::PageDown]
    }

    fn def(&self) -> &'static ScreenDef {
        &DEF
    }
}
