//! Distinguishes printed errors from text about errors, such as documents, commit titles, test names and source code.
//!
//! A program prints an error at the start of a line, or after a name and a colon. In prose, words precede the error; in
//! source code, quotes and calls surround it. A match is rejected in case of doubt if ordinary prose can contain the
//! signature's words. Matches of other signatures are rejected only in clear cases, such as source code.

use std::ops::Range;

use gputop_model::text::{line_end, slice};

/// Text that precedes an error in source code, in a list or in a command.
const CODE: &[&str] = &[
    "in str(",
    "raise ",
    "print(",
    "printf",
    "assert ",
    "except ",
    "logger.",
    "logging.debug(",
    "logging.info(",
    "logging.warn",
    "logging.error(",
    "logging.exception(",
    "logging.critical(",
    "#define",
    "grep ",
    "git ",
    "echo ",
    "if \"",
    "if '",
    "elif ",
    "return ",
    "pytest.raises",
    "match=",
    "std::cout",
    "std::cerr",
    "std::runtime_error(",
    "TORCH_CHECK",
    "= r'",
    "= r\"",
    "def test_",
    "::test_",
    "warnings.",
    "assertRaises",
    "fn ",
];

/// Words before an error that is only mentioned, not reported: `fixes the error …`, `if you see …`.
const HYPOTHETICAL: &[&str] = &[
    "if you see ",
    "if you get ",
    "when you see ",
    "when you get ",
    "fixes ",
    "fixed the ",
    "fix for ",
    "fix the error ",
    "to avoid ",
    "instead of ",
    "no longer ",
    "an error such as ",
    "errors like ",
    "error like ",
];

/// Words in a table cell that indicate a failed state. A table row with one of these words is program output, not
/// documentation.
const FAILED_STATES: &[&str] = &[
    "UNAVAILABLE",
    "INTERNAL",
    "FAILED",
    "Failed",
    "ERROR",
    "Error:",
    "error:",
    "FATAL",
    "CrashLoopBackOff",
    "failed |",
];

/// Prefixes that mark a line as part of a document, patch or list. An error on such a line is a quotation and is
/// ignored.
const LISTED: &[&str] = &["- ", "* ", "+ ", "@@ ", "diff ", "commit ", "* [", "1. "];

/// Number of bytes to read before and after a match. A line can be very long and contain thousands of matches.
const MAX_BESIDE: usize = 4096;

/// Returns true if a program printed the matched text as an error. `at` is the range of the match, and `line` is the
/// offset at which its line begins.
#[must_use]
pub fn is_machine_printed(text: &str, line: usize, at: Range<usize>, plain_words: bool) -> bool {
    let before = slice(text, line.max(at.start.saturating_sub(MAX_BESIDE)), at.start);
    let after_end = line_end(text, at.end).min(at.end + MAX_BESIDE);
    let after = slice(text, at.end, after_end);
    let before = without_traceback(without_test_name(before));
    if CODE.iter().any(|c| before.contains(c))
        || is_comment(before)
        || is_inline_code(before)
        || is_table_row(before, after)
        || is_heading(before) && !is_commented_out(text, line, at.end)
        || is_hypothetical(before)
    {
        return false;
    }
    if !plain_words {
        return true;
    }
    let trimmed = before.trim_start();
    if LISTED.iter().any(|l| trimmed.starts_with(l)) || is_commit(trimmed) {
        return false;
    }
    !is_quoted(trimmed, after) && !is_sentence(trimmed)
}

/// Removes a traceback that lost its line breaks, because its source code is not a document about the error.
fn without_traceback(before: &str) -> &str {
    match before.matches("File \"").count() {
        0 | 1 => before,
        _ => before.rsplit(' ').next().unwrap_or_default(),
    }
}

/// Removes the name of the test from a line of pytest's summary: `FAILED tests/a.py::test_b - RuntimeError: …`.
fn without_test_name(before: &str) -> &str {
    let line = before.trim_start();
    let is_summary = line.starts_with("FAILED ") || line.starts_with("ERROR ");
    match line.split_once(" - ") {
        Some((name, error)) if is_summary && name.contains("::") => error,
        _ => before,
    }
}

/// Returns true if the match is in a source code comment. A `//` in an address or a path does not begin a comment.
fn is_comment(before: &str) -> bool {
    let mut starts = before.match_indices("//").map(|(at, _)| &before[..at]);
    starts.any(|code| code.is_empty() || code.ends_with([' ', '\t', ';', '{', '}']))
}

fn is_inline_code(before: &str) -> bool {
    before.bytes().filter(|&b| b == b'`').count() % 2 == 1
}

/// Returns true if the match is in a table row of a document: `| text | text |`. Rows that show a failed state are
/// program output: `| densenet | 1 | UNAVAILABLE: Internal: … |`.
fn is_table_row(before: &str, after: &str) -> bool {
    let sides = |text: &str| text.matches(" | ").count() + text.matches("|").count().min(1);
    let is_row = before.trim_start().starts_with('|') && sides(before) + sides(after) >= 2;
    let shows_failure = |text: &str| FAILED_STATES.iter().any(|state| text.contains(state));
    is_row && !shows_failure(before)
}

