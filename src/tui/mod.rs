//! The screen and the loop: wait for one thing, take what has come with it, draw at most once a pause.
//!
//! `App` (what is known) and `View` (what is shown) are plain values that know no terminal: [`run`] is the only
//! place that does. A frame is drawn at most every 16 ms, after a key at once.

pub mod action;
pub mod app;
pub mod background_jobs;
pub mod chrome;
pub mod clipboard;
pub mod colours;
pub mod column_menu;
pub mod columns;
pub mod copy_text;
pub mod density;
mod fatal_signals;
pub mod filter;
pub mod groups;
pub mod help;
pub mod incident_charts;
pub mod incidents;
mod input;
mod interactive_login;
pub mod keymap;
pub mod marks;
pub mod overlay;
pub mod palette;
pub mod picture;
pub mod pools;
pub mod probe_menu;
pub mod probes;
pub mod role;
pub mod rows;
pub mod screens;
pub mod sessions;
pub mod signal_menu;
pub mod snapshot_file;
pub mod stacks;
pub mod tags;
pub mod terminal;
mod terminal_size;
pub mod theme;
pub mod time_window;
pub mod tmux;
pub mod view;
pub mod widgets;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crossterm::event::{Event, KeyEventKind};
use nix::sys::signal::{Signal, raise};
use ratatui::layout::Rect;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep_until};

use self::app::App;
use self::background_jobs::BackgroundJobs;
use self::clipboard::{Clipboard, Copied, osc52, send_to_tmux};
use self::incidents::{IncidentInbox, ListedIncident};
use self::input::Input;
pub use self::interactive_login::InteractiveLogin;
use self::screens::Screen;
use self::screens::fleet::FleetScreen;
pub use self::sessions::Host;
use self::sessions::{Arrival, Session, Sessions};
use self::terminal::Terminal;
use self::view::Outcome;
use crate::model::document::Document;
use crate::source::stream::Source;

/// No eye sees more than 60 frames a second, and a slow link should not have to carry them.
const MIN_PAUSE: Duration = Duration::from_millis(16);
/// After a key the screen follows sooner: only a key held down or pasted text comes faster than this.
const KEY_PAUSE: Duration = Duration::from_millis(4);

/// The list of hosts moves that often by itself.
const LIST_PAUSE: Duration = Duration::from_millis(250);

/// How the dashboard was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    ByUser,
    /// A signal asked for the end: the number.
    BySignal(i32),
    /// The terminal went away.
    TerminalGone,
}

/// What lies around the program that keys reach.
#[derive(Debug, Clone)]
pub struct Environment {
    pub clipboard: Clipboard,
    /// Where files are written.
    pub directory: PathBuf,
}

/// What woke the loop.
enum Wake {
    Terminal(Option<io::Result<Event>>),
    Host((usize, Arrival)),
    Incidents(Option<Vec<ListedIncident>>),
    Signal(Signal),
    /// What became of an errand.
    Errand(String),
    Draw,
}

/// Shows one host, or one recording, until the user leaves.
///
/// # Errors
/// When standard output is no terminal.
pub async fn run(
    app: App,
    source: Source,
    outside: Environment,
    desk: IncidentInbox,
) -> io::Result<Left> {
    run_host(Host::new(app, source), outside, desk).await
}

/// As [`run`], of a host that has said something already.
///
/// # Errors
/// When standard output is no terminal.
pub async fn run_host(host: Host, outside: Environment, desk: IncidentInbox) -> io::Result<Left> {
    run_seats(None, vec![host], outside, desk).await
}

/// Shows several hosts until the user leaves; `fleet` is what their list is drawn with, and where it has a clock of its own
/// its source.
///
/// # Errors
/// When standard output is no terminal.
pub async fn run_fleet(
    hosts: Vec<Host>,
    (fleet, clock): (App, Option<Source>),
    outside: Environment,
    desk: IncidentInbox,
) -> io::Result<Left> {
    let list = Session::alone(Box::new(FleetScreen::default()), fleet);
    run_seats(Some(list.with(clock)), hosts, outside, desk).await
}

/// Shows one screen, which needs no source, until the user leaves.
///
/// # Errors
/// When standard output is no terminal.
pub async fn show(screen: Box<dyn Screen>, app: App, outside: Environment) -> io::Result<Left> {
    let seat = Session::alone(screen, app);
    run_seats(Some(seat), Vec::new(), outside, IncidentInbox::unserved()).await
}

