//! The update queue between a source's threads and its reader. It is ordered and limited in memory.
//!
//! If the reader is slow, the queue drops the oldest frames, because only the newest frame matters. It never blocks a
//! collector. If the reader stalls, the updates of collectors replace older ones ([`Feed::drop_when_full`]): states,
//! then events, then replies. The reader is then told how many events and replies it missed. Threads that read a file or
//! a connection wait instead ([`Feed::wait_for_room`]), and lose neither.

use std::collections::VecDeque;
use std::mem::{Discriminant, discriminant};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::protocol::backlog::{self, Backlog, Waiting};
use crate::protocol::{Request, Update};

/// Maximum number of unread frames: enough for all frames that a jump in a recording sends.
const MAX_FRAMES: usize = 128;

/// Maximum number of unread Python stacks. If a program's allocations keep failing, it produces one stack per second.
const MAX_STACKS: usize = 64;
/// Maximum number of unread maps of failed allocations. Each map describes a different failed allocation.
const MAX_FAILURE_MAPS: usize = 8;

/// Maximum number of unread summaries of memory holders.
const MAX_HOLDER_SUMMARIES: usize = 64;

#[derive(Debug, Default)]
struct Queue {
    updates: VecDeque<Waiting<Update>>,
    max_frames: usize,
    drops_when_full: bool,
    /// Numbers of dropped events and replies that the reader was not told about yet.
    lost_events: u64,
    lost_replies: u64,
    closed: bool,
}

impl Queue {
    /// Drops the oldest updates while the memory limit is reached: states first, then events, then replies.
    fn drop_oldest(&mut self, backlog: &Backlog) {
        while backlog.is_full() {
            let oldest = |loss| self.updates.iter().position(|u| Loss::of(&u.item) == loss);
            let order = [Loss::State, Loss::Event, Loss::Reply];
            let Some(at) = order.into_iter().find_map(|loss| oldest(Some(loss))) else { return };
            let Some(dropped) = self.updates.remove(at) else { return };
            match Loss::of(&dropped.item) {
                Some(Loss::Event) => self.lost_events += 1,
                Some(Loss::Reply) => self.lost_replies += 1,
                Some(Loss::State) | None => {}
            }
        }
    }

    /// Removes the next update for the reader. Dropped updates are reported before the first update after the hello.
    fn take(&mut self) -> Option<Update> {
        let is_hello = matches!(self.updates.front()?.item, Update::Hello(_));
        if (self.lost_events, self.lost_replies) != (0, 0) && !is_hello {
            let (events, replies) = (self.lost_events, self.lost_replies);
            (self.lost_events, self.lost_replies) = (0, 0);
            let lost = match replies {
                0 => format!("{events} events"),
                _ => format!("{events} events and {replies} replies"),
            };
            return Some(Update::Notice(format!(
                "{lost} were dropped, because they were not read in time"
            )));
        }
        self.updates.pop_front().map(Waiting::take)
    }

    /// Discards unread frames and other updates made obsolete by a jump. They would accumulate while a seek key is held
    /// down.
    fn discard_states(&mut self) {
        self.updates.retain(|Waiting { item: update, .. }| {
            !matches!(
                update,
                Update::Frame(_)
                    | Update::Jump { .. }
                    | Update::Position(_)
                    | Update::Stacks(..)
                    | Update::FailureMap(_)
                    | Update::HolderSummary(_)
                    | Update::Holders(..)
                    | Update::Phases(..)
            ) && !is_map(update)
        });
    }

    /// Drops the oldest unread update of a kind if the queue contains the maximum number of that kind.
    fn make_room(&mut self, kind: Discriminant<Update>, max: usize) {
        let is_kind = |update: &Waiting<Update>| discriminant(&update.item) == kind;
        if self.updates.iter().filter(|u| is_kind(u)).count() >= max {
            self.updates.iter().position(is_kind).and_then(|at| self.updates.remove(at));
        }
    }

    /// Replaces the unread updates for which `is_old` returns true, because only the newest matters.
    fn discard(&mut self, is_old: impl Fn(&Update) -> bool) {
        self.updates.retain(|update| !is_old(&update.item));
    }
}

/// Cost of a dropped update for its reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    /// The source sends a newer one, or the reader can do without it.
    State,
    Event,
    /// A screen may wait for it, or it is a warning that is sent once.
    Reply,
}

impl Loss {
    /// Returns `None` if the update is never dropped.
    fn of(update: &Update) -> Option<Self> {
        match update {
            Update::Hello(_) | Update::Jump { .. } | Update::End(_) => None,
            Update::Frame(_)
            | Update::Map(_)
            | Update::NoMap(..)
            | Update::FailureMap(_)
            | Update::Stacks(..)
            | Update::Phases(..)
            | Update::Arrivals(_)
            | Update::HolderSummary(_)
            | Update::Log(_)
            | Update::Position(_)
            | Update::Link(_)
            | Update::IncidentList(_) => Some(Self::State),
            Update::Event(_) => Some(Self::Event),
            Update::Detail(..)
            | Update::Holders(..)
            | Update::Ras(..)
            | Update::Watched(..)
            | Update::Signalled(_)
            | Update::Probed(_)
            | Update::RemoteIncident(_)
            | Update::Past { .. }
            | Update::Notice(_) => Some(Self::Reply),
        }
    }
}

