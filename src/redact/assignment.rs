//! Redacts values assigned to sensitive names: `NAME=value`, `"name": "value"` and `Name: value`, in shell scripts,
//! Python or JSON on a command line, URL queries and HTTP headers.

use std::ops::Range;

use super::name::{self, Sensitivity};

/// Maximum number of bytes to search after a possibly sensitive name.
const MAX_DOUBTFUL: usize = 1024;

/// Returns the start of a value that must be hidden in an argument of the form `NAME=value` or `--name=value`. The
/// value extends to the end of the argument.
pub fn value_of_argument(argument: &[u8]) -> Option<usize> {
    let equals = argument.iter().position(|&b| b == b'=')?;
    let (name, value) = (&argument[..equals], &argument[equals + 1..]);
    let is_name = !name.is_empty() && name.iter().all(|b| is_name_byte(*b) || b"+/@~:".contains(b));
    let hides = is_name && name::hides(name::sensitivity(name), value);
    hides.then_some(equals + 1)
}

pub fn find(text: &[u8], hidden: &mut Vec<Range<usize>>) {
    let mut quotes = Quotes::default();
    let mut at = 0;
    while at < text.len() {
        if !is_name_byte(text[at]) {
            quotes.pass(text, at);
            at += 1;
            continue;
        }
        // `text[at]` can be the first byte of a full-width separator, which also counts as a name byte. Taking at least
        // one byte ensures progress.
        let name = at..end_of_name(text, at).max(at + 1);
        at = name.end;
        if let Some(value) = value_of(text, name, quotes.open) {
            (at..value.end).for_each(|skipped| quotes.pass(text, skipped));
            at = at.max(value.end);
            hidden.push(value);
        }
    }
}

fn value_of(text: &[u8], name: Range<usize>, quote: Option<u8>) -> Option<Range<usize>> {
    if is_bearer(&text[name.clone()]) {
        return next_word(text, name.end);
    }
    // Check for a separator first: most words have none, and the check is cheaper than classifying the name.
    end_of_separator(text, name.end)?;
    let sensitivity = name::sensitivity(&text[name.clone()]);
    let text = match sensitivity {
        Sensitivity::Plain => return None,
        // Limit the search, because only short values can look like a secret and hostile text would make the search
        // quadratic.
        Sensitivity::Doubtful | Sensitivity::Login => {
            &text[..text.len().min(name.end + MAX_DOUBTFUL)]
        }
        Sensitivity::Secret => text,
    };
    let separator = end_of_separator(text, name.end)?;
    let quote =
        if text[name.end..separator].iter().any(|b| Some(*b) == quote) { None } else { quote };
    let value = if is_header(&text[name]) && text[..separator].ends_with(b": ") {
        separator..end_of_line(text, separator, quote)
    } else {
        separator..end_of_value(text, separator, quote)
    };
    let bare = without_quotes(&text[value.clone()]);
    let is_hidden = name::hides(sensitivity, bare) && !is_reference(bare);
    is_hidden.then(|| inside_quotes(text, value))
}

/// Returns true for `Bearer`, which is always followed by a token: `Bearer 8f2c…`.
fn is_bearer(word: &[u8]) -> bool {
    word.eq_ignore_ascii_case(b"bearer")
}

/// Returns true for headers whose value has several words: `Authorization: Basic YW5h…`, `Cookie: a=b; c=d`.
fn is_header(name: &[u8]) -> bool {
    [&b"authorization"[..], b"proxy-authorization", b"cookie", b"set-cookie"]
        .iter()
        .any(|header| name.eq_ignore_ascii_case(header))
}

/// Returns true for references to a variable in a script: `$HF_TOKEN`, `${HF_TOKEN}`.
pub fn is_reference(value: &[u8]) -> bool {
    let Some(name) = value.strip_prefix(b"$") else { return false };
    let name = name.strip_prefix(b"{").and_then(|n| n.strip_suffix(b"}")).unwrap_or(name);
    !name.is_empty()
        && name.iter().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || *b == b'_')
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_-.".contains(&byte) || !byte.is_ascii()
}

fn end_of_name(text: &[u8], start: usize) -> usize {
    let is_name =
        |at: &usize| is_name_byte(text[*at]) && end_of_wide_separator(text, *at).is_none();
    (start..text.len()).find(|at| !is_name(at)).unwrap_or(text.len())
}

/// Returns the end of a full-width colon or equals sign, as typed on Chinese and Japanese keyboards.
fn end_of_wide_separator(text: &[u8], start: usize) -> Option<usize> {
    ["\u{ff1a}", "\u{ff1d}"]
        .iter()
        .find(|wide| text[start..].starts_with(wide.as_bytes()))
        .map(|wide| start + wide.len())
}

