#![doc = include_str!("../README.md")]

#[cfg(test)]
mod anchor;
pub mod card;
pub mod card_check;
pub mod catalogue;
mod conclusion;
mod current_settings;
mod embedded;
pub mod evidence;
mod expression;
mod fields;
mod fixes;
pub mod hook_report;
pub mod kernel_report;
pub mod live;
mod log;
mod needle;
mod notebook_cell;
mod own_process;
pub mod predicted_fixes;
mod printed_error;
mod quote;
pub mod ranks;
pub mod recovery;
pub mod rerun;
pub mod scan;
mod shared_rules;
mod signature;
mod smi_table;
pub mod tables;
pub mod template;
mod text;
pub mod traceback;
mod values;
pub mod why;
mod windows_shell;
pub mod workload;

pub use catalogue::Catalogue;
pub use conclusion::{diagnose, fatal_first, jobs};
use gputop_model::incident::Incident;
pub use log::{LogFindings, LogReader, TextSource};

#[must_use]
pub fn explain(catalogue: &Catalogue, file: &str, text: &[u8]) -> Vec<Incident> {
    let mut reader = LogReader::new(catalogue, file);
    reader.push(text);
    diagnose(catalogue, &[reader.finish()], &evidence::Measured::default())
}
