//! Escapes text from other programs for display.
//!
//! Process names, command lines and log lines may contain any bytes: escape sequences that rewrite the terminal,
//! right-to-left overrides that make `cod.exe` look like `exe.doc`, invisible characters, invalid UTF-8. Collectors
//! pass all such text through [`visible`] before adding it to the model, so that screens, JSON lines and recordings
//! never contain such bytes.
//!
//! Example: `b"python\x1b[31m \xff"` becomes `python^[[31m \xff`, which is readable and has no effect.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

use unicode_width::UnicodeWidthChar;

/// Maximum number of zero-width marks per character: enough for any script, too few to make a line unreadable.
const MAX_MARKS: usize = 3;

/// Escapes every invisible or control character in `text`, and truncates the result to `max_chars` characters.
/// Truncated text ends with an ellipsis.
pub fn visible(text: &[u8], max_chars: usize) -> String {
    let mut shown = EscapedText::new(max_chars);
    for chunk in text.utf8_chunks() {
        for c in chunk.valid().chars() {
            shown.push(c);
        }
        for byte in chunk.invalid() {
            shown.push_written(format_args!("\\x{byte:02x}"));
        }
        if shown.is_cut() {
            break;
        }
    }
    shown.finish()
}

/// Escapes the strings in a line of untrusted JSON as [`visible`] would. Retains line breaks and tabs, because such
/// text is shown line by line. Returns `None` if the result would exceed `max_bytes`: a two-byte character may become
/// eight bytes.
pub fn escape_json_strings(json: &[u8], max_bytes: usize) -> Option<Cow<'_, [u8]>> {
    // Invalid UTF-8 is rejected later by the JSON parser.
    let Ok(text) = std::str::from_utf8(json) else { return Some(Cow::Borrowed(json)) };
    let (mut written, mut done) = (String::new(), 0);
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        let (hidden, end) = if c == '\\' {
            match chars.next().map_or(' ', |(_, escape)| escape) {
                'b' => (Some('\x08'), at + 2),
                'f' => (Some('\x0c'), at + 2),
                'r' => (Some('\r'), at + 2),
                'u' => (escaped(&text[at + 2..]), at + 6),
                _ => (None, 0),
            }
        } else {
            (Some(c), at + c.len_utf8())
        };
        let Some(hidden) = hidden.filter(|c| is_hidden(*c)) else { continue };
        written.push_str(&text[done..at]);
        // In a JSON string, each backslash is written as two.
        let shown = visible(hidden.encode_utf8(&mut [0; 4]).as_bytes(), 20);
        written.push_str(&shown.replace('\\', "\\\\"));
        done = end;
        if written.len() > max_bytes {
            return None;
        }
    }
    if done == 0 {
        return Some(Cow::Borrowed(json));
    }
    written.push_str(&text[done..]);
    (written.len() <= max_bytes).then(|| Cow::Owned(written.into_bytes()))
}

/// Decodes the hexadecimal digits of a JSON `\u` escape: `001b…` is ESC. A surrogate alone is not a character, but the
/// high surrogate shared by all tag characters is treated as U+E0000.
fn escaped(digits: &str) -> Option<char> {
    match u32::from_str_radix(digits.get(..4)?, 16).ok()? {
        0xdb40 => Some('\u{e0000}'),
        number => char::from_u32(number),
    }
}

/// Displays untrusted text so that it cannot control a terminal. Retains line breaks and tabs.
///
/// Subcommands print all output through `Escaped`, because file names and arguments in errors never pass through
/// [`visible`].
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        while let Some((at, c)) = rest.char_indices().find(|(_, c)| is_hidden(*c)) {
            f.write_str(&rest[..at])?;
            f.write_str(&visible(c.encode_utf8(&mut [0; 4]).as_bytes(), 20))?;
            rest = &rest[at + c.len_utf8()..];
        }
        f.write_str(rest)
    }
}

