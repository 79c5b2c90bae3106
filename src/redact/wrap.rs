//! Redacts the rest of a secret that a terminal broke at the end of a line.
//!
//! A terminal breaks a long line in the middle of a word, so the next line begins with the rest of that word.

use std::ops::Range;

use super::{issuer, name, value};

/// Minimum length of a line that may have been broken, and maximum length of the parts of a word that are joined.
const MIN_LINE: usize = 38;
/// Minimum length of the first part of a random token.
const MIN_PART: usize = 8;
const MAX_PART: usize = 512;

pub fn find(text: &[u8], hidden: &mut Vec<Range<usize>>) {
    hidden.sort_unstable_by_key(|range| range.start);
    let mut found = Vec::new();
    let mut line_start = 0;
    let mut next_hidden = 0;
    for end in memchr::memchr_iter(b'\n', text) {
        let line = line_start..end;
        line_start = end + 1;
        if line.len() < MIN_LINE || end + 1 == text.len() {
            continue;
        }
        let last = last_word(text, &line);
        let rest = first_word(text, end + 1);
        let has_letters = text[rest.clone()].iter().any(u8::is_ascii_alphanumeric);
        if last.is_empty() || !has_letters {
            continue;
        }
        while hidden.get(next_hidden).is_some_and(|range| range.end < last.start) {
            next_hidden += 1;
        }
        let touches = |range: &Range<usize>| {
            range.start < end && range.end >= end.saturating_sub(1) && range.end <= end + 1
        };
        let is_hidden = hidden[next_hidden..].iter().take(4).any(touches)
            || found
                .last()
                .is_some_and(|range: &Range<usize>| range.start <= last.start && range.end >= end);
        let joined = [&text[last.clone()], &text[rest.clone()]].concat();
        let continues =
            !value::is_predicate(&text[rest.clone()]) && !ends_like_word(&text[rest.clone()]);
        if is_hidden && continues {
            found.push(rest);
        } else if !is_hidden {
            // Neither part is recognized without the other.
            let mut parts = Vec::new();
            if issuer::has_prefix(&joined) {
                issuer::find(&joined, &mut parts);
            } else if continues
                && last.len() >= MIN_PART
                && value::is_random(&joined)
                && !text[last.clone()].iter().all(u8::is_ascii_hexdigit)
            {
                super::random::find(&joined, &mut parts);
            }
            if parts.iter().any(|part| part.end > last.len() && part.start < last.len()) {
                found.push(last);
                found.push(rest);
            }
        }
    }
    hidden.extend(found);
}

/// Returns the word before a line break, after a sign such as `=` or a quote.
fn last_word(text: &[u8], line: &Range<usize>) -> Range<usize> {
    let from = line.start.max(line.end.saturating_sub(MAX_PART));
    let length = text[from..line.end].iter().rev().take_while(|b| is_part(**b)).count();
    line.end - length..line.end
}

/// Returns the first word of a line, after its indentation.
fn first_word(text: &[u8], from: usize) -> Range<usize> {
    let blanks = text[from..].iter().take_while(|b| b" \t".contains(b)).count();
    let start = from + blanks;
    let length = text[start..].iter().take(MAX_PART).take_while(|b| is_part(**b)).count();
    start..start + length
}

fn is_part(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"+/_-.!#$%^*~@".contains(&byte)
}

/// Returns true for an ordinary word, which does not continue a secret.
fn ends_like_word(word: &[u8]) -> bool {
    value::is_word(word)
        || word.iter().all(u8::is_ascii_digit)
        || name::sensitivity(word) != name::Sensitivity::Plain
        || word.first().is_some_and(u8::is_ascii_digit)
            && word.iter().filter(|b| b"-.:".contains(b)).count() >= 2
}
