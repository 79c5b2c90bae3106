//! Redaction of text from other processes, before it is shown, stored or sent.
//!
//! Environment variables show their value only if they are on an allow-list. Command lines and log lines stay readable,
//! but without their secrets, which are recognized by:
//!
//! - the name of a variable, flag, header or field (`name.rs`) and what connects it with a value
//!   (`context.rs`, `notation.rs`, `prose.rs`), also across lines and columns (`layout.rs`), or the program that takes it
//!   as an argument (`flag.rs`, `tool.rs`, `pipe.rs`);
//! - their form: credentials in URLs (`url.rs`), the prefix of an issuer (`issuer.rs`), private keys (`key_block.rs`);
//! - their randomness, for long tokens (`random.rs`).
//!
//! Placeholders, references to a secret elsewhere, and public content and identifiers stay readable (`harmless.rs`).
//!
//! Text is also read without the colours of a terminal and without the escapes of JSON, URLs and markup (`view.rs`), and
//! across the line breaks of a terminal (`wrap.rs`). `tests/data/redaction.txt` lists recognized forms.
//!
//! `--lr 3e-4 --api-key 8f2c… https://ana:pw@host/x` becomes `--lr 3e-4 --api-key *** https://***@host/x`.
//!
//! When in doubt, a value is hidden, because a leaked secret is worse than a hidden word. Redaction works on bytes and
//! runs before text is truncated or escaped, because a truncated token may not be recognized.

mod command;
mod context;
mod environment;
mod flag;
mod harmless;
mod holders;
mod incident;
mod issuer;
mod key_block;
mod layout;
mod name;
mod notation;
mod pipe;
mod prose;
mod random;
mod tool;
mod url;
mod value;
mod view;
mod wrap;

use std::borrow::Cow;
use std::ops::Range;

use self::view::View;

pub use self::command::command;
pub use self::environment::variable;
pub use self::holders::holders;
pub use self::incident::incident;

const HIDDEN: &[u8] = b"***";

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
fn is_short(word: &[u8]) -> bool {
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

/// Returns the text without the sequences of a terminal that colour it or move the cursor.
pub fn without_sequences(text: &[u8]) -> Cow<'_, [u8]> {
    View::without_sequences(text).map_or(Cow::Borrowed(text), |view| Cow::Owned(view.text))
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

#[cfg(test)]
mod tests;
