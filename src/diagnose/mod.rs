//! Text, events and measurements to incidents: what happened, why, and what to change. Pure: no file, no clock.
//!
//! ```text
//! bytes ─► scan (a few literals, at memory speed) ─► excerpts ─► text (plain lines, one flow a writer)
//!       ─► signature (literals, then the expressions that can match) ─► Sighting ─► judge (which is the cause, which follow,
//!       which card of a family, evidence for and against each cause) ─► model::Incident ─► explain, run, tui
//! ```
//!
//! Everything that is known about an error is in its card (`assets/cards`); what can be concluded from figures is
//! in [`evidence`]. A card is added by adding its file, a kind of evidence by one entry.

pub mod card;
pub mod catalogue;
pub mod evidence;
mod expression;
pub mod fields;
pub mod hook_report;
pub mod judge;
pub mod live;
pub mod log;
mod needle;
mod own_process;
pub mod predicted_fixes;
mod printed_error;
mod quote;
pub mod recovery;
pub mod rerun;
pub mod scan;
pub mod signature;
pub mod tables;
pub mod template;
pub mod text;
pub mod traceback;

pub use catalogue::Catalogue;
pub use judge::{fatal_first, judge};
pub use log::{LogFindings, LogReader};

use crate::model::incident::Incident;

/// The incidents of a text that is at hand whole.
#[must_use]
pub fn explain(catalogue: &Catalogue, file: &str, text: &[u8]) -> Vec<Incident> {
    let mut reader = LogReader::new(catalogue, file);
    reader.push(text);
    judge(
        catalogue,
        &[reader.finish()],
        &evidence::Measured::default(),
    )
}
