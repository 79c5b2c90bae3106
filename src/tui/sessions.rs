//! The hosts that are watched, each with what is known of it and what is shown of it; one of them is on the screen.
//!
//! With several the first seat is the list of them: a screen like any other, whose rows are the hosts. A snapshot has that
//! seat alone.

use std::sync::Arc;
use std::sync::mpsc as std_mpsc;

use tokio::sync::mpsc::{self, Receiver, Sender, UnboundedReceiver, UnboundedSender};

use super::app::App;
use super::incidents::{ListedIncident, WatcherHandle};
use super::interactive_login::InteractiveLogin;
use super::screens::Screen;
use super::screens::fleet::FleetRow;
use super::view::View;
use crate::incidents::{Track, Uid};
use crate::model::history::Reach;
use crate::model::link::Link;
use crate::source::stream::Source;
use crate::source::{Request, Update};
use crate::watch::{self, Keep, WatchResult};

/// What waits between the hosts and the screen; beyond it a source drops frames by itself.
const MAX_WAITING: usize = 64;

/// So many hosts have their past kept beyond an outline: of more, those that were opened last. Of those it is the last that has
/// it whole, so that a day of looking around costs no more than twice a day of looking at one.
const MAX_OPENED: usize = 4;

/// Of a host among many so many frames wait for the screen, and for who judges them. One takes a tenth of a mebibyte: where a
/// client that has no time kept them all, it would soon have no room either.
const MAX_OF_MANY: usize = 2;

/// A host to watch.
pub struct Host {
    pub app: App,
    pub source: Source,
    /// What it said before the screen was opened and happened only once.
    pub before: Vec<Update>,
    /// Where somebody may have to answer on the way to it.
    pub way_in: Option<InteractiveLogin>,
}

impl Host {
    pub fn new(app: App, source: Source) -> Self {
        Self {
            app,
            source,
            before: Vec::new(),
            way_in: None,
        }
    }
}

/// What a host had to say.
pub(super) enum Arrival {
    Update(Box<Update>),
    Result(WatchResult),
}

pub(super) struct Session {
    pub(super) app: App,
    pub(super) view: View,
    to: Option<SessionLinks>,
    /// Where it has one and is no host.
    source: Option<Source>,
    way_in: Option<InteractiveLogin>,
    /// Something came for it since [`Sessions::follow`].
    has_news: bool,
}

/// The ways back to a host.
struct SessionLinks {
    requests: std_mpsc::Sender<Request>,
    history: UnboundedSender<(Uid, Vec<Track>)>,
}

impl Session {
    /// Of a screen that needs no host.
    pub(super) fn alone(screen: Box<dyn Screen>, app: App) -> Self {
        Self {
            app,
            view: View::alone(screen),
            to: None,
            source: None,
            way_in: None,
            has_news: true,
        }
    }

    /// What is said of it comes from here, and is asked for there.
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
    seats: Vec<Session>,
    on_screen: usize,
    /// The number of the first host.
    first: usize,
    arrivals: Receiver<(usize, Arrival)>,
    /// The seats whose past is kept, the one that was opened last behind the others. Of few hosts each has it whole.
    opened: Vec<usize>,
    is_crowd: bool,
}

