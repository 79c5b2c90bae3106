//! Quotes an incident's log message and labels the important parts, as compilers do with source code.

use gputop_model::incident::{Label, Quote};
use gputop_model::text::{line_end, slice};

use super::card::Card;
use super::fields::FieldMap;
use super::signature::Match;
use super::text::Flow;

/// Maximum length of a quote in bytes.
const MAX_TEXT: usize = 1200;

/// Maximum length of the quoted text before the match on its line. The start of a longer text is omitted.
const MAX_BEFORE: usize = 200;

/// Start of the "Search for `cudaError…`" line, which PyTorch prints with every CUDA error.
const BOILERPLATE: &str = "Search for ";

/// Quotes the match `one`, from the start of its line to the end of the last field. `found` contains the final fields.
#[must_use]
pub fn of(one: &Match, found: &FieldMap, flow: &Flow, card: &Card) -> Quote {
    // True if one of the listed processes turned out to be the writer of the message.
    let is_own = found.contains_key("process_bytes") && !one.found.contains_key("process_bytes");
    // Start at the beginning of the line or of the match, never in between, because redaction recognizes a secret by
    // the flag or quote before it.
    let line_start = flow.line_start(one.start);
    let start =
        if one.start.saturating_sub(line_start) > MAX_BEFORE { one.start } else { line_start };
    let is_boilerplate = |at| {
        let line = flow.text.get(flow.line_start(at)..at);
        line.is_some_and(|line| line.starts_with(BOILERPLATE))
    };
    let labelled = one.places.iter().filter(|(_, range)| {
        range.start >= start && range.end <= one.end + 2048 && !is_boilerplate(range.start)
    });
    let last = labelled.clone().map(|(_, range)| range.end).max().unwrap_or(0).max(one.end);
    let line_end = line_end(&flow.text, last);
    // Include the rest of the last line if it is short.
    let end = if line_end.saturating_sub(last) <= 120 { line_end } else { last };
    let text = whole_words(&flow.text, start, end);
    let name = |field: &'_ str| -> String {
        match field {
            "other_bytes" if is_own => "process_bytes".to_owned(),
            other => other.to_owned(),
        }
    };
    let mut labels: Vec<Label> = labelled
        .filter(|(_, range)| range.end <= start + text.len())
        .filter_map(|(field, range)| {
            Some(Label {
                start: text.floor_char_boundary(range.start - start),
                end: text.floor_char_boundary(range.end - start),
                says: card.labels.get(&name(field))?.as_str()?.to_owned(),
            })
        })
        .collect();
    labels.sort_by_key(|label| label.start);
    Quote { text: text.to_owned(), labels }
}

/// Returns at most `MAX_TEXT` bytes, cut between words, because redaction does not recognize half of a secret.
fn whole_words(text: &str, start: usize, end: usize) -> &str {
    let cut = slice(text, start, end.min(start + MAX_TEXT));
    if start + cut.len() >= end {
        return cut;
    }
    cut.rfind(char::is_whitespace).map_or("", |at| &cut[..at])
}
