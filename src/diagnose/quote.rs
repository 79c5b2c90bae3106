//! The message as it was said, with a few words under the parts that matter, as a compiler shows an error.

use super::card::Card;
use super::fields::FieldMap;
use super::signature::Match;
use super::text::Flow;
use crate::model::incident::{Label, Quote};
use crate::model::text::{line_end, slice};

/// What is quoted before the first labelled part of a line, and after the last one.
const MAX_TEXT: usize = 1200;

/// A longer beginning of the line is left out.
const MAX_BEFORE: usize = 200;

/// The message of `one` in its own words, from the beginning of its line to the end of what was read from it; `found`
/// is what its parts turned out to be.
#[must_use]
pub fn of(one: &Match, found: &FieldMap, flow: &Flow, card: &Card) -> Quote {
    // The process that was listed is the one that wrote the text.
    let is_own = found.contains_key("process_bytes") && !one.found.contains_key("process_bytes");
    // The end of a long line could not be redacted: the flag or the quote that says what a value is would be cut off.
    let line_start = flow.line_start(one.start);
    let start = match one.start.saturating_sub(line_start) > MAX_BEFORE {
        true => one.start,
        false => line_start,
    };
    let labelled = one
        .places
        .iter()
        .filter(|(_, range)| range.start >= start && range.end <= one.end + 2048);
    let last = labelled
        .clone()
        .map(|(_, range)| range.end)
        .max()
        .unwrap_or(0)
        .max(one.end);
    let line_end = line_end(&flow.text, last);
    // The rest of the last line is shown where it is short.
    let end = if line_end.saturating_sub(last) <= 120 {
        line_end
    } else {
        last
    };
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
    Quote {
        text: text.to_owned(),
        labels,
    }
}

/// At most `MAX_TEXT` bytes, without half a word at the end: half a token no longer looks like one.
fn whole_words(text: &str, start: usize, end: usize) -> &str {
    let cut = slice(text, start, end.min(start + MAX_TEXT));
    if start + cut.len() >= end {
        return cut;
    }
    cut.rfind(char::is_whitespace).map_or("", |at| &cut[..at])
}
