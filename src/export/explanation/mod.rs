//! Formats explanations of incidents: FIX, AVOID, WHY, CHECK, LOG, WHERE and THEN, in this order. `explain`, `run` and
//! the dashboard print the same text.

pub mod lines;
mod markdown;
mod quote;
mod scene;
mod text;
mod words;

pub use self::words::program;

pub use lines::{StyledLine, Tone, Wrapped, wrap_lines, wrapped};
pub use markdown::{fenced, markdown};
pub use scene::{Others, scene, versions};
pub(super) use text::check;
pub use text::{Detail, MAX_FIXES, Style, lines, text};

use serde::Serialize;

const SCHEMA: u32 = 1;

/// The output of `--json`, with the most important or newest incident first.
#[derive(Serialize)]
pub struct Document<T> {
    schema: u32,
    incidents: T,
}

impl<T> Document<T> {
    pub fn of(incidents: T) -> Self {
        Self { schema: SCHEMA, incidents }
    }
}
