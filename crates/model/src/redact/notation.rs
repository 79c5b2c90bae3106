//! The notation that all rules share: lines, quotes, tags, the signs that connect a name with a value, and the extent
//! of the value.

use std::ops::Range;

use super::harmless;

/// Maximum length of a name, of the tags after it, and of the line around it.
pub const MAX_NAME: usize = 128;
pub const MAX_TAGS: usize = 160;
pub const MAX_LINE: usize = 512;

pub const QUOTES: &[u8] = b"\"'`";

pub fn skip(text: &[u8], from: usize, of: &[u8]) -> usize {
    from + text[from..].iter().take_while(|b| of.contains(b)).count()
}

/// Returns the range without the bytes at its end that are in a set.
pub fn trim_end(text: &[u8], range: Range<usize>, of: &[u8]) -> Range<usize> {
    let trailing = text[range.clone()].iter().rev().take_while(|b| of.contains(b)).count();
    range.start..range.end - trailing
}

/// Returns the text from a position, up to a maximum length. A limit keeps searches of hostile text linear.
pub fn near(text: &[u8], from: usize, max: usize) -> &[u8] {
    &text[from..text.len().min(from + max)]
}

/// Returns the start of the line of a position.
pub fn line_start(text: &[u8], at: usize) -> usize {
    let from = at.saturating_sub(MAX_LINE);
    memchr::memrchr(b'\n', &text[from..at]).map_or(from, |n| from + n + 1)
}

/// Returns the end of the line of a position, or that of its first bytes.
pub fn line_end(text: &[u8], at: usize, max: usize) -> usize {
    let near = near(text, at, max);
    at + memchr::memchr(b'\n', near).unwrap_or(near.len())
}

pub fn has(text: &[u8], part: &str) -> bool {
    memchr::memmem::find(text, part.as_bytes()).is_some()
}

/// Returns the first of some beginnings that a text has.
pub fn begins<'a>(text: &[u8], with: &[&'a str]) -> Option<&'a str> {
    with.iter().find(|begin| text.starts_with(begin.as_bytes())).copied()
}

pub fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_-.".contains(&byte) || !byte.is_ascii()
}

/// Returns the whole name around a part of it.
pub fn name_around(text: &[u8], part: Range<usize>, from: usize) -> Range<usize> {
    let from = from.max(part.start.saturating_sub(MAX_NAME));
    let before = text[from..part.start].iter().rev().take_while(|b| is_name_byte(**b)).count();
    let limit = text.len().min(part.end + MAX_NAME);
    let limit = memchr::memmem::find(&text[part.end..limit], b"..").map_or(limit, |n| part.end + n);
    let ends = |at: &usize| !is_name_byte(text[*at]) || wide_sign(&text[*at..]).is_some();
    // Languages without spaces continue after the name: `密码是…`.
    let is_wide = text[part.end - 1] >= 0x80 && text[part.start] >= 0xe2;
    let end = if is_wide { part.end } else { (part.end..limit).find(ends).unwrap_or(limit) };
    // A full stop ends a sentence, and a hyphen belongs to an arrow.
    part.start - before..trim_end(text, part.end..end, b".-").end
}

/// Returns the full-width colon or equals sign of Chinese and Japanese keyboards, an arrow, or a word of these languages
/// for "is".
fn wide_sign(text: &[u8]) -> Option<&'static str> {
    begins(text, &["\u{ff1a}", "\u{ff1d}", "→", "是", "为", "は"])
}

/// Returns the end of `=`, `:`, `:=`, `=>`, `->` and the like, but not of `token://`, which is the scheme of a URL,
/// `token::new`, which is a path, or `token == other` and `token==1.2`, which compare.
pub fn end_of_sign(text: &[u8], start: usize) -> Option<usize> {
    let rest = &text[start..];
    if let Some(sign) = wide_sign(rest).or_else(|| begins(rest, &["->", "<<<"])) {
        return Some(start + sign.len());
    }
    let begin = start + if begins(rest, &["||=", "??="]).is_some() { 2 } else { 0 };
    let end = skip(text, begin, b":=>");
    let sign = &text[start..end];
    // Commands of GitHub Actions: `::add-mask::…`
    let is_command = || text[line_start(text, start)..].starts_with(b"::");
    let is_path = sign.starts_with(b"::") && text.get(end) != Some(&b' ') && !is_command();
    let is_comparison =
        sign == b"==" && text.get(end).is_some_and(|b| *b == b' ' || b.is_ascii_digit());
    let is_sign = matches!(text.get(begin), Some(b':' | b'='));
    let is_other = text[end..].starts_with(b"//") || is_path || is_comparison;
    (is_sign && !is_other).then(|| if sign == b":" { after_type(text, end) } else { end })
}

