//! Converts a log to lines without escapes, carriage returns, JSON escapes, curly quotes and invisible characters.

use super::{own_output, prefix};
use crate::text::log_line::LogLine;

/// Maximum length of a line in bytes; longer lines are split, so that memory stays bounded.
const MAX_LINE: usize = 64 * 1024;

/// Returns the lines of an excerpt. `first` is the line number of the first one.
#[must_use]
pub fn lines(excerpt: &[u8], first: u64) -> Vec<LogLine> {
    let mut texts = Vec::new();
    for (number, raw) in (first..).zip(excerpt.split(|&b| b == b'\n')) {
        // A carriage return at the end belongs to the line break; inside a line, it starts a new line.
        let end = raw.iter().rposition(|&b| b != b'\r').map_or(0, |at| at + 1);
        for piece in raw[..end].chunks(MAX_LINE) {
            let clean = clean(piece);
            texts.extend(clean.split('\n').map(|text| (number, text.to_owned())));
        }
    }
    own_output::remove_explanations(&mut texts, |(number, text)| (*number, text));
    let texts = texts.iter();
    let mut lines: Vec<LogLine> =
        texts.map(|(number, text)| prefix::without_prefixes(text, *number)).collect();
    // Remove explanations a second time, now that prefixes are gone: a launcher may have added a prefix to each of
    // their lines.
    own_output::remove_explanations(&mut lines, |line| (line.number, &line.text));
    remove_rank_labels(&mut lines);
    join_indented(&mut lines);
    merge_thread_lines(&mut lines);
    mark_code(&mut lines);
    lines
}

/// Removes rank labels (`3: text`, from `srun --label`) if most lines have a label.
fn remove_rank_labels(lines: &mut [LogLine]) {
    let labelled = |line: &LogLine| prefix::label(&line.text).is_some();
    let count = lines.iter().filter(|line| labelled(line)).count();
    let nonempty = lines.iter().filter(|line| !line.text.is_empty()).count();
    if count < 2 || count * 10 < nonempty * 7 {
        return;
    }
    for line in lines {
        if let Some((rank, rest)) = prefix::label(&line.text) {
            let inner = prefix::without_prefixes(rest, line.number);
            line.rank = Some(rank);
            line.writer = format!("rank {rank}");
            line.time = inner.time;
            line.text = inner.text;
        }
    }
}

/// Assigns the further lines of a message in the journal to its writer. journalctl indents them to the message's column.
fn join_indented(lines: &mut [LogLine]) {
    const MIN_INDENT: usize = 16;
    for at in 1..lines.len() {
        let (before, rest) = lines.split_at_mut(at);
        let (before, line) = (&before[at - 1], &mut rest[0]);
        let indent = line.text.len() - line.text.trim_start_matches(' ').len();
        if before.host.is_empty() || !line.writer.is_empty() || indent < MIN_INDENT {
            continue;
        }
        line.text.drain(..indent);
        line.writer.clone_from(&before.writer);
        line.host.clone_from(&before.host);
        line.time.clone_from(&before.time);
    }
}

/// Merges the similar lines that the threads of a failing GPU kernel print. Keeps the first and counts the others, also
/// if lines of other kernels, other ranks or the program are between them.
fn merge_thread_lines(lines: &mut Vec<LogLine>) {
    /// Maximum number of different lines to compare with.
    const MAX_RECENT: usize = 8;
    /// Maximum number of lines between repetitions.
    const MAX_GAP: u64 = 400;
    let mut recent: Vec<usize> = Vec::new();
    let mut kept: Vec<LogLine> = Vec::with_capacity(lines.len());
    for line in lines.drain(..) {
        if line.text.contains("thread: [") {
            let is_again = |first: &LogLine| {
                line.writer == first.writer
                    && line.number <= first.last + MAX_GAP
                    && line.text.len().abs_diff(first.text.len()) <= 12
                    && without_numbers(&line.text).eq(without_numbers(&first.text))
            };
            if let Some(&at) = recent.iter().find(|&&at| is_again(&kept[at])) {
                kept[at].repeats += 1;
                kept[at].last = line.number;
                continue;
            }
            if recent.len() == MAX_RECENT {
                recent.remove(0);
            }
            recent.push(kept.len());
        }
        kept.push(line);
    }
    *lines = kept;
}

fn without_numbers(text: &str) -> impl Iterator<Item = u8> {
    text.bytes().filter(|b| !b.is_ascii_digit())
}

/// Marks source code in tracebacks: the line after `File "train.py", line 57, in step`.
fn mark_code(lines: &mut [LogLine]) {
    for i in 1..lines.len() {
        let (before, line) = lines.split_at_mut(i);
        let (before, line) = (&before[i - 1], &mut line[0]);
        let trimmed = line.text.trim_start();
        let indent = |text: &str| text.len() - text.trim_start().len();
        let after_frame = before.text.trim_start().starts_with("File \"")
            && before.text.contains(", line ")
            && before.writer == line.writer;
        let indented = indent(&line.text) > indent(&before.text);
        let is_carets = !trimmed.is_empty() && trimmed.bytes().all(|b| b == b'^' || b == b'~');
        line.is_code = (after_frame && indented && !trimmed.starts_with("File \"")) || is_carets;
    }
}

