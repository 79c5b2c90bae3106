//! Renders a card's Markdown for a terminal. Wraps paragraphs and lists, and leaves code and tables unchanged.

use std::fmt::Write as _;

use crate::export::explanation::wrapped;

/// Renders Markdown, wrapped to `width` cells.
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
        // Treat each list item as a paragraph.
        if marker(line).is_some() {
            close(&mut out, &mut paragraph, width);
        }
        paragraph.push_str(&without_bold(line));
        paragraph.push(' ');
    }
    close(&mut out, &mut paragraph, width);
    out
}

/// Removes the markers of bold text, which the output does not support. Code may contain the same characters.
fn without_bold(line: &str) -> String {
    let parts = line.split('`').enumerate().map(|(at, part)| match at % 2 {
        0 => part.replace("**", ""),
        _ => part.to_owned(),
    });
    parts.collect::<Vec<_>>().join("`")
}

fn close(out: &mut String, paragraph: &mut String, width: usize) {
    let marker = marker(paragraph).unwrap_or_default();
    let mut lead = marker.to_owned();
    for line in wrapped(&paragraph[marker.len()..], width.saturating_sub(marker.len()).max(20)) {
        let _ = writeln!(out, "{lead}{line}");
        lead = " ".repeat(marker.len());
    }
    paragraph.clear();
}

/// Returns a line's list marker with its indentation: `- ` or `1. `.
fn marker(line: &str) -> Option<&str> {
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
    fn wraps_paragraphs_but_not_code() {
        let text = "## Head\n\n**one** `2**3` three four five\n- four five six seven\n  eight\n\n```sh\na  b c d e f g\n```\n| a | b | c | d | e |";
        let shown = "Head\n\none `2**3` three four\nfive\n- four five six seven\n  eight\n\na  b c d e f g\n| a | b | c | d | e |\n";
        assert_eq!(prose(text, 22), shown);
    }
}
