//! The pipe between a source's thread and whoever reads it: ordered, bounded, events never dropped.
//!
//! A reader that falls behind loses the oldest frames, since only the newest matters; it never loses an event and
//! never makes the source wait.

use std::collections::VecDeque;
use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::{Request, Update};

/// More than a minute of frames at one a second: what a seek sends at once.
const MAX_FRAMES: usize = 128;

/// Stacks that nobody takes: of a program whose allocations fail for hours there is one a second.
const MAX_STACKS: usize = 64;
/// Maps of failed allocations that nobody takes; the first tell most, but those behind are of other failures.
const MAX_FAILURE_MAPS: usize = 8;

/// Unread updates at which [`Feed::wait_for_room`] waits.
const MAX_WAITING: usize = 4_096;

#[derive(Debug)]
struct Queue {
    updates: VecDeque<Update>,
    frames: usize,
    most_frames: usize,
    closed: bool,
    /// The reader is gone.
    is_abandoned: bool,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            updates: VecDeque::new(),
            frames: 0,
            most_frames: MAX_FRAMES,
            closed: false,
            is_abandoned: false,
        }
    }
}

impl Queue {
    /// A jump makes the states that still wait worthless; without this a held seek key would pile them up.
    fn forget_states(&mut self) {
        self.updates.retain(|update| {
            !matches!(
                update,
                Update::Frame(_)
                    | Update::Jump { .. }
                    | Update::Position(_)
                    | Update::Stacks(..)
                    | Update::FailureMap(_)
            ) && !is_map(update)
        });
        self.frames = 0;
    }

    /// Of updates of this kind the oldest goes when there are as many as may wait.
    fn make_room(&mut self, is_such: impl Fn(&Update) -> bool, most: usize) {
        if self.updates.iter().filter(|u| is_such(u)).count() >= most {
            let oldest = self.updates.iter().position(is_such);
            oldest.and_then(|at| self.updates.remove(at));
        }
    }
}

