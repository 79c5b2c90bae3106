//! The stack of screens and what lies over them: takes keys, gives orders, draws the whole.

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
use super::overlay::{Overlay, OverlayResult, orders};
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
use crate::source::{Play, Request};

/// What the loop has to do after a key, beside drawing.
#[derive(Debug, Clone)]
pub enum Outcome {
    Stay,
    Leave,
    /// The first screen was closed.
    Close,
    Suspend,
    Redraw,
    Copy(Copied),
    Write(Box<Document>),
    /// The host of this number, where there are several.
    Host(usize),
    /// The list of hosts.
    Hosts,
    /// Try the link again, of this row of that list or of the host on the screen.
    Connect(Option<usize>),
}

pub struct View {
    stack: Vec<Box<dyn Screen>>,
    overlay: Option<Overlay>,
    focus: Option<GpuUuid>,
    /// What there was to draw on last.
    area: Rect,
    /// The map that was asked for, and with which frame.
    map: (Option<(ProcessKey, u32)>, u64),
    /// The moment before which a recording was asked to tell more.
    past: Option<Mono>,
}

impl Default for View {
    fn default() -> Self {
        Self::new(Box::new(Overview::default()))
    }
}

impl View {
    /// A screen opened from the overview.
    pub fn on_top(screen: Box<dyn Screen>) -> Self {
        let mut view = Self::default();
        view.stack.push(screen);
        view
    }