async fn run_seats(
    lead: Option<Session>,
    hosts: Vec<Host>,
    outside: Environment,
    desk: IncidentInbox,
) -> io::Result<Left> {
    let mut signals = Signals::listen()?;
    let mut apps = lead.iter().map(|seat| &seat.app);
    let has_mouse = apps.next().or(hosts.first().map(|host| &host.app));
    let has_mouse = has_mouse.is_some_and(|app| app.mouse);
    let mut terminal = Terminal::enter(has_mouse)?;
    let mut keys = Some(Input::start()?);
    let mut errands = BackgroundJobs::default();
    let mut last_draw = Instant::now() - MIN_PAUSE;
    let (mut pause, mut dirty) = (MIN_PAUSE, true);
    let mut desk_open = true;
    let IncidentInbox {
        mut incoming,
        opened,
        keep,
    } = desk;
    let mut stage = Sessions::open(lead, hosts, keep.as_ref());
    stage.follow();
    loop {
        let due = last_draw + pause;
        let wake = tokio::select! {
            biased;
            signal = signals.next() => Wake::Signal(signal),
            event = next_key(&keys) => Wake::Terminal(event),
            sentence = errands.next() => Wake::Errand(sentence),
            arrival = stage.next() => Wake::Host(arrival),
            known = incoming.recv(), if desk_open => Wake::Incidents(known),
            () = sleep_until(due), if dirty => Wake::Draw,
        };
        stage.on_screen().view.resize(terminal.area());
        match wake {
            Wake::Draw => {
                let seat = stage.on_screen();
                let drawn = terminal.draw(|area, buffer| seat.view.draw(&seat.app, area, buffer));
                if drawn.is_err() {
                    return Ok(Left::TerminalGone);
                }
                (last_draw, pause, dirty) = (Instant::now(), MIN_PAUSE, false);
                #[cfg(debug_assertions)]
                panic_where_a_test_wants_it();
            }
            Wake::Incidents(None) => desk_open = false,
            Wake::Incidents(Some(known)) => {
                stage.take_stored(&known);
                stage.follow();
                dirty = true;
            }
            Wake::Host(arrival) => {
                stage.take(arrival);
                while let Some(arrival) = stage.try_next() {
                    stage.take(arrival);
                }
                // Of a hundred hosts one says something every few milliseconds; nobody reads as fast.
                if stage.follow() && !dirty {
                    dirty = true;
                    pause = if stage.shows_fleet() {
                        LIST_PAUSE
                    } else {
                        pause
                    };
                }
            }
            Wake::Errand(sentence) => {
                stage.on_screen().app.message = Some(sentence);
                dirty = true;
            }
            // The next draw takes the new size.
            Wake::Signal(Signal::SIGWINCH) => dirty = true,
            Wake::Signal(Signal::SIGTSTP) => {
                suspend(&mut terminal)?;
                dirty = true;
            }
            Wake::Signal(signal) => return Ok(Left::BySignal(signal as i32)),
            Wake::Terminal(None | Some(Err(_))) => return Ok(Left::TerminalGone),
            Wake::Terminal(Some(Ok(event))) => {
                if matches!(event, Event::Key(_) | Event::Mouse(_)) {
                    pause = KEY_PAUSE;
                }
                let outcome = react(event, terminal.area(), stage.on_screen());
                let app = &mut stage.on_screen().app;
                match outcome {
                    Outcome::Stay => {}
                    Outcome::Leave => return Ok(Left::ByUser),
                    Outcome::Close => {
                        if !stage.show_fleet() {
                            return Ok(Left::ByUser);
                        }
                    }
                    Outcome::Suspend => suspend(&mut terminal)?,
                    Outcome::Redraw => terminal.redraw()?,
                    Outcome::Copy(copied) => {
                        app.message = copy(copied, &outside, &mut terminal, &mut errands)?;
                    }
                    Outcome::Write(document) => {
                        app.message = write(*document, app, &outside, &mut errands);
                    }
                    Outcome::Connect(row) => {
                        if let Some(way_in) = stage.way_in(row) {
                            let left = interactive_login::answer(
                                way_in,
                                &mut terminal,
                                &mut keys,
                                &mut signals,
                            );
                            if let Some(left) = left.await? {
                                return Ok(left);
                            }
                        }
                        stage.connect(row);
                    }
                    Outcome::Host(number) => stage.show(number),
                    Outcome::Hosts => {
                        if !stage.show_fleet() {
                            let app = &mut stage.on_screen().app;
                            app.message = Some("there is no other host".into());
                        }
                    }
                }
                // Nobody listens where there is no store.
                for uid in stage.take_opened() {
                    let _ = opened.send(uid);
                }
                dirty = true;
            }
        }
    }
}

