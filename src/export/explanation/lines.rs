//! Wraps text at spaces to a width in terminal cells.

use unicode_width::UnicodeWidthStr;

/// Wraps `text` to `width`. A word that is wider than `width` gets a line of its own.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.width() + 1 + word.width() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Appends `text` after `label`, which is padded to `indent` cells. Further lines are indented by the same amount.
pub(super) fn labelled(out: &mut String, label: &str, text: &str, indent: usize, width: usize) {
    let mut label = format!("{label:<indent$}");
    for line in wrapped(text, width.saturating_sub(indent).max(16)) {
        out.push_str(&label);
        out.push_str(&line);
        out.push('\n');
        label = " ".repeat(indent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wraps_at_blanks_and_keeps_long_words_whole() {
        assert_eq!(wrapped("a bb  ccc dddddddd", 6), ["a bb", "ccc", "dddddddd"]);
        assert_eq!(wrapped("", 6), [""; 0]);
    }
}