/// Returns the same JSON document with every invisible character written as `\uXXXX`, which a parser reads back
/// unchanged. Invisible characters occur only inside strings, where the `\uXXXX` syntax is valid.
pub fn json_escaped(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if is_hidden(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    out
}

fn is_hidden(c: char) -> bool {
    match c {
        '\n' | '\t' | ' '..='~' => false,
        '\0'..='\x1f' | '\x7f' => true,
        c => is_invisible(c),
    }
}

/// Returns `text[from..to]`. Limits both offsets to the text and moves them back to a character boundary, because
/// offsets computed from lengths or by a byte regex may lie inside a character.
pub fn slice(text: &str, from: usize, to: usize) -> &str {
    let to = text.floor_char_boundary(to);
    let from = text.floor_char_boundary(from.min(to));
    &text[from..to]
}

/// Returns the end of the line that contains byte `at`, excluding the line break.
pub fn line_end(text: &str, at: usize) -> usize {
    let at = at.min(text.len());
    memchr::memchr(b'\n', &text.as_bytes()[at..]).map_or(text.len(), |n| at + n)
}

/// Escapes a name typed by a user, for use in a sentence.
pub fn quoted(name: &str) -> String {
    visible(name.as_bytes(), 60)
}

/// Escaped output so far, and the position at which to cut it if more text follows.
struct EscapedText {
    text: String,
    chars: usize,
    max_chars: usize,
    /// End of the last complete unit that leaves room for the ellipsis, so that a cut never splits `\u{202e}`.
    cut_at: usize,
    marks: usize,
}

impl EscapedText {
    fn new(max_chars: usize) -> Self {
        Self {
            text: String::new(),
            chars: 0,
            max_chars,
            cut_at: 0,
            // Escape a mark at the start of the text. Without a base character, the mark would change the character to
            // the left of the text.
            marks: MAX_MARKS,
        }
    }

    fn is_cut(&self) -> bool {
        self.chars > self.max_chars
    }

    fn push(&mut self, c: char) {
        if self.is_cut() {
            return;
        }
        match c {
            ' '..='~' => self.push_plain(c),
            '\0'..='\x1f' => self.push_written(format_args!("^{}", char::from(c as u8 + b'@'))),
            '\x7f' => self.push_written(format_args!("^?")),
            c if is_invisible(c) => self.push_written(format_args!("\\u{{{:x}}}", u32::from(c))),
            c if c.width() == Some(0) => self.push_mark(c),
            c => self.push_plain(c),
        }
    }

    fn push_plain(&mut self, c: char) {
        self.marks = 0;
        self.text.push(c);
        self.grew_by(1);
    }

    fn push_mark(&mut self, c: char) {
        if self.marks >= MAX_MARKS {
            self.push_written(format_args!("\\u{{{:x}}}", u32::from(c)));
            return;
        }
        self.marks += 1;
        self.text.push(c);
        self.grew_by(1);
    }

    fn push_written(&mut self, written: std::fmt::Arguments<'_>) {
        if self.is_cut() {
            return;
        }
        self.marks = 0;
        let before = self.text.len();
        let _ = self.text.write_fmt(written);
        self.grew_by(self.text.len() - before);
    }

    fn grew_by(&mut self, chars: usize) {
        self.chars += chars;
        if self.chars < self.max_chars {
            self.cut_at = self.text.len();
        }
    }

    fn finish(mut self) -> String {
        if self.is_cut() {
            self.text.truncate(self.cut_at);
            if self.max_chars > 0 {
                self.text.push('…');
            }
        }
        self.text
    }
}

/// Returns true for characters that are invisible or change their surroundings: C1 controls, format characters (Unicode
/// category Cf, including bidi controls and tags), line and paragraph separators, fillers and variation selectors
/// (`Default_Ignorable_Code_Point`), and noncharacters. The list is copied from Unicode 16, because no dependency provides
/// this property.
fn is_invisible(c: char) -> bool {
    matches!(u32::from(c),
        0x80..=0x9f
        | 0xad
        | 0x34f
        | 0x600..=0x605 | 0x61c | 0x6dd | 0x70f | 0x890..=0x891 | 0x8e2
        | 0x115f..=0x1160
        | 0x17b4..=0x17b5
        | 0x180b..=0x180f
        | 0x200b..=0x200f
        | 0x2028..=0x202e
        | 0x2060..=0x206f
        | 0x3164
        | 0xfe00..=0xfe0f
        | 0xfeff
        | 0xffa0
        | 0xfff0..=0xfffb
        | 0xfffe..=0xffff
        | 0x110bd | 0x110cd
        | 0x13430..=0x1343f
        | 0x1bca0..=0x1bca3
        | 0x1d173..=0x1d17a
        | 0xe0000..=0xe0fff)
        || u32::from(c) & 0xfffe == 0xfffe
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn json_from_elsewhere_is_escaped() {
        let read = |json: &str| {
            let harmless = escape_json_strings(json.as_bytes(), 1_000).expect("room").into_owned();
            serde_json::from_slice::<String>(&harmless).ok()
        };
        assert_eq!(read("\"plain \\n \\t ok\"").as_deref(), Some("plain \n \t ok"));
        assert_eq!(read("\"\\u001b[2J\"").as_deref(), Some("^[[2J"));
        assert_eq!(read("\"\\\\u001b\"").as_deref(), Some("\\u001b"));
        assert_eq!(read("\"a\\rb\\bc\\f\"").as_deref(), Some("a^Mb^Hc^L"));
        assert_eq!(read("\"\u{9b}2J\u{7f}\"").as_deref(), Some("\\u{9b}2J^?"));
        assert_eq!(read("\"\\u202Ecod\"").as_deref(), Some("\\u{202e}cod"));
        assert_eq!(read("\"\\ud83d\\ude00\"").as_deref(), Some("\u{1f600}"));
        // Half of a tag's surrogate pair is not valid text.
        assert_eq!(read("\"\\udb40\\udc41\""), None);
        for cut in ["\"\\", "\"\\u", "\"\\u00", "\"\\u001"] {
            assert_eq!(read(cut), None);
        }
    }

    #[test]
    fn escaped_text_keeps_lines_and_tabs_and_no_control() {
        let text = "ok\tß 日本\n\x1b]52;c;eA==\x07\x7f\u{9b}2J\r\u{202e}\u{2066}\u{e0041}.\n";
        assert_eq!(
            Escaped(text).to_string(),
            "ok\tß 日本\n^[]52;c;eA==^G^?\\u{9b}2J^M\\u{202e}\\u{2066}\\u{e0041}.\n"
        );
    }

    #[test]
    fn escaped_json_has_the_same_value() {
        let value = "\x1b\x7f\u{9b}\u{202e}\u{e0041} ß\n\t\"\\";
        let json = serde_json::to_string_pretty(&[value]).expect("a string") + "\n";
        let escaped = json_escaped(&json);
        assert!(!escaped.chars().any(is_hidden), "{escaped:?}");
        let read: Vec<String> = serde_json::from_str(&escaped).expect("JSON");
        assert_eq!(read, [value]);
    }

    #[test]
    fn hostile_text_is_written_out() {
        let cases: &[(&[u8], &str)] = &[
            (b"python train.py", "python train.py"),
            ("täglich 日本語 ✓".as_bytes(), "täglich 日本語 ✓"),
            (b"\x1b[2J\x1b]0;owned\x07", "^[[2J^[]0;owned^G"),
            (b"a\0b\nc\td\x7f", "a^@b^Jc^Id^?"),
            (b"\xff\xc3(", "\\xff\\xc3("),
            (b"\xe2\x80", "\\xe2\\x80"),
            ("\u{9b}31m".as_bytes(), "\\u{9b}31m"),
            ("\u{202e}cod.exe\u{202c}".as_bytes(), "\\u{202e}cod.exe\\u{202c}"),
            ("a\u{200b}b\u{feff}c\u{2066}".as_bytes(), "a\\u{200b}b\\u{feff}c\\u{2066}"),
            ("x\u{2028}y\u{2029}z".as_bytes(), "x\\u{2028}y\\u{2029}z"),
            ("\u{e0041}\u{ad}\u{3164}".as_bytes(), "\\u{e0041}\\u{ad}\\u{3164}"),
            ("\u{301}x".as_bytes(), "\\u{301}x"),
            ("e\u{301}\u{302}\u{303}\u{304}".as_bytes(), "e\u{301}\u{302}\u{303}\\u{304}"),
            (b"", ""),
        ];
        for (text, expected) in cases {
            assert_eq!(visible(text, 4096), *expected, "{text:?}");
        }
    }

    #[test]
    fn long_text_ends_in_an_ellipsis_and_no_escape_is_split() {
        assert_eq!(visible(b"abcdef", 6), "abcdef");
        assert_eq!(visible(b"abcdefg", 6), "abcde…");
        assert_eq!(visible(b"abc\x1bdef", 5), "abc…");
        assert_eq!(visible(b"abc\xff", 5), "abc…");
        assert_eq!(visible(b"ab", 1), "…");
        assert_eq!(visible(b"ab", 0), "");
    }

    proptest! {
        #[test]
        fn visible_text_has_no_control_and_is_bounded(text: Vec<u8>, max in 0..64usize) {
            let shown = visible(&text, max);
            prop_assert!(shown.chars().count() <= max);
            prop_assert!(!shown.chars().any(|c| c.is_control() || is_invisible(c)));
        }

        #[test]
        fn printable_ascii_is_left_alone(text in "[ -~]{0,200}") {
            prop_assert_eq!(visible(text.as_bytes(), 4096), text);
        }
    }
}
