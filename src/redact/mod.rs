//! The privacy rule: what of another process's text may leave whoever read it.
//!
//! Of an environment only the variables on an allow-list carry a value, all others their name. Command lines and
//! log lines stay readable and lose what is secret in them: the values of flags and variables whose name says so
//! (`name.rs`, `flag.rs`, `assignment.rs`), what a shell feeds to a login (`pipe.rs`), credentials in URLs (`url.rs`),
//! and strings that have the shape of an issuer's token (`shape.rs`). `tests/data/redaction.txt` lists the forms.
//!
//! `--lr 3e-4 --api-key 8f2c… https://ana:pw@host/x` becomes `--lr 3e-4 --api-key *** https://***@host/x`.
//!
//! In doubt a value is hidden: a word too many costs a glance, one too few costs an account. It works on bytes,
//! before anything is cut or made visible, because half a token has no shape any more.

mod assignment;
mod command;
mod environment;
mod flag;
mod incident;
mod name;
mod pipe;
mod shape;
mod url;

use std::ops::Range;

pub use self::command::command;
pub use self::environment::variable;
pub use self::incident::incident;

const HIDDEN: &[u8] = b"***";

/// The arguments of a command line without secrets; as many as there were.
pub fn arguments<'a>(arguments: impl Iterator<Item = &'a [u8]>) -> Vec<Vec<u8>> {
    let words: Vec<&[u8]> = arguments.collect();
    let hidden_from = flag::hidden_in_arguments(&words);
    words
        .iter()
        .zip(hidden_from)
        .map(
            |(word, hidden)| match hidden.or_else(|| assignment::value_of_argument(word)) {
                Some(from) => [&text(&word[..from]), HIDDEN].concat(),
                None => text(word),
            },
        )
        .collect()
}

/// Any text (a log line, a shell script in one argument) without secrets.
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
    hidden.sort_by_key(|range| (range.start, range.end));
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
