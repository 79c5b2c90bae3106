//! Building blocks for screens. A widget borrows the data it shows and does not depend on keys or sources.

pub mod area;
pub mod bar;
pub mod cells;
pub mod facts;
pub mod heat;
pub mod histogram;
pub mod panel;
pub mod plot;
pub mod pool_chart;
pub mod scroll;
pub mod segment_map;
pub mod table;
pub mod time_axis;
pub mod timeline;
pub mod timelines;
