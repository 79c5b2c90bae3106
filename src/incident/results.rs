//! The results of a watcher, and the channel that carries them.

use std::sync::Arc;

use gputop_model::protocol::backlog::{self, Backlog, Waiting};
use gputop_model::{Record, memory_size};
use tokio::sync::mpsc as channel;

#[derive(Debug, Clone, PartialEq)]
pub enum WatchResult {
    /// A new incident, or a revision of an incident previously reported with the same key.
    Incident(Box<Record>),
    /// Error message about an unsaved incident or a failed command.
    Error(String),
}

impl WatchResult {
    /// Returns the approximate memory of the result in bytes.
    pub fn memory_size(&self) -> usize {
        match self {
            Self::Incident(record) => memory_size::of(&**record),
            Self::Error(why) => why.len(),
        }
    }
}

/// Sends results to the owner of the watcher. A result may be much larger than the update that caused it, so the
/// watcher's thread waits while too many are unread.
#[derive(Debug, Clone)]
pub struct ResultSender {
    pub(super) unread: Arc<Backlog>,
    sender: channel::UnboundedSender<Waiting<WatchResult>>,
}

/// Receiver of the results of a [`ResultSender`].
#[derive(Debug)]
pub struct ResultReceiver {
    unread: Arc<Backlog>,
    receiver: channel::UnboundedReceiver<Waiting<WatchResult>>,
}

/// Creates the channel for the results of a watcher.
pub fn result_channel() -> (ResultSender, ResultReceiver) {
    let unread = Backlog::new(backlog::MAX_BYTES);
    let (sender, receiver) = channel::unbounded_channel();
    (ResultSender { unread: Arc::clone(&unread), sender }, ResultReceiver { unread, receiver })
}

impl ResultSender {
    /// Sends a result without waiting. Returns false if the watcher was dropped.
    pub fn send(&self, result: WatchResult) -> bool {
        let bytes = result.memory_size();
        self.sender.send(self.unread.add(result, bytes)).is_ok()
    }

    /// Returns a sender that does not keep the channel open.
    pub fn downgrade(&self) -> WeakResultSender {
        WeakResultSender { unread: Arc::clone(&self.unread), sender: self.sender.downgrade() }
    }
}

/// Sender for threads that may outlive the watcher, such as those of the user's commands.
#[derive(Debug, Clone)]
pub struct WeakResultSender {
    unread: Arc<Backlog>,
    sender: channel::WeakUnboundedSender<Waiting<WatchResult>>,
}

impl WeakResultSender {
    /// Sends a result without waiting. Returns false if the watcher was dropped.
    pub fn send(&self, result: WatchResult) -> bool {
        let unread = Arc::clone(&self.unread);
        self.sender.upgrade().is_some_and(|sender| ResultSender { unread, sender }.send(result))
    }
}

impl ResultReceiver {
    pub async fn next(&mut self) -> Option<WatchResult> {
        self.receiver.recv().await.map(Waiting::take)
    }

    pub fn try_next(&mut self) -> Result<WatchResult, channel::error::TryRecvError> {
        self.receiver.try_recv().map(Waiting::take)
    }
}

impl Drop for ResultReceiver {
    fn drop(&mut self) {
        self.unread.close();
    }
}
