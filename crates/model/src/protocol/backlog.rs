//! Limits the memory of the updates that wait in a queue.
//!
//! A producer that reads from outside, such as a connection or a file, waits while the limit is reached. The sender then
//! notices that its data is not read, so nothing is lost and nothing grows. Only threads and tasks that serve a single
//! source may wait. The screen never does.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Maximum memory of the items in one queue. Jumping in a recording of 8 GPUs and 64 processes queues 125 frames of
/// 0.1 MiB; the player waits until the first ones were read.
pub const MAX_BYTES: usize = 4 << 20;

/// The memory of the items in one queue, and its limit.
#[derive(Debug)]
pub struct Backlog {
    state: Mutex<State>,
    freed: Condvar,
    /// The same as `freed`, for tasks.
    freed_for_tasks: Notify,
}

#[derive(Debug)]
struct State {
    bytes: usize,
    max_bytes: usize,
    /// True if nothing reads the queue anymore.
    is_closed: bool,
}

impl Backlog {
    pub fn new(max_bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State { bytes: 0, max_bytes, is_closed: false }),
            freed: Condvar::new(),
            freed_for_tasks: Notify::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Ignore poisoning: every change is a single assignment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an item of this size, even if the limit is reached. A producer that can wait does so first.
    pub fn add<T>(self: &Arc<Self>, item: T, bytes: usize) -> Waiting<T> {
        self.state().bytes += bytes;
        Waiting { item, _share: Share { backlog: Arc::clone(self), bytes } }
    }

    /// Blocks the thread while the limit is reached.
    pub fn wait(&self) {
        let waited = self.freed.wait_while(self.state(), |state| state.is_full());
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits while the limit is reached. Cancel-safe.
    pub async fn has_room(&self) {
        loop {
            let mut freed = std::pin::pin!(self.freed_for_tasks.notified());
            // Register before the check, because room may become free in between.
            freed.as_mut().enable();
            if !self.state().is_full() {
                return;
            }
            freed.await;
        }
    }

    pub fn is_full(&self) -> bool {
        self.state().is_full()
    }

    pub fn is_closed(&self) -> bool {
        self.state().is_closed
    }

    pub fn set_max_bytes(&self, max_bytes: usize) {
        self.state().max_bytes = max_bytes;
        self.notify();
    }

    /// Ends all waits, because nothing reads the queue anymore.
    pub fn close(&self) {
        self.state().is_closed = true;
        self.notify();
    }

    fn notify(&self) {
        self.freed.notify_all();
        self.freed_for_tasks.notify_waiters();
    }
}

impl State {
    fn is_full(&self) -> bool {
        self.bytes >= self.max_bytes && !self.is_closed
    }
}

/// An item in a queue. It counts toward the limit until it is taken or dropped.
#[derive(Debug)]
pub struct Waiting<T> {
    pub item: T,
    _share: Share,
}

impl<T> Waiting<T> {
    pub fn take(self) -> T {
        self.item
    }
}

#[derive(Debug)]
struct Share {
    backlog: Arc<Backlog>,
    bytes: usize,
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut state = self.backlog.state();
        let was_full = state.is_full();
        state.bytes -= self.bytes;
        let has_room = was_full && !state.is_full();
        drop(state);
        if has_room {
            self.backlog.notify();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_waits_until_an_item_is_taken_or_the_queue_is_closed() {
        let backlog = Backlog::new(100);
        let (passed, passes) = std::sync::mpsc::channel();
        let first = backlog.add((), 60);
        backlog.wait();
        let second = backlog.add((), 60);
        let waiting = Arc::clone(&backlog);
        let thread = std::thread::spawn(move || {
            waiting.wait();
            let third = waiting.add((), 60);
            let _ = passed.send(());
            waiting.wait();
            let _ = passed.send(());
            drop(third);
        });
        assert!(passes.try_recv().is_err());
        first.take();
        assert_eq!(passes.recv(), Ok(()));
        assert!(backlog.is_full() && passes.try_recv().is_err());
        backlog.close();
        assert_eq!(passes.recv(), Ok(()));
        assert!(thread.join().is_ok());
        drop(second);
        assert_eq!(backlog.state().bytes, 0);
    }

    #[tokio::test]
    async fn a_task_waits_until_an_item_is_taken() {
        let backlog = Backlog::new(100);
        backlog.has_room().await;
        let item = backlog.add((), 100);
        let mut room = std::pin::pin!(backlog.has_room());
        let is_pending = std::future::poll_fn(|context| {
            std::task::Poll::Ready(room.as_mut().poll(context).is_pending())
        });
        assert!(is_pending.await);
        drop(item);
        room.await;
    }
}
