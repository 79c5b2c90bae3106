//! The hosts that are watched, each with what is known of it and what is shown of it; one of them is on the screen.
//!
//! With several the first seat is the list of them: a screen like any other, whose rows are the hosts. A snapshot has that
//! seat alone.

use std::sync::Arc;
use std::sync::mpsc as std_mpsc;

use tokio::sync::mpsc::{self, Receiver, Sender, UnboundedReceiver, UnboundedSender};

use super::app::App;
use super::incidents::{Known, Watch};
use super::screens::Screen;
use super::screens::fleet::FleetRow;
use super::view::View;
use crate::incidents::{Track, Uid};
use crate::source::stream::Source;
use crate::source::{Request, Update};
use crate::watch::{Found, Keep};

/// What waits between the hosts and the screen; beyond it a source drops frames by itself.
const MOST_WAITING: usize = 64;

/// A host to watch.
pub struct Host {
    pub app: App,
    pub source: Source,
}

/// What a host had to say.
pub(super) enum Arrival {
    Update(Box<Update>),
    Found(Found),
}

pub(super) struct Seat {
    pub(super) app: App,
    pub(super) view: View,
    to: Option<To>,
}

/// The ways back to a host.
struct To {
    requests: std_mpsc::Sender<Request>,
    history: UnboundedSender<(Uid, Vec<Track>)>,
}

impl Seat {
    /// Of a screen that needs no host.
    pub(super) fn alone(screen: Box<dyn Screen>, app: App) -> Self {
        Self {
            app,
            view: View::alone(screen),
            to: None,
        }
    }

    pub(super) fn ask(&self, requests: impl IntoIterator<Item = Request>) {
        let Some(to) = &self.to else { return };
        for request in requests {
            let _ = to.requests.send(request);
        }
    }
}

pub(super) struct Stage {
    seats: Vec<Seat>,
    on_screen: usize,
    /// The number of the first host.
    first: usize,
    arrivals: Receiver<(usize, Arrival)>,
}

impl Stage {
    /// Listens to all hosts from now on. `lead` is the seat that is no host: the list of them, or what needs none.
    pub(super) fn open(lead: Option<Seat>, hosts: Vec<Host>, keep: Option<&Keep>) -> Self {
        let (arrived, arrivals) = mpsc::channel(MOST_WAITING);
        let mut seats = Vec::from_iter(lead);
        let first = seats.len();
        for Host { app, source } in hosts {
            let (history, minutes) = mpsc::unbounded_channel();
            let watch = Watch::start(keep.cloned());
            // What came before the screen was opened.
            watch.see(&Update::Hello(Arc::clone(&app.hello)));
            watch.see(&Update::Frame(Arc::clone(&app.frame)));
            let to = To {
                requests: source.requests(),
                history,
            };
            tokio::spawn(listen(source, watch, seats.len(), arrived.clone(), minutes));
            seats.push(Seat {
                app,
                view: View::default(),
                to: Some(to),
            });
        }
        Self {
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
        match arrival {
            Arrival::Update(update) => self.seats[host].app.update(*update),
            Arrival::Found(found) => {
                // The fleet lists what was found anywhere.
                if host != 0 && self.first > 0 {
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
    pub(super) fn take_stored(&mut self, known: &[Known]) {
        let is_one = self.first == 0;
        for (at, seat) in self.seats.iter_mut().enumerate() {
            let host = &seat.app.hello.host;
            let is_here = |known: &&Known| known.incident.host.as_ref() == Some(host);
            let of_it = known.iter().filter(|one| is_one || at == 0 || is_here(one));
            let of_it = of_it.cloned().collect();
            seat.app.take_stored(of_it);
        }
    }

    /// The names of incidents that were opened here; read on one screen is read on all.
    pub(super) fn take_opened(&mut self) -> Vec<String> {
        let opened = self.seats.iter_mut();
        opened
            .flat_map(|seat| seat.app.incidents.take_opened())
            .collect()
    }

    pub(super) fn on_screen(&mut self) -> &mut Seat {
        let at = self.on_screen;
        &mut self.seats[at]
    }

    /// Shows a host by its row in the fleet.
    pub(super) fn show(&mut self, row: usize) {
        let seat = self.first + row;
        if seat < self.seats.len() {
            self.on_screen = seat;
        }
    }

    /// From a host back to the list of them; whether there was a way.
    pub(super) fn show_fleet(&mut self) -> bool {
        let is_there = self.first > 0 && self.on_screen > 0;
        self.on_screen = 0;
        is_there
    }

    /// After news: every screen follows its host, and asks it for what it wants.
    pub(super) fn follow(&mut self) {
        let rows = self.seats[self.first..].iter();
        let rows: Vec<FleetRow> = rows.map(|seat| FleetRow::of(&seat.app)).collect();
        if self.first > 0 && !rows.is_empty() {
            self.seats[0].app.take_fleet(rows);
        }
        for seat in &mut self.seats {
            let requests = seat.view.follow(&seat.app);
            seat.ask(requests);
        }
    }
}

/// Passes on what a host says and what that means, until it has ended and nobody wants to hear more.
async fn listen(
    mut source: Source,
    mut watch: Watch,
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
            found = watch.found() => Arrival::Found(found),
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
