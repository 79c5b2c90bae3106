//! Ends of values: quotes, escapes and the operators of a shell.

use std::ops::Range;

/// Returns the end of a value that extends over the line. Quotes within it are those of parameters: `realm="x", …`.
pub fn end_of_line(text: &[u8], start: usize, quote: Option<u8>) -> usize {
    let mut at = start;
    while let Some(&byte) = text.get(at) {
        let is_end = byte == b'\n' || byte == b'\r' || Some(byte) == quote;
        let is_parameter = at > start && text[at - 1] == b'=' && quote.is_none();
        match byte {
            _ if is_end => return at,
            b'"' if !is_parameter => return at,
            b'"' if !closes_on_line(text, at) => return at,
            b'"' => at = end_of_quoted(text, at),
            _ => at += 1,
        }
    }
    at.min(text.len())
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

pub fn without_quotes(value: &[u8]) -> &[u8] {
    for quote in [&b"\\\""[..], b"\\'", b"\"", b"'", b"`"] {
        let inner = value.strip_prefix(quote).and_then(|v| v.strip_suffix(quote));
        if let Some(inner) = inner {
            return inner;
        }
    }
    value
}

/// Returns the range of a value without its quotes, so that the redacted line keeps the quotes.
pub fn inside_quotes(text: &[u8], value: Range<usize>) -> Range<usize> {
    let bytes = &text[value.clone()];
    let quotes = (bytes.len() - without_quotes(bytes).len()) / 2;
    value.start + quotes..value.end - quotes
}

/// Tracks the open quote while scanning text from left to right.
#[derive(Default)]
pub struct Quotes {
    pub open: Option<u8>,
    read: usize,
}

impl Quotes {
    /// Reads the text up to `to`. Earlier lines do not matter.
    pub fn advance(&mut self, text: &[u8], to: usize) {
        let from =
            memchr::memrchr(b'\n', &text[self.read..to]).map_or(self.read, |n| self.read + n);
        (from..to).for_each(|at| self.pass(text, at));
        self.read = self.read.max(to);
    }

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

/// Returns the string literals that are arguments of a call by position. `from` is the position after its parenthesis.
pub fn literals(text: &[u8], from: usize) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut depth = 1;
    let mut at = from;
    while at < text.len() && depth > 0 {
        match text[at] {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth -= 1,
            b'\n' => break,
            b'"' | b'\'' => {
                let end = end_of_quoted(text, at);
                let before = text[..at].trim_ascii_end();
                let is_named = before.ends_with(b"=") && !before.ends_with(b"key=");
                if text[at + 1..end].ends_with(&text[at..=at]) && !is_named {
                    found.push(at + 1..end - 1);
                }
                at = end;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    found
}

pub fn skip(text: &[u8], from: usize, of: &[u8]) -> usize {
    from + text[from..].iter().take_while(|b| of.contains(b)).count()
}