/// Returns true if the previous or next line also begins with `#`, as in a log that was copied into a comment.
fn is_commented_out(text: &str, line: usize, end: usize) -> bool {
    let previous = text.get(..line).and_then(|text| text.lines().next_back());
    let next = text.get(line_end(text, end)..).and_then(|text| text.lines().nth(1));
    let is_comment = |line: &str| line.starts_with('#');
    previous.is_some_and(is_comment) || next.is_some_and(is_comment)
}

fn is_heading(before: &str) -> bool {
    let text = before.trim_start();
    let level = text.bytes().take_while(|&b| b == b'#').count();
    (1..=4).contains(&level) && text[level..].starts_with(' ')
}

/// Returns true if the words before the match show that the error is only mentioned, not reported.
fn is_hypothetical(before: &str) -> bool {
    let mut before = before.trim_end();
    while let Some((rest, name)) = before.strip_suffix(':').and_then(|b| b.rsplit_once(' '))
        && name.ends_with("Error")
    {
        before = rest.trim_end();
    }
    // Check only the words after the last colon or period, because a printed error can follow a colon: `When you see
    // the traceback: RuntimeError: …`.
    let sentence = before.rsplit([':', '.']).next().unwrap_or_default().to_ascii_lowercase() + " ";
    HYPOTHETICAL.iter().any(|words| sentence.contains(words))
}

/// Returns true if the match is quoted in prose: `fix "out of memory" in …`.
fn is_quoted(before: &str, after: &str) -> bool {
    let Some(open) = before.chars().next_back().filter(|c| "\"'`(".contains(*c)) else {
        return false;
    };
    // JSON and Python reprs contain whole messages: `"message": "CUDA error…`, `RuntimeError('CUDA error…`.
    let whole = before.ends_with(": \"") || before.ends_with("=\"") || before.ends_with("Error(\"");
    // A Rust error with the name of its CUDA code: `DriverError(CUDA_ERROR_UNKNOWN, "unknown error")`.
    let whole = whole || before.ends_with("Error(");
    let whole = whole
        || before.ends_with("Error('")
        || before.ends_with(":\"")
        || before.ends_with("failure '");
    let close = if open == '(' { ')' } else { open };
    !whole && after.contains(close)
}

/// Returns true if the match follows ordinary words, without a colon, bracket or other separator between them.
fn is_sentence(before: &str) -> bool {
    let tail = before.rsplit([':', ']', '|', '>', ';', '=', '!']).next().unwrap_or_default();
    // Count only lowercase words, because a progress bar or another rank's line can precede the match without a line
    // break.
    let words = tail
        .split_whitespace()
        .filter(|w| w.chars().all(|c| c.is_ascii_lowercase() || "',-".contains(c)));
    words.count() >= 2
}

/// Returns true if the line is a commit title: `3f9c2ab fix …`.
fn is_commit(before: &str) -> bool {
    before.split_whitespace().next().is_some_and(|word| {
        (7..=40).contains(&word.len())
            && word.bytes().all(|b| b.is_ascii_hexdigit())
            && word.bytes().any(|b| b.is_ascii_digit())
            && word.bytes().any(|b| b.is_ascii_alphabetic())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(line: &str, words: &str) -> bool {
        let at = line.find(words).expect("part of the line");
        is_machine_printed(line, 0, at..at + words.len(), true)
    }

    #[test]
    fn distinguishes_errors_from_text_about_errors() {
        let words = "CUDA error: out of memory";
        for line in [
            "RuntimeError: CUDA error: out of memory",
            "CUDA error: out of memory",
            "  what():  CUDA error: out of memory",
            "An error occurred during training: CUDA error: out of memory",
            "{\"message\": \"CUDA error: out of memory\"}",
            "RuntimeError('CUDA error: out of memory')",
            "Error: DriverError(CUDA error: out of memory)",
            "src/logging.h:304: Check failed: CUDA error: out of memory",
            "step 3 [12:00:00] CUDA error: out of memory",
            "| densenet_onnx | 1 | UNAVAILABLE: Internal: CUDA error: out of memory |",
            "| train-0 | Failed | CUDA error: out of memory |",
            "job,7,failed,CUDA error: out of memory",
            "tcp://10.0.0.1:29500: CUDA error: out of memory",
            "File \"a.py\", line 2, in f return g() File \"b.py\", line 7, in g raise E(text) RuntimeError: CUDA error: out of memory",
        ] {
            assert!(printed(line, words), "{line}");
        }
        for line in [
            "if you see CUDA error: out of memory lower the batch",
            "- CUDA error: out of memory is now caught",
            "3f9c2ab Handle CUDA error: out of memory",
            "    if \"CUDA error: out of memory\" in str(e):",
            "we call it `CUDA error: out of memory` here",
            "step(); // CUDA error: out of memory",
            "| 2 | CUDA error: out of memory | no memory |",
            "tests/test_oom.py::test_x[CUDA error: out of memory] PASSED",
            "# CUDA error: out of memory after an update",
            "This release fixes CUDA error: out of memory in the loader",
            "When you get CUDA error: out of memory",
            "    logging.error(\"CUDA error: out of memory\")",
            "If you see RuntimeError: CUDA error: out of memory, use less",
        ] {
            assert!(!printed(line, words), "{line}");
        }
    }

    #[test]
    fn accepts_offsets_inside_a_character() {
        let text = "CUDA error: é\nnext";
        for end in 0..=text.len() + 2 {
            let _ = is_machine_printed(text, 0, end.saturating_sub(1)..end, true);
        }
    }
}
