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

#[derive(Debug)]
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
            ) && !is_map(update)
        });
    }

    /// Drops the oldest unread update of a kind if the queue contains the maximum number of that kind.
    fn make_room(&mut self, kind: Discriminant<Update>, max: usize) {
        let is_kind = |update: &Waiting<Update>| discriminant(&update.item) == kind;
        if self.updates.iter().filter(|u| is_kind(u)).count() >= max {
            let oldest = self.updates.iter().position(is_kind);
            oldest.and_then(|at| self.updates.remove(at));
        }
    }

    /// Replaces the unread updates for which `is_old` returns true, because only the newest matters.
    fn discard(&mut self, is_old: impl Fn(&Update) -> bool) {
        self.updates.retain(|update| !is_old(&update.item));
    }
}

/// What a reader loses with an update that is dropped.
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
            | Update::HolderSummary(_)
            | Update::Log(_)
            | Update::Position(_)
            | Update::Link(_)
            | Update::IncidentList(_) => Some(Self::State),
            Update::Event(_) => Some(Self::Event),
            Update::Detail(..)
            | Update::Holders(..)
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
            Update::Position(_) | Update::Link(_) | Update::Log(_) | Update::Holders(..) => {
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
    let queue = Queue {
        updates: VecDeque::new(),
        max_frames: MAX_FRAMES,
        drops_when_full: false,
        lost_events: 0,
        lost_replies: 0,
        closed: false,
    };
    let shared = Arc::new(Shared {
        queue: Mutex::new(queue),
        arrived: Notify::new(),
        backlog: Backlog::new(backlog::MAX_BYTES),
    });
    let (sender, requests) = mpsc::channel();
    (Feed { shared: Arc::clone(&shared) }, requests, Source { shared, requests: sender })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::event::{Event, LogExcerpt, Observation};
    use crate::model::frame::Frame;
    use crate::model::gpu::Gpu;
    use crate::model::units::Mono;

    fn frame(seq: u64) -> Update {
        Update::Frame(Arc::new(Frame { seq, ..Frame::default() }))
    }

    #[tokio::test]
    async fn a_slow_reader_loses_old_frames_but_no_event() {
        let (feed, _requests, mut source) = stream();
        for seq in 0..1_000 {
            feed.push(frame(seq));
            feed.push(Update::Event(Event { seq, ..Event::default() }));
        }
        drop(feed);
        let (mut frames, mut events) = (Vec::new(), 0);
        while let Some(update) = source.next().await {
            match update {
                Update::Frame(frame) => frames.push(frame.seq),
                Update::Event(event) => {
                    assert_eq!(event.seq, events);
                    events += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(events, 1_000);
        assert_eq!(frames, (1_000 - MAX_FRAMES as u64..1_000).collect::<Vec<_>>());
    }

    #[test]
    fn keeps_only_the_allowed_number_of_frames() {
        let (feed, _requests, mut source) = stream();
        source.set_limits(3, backlog::MAX_BYTES);
        (0..9).for_each(|seq| feed.push(frame(seq)));
        let waiting = std::iter::from_fn(|| source.try_next());
        let numbers: Vec<u64> = waiting
            .filter_map(|update| match update {
                Update::Frame(frame) => Some(frame.seq),
                _ => None,
            })
            .collect();
        assert_eq!(numbers, [6, 7, 8]);
    }

    fn jump() -> Update {
        Update::Jump { from: Mono(0), summaries: Vec::new() }
    }

    #[test]
    fn a_jump_discards_unread_states_but_no_event() {
        let (feed, _requests, mut source) = stream();
        for seq in 0..100 {
            feed.push(jump());
            feed.push(frame(seq));
            feed.push(Update::Event(Event::default()));
        }
        let waiting: Vec<_> = std::iter::from_fn(|| source.try_next()).collect();
        let events = waiting.iter().filter(|u| matches!(u, Update::Event(_)));
        assert_eq!((waiting.len(), events.count()), (102, 100));
        assert!(matches!(&waiting[100], Update::Frame(f) if f.seq == 99));
    }

    fn large_event() -> Update {
        let excerpt = LogExcerpt { text: "x".repeat(1 << 20), ..LogExcerpt::default() };
        let observation = Observation::Log(Box::new(excerpt));
        Update::Event(Event { observation, ..Event::default() })
    }

    #[test]
    fn a_waiting_feed_continues_when_the_reader_reads_or_is_dropped() {
        let (feed, _requests, mut source) = stream();
        let count = backlog::MAX_BYTES >> 20;
        (0..count).for_each(|_| feed.push(large_event()));
        let (pushed, read) = std::sync::mpsc::channel();
        let writer = std::thread::spawn(move || {
            for _ in 0..2 {
                feed.wait_for_room();
                feed.push(large_event());
                let _ = pushed.send(());
            }
        });
        assert!(read.try_recv().is_err());
        source.try_next();
        assert_eq!(read.recv(), Ok(()));
        assert_eq!(source.shared.queue().updates.len(), count);
        drop(source);
        assert_eq!(read.recv(), Ok(()));
        assert!(writer.join().is_ok());
    }

    #[test]
    fn large_frames_of_a_collector_replace_unread_ones() {
        let (feed, _requests, mut source) = stream();
        source.set_limits(MAX_FRAMES, 100_000);
        for seq in 0..1_000 {
            let gpu = Gpu { name: "x".repeat(10_000), ..Gpu::default() };
            feed.push(Update::Frame(Arc::new(Frame { seq, gpus: vec![gpu], ..Frame::default() })));
        }
        let unread: Vec<_> = std::iter::from_fn(|| source.try_next()).collect();
        assert!((1..12).contains(&unread.len()), "{} frames", unread.len());
        assert!(matches!(unread.last(), Some(Update::Frame(frame)) if frame.seq == 999));
    }

    #[test]
    fn updates_of_a_collector_replace_unread_frames_first_then_events() {
        let (feed, _requests, mut source) = stream();
        feed.drop_when_full();
        feed.push(Update::Hello(Arc::default()));
        let count = 3 * (backlog::MAX_BYTES as u64 >> 20);
        for seq in 0..count {
            feed.push(frame(seq));
            let Update::Event(event) = large_event() else { unreachable!() };
            feed.push(Update::Event(Event { seq, ..event }));
            feed.push(Update::Notice(seq.to_string()));
        }
        let unread: Vec<_> = std::iter::from_fn(|| source.try_next()).collect();
        let events: Vec<u64> = unread
            .iter()
            .filter_map(|update| match update {
                Update::Event(event) => Some(event.seq),
                _ => None,
            })
            .collect();
        let lost = count - events.len() as u64;
        assert!(lost > 0 && !events.is_empty());
        assert!(!unread.iter().any(|update| matches!(update, Update::Frame(_))));
        assert_eq!(events, (lost..count).collect::<Vec<_>>());
        assert!(matches!(unread[0], Update::Hello(_)));
        let Update::Notice(notice) = &unread[1] else { panic!("{:?}", unread[1]) };
        assert_eq!(
            notice,
            &format!("{lost} events were dropped, because they were not read in time")
        );
        let notices = unread.iter().skip(2).filter_map(|update| match update {
            Update::Notice(notice) => notice.parse::<u64>().ok(),
            _ => None,
        });
        assert!(notices.eq(0..count));
    }

    #[test]
    fn dropped_replies_are_reported() {
        let (feed, _requests, mut source) = stream();
        feed.drop_when_full();
        (0..2).for_each(|_| feed.push(large_event()));
        let count = 3 * (backlog::MAX_BYTES >> 20);
        (0..count).for_each(|_| feed.push(Update::Notice("x".repeat(1 << 20))));
        let Some(Update::Notice(notice)) = source.try_next() else { panic!("no notice") };
        let unread: Vec<_> = std::iter::from_fn(|| source.try_next()).collect();
        assert!(unread.iter().all(|update| matches!(update, Update::Notice(_))));
        let lost = count - unread.len();
        let expected =
            format!("2 events and {lost} replies were dropped, because they were not read in time");
        assert_eq!(notice, expected);
    }

    #[tokio::test]
    async fn requests_reach_the_source_until_it_ends() {
        let (feed, requests, source) = stream();
        source.send(Request::Focus(None));
        assert_eq!(requests.recv(), Ok(Request::Focus(None)));
        drop((feed, requests));
        source.send(Request::Focus(None));
    }
}
