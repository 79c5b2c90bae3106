//! Detects changes in the incident store, for callers that poll it every few seconds.

use std::time::{Duration, SystemTime};

use super::store::Store;

/// Coarsest clock resolution of any file system.
const MAX_CLOCK_TICK: Duration = Duration::from_millis(100);

/// The incident store's modification time at the last check.
#[derive(Debug, Default)]
pub struct Changes {
    seen: Option<SystemTime>,
}

impl Changes {
    /// Returns true if the store may have changed since the last call. Returns false if the store has never existed.
    pub fn are_new(&mut self, store: &Store) -> bool {
        let modified = || store.folder().metadata().ok()?.modified().ok();
        let now = modified();
        let are_new = now != self.seen;
        if are_new {
            // Do not cache a recent modification time: another change in the same clock tick would leave it unchanged
            // and be missed.
            self.seen = now.filter(|time| time.elapsed().is_ok_and(|age| age > MAX_CLOCK_TICK));
        }
        are_new
    }
}