/// Returns the position after the type in `token: string = '…'`.
fn after_type(text: &[u8], start: usize) -> usize {
    const MAX_TYPE: usize = 32;
    let kind = skip(text, start, b" ");
    let is_part = |b: &&u8| b.is_ascii_alphanumeric() || b"[]_.<>&|?".contains(b);
    let length = text[kind..].iter().take(MAX_TYPE).take_while(is_part).count();
    let equals = skip(text, kind + length, b" ");
    let value = text.get(equals + 1..).map(|rest| rest.trim_ascii_start());
    let is_typed = length > 0
        && text.get(equals) == Some(&b'=')
        && value.and_then(|value| value.first()).is_some_and(|b| QUOTES.contains(b));
    if is_typed { equals + 1 } else { start }
}

/// Returns the position after a note between a name and its separator: `password [ana]:`, `password As String =`.
pub fn after_note(text: &[u8], start: usize) -> usize {
    const MAX_NOTE: usize = 40;
    let note = near(text, start, MAX_NOTE);
    let end = match note.first() {
        Some(b'[') => memchr::memchr2(b']', b'\n', note).map(|end| end + 1),
        // `def get_token(self):` is a function.
        Some(b'(') if text[..start].ends_with(b" ") => {
            memchr::memchr2(b')', b'\n', note).map(|end| end + 1)
        }
        _ => begins(note, &["As String "]).map(str::len),
    };
    let end = end.map(|end| start + end);
    end.filter(|end| end_of_sign(text, *end).is_some()).unwrap_or(start)
}

/// Returns the length of what may be before a value: the type of a literal or of a setting, and the constructors of debug
/// output, as in `b'…'`, `!vault …`, `string(9) "…"`, `(len=9) "…"`, `0x5555 "…"`, `Some("…")`, `new String("…")`.
pub fn wrapper(value: &[u8]) -> usize {
    const MAX_NOTE: usize = 32;
    let note = near(value, 0, MAX_NOTE);
    let name = |from: usize| note[from..].iter().take_while(|b| b.is_ascii_alphanumeric()).count();
    let open = note.iter().position(|b| QUOTES.contains(b)).unwrap_or(0);
    let is_type = note[..open].ends_with(b") ")
        && (note.starts_with(b"(") || (note[name(0)..].starts_with(b"(") && name(0) > 0));
    if is_type || (note.starts_with(b"0x") && note[..open].ends_with(b" ")) {
        return open;
    }
    let tag = skip(note, 0, b"!") + name(skip(note, 0, b"!"));
    let mut at = match note {
        [b'!', ..] if note.get(tag) == Some(&b' ') => tag + 1,
        _ => begins(note, &["new ", "<<", "&", "@"]).map_or(0, str::len),
    };
    while note.get(at).is_some_and(u8::is_ascii_uppercase) || note[at..].starts_with(b"string(") {
        let end = at + name(at);
        if note.get(end) != Some(&b'(') {
            break;
        }
        at = end + 1;
    }
    match &value[at..] {
        [b'b' | b'r' | b'f' | b'u' | b'L', b'"' | b'\'', ..] => at + 1,
        [b'"' | b'\'' | b'`', ..] => at,
        _ if at > 1 && at != "new ".len() => at,
        _ => 0,
    }
}

/// In YAML and after a flag, the value may be on the next line: `password:\n  8f2c`.
pub fn after_line_break(text: &[u8], name: &Range<usize>, start: usize) -> usize {
    let mark = begins(&text[start..], &["|-\n", "|+\n", ">-\n", ">+\n", "|\n", ">\n"]);
    let start = start + mark.map_or(0, |mark| mark.len() - 1);
    let before = &text[line_start(text, name.start)..name.start];
    // PHP prints `["password"]=>` and the value below.
    let before = before.strip_suffix(b"[\"").unwrap_or(before);
    let indent = skip(before, 0, b" \t");
    if before.len() > indent || text.get(start) != Some(&b'\n') {
        return start;
    }
    let next = skip(text, start + 1, b" \t");
    let is_deeper = next - start - 1 > indent;
    let line = &text[next..end_of_line(text, next, None)];
    let has_name = has(line, ": ") || line.ends_with(b":");
    if is_deeper && !has_name { next + if line.starts_with(b"- ") { 2 } else { 0 } } else { start }
}

