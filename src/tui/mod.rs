//! The dashboard and its event loop, which waits for one event, drains the queue, and draws at most once per interval.
//!
//! `App` (the state) and `View` (the display) are plain values without access to the terminal. Only [`run`] and the
//! functions below it use the terminal. The screen is redrawn at most every 16 ms, or sooner after a key press.

pub mod action;
pub mod app;
pub mod background_jobs;
pub mod chrome;
pub mod clipboard;
pub mod colours;
pub mod copy_text;
pub mod density;
pub mod guide;
pub mod help;
mod input;
mod interactive_login;
pub mod keymap;
pub mod marks;
pub mod menu;
pub mod overlay;
pub mod palette;
pub mod picture;
pub mod probe_question;
pub mod role;
pub mod screen;
pub mod screens;
pub mod sessions;
mod signal_actions;
mod signal_events;
pub mod signal_targets;
pub mod snapshot_file;
pub mod stacks;
pub mod summary_charts;
pub mod terminal;
mod terminal_size;
pub mod text_field;
pub mod theme;
mod theme_setting;
pub mod tmux;
pub mod view;
pub mod widgets;

#[cfg(test)]
#[path = "../../crates/allocator/tests/support/pool_maps.rs"]
mod pool_maps;

use std::io;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use crossterm::event::{Event, KeyEventKind};
use gputop_model::document::Document;
use gputop_model::protocol::stream::Source;
use nix::sys::signal::Signal;
use ratatui::layout::Rect;
use tokio::time::{Instant, sleep_until};

use self::app::App;
use self::background_jobs::BackgroundJobs;
use self::clipboard::{Clipboard, Copied, osc52, send_to_tmux};
use self::input::Input;
pub use self::interactive_login::InteractiveLogin;
use self::screens::fleet::FleetScreen;
pub use self::sessions::MonitoredHost;
use self::sessions::{Arrival, Session, Sessions};
use self::signal_actions::StopTarget;
use self::signal_events::SignalEvents;
use self::terminal::Terminal;
use crate::dashboard::incidents::{IncidentInbox, ListedIncident};
use crate::tui::screen::{Effect, Screen};

/// Minimum time between two draws. Drawing more than 60 frames per second has no visible effect and would overload slow
/// connections.
const MIN_DRAW_INTERVAL: Duration = Duration::from_millis(16);
/// Maximum time for which the screen stands still while a recording jumps.
const MAX_HOLD: Duration = Duration::from_secs(1);
/// Minimum time between a draw and the next one caused by input. Only a held key or pasted text reaches this limit.
const INPUT_DRAW_INTERVAL: Duration = Duration::from_millis(4);

/// Interval between draws of the host list while there is no input.
const HOST_LIST_DRAW_INTERVAL: Duration = Duration::from_millis(250);

/// Time after which a message is removed.
const MESSAGE_DURATION: Duration = Duration::from_secs(5);

/// The reason why the dashboard closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseReason {
    User,
    Signal(i32),
    TerminalClosed,
}

impl CloseReason {
    /// Returns the exit code of the program.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::User | Self::TerminalClosed => 0,
            Self::Signal(number) => u8::try_from(128 + number).unwrap_or(2),
        }
    }
}

/// External resources available to actions.
#[derive(Debug, Clone)]
pub struct Environment {
    pub clipboard: Clipboard,
    /// The directory for new files.
    pub directory: PathBuf,
    /// The configuration file, which may not exist, or `None` if the user has no home directory.
    pub config: Option<PathBuf>,
}

/// An event handled by the event loop.
enum Wake {
    Terminal(Option<io::Result<Event>>),
    Host((usize, Arrival)),
    Incidents(Option<Vec<ListedIncident>>),
    Signal(Signal),
    /// The message of a background job that has finished.
    JobDone(String),
    MessageExpired,
    Draw,
}

/// Shows one host or recording until the user quits.
pub async fn run(
    app: App,
    source: Source,
    environment: Environment,
    inbox: IncidentInbox,
) -> io::Result<CloseReason> {
    run_host(MonitoredHost::new(app, source), environment, inbox).await
}

