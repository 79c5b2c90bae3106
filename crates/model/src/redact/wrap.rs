//! Redacts the rest of a secret that a terminal broke at the end of a line.
//!
//! A terminal breaks a long line in the middle of a word, so the next line begins with the rest of that word.

use std::ops::Range;

use super::notation::skip;
use super::{issuer, name, random, value};

/// Minimum length of a line that may have been broken, and maximum length of the parts of a word that are joined.
const MIN_LINE: usize = 38;
/// Minimum length of the first part of a random token.
const MIN_PART: usize = 8;
const MAX_PART: usize = 512;

pub fn find(text: &[u8], hidden: &mut Vec<Range<usize>>) {
    hidden.sort_unstable_by_key(|range| range.start);
    let mut found: Vec<Range<usize>> = Vec::new();
    let mut start = 0;
    let mut next_hidden = 0;
    for end in memchr::memchr_iter(b'\n', text) {
        let line = start..end;
        start = end + 1;
        if line.len() < MIN_LINE || start == text.len() {
            continue;
        }
        // The word before the line break, after a sign such as `=` or a quote, and that after the indentation.
        let from = line.start.max(end.saturating_sub(MAX_PART));
        let length = text[from..end].iter().rev().take_while(|b| is_part(**b)).count();
        let last = end - length..end;
        let first = skip(text, start, b" \t");
        let length = text[first..].iter().take(MAX_PART).take_while(|b| is_part(**b)).count();
        let rest = first..first + length;
        let bytes = &text[rest.clone()];
        if last.is_empty() || !bytes.iter().any(u8::is_ascii_alphanumeric) {
            continue;
        }
        while hidden.get(next_hidden).is_some_and(|range| range.end < last.start) {
            next_hidden += 1;
        }
        let touches = |range: &Range<usize>| {
            range.start < end && range.end >= end.saturating_sub(1) && range.end <= end + 1
        };
        let is_hidden = hidden[next_hidden..].iter().take(4).any(touches)
            || found.last().is_some_and(|range| range.start <= last.start && range.end >= end);
        // `max_tokens=4096` and `KeyError: …` begin a line of their own.
        let is_label = text.get(rest.end).is_some_and(|b| b":=(".contains(b));
        let continues = || !is_label && !value::is_predicate(bytes) && !ends_like_word(bytes);
        if is_hidden {
            found.extend(continues().then_some(rest));
            continue;
        }
        // Neither part is recognized without the other.
        let joined = [&text[last.clone()], bytes].concat();
        let is_hexadecimal = text[last.clone()].iter().all(u8::is_ascii_hexdigit);
        let mut parts = Vec::new();
        if issuer::has_prefix(&joined) {
            issuer::find(&joined, &mut parts);
        } else if last.len() >= MIN_PART
            && value::is_random(&joined)
            && !is_hexadecimal
            && continues()
        {
            random::find(&joined, &mut parts);
        }
        if parts.iter().any(|part| part.end > last.len() && part.start < last.len()) {
            found.extend([last, rest]);
        }
    }
    hidden.extend(found);
}

fn is_part(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"+/_-.!#$%^*~@".contains(&byte)
}

/// Returns true for an ordinary word, which does not continue a secret.
fn ends_like_word(word: &[u8]) -> bool {
    let is_name_byte = |b: &u8| b.is_ascii_lowercase() || b"_./-".contains(b);
    value::is_word(word)
        || (word.iter().all(is_name_byte) && value::natural_percent(word) >= 50)
        || word.iter().all(u8::is_ascii_digit)
        || name::sensitivity(word) != name::Sensitivity::Plain
        || word.first().is_some_and(u8::is_ascii_digit)
            && word.iter().filter(|b| b"-.:".contains(b)).count() >= 2
}
