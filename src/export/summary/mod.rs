//! Formats the output of `gputop summary`: text, Markdown and HTML from the same tables, and JSON.

mod html;
mod markdown;
mod table;
mod text;

use serde::Serialize;

pub use html::{Chart, html};
pub use markdown::markdown;
pub use table::duration;
use table::{Section, compared, sections};
pub use text::{short, text};

use crate::summary::{Comparison, RunSummary};

/// Summary of one run, or comparison of two runs.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Report {
    Run(Box<RunSummary>),
    Comparison(Box<Comparison>),
}

impl Report {
    fn sections(&self) -> (String, Vec<Section>) {
        match self {
            Self::Run(run) => (run.recording.clone(), sections(run)),
            Self::Comparison(both) => {
                let title = format!("A: {}, B: {}", both.a.recording, both.b.recording);
                (title, compared(both))
            }
        }
    }
}

pub fn json(report: &Report) -> serde_json::Result<String> {
    Ok(serde_json::to_string_pretty(report)? + "\n")
}
