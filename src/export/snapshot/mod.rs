//! Formats the output of `gputop snapshot`, for one or two snapshots, as text and as JSON.

mod compare;
mod json;
mod output;
mod text;

pub use self::output::{AnalysedDevice, NO_TRACE, SnapshotOutput};

pub use compare::{
    comparison_json, comparison_text, figure_lines, total_lines, where_words, with_sign,
};
pub use json::json;
pub use text::{BEFORE, UNKNOWN, oom_words, seconds, settings, signed, text};
