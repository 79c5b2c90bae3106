//! Redacts long tokens without a known name or prefix that are too random for anything else (`value::is_random`).

use std::ops::Range;

use super::harmless;
use super::notation::near;
use super::value::{self, MIN_RANDOM, MIN_RANDOM_RUN};

/// Maximum length of a token that is judged. The rest of a longer one is judged as another token.
const MAX_TOKEN: usize = 4096;

pub fn find(text: &[u8], hidden: &mut Vec<Range<usize>>) {
    let mut at = 0;
    while at + MIN_RANDOM_RUN <= text.len() {
        // A token contains one of every MIN_RANDOM_RUN positions, so most bytes need not be read.
        let last = at + MIN_RANDOM_RUN - 1;
        at = match (at..=last).rev().find(|at| !is_token_byte(text[*at])) {
            Some(gap) => gap + 1,
            None => {
                let token = at..last + token_length(&text[last..]);
                hidden.extend(secret(text, &token));
                token.end
            }
        };
    }
}

fn token_length(text: &[u8]) -> usize {
    near(text, 0, MAX_TOKEN).iter().take_while(|b| is_token_byte(**b)).count()
}

fn is_token_byte(byte: u8) -> bool {
    TOKEN_BYTES[usize::from(byte)]
}

const TOKEN_BYTES: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        let b = byte as u8;
        table[byte] = b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'=' | b'_' | b'-');
        byte += 1;
    }
    table
};

/// Returns the random part of a token, which may begin with `name=`.
fn secret(text: &[u8], token: &Range<usize>) -> Option<Range<usize>> {
    let bytes = &text[token.clone()];
    let padding = bytes.iter().rev().take_while(|b| **b == b'=').count();
    let name = memchr::memrchr(b'=', &bytes[..bytes.len() - padding]).map_or(0, |at| at + 1);
    let before = &text[token.start.saturating_sub(16)..token.start];
    let is_quoted = |at: Option<&u8>| at.is_some_and(|b| b"\"'`".contains(b));
    let is_long = bytes.len() - name >= MIN_RANDOM
        || (is_quoted(before.last()) && is_quoted(text.get(token.end)));
    let is_secret = is_long
        && value::is_random(&bytes[name..])
        && !is_path(bytes, before)
        && !harmless::is_public(text, &(token.start + name..token.end))
        // Mangled names, and public keys of SSH.
        && !bytes.starts_with(b"_Z")
        && !bytes.starts_with(b"AAAA");
    is_secret.then(|| token.start + name..end_of_parts(text, token.end))
}

/// Returns the end of the parts that dots join with a token: `MTk4….Cl2FMQ.ZnCjm1…`.
fn end_of_parts(text: &[u8], mut end: usize) -> usize {
    while let [b'.', rest @ ..] = &text[end..] {
        let part = &rest[..token_length(rest)];
        let is_part = part.len() >= 6 && part.iter().any(u8::is_ascii_digit);
        if !is_part || value::natural_percent(part) > 40 {
            break;
        }
        end += 1 + part.len();
    }
    end
}

/// Returns true for a part of a path or of a URL.
fn is_path(token: &[u8], before: &[u8]) -> bool {
    let is_name = |part: &[u8]| part.len() > 3 && value::natural_percent(part) >= 50;
    token.starts_with(b"/")
        || before.ends_with(b".")
        || before.ends_with(b"~")
        || (before.ends_with(b":") && token.starts_with(b"//"))
        || (token.contains(&b'/') && token.split(|b| *b == b'/').any(is_name))
}
