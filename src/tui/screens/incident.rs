//! One incident with its explanation, as printed by `gputop explain`.

use std::sync::Arc;

use gputop_explain::workload::warning;
use gputop_model::incident::{Fix, Incident};
use gputop_model::units::{Millis, Mono};
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::Widget;

use super::log::LogScreen;
use crate::dashboard::incidents::{ListedIncident, incident_time};
use crate::dashboard::rows::ProcessRow;
use crate::export::explanation::{
    MAX_FIXES, Others, StyledLine, Tone, Wrapped, lines, markdown, program, scene, versions,
    wrap_lines,
};
use crate::tui::action::Action;
use crate::tui::app::App;
use crate::tui::clipboard::Copied;
use crate::tui::screen::{Effect, Screen, ScreenDef};
use crate::tui::theme::Role;
use crate::tui::widgets::area::{split_bottom, split_left};
use crate::tui::widgets::cells::put_line_right;
use crate::tui::widgets::scroll::Scroll;

pub const DEF: ScreenDef = ScreenDef {
    id: "incident",
    title: "Incident",
    glossary: &[
        ("FIX", "Changes to make, most likely to help first. Text to copy is on its own line."),
        ("AVOID", "Popular advice that does not help here."),
        (
            "WHY",
            "Possible causes with their evidence. `ruled out` means that the evidence contradicts the cause.",
        ),
        ("CHECK", "What to run to be sure."),
        ("LOG", "Excerpt of the log, with annotations."),
        ("WHERE", "File and line of the user's program."),
        ("THEN", "Later errors that the incident caused."),
        (
            "ON",
            "Last values read from the GPU before the incident: memory, clocks and throttle reasons.",
        ),
        ("ALSO", "Other processes on the affected GPU, with their memory."),
        (
            "MAP",
            "The allocator's free blocks, and the maximum delay between the failed allocation and the time they were read.",
        ),
        (
            "STACK",
            "The program's Python stack, innermost frame first, read after an allocation failed.",
        ),
        ("WITH", "Versions of the driver and the library."),
    ],
    sample: |app| {
        let incident = app.host.incidents.newest()?;
        Some(Box::new(IncidentScreen::new(Arc::clone(incident))))
    },
};

/// Maximum width of the text. Longer lines are hard to read.
const MAX_WIDTH: u16 = 110;
/// Minimum width of each column if the text is drawn in two columns.
const MIN_COLUMN_WIDTH: u16 = 80;
/// How long after an incident the time is to which its key goes, so that the charts show what it changed.
const AFTER: Millis = Millis(5_000);
/// Space between two columns of text.
const COLUMN_GAP: u16 = 4;

#[derive(Debug)]
pub struct IncidentScreen {
    incident: Arc<Incident>,
    scroll: Scroll,
}

impl IncidentScreen {
    #[must_use]
    pub fn new(incident: Arc<Incident>) -> Self {
        Self { incident, scroll: Scroll::default() }
    }

    fn lines(&self, app: &App, width: usize) -> Vec<StyledLine> {
        let mut shown = (*self.incident).clone();
        let time = incident_time(&shown);
        // Show the time in the user's time zone, like all other times on the screen.
        shown.time = time.map(|time| app.ui.theme.clock(time, "%H:%M:%S"));
        let mut all: Vec<StyledLine> = lines(&shown, width);
        let text = |text: String| StyledLine(vec![(Tone::Dim, text)]);
        let host = shown.host.as_ref();
        let host = host.map_or_else(String::new, |host| format!(" on {host}"));
        while all.last().is_some_and(|line| line.0.is_empty()) {
            all.pop();
        }
        let known = app.host.incidents.again(&self.incident);
        if let Some(recorded) = known.and_then(|known| known.scene.as_ref()) {
            let around = scene(recorded, Others::Named, width);
            let with = versions(&recorded.versions(), width);
            if !around.is_empty() {
                all.push(StyledLine::default());
            }
            all.extend(around.into_iter().chain(with));
        }
        if let Some(time) = time {
            let day = app.ui.theme.clock(time, "%Y-%m-%d %H:%M:%S");
            all.push(StyledLine::default());
            all.push(text(format!("WHEN  {day}{host}")));
        }
        if let Some(uid) = &shown.uid {
            all.push(text(format!("SAVED gputop incidents show {uid}")));
        }
        wrap_lines(all, &self.incident, width, Wrapped::All)
    }