/// Like [`run`], but for a host from which updates have already been received.
pub async fn run_host(
    host: MonitoredHost,
    environment: Environment,
    inbox: IncidentInbox,
) -> io::Result<CloseReason> {
    run_sessions(None, vec![host], environment, inbox).await
}

/// Shows several hosts until the user quits. `fleet` holds the state of the host list and, if it has one, the source
/// that provides the list.
pub async fn run_fleet(
    hosts: Vec<MonitoredHost>,
    (fleet, clock): (App, Option<Source>),
    environment: Environment,
    inbox: IncidentInbox,
) -> io::Result<CloseReason> {
    let list = Session::alone(Box::new(FleetScreen::default()), fleet);
    run_sessions(Some(list.with(clock)), hosts, environment, inbox).await
}

/// Runs a screen that needs no data source, until the user quits.
pub async fn show(
    screen: Box<dyn Screen>,
    app: App,
    environment: Environment,
) -> io::Result<CloseReason> {
    let session = Session::alone(screen, app);
    run_sessions(Some(session), Vec::new(), environment, IncidentInbox::without_store()).await
}

/// The open dashboard: the terminal, its input, and the hosts.
struct Dashboard {
    terminal: Terminal,
    /// `None` while another program reads the terminal.
    keys: Option<Input>,
    signals: SignalEvents,
    jobs: BackgroundJobs,
    environment: Environment,
    sessions: Sessions,
    /// Sender for the IDs of incidents that the user has opened.
    opened: mpsc::Sender<String>,
    redraw: Redraw,
    /// The message on the screen, and the time at which to remove it.
    message: (Option<String>, Instant),
}

/// When to draw next.
struct Redraw {
    last: Instant,
    interval: Duration,
    is_due: bool,
    /// Time since which nothing is drawn, because a recording jumps.
    held_since: Option<Instant>,
}

async fn run_sessions(
    lead: Option<Session>,
    hosts: Vec<MonitoredHost>,
    environment: Environment,
    inbox: IncidentInbox,
) -> io::Result<CloseReason> {
    let signals = SignalEvents::listen()?;
    let mut apps = lead.iter().map(|session| &session.app);
    let first = apps.next().or(hosts.first().map(|host| &host.app));
    let terminal = Terminal::enter(first.is_some_and(|app| app.ui.mouse))?;
    let keys = Some(Input::start()?);
    let IncidentInbox { mut incoming, opened, sink } = inbox;
    let mut inbox_open = true;
    let mut dashboard = Dashboard {
        terminal,
        keys,
        signals,
        jobs: BackgroundJobs::default(),
        environment,
        sessions: Sessions::open(lead, hosts, sink.as_ref()),
        opened,
        redraw: Redraw {
            last: Instant::now() - MIN_DRAW_INTERVAL,
            interval: MIN_DRAW_INTERVAL,
            is_due: true,
            held_since: None,
        },
        message: (None, Instant::now()),
    };
    dashboard.sessions.follow();
    loop {
        let due = dashboard.redraw.last + dashboard.redraw.interval;
        let message_end = dashboard.message_end();
        let wake = tokio::select! {
            biased;
            signal = dashboard.signals.next() => Wake::Signal(signal),
            event = next_key(&dashboard.keys) => Wake::Terminal(event),
            message = dashboard.jobs.next() => Wake::JobDone(message),
            arrival = dashboard.sessions.next() => Wake::Host(arrival),
            known = incoming.recv(), if inbox_open => Wake::Incidents(known),
            () = sleep_until(due), if dashboard.redraw.is_due => Wake::Draw,
            () = sleep_until(message_end), if dashboard.message.0.is_some() => Wake::MessageExpired,
        };
        let area = dashboard.terminal.area();
        dashboard.sessions.on_screen().view.resize(area);
        inbox_open &= !matches!(wake, Wake::Incidents(None));
        if let Some(reason) = dashboard.handle(wake).await? {
            return Ok(reason);
        }
    }
}

