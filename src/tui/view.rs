//! The stack of screens with the overlay. Handles keys and the mouse, requests data from the source, and draws
//! everything.

mod mouse;
mod playback;
mod requests;

use std::sync::Arc;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use gputop_model::document::{Document, EndedProcess, Shown};
use gputop_model::gpu::HealthState;
use gputop_model::incident::Incident;
use gputop_model::process::ProcessKey;
use gputop_model::protocol::{Play, Request};
use gputop_model::signal::Signal;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use self::playback::{go_to, go_to_now, jump, pause, set_speed, zoom};
use self::requests::ScreenRequests;
use super::action::{Action, Scope};
use super::app::App;
use super::guide::KeyResult;
use super::help::Help;
use super::menu::{Menu, sort_by, sort_orders, sort_title};
use super::overlay::Overlay;
use super::probe_question::ProbeQuestion;
use super::screen::{Effect, Screen, is_small};
use super::screens::holders::HoldersScreen;
use super::screens::incident::{self, IncidentScreen};
use super::screens::incidents::{self, IncidentList};
use super::screens::log::{self, LogScreen};
use super::screens::memory::{self, MemoryScreen};
use super::screens::overview::Overview;
use super::screens::probe::{self, ProbeScreen};
use super::screens::process::{self, ProcessScreen};
use super::screens::ranks::{self, RanksScreen};
use super::screens::unreadable::Unreadable;
use super::signal_targets::{self, Target, targets};
use super::theme::Role;
use super::widgets::cells::{put_line, replace_non_ascii};
use super::{chrome, copy_text};
use crate::dashboard::dangers::{Danger, dangers};
use crate::dashboard::emphasis::Emphasis;
use crate::dashboard::filter::Filter;
use crate::dashboard::groups::Grouping;
use crate::dashboard::incidents::{ListedIncident, news};
use crate::dashboard::rows::ProcessRow;
use crate::dashboard::time_window::ScrollDirection;
use crate::tui::widgets::area::{split_bottom, split_top};

/// The lines around a screen and its body.
struct Parts {
    header: Rect,
    totals: Rect,
    status: Rect,
    body: Rect,
}

