//! A map of a pool, and everything computed from it once.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use crate::allocator::fits::{Around, Fits};
use crate::allocator::fragmentation::{Fragmentation, unusable_curve};
use crate::model::pool::{Pool, PoolMap};
use crate::model::units::{Bytes, Millis};
use crate::tui::widgets::segment_map::SegmentLayout;

/// Maximum age of a map that is used for the accounting. An older one is still drawn.
const MAX_AGE: Millis = Millis(3_000);

/// A map and everything computed from it once.
#[derive(Debug)]
pub struct AnalysedMap {
    pub map: Arc<PoolMap>,
    pub fragmentation: Fragmentation,
    pub curve: Vec<(Bytes, f64)>,
    /// Result for the free memory of the driver at that time.
    fits: RefCell<Option<(Around, Fits)>>,
    /// Layout for a number of cells per row and of rows.
    layout: RefCell<Option<(usize, usize, Rc<SegmentLayout>)>>,
}

impl AnalysedMap {
    pub fn new(map: Arc<PoolMap>) -> Self {
        Self {
            fragmentation: Fragmentation::of(&map),
            curve: unusable_curve(&map),
            map,
            fits: RefCell::new(None),
            layout: RefCell::new(None),
        }
    }

    /// Returns true if the map and the statistics of the pool are of about the same time.
    pub fn is_fresh(&self, pool: &Pool) -> bool {
        let (map, stats) = (self.map.at, pool.at);
        map.since(stats).max(stats.since(map)) <= MAX_AGE
    }

    pub fn fits(&self, around: Around) -> Fits {
        let mut cached = self.fits.borrow_mut();
        match *cached {
            Some((same, fits)) if same == around => fits,
            _ => {
                let fits = Fits::of_map(&self.map, &around);
                *cached = Some((around, fits));
                fits
            }
        }
    }

    /// Returns the layout for a pane. It is computed for the first drawing and after a change of size.
    pub fn layout(&self, cells_per_row: usize, height: usize) -> Rc<SegmentLayout> {
        let mut cached = self.layout.borrow_mut();
        if let Some((cells, rows, layout)) = &*cached
            && (*cells, *rows) == (cells_per_row, height)
        {
            return Rc::clone(layout);
        }
        let layout = Rc::new(SegmentLayout::fitting(&self.map, cells_per_row, height));
        *cached = Some((cells_per_row, height, Rc::clone(&layout)));
        layout
    }

    /// Returns the layout drawn last.
    pub fn drawn(&self) -> Option<Rc<SegmentLayout>> {
        self.layout.borrow().as_ref().map(|l| Rc::clone(&l.2))
    }
}