/// Returns the position after one or more tags, or `None` if there is no tag.
pub fn tags(text: &[u8], from: usize) -> Option<usize> {
    let limit = text.len().min(from + MAX_TAGS);
    let mut at = from;
    loop {
        let next = skip(&text[..limit], at, b" \t\r\n");
        let is_tag =
            matches!(text[next..limit], [b'<', b, ..] if b.is_ascii_alphabetic() || b == b'/');
        match memchr::memchr(b'>', &text[next..limit]).filter(|_| is_tag) {
            Some(end) => at = next + end + 1,
            None => return (at > from).then_some(at),
        }
    }
}

/// Returns the start of the text in an element whose name, attribute or text is the sensitive name: `<token>…</token>`,
/// `<add key="token" value="…"/>`, `<td>token</td><td>…`.
pub fn markup(text: &[u8], name: &Range<usize>, closed: usize) -> Option<usize> {
    if text[..name.start].ends_with(b"/") && text[closed..].starts_with(b">") {
        return None;
    }
    let from = name.start.saturating_sub(MAX_TAGS);
    let before = &text[from..name.start];
    let open = before.iter().rposition(|b| b"<>\n".contains(b)).filter(|at| before[*at] == b'<');
    // `a < b` is a comparison, and `Result<Token>` a type.
    let is_in_tag = open.is_some_and(|at| {
        let begins = before.get(at + 1).unwrap_or(&text[name.start]);
        let is_joined =
            at > 0 && (before[at - 1].is_ascii_alphanumeric() || before[at - 1] == b':');
        begins.is_ascii_alphabetic() && !is_joined
    });
    let rest = near(text, closed, MAX_TAGS);
    let start = match is_in_tag {
        true => {
            let end = memchr::memchr2(b'>', b'\n', rest).filter(|end| rest[*end] == b'>')?;
            let attribute = ["value=\"", "value='", "content=\""].iter().find_map(|attribute| {
                Some(memchr::memmem::find(&rest[..end], attribute.as_bytes())? + attribute.len())
            });
            if attribute.is_some() || rest[..end].ends_with(b"/") {
                return attribute.map(|at| closed + at);
            }
            closed + end + 1
        }
        false if rest.starts_with(b"</") => closed,
        false => return None,
    };
    let start = tags(text, start).unwrap_or(start);
    Some(start + begins(&text[start..], &["<![CDATA["]).map_or(0, str::len))
}

/// Returns the start of the value in `name="token" value="…"`, `{"name": "TOKEN", "value": "…"}` and `- name: TOKEN\n
/// value: …`.
pub fn value_attribute(text: &[u8], from: usize) -> Option<usize> {
    let limit = text.len().min(from + MAX_TAGS);
    let at = skip(&text[..limit], from, b" \t\r\n,;{\"'\\/");
    let length = text[at..limit].iter().take_while(|b| b.is_ascii_alphabetic()).count();
    let names_value = super::name::is_one_of(
        &text[at..at + length],
        "value val content contents default params payload",
    );
    let closed = skip(text, skip(text, at + length, b"\\\"'"), b" ");
    let is_apart = text[from..at].iter().any(|b| b" \n,;{".contains(b));
    (names_value && is_apart && matches!(text.get(closed), Some(b':' | b'=')))
        .then(|| skip(text, closed + 1, b" "))
}

/// Returns the end of a value that extends over the line. Quotes within it are those of parameters: `realm="x", …`.
pub fn end_of_line(text: &[u8], start: usize, quote: Option<u8>) -> usize {
    let mut at = start;
    while let Some(&byte) = text.get(at) {
        let is_end = byte == b'\n' || byte == b'\r' || Some(byte) == quote;
        let is_parameter = at > start && text[at - 1] == b'=' && quote.is_none();
        match byte {
            _ if is_end => return at,
            b'"' if !is_parameter || !closes_on_line(text, at) => return at,
            b'"' => at = end_of_quoted(text, at),
            _ => at += 1,
        }
    }
    at.min(text.len())
}

