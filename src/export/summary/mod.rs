//! Formats the output of `gputop summary`: text, Markdown and HTML from the same tables, and JSON.

mod html;
mod markdown;
mod report;
mod table;
mod text;

pub use self::report::Report;

pub use html::{Chart, html};
pub use markdown::markdown;
pub use table::duration;
pub use text::{short, text};
