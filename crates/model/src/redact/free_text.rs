//! Redaction of free text and of command lines.

use std::ops::Range;

use super::view::View;
use super::{context, flag, harmless, issuer, key_block, layout, pipe, random, url, view, wrap};

pub(super) const HIDDEN: &[u8] = b"***";

/// Redacts the arguments of a command line. The number of arguments stays the same.
pub fn arguments<'a>(arguments: impl Iterator<Item = &'a [u8]>) -> Vec<Vec<u8>> {
    let words: Vec<&[u8]> = arguments.collect();
    let hidden_from = flag::hidden_in(&words, flag::Kind::Arguments);
    words
        .iter()
        .zip(hidden_from)
        .map(|(word, hidden)| match hidden {
            Some(from) => [&text(&word[..from]), HIDDEN].concat(),
            None if is_short(word) => word.to_vec(),
            None => text(word),
        })
        .collect()
}

/// Returns true for an argument that cannot contain a secret, because it is shorter than any token and connects no name
/// with a value.
pub(super) fn is_short(word: &[u8]) -> bool {
    const MAX_SHORT: usize = 14;
    word.len() < MAX_SHORT
        && word.iter().all(|b| b.is_ascii_alphanumeric() || b"-_./,+".contains(b))
}

/// Redacts free text, such as a log line or a shell script in one argument.
pub fn text(text: &[u8]) -> Vec<u8> {
    let mut hidden = Vec::new();
    match View::plain(text) {
        Some(plain) => {
            find_all(&plain.text, &mut hidden);
            hidden.iter_mut().for_each(|range| *range = plain.original(range));
        }
        None => find_all(text, &mut hidden),
    }
    replace(text, hidden)
}

fn find_all(text: &[u8], hidden: &mut Vec<Range<usize>>) {
    find(text, hidden);
    view::each_unescaped(text, hidden, find);
    wrap::find(text, hidden);
    let public = key_block::public_blocks(text);
    hidden.retain(|range| {
        let next = public.partition_point(|block| block.end <= range.start);
        public.get(next).is_none_or(|block| range.start < block.start || range.end > block.end)
    });
}

fn find(text: &[u8], hidden: &mut Vec<Range<usize>>) {
    context::find(text, hidden);
    flag::find(text, hidden);
    pipe::find(text, hidden);
    url::find(text, hidden);
    issuer::find(text, hidden);
    key_block::find(text, hidden);
    layout::find_in_records(text, hidden);
    random::find(text, hidden);
    hidden.retain(|range| !harmless::is_placeholder(text, range));
}

fn replace(text: &[u8], mut hidden: Vec<Range<usize>>) -> Vec<u8> {
    hidden.sort_unstable_by_key(|range| (range.start, range.end));
    let mut result = Vec::with_capacity(text.len());
    let mut done = 0;
    for range in hidden.into_iter().filter(|range| !range.is_empty()) {
        if range.start >= done {
            result.extend_from_slice(&text[done..range.start]);
            result.extend_from_slice(HIDDEN);
        }
        done = done.max(range.end);
    }
    result.extend_from_slice(&text[done..]);
    result
}