/// Returns the end of a value according to shell rules: quoted and unquoted parts up to whitespace or an operator. If a
/// quote was opened before the name, its closing quote ends the value.
pub fn end_of_value(text: &[u8], start: usize, outer: Option<u8>) -> usize {
    if let [b'\\', quote @ (b'"' | b'\''), rest @ ..] = &text[start..] {
        let end = memchr::memmem::find(rest, &[b'\\', *quote]);
        return end.map_or(text.len(), |n| start + 4 + n);
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
            b'$' if text[at..].starts_with(b"$(") => {
                let rest = &text[at..line_end(text, at, MAX_LINE)];
                at + memchr::memchr(b')', rest).map_or(1, |close| close + 1)
            }
            b if b.is_ascii_whitespace() || b"&;|<>".contains(&b) => return at,
            _ => at + 1,
        };
    }
    text.len()
}

fn closes_on_line(text: &[u8], open: usize) -> bool {
    let end = memchr::memchr2(text[open], b'\n', &text[open + 1..]);
    end.is_some_and(|n| text[open + 1 + n] == text[open])
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

/// Returns the end of an unquoted value without the punctuation that follows it, and before another assignment:
/// `(token=8f2c, lr=1)`, `token=8f2c,lr=1`.
pub fn bare_end(text: &[u8], start: usize, end: usize) -> usize {
    let next = memchr::memchr_iter(b',', &text[start..end]).find(|comma| {
        let rest = &text[start + comma + 1..end];
        let name = rest.iter().take_while(|b| is_name_byte(**b)).count();
        rest.starts_with(b"\"") || (name > 0 && rest.get(name).is_some_and(|b| b"=:".contains(b)))
    });
    let end = next.map_or(end, |comma| start + comma);
    trim_end(text, start..end, b".,:;)]}>\"'`\\").end
}

/// Returns the range of a value without its quotes, so that the redacted line keeps the quotes.
pub fn inside_quotes(text: &[u8], value: Range<usize>) -> Range<usize> {
    let bytes = &text[value.clone()];
    let is_quoted = |quote: &&&str| {
        let quote = quote.as_bytes();
        bytes.strip_prefix(quote).is_some_and(|inner| inner.ends_with(quote))
    };
    let quote =
        ["\\\"", "\\'", "\"", "'", "`"].iter().find(is_quoted).map_or(0, |quote| quote.len());
    value.start + quote..value.end - quote
}

/// Tracks the open quote while scanning text from left to right. A line break closes it, so that an apostrophe does not
/// affect later lines.
#[derive(Default)]
pub struct Quotes {
    pub open: Option<u8>,
    read: usize,
}

impl Quotes {
    pub fn advance(&mut self, text: &[u8], to: usize) {
        if let Some(line) = memchr::memrchr(b'\n', &text[self.read..to]) {
            self.open = None;
            self.read += line;
        }
        for at in self.read..to {
            let is_quote = QUOTES.contains(&text[at]) && !(at > 0 && text[at - 1] == b'\\');
            match self.open {
                None if is_quote => self.open = Some(text[at]),
                Some(open) if is_quote && open == text[at] => self.open = None,
                _ => {}
            }
        }
        self.read = self.read.max(to);
    }
}

/// Returns the string literals that are arguments of a call by position, or its value. `from` is the position after its
/// parenthesis.
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
                let is_value = [&b"key="[..], b"value="].iter().any(|name| before.ends_with(name));
                if text[at + 1..end].ends_with(&text[at..=at])
                    && (is_value || !before.ends_with(b"="))
                {
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

/// Returns the word in brackets: `password=<…>`, `password: […]`.
pub fn in_brackets(text: &[u8], start: usize) -> Option<Range<usize>> {
    let close = match text.get(start)? {
        b'<' => b'>',
        b'[' => b']',
        b'{' => b'}',
        _ => return None,
    };
    let length = memchr::memchr(close, near(text, start + 1, MAX_TAGS))?;
    let word = start + 1..start + 1 + length;
    let is_part = |b: &u8| !b.is_ascii_whitespace() && !b"\"'<>[]{}=:/,".contains(b);
    let is_secret = text[word.clone()].iter().all(is_part)
        && super::value::is_likely_secret(&text[word.clone()])
        && !harmless::is_reference(&text[start..=word.end]);
    is_secret.then_some(word)
}
