//! The stack of screens with the overlay: handles keys and the mouse, requests data from the source, and draws everything.

use std::sync::Arc;

use crossterm::event::{KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind};
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};

use super::action::Action;
use super::app::App;
use super::chrome::{self, Hint};
use super::clipboard::Copied;
use super::column_menu::ColumnMenu;
use super::columns::PROCESS_COLUMNS;
use super::copy_text;
use super::filter::Filter;
use super::help::Help;
use super::overlay::{Overlay, OverlayResult, sort_orders};
use super::probe_menu::ProbeMenu;
use super::screens::incident::{self, IncidentScreen};
use super::screens::incidents::{self, IncidentList};
use super::screens::log::{self, LogScreen};
use super::screens::overview::Overview;
use super::screens::probe::{self, ProbeScreen};
use super::screens::unreadable::Unreadable;
use super::screens::{Hit, Screen, Step, is_small};
use super::signal_menu::{self, SignalMenu};
use super::time_window::ScrollDirection;
use super::widgets::cells::replace_non_ascii;
use crate::model::document::{Document, EndedProcess, Shown};
use crate::model::incident::Incident;
use crate::model::pool::PoolMap;
use crate::model::probe::ProbeRequest;
use crate::model::process::ProcessKey;
use crate::model::signal::Signal;
use crate::model::units::{GpuUuid, Mono};
use crate::protocol::{Play, Request};

/// The result of a key press that the event loop must handle, besides drawing.
#[derive(Debug, Clone)]
pub enum Outcome {
    Stay,
    Quit,
    /// The first screen was closed.
    Close,
    Suspend,
    Redraw,
    Copy(Copied),
    Write(Box<Document>),
    /// Show the host with this number.
    Host(usize),
    /// Show the host list.
    Hosts,
    /// Reconnect to the host of this row of the host list, or to the host on the screen.
    Connect(Option<usize>),
}

/// The display of one host.
pub struct View {
    stack: Vec<Box<dyn Screen>>,
    overlay: Option<Overlay>,
    focus: Option<GpuUuid>,
    /// The last drawing area.
    area: Rect,
    /// The requested map, and the sequence number of the frame at the time.
    map: (Option<(ProcessKey, u32)>, u64),
    /// The time before which history was last requested from a recording.
    past: Option<Mono>,
}

impl Default for View {
    fn default() -> Self {
        Self::new(Box::new(Overview::default()))
    }
}

impl View {
    /// Creates a view with a screen on top of the overview.
    pub fn on_top(screen: Box<dyn Screen>) -> Self {
        let mut view = Self::default();
        view.stack.push(screen);
        view
    }

    /// Creates a view with only this screen.
    pub fn alone(screen: Box<dyn Screen>) -> Self {
        Self::new(screen)
    }

    fn new(screen: Box<dyn Screen>) -> Self {
        Self {
            stack: vec![screen],
            overlay: None,
            focus: None,
            area: Rect::default(),
            map: (None, 0),
            past: None,
        }
    }

    fn top(&self) -> &dyn Screen {
        // The first screen is never popped, so the stack is never empty.
        &**self.stack.last().unwrap_or(&self.stack[0])
    }

    /// Handles a key. Returns requests for the source.
    pub fn key(&mut self, key: KeyEvent, app: &mut App) -> (Outcome, Vec<Request>) {
        app.message = None;
        let action = app.keymap.resolve(key, app.recording.is_some());
        if !bypasses_input(key, action)
            && let Some(result) = self
                .overlay
                .as_mut()
                .and_then(|overlay| overlay.type_key(key, app))
        {
            let mut requests = Vec::from_iter(self.finish_overlay(result));
            if let Some(Request::Probe(probe)) = requests.first() {
                self.show_probe(probe, app);
            }
            requests.extend(self.follow(app));
            return (Outcome::Stay, requests);
        }
        if !bypasses_input(key, action)
            && self.overlay.is_none()
            && self
                .stack
                .last_mut()
                .is_some_and(|screen| screen.type_key(key))
        {
            return (Outcome::Stay, Vec::new());
        }
        let Some(action) = action else {
            return (Outcome::Stay, Vec::new());
        };
        let mut requests = Vec::new();
        let outcome = self.act(action, app, &mut requests);
        requests.extend(self.follow(app));
        (outcome, requests)
    }