    /// Returns the lines for this area. If all fit into two columns, the first ends with a whole section.
    fn lines_for(&self, app: &App, area: Rect) -> Vec<StyledLine> {
        let mut lines = self.lines(app, text_width(area));
        let columns = text_columns(area);
        let height = columns.first().map_or(0, |column| usize::from(column.height));
        let mut head = lines.iter().take(height + 1);
        let gap = head.rposition(|line| line.0.is_empty()).filter(|_| columns.len() > 1);
        if let Some(gap) = gap
            && lines.len() > height
            && lines.len() - gap - 1 <= height
        {
            lines.splice(gap..=gap, vec![StyledLine::default(); height - gap]);
        }
        lines
    }

    fn markdown(&self) -> Copied {
        let text = markdown(std::slice::from_ref(&*self.incident), false);
        Copied::new("the incident as Markdown", &text)
    }

    /// Copies the command that writes an incident report. gputop itself sends nothing, so the user can review the
    /// report first.
    fn report(&self) -> Effect {
        match &self.incident.uid {
            Some(uid) => Effect::Copy(Copied::new(
                "the command that writes a redacted report (nothing is sent)",
                &format!("gputop incidents report {uid} -o report.md"),
            )),
            None => Effect::Message("Incident not saved, so no report can be written".into()),
        }
    }

    /// Returns the table row of the incident's process, if listed. Ignores a later process with the same PID.
    fn row<'a>(&self, app: &'a App) -> Option<&'a ProcessRow> {
        let known = app.host.incidents.again(&self.incident)?;
        let key = known.process().filter(|_| known.key.boot_id == app.host.hello.boot_id)?;
        app.host.processes.all_rows.iter().find(|row| row.id().key == key)
    }

    /// Returns the time shortly after the incident, if it happened since this host's boot.
    fn time(&self, app: &App) -> Option<Mono> {
        let known = app.host.incidents.again(&self.incident)?;
        let is_known = known.key.boot_id == app.host.hello.boot_id;
        is_known.then_some(Mono(known.key.first.0 + AFTER.0))
    }

    fn log(&self, app: &App) -> Effect {
        match self.row(app) {
            Some(row) => Effect::Open(Box::new(LogScreen::new(row.id()))),
            None => Effect::Message("Process not listed, so no log is available".into()),
        }
    }
}

/// Returns the columns of text in an area: two if each is wide enough, otherwise one. The text has no margin, so that
/// text to copy starts in the first column.
fn text_columns(area: Rect) -> Vec<Rect> {
    if area.width < 2 * MIN_COLUMN_WIDTH + COLUMN_GAP {
        let [text, _] = split_left(area, MAX_WIDTH);
        return vec![text];
    }
    Layout::horizontal([Constraint::Fill(1); 2]).spacing(COLUMN_GAP).split(area).to_vec()
}

fn text_width(area: Rect) -> usize {
    usize::from(text_columns(area)[0].width)
}

/// Returns the columns for the lines of an incident, and a row for the number of hidden lines, which is empty if all
/// lines fit.
fn areas(lines: usize, area: Rect) -> (Vec<Rect>, Rect) {
    let is_cut = lines > capacity(&text_columns(area)) && area.height > 2;
    let [text, last] = split_bottom(area, u16::from(is_cut));
    let columns = text_columns(text);
    let right = columns.last().map_or(text.right(), |column| column.right());
    (columns, Rect { width: right - last.x, ..last })
}

/// Returns the number of lines that fit into the columns.
fn capacity(columns: &[Rect]) -> usize {
    columns.iter().map(|column| usize::from(column.height)).sum()
}

fn role_of(tone: Tone) -> Role {
    match tone {
        Tone::Plain => Role::Text,
        Tone::Head(severity) => Role::of_severity(severity),
        Tone::Strong => Role::Title,
        Tone::Dim => Role::Dim,
        Tone::Change => Role::Key,
        Tone::Mark => Role::Warn,
    }
}

impl Screen for IncidentScreen {
    fn draw(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        let lines = self.lines_for(app, area);
        let (columns, last) = areas(lines.len(), area);
        let shown = capacity(&columns);
        let first = self.scroll.first(lines.len(), shown);
        let rows = columns.iter().flat_map(|column| column.rows());
        for (row, line) in rows.zip(lines.iter().skip(first)) {
            let span = |(tone, text): &(Tone, String)| {
                Span::styled(text.clone(), app.ui.theme.style(role_of(*tone)))
            };
            Line::from_iter(line.0.iter().map(span)).render(row, buffer);
        }
        let more = lines.len().saturating_sub(first + shown);
        if more > 0 && !last.is_empty() {
            let keys = [Action::Down, Action::PageDown].map(|action| app.ui.keymap.label(action));
            let text = format!("{more} more below  {} {}", keys[0], keys[1]);
            put_line_right(buffer, last, &text, Role::Dim, &app.ui.theme);
        }
    }

