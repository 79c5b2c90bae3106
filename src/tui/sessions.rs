//! The dashboard's sessions: one per monitored host, each with its own state and screens. One session is on the screen
//! at a time.
//!
//! With several hosts, the first session is the host list. A snapshot or other screen without a source has its own
//! session.

use std::sync::{Arc, mpsc as std_mpsc};

use gputop_explain::ranks::JoinedJobs;
use gputop_model::history::Reach;
use gputop_model::incident_record::Track;
use gputop_model::link::Link;
use gputop_model::protocol::backlog::{self, Backlog, Waiting};
use gputop_model::protocol::stream::Source;
use gputop_model::protocol::{Request, Update};
use tokio::sync::mpsc::{self, Receiver, Sender, UnboundedReceiver, UnboundedSender};

use super::app::App;
use super::interactive_login::InteractiveLogin;
use super::screen::Screen;
use super::view::View;
use crate::dashboard::incidents::ListedIncident;
use crate::incident::{IncidentSink, MAX_WAITING_FRAMES, Uid, WatchResult, Watcher};

/// Maximum number of updates queued between all hosts and the screen. When the queue is full, or its updates take
/// [`backlog::MAX_BYTES`], sources drop frames and wait with everything else.
const MAX_WAITING: usize = 64;

/// Maximum number of hosts that retain more than an outline of their history. These are the most recently opened hosts.
/// If there are more hosts than this, only the one opened last keeps its complete history, so memory use is at most
/// twice that of a single host.
const MAX_WITH_HISTORY: usize = 4;

/// Maximum number of frames queued per host when there are many hosts. The screen and the watcher each have their own
/// queue. A frame takes about 0.1 MiB, so longer queues would exhaust the memory of an overloaded client.
const MAX_WAITING_PER_HOST: usize = 2;
/// Maximum memory of the updates in each of these queues.
const MAX_BYTES_PER_HOST: usize = 512 << 10;

/// A host to monitor.
pub struct MonitoredHost {
    pub app: App,
    pub source: Source,
    /// Updates received before the dashboard opened, which will not be sent again.
    pub before: Vec<Update>,
    /// The login, set if connecting may prompt for a password.
    pub login: Option<InteractiveLogin>,
}

impl MonitoredHost {
    pub fn new(app: App, source: Source) -> Self {
        Self { app, source, before: Vec::new(), login: None }
    }
}

/// A message from a host or its watcher.
pub(super) enum Arrival {
    Update(Box<Update>),
    Result(WatchResult),
}

/// A host or a standalone screen.
pub(super) struct Session {
    pub(super) app: App,
    pub(super) view: View,
    to: Option<SessionLinks>,
    /// The source of a session that is not a host.
    source: Option<Source>,
    login: Option<InteractiveLogin>,
    /// True if an update has arrived since the last call to [`Sessions::follow`].
    has_updates: bool,
}

/// The channels to a host and its watcher.
struct SessionLinks {
    requests: std_mpsc::Sender<Request>,
    history: UnboundedSender<(Uid, Vec<Track>)>,
}

impl Session {
    /// Creates a session for a screen without a host.
    pub(super) fn alone(screen: Box<dyn Screen>, app: App) -> Self {
        Self {
            app,
            view: View::alone(screen),
            to: None,
            source: None,
            login: None,
            has_updates: true,
        }
    }

    /// Sets the source of a session that is not a host.
    pub(super) fn with(self, source: Option<Source>) -> Self {
        Self { source, ..self }
    }

    fn follow(&mut self) {
        let requests = self.view.follow(&self.app);
        self.ask(requests);
    }

    pub(super) fn ask(&self, requests: impl IntoIterator<Item = Request>) {
        let Some(to) = &self.to else { return };
        for request in requests {
            let _ = to.requests.send(request);
        }
    }
}

pub(super) struct Sessions {
    sessions: Vec<Session>,
    on_screen: usize,
    /// Index of the first host.
    first_host: usize,
    arrivals: Receiver<Waiting<(usize, Arrival)>>,
    /// Sessions that retain their history, most recently opened last. With few hosts, all sessions retain it.
    opened: Vec<usize>,
    has_many_hosts: bool,
}

