//! A card's Markdown for a terminal: paragraphs and lists wrapped, code and tables as they are.

use std::fmt::Write as _;

use crate::export::explanation::wrapped;

/// `text` in lines of `width` cells.
pub(super) fn prose(text: &str, width: usize) -> String {
    let mut out = String::new();
    let mut paragraph = String::new();
    let mut is_code = false;
    for line in text.lines() {
        let is_fence = line.trim_start().starts_with("```");
        if is_fence || is_code || line.starts_with('|') || line.starts_with('#') || line.is_empty()
        {
            close(&mut out, &mut paragraph, width);
            is_code ^= is_fence;
            match line.trim_start_matches('#') {
                _ if is_fence => {}
                _ if is_code => {
                    let _ = writeln!(out, "{line}");
                }
                heading => {
                    let _ = writeln!(out, "{}", heading.trim_start());
                }
            }
            continue;
        }
        // Each item of a list is a paragraph of its own.
        if mark(line).is_some() {
            close(&mut out, &mut paragraph, width);
        }
        // Weight is a matter of a screen's own style.
        paragraph.push_str(&line.replace("**", ""));
        paragraph.push(' ');
    }
    close(&mut out, &mut paragraph, width);
    out
}

fn close(out: &mut String, paragraph: &mut String, width: usize) {
    let mark = mark(paragraph).unwrap_or_default();
    let mut lead = mark.to_owned();
    for line in wrapped(
        &paragraph[mark.len()..],
        width.saturating_sub(mark.len()).max(20),
    ) {
        let _ = writeln!(out, "{lead}{line}");
        lead = " ".repeat(mark.len());
    }
    paragraph.clear();
}

/// `- ` or `1. ` with what indents it.
fn mark(line: &str) -> Option<&str> {
    let text = line.trim_start();
    let indent = line.len() - text.len();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(0);
    let length = if text.starts_with("- ") || text.starts_with("* ") {
        2
    } else if digits > 0 && text[digits..].starts_with(". ") {
        digits + 2
    } else {
        return None;
    };
    Some(&line[..indent + length])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_are_wrapped_and_code_is_not() {
        let text = "## Head\n\n**one** two three four five\n- four five six seven\n  eight\n\n```sh\na  b c d e f g\n```\n| a | b | c | d | e |";
        let shown = "Head\n\none two three four\nfive\n- four five six seven\n  eight\n\na  b c d e f g\n| a | b | c | d | e |\n";
        assert_eq!(prose(text, 22), shown);
    }
}