impl Sessions {
    /// Listens to all hosts from now on. `lead` is the seat that is no host: the list of them, or what needs none.
    pub(super) fn open(lead: Option<Session>, hosts: Vec<Host>, keep: Option<&Keep>) -> Self {
        let (arrived, arrivals) = mpsc::channel(MAX_WAITING);
        let mut seats = Vec::from_iter(lead);
        let first = seats.len();
        for seat in &mut seats {
            let Some(source) = seat.source.take() else {
                continue;
            };
            let (history, minutes) = mpsc::unbounded_channel();
            seat.to = Some(SessionLinks {
                requests: source.requests(),
                history,
            });
            tokio::spawn(listen(
                source,
                WatcherHandle::none(),
                0,
                arrived.clone(),
                minutes,
            ));
        }
        let is_crowd = hosts.len() > MAX_OPENED;
        for host in hosts {
            let Host {
                mut app,
                source,
                before,
                way_in,
            } = host;
            app.set_shown(seats.is_empty());
            if is_crowd {
                app.keep(Reach::Outline);
            }
            let (history, minutes) = mpsc::unbounded_channel();
            let waiting = if is_crowd {
                source.set_max_frames(MAX_OF_MANY);
                MAX_OF_MANY
            } else {
                watch::MAX_WAITING
            };
            let watch = WatcherHandle::start(keep.cloned(), waiting);
            // What came before the screen was opened.
            watch.see(&Update::Hello(Arc::clone(&app.hello)));
            before.iter().for_each(|update| watch.see(update));
            watch.see(&Update::Frame(Arc::clone(&app.frame)));
            let to = SessionLinks {
                requests: source.requests(),
                history,
            };
            tokio::spawn(listen(source, watch, seats.len(), arrived.clone(), minutes));
            seats.push(Session {
                app,
                view: View::default(),
                to: Some(to),
                source: None,
                way_in,
                has_news: true,
            });
        }
        Self {
            opened: Vec::new(),
            is_crowd,
            seats,
            on_screen: 0,
            first,
            arrivals,
        }
    }

    /// The next of any host. Safe to cancel; never comes back once all have ended.
    pub(super) async fn next(&mut self) -> (usize, Arrival) {
        match self.arrivals.recv().await {
            Some(arrival) => arrival,
            None => std::future::pending().await,
        }
    }

    pub(super) fn try_next(&mut self) -> Option<(usize, Arrival)> {
        self.arrivals.try_recv().ok()
    }

    pub(super) fn take(&mut self, (host, arrival): (usize, Arrival)) {
        self.seats[host].has_news = true;
        match arrival {
            Arrival::Update(update) => {
                // All of a recording jump at once, and what was found is found again.
                if matches!(*update, Update::Jump { .. }) && self.first > 0 {
                    self.seats[0].app.incidents.forget_live();
                }
                self.seats[host].app.update(*update);
            }
            Arrival::Result(found) => {
                // The fleet lists what was found anywhere.
                if host != 0 && self.first > 0 {
                    self.seats[0].has_news = true;
                    self.seats[0].app.take_found(found.clone());
                }
                let seat = &mut self.seats[host];
                let minutes = seat.app.take_found(found);
                if let (Some(minutes), Some(to)) = (minutes, &seat.to) {
                    let _ = to.history.send(minutes);
                }
            }
        }
    }

    /// What the store holds: of each host its own, of the fleet and of a single host all.
    pub(super) fn take_stored(&mut self, known: &[ListedIncident]) {
        let is_one = self.first == 0;
        for (at, seat) in self.seats.iter_mut().enumerate() {
            let host = &seat.app.hello.host;
            let is_here = |known: &&ListedIncident| known.incident.host.as_ref() == Some(host);
            let of_it = known.iter().filter(|one| is_one || at == 0 || is_here(one));
            let of_it = of_it.cloned().collect();
            seat.app.take_stored(of_it);
            seat.has_news = true;
        }
    }

    /// The names of incidents that were opened here; read on one screen is read on all.
    pub(super) fn take_opened(&mut self) -> Vec<String> {
        let opened = self.seats.iter_mut();
        opened
            .flat_map(|seat| seat.app.incidents.take_opened())
            .collect()
    }

    pub(super) fn on_screen(&mut self) -> &mut Session {
        let at = self.on_screen;
        &mut self.seats[at]
    }

    /// Shows a host by its row in the fleet.
    pub(super) fn show(&mut self, row: usize) {
        let seat = self.first + row;
        if seat >= self.seats.len() {
            return;
        }
        if self.is_crowd {
            self.keep_most_of(seat);
        }
        self.put_on_screen(seat);
    }