    /// A screen that nothing lies below.
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
        // The stack is never empty: the first screen is never popped.
        &**self.stack.last().unwrap_or(&self.stack[0])
    }

    /// A key, with what it makes the source do.
    pub fn key(&mut self, key: KeyEvent, app: &mut App) -> (Outcome, Vec<Request>) {
        app.message = None;
        let action = app.keymap.resolve(key, app.recording.is_some());
        if !is_for_the_program(key, action)
            && let Some(after) = self
                .overlay
                .as_mut()
                .and_then(|overlay| overlay.type_key(key, app))
        {
            let mut requests = Vec::from_iter(self.after(after));
            if let Some(Request::Probe(wish)) = requests.first() {
                self.show_probe(wish, app);
            }
            requests.extend(self.follow(app));
            return (Outcome::Stay, requests);
        }
        if !is_for_the_program(key, action)
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

    /// What an overlay wants of the source, which closes it.
    fn after(&mut self, after: OverlayResult) -> Option<Request> {
        let request = match after {
            OverlayResult::Open => return None,
            OverlayResult::Closed => None,
            OverlayResult::Asks(request) => Some(request),
        };
        self.overlay = None;
        request
    }

    fn act(&mut self, action: Action, app: &mut App, requests: &mut Vec<Request>) -> Outcome {
        match action {
            Action::QuitNow => return Outcome::Leave,
            Action::Suspend => return Outcome::Suspend,
            Action::Redraw => return Outcome::Redraw,
            _ => {}
        }
        // It only lies there: what the key means is done all the same.
        if let Some(Overlay::Sent(_)) = self.overlay {
            self.overlay = None;
            if matches!(action, Action::Back | Action::Quit) {
                return Outcome::Stay;
            }
        }
        if let Some(overlay) = &mut self.overlay {
            let after = overlay.act(action, app);
            requests.extend(self.after(after));
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
            Action::ZoomIn => app.stretch.zoom_by(-1, app.frame.mono),
            Action::ZoomOut => app.stretch.zoom_by(1, app.frame.mono),
            Action::ScrollBack => self.scroll(ScrollDirection::Back, app),
            Action::ScrollForward => self.scroll(ScrollDirection::Forward, app),
            Action::Copy => return self.copy(app),
            Action::CopyMarkdown | Action::Wrong => {
                let why = app.keymap.label(Action::Why);
                app.message = Some(format!("that is for an incident; {why} opens the newest"));
            }
            Action::Write => return Outcome::Write(Box::new(self.document(app))),
            Action::Density => app.density = app.density.other(),
            other => play(other, app, requests),
        }
        Outcome::Stay
    }

    /// The newest that nobody has read; where all were, the newest.
    fn open_incident(&mut self, app: &mut App) {
        let is_open = self.top().def().id == incident::DEF.id;
        let newest = || app.incidents.newest().filter(|_| !is_open);
        let Some(incident) = app.incidents.news().or_else(newest).cloned() else {
            let why = if is_open {
                "there is no other incident that nobody has read"
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

    /// Back to the list where one is open.
    fn list_incidents(&mut self) {
        let mut ids = self.stack.iter().map(|screen| screen.def().id);
        match ids.position(|id| id == incidents::DEF.id) {
            Some(at) => self.stack.truncate(at + 1),
            None => self.stack.push(Box::new(IncidentList::default())),
        }
    }

    fn scroll(&mut self, way: ScrollDirection, app: &mut App) {
        let ended = self.top().exited_at(app);
        app.scroll(way, ended);
    }

    /// What the screen says it is about, else the process or the group under the cursor.
    fn copy(&mut self, app: &mut App) -> Outcome {
        let screen = self.top();
        let copied = screen
            .copied(app)
            .or_else(|| screen.process(app).map(copy_text::process))
            .or_else(|| screen.group(app).map(|group| copy_text::group(group, app)));
        let Some(copied) = copied else {
            app.message = Some("there is nothing to copy here: the cursor is on nothing".into());
            return Outcome::Stay;
        };
        self.send(copied)
    }

    /// On its way to the clipboard, and in sight.
    fn send(&mut self, copied: Copied) -> Outcome {
        self.overlay = Some(Overlay::Sent(copied.clone()));
        Outcome::Copy(copied)
    }

    /// What is on screen, as data.
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

    /// Asks whether to probe; where it was done already, what came of it lies behind the question.
    fn open_probe(&mut self, app: &mut App) {
        let screen = self.top();
        match ProbeMenu::open(app, screen.process(app), screen.gpu(app)) {
            Ok(menu) => self.overlay = Some(Overlay::Probe(menu)),
            Err(why) => app.message = Some(why),
        }
    }

    /// What was asked for is shown where its answer will be.
    fn show_probe(&mut self, wish: &ProbeRequest, app: &mut App) {
        app.probes.ask(wish.clone());
        if self.top().def().id == probe::DEF.id {
            self.stack.pop();
        }
        self.stack
            .push(Box::new(ProbeScreen::new(wish.gpu.clone())));
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
            None => app.message = Some("the cursor is on no process".into()),
        }
    }

    fn open_watch(&mut self, app: &mut App) {
        if let Err(why) = app.leave.watches {
            app.message = Some(why.into());
            return;
        }
        let row = self.top().process(app);
        let process = row
            .ok_or_else(|| "the cursor is on no process".into())
            .and_then(log::key_of);
        match process {
            Ok(process) => self.overlay = Some(Overlay::watch(process)),
            Err(why) => app.message = Some(why),
        }
    }

    /// Tags what the cursor is on and goes on, so that a held key tags a row of them.
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
            (None, None) => Err("the cursor is on no process".into()),
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

    /// Says what there is to draw on, which decides what a screen has to ask for.
    pub fn resize(&mut self, area: Rect) {
        self.area = area;
    }

    /// Tells every screen that the app has changed, and gathers what they now want of the source.
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

    /// Another host comes on the screen: takes back what this one was asked to do for it. [`Self::follow`] asks again.
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

    /// The pool whose map is on screen.
    fn shown_map(&self, app: &App) -> Option<(ProcessKey, u32)> {
        self.top().map(app, self.body(app, self.area))
    }

    /// The map of the screen on top: asked for when it changes, and again with every frame while there is one.
    fn wanted_map(&mut self, app: &App) -> Option<Request> {
        let wanted = (self.shown_map(app), app.frame.seq);
        let again = wanted.0.is_some() && wanted.1 != self.map.1;
        let ask = again || wanted.0 != self.map.0;
        self.map = wanted;
        ask.then_some(Request::Map(wanted.0))
    }

    /// What a recording is to tell before the charts can show it; asked for once.
    fn wanted_past(&mut self, app: &App) -> Option<Request> {
        let wanted = app.wants_before();
        let is_new = wanted != std::mem::replace(&mut self.past, wanted);
        wanted
            .filter(|_| is_new)
            .map(|before| Request::Play(Play::Past(before)))
    }

    /// The rows of the headline; the first screen brings its own when it is small.
    fn header_rows(&self, area: Rect) -> u16 {
        u16::from(!(is_small(area) && self.stack.len() == 1))
    }

    /// The headline and why there is a recording.
    fn rows_above(&self, app: &App, area: Rect) -> u16 {
        let reason = match is_small(area) {
            true => 0,
            false => chrome::reason_lines(app, area.width).len(),
        };
        self.header_rows(area) + u16::try_from(reason).unwrap_or(0)
    }

    /// Where the incident to look at stands: above a screen; in a small pane below it, where the footer would be.
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

    /// What is left for the screen between the lines above it and the footer.
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

    /// The lines around a screen.
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
            chrome::reason(app, below, buffer);
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
        // Behind the first screen of one of several hosts is their list.
        let is_first = self.stack.len() == 1 && app.name.is_none();
        chrome::footer(app, self.top(), is_first, last, buffer)
    }

    /// The mouse: a press moves the cursor, again opens; on a heading it orders, in the footer it is that key; the
    /// wheel moves and scrolls, over a chart in time.
    pub fn mouse(
        &mut self,
        mouse: MouseEvent,
        area: Rect,
        app: &mut App,
    ) -> (Outcome, Vec<Request>) {
        let mut requests = Vec::new();
        let place = Position::new(mouse.column, mouse.row);
        let action = match mouse.kind {
            MouseEventKind::ScrollUp if self.is_on_chart(place, area, app) => {
                Some(Action::ScrollBack)
            }
            MouseEventKind::ScrollDown if self.is_on_chart(place, area, app) => {
                Some(Action::ScrollForward)
            }
            MouseEventKind::ScrollUp => Some(Action::Up),
            MouseEventKind::ScrollDown => Some(Action::Down),
            MouseEventKind::Down(MouseButton::Left) => {
                let action = self.click(place, area, app);
                app.message = None;
                action
            }
            _ => None,
        };
        let outcome = action.map_or(Outcome::Stay, |action| self.act(action, app, &mut requests));
        requests.extend(self.follow(app));
        (outcome, requests)
    }

    fn is_on_chart(&self, place: Position, area: Rect, app: &App) -> bool {
        if self.overlay.is_some() {
            return false;
        }
        let body = self.body(app, area);
        let charts = self.top().charts(app, body);
        charts.is_some_and(|charts| charts.contains(place))
    }

    /// What the press is to do beside moving the cursor.
    fn click(&mut self, place: Position, area: Rect, app: &mut App) -> Option<Action> {
        if let Some(overlay) = &mut self.overlay {
            return overlay.click(place, area);
        }
        let body = self.body(app, area);
        if !is_small(area) && place.y + 1 == area.bottom() {
            // Drawn to nowhere: only where the keys stand is asked.
            let hints = self.footer(app, area, &mut Buffer::empty(area));
            let hit = hints.iter().find(|hint| hint.columns.contains(&place.x));
            return hit.map(|hint| hint.action);
        }
        if self
            .news_line(app, area)
            .is_some_and(|line| line.contains(place))
        {
            return Some(Action::Why);
        }
        let screen = self.stack.last_mut()?;
        match screen.click(app, place, body) {
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
            // Where there is no footer, what must be said takes the last line.
            chrome::message(app, message, area, buffer);
        }
        if let Some(overlay) = &self.overlay {
            overlay.draw(app, screen, area, buffer);
        }
        replace_non_ascii(buffer, &app.theme);
    }
}

/// Keys that act also while a line is typed: no letter, and nothing that edits a line.
fn is_for_the_program(key: KeyEvent, action: Option<Action>) -> bool {
    let acts = matches!(
        action,
        Some(Action::QuitNow | Action::Suspend | Action::Redraw)
    );
    acts && key.modifiers.contains(KeyModifiers::CONTROL)
}

fn cycle_sort(app: &mut App, step: isize) {
    let orders = orders();
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
    app.message = Some(format!("ordered by {title}"));
}

/// Keys that move in time: in a recording the source moves, live the display is held. Where charts are scrolled back,
/// a recording moves from where they end, and `0` brings them back first.
fn play(action: Action, app: &mut App, requests: &mut Vec<Request>) {
    let scrolled = app.stretch.end();
    if action == Action::Now {
        app.stretch.to_now();
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
        app.stretch.to_now();
    }
    requests.push(Request::Play(play));
}