    fn act(&mut self, action: Action, app: &App, body: Rect) -> Effect {
        match action {
            Action::CopyMarkdown => Effect::Copy(self.markdown()),
            Action::Wrong => self.report(),
            Action::Log => self.log(app),
            Action::Open => match self.time(app) {
                Some(time) => Effect::GoTo(time),
                None => Effect::Message("This incident is not in the charts".into()),
            },
            action => {
                let count = self.lines_for(app, body).len();
                let (columns, _) = areas(count, body);
                self.scroll.act(action, count, capacity(&columns))
            }
        }
    }

    fn incident(&self) -> Option<&Arc<Incident>> {
        Some(&self.incident)
    }

    fn fix(&self, number: usize) -> Result<Copied, Option<usize>> {
        let shown = self.incident.fixes.len().min(MAX_FIXES);
        let fixes = &self.incident.fixes[..shown];
        let fix = number.checked_sub(1).and_then(|at| fixes.get(at)).ok_or(Some(fixes.len()))?;
        let of =
            program(&self.incident).map_or_else(String::new, |program| format!(" of {program}"));
        let warning = warning(&fix.change).map_or_else(String::new, |text| format!(" ({text})"));
        let what = format!("fix {number} for {}{of}{warning}", self.incident.headline);
        Ok(Copied::new(what, &fix.change))
    }

    /// Returns the text of the first fix that can be copied and does not shut down the machine, or the whole
    /// explanation if there is no such fix.
    fn copied(&self, app: &App) -> Option<Copied> {
        let is_safe = |fix: &Fix| !fix.change.is_empty() && !fix.change.contains("poweroff");
        if let Some(at) = self.incident.fixes.iter().position(is_safe) {
            return self.fix(at + 1).ok();
        }
        let lines = self.lines(app, usize::from(MAX_WIDTH));
        let text = |line: StyledLine| line.0.into_iter().map(|(_, text)| text).collect::<String>();
        let lines: Vec<String> = lines.into_iter().map(text).collect();
        Some(Copied::new("the explanation", &lines.join("\n")))
    }

    fn follow(&mut self, app: &App) {
        if let Some(now) = app.host.incidents.again(&self.incident) {
            self.incident = Arc::clone(&now.incident);
        }
    }

    fn footer_label(&self, action: Action) -> Option<&'static str> {
        match action {
            Action::Why => Some("next incident"),
            Action::Open => Some("go to its time"),
            _ => None,
        }
    }

    fn has_use_for(&self, action: Action, app: &App) -> bool {
        let is_other = |known: &ListedIncident| !known.is_revision_of(&self.incident);
        match action {
            Action::Why => app.host.unread_incidents().any(is_other),
            Action::Open => self.time(app).is_some(),
            _ => true,
        }
    }

    fn footer(&self) -> &'static [Action] {
        &[
            Action::CopyFix,
            Action::Open,
            Action::CopyMarkdown,
            Action::Log,
            Action::Wrong,
            Action::Incidents,
            Action::Why,
            Action::Down,
            Action::PageDown,
            Action::Back,
            Action::Copy,
        ]
    }

    fn def(&self) -> &'static ScreenDef {
        &DEF
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gputop_model::incident::Fields;
    use gputop_model::units::Pid;

    #[test]
    fn a_copied_fix_names_its_incident_and_what_else_it_affects() {
        let copied = |change: &str| {
            let fix = Fix { change: change.to_owned(), ..Fix::default() };
            let headline = "OUT OF MEMORY".to_owned();
            let fields = Fields { pid: Some(Pid(418)), ..Fields::default() };
            let incident = Incident { headline, fields, fixes: vec![fix], ..Incident::default() };
            let copied = IncidentScreen::new(Arc::new(incident)).fix(1);
            copied.map(|copied| copied.what).unwrap_or_default()
        };
        let what = copied("sudo nvidia-smi --gpu-reset -i 0");
        assert!(what.contains("WARNING: kills every program on the GPU"), "{what}");
        assert_eq!(copied("NCCL_DEBUG=INFO"), "fix 1 for OUT OF MEMORY of PID 418");
    }
}