/// Returns the text without control sequences and JSON encoding. The result can contain line breaks.
fn clean(raw: &[u8]) -> String {
    let text = String::from_utf8_lossy(raw);
    let text = json_message(&text).map_or_else(|| unescaped(&text), Into::into);
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\x1b' => skip_escape(&mut chars),
            '\r' => out.push('\n'),
            '\u{2018}' | '\u{2019}' | '\u{201b}' | '\u{b4}' => out.push('\''),
            '\u{201c}' | '\u{201d}' => out.push('"'),
            '\u{a0}' | '\u{3000}' | '\t' => out.push(' '),
            '\n' => out.push('\n'),
            c if c.is_control() || is_invisible(c) => {}
            c => out.push(c),
        }
    }
    out
}

fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fffd}')
}

/// Skips the rest of an escape sequence: `[` … final byte, `]` … BEL or ESC `\`, or one character.
fn skip_escape(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    match chars.peek() {
        Some('[') => {
            chars.next();
            while let Some(&c) = chars.peek() {
                // End the sequence at an invalid character, so that a damaged sequence does not swallow the text after
                // it.
                if !c.is_ascii() || c.is_control() {
                    return;
                }
                chars.next();
                if ('@'..='~').contains(&c) {
                    return;
                }
            }
        }
        Some(']') => {
            for c in chars.by_ref() {
                if c == '\x07' || c == '\\' {
                    return;
                }
            }
        }
        Some('(' | ')') => {
            chars.next();
            chars.next();
        }
        _ => {
            chars.next();
        }
    }
}

/// Returns the message in a JSON object: `{"log": …}` for Docker, `{"message": …}` for structured loggers.
fn json_message(text: &str) -> Option<String> {
    let object = text.trim();
    if !object.starts_with('{') || !object.ends_with('}') {
        return None;
    }
    let object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(object).ok()?;
    let names = ["log", "message", "msg", "MESSAGE", "text", "exception"];
    let messages: Vec<&str> = names.iter().filter_map(|name| object.get(*name)?.as_str()).collect();
    (!messages.is_empty()).then(|| messages.join("\n"))
}

/// Replaces escape sequences from JSON and Python reprs with the characters that they represent.
fn unescaped(text: &str) -> std::borrow::Cow<'_, str> {
    let is_json = text.contains("\\\"") || text.contains("\":") || text.contains("\": ");
    let colours = ["\\u001b[", "\\x1b[", "\\033[", "#033["];
    let has_colour = colours.iter().any(|c| text.contains(c));
    if !has_colour && !(is_json && (text.contains("\\n") || text.contains("\\\""))) {
        return text.into();
    }
    let mut out = text.to_owned();
    for colour in colours {
        out = out.replace(colour, "\x1b[");
    }
    if is_json {
        out = without_escapes(&out);
    }
    out.into()
}

/// Replaces JSON escapes from left to right: `\\n` in a Windows path is not a line break.
fn without_escapes(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let escaped = &rest[at + 1..];
        let (replacement, length) = match escaped.as_bytes().first() {
            Some(b'n') => ("\n", 1),
            Some(b't') => (" ", 1),
            Some(b'r') => ("", 1),
            Some(b'"') => ("\"", 1),
            Some(b'\\') => ("\\", 1),
            Some(b'/') => ("/", 1),
            Some(b'u') => unicode(escaped.get(1..5).unwrap_or_default()),
            _ => ("\\", 0),
        };
        out.push_str(replacement);
        rest = &escaped[length..];
    }
    out.push_str(rest);
    out
}

/// Returns the character for an unnecessary JSON escape, and the length of the escape after its backslash.
fn unicode(digits: &str) -> (&'static str, usize) {
    match digits.to_ascii_lowercase().as_str() {
        "003c" => ("<", 5),
        "003e" => (">", 5),
        "0026" => ("&", 5),
        "0027" => ("'", 5),
        _ => ("\\", 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(raw: &[u8]) -> Vec<String> {
        lines(raw, 1).into_iter().map(|l| l.text).collect()
    }

    #[test]
    fn removes_escapes_progress_bars_and_curly_quotes() {
        assert_eq!(
            texts(b"\x1b[0;31mOutOfMemoryError\x1b[0m: CUDA\x1b]0;title\x07 out"),
            ["OutOfMemoryError: CUDA out"]
        );
        assert_eq!(
            texts(b" 10%|#  | 1/10\rRuntimeError: x"),
            [" 10%|#  | 1/10", "RuntimeError: x"]
        );
        assert_eq!(texts(b"a\r\nb\r\r\nc"), ["a", "b", "c"]);
        assert_eq!(
            texts("Assertion \u{2018}a < b\u{2019} failed".as_bytes()),
            ["Assertion 'a < b' failed"]
        );
    }

    #[test]
    fn reads_text_inside_json() {
        assert_eq!(
            texts(br#"{"log":"RuntimeError: CUDA error\nSee \"x\"","stream":"stderr"}"#),
            ["RuntimeError: CUDA error", r#"See "x""#]
        );
    }

    #[test]
    fn accepts_any_bytes() {
        assert_eq!(texts(b"a\0b\xff\xfec\x08d\x1b"), ["abcd"]);
        assert_eq!(texts(b"\x1b[\x1b[31"), [""]);
    }

    #[test]
    fn marks_source_code_in_a_traceback() {
        let raw = b"  File \"a.py\", line 3, in f\n    raise RuntimeError(\"CUDA error: x\")\nRuntimeError: y";
        let code: Vec<bool> = lines(raw, 1).iter().map(|l| l.is_code).collect();
        assert_eq!(code, [false, true, false]);
    }
}