    /// Closes the overlay unless it stays open. Returns its request for the source.
    fn finish_overlay(&mut self, result: OverlayResult) -> Option<Request> {
        let request = match result {
            OverlayResult::Open => return None,
            OverlayResult::Closed => None,
            OverlayResult::Request(request) => Some(request),
        };
        self.overlay = None;
        request
    }

    fn act(&mut self, action: Action, app: &mut App, requests: &mut Vec<Request>) -> Outcome {
        match action {
            Action::QuitNow => return Outcome::Quit,
            Action::Suspend => return Outcome::Suspend,
            Action::Redraw => return Outcome::Redraw,
            _ => {}
        }
        // This overlay takes no input, so the key closes it and still performs its action.
        if let Some(Overlay::Sent(_)) = self.overlay {
            self.overlay = None;
            if matches!(action, Action::Back | Action::Quit) {
                return Outcome::Stay;
            }
        }
        if let Some(overlay) = &mut self.overlay {
            let result = overlay.act(action, app);
            requests.extend(self.finish_overlay(result));
            return Outcome::Stay;
        }
        let step = match self.stack.last_mut() {
            Some(screen) => screen.act(action, app),
            None => Step::Ignored,
        };
        match step {
            Step::Open(screen) => self.stack.push(screen),
            Step::Host(number) => return Outcome::Host(number),
            Step::Connect(row) => return Outcome::Connect(Some(row)),
            Step::Fold(title) => app.fold(&title),
            Step::Explain(incident) => self.explain(incident, app),
            Step::Copy(copied) => return self.send(copied),
            Step::Message(text) => app.message = Some(text),
            Step::Stay => {}
            Step::Ignored => return self.act_everywhere(action, app, requests),
        }
        Outcome::Stay
    }

    fn act_everywhere(
        &mut self,
        action: Action,
        app: &mut App,
        requests: &mut Vec<Request>,
    ) -> Outcome {
        match action {
            Action::Quit if self.stack.len() == 1 => return Outcome::Close,
            Action::Quit | Action::Back => {
                if self.stack.len() > 1 {
                    self.stack.pop();
                } else if action == Action::Back && !app.filter.is_empty() {
                    app.use_filter(Filter::default());
                }
            }
            Action::Log => self.open_log(app),
            Action::Watch => self.open_watch(app),
            Action::NextError | Action::PreviousError => {}
            Action::Unread => self.stack.push(Box::new(Unreadable::default())),
            Action::Why => self.open_incident(app),
            Action::Incidents => self.list_incidents(),
            Action::Hosts => return Outcome::Hosts,
            Action::Connect => return Outcome::Connect(None),
            Action::Probe => self.open_probe(app),
            Action::Help => {
                self.overlay = Some(Overlay::Help(Help::default()));
            }
            Action::Sort => self.overlay = Some(Overlay::sort(app)),
            Action::Filter => self.overlay = Some(Overlay::filter(app)),
            Action::Signal | Action::SignalTerm => self.open_signals(Signal::Term, app),
            Action::SignalKill => self.open_signals(Signal::Kill, app),
            Action::Tag => self.tag(app),
            Action::Untag => app.tags.clear(),
            Action::Columns => self.overlay = Some(Overlay::Columns(ColumnMenu::default())),
            Action::Group => {
                app.set_grouping(app.grouping.next());
                let words = app.grouping.words().unwrap_or("flat");
                app.message = Some(format!("processes: {words}"));
            }
            Action::SortNext => cycle_sort(app, 1),
            Action::SortPrevious => cycle_sort(app, -1),
            Action::Invert => app.set_sort(app.sort, !app.inverted),
            Action::ZoomIn => app.time_window.zoom_by(-1, app.frame.mono),
            Action::ZoomOut => app.time_window.zoom_by(1, app.frame.mono),
            Action::ScrollBack => self.scroll(ScrollDirection::Back, app),
            Action::ScrollForward => self.scroll(ScrollDirection::Forward, app),
            Action::Copy => return self.copy(app),
            Action::CopyMarkdown | Action::Wrong => {
                let why = app.keymap.label(Action::Why);
                app.message = Some(format!(
                    "only for incidents; press {why} to open the newest one"
                ));
            }
            Action::Write => return Outcome::Write(Box::new(self.document(app))),
            Action::Density => app.density = app.density.other(),
            other => play(other, app, requests),
        }
        Outcome::Stay
    }