impl Dashboard {
    /// Returns the time at which to remove the message on the screen.
    fn message_end(&mut self) -> Instant {
        let message = &self.sessions.on_screen().app.ui.message;
        if self.message.0 != *message {
            self.message = (message.clone(), Instant::now() + MESSAGE_DURATION);
        }
        self.message.1
    }

    /// Handles one event. Returns the reason for closing if the dashboard must close.
    async fn handle(&mut self, wake: Wake) -> io::Result<Option<CloseReason>> {
        match wake {
            Wake::Draw => {
                let session = self.sessions.on_screen();
                let recording = session.app.host.recording.as_ref();
                if recording.is_some_and(|recording| recording.is_jumping) {
                    let since = self.redraw.held_since.get_or_insert_with(Instant::now);
                    if since.elapsed() < MAX_HOLD {
                        self.redraw.last = Instant::now();
                        return Ok(None);
                    }
                }
                let drawn = self
                    .terminal
                    .draw(|area, buffer| session.view.draw(&session.app, area, buffer));
                if drawn.is_err() {
                    return Ok(Some(CloseReason::TerminalClosed));
                }
                self.redraw = Redraw {
                    last: Instant::now(),
                    interval: MIN_DRAW_INTERVAL,
                    is_due: false,
                    held_since: None,
                };
                return Ok(None);
            }
            Wake::Host(arrival) => {
                self.take_updates(arrival);
                return Ok(None);
            }
            Wake::Incidents(None) => return Ok(None),
            Wake::Incidents(Some(known)) => {
                self.sessions.take_stored(&known);
                self.sessions.follow();
            }
            Wake::MessageExpired => self.sessions.on_screen().app.ui.message = None,
            Wake::JobDone(message) => self.sessions.on_screen().app.ui.message = Some(message),
            // Redraw; the next draw uses the new size.
            Wake::Signal(Signal::SIGWINCH) => {}
            Wake::Signal(Signal::SIGTSTP) => self.suspend(StopTarget::Process)?,
            Wake::Signal(signal) => return Ok(Some(CloseReason::Signal(signal as i32))),
            Wake::Terminal(None | Some(Err(_))) => return Ok(Some(CloseReason::TerminalClosed)),
            Wake::Terminal(Some(Ok(event))) => {
                if matches!(event, Event::Key(_) | Event::Mouse(_)) {
                    self.redraw.interval = INPUT_DRAW_INTERVAL;
                }
                // A key may cause the same message again, which is then shown for the full time.
                self.message.0 = None;
                let effect = react(event, self.terminal.area(), self.sessions.on_screen());
                if let Some(reason) = self.perform(effect).await? {
                    return Ok(Some(reason));
                }
                for uid in self.sessions.take_opened() {
                    // Ignore the result: without an incident store, there is no receiver for the IDs.
                    let _ = self.opened.send(uid);
                }
            }
        }
        self.redraw.is_due = true;
        Ok(None)
    }

    /// Processes all updates that hosts have sent so far.
    fn take_updates(&mut self, first: (usize, Arrival)) {
        self.sessions.take(first);
        while let Some(arrival) = self.sessions.try_next() {
            self.sessions.take(arrival);
        }
        if self.sessions.follow() && !self.redraw.is_due {
            self.redraw.is_due = true;
            // Draw the host list less often: with a hundred hosts, an update arrives every few milliseconds.
            if self.sessions.shows_fleet() {
                self.redraw.interval = HOST_LIST_DRAW_INTERVAL;
            }
        }
    }

