//! Redaction of text from other processes, before it is shown, stored or sent.
//!
//! Environment variables show their value only if they are on an allow-list. Command lines and log lines stay readable,
//! but without their secrets: values of flags and variables with a sensitive name (`name.rs`, `flag.rs`,
//! `assignment.rs`), input that a shell pipes to a login command (`pipe.rs`), credentials in URLs (`url.rs`), and
//! tokens with a known prefix (`shape.rs`). `tests/data/redaction.txt` lists the recognized forms.
//!
//! `--lr 3e-4 --api-key 8f2c… https://ana:pw@host/x` becomes `--lr 3e-4 --api-key *** https://***@host/x`.
//!
//! When in doubt, a value is hidden, because a leaked secret is worse than a hidden word. Redaction works on bytes and
//! runs before text is truncated or escaped, because a truncated token may not be recognized.

mod assignment;
mod command;
mod environment;
mod flag;
mod holders;
mod incident;
mod name;
mod pipe;
mod shape;
mod url;

use std::ops::Range;

pub use self::command::command;
pub use self::environment::variable;
pub use self::holders::holders;
pub use self::incident::incident;

const HIDDEN: &[u8] = b"***";

/// Redacts the arguments of a command line. The number of arguments stays the same.
pub fn arguments<'a>(arguments: impl Iterator<Item = &'a [u8]>) -> Vec<Vec<u8>> {
    let words: Vec<&[u8]> = arguments.collect();
    let hidden_from = flag::hidden_in_arguments(&words);
    words
        .iter()
        .zip(hidden_from)
        .map(|(word, hidden)| match hidden.or_else(|| assignment::value_of_argument(word)) {
            Some(from) => [&text(&word[..from]), HIDDEN].concat(),
            None => text(word),
        })
        .collect()
}

/// Redacts free text, such as a log line or a shell script in one argument.
pub fn text(text: &[u8]) -> Vec<u8> {
    let mut hidden = Vec::new();
    flag::find(text, &mut hidden);
    assignment::find(text, &mut hidden);
    pipe::find(text, &mut hidden);
    url::find(text, &mut hidden);
    shape::find(text, &mut hidden);
    replace(text, hidden)
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