/// The stack of screens and the overlay of one session.
pub struct View {
    stack: Vec<Box<dyn Screen>>,
    overlay: Option<Overlay>,
    /// The area that was most recently drawn.
    area: Rect,
    screen_requests: ScreenRequests,
    /// Requests to the source since the last call to [`Self::follow`].
    requests: Vec<Request>,
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
            area: Rect::default(),
            screen_requests: ScreenRequests::default(),
            requests: Vec::new(),
        }
    }

    fn top(&self) -> &dyn Screen {
        // The first screen is never popped, so the stack is never empty.
        &**self.stack.last().unwrap_or(&self.stack[0])
    }

    /// Handles a key. Returns the effect for the event loop, and requests to the source.
    pub fn key(&mut self, key: KeyEvent, app: &mut App) -> (Effect, Vec<Request>) {
        app.ui.message = None;
        // Mark a revision that arrived while its page was open.
        if let Some(incident) = self.top().incident().cloned() {
            app.host.incidents.open(&incident);
        }
        // The keys that move the playback position move the cursor of a menu, the help and a memory map instead.
        let moves_cursor =
            matches!(key.code, KeyCode::Left | KeyCode::Right) && self.top().moves_sideways();
        let is_playback_key =
            app.host.recording.is_some() && self.overlay.is_none() && !moves_cursor;
        let action = app.ui.keymap.resolve(key, is_playback_key);
        let performed = action.filter(|_| self.overlay.is_none());
        let effect = match (self.type_key(key, action, app), action, key.code) {
            (Some(effect), ..) => self.perform(effect, app),
            (None, Some(Action::CopyFix), KeyCode::Char(digit @ '1'..='9'))
                if self.overlay.is_none() =>
            {
                self.copy_fix(digit as usize - '0' as usize, app)
            }
            (None, Some(action), _) => self.act(action, app),
            (None, None, _) => Effect::Done,
        };
        let on_cursor = self.top().process(app).map(ProcessRow::id);
        let result = KeyResult {
            action: performed,
            has_copied: matches!(effect, Effect::Copy(_)),
            is_top_process: on_cursor.is_some()
                && on_cursor == app.host.processes.rows.first().map(ProcessRow::id),
            screen: self.top().def().id,
        };
        if let Some(recording) = &mut app.host.recording {
            recording.is_reason_new = false;
        }
        if let Some(guide) = &mut app.ui.guide {
            guide.follow(&result);
        }
        (effect, self.follow(app))
    }

    /// Handles a key while text is being typed. Returns `None` if the key is an action.
    fn type_key(&mut self, key: KeyEvent, action: Option<Action>, app: &mut App) -> Option<Effect> {
        let is_for_program = action.is_some_and(|action| action.def().scope == Scope::Program);
        if is_for_program && key.modifiers.contains(KeyModifiers::CONTROL) {
            return None;
        }
        match (&mut self.overlay, self.stack.last_mut()) {
            (Some(overlay), _) => overlay.type_key(key, app),
            (None, Some(screen)) => screen.type_key(key).then_some(Effect::Done),
            (None, None) => None,
        }
    }

    /// Performs an action. The overlay handles it first, then the screen, then the view.
    pub fn act(&mut self, action: Action, app: &mut App) -> Effect {
        let def = action.def();
        let (area, body) = (self.area, self.body(app, self.area));
        let effect = match (def.scope, &mut self.overlay, self.stack.last_mut()) {
            (Scope::Program, ..) | (_, _, None) => Effect::Ignored,
            (_, Some(overlay), Some(screen)) => overlay.act(action, app, &**screen, area),
            (_, None, Some(screen)) => screen.act(action, app, body),
        };
        let effect = match effect {
            Effect::Ignored if def.scope == Scope::Recording && app.host.recording.is_none() => {
                Effect::Done
            }
            Effect::Ignored => self.act_on_every_screen(action, app),
            effect => effect,
        };
        self.perform(effect, app)
    }

    /// Applies an effect to the screens. Returns any effect left for the event loop.
    fn perform(&mut self, effect: Effect, app: &mut App) -> Effect {
        match effect {
            Effect::Open(screen) => self.stack.push(screen),
            Effect::Close if self.overlay.take().is_some() => {}
            Effect::Close if self.stack.len() == 1 => return Effect::Leave,
            Effect::Close => drop(self.stack.pop()),
            Effect::Explain(incident) => {
                app.host.incidents.open(&incident);
                self.replace(incident::DEF.id, Box::new(IncidentScreen::new(incident)));
            }
            Effect::SaveTheme(name) => {
                self.overlay = None;
                return Effect::SaveTheme(name);
            }
            Effect::GoTo(time) => {
                let of_incidents = [incident::DEF.id, incidents::DEF.id];
                while self.stack.len() > 1 && of_incidents.contains(&self.top().def().id) {
                    self.stack.pop();
                }
                if let Some(request) = go_to(app, time) {
                    // The moment of an incident is to be looked at, and would be over in a second.
                    self.requests.extend([request, Request::Play(Play::Pause(true))]);
                }
            }
            Effect::Fold(title) => app.host.processes.fold(&title),
            Effect::Message(text) => app.ui.message = Some(text),
            Effect::Request(request) => {
                self.overlay = None;
                if let Request::Probe(probe) = &request {
                    // Open the probe screen, which will show the result.
                    app.host.probes.ask(probe.clone());
                    self.replace(probe::DEF.id, Box::new(ProbeScreen::new(probe.gpu.clone())));
                }
                if let Request::Ras(_) = &request {
                    app.host.jobs.ask_ras();
                }
                self.requests.push(request);
            }
            effect => return effect,
        }
        Effect::Done
    }

    /// Opens a screen. Replaces the top screen if it has the same ID.
    fn replace(&mut self, id: &str, screen: Box<dyn Screen>) {
        if self.top().def().id == id {
            self.stack.pop();
        }
        self.stack.push(screen);
    }

    /// Performs an action that neither an overlay nor the screen has handled.
    fn act_on_every_screen(&mut self, action: Action, app: &mut App) -> Effect {
        use Action::{
            Down, First, Last, Left, NextError, NextGpu, NextPane, Open, PageDown, PageUp,
            PreviousError, PreviousGpu, Right, SlowRank, Up,
        };
        match action {
            // Only some screens support these actions.
            Up | Down | Left | Right | PageUp | PageDown | First | Last | Open | NextError
            | PreviousError | NextPane | NextGpu | PreviousGpu | SlowRank => Effect::Done,
            Action::Back => self.back(app),
            Action::Memory => self.open_memory(app),
            Action::Holders => self.open_holders(app),
            Action::Stack => self.read_stack(app),
            Action::Slow => self.open_why(app),
            Action::Log => self.open_log(app),
            Action::Watch => self.name_log(app),
            Action::Ranks => self.open_ranks(app),
            Action::Ras => self.ask_to_ask_nccl(app),
            Action::Unread => Effect::Open(Box::new(Unreadable::default())),
            Action::Why => self.explain(app),
            Action::Incidents => self.list_incidents(),
            Action::Hosts => Effect::Hosts,
            Action::Connect => Effect::Connect(None),
            Action::Probe => self.ask_to_probe(app),
            Action::PreviousPane => self.act(NextPane, app),
            Action::Filter => self.show(Overlay::filter(app)),
            Action::FilterUser => self.show(Overlay::user_filter(app)),
            Action::Signal => self.ask(Menu::signal, Signal::Term, app),
            Action::SignalTerm => self.ask(Menu::send_signal, Signal::Term, app),
            Action::SignalKill => self.ask(Menu::send_signal, Signal::Kill, app),
            Action::Tag => self.tag(app),
            Action::Untag => untag(app),
            Action::Group => self.group(app),
            Action::Columns => self.show(Overlay::Menu(Menu::columns())),
            Action::Sort => self.show(Overlay::Menu(Menu::sort(app))),
            Action::SortVram => sort_by_vram(app),
            Action::SortNext => cycle_sort(app, 1),
            Action::SortPrevious => cycle_sort(app, -1),
            Action::Invert => {
                Effect::Message(sort_by(app, app.host.processes.sort, !app.host.processes.inverted))
            }
            Action::ZoomIn => zoom(app, -1),
            Action::ZoomOut => zoom(app, 1),
            Action::ScrollBack => self.scroll(ScrollDirection::Back, app),
            Action::ScrollForward => self.scroll(ScrollDirection::Forward, app),
            Action::Theme => self.show(Overlay::Menu(Menu::theme(app))),
            Action::Density => toggle_density(app),
            Action::Sources => {
                app.ui.shows_sources = !app.ui.shows_sources;
                Effect::Done
            }
            Action::Copy => self.copy(app),
            Action::CopyFix => self.copy_fix(1, app),
            Action::CopyMarkdown | Action::Wrong => needs_incident(app),
            Action::Write => Effect::Write(Box::new(self.document(app))),
            Action::Pause | Action::PlayPause => pause(app),
            Action::Now => go_to_now(app),
            Action::SkipBack => jump(app, Play::Skip(-10_000)),
            Action::SkipForward => jump(app, Play::Skip(10_000)),
            Action::StepBack => jump(app, Play::Step(-1)),
            Action::StepForward => jump(app, Play::Step(1)),
            Action::GoToStart => jump(app, Play::Start),
            Action::GoToEnd => jump(app, Play::End),
            Action::Slower => set_speed(app, 0.5),
            Action::Faster => set_speed(app, 2.0),
            Action::Wake => wake(app),
            Action::Help => self.show(Overlay::Help(Help::default())),
            Action::Redraw => Effect::Redraw,
            Action::Suspend => Effect::Suspend,
            Action::Quit => Effect::Close,
            Action::QuitNow => Effect::Quit,
        }
    }

    fn show(&mut self, overlay: Overlay) -> Effect {
        self.overlay = Some(overlay);
        Effect::Done
    }

    fn back(&mut self, app: &mut App) -> Effect {
        if self.stack.len() > 1 {
            return Effect::Close;
        }
        if !app.host.processes.filter.is_empty() {
            app.host.processes.use_filter(Filter::default());
        } else {
            app.host.processes.set_grouping(Grouping::Flat);
        }
        Effect::Done
    }

    /// Returns the unread incidents up to the time on the screen, newest first, except the one on the screen.
    fn unread<'a>(&self, app: &'a App) -> Vec<&'a ListedIncident> {
        let is_on_screen = |known: &&ListedIncident| {
            self.top().incident().is_some_and(|shown| known.is_revision_of(shown))
        };
        app.host.unread_incidents().filter(|known| !is_on_screen(known)).collect()
    }

    /// Returns the incident that the explain key opens: that of the process or GPU under the cursor, or else the newest
    /// unread one, or else the newest one. The screen of a process opens only the incident of that process.
    fn incident_to_explain<'a>(&self, app: &'a App) -> Option<&'a Arc<Incident>> {
        let row = self.top().process(app);
        let of_process = row.and_then(|row| app.host.incident_of(row.id().key));
        let newest =
            || app.host.shown_incidents().next().filter(|_| self.top().incident().is_none());
        let of_process = of_process.map(|known| &known.incident);
        if self.is_process_screen(app) {
            return of_process;
        }
        let of_gpu = || {
            let gpu = self.top().gpu(app).filter(|_| row.is_none())?;
            Some(&app.host.shown_incidents().find(|known| known.gpus.contains(&gpu))?.incident)
        };
        of_process
            .or_else(of_gpu)
            .or_else(|| news(self.unread(app)))
            .or_else(|| Some(&newest()?.incident))
    }

    /// Returns true if the screen on top shows one process.
    fn is_process_screen(&self, app: &App) -> bool {
        !self.top().shows_all_processes() && self.top().process(app).is_some()
    }

    fn explain(&mut self, app: &mut App) -> Effect {
        match self.incident_to_explain(app).cloned() {
            Some(incident) => {
                app.ui.message = self.no_own_incident(&incident, app);
                Effect::Explain(incident)
            }
            None if self.is_process_screen(app) => Effect::Message(
                "this process has no incident; the overview explains those of other processes"
                    .into(),
            ),
            None if self.top().incident().is_some() => {
                Effect::Message("no other unread incidents".into())
            }
            None => Effect::Message(incidents::NO_INCIDENTS.into()),
        }
    }

    /// Returns a message if the process under the cursor has no incident, so that the explain key opens `other`.
    fn no_own_incident(&self, other: &Incident, app: &App) -> Option<String> {
        let row = self.top().process(app)?;
        if app.host.incident_of(row.id().key).is_some() {
            return None;
        }
        let is_unread = self.unread(app).iter().any(|known| known.is_revision_of(other));
        let newest = if is_unread { "newest unread one" } else { "newest one" };
        Some(format!("{} {} has no incident; this is the {newest}", row.program(), row.pid()))
    }

    /// Copies the fix with this number, if the screen shows an incident.
    fn copy_fix(&mut self, number: usize, app: &mut App) -> Effect {
        match self.top().fix(number) {
            Ok(copied) => Effect::Copy(copied),
            Err(Some(count)) => {
                app.ui.message = Some(format!("no fix {number}: this incident has {count}"));
                Effect::Done
            }
            Err(None) => {
                let effect = needs_incident(app);
                self.perform(effect, app)
            }
        }
    }

    /// Opens the incident list, or returns to it if it is already open.
    fn list_incidents(&mut self) -> Effect {
        let mut ids = self.stack.iter().map(|screen| screen.def().id);
        match ids.position(|id| id == incidents::DEF.id) {
            Some(at) => self.stack.truncate(at + 1),
            None => self.stack.push(Box::new(IncidentList::default())),
        }
        Effect::Done
    }

    /// Scrolls charts and tables through time. A recording is moved by the same time instead.
    fn scroll(&mut self, direction: ScrollDirection, app: &mut App) -> Effect {
        if app.host.recording.is_none() {
            app.scroll(direction, self.top().exited_at(app));
            return Effect::Done;
        }
        let step = i64::try_from(app.host.time_window.step(app.host.now()).0).unwrap_or(i64::MAX);
        let step = match direction {
            ScrollDirection::Back => -step,
            ScrollDirection::Forward => step,
        };
        jump(app, Play::Skip(step))
    }

    /// Copies the screen's subject. If the screen has no subject, copies the process or group under the cursor.
    fn copy(&mut self, app: &mut App) -> Effect {
        let screen = self.top();
        let copied = screen
            .copied(app)
            .or_else(|| screen.process(app).map(copy_text::process))
            .or_else(|| screen.group(app).map(|group| copy_text::group(group, app)));
        copied.map(Effect::Copy).ok_or_else(|| "nothing selected to copy".to_owned()).into()
    }

    fn group(&mut self, app: &mut App) -> Effect {
        if !self.top().shows_all_processes() {
            return Effect::Message("processes are grouped on the overview only".to_owned());
        }
        app.host.processes.set_grouping(app.host.processes.grouping.next());
        let words = app.host.processes.grouping.words().unwrap_or("flat");
        let [again, back] = [Action::Group, Action::Back].map(|action| app.ui.keymap.label(action));
        let keys = match app.host.processes.grouping.next() {
            _ if app.host.processes.grouping == Grouping::Flat => String::new(),
            Grouping::Flat => format!("  {again} or {back} flat"),
            next => format!("  {again} {}, {back} flat", next.words().unwrap_or_default()),
        };
        Effect::Message(format!("processes: {words}{keys}"))
    }

    /// Returns the process row under the cursor, or the reason why there is none.
    fn process<'a>(&self, app: &'a App) -> Result<&'a ProcessRow, String> {
        chrome::process_under_cursor(self.top(), app).ok_or_else(|| NO_PROCESS.to_owned())
    }

    /// Opens the ranks, with the cursor on the one that holds up the others, or else on the process under the cursor.
    fn open_ranks(&self, app: &App) -> Effect {
        if app.host.jobs.lines.is_empty() {
            return Effect::Message(app.host.jobs.why_none(&app.host.frame));
        }
        let selected = || Some(self.process(app).ok()?.id().key);
        let process = app.host.jobs.culprit().or_else(selected);
        Effect::Open(Box::new(RanksScreen::at(process)))
    }

    fn open_memory(&mut self, app: &mut App) -> Effect {
        self.process(app).map(|row| Effect::Open(Box::new(MemoryScreen::new(row.id())))).into()
    }

    /// Opens the screen with the memory holders of the process. [`Self::follow`] requests the data.
    fn open_holders(&mut self, app: &mut App) -> Effect {
        let open = |row: &ProcessRow| {
            let process = row.id().key;
            app.host.missing_holders(process).map_or(Ok(()), |why| Err(why.to_owned()))?;
            Ok(Effect::Open(Box::new(HoldersScreen::new(process))))
        };
        self.process(app).and_then(open).into()
    }

    /// Requests the process's Python stack, and opens a screen that shows it.
    fn read_stack(&mut self, app: &mut App) -> Effect {
        if app.host.recording.is_some() {
            return Effect::Message("cannot read the stack of a process in a recording".into());
        }
        let shows_stacks = [process::DEF.id, memory::DEF.id].contains(&self.top().def().id);
        self.process(app)
            .map(|row| {
                if !shows_stacks {
                    self.stack.push(Box::new(ProcessScreen::new(row.id())));
                }
                Effect::Request(Request::Stacks(row.id().key))
            })
            .into()
    }

    /// Opens the process with the reason why it is slow. [`Self::follow`] requests the samples.
    fn open_why(&mut self, app: &mut App) -> Effect {
        let open = |row: &ProcessRow| Effect::Open(Box::new(ProcessScreen::sampling(row.id())));
        self.process(app).map(open).into()
    }

    fn open_log(&mut self, app: &mut App) -> Effect {
        self.process(app).map(|row| Effect::Open(Box::new(LogScreen::new(row.id())))).into()
    }

    /// Prompts for a log path.
    fn name_log(&mut self, app: &mut App) -> Effect {
        if let Err(why) = app.host.permissions.watches {
            return Effect::Message(why.into());
        }
        let process = self.process(app).and_then(log::key_of);
        process.map(|process| self.show(Overlay::watch(process))).into()
    }

    fn ask_to_probe(&mut self, app: &mut App) -> Effect {
        let screen = self.top();
        let question = ProbeQuestion::open(app, screen.process(app), screen.gpu(app));
        question.map(|question| self.show(Overlay::Menu(Menu::probe(question)))).into()
    }

    /// Opens a question about the job of the rank under the cursor, on the screen that shows the answer.
    fn ask_to_ask_nccl(&mut self, app: &mut App) -> Effect {
        if self.top().def().id != ranks::DEF.id {
            return Effect::Done;
        }
        if app.host.recording.is_some() {
            return Effect::Message("a recording cannot ask NCCL".into());
        }
        let question = self.process(app).map(|row| Menu::ras(row.id().key));
        question.map(|question| self.show(Overlay::Menu(question))).into()
    }

    /// Opens a menu or a question about a signal to the tagged processes, or to the one under the cursor.
    fn ask(
        &mut self,
        menu: fn(Signal, Vec<Target>) -> Menu,
        signal: Signal,
        app: &mut App,
    ) -> Effect {
        let targets = targets(app, self.top().process(app));
        targets.map(|targets| self.show(Overlay::Menu(menu(signal, targets)))).into()
    }

    /// Tags the row under the cursor and moves down, so that holding the key tags several rows.
    fn tag(&mut self, app: &mut App) -> Effect {
        let key = |row: &ProcessRow| signal_targets::target(row, app).map(|target| target.key);
        let screen = self.top();
        let wanted = match (screen.process(app), screen.group(app)) {
            (Some(row), _) => key(row).map(|key| vec![key]),
            (None, Some(group)) => Ok(group
                .rows
                .iter()
                .filter_map(|row| key(&app.host.processes.rows[*row]).ok())
                .collect()),
            (None, None) => Err(NO_PROCESS.into()),
        };
        let tagged = wanted.map(|keys| {
            app.host.processes.tags.toggle_all(&keys);
            let body = self.body(app, self.area);
            match self.stack.last_mut() {
                Some(screen) => screen.act(Action::Down, app, body),
                None => Effect::Done,
            }
        });
        tagged.into()
    }

    /// Returns the data shown on the current screen.
    fn document(&self, app: &App) -> Document {
        let screen = self.top();
        let pool = self.shown_map(app);
        let ended = app.host.ended.iter().map(|ended| EndedProcess {
            key: ended.key,
            time: ended.time,
            exit: ended.exit.clone(),
        });
        let shown = Shown {
            id: screen.def().id,
            recording: app.host.recording.as_ref().map(|r| r.name.clone()),
            map: app
                .host
                .map
                .as_ref()
                .filter(|map| Some((map.process, map.ordinal)) == pool)
                .cloned(),
            ended: ended.collect(),
        };
        Document::new(&app.host.hello, Arc::clone(&app.host.frame), Some(shown))
    }

    /// Sets the drawing area, which determines what data the screens need.
    pub fn resize(&mut self, area: Rect) {
        self.area = area;
    }

    /// Notifies all screens that the app has changed, and returns their requests to the source.
    pub fn follow(&mut self, app: &App) -> Vec<Request> {
        let mut requests = std::mem::take(&mut self.requests);
        for screen in &mut self.stack {
            screen.follow(app);
            requests.extend(screen.next_request(app));
        }
        let map = self.shown_map(app);
        requests.extend(self.screen_requests.follow(&self.stack, map, app));
        requests
    }

    /// Returns requests that cancel this view's pending work when another host is shown.
    pub fn leave(&mut self) -> Vec<Request> {
        self.screen_requests.cancel()
    }

    /// Returns the pool whose map is on the screen.
    fn shown_map(&self, app: &App) -> Option<(ProcessKey, u32)> {
        self.top().map(app, self.body(app, self.area))
    }

    /// Returns true if the screens show a host, and not a file.
    fn shows_host(&self) -> bool {
        self.stack.first().is_none_or(|screen| screen.headline().is_none())
    }

    /// Splits an area into the header, the totals of the machine, the status line, the body and the footer. They do not
    /// depend on what the host does, so that nothing moves. In a small pane, the first screen draws its own header, and
    /// the status line replaces the last line while there is something to say.
    fn parts(&self, app: &App, area: Rect) -> Parts {
        let is_small = is_small(area);
        let header = u16::from(!(is_small && self.stack.len() == 1));
        let status = u16::from(!is_small && self.shows_host());
        let totals = u16::from(
            status > 0 && self.top().shows_all_processes() && !app.ui.density.is_compact(),
        );
        let says = is_small && area.height >= 3 && self.has_news(app);
        let footer = u16::from(!is_small || says);
        let [header, rest] = split_top(area, header);
        let [totals, rest] = split_top(rest, totals);
        let [status, rest] = split_top(rest, status);
        let [body, footer] = split_bottom(rest, footer);
        let status = if says { footer } else { status };
        Parts { header, totals, status, body }
    }

    /// Returns true if there is an unread incident, a stop of the tour, or a present danger that a small pane does not show
    /// by itself, as it does a lost GPU.
    fn has_news(&self, app: &App) -> bool {
        let is_hidden = |danger: &Danger| danger.is_imminent && danger.emphasis != Emphasis::Bad;
        let is_danger = || dangers(&app.host).iter().any(is_hidden);
        !self.unread(app).is_empty() || is_danger() || chrome::short_tour_text(app).is_some()
    }

    /// Returns the body area: `area` without the lines around it.
    fn body(&self, app: &App, area: Rect) -> Rect {
        self.parts(app, area).body
    }

    /// Draws the lines above a screen.
    fn surround(&self, app: &App, area: Rect, buffer: &mut Buffer) {
        let parts = self.parts(app, area);
        match self.stack.first().and_then(|screen| screen.headline()) {
            _ if parts.header.is_empty() => {}
            Some(text) => chrome::headline(app, &text, parts.header, buffer),
            None => chrome::header(app, parts.header, buffer),
        }
        if !parts.totals.is_empty() {
            chrome::totals(app, parts.totals, buffer);
        }
        if parts.status.is_empty() {
            return;
        }
        match chrome::short_tour_text(app).filter(|_| is_small(area)) {
            Some(text) => put_line(buffer, parts.status, &text, Role::Key, &app.ui.theme),
            None => {
                let (unread, explained) = (self.unread(app), self.incident_to_explain(app));
                chrome::status_line(app, &unread, explained, self.top(), parts.status, buffer);
            }
        }
    }

    /// Returns true if `q` quits. With several hosts, `q` on the first screen of a host returns to the host list.
    fn is_first(&self, app: &App) -> bool {
        self.stack.len() == 1 && app.host.name.is_none()
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
            let [_, last] = split_bottom(area, 1);
            chrome::footer(app, screen, self.is_first(app), last, buffer);
        } else if let Some(message) = &app.ui.message {
            // Without a footer, messages are drawn over the last line.
            chrome::message(app, message, area, buffer);
        }
        if let Some(overlay) = &self.overlay {
            overlay.draw(app, screen, area, buffer);
        }
        replace_non_ascii(buffer, &app.ui.theme);
    }
}

