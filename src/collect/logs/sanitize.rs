//! Redacts, sanitizes and truncates log text before other parts of gputop use it.
//!
//! Terminal output is reduced to text: colours, cursor movements and text overwritten after a carriage return are
//! removed. Every other control character is escaped, so that a log cannot control a terminal that shows it. Line
//! breaks are retained.
//!
//! For example, `b"\x1b[31mRuntimeError\x1b[0m: \x07 token=hf_…"` becomes `RuntimeError: ^G token=***`.

use gputop_explain::scan::has_anchor;
use gputop_model::redact;
use gputop_model::text::visible;

/// Maximum number of characters in a line. Longer lines are truncated.
const MAX_LINE_CHARS: usize = 4_096;
const TAB: usize = 8;

/// Returns the sanitized text and the number of omitted bytes. Keeps at most `max_bytes` of `text`, from its beginning
/// and its end.
pub fn sanitize(text: &[u8], max_bytes: usize) -> (String, u64) {
    // Drop NUL bytes, because reading a gap in a sparse file may return gigabytes of them.
    let text: Vec<u8> = text.iter().copied().filter(|&b| b != 0).collect();
    let (head, tail, left_out) = first_and_last(&text, max_bytes);
    let mut out = lines(head);
    if left_out > 0 {
        out.push_str(&format!("… {left_out} bytes left out …\n"));
        out.push_str(&lines(tail));
    }
    (out, left_out as u64)
}

fn first_and_last(text: &[u8], max_bytes: usize) -> (&[u8], &[u8], usize) {
    if text.len() <= max_bytes {
        return (text, &[], 0);
    }
    let end = memchr::memrchr(b'\n', &text[..max_bytes / 2]).map_or(max_bytes / 2, |n| n + 1);
    let from = text.len() - max_bytes / 2;
    let from = memchr::memchr(b'\n', &text[from..]).map_or(from, |n| from + n + 1);
    (&text[..end], &text[from..], from - end)
}

fn lines(text: &[u8]) -> String {
    // An incomplete sequence remains, and is escaped below.
    let text = redact::text(&redact::without_sequences(text));
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive(|&b| b == b'\n') {
        let (line, is_whole) = match line.strip_suffix(b"\n") {
            Some(line) => (line, true),
            None => (line, false),
        };
        let mut parts = visible_parts(line).peekable();
        while let Some(part) = parts.next() {
            out.push_str(&visible(&without_tabs(part), MAX_LINE_CHARS));
            if parts.peek().is_some() {
                out.push('\n');
            }
        }
        if is_whole {
            out.push('\n');
        }
    }
    out
}

/// Splits a line at carriage returns, as printed by progress bars. Returns the last part, and earlier parts that may
/// contain an error.
fn visible_parts(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let count = line.split(|&b| b == b'\r').count();
    line.split(|&b| b == b'\r')
        .enumerate()
        .filter(move |(n, part)| n + 1 == count || has_anchor(part))
        .map(|(_, part)| part)
}

fn without_tabs(line: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(line.len());
    for &byte in line {
        if byte == b'\t' {
            let stop = (out.len() / TAB + 1) * TAB;
            out.resize(stop, b' ');
        } else {
            out.push(byte);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plain(text: &[u8]) -> String {
        sanitize(text, 65_536).0
    }

    #[test]
    fn removes_terminal_sequences_and_escapes_control_characters() {
        let cases: &[(&[u8], &str)] = &[
            (b"a\nb\n", "a\nb\n"),
            (b"no end", "no end"),
            (b"\x1b[0;31mError\x1b[0m: x\x07\n", "Error: x^G\n"),
            (b"\x1b]0;owned\x07t\x1b]8;;http://x\x1b\\u\n", "tu\n"),
            (b"\x1b[31", "^[[31"),
            (b"\x1b]never ended\nnext", "^[]never ended\nnext"),
            (b"\tx\n12\ty\n", "        x\n12      y\n"),
            (b"dos\r\n", "dos\n"),
            (b" 1%|\r 2%|\r 3%|\n", " 3%|\n"),
            (b"CUDA error: x\r 3%|\n", "CUDA error: x\n 3%|\n"),
            (b"a\0\0\0b\xff\n", "ab\\xff\n"),
            ("\u{202e}cod.exe\n".as_bytes(), "\\u{202e}cod.exe\n"),
        ];
        for (text, expected) in cases {
            assert_eq!(plain(text), *expected, "{text:?}");
        }
    }

    #[test]
    fn redacts_secrets_inside_colour_sequences() {
        let text = plain(b"HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz0123456789\n--api-key \x1b[1mq8Zr2LmX9vK4\x1b[0m\n");
        assert!(!text.contains("abcdefghij") && !text.contains("q8Zr2"), "{text}");
    }

    #[test]
    fn leaves_out_the_middle_of_long_text_and_reports_it() {
        let long = "0123456\n".repeat(1_000);
        let (text, left_out) = sanitize(long.as_bytes(), 1_000);
        assert!(text.len() < 1_100 && text.starts_with("0123456\n") && text.ends_with("0123456\n"));
        assert_eq!(left_out, 7_008);
        assert!(text.contains("… 7008 bytes left out …\n"));
    }

    proptest! {
        #[test]
        fn never_returns_a_control_character(text: Vec<u8>, max_bytes in 16..200usize) {
            let (sanitized, _) = sanitize(&text, max_bytes);
            prop_assert!(!sanitized.chars().any(|c| c.is_control() && c != '\n'));
        }
    }
}
