//! A map as it was read, with everything that is computed from it once.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use crate::allocator::fits::{Around, Fits};
use crate::allocator::fragmentation::{Fragmentation, unusable_curve};
use crate::model::pool::{Pool, PoolMap};
use crate::model::units::{Bytes, Millis};
use crate::tui::widgets::segment_map::SegmentLayout;

/// A map older than this says nothing of the present parts; its picture is still shown.
const FRESH: Millis = Millis(3_000);

/// A map and everything that is computed from it once.
#[derive(Debug)]
pub struct Read {
    pub map: Arc<PoolMap>,
    pub fragmentation: Fragmentation,
    pub curve: Vec<(Bytes, f64)>,
    /// For what the driver had free when it was computed.
    fits: RefCell<Option<(Around, Fits)>>,
    /// For a number of cells in a row and of rows.
    layout: RefCell<Option<(usize, usize, Rc<SegmentLayout>)>>,
}

impl Read {
    pub fn new(map: Arc<PoolMap>) -> Self {
        Self {
            fragmentation: Fragmentation::of(&map),
            curve: unusable_curve(&map),
            map,
            fits: RefCell::new(None),
            layout: RefCell::new(None),
        }
    }

    /// The map is of about the moment of the pool's statistics.
    pub fn is_fresh(&self, pool: &Pool) -> bool {
        let (map, stats) = (self.map.at, pool.at);
        map.since(stats).max(stats.since(map)) <= FRESH
    }

    pub fn fits(&self, around: Around) -> Fits {
        let mut known = self.fits.borrow_mut();
        match *known {
            Some((same, fits)) if same == around => fits,
            _ => {
                let fits = Fits::of_map(&self.map, &around);
                *known = Some((around, fits));
                fits
            }
        }
    }

    /// The layout for a pane, computed at its first drawing and after a change of size.
    pub fn layout(&self, cells_per_row: usize, height: usize) -> Rc<SegmentLayout> {
        let mut known = self.layout.borrow_mut();
        if let Some((cells, rows, layout)) = &*known
            && (*cells, *rows) == (cells_per_row, height)
        {
            return Rc::clone(layout);
        }
        let layout = Rc::new(SegmentLayout::fitting(&self.map, cells_per_row, height));
        *known = Some((cells_per_row, height, Rc::clone(&layout)));
        layout
    }

    /// The layout that was drawn last.
    pub fn drawn(&self) -> Option<Rc<SegmentLayout>> {
        self.layout.borrow().as_ref().map(|l| Rc::clone(&l.2))
    }
}