/// Message shown if an action requires a process but none is selected.
const NO_PROCESS: &str = "no process under the cursor";

fn wake(app: &App) -> Effect {
    let mut gpus = app.host.frame.gpus.iter();
    if app.host.recording.is_some() {
        Effect::Message("A recording cannot wake GPUs".into())
    } else if gpus.any(|gpu| gpu.health.state == HealthState::Asleep) {
        Effect::Request(Request::Wake)
    } else {
        Effect::Message("No GPU is asleep".into())
    }
}

fn cycle_sort(app: &mut App, step: isize) -> Effect {
    let orders = sort_orders();
    let at = orders.iter().position(|order| *order == app.host.processes.sort);
    let next = at.unwrap_or(0).checked_add_signed(step);
    let next = next.map_or(orders.len() - 1, |next| next % orders.len());
    Effect::Message(sort_by(app, orders[next], false))
}

fn sort_by_vram(app: &mut App) -> Effect {
    let order = sort_orders().into_iter().find(|order| sort_title(*order) == "VRAM").flatten();
    let is_sorted = app.host.processes.sort == order;
    Effect::Message(sort_by(app, order.filter(|_| !is_sorted), false))
}

fn needs_incident(app: &App) -> Effect {
    let why = app.ui.keymap.label(Action::Why);
    Effect::Message(format!(
        "this key works only for incidents; press {why} to open the newest one"
    ))
}

fn toggle_density(app: &mut App) -> Effect {
    app.ui.density = app.ui.density.other();
    Effect::Done
}

fn untag(app: &mut App) -> Effect {
    app.host.processes.tags.clear();
    Effect::Done
}
