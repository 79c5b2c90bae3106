//! Fits text into a fixed number of terminal columns.

use std::borrow::Cow;

use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

/// Returns the number of columns of `text`.
pub fn columns(text: &str) -> usize {
    if text.is_ascii() { text.len() } else { text.width() }
}

/// Truncates `text` to at most `width` columns. Truncated text ends with `ellipsis`, which is one column wide.
pub fn fit<'t>(text: &'t str, width: usize, ellipsis: &str) -> Cow<'t, str> {
    if columns(text) <= width {
        return Cow::Borrowed(text);
    }
    let mut fitting = String::new();
    let mut used = 0;
    for grapheme in text.graphemes(true) {
        let more = grapheme.width();
        if used + more + 1 > width {
            break;
        }
        fitting.push_str(grapheme);
        used += more;
    }
    if width > 0 {
        fitting.push_str(ellipsis);
    }
    Cow::Owned(fitting)
}

/// Returns the beginning of a text, up to the last end of a clause that fits: `No free block fits 2.00 GiB`. Returns the whole
/// text if it fits or if its first clause does not.
pub fn whole_clauses(text: &str, width: usize) -> &str {
    let ends = [": ", "; ", ", and "].into_iter().flat_map(|mark| text.match_indices(mark));
    let ends = ends.map(|(at, _)| at).filter(|at| columns(&text[..*at]) <= width);
    match ends.max() {
        Some(at) if columns(text) > width => &text[..at],
        _ => text,
    }
}

/// Truncates `text` to at most `width` columns, like [`fit`], but in the middle instead of at the end.
pub fn fit_middle<'t>(text: &'t str, width: usize, ellipsis: &str) -> Cow<'t, str> {
    if columns(text) <= width || width == 0 {
        return fit(text, width, ellipsis);
    }
    let max_tail = (width - 1) / 2;
    let (mut tail, mut used) = (text.len(), 0);
    for (at, grapheme) in text.grapheme_indices(true).rev() {
        used += grapheme.width();
        if used > max_tail {
            break;
        }
        tail = at;
    }
    let tail = &text[tail..];
    let head = fit(text, width - columns(tail), ellipsis);
    Cow::Owned(format!("{head}{tail}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_ends_after_a_whole_clause_if_one_fits() {
        let text = "No block fits 2.00 GiB: 8.02 GiB is cached, in pieces, and 1.06 GiB is free.";
        assert_eq!(whole_clauses(text, 80), text);
        assert_eq!(
            whole_clauses(text, 60),
            "No block fits 2.00 GiB: 8.02 GiB is cached, in pieces"
        );
        assert_eq!(whole_clauses(text, 40), "No block fits 2.00 GiB");
        assert_eq!(whole_clauses(text, 10), text);
    }

    #[test]
    fn never_cuts_wide_characters() {
        assert_eq!(fit("train.py", 8, "…"), "train.py");
        assert_eq!(fit("train.py", 5, "…"), "trai…");
        assert_eq!(fit("数据集训练", 5, "…"), "数据…");
        assert_eq!(fit("abc", 0, "…"), "");
        assert_eq!(fit_middle("train.py", 8, "…"), "train.py");
        assert_eq!(fit_middle("model.weight", 7, "…"), "mod…ght");
        assert_eq!(fit_middle("数据集训练", 7, "…"), "数据…练");
        assert_eq!(fit_middle("abc", 1, "…"), "…");
        assert_eq!(fit_middle("abc", 0, "…"), "");
    }
}
