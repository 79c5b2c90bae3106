//! Tagged processes, which receive signals instead of the process under the cursor.

use std::collections::BTreeSet;

use gputop_model::process::ProcessKey;

use super::rows::ProcessRow;

/// The set of tagged processes.
#[derive(Debug, Clone, Default)]
pub struct Tags {
    tagged: BTreeSet<ProcessKey>,
}

impl Tags {
    pub fn is_empty(&self) -> bool {
        self.tagged.is_empty()
    }

    pub fn len(&self) -> usize {
        self.tagged.len()
    }

    pub fn has(&self, key: ProcessKey) -> bool {
        self.tagged.contains(&key)
    }

    /// Tags all these processes, or untags them if all are already tagged.
    pub fn toggle_all(&mut self, keys: &[ProcessKey]) {
        if keys.iter().all(|key| self.has(*key)) {
            self.tagged.retain(|key| !keys.contains(key));
        } else {
            self.tagged.extend(keys);
        }
    }

    pub fn clear(&mut self) {
        self.tagged.clear();
    }

    /// Untags processes that have exited or no longer use a GPU. Processes hidden by a filter stay tagged.
    pub fn follow(&mut self, rows: &[ProcessRow]) {
        if self.tagged.is_empty() {
            return;
        }
        let living = rows.iter().filter(|row| row.ended().is_none());
        let living: BTreeSet<ProcessKey> = living.map(|row| row.id().key).collect();
        self.tagged.retain(|key| living.contains(key));
    }
}
