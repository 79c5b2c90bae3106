//! Finds the values of names in HTML, XML and Markdown: `<token>…</token>`, `<add key="token" value="…"/>`, `| token | …
//! |`, and in lists of names and values: `{"name": "TOKEN", "value": "…"}`.

use std::ops::Range;

use super::word::{MAX_TAGS, skip};

/// Returns the start of the value in `name="token" value="…"`, `{"name": "TOKEN", "value": "…"}` and `- name: TOKEN\n
/// value: …`.
pub fn value_attribute(text: &[u8], from: usize) -> Option<usize> {
    let limit = text.len().min(from + MAX_TAGS);
    let at =
        from + text[from..limit].iter().take_while(|b| b" \t\r\n,;{\"'\\/".contains(b)).count();
    let rest = &text[at..limit];
    let word = rest.iter().take_while(|b| b.is_ascii_alphabetic()).count();
    let is_value = ["value", "val", "content", "contents", "default", "params", "payload"]
        .iter()
        .any(|name| rest[..word].eq_ignore_ascii_case(name.as_bytes()));
    let closed = skip(text, skip(text, at + word, b"\\\"'"), b" ");
    let is_apart = text[from..at].iter().any(|b| b" \n,;{".contains(b));
    (is_value && is_apart && matches!(text.get(closed), Some(b':' | b'=')))
        .then(|| skip(text, closed + 1, b" "))
}

/// Returns the start of the text in an element whose name or attribute is the sensitive name.
pub fn markup(text: &[u8], name: &Range<usize>, closed: usize) -> Option<usize> {
    if text[..name.start].ends_with(b"/") && text[closed..].starts_with(b">") {
        return None;
    }
    // A name within a tag, or as the text of an element.
    let from = name.start.saturating_sub(MAX_TAGS);
    let before = &text[from..name.start];
    let open = before.iter().rposition(|b| b"<>\n".contains(b)).filter(|at| before[*at] == b'<');
    // `a < b` is a comparison, and `Result<Token>` a type.
    let is_in_tag = open.is_some_and(|at| {
        let begins = before.get(at + 1).unwrap_or(&text[name.start]);
        let is_type = at > 0 && before[at - 1].is_ascii_alphanumeric();
        begins.is_ascii_alphabetic() && !is_type
    });
    let rest = &text[closed..text.len().min(closed + MAX_TAGS)];
    let start = match is_in_tag {
        true => {
            let end = memchr::memchr2(b'>', b'\n', rest).filter(|end| rest[*end] == b'>')?;
            if rest[..end].ends_with(b"/") {
                return attribute_value(text, closed, closed + end);
            }
            if let Some(value) = attribute_value(text, closed, closed + end) {
                return Some(value);
            }
            closed + end + 1
        }
        false if rest.starts_with(b"</") => closed,
        false => return None,
    };
    let start = tags(text, start).unwrap_or(start);
    Some(start + if text[start..].starts_with(b"<![CDATA[") { 9 } else { 0 })
}

/// Returns the start of the value of the attribute `value` in the rest of a tag.
fn attribute_value(text: &[u8], from: usize, end: usize) -> Option<usize> {
    let tag = &text[from..end];
    let at = ["value=\"", "value='", "content=\""].iter().find_map(|attribute| {
        memchr::memmem::find(tag, attribute.as_bytes()).map(|at| at + attribute.len())
    })?;
    Some(from + at)
}

/// Returns the position after one or more tags, or `None` if there is no tag.
pub fn tags(text: &[u8], from: usize) -> Option<usize> {
    let limit = text.len().min(from + MAX_TAGS);
    let mut at = from;
    loop {
        let next = skip(&text[..limit], at, b" \t\r\n");
        let is_tag = text[next..limit].first() == Some(&b'<')
            && text[next..limit].get(1).is_some_and(|b| b.is_ascii_alphabetic() || *b == b'/');
        let end = is_tag.then(|| memchr::memchr(b'>', &text[next..limit])).flatten();
        match end {
            Some(end) => at = next + end + 1,
            None => return (at > from).then_some(at),
        }
    }
}

pub fn is_cell(text: &[u8], name: usize) -> bool {
    let before = &text[name.saturating_sub(MAX_TAGS)..name];
    before.iter().rfind(|b| !b" \t`*".contains(b)) == Some(&b'|')
}