    /// Opens the newest unread incident, or else the newest one.
    fn open_incident(&mut self, app: &mut App) {
        let is_open = self.top().def().id == incident::DEF.id;
        let newest = || app.incidents.newest().filter(|_| !is_open);
        let Some(incident) = app.incidents.news().or_else(newest).cloned() else {
            let why = if is_open {
                "no other unread incidents"
            } else {
                incidents::NO_INCIDENTS
            };
            app.message = Some(why.into());
            return;
        };
        if is_open {
            self.stack.pop();
        }
        self.explain(incident, app);
    }

    fn explain(&mut self, incident: Arc<Incident>, app: &mut App) {
        app.incidents.open(&incident);
        self.stack.push(Box::new(IncidentScreen::new(incident)));
    }

    /// Opens the incident list, or returns to it if it is open.
    fn list_incidents(&mut self) {
        let mut ids = self.stack.iter().map(|screen| screen.def().id);
        match ids.position(|id| id == incidents::DEF.id) {
            Some(at) => self.stack.truncate(at + 1),
            None => self.stack.push(Box::new(IncidentList::default())),
        }
    }

    fn scroll(&mut self, direction: ScrollDirection, app: &mut App) {
        let ended = self.top().exited_at(app);
        app.scroll(direction, ended);
    }

    /// Copies the subject of the screen, or else the process or group under the cursor.
    fn copy(&mut self, app: &mut App) -> Outcome {
        let screen = self.top();
        let copied = screen
            .copied(app)
            .or_else(|| screen.process(app).map(copy_text::process))
            .or_else(|| screen.group(app).map(|group| copy_text::group(group, app)));
        let Some(copied) = copied else {
            app.message = Some("nothing selected to copy".into());
            return Outcome::Stay;
        };
        self.send(copied)
    }

    /// Copies a text and shows it.
    fn send(&mut self, copied: Copied) -> Outcome {
        self.overlay = Some(Overlay::Sent(copied.clone()));
        Outcome::Copy(copied)
    }

    /// Returns the data of the current screen.
    fn document(&self, app: &App) -> Document {
        let screen = self.top();
        let pool = self.shown_map(app);
        let is_shown = |map: &&Arc<PoolMap>| Some((map.process, map.ordinal)) == pool;
        let ended = app.ended.iter().map(|ended| EndedProcess {
            key: ended.key,
            time: ended.time,
            exit: ended.exit.clone(),
        });
        let shown = Shown {
            id: screen.def().id,
            recording: app.recording.as_ref().map(|r| r.name.clone()),
            map: app.map.as_ref().filter(is_shown).cloned(),
            ended: ended.collect(),
        };
        Document::new(&app.hello, Arc::clone(&app.frame), Some(shown))
    }

    /// Opens the confirmation for a probe.
    fn open_probe(&mut self, app: &mut App) {
        let screen = self.top();
        match ProbeMenu::open(app, screen.process(app), screen.gpu(app)) {
            Ok(menu) => self.overlay = Some(Overlay::Probe(menu)),
            Err(why) => app.message = Some(why),
        }
    }

    /// Opens the screen on which the result of a requested probe will appear.
    fn show_probe(&mut self, request: &ProbeRequest, app: &mut App) {
        app.probes.ask(request.clone());
        if self.top().def().id == probe::DEF.id {
            self.stack.pop();
        }
        self.stack
            .push(Box::new(ProbeScreen::new(request.gpu.clone())));
    }

    fn open_signals(&mut self, signal: Signal, app: &mut App) {
        match SignalMenu::open(signal, app, self.top().process(app)) {
            Ok(menu) => self.overlay = Some(Overlay::Signal(menu)),
            Err(why) => app.message = Some(why),
        }
    }

