//! The summary of one recording, or the comparison of two.

use serde::Serialize;

use super::table::{Section, compared, sections};
use crate::summary::{RunComparison, RunSummary};

/// Summary of one run, or comparison of two runs.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Report {
    Run(Box<RunSummary>),
    Comparison(Box<RunComparison>),
}

impl Report {
    pub(super) fn sections(&self) -> (String, Vec<Section>) {
        match self {
            Self::Run(run) => (run.recording.clone(), sections(run)),
            Self::Comparison(both) => {
                (format!("A: {}, B: {}", both.a.recording, both.b.recording), compared(both))
            }
        }
    }
}