fn is_map(update: &Update) -> bool {
    matches!(update, Update::Map(_) | Update::NoMap(..))
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    arrived: Notify,
    /// There is room again, or nobody reads any more.
    has_room: Condvar,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        // A panicking writer leaves a queue that is still whole: every change to it is one push or pop.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The writing end, held by the source's threads. The stream ends when the last one is dropped.
#[derive(Debug)]
pub struct Feed {
    shared: Arc<Shared>,
}

impl Feed {
    /// Waits while thousands of updates are unread. For sources that read a file or a link: events are never dropped, so they would
    /// fill memory otherwise. Collectors do not wait.
    pub fn wait_for_room(&self) {
        let is_full = |queue: &mut Queue| queue.updates.len() >= MAX_WAITING && !queue.is_abandoned;
        let waited = self
            .shared
            .has_room
            .wait_while(self.shared.queue(), is_full);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    pub fn push(&self, update: Update) {
        let mut queue = self.shared.queue();
        if matches!(update, Update::Jump { .. }) {
            queue.forget_states();
        }
        if matches!(update, Update::Frame(_)) {
            if queue.frames >= queue.most_frames
                && let Some(oldest) = queue
                    .updates
                    .iter()
                    .position(|u| matches!(u, Update::Frame(_)))
            {
                queue.updates.remove(oldest);
                queue.frames -= 1;
            }
            queue.frames += 1;
        }
        if matches!(update, Update::Position(_)) {
            // Only the newest says anything.
            queue.updates.retain(|u| !matches!(u, Update::Position(_)));
        }
        match update {
            Update::Stacks(..) => {
                queue.make_room(|u| matches!(u, Update::Stacks(..)), MAX_STACKS);
            }
            Update::FailureMap(_) => {
                queue.make_room(|u| matches!(u, Update::FailureMap(_)), MAX_FAILURE_MAPS);
            }
            _ => {}
        }
        if matches!(update, Update::Link(_)) {
            queue.updates.retain(|u| !matches!(u, Update::Link(_)));
        }
        if is_map(&update) {
            queue.updates.retain(|u| !is_map(u));
        }
        if matches!(update, Update::Log(_)) {
            queue.updates.retain(|u| !matches!(u, Update::Log(_)));
        }
        queue.updates.push_back(update);
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

/// The reading end: what a screen, a recorder or a printer holds.
#[derive(Debug)]
pub struct Source {
    shared: Arc<Shared>,
    requests: mpsc::Sender<Request>,
}

impl Source {
    /// The next update; `None` when the source has ended. Safe to cancel: an update is taken or stays.
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

    /// An update that is already there.
    pub fn try_next(&mut self) -> Option<Update> {
        let mut queue = self.shared.queue();
        let update = queue.updates.pop_front()?;
        if matches!(update, Update::Frame(_)) {
            queue.frames -= 1;
        }
        if queue.updates.len() + 1 == MAX_WAITING {
            self.shared.has_room.notify_all();
        }
        Some(update)
    }

    /// So many frames wait at most from now on: whoever reads a hundred sources has no room for a minute of each.
    pub fn let_wait(&self, most_frames: usize) {
        self.shared.queue().most_frames = most_frames;
    }

    /// Another way to ask the source, for another thread.
    pub fn requests(&self) -> mpsc::Sender<Request> {
        self.requests.clone()
    }

    /// Asks the source for something. One that has ended takes no more requests, and needs none.
    pub fn send(&self, request: Request) {
        let _ = self.requests.send(request);
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        self.shared.queue().is_abandoned = true;
        self.shared.has_room.notify_all();
    }
}

/// A stream: its writing end, the requests that come back, and its reading end.
pub fn stream() -> (Feed, mpsc::Receiver<Request>, Source) {
    let shared = Arc::new(Shared::default());
    let (sender, requests) = mpsc::channel();
    (
        Feed {
            shared: Arc::clone(&shared),
        },
        requests,
        Source {
            shared,
            requests: sender,
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::event::Event;
    use crate::model::frame::Frame;
    use crate::model::units::Mono;

    fn frame(seq: u64) -> Update {
        Update::Frame(Arc::new(Frame {
            seq,
            ..Frame::default()
        }))
    }

    #[tokio::test]
    async fn a_slow_reader_loses_old_frames_and_no_event() {
        let (feed, _requests, mut source) = stream();
        for seq in 0..1_000 {
            feed.push(frame(seq));
            feed.push(Update::Event(Event {
                seq,
                ..Event::default()
            }));
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
        assert_eq!(
            frames,
            (1_000 - MAX_FRAMES as u64..1_000).collect::<Vec<_>>()
        );
    }

    #[test]
    fn of_a_source_among_many_few_frames_wait() {
        let (feed, _requests, mut source) = stream();
        source.let_wait(3);
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
        Update::Jump {
            from: Mono(0),
            summaries: Vec::new(),
        }
    }

    #[test]
    fn a_jump_replaces_the_states_that_wait_and_no_event() {
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

    #[test]
    fn a_source_that_can_wait_waits_for_a_reader_that_is_there() {
        let (feed, _requests, mut source) = stream();
        let event = || Update::Event(Event::default());
        (0..MAX_WAITING).for_each(|_| feed.push(event()));
        let (pushed, read) = std::sync::mpsc::channel();
        let writer = std::thread::spawn(move || {
            for _ in 0..2 {
                feed.wait_for_room();
                feed.push(event());
                let _ = pushed.send(());
            }
        });
        assert!(read.try_recv().is_err());
        source.try_next();
        assert_eq!(read.recv(), Ok(()));
        assert_eq!(source.shared.queue().updates.len(), MAX_WAITING);
        drop(source);
        assert_eq!(read.recv(), Ok(()));
        assert!(writer.join().is_ok());
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