    fn open_log(&mut self, app: &mut App) {
        match self.top().process(app) {
            Some(row) => {
                let screen = LogScreen::new(row.id());
                self.stack.push(Box::new(screen));
            }
            None => app.message = Some(NO_PROCESS.into()),
        }
    }

    fn open_watch(&mut self, app: &mut App) {
        if let Err(why) = app.permissions.watches {
            app.message = Some(why.into());
            return;
        }
        let row = self.top().process(app);
        let process = row.ok_or_else(|| NO_PROCESS.into()).and_then(log::key_of);
        match process {
            Ok(process) => self.overlay = Some(Overlay::watch(process)),
            Err(why) => app.message = Some(why),
        }
    }

    /// Tags the row under the cursor and moves down, so that holding the key tags several rows.
    fn tag(&mut self, app: &mut App) {
        let keys = |rows: &[usize]| {
            let targets = rows.iter().map(|row| signal_menu::target(&app.rows[*row]));
            targets
                .flatten()
                .map(|target| target.key)
                .collect::<Vec<_>>()
        };
        let screen = self.top();
        let wanted = match (screen.process(app), screen.group(app)) {
            (Some(row), _) => signal_menu::target(row).map(|target| vec![target.key]),
            (None, Some(group)) => Ok(keys(&group.rows)),
            (None, None) => Err(NO_PROCESS.into()),
        };
        match wanted {
            Ok(keys) => {
                app.tags.toggle_all(&keys);
                if let Some(screen) = self.stack.last_mut() {
                    screen.act(Action::Down, app);
                }
            }
            Err(why) => app.message = Some(why),
        }
    }

    /// Sets the drawing area, which determines what data a screen needs.
    pub fn resize(&mut self, area: Rect) {
        self.area = area;
    }

    /// Notifies all screens of a change of the app, and returns their requests for the source.
    pub fn follow(&mut self, app: &App) -> Vec<Request> {
        let mut requests = Vec::new();
        for screen in &mut self.stack {
            screen.follow(app);
            requests.extend(screen.next_request(app));
        }
        let focus = self.top().focus();
        if focus != self.focus {
            self.focus.clone_from(&focus);
            requests.push(Request::Focus(focus));
        }
        requests.extend(self.wanted_map(app));
        requests.extend(self.wanted_past(app));
        requests
    }

    /// Returns requests that cancel the work for this view when another host is shown. [`Self::follow`] requests it again.
    pub fn leave(&mut self) -> Vec<Request> {
        let mut requests = Vec::new();
        if self.focus.take().is_some() {
            requests.push(Request::Focus(None));
        }
        if self.map.0.take().is_some() {
            requests.push(Request::Map(None));
        }
        requests
    }

    /// Returns the pool whose map is on the screen.
    fn shown_map(&self, app: &App) -> Option<(ProcessKey, u32)> {
        self.top().map(app, self.body(app, self.area))
    }

    /// Requests the map for the top screen when the pool changes, and again with every frame.
    fn wanted_map(&mut self, app: &App) -> Option<Request> {
        let wanted = (self.shown_map(app), app.frame.seq);
        let has_new_frame = wanted.0.is_some() && wanted.1 != self.map.1;
        let is_needed = has_new_frame || wanted.0 != self.map.0;
        self.map = wanted;
        is_needed.then_some(Request::Map(wanted.0))
    }

    /// Requests the history that the charts need from a recording, once.
    fn wanted_past(&mut self, app: &App) -> Option<Request> {
        let wanted = app.missing_before();
        let is_new = wanted != std::mem::replace(&mut self.past, wanted);
        wanted
            .filter(|_| is_new)
            .map(|before| Request::Play(Play::Past(before)))
    }

    /// Returns the height of the header. A small first screen draws its own header.
    fn header_rows(&self, area: Rect) -> u16 {
        u16::from(!(is_small(area) && self.stack.len() == 1))
    }

