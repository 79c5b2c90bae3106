//! Formats the output of `gputop snapshot`, for one or two snapshots, as text and as JSON.

mod compare;
mod json;
mod text;

pub use compare::{
    comparison_document, comparison_text, figure_lines, total_lines, where_words, with_sign,
};
pub use json::document;
pub use text::{
    AnalysedSnapshot, BEFORE, NO_TRACE, UNKNOWN, oom_words, seconds, settings, signed, text,
};
