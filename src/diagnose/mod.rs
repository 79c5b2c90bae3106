//! Turns text, events and measurements into incidents with causes and fixes. Does not read files or a clock.
//!
//! ```text
//! bytes ─► scan (search for literals) ─► excerpts ─► text (clean lines, one flow per writer)
//!       ─► signature (literals, then expressions) ─► Sighting ─► conclusion (cause and consequences, card, evidence)
//!       ─► model::Incident ─► explain, run, tui
//! ```
//!
//! The card of an error (`assets/cards`) holds what gputop knows about it; rules that draw conclusions from numbers
//! are in [`evidence`]. To add a card, add a card file; to add evidence, add an entry to an evidence table.

#[cfg(test)]
mod anchor;
pub mod card;
pub mod card_check;
pub mod catalogue;
pub mod conclusion;
mod current_settings;
mod embedded;
pub mod evidence;
mod expression;
pub mod fields;
mod fixes;
pub mod hook_report;
pub mod kernel_report;
pub mod live;
pub mod log;
mod needle;
mod notebook_cell;
mod own_process;
pub mod predicted_fixes;
mod printed_error;
mod quote;
pub mod recovery;
pub mod rerun;
pub mod scan;
mod shared_rules;
pub mod signature;
mod smi_table;
pub mod tables;
pub mod template;
pub mod text;
pub mod traceback;
mod values;
mod windows_shell;
pub mod workload;

pub use catalogue::Catalogue;
pub use conclusion::{diagnose, fatal_first, jobs};
pub use log::{LogFindings, LogReader, TextSource};

use crate::model::incident::Incident;

#[must_use]
pub fn explain(catalogue: &Catalogue, file: &str, text: &[u8]) -> Vec<Incident> {
    let mut reader = LogReader::new(catalogue, file);
    reader.push(text);
    diagnose(catalogue, &[reader.finish()], &evidence::Measured::default())
}
