//! Reads text as a person reads it: without the escape sequences of a terminal and without the escapes of JSON, URLs and
//! markup.
//!
//! `{\"token\": \"8f2c\"}`, `%22token%22%3A%228f2c%22` and `&quot;token&quot;:&quot;8f2c&quot;` all read as
//! `"token":"8f2c"`. A [`View`] holds the readable text and maps its positions back to the original.

use std::ops::Range;

/// Maximum number of times that text can be escaped.
const MAX_DEPTH: usize = 4;
/// Maximum length of a terminal's escape sequence.
const MAX_SEQUENCE: usize = 256;

pub struct View {
    pub text: Vec<u8>,
    /// Positions in the original of each byte of the view.
    places: Vec<Range<usize>>,
}

impl View {
    /// Returns the text without the sequences that colour it or move the cursor, or `None` if there are none.
    pub fn without_sequences(text: &[u8]) -> Option<Self> {
        Some(Self::new(text, memchr::memchr(0x1b, text)?, sequence))
    }

    /// Returns the text without these sequences and with the quotes of a typewriter, or `None` if it has no others.
    pub fn plain(text: &[u8]) -> Option<Self> {
        let quote = memchr::memmem::find_iter(text, b"\xe2\x80")
            .find(|at| typographic_quote(&text[*at..]).is_some());
        let first = memchr::memchr(0x1b, text).into_iter().chain(quote).min()?;
        Some(Self::new(text, first, |rest| sequence(rest).or_else(|| typographic_quote(rest))))
    }

    /// Returns the text with one level of escapes removed, or `None` if there are none.
    fn unescaped(text: &[u8]) -> Option<Self> {
        let first = escapes(text).next()?;
        Some(Self::new(text, first, |rest| escape(rest).map(|(length, byte)| (length, Some(byte)))))
    }

    /// Returns the text in which `next` replaces what it recognizes, from a first position.
    fn new(text: &[u8], first: usize, next: impl Fn(&[u8]) -> Option<(usize, Option<u8>)>) -> Self {
        let mut view =
            Self { text: text[..first].to_vec(), places: Vec::with_capacity(text.len()) };
        view.places.extend((0..first).map(|at| at..at + 1));
        let mut at = first;
        while at < text.len() {
            let (length, byte) = next(&text[at..]).unwrap_or((1, Some(text[at])));
            view.text.extend(byte);
            view.places.extend(byte.map(|_| at..at + length));
            at += length;
        }
        view
    }

    /// Returns the range in the original of a range in the view.
    pub fn original(&self, viewed: &Range<usize>) -> Range<usize> {
        let last = self.places.last().map_or(0, |last| last.end);
        let start = self.places.get(viewed.start).map_or(last, |place| place.start);
        match viewed.end.checked_sub(1).and_then(|at| self.places.get(at)) {
            Some(place) if !viewed.is_empty() => start..place.end,
            _ => start..start,
        }
    }
}

/// Calls `find` for each line that contains escapes, with one level of escapes less each time.
pub fn each_unescaped(
    text: &[u8],
    hidden: &mut Vec<Range<usize>>,
    find: fn(&[u8], &mut Vec<Range<usize>>),
) {
    let mut done = 0;
    for at in escapes(text) {
        if at < done {
            continue;
        }
        let start = memchr::memrchr(b'\n', &text[done..at]).map_or(done, |n| done + n + 1);
        done = memchr::memchr(b'\n', &text[at..]).map_or(text.len(), |n| at + n + 1);
        let mut views: Vec<View> = Vec::new();
        while views.len() < MAX_DEPTH {
            let line = views.last().map_or(&text[start..done], |view| &view.text);
            let Some(view) = View::unescaped(line) else { break };
            let mut found = Vec::new();
            match View::without_sequences(&view.text) {
                Some(plain) => {
                    find(&plain.text, &mut found);
                    found.iter_mut().for_each(|range| *range = plain.original(range));
                }
                None => find(&view.text, &mut found),
            }
            views.push(view);
            hidden.extend(found.into_iter().map(|range| {
                let range = views.iter().rev().fold(range, |range, view| view.original(&range));
                start + range.start..start + range.end
            }));
        }
    }
}

fn escapes(text: &[u8]) -> impl Iterator<Item = usize> {
    memchr::memchr3_iter(b'\\', b'%', b'&', text).filter(|at| escape(&text[*at..]).is_some())
}