    fn keep_most_of(&mut self, seat: usize) {
        self.opened.retain(|opened| *opened != seat);
        if let Some(before) = self.opened.last() {
            self.seats[*before].app.keep(Reach::Part);
        }
        self.opened.push(seat);
        self.seats[seat].app.keep(Reach::Whole);
        if self.opened.len() > MAX_OPENED {
            let oldest = self.opened.remove(0);
            self.seats[oldest].app.keep(Reach::Outline);
        }
    }

    /// The seat of a row of the fleet, or the one on the screen.
    fn seat(&self, row: Option<usize>) -> &Session {
        let at = row.map_or(self.on_screen, |row| self.first + row);
        self.seats.get(at).unwrap_or(&self.seats[self.on_screen])
    }

    /// What asks the person on the way to a host; nothing where the link is not lost over that.
    pub(super) fn way_in(&self, row: Option<usize>) -> Option<&InteractiveLogin> {
        let seat = self.seat(row);
        let asks = matches!(seat.app.link, Some(Link::Lost { asks: true, .. }));
        seat.way_in.as_ref().filter(|_| asks)
    }

    /// Tries a lost link again; says so where none is lost.
    pub(super) fn connect(&mut self, row: Option<usize>) {
        let is_lost = matches!(self.seat(row).app.link, Some(Link::Lost { .. }));
        let words = if is_lost {
            self.seat(row).ask([Request::Connect]);
            "trying again"
        } else {
            "no link is lost here"
        };
        self.on_screen().app.message = Some(words.into());
    }

    /// From a host back to the list of them; whether there was a way.
    pub(super) fn show_fleet(&mut self) -> bool {
        let is_there = self.first > 0 && self.on_screen > 0;
        self.put_on_screen(0);
        is_there
    }

    fn put_on_screen(&mut self, seat: usize) {
        if seat == self.on_screen {
            return;
        }
        let left = self.on_screen();
        let requests = left.view.leave();
        left.ask(requests);
        left.app.set_shown(false);
        self.on_screen = seat;
        let shown = self.on_screen();
        shown.app.set_shown(true);
        shown.follow();
    }

    /// Whether the list of hosts is on the screen.
    pub(super) fn shows_fleet(&self) -> bool {
        self.first > 0 && self.on_screen == 0
    }

    /// After news: the list has them, and what is on the screen follows its host. Whether the screen has to be drawn.
    pub(super) fn follow(&mut self) -> bool {
        for host in self.first..self.seats.len() {
            if self.first > 0 && self.seats[host].has_news {
                let row = FleetRow::of(&self.seats[host].app);
                self.seats[0].app.take_host(host - self.first, row);
                self.seats[0].has_news = true;
            }
        }
        let is_new = self.on_screen().has_news;
        self.seats.iter_mut().for_each(|seat| seat.has_news = false);
        if is_new {
            self.on_screen().follow();
        }
        is_new
    }
}

/// Passes on what a host says and what that means, until it has ended and nobody wants to hear more.
async fn listen(
    mut source: Source,
    mut watch: WatcherHandle,
    host: usize,
    arrived: Sender<(usize, Arrival)>,
    mut minutes: UnboundedReceiver<(Uid, Vec<Track>)>,
) {
    let mut is_open = true;
    loop {
        let arrival = tokio::select! {
            update = source.next(), if is_open => match update {
                Some(update) => {
                    watch.see(&update);
                    Arrival::Update(Box::new(update))
                }
                None => {
                    is_open = false;
                    continue;
                }
            },
            found = watch.found() => Arrival::Result(found),
            more = minutes.recv() => match more {
                Some((uid, tracks)) => {
                    watch.add_history(uid, tracks);
                    continue;
                }
                None => return,
            },
        };
        if arrived.send((host, arrival)).await.is_err() {
            return;
        }
    }
}
