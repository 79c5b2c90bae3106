//! Whether the store has changed since it was looked at last, for whoever looks every few seconds.

use std::time::{Duration, SystemTime};

use super::store::Store;

/// The clock of files has ticks; this is longer than any.
const TICK: Duration = Duration::from_millis(100);

/// What was seen of one store.
#[derive(Debug, Default)]
pub struct Changes {
    seen: Option<SystemTime>,
}

impl Changes {
    /// Whether a file was put into it since this was asked last; for one that is not there, no.
    pub fn are_new(&mut self, store: &Store) -> bool {
        let modified = || store.folder().metadata().ok()?.modified().ok();
        let now = modified();
        let are_new = now != self.seen;
        if are_new {
            // What comes in the same tick as this would not be told from it later.
            let is_old = |time: &SystemTime| time.elapsed().is_ok_and(|age| age > TICK);
            self.seen = now.filter(is_old);
        }
        are_new
    }
}
