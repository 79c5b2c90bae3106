//! The map on the memory screen, with what is computed from it once.

use std::cell::RefCell;
use std::sync::Arc;

use gputop_allocator::fits::{FitConditions, Fits};
use gputop_allocator::fragmentation::{Fragmentation, unusable_curve};
use gputop_model::pool::{Pool, PoolMap};
use gputop_model::units::{Bytes, Millis};

/// Maximum age of a map used for the accounting. An older map is still drawn.
const MAX_AGE: Millis = Millis(3_000);

/// A map, and values computed once from it.
#[derive(Debug)]
pub(super) struct AnalysedMap {
    pub(super) map: Arc<PoolMap>,
    pub(super) fragmentation: Fragmentation,
    pub(super) curve: Vec<(Bytes, f64)>,
    pub(super) largest_allocated: Option<Bytes>,
    /// Largest request that fits, cached with the conditions for which it was computed.
    fits: RefCell<Option<(FitConditions, Fits)>>,
}

impl AnalysedMap {
    pub(super) fn new(map: Arc<PoolMap>) -> Self {
        Self {
            fragmentation: Fragmentation::of(&map),
            curve: unusable_curve(&map),
            largest_allocated: map.largest_allocated().map(|block| block.size),
            map,
            fits: RefCell::new(None),
        }
    }

    /// Returns true if the map and the pool statistics were read at about the same time.
    pub(super) fn is_fresh(&self, pool: &Pool) -> bool {
        let (map, stats) = (self.map.at, pool.at);
        map.since(stats).max(stats.since(map)) <= MAX_AGE
    }

    pub(super) fn fits(&self, conditions: FitConditions) -> Fits {
        let mut cached = self.fits.borrow_mut();
        match *cached {
            Some((same, fits)) if same == conditions => fits,
            _ => cached.insert((conditions, Fits::of_map(&self.map, &conditions))).1,
        }
    }
}