fn is_map(update: &Update) -> bool {
    matches!(update, Update::Map(_) | Update::NoMap(..))
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    arrived: Notify,
    /// The memory of the unread updates. Closed when the reader is dropped.
    backlog: Arc<Backlog>,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        // Ignore poisoning: every change to the queue is a single push or pop, so a panic leaves it valid.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sending end of a stream, owned by a source's threads. The stream ends when the last sender is dropped.
#[derive(Debug)]
pub struct Feed {
    shared: Arc<Shared>,
}

impl Feed {
    /// Waits while the unread updates take too much memory. Sources that read a file or a connection must call this,
    /// because their events are never dropped and would otherwise fill memory.
    pub fn wait_for_room(&self) {
        self.shared.backlog.wait();
    }

    /// Lets updates replace older ones once the unread updates take too much memory. For collectors, which do not wait.
    pub fn drop_when_full(&self) {
        self.shared.queue().drops_when_full = true;
    }

    pub fn push(&self, update: Update) {
        let backlog = &self.shared.backlog;
        if backlog.is_closed() {
            return;
        }
        let bytes = update.memory_size();
        let mut queue = self.shared.queue();
        if matches!(update, Update::Jump { .. }) {
            queue.discard_states();
        }
        if queue.drops_when_full {
            queue.drop_oldest(backlog);
        }
        let (kind, max_frames) = (discriminant(&update), queue.max_frames);
        match &update {
            // A collector that does not wait may have filled the queue with large frames.
            Update::Frame(_) if backlog.is_full() => queue.discard(|u| discriminant(u) == kind),
            Update::Frame(_) => queue.make_room(kind, max_frames),
            Update::Stacks(..) => queue.make_room(kind, MAX_STACKS),
            Update::FailureMap(_) => queue.make_room(kind, MAX_FAILURE_MAPS),
            Update::HolderSummary(_) => queue.make_room(kind, MAX_HOLDER_SUMMARIES),
            Update::Arrivals(_) | Update::Position(_) | Update::Link(_) | Update::Log(_) => {
                queue.discard(|u| discriminant(u) == kind);
            }
            update if is_map(update) => queue.discard(is_map),
            _ => {}
        }
        queue.updates.push_back(backlog.add(update, bytes));
        drop(queue);
        self.shared.arrived.notify_one();
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.shared.queue().closed = true;
        self.shared.arrived.notify_one();
    }
}

/// The receiving end of a stream, owned by a screen, a recorder or a printer.
#[derive(Debug)]
pub struct Source {
    shared: Arc<Shared>,
    requests: mpsc::Sender<Request>,
}

impl Source {
    /// Returns the next update, or `None` if the source has closed. Cancel-safe: cancelling the call loses no update.
    pub async fn next(&mut self) -> Option<Update> {
        loop {
            if let Some(update) = self.try_next() {
                return Some(update);
            }
            if self.shared.queue().closed {
                return self.try_next();
            }
            self.shared.arrived.notified().await;
        }
    }

    /// Like [`next`](Self::next), but first waits until the queue to which the caller passes updates has room.
    pub async fn next_for(&mut self, consumer: &Backlog) -> Option<Update> {
        consumer.has_room().await;
        self.next().await
    }

    /// Returns the next update without waiting.
    pub fn try_next(&mut self) -> Option<Update> {
        self.shared.queue().take()
    }

    /// Sets the maximum number of unread frames, and the maximum memory of all unread updates. A reader with a hundred
    /// sources cannot buffer a minute of frames for each of them.
    pub fn set_limits(&self, max_frames: usize, max_bytes: usize) {
        self.shared.queue().max_frames = max_frames;
        self.shared.backlog.set_max_bytes(max_bytes);
    }

    /// Returns a sender for requests from another thread.
    pub fn requests(&self) -> mpsc::Sender<Request> {
        self.requests.clone()
    }

    /// Sends a request to the source. Requests to a closed source are ignored.
    pub fn send(&self, request: Request) {
        let _ = self.requests.send(request);
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        self.shared.backlog.close();
    }
}

/// Creates a stream: the sending end, the request receiver, and the receiving end.
pub fn stream() -> (Feed, mpsc::Receiver<Request>, Source) {
    let queue = Queue { max_frames: MAX_FRAMES, ..Queue::default() };
    let shared = Arc::new(Shared {
        queue: Mutex::new(queue),
        arrived: Notify::new(),
        backlog: Backlog::new(backlog::MAX_BYTES),
    });
    let (sender, requests) = mpsc::channel();
    (Feed { shared: Arc::clone(&shared) }, requests, Source { shared, requests: sender })
}

#[cfg(test)]
mod tests;