    /// Returns the height of the header and the notice.
    fn rows_above(&self, app: &App, area: Rect) -> u16 {
        let notice = match is_small(area) {
            true => 0,
            false => chrome::notice_lines(app, area.width).len(),
        };
        self.header_rows(area) + u16::try_from(notice).unwrap_or(0)
    }

    /// Returns the line for the newest unread incident: above the screen, or in place of the footer in a small pane.
    fn news_line(&self, app: &App, area: Rect) -> Option<Rect> {
        if area.height < 3 || app.incidents.news().is_none() {
            return None;
        }
        let y = match is_small(area) {
            true => area.bottom() - 1,
            false => area.y + self.rows_above(app, area),
        };
        Some(Rect {
            y,
            height: 1,
            ..area
        })
    }

    /// Returns the area of the screen between the lines above it and the footer.
    fn body(&self, app: &App, area: Rect) -> Rect {
        let news = u16::from(self.news_line(app, area).is_some());
        let (above, below) = match is_small(area) {
            true => (0, news),
            false => (news, 1),
        };
        let above = above + self.rows_above(app, area);
        Rect {
            y: area.y + above,
            height: area.height.saturating_sub(above + below),
            ..area
        }
    }

    /// Draws the lines above a screen.
    fn surround(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        let header = self.header_rows(area);
        let line = Rect { height: 1, ..area };
        match self.stack.first().and_then(|screen| screen.headline()) {
            _ if header == 0 => {}
            Some(text) => chrome::headline(app, &text, line, buffer),
            None => chrome::header(app, line, buffer),
        }
        if !is_small(area) {
            let below = Rect {
                y: area.y + header,
                height: area.height - header,
                ..area
            };
            chrome::notice(app, below, buffer);
        }
        if let Some(line) = self.news_line(app, area) {
            chrome::incident(app, line, buffer);
        }
    }

    fn footer(&self, app: &App, area: Rect, buffer: &mut Buffer) -> Vec<Hint> {
        let last = Rect {
            y: area.bottom() - 1,
            height: 1,
            ..area
        };
        // With several hosts, the first screen of a host returns to the host list.
        let is_first = self.stack.len() == 1 && app.name.is_none();
        chrome::footer(app, self.top(), is_first, last, buffer)
    }

    /// Handles the mouse. A click selects a row, and a click on the selected row opens it. A click on a heading sorts, and a
    /// click in the footer triggers that key. The wheel scrolls; over a chart it scrolls in time.
    pub fn mouse(
        &mut self,
        mouse: MouseEvent,
        area: Rect,
        app: &mut App,
    ) -> (Outcome, Vec<Request>) {
        let mut requests = Vec::new();
        let position = Position::new(mouse.column, mouse.row);
        let action = match mouse.kind {
            MouseEventKind::ScrollUp if self.is_on_chart(position, area, app) => {
                Some(Action::ScrollBack)
            }
            MouseEventKind::ScrollDown if self.is_on_chart(position, area, app) => {
                Some(Action::ScrollForward)
            }
            MouseEventKind::ScrollUp => Some(Action::Up),
            MouseEventKind::ScrollDown => Some(Action::Down),
            MouseEventKind::Down(MouseButton::Left) => {
                let action = self.click(position, area, app);
                app.message = None;
                action
            }
            _ => None,
        };
        let outcome = action.map_or(Outcome::Stay, |action| self.act(action, app, &mut requests));
        requests.extend(self.follow(app));
        (outcome, requests)
    }

    fn is_on_chart(&self, position: Position, area: Rect, app: &App) -> bool {
        if self.overlay.is_some() {
            return false;
        }
        let body = self.body(app, area);
        let charts = self.top().charts(app, body);
        charts.is_some_and(|charts| charts.contains(position))
    }

