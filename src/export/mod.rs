//! Formats output for other programs and for terminals without the dashboard. Each format is one file and one function.

pub mod cards;
pub mod csv;
pub mod explanation;
pub mod glyphs;
pub mod holders;
#[cfg(feature = "serve")]
pub mod metrics;
pub mod probe;
pub mod ranks;
pub mod report;
pub mod snapshot;
pub mod status_line;
pub mod summary;
pub mod tables;
pub mod text_width;
pub mod whatif;
pub mod why;
