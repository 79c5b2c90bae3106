//! Text broken at blanks into lines of a width in cells.

use unicode_width::UnicodeWidthStr;

/// The lines of `text`, none wider than `width` but for a word that is.
#[must_use]
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

/// `text` after `label`, its lines under each other; the label is padded to `indent` cells.
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
    fn lines_end_at_blanks_and_long_words_stay_whole() {
        assert_eq!(
            wrapped("a bb  ccc dddddddd", 6),
            ["a bb", "ccc", "dddddddd"]
        );
        assert_eq!(wrapped("", 6), [""; 0]);
    }
}