impl Sessions {
    /// Starts receiving from all hosts. `lead` is an optional first session that is not a host, such as the host list
    /// or a standalone screen.
    pub(super) fn open(
        lead: Option<Session>,
        hosts: Vec<MonitoredHost>,
        sink: Option<&IncidentSink>,
    ) -> Self {
        let (sender, arrivals) = mpsc::channel(MAX_WAITING);
        let arrived = ArrivalSender { sender, backlog: Backlog::new(backlog::MAX_BYTES) };
        let mut sessions = Vec::from_iter(lead);
        let first_host = sessions.len();
        // Recordings may be of the same host at different times.
        let is_live = hosts.iter().all(|host| host.app.host.recording.is_none());
        let joined = is_live.then(JoinedJobs::default);
        // The incident watchers see the ranks at other times than the screens.
        let stalls = is_live.then(JoinedJobs::default);
        let join = |app: &mut App| {
            if let Some(joined) = &joined {
                app.host.jobs.join(joined.clone());
            }
        };
        sessions.iter_mut().for_each(|session| join(&mut session.app));
        for session in &mut sessions {
            let Some(source) = session.source.take() else {
                continue;
            };
            let (history, charts) = mpsc::unbounded_channel();
            session.to = Some(SessionLinks { requests: source.requests(), history });
            tokio::spawn(listen(source, Watcher::none(), 0, arrived.clone(), charts));
        }
        let has_many_hosts = hosts.len() > MAX_WITH_HISTORY;
        for host in hosts {
            let MonitoredHost { mut app, source, before, login } = host;
            app.host.set_shown(sessions.is_empty());
            join(&mut app);
            if has_many_hosts {
                app.host.set_reach(Reach::Outline);
            }
            let (history, charts) = mpsc::unbounded_channel();
            let waiting = if has_many_hosts { MAX_WAITING_PER_HOST } else { MAX_WAITING_FRAMES };
            let jobs = stalls.clone().unwrap_or_default();
            let watch = Watcher::start_with(sink.cloned(), waiting, jobs).unwrap_or_else(|error| {
                tracing::warn!("cannot start the incident watcher: {error}");
                Watcher::none()
            });
            if has_many_hosts {
                source.set_limits(MAX_WAITING_PER_HOST, MAX_BYTES_PER_HOST);
                watch.backlog().set_max_bytes(MAX_BYTES_PER_HOST);
            }
            // Pass on the updates received before the dashboard opened.
            watch.see(&Update::Hello(Arc::clone(&app.host.hello)));
            before.iter().for_each(|update| watch.see(update));
            watch.see(&Update::Frame(Arc::clone(&app.host.frame)));
            let to = SessionLinks { requests: source.requests(), history };
            tokio::spawn(listen(source, watch, sessions.len(), arrived.clone(), charts));
            sessions.push(Session {
                app,
                view: View::default(),
                to: Some(to),
                source: None,
                login,
                has_updates: true,
            });
        }
        Self { opened: Vec::new(), has_many_hosts, sessions, on_screen: 0, first_host, arrivals }
    }

    /// Waits for the next message from any host. Cancel-safe. Never returns after all sources have closed.
    pub(super) async fn next(&mut self) -> (usize, Arrival) {
        match self.arrivals.recv().await {
            Some(arrival) => arrival.take(),
            None => std::future::pending().await,
        }
    }

    pub(super) fn try_next(&mut self) -> Option<(usize, Arrival)> {
        self.arrivals.try_recv().ok().map(Waiting::take)
    }

    pub(super) fn take(&mut self, (host, arrival): (usize, Arrival)) {
        self.sessions[host].has_updates = true;
        match arrival {
            Arrival::Update(update) => self.sessions[host].app.update(*update),
            Arrival::Result(result) => {
                // The host list shows the incidents of all hosts.
                if host != 0 && self.first_host > 0 {
                    self.sessions[0].has_updates = true;
                    self.sessions[0].app.take_watch_result(result.clone());
                }
                let session = &mut self.sessions[host];
                let charts = session.app.take_watch_result(result);
                if let (Some(charts), Some(to)) = (charts, &session.to) {
                    let _ = to.history.send(charts);
                }
            }
        }
    }

    /// Distributes the stored incidents. Each host gets its own incidents; the host list, or a single host, gets all of
    /// them.
    pub(super) fn take_stored(&mut self, known: &[ListedIncident]) {
        let is_single = self.first_host == 0;
        for (at, session) in self.sessions.iter_mut().enumerate() {
            let host = &session.app.host.hello.host;
            let is_own = |known: &&ListedIncident| known.incident.host.as_ref() == Some(host);
            let own = known.iter().filter(|one| is_single || at == 0 || is_own(one));
            session.app.host.take_stored(own.cloned().collect());
            session.has_updates = true;
        }
    }

    /// Returns the IDs of incidents opened in any session.
    pub(super) fn take_opened(&mut self) -> Vec<String> {
        self.sessions
            .iter_mut()
            .flat_map(|session| session.app.host.incidents.take_opened())
            .collect()
    }

    pub(super) fn on_screen(&mut self) -> &mut Session {
        let at = self.on_screen;
        &mut self.sessions[at]
    }

    /// Shows the host with this row number in the host list.
    pub(super) fn show(&mut self, row: usize) {
        let session = self.first_host + row;
        if session >= self.sessions.len() {
            return;
        }
        if self.has_many_hosts {
            self.retain_history_of(session);
        }
        self.put_on_screen(session);
    }