/// Returns the end of the separator after `name`, `"name"` or `['name']`: `=`, `:`, `:=` or `=>` with optional spaces
/// or tabs around it.
fn end_of_separator(text: &[u8], name_end: usize) -> Option<usize> {
    let skip =
        |from: usize, of: &[u8]| from + text[from..].iter().take_while(|b| of.contains(b)).count();
    let closed = skip(name_end, b"\\\"'])");
    let start = skip(closed, b" \t");
    if let Some(end) = end_of_wide_separator(text, start) {
        return Some(skip(end, b" \t"));
    }
    let end = skip(start, b":=>");
    let is_separator = matches!(text.get(start), Some(b':' | b'='));
    // `token://` is a URL scheme, not a name.
    let is_scheme = text[end..].starts_with(b"//");
    (is_separator && !is_scheme).then(|| skip(end, b" \t"))
}

fn next_word(text: &[u8], from: usize) -> Option<Range<usize>> {
    let start = from + text[from..].iter().take_while(|b| b" \t".contains(b)).count();
    let end = end_of_value(text, start, None);
    (start > from && end > start).then_some(start..end)
}

fn end_of_line(text: &[u8], start: usize, quote: Option<u8>) -> usize {
    let ends = |b: u8| b == b'\n' || b == b'\r' || b == b'"' || Some(b) == quote;
    text[start..].iter().position(|&b| ends(b)).map_or(text.len(), |n| start + n)
}

/// Returns the end of a value according to shell rules: quoted and unquoted parts up to whitespace or an operator. If a
/// quote was opened before the name, its closing quote ends the value.
pub fn end_of_value(text: &[u8], start: usize, outer: Option<u8>) -> usize {
    if let Some(quote) = escaped_quote(&text[start..]) {
        return end_of_escaped(text, start, quote);
    }
    let mut at = start;
    while let Some(&byte) = text.get(at) {
        at = match byte {
            b if Some(b) == outer => return at,
            // This quote has no matching quote on the line. It therefore closes an opening quote that was not
            // recognized, for example because of an apostrophe.
            b'"' | b'\'' | b'`' if at > start && !closes_on_line(text, at) => return at,
            b'"' | b'\'' | b'`' => {
                let end = end_of_quoted(text, at);
                // In Python and JSON, the value ends at the closing quote. In a shell, an unquoted part may follow.
                if text.get(end).is_none_or(|b| b",:)]}".contains(b)) {
                    return end;
                }
                end
            }
            b'\\' => at + 2,
            b if b.is_ascii_whitespace() || b"&;|<>".contains(&b) => return at,
            _ => at + 1,
        };
    }
    text.len()
}

fn closes_on_line(text: &[u8], open: usize) -> bool {
    let line = text[open + 1..].iter().take_while(|b| **b != b'\n');
    line.into_iter().any(|b| *b == text[open])
}

/// Returns the position after the closing quote, or the end of the text if the quote is not closed.
fn end_of_quoted(text: &[u8], open: usize) -> usize {
    let mut at = open + 1;
    while at < text.len() {
        match text[at] {
            b'\\' => at += 2,
            b if b == text[open] => return at + 1,
            _ => at += 1,
        }
    }
    text.len()
}

/// Returns the quote character if the text begins with an escaped quote, as in JSON inside a quoted string.
fn escaped_quote(value: &[u8]) -> Option<u8> {
    match value {
        [b'\\', quote @ (b'"' | b'\''), ..] => Some(*quote),
        _ => None,
    }
}

fn end_of_escaped(text: &[u8], start: usize, quote: u8) -> usize {
    let body = start + 2;
    text[body..]
        .windows(2)
        .position(|pair| pair == [b'\\', quote])
        .map_or(text.len(), |n| body + n + 2)
}

fn without_quotes(value: &[u8]) -> &[u8] {
    for quote in [&b"\\\""[..], b"\\'", b"\"", b"'", b"`"] {
        let inner = value.strip_prefix(quote).and_then(|v| v.strip_suffix(quote));
        if let Some(inner) = inner {
            return inner;
        }
    }
    value
}

/// Returns the range of a value without its quotes, so that the redacted line keeps the quotes.
fn inside_quotes(text: &[u8], value: Range<usize>) -> Range<usize> {
    let bytes = &text[value.clone()];
    let quotes = (bytes.len() - without_quotes(bytes).len()) / 2;
    value.start + quotes..value.end - quotes
}

/// Tracks the open quote while scanning text from left to right.
#[derive(Default)]
struct Quotes {
    open: Option<u8>,
}

impl Quotes {
    fn pass(&mut self, text: &[u8], at: usize) {
        let byte = text[at];
        // A line break closes any open quote, so that an apostrophe does not affect later lines.
        if byte == b'\n' {
            self.open = None;
        }
        let is_escaped = at > 0 && text[at - 1] == b'\\';
        if !matches!(byte, b'"' | b'\'' | b'`') || is_escaped {
            return;
        }
        match self.open {
            None => self.open = Some(byte),
            Some(open) if open == byte => self.open = None,
            Some(_) => {}
        }
    }
}
