//! Whether words that look like an error were printed by one: documents, commit titles, test names and source text
//! say the same words.
//!
//! A machine prints an error at the beginning of a line, or after a name and a colon. Prose has words before it,
//! source text has quotes and calls around it. What is doubtful is refused where a signature is made of plain words;
//! a signature with figures in it is refused only where it stands in source text.

use std::ops::Range;

use crate::model::text::{line_end, slice};

/// What stands before an error in source text, in a list or in a command.
const CODE: &[&str] = &[
    "in str(",
    "raise ",
    "print(",
    "printf",
    "assert ",
    "except ",
    "logger.",
    "logging.",
    "#define",
    "//",
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

/// How a line of a document, a patch or a list begins.
const LISTED: &[&str] = &[
    "- ", "* ", "+ ", "# ", "## ", "### ", "| ", "@@ ", "diff ", "commit ", "* [", "1. ",
];

/// Text read on each side of a match: lines can be very long, and hold thousands of matches.
const MAX_BESIDE: usize = 4096;

/// Whether the match `at`, on the line that begins at `line`, was printed as an error.
#[must_use]
pub fn is_machine_printed(text: &str, line: usize, at: Range<usize>, plain_words: bool) -> bool {
    let before = slice(
        text,
        line.max(at.start.saturating_sub(MAX_BESIDE)),
        at.start,
    );
    let after_end = line_end(text, at.end).min(at.end + MAX_BESIDE);
    let after = slice(text, at.end, after_end);
    if CODE.iter().any(|c| before.contains(c))
        || is_inline_code(before)
        || is_table_row(before, after)
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

/// Markdown: within `…`.
fn is_inline_code(before: &str) -> bool {
    before.bytes().filter(|&b| b == b'`').count() % 2 == 1
}

/// `| text | text |`, as documents have.
fn is_table_row(before: &str, after: &str) -> bool {
    let sides = |text: &str| text.matches(" | ").count() + text.matches("|").count().min(1);
    before.trim_start().starts_with('|') && sides(before) + sides(after) >= 2
}

/// `fix "out of memory" in …`: the words are named, not said.
fn is_quoted(before: &str, after: &str) -> bool {
    let Some(open) = before.chars().next_back().filter(|c| "\"'`(".contains(*c)) else {
        return false;
    };
    // JSON and reprs hold whole messages: `"message": "CUDA error…`, `RuntimeError('CUDA error…`.
    let whole = before.ends_with(": \"") || before.ends_with("=\"") || before.ends_with("Error(\"");
    let whole = whole
        || before.ends_with("Error('")
        || before.ends_with(":\"")
        || before.ends_with("failure '");
    let close = if open == '(' { ')' } else { open };
    !whole && after.contains(close)
}

/// Words run up to the match without a colon, a bracket or a dash that would end a prefix.
fn is_sentence(before: &str) -> bool {
    let tail = before
        .rsplit([':', ']', '|', '>', ';', '=', '!'])
        .next()
        .unwrap_or_default();
    // A bar or another rank's line may stand before it without a break.
    let words = tail.split_whitespace().filter(|w| {
        w.chars()
            .all(|c| c.is_ascii_lowercase() || "',-".contains(c))
    });
    words.count() >= 2
}

/// `3f9c2ab fix …`.
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
        let at = line.find(words).expect("the words are there");
        is_machine_printed(line, 0, at..at + words.len(), true)
    }

    #[test]
    fn errors_are_told_from_talk_about_them() {
        let words = "CUDA error: out of memory";
        for line in [
            "RuntimeError: CUDA error: out of memory",
            "CUDA error: out of memory",
            "  what():  CUDA error: out of memory",
            "An error occurred during training: CUDA error: out of memory",
            "{\"message\": \"CUDA error: out of memory\"}",
            "RuntimeError('CUDA error: out of memory')",
            "step 3 [12:00:00] CUDA error: out of memory",
        ] {
            assert!(printed(line, words), "{line}");
        }
        for line in [
            "if you see CUDA error: out of memory lower the batch",
            "- CUDA error: out of memory is now caught",
            "3f9c2ab Handle CUDA error: out of memory",
            "    if \"CUDA error: out of memory\" in str(e):",
            "we call it `CUDA error: out of memory` here",
            "| 2 | CUDA error: out of memory | no memory |",
            "tests/test_oom.py::test_x[CUDA error: out of memory] PASSED",
        ] {
            assert!(!printed(line, words), "{line}");
        }
    }

    #[test]
    fn offsets_inside_a_character_are_moved() {
        let text = "CUDA error: é\nnext";
        for end in 0..=text.len() + 2 {
            let _ = is_machine_printed(text, 0, end.saturating_sub(1)..end, true);
        }
    }
}
