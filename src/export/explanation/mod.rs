//! Formats explanations of incidents: FIX, AVOID, WHY, CHECK, LOG, WHERE and THEN, in this order. `explain`, `run` and
//! the dashboard print the same text.

mod lines;
mod markdown;
mod quote;
mod scene;
mod text;
mod words;

pub use self::words::{program, severity, verdict};

pub use lines::{StyledLine, Tone, Wrapped, wrap_lines, wrapped};
pub use markdown::{fenced, markdown};
pub use scene::{Others, scene, versions};
pub(super) use text::check;
pub use text::{Detail, MAX_FIXES, Style, lines, text};

use serde::Serialize;

use crate::model::Incident;

const SCHEMA: u32 = 1;

#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    incidents: &'a [Incident],
}

/// Returns the output of `explain --json`. The most important incident comes first.
pub fn json(incidents: &[Incident]) -> serde_json::Result<String> {
    let document = Document { schema: SCHEMA, incidents };
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}