/// Never where they are somebody else's.
async fn next_key(keys: &Option<Input>) -> Option<io::Result<Event>> {
    match keys {
        Some(keys) => keys.next().await,
        None => std::future::pending().await,
    }
}

/// How a test sees that a panic gives the terminal back: `GPUTOP_TEST_PANIC=main` panics here, after the first draw,
/// `GPUTOP_TEST_PANIC=thread` in a thread beside; `GPUTOP_TEST_PANIC=overflow` overflows the stack. Not there in a release build.
#[cfg(debug_assertions)]
fn panic_where_a_test_wants_it() {
    const WORDS: &str = "a test asked for this panic";
    static ASKED: std::sync::Once = std::sync::Once::new();
    ASKED.call_once(|| match std::env::var("GPUTOP_TEST_PANIC").as_deref() {
        Ok("main") => panic!("{WORDS}"),
        Ok("thread") => drop(std::thread::spawn(|| panic!("{WORDS}")).join()),
        Ok("overflow") => overflow(0),
        _ => {}
    });
}

/// Calls itself until the stack is full.
#[cfg(debug_assertions)]
fn overflow(depth: usize) {
    if depth == usize::MAX {
        return;
    }
    let room = std::hint::black_box([depth; 4_096]);
    overflow(room[0] + 1);
    std::hint::black_box(room);
}

fn react(event: Event, area: Rect, seat: &mut Session) -> Outcome {
    let (outcome, requests) = match event {
        Event::Key(key) if key.kind != KeyEventKind::Release => seat.view.key(key, &mut seat.app),
        Event::Mouse(mouse) => seat.view.mouse(mouse, area, &mut seat.app),
        _ => return Outcome::Stay,
    };
    seat.ask(requests);
    outcome
}

/// Sends a text on its way; a sentence where that is all there will be.
fn copy(
    copied: Copied,
    outside: &Environment,
    terminal: &mut Terminal,
    errands: &mut BackgroundJobs,
) -> io::Result<Option<String>> {
    match outside.clipboard {
        Clipboard::Tmux => {
            let work = move || send_to_tmux(&copied);
            Ok(errands.start("the clipboard", work).err())
        }
        Clipboard::Terminal => {
            terminal.print(&osc52(&copied.text))?;
            Ok(Some("sent to the terminal (it may ignore it)".into()))
        }
    }
}

/// Sends a document to its file; a sentence when it does not even start.
fn write(
    document: Document,
    app: &App,
    outside: &Environment,
    errands: &mut BackgroundJobs,
) -> Option<String> {
    let date = app.theme.clock(app.frame.time, "%Y%m%d-%H%M%S");
    let stem = snapshot_file::stem(&app.hello.host, &date);
    let directory = outside.directory.clone();
    let work = move || match document.json() {
        Ok(text) => snapshot_file::write(&directory, &stem, &text),
        Err(error) => format!("nothing was written: {error}"),
    };
    errands.start("the file", work).err()
}

/// Gives the terminal to the shell and stops; goes on when the shell says so.
fn suspend(terminal: &mut Terminal) -> io::Result<()> {
    terminal::give_back();
    // SIGSTOP and not SIGTSTP: that one is ours and would only come back here.
    raise(Signal::SIGSTOP)?;
    terminal.resume()
}

struct Signals {
    terminate: tokio::signal::unix::Signal,
    hang_up: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    stop: tokio::signal::unix::Signal,
    resize: tokio::signal::unix::Signal,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
            stop: signal(SignalKind::from_raw(Signal::SIGTSTP as i32))?,
            resize: signal(SignalKind::window_change())?,
        })
    }

    async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.terminate.recv() => Signal::SIGTERM,
            _ = self.hang_up.recv() => Signal::SIGHUP,
            _ = self.interrupt.recv() => Signal::SIGINT,
            _ = self.stop.recv() => Signal::SIGTSTP,
            _ = self.resize.recv() => Signal::SIGWINCH,
        }
    }
}