    /// Performs the effects that need the terminal, a background job or another host. Returns the reason for closing if
    /// the dashboard must close.
    async fn perform(&mut self, effect: Effect) -> io::Result<Option<CloseReason>> {
        let app = &mut self.sessions.on_screen().app;
        let environment = &self.environment;
        match effect {
            Effect::Quit => return Ok(Some(CloseReason::User)),
            Effect::Leave => {
                if !self.sessions.show_fleet() {
                    return Ok(Some(CloseReason::User));
                }
            }
            Effect::Suspend => self.suspend(StopTarget::Group)?,
            Effect::Redraw => self.terminal.redraw()?,
            Effect::Copy(copied) => {
                app.ui.message = copy(copied, environment, &mut self.terminal, &mut self.jobs)?;
            }
            Effect::Write(document) => {
                app.ui.message = write(*document, app, environment, &mut self.jobs);
            }
            Effect::SaveTheme(name) => {
                app.ui.message = save_theme(name, environment, &mut self.jobs);
            }
            Effect::Connect(row) => {
                if let Some(login) = self.sessions.login(row) {
                    let (keys, signals) = (&mut self.keys, &mut self.signals);
                    let closed = interactive_login::run(login, &mut self.terminal, keys, signals);
                    if let Some(signal) = closed.await? {
                        return Ok(Some(CloseReason::Signal(signal as i32)));
                    }
                }
                self.sessions.connect(row);
            }
            Effect::Host(number) => self.sessions.show(number),
            Effect::Hosts => {
                if !self.sessions.show_fleet() {
                    self.sessions.on_screen().app.ui.message = Some("no other hosts".into());
                }
            }
            // Nothing to do: the view has already performed these effects.
            Effect::Done
            | Effect::Ignored
            | Effect::Open(_)
            | Effect::Close
            | Effect::Explain(_)
            | Effect::Fold(_)
            | Effect::GoTo(_)
            | Effect::Message(_)
            | Effect::Request(_) => {}
        }
        Ok(None)
    }

    /// Restores the terminal and stops gputop until the shell continues it. Does nothing if gputop was started with
    /// SIGTSTP ignored, because whoever started it does not expect it to stop.
    fn suspend(&mut self, target: StopTarget) -> io::Result<()> {
        if self.signals.stop.is_none() {
            return Ok(());
        }
        terminal::restore();
        signal_actions::stop(target)?;
        self.terminal.resume()
    }
}

/// Waits for the next key. Waits forever while another program owns the terminal.
async fn next_key(keys: &Option<Input>) -> Option<io::Result<Event>> {
    match keys {
        Some(keys) => keys.next().await,
        None => std::future::pending().await,
    }
}

fn react(event: Event, area: Rect, session: &mut Session) -> Effect {
    let (effect, requests) = match event {
        Event::Key(key) if key.kind != KeyEventKind::Release => {
            session.view.key(key, &mut session.app)
        }
        Event::Mouse(mouse) => session.view.mouse(mouse, area, &mut session.app),
        _ => return Effect::Done,
    };
    session.ask(requests);
    effect
}

/// Copies text to the clipboard. Returns a message for the user, unless a background job will report one.
fn copy(
    copied: Copied,
    environment: &Environment,
    terminal: &mut Terminal,
    jobs: &mut BackgroundJobs,
) -> io::Result<Option<String>> {
    match environment.clipboard {
        Clipboard::Tmux => {
            let work = move || send_to_tmux(&copied);
            Ok(jobs.start("the clipboard", work).err())
        }
        Clipboard::Terminal => {
            terminal.print(&osc52(&copied.text))?;
            Ok(Some(copied.sent_words()))
        }
    }
}

/// Writes a document to a file in the background. Returns an error message if the job cannot be started.
fn write(
    document: Document,
    app: &App,
    environment: &Environment,
    jobs: &mut BackgroundJobs,
) -> Option<String> {
    let date = app.ui.theme.clock(app.host.frame.time, "%Y%m%d-%H%M%S");
    let stem = snapshot_file::stem(&app.host.hello.host, &date);
    let directory = environment.directory.clone();
    let work = move || match document.json() {
        Ok(text) => snapshot_file::write(&directory, &stem, &text),
        Err(error) => format!("cannot write the file: {error}"),
    };
    jobs.start("the file", work).err()
}

/// Saves the theme in the configuration file in the background. Returns an error message if the job cannot be started.
fn save_theme(
    name: &'static str,
    environment: &Environment,
    jobs: &mut BackgroundJobs,
) -> Option<String> {
    let Some(config) = environment.config.clone() else {
        return Some("theme not saved: no configuration directory can be used; set HOME".into());
    };
    jobs.start("the theme", move || theme_setting::save(&config, name)).err()
}