    fn retain_history_of(&mut self, session: usize) {
        self.opened.retain(|opened| *opened != session);
        if let Some(before) = self.opened.last() {
            self.sessions[*before].app.host.set_reach(Reach::Part);
        }
        self.opened.push(session);
        self.sessions[session].app.host.set_reach(Reach::Whole);
        if self.opened.len() > MAX_WITH_HISTORY {
            let oldest = self.opened.remove(0);
            self.sessions[oldest].app.host.set_reach(Reach::Outline);
        }
    }

    /// Returns the session for a row of the host list, or the session on the screen if `None`.
    fn session(&self, row: Option<usize>) -> &Session {
        let at = row.map_or(self.on_screen, |row| self.first_host + row);
        self.sessions.get(at).unwrap_or(&self.sessions[self.on_screen])
    }

    /// Returns the login of a host whose lost connection can be restored only with user input.
    pub(super) fn login(&self, row: Option<usize>) -> Option<&InteractiveLogin> {
        let session = self.session(row);
        let asks = matches!(session.app.host.link, Some(Link::Lost { asks: true, .. }));
        session.login.as_ref().filter(|_| asks)
    }

    /// Retries the host's connection if it is lost, and shows a message.
    pub(super) fn connect(&mut self, row: Option<usize>) {
        let is_lost = matches!(self.session(row).app.host.link, Some(Link::Lost { .. }));
        let message = if is_lost {
            self.session(row).ask([Request::Connect]);
            "reconnecting"
        } else {
            "no lost connection to retry"
        };
        self.on_screen().app.ui.message = Some(message.into());
    }

    /// Returns to the host list. Returns false if there is none.
    pub(super) fn show_fleet(&mut self) -> bool {
        let is_there = self.first_host > 0 && self.on_screen > 0;
        self.put_on_screen(0);
        is_there
    }

    fn put_on_screen(&mut self, session: usize) {
        if session == self.on_screen {
            return;
        }
        let previous = self.on_screen();
        let requests = previous.view.leave();
        previous.ask(requests);
        previous.app.host.set_shown(false);
        let colours = previous.app.ui.theme.colours.clone();
        self.on_screen = session;
        let shown = self.on_screen();
        shown.app.ui.theme.colours = colours;
        shown.app.host.set_shown(true);
        shown.follow();
    }

    /// Returns true if the host list is on the screen.
    pub(super) fn shows_fleet(&self) -> bool {
        self.first_host > 0 && self.on_screen == 0
    }

    /// Updates the host list and the session on the screen after new messages. Returns true if the screen must be redrawn.
    pub(super) fn follow(&mut self) -> bool {
        for host in self.first_host..self.sessions.len() {
            if self.first_host > 0 && self.sessions[host].has_updates {
                let row = self.sessions[host].app.host.fleet_row();
                self.sessions[0].app.host.take_host(host - self.first_host, row);
                self.sessions[0].has_updates = true;
            }
        }
        let is_new = self.on_screen().has_updates;
        self.sessions.iter_mut().for_each(|session| session.has_updates = false);
        if is_new {
            self.on_screen().follow();
        }
        is_new
    }
}

/// The sending end of the queue between all hosts and the screen.
#[derive(Clone)]
struct ArrivalSender {
    sender: Sender<Waiting<(usize, Arrival)>>,
    backlog: Arc<Backlog>,
}

impl ArrivalSender {
    /// Waits until the queue has room, and sends the message of a host. Returns false if the dashboard has closed.
    async fn send(&self, host: usize, arrival: Arrival) -> bool {
        let bytes = match &arrival {
            Arrival::Update(update) => update.memory_size(),
            Arrival::Result(result) => result.memory_size(),
        };
        self.backlog.has_room().await;
        self.sender.send(self.backlog.add((host, arrival), bytes)).await.is_ok()
    }
}

/// Forwards a host's updates and its watcher's results until both channels have closed.
async fn listen(
    mut source: Source,
    mut watch: Watcher,
    host: usize,
    arrived: ArrivalSender,
    mut charts: UnboundedReceiver<(Uid, Vec<Track>)>,
) {
    let mut is_open = true;
    let watched = watch.backlog();
    loop {
        let arrival = tokio::select! {
            update = source.next_for(&watched), if is_open => match update {
                Some(update) => {
                    watch.see(&update);
                    Arrival::Update(Box::new(update))
                }
                None => {
                    is_open = false;
                    continue;
                }
            },
            result = watch.next() => Arrival::Result(result),
            tracks = charts.recv() => match tracks {
                Some((uid, tracks)) => {
                    watch.add_history(uid, tracks);
                    continue;
                }
                None => return,
            },
        };
        if !arrived.send(host, arrival).await {
            return;
        }
    }
}
