//! The data from which an incident is built: a sighting with its card, log and measurements.

use crate::catalogue::Catalogue;
use crate::evidence::Measured;
use crate::log::{LogFindings, Sighting};

/// A sighting with its log and its chosen card.
#[derive(Debug, Clone, Copy)]
pub struct Item<'a> {
    pub(super) log: usize,
    pub sighting: &'a Sighting,
    pub(super) card: usize,
}

impl Item<'_> {
    /// Returns true if this item reports that the event happened again. Otherwise, it is another message about the same
    /// event.
    pub(super) fn repeats(&self, first: &Self) -> bool {
        self.card == first.card && self.sighting.wording == first.sighting.wording
    }
}

#[derive(Clone, Copy)]
pub struct Diagnosis<'a> {
    pub(super) catalogue: &'a Catalogue,
    pub(super) logs: &'a [LogFindings],
    pub(super) measured: &'a Measured,
}