    /// Handles a click. Returns an action to perform in addition.
    fn click(&mut self, position: Position, area: Rect, app: &mut App) -> Option<Action> {
        if let Some(overlay) = &mut self.overlay {
            return overlay.click(position, area);
        }
        let body = self.body(app, area);
        if !is_small(area) && position.y + 1 == area.bottom() {
            // Drawn into a scratch buffer, because only the positions of the keys are needed.
            let hints = self.footer(app, area, &mut Buffer::empty(area));
            let hit = hints.iter().find(|hint| hint.columns.contains(&position.x));
            return hit.map(|hint| hint.action);
        }
        if self
            .news_line(app, area)
            .is_some_and(|line| line.contains(position))
        {
            return Some(Action::Why);
        }
        let screen = self.stack.last_mut()?;
        match screen.click(app, position, body) {
            Hit::SameRow => return Some(Action::Open),
            Hit::Column(column) if app.sort == Some(column) => return Some(Action::Invert),
            Hit::Column(column) if PROCESS_COLUMNS[column].sort.is_some() => {
                app.set_sort(Some(column), false);
            }
            Hit::Column(_) | Hit::Row | Hit::Nothing => {}
        }
        None
    }

    pub fn draw(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        if area.width == 0 || area.height == 0 {
            return;
        }
        let screen = self.top();
        self.surround(app, area, buffer);
        let body = self.body(app, area);
        let footer = u16::from(!is_small(area));
        if body.height > 0 {
            screen.draw(app, body, buffer);
        }
        if footer > 0 {
            self.footer(app, area, buffer);
        } else if let Some(message) = &app.message {
            // Without a footer, messages replace the last line.
            chrome::message(app, message, area, buffer);
        }
        if let Some(overlay) = &self.overlay {
            overlay.draw(app, screen, area, buffer);
        }
        replace_non_ascii(buffer, &app.theme);
    }
}

/// The message if an action requires a process.
const NO_PROCESS: &str = "no process selected";

/// Returns true for keys that trigger actions even while text is typed. They are neither text nor editing keys.
fn bypasses_input(key: KeyEvent, action: Option<Action>) -> bool {
    let acts = matches!(
        action,
        Some(Action::QuitNow | Action::Suspend | Action::Redraw)
    );
    acts && key.modifiers.contains(KeyModifiers::CONTROL)
}

fn cycle_sort(app: &mut App, step: isize) {
    let orders = sort_orders();
    let at = orders
        .iter()
        .position(|order| *order == app.sort)
        .unwrap_or(0);
    let next = at
        .checked_add_signed(step)
        .map_or(orders.len() - 1, |next| next % orders.len());
    app.set_sort(orders[next], false);
    let title = orders[next].map_or("GPU, then VRAM", |column| {
        super::columns::PROCESS_COLUMNS[column].title
    });
    app.message = Some(format!("sorted by {title}"));
}

/// Handles playback keys: they move a recording, or pause a live display. If charts are scrolled back, a recording moves
/// from the end of the charts, and `0` first returns them to now.
fn play(action: Action, app: &mut App, requests: &mut Vec<Request>) {
    let scrolled = app.time_window.end();
    if action == Action::Now {
        app.time_window.to_now();
    }
    let Some(recording) = &app.recording else {
        match action {
            Action::Pause => app.set_paused(!app.paused),
            Action::Now => app.set_paused(false),
            _ => {}
        }
        return;
    };
    let position = recording.position;
    let to = |end: Mono, millis: i64| Play::To(Mono(end.0.saturating_add_signed(millis)));
    let play = match (action, scrolled) {
        (Action::Now, Some(_)) => return,
        (Action::SkipBack, Some(end)) => to(end, -10_000),
        (Action::SkipForward, Some(end)) => to(end, 10_000),
        (Action::StepBack | Action::StepForward, Some(end)) => {
            requests.push(Request::Play(Play::Pause(true)));
            to(end, 0)
        }
        (Action::Pause, _) => Play::Pause(!position.paused),
        (Action::Now, None) => Play::Start,
        (Action::SkipBack, None) => Play::Skip(-10_000),
        (Action::SkipForward, None) => Play::Skip(10_000),
        (Action::StepBack, None) => Play::Step(-1),
        (Action::StepForward, None) => Play::Step(1),
        (Action::Slower, _) => Play::Speed((position.speed / 2.0).max(0.125)),
        (Action::Faster, _) => Play::Speed((position.speed * 2.0).min(64.0)),
        _ => return,
    };
    if matches!(play, Play::To(_)) {
        app.time_window.to_now();
    }
    requests.push(Request::Play(play));
}