/// Returns the length of the escape at the start of the text, and the character that it stands for.
fn escape(text: &[u8]) -> Option<(usize, u8)> {
    let hex = |from: usize, to: usize| {
        let digits = std::str::from_utf8(text.get(from..to)?).ok()?;
        let byte = u8::from_str_radix(digits, 16).ok()?;
        (byte.is_ascii_graphic() || b" \n\r\t\x1b".contains(&byte)).then_some((to, byte))
    };
    match text {
        [b'%', ..] => hex(1, 3),
        [b'\\', b'u', b'0', b'0', ..] => hex(4, 6),
        [b'\\', b'x', ..] => hex(2, 4),
        [b'\\', b'0', b'3', b'3', ..] => Some((4, 0x1b)),
        [b'\\', b'e', b'[', ..] => Some((2, 0x1b)),
        [b'\\', b'n', ..] => Some((2, b'\n')),
        [b'\\', b'r', ..] => Some((2, b'\r')),
        [b'\\', b't', ..] => Some((2, b'\t')),
        [b'\\', byte @ (b'"' | b'\'' | b'\\' | b'/'), ..] => Some((2, *byte)),
        [b'&', ..] => entity(text),
        _ => None,
    }
}

/// Reads a character reference of HTML or XML: `&quot;`, `&#34;`, `&#x22;`.
fn entity(text: &[u8]) -> Option<(usize, u8)> {
    const NAMES: &[(&[u8], u8)] = &[
        (b"quot", b'"'),
        (b"apos", b'\''),
        (b"lt", b'<'),
        (b"gt", b'>'),
        (b"amp", b'&'),
        (b"nbsp", b' '),
        (b"equals", b'='),
        (b"colon", b':'),
    ];
    const MAX_LENGTH: usize = 8;
    let end = text.iter().take(MAX_LENGTH).position(|b| *b == b';')?;
    let name = &text[1..end];
    let byte = match name {
        [b'#', b'x' | b'X', digits @ ..] => {
            u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?
        }
        [b'#', digits @ ..] => std::str::from_utf8(digits).ok()?.parse().ok()?,
        name => NAMES.iter().find(|(known, _)| *known == name)?.1,
    };
    (byte.is_ascii_graphic() || byte == b' ').then_some((end + 1, byte))
}

/// Reads “, ” and „ as `"`.
fn typographic_quote(text: &[u8]) -> Option<(usize, Option<u8>)> {
    matches!(text, [0xe2, 0x80, 0x9c..=0x9f, ..]).then_some((3, Some(b'"')))
}

/// Reads the escape sequence at the start of the text as nothing: `ESC [ … letter` and `ESC ] … BEL`. A sequence never
/// spans lines.
fn sequence(text: &[u8]) -> Option<(usize, Option<u8>)> {
    let (kind, body) = match &text[..text.len().min(MAX_SEQUENCE)] {
        [0x1b, kind @ (b'[' | b']'), body @ ..] => (*kind, body),
        _ => return None,
    };
    let end = match kind {
        b'[' => body.iter().take_while(|b| (0x20..0x40).contains(*b)).count(),
        _ => body.iter().position(|&b| b == 7 || b == 0x1b || b == b'\n')?,
    };
    match (kind, &body[end..]) {
        (b'[', [0x40..0x7f, ..]) | (b']', [7, ..]) => Some((end + 3, None)),
        (b']', [0x1b, b'\\', ..]) => Some((end + 4, None)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_ranges_back_to_the_original() {
        let colours = b"a \x1b[31mto\x1b[0mken\x1b[0m b";
        let view = View::without_sequences(colours).expect("has sequences");
        assert_eq!(view.text, b"a token b");
        assert_eq!(&colours[view.original(&(2..7))], b"to\x1b[0mken");
        let json = br#"x \"a\u0022\" y"#;
        let view = View::unescaped(json).expect("has escapes");
        assert_eq!(view.text, br#"x "a"" y"#);
        assert_eq!(&json[view.original(&(3..4))], b"a");
        assert_eq!(&json[view.original(&(3..5))], br"a\u0022");
        assert_eq!(view.original(&(0..view.text.len())), 0..json.len());
    }

    #[test]
    fn reads_every_escape() {
        for escaped in [
            r#"\"token\": \"x\""#,
            r#"\u0022token\u0022: \x22x\x22"#,
            "%22token%22%3A%20%22x%22",
            "&quot;token&quot;: &#34;x&#x22;",
        ] {
            let view = View::unescaped(escaped.as_bytes()).expect("has escapes");
            assert_eq!(String::from_utf8_lossy(&view.text), r#""token": "x""#, "{escaped}");
        }
        for plain in ["35%|###", "a & b", r"C:\data", "100%", "&unknown;"] {
            assert!(View::unescaped(plain.as_bytes()).is_none(), "{plain}");
        }
    }
}
