//! Data for one device in a snapshot: its pool map and its trace.

use std::collections::BTreeMap;

use gputop_model::{BlockState, Bytes, PoolMap};

use super::record::{Lane, NO_TIME, StackId, TraceAction, TraceEvent};

/// A block that is not free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    pub address: u64,
    pub size: Bytes,
    /// The requested size, or the block's size if the file contains no requested size.
    pub requested: Bytes,
    pub state: BlockState,
    pub stack: StackId,
    pub lane: Lane,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Device {
    /// Device index as seen by the process.
    pub ordinal: u32,
    pub map: PoolMap,
    /// Blocks that are not free, sorted by address.
    pub held: Vec<Held>,
    /// Last events before the map was recorded, oldest first.
    pub events: Vec<TraceEvent>,
}

impl Device {
    pub fn reserved(&self) -> Bytes {
        let sizes = self.map.segments.iter().map(|segment| segment.size.0);
        Bytes(sizes.fold(0, u64::saturating_add))
    }

    /// Returns the sum of `requested_bytes` over all live blocks, without rounding.
    pub fn requested(&self) -> Bytes {
        let live = self.held.iter().filter(|held| held.state == BlockState::Allocated);
        Bytes(live.map(|held| held.requested.0).fold(0, u64::saturating_add))
    }

    /// Returns the requested sizes of the live blocks allocated at a stack, each with the number of its blocks, largest
    /// first.
    pub fn live_sizes(&self, stack: StackId) -> Vec<(Bytes, usize)> {
        let is_its = |held: &&Held| held.stack == stack && held.state == BlockState::Allocated;
        let mut counts = BTreeMap::new();
        for held in self.held.iter().filter(is_its) {
            *counts.entry(held.requested).or_default() += 1;
        }
        counts.into_iter().rev().collect()
    }

    pub fn held_at(&self, address: u64) -> Option<&Held> {
        let at = self.held.binary_search_by_key(&address, |held| held.address);
        self.held.get(at.ok()?)
    }

    /// Returns the microseconds from the first event to `event`, or `None` if the file is from a torch version before
    /// 2.1.
    pub fn since_first(&self, event: &TraceEvent) -> Option<u64> {
        let first = self.events.first()?.time_us;
        if first == NO_TIME || event.time_us == NO_TIME {
            return None;
        }
        u64::try_from(event.time_us.checked_sub(first)?).ok()
    }

    /// Returns the out-of-memory events with their indices.
    pub fn ooms(&self) -> impl Iterator<Item = (usize, &TraceEvent)> {
        self.events.iter().enumerate().filter(|(_, event)| event.action == TraceAction::Oom)
    }
}
