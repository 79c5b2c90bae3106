//! Formats a log message with annotations under its parts, as compilers do with a source line.

use gputop_model::incident::Quote;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Maximum length of unlabelled text to show in full. Longer text is shortened in the middle.
const MAX_UNLABELLED: usize = 90;
/// Number of characters to show before and after an omission.
const CONTEXT: usize = 34;
/// Number of characters to show before the first label and after the last label.
const EDGE_CONTEXT: usize = 120;
const OMISSION: &str = " [...] ";

/// A row of the quoted message, or a row of annotations under the previous row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum QuoteRow {
    Text(String),
    Annotation(String),
}

/// Formats `quote` as rows of at most `width` cells, unless a label needs more.
pub(super) fn rows(quote: &Quote, width: usize) -> Vec<QuoteRow> {
    let flat = Flat::of(quote).shortened();
    let mut rows = Vec::new();
    for (start, end) in flat.lines(width) {
        rows.push(QuoteRow::Text(flat.chars[start..end].iter().collect()));
        let annotations = flat.annotations(start, end, width).into_iter();
        rows.extend(annotations.map(QuoteRow::Annotation));
    }
    rows
}

/// A message as one line of characters. Label positions are character offsets.
struct Flat {
    chars: Vec<char>,
    labels: Vec<(usize, usize, String)>,
}

impl Flat {
    /// Flattens a message. Each run of white space becomes one space.
    fn of(quote: &Quote) -> Self {
        let mut chars: Vec<char> = Vec::new();
        let mut places = Vec::with_capacity(quote.text.len());
        for (at, c) in quote.text.char_indices() {
            places.resize(at, chars.len());
            places.push(chars.len());
            if !c.is_whitespace() {
                chars.push(c);
            } else if chars.last().is_some_and(|last| *last != ' ') {
                chars.push(' ');
            }
        }
        let place = |at: usize| places.get(at).copied().unwrap_or(chars.len());
        let labels = quote.labels.iter().map(|l| (place(l.start), place(l.end), l.says.clone()));
        let labels = labels.filter(|(start, end, _)| start < end).collect();
        Self { chars, labels }
    }

    /// Omits the middle of long text that has no labels.
    fn shortened(self) -> Self {
        if self.labels.is_empty() {
            return self;
        }
        let mut out = Self { chars: Vec::new(), labels: Vec::new() };
        let mut at = 0;
        for (start, end, annotation) in &self.labels {
            if *start < at {
                continue;
            }
            out.push_shortened(
                &self.chars[at..*start],
                if at == 0 { (0, EDGE_CONTEXT) } else { (CONTEXT, CONTEXT) },
            );
            let from = out.chars.len();
            out.chars.extend(&self.chars[*start..*end]);
            out.labels.push((from, out.chars.len(), annotation.clone()));
            at = *end;
        }
        let rest = &self.chars[at..];
        out.push_shortened(rest, (EDGE_CONTEXT, 0));
        out
    }

    fn push_shortened(&mut self, text: &[char], (first, last): (usize, usize)) {
        if text.len() <= MAX_UNLABELLED.max(first + last) {
            self.chars.extend(text);
            return;
        }
        // Omit only whole words.
        let first = (0..=first).rev().find(|&i| text[i] == ' ').unwrap_or(0);
        let last =
            (text.len() - last..text.len()).find(|&i| text[i] == ' ').map_or(text.len(), |i| i + 1);
        self.chars.extend(&text[..first]);
        self.chars.extend(OMISSION.chars().skip(usize::from(self.chars.is_empty())));
        self.chars.extend(&text[last..]);
    }

    /// Returns the start and end of each line as character offsets.
    fn lines(&self, width: usize) -> Vec<(usize, usize)> {
        let mut lines = Vec::new();
        let (mut start, mut cells, mut blank) = (0, 0, None);
        let mut at = 0;
        while at < self.chars.len() {
            let c = self.chars[at];
            cells += c.width().unwrap_or(0);
            if c == ' ' {
                blank = Some(at);
            }
            if cells > width && at > start {
                let end = blank.filter(|&b| b > start).unwrap_or(at);
                lines.push((start, end));
                start = if self.chars[end] == ' ' { end + 1 } else { end };
                at = start;
                (cells, blank) = (0, None);
                continue;
            }
            at += 1;
        }
        if start < self.chars.len() {
            lines.push((start, self.chars.len()));
        }
        lines
    }

    /// Returns the annotations under a line, in as many rows as needed to keep the labels apart.
    fn annotations(&self, start: usize, end: usize, width: usize) -> Vec<String> {
        let mut rows: Vec<String> = Vec::new();
        for (first, last, annotation) in &self.labels {
            if *first < start || *first >= end {
                continue;
            }
            let column: usize = cells(&self.chars[start..*first]);
            let carets = cells(&self.chars[*first..(*last).min(end)]).max(1);
            // Put the annotation before the carets if there is not enough room on the right.
            let after = format!("{} {annotation}", "^".repeat(carets));
            let (column, mark) = if column + after.width() <= width
                || column < annotation.width() + 1
            {
                (column, after)
            } else {
                (column - annotation.width() - 1, format!("{annotation} {}", "^".repeat(carets)))
            };
            // Leave a gap between annotations, because adjacent ones would look like one.
            let is_free = |row: &String| row.width() + 3 <= column || row.is_empty();
            let free = rows.iter().position(is_free).unwrap_or_else(|| {
                rows.push(String::new());
                rows.len() - 1
            });
            let row = &mut rows[free];
            row.push_str(&" ".repeat(column - row.width().min(column)));
            row.push_str(&mark);
        }
        rows
    }
}

fn cells(chars: &[char]) -> usize {
    chars.iter().map(|c| c.width().unwrap_or(0)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gputop_model::incident::Label;

    fn quote(text: &str, labels: &[(&str, &str)]) -> Quote {
        let labels = labels.iter().map(|(part, annotation)| {
            let start = text.find(part).expect("part of the text");
            Label { start, end: start + part.len(), says: (*annotation).to_owned() }
        });
        Quote { text: text.to_owned(), labels: labels.collect() }
    }

    fn printed(quote: &Quote, width: usize) -> String {
        let rows = rows(quote, width).into_iter().map(|row| match row {
            QuoteRow::Text(text) | QuoteRow::Annotation(text) => text + "\n",
        });
        rows.collect()
    }

    #[test]
    fn annotations_are_under_their_part() {
        let quote = quote(
            "Tried to allocate 2.00 GiB. 1.06 GiB\n is free.",
            &[("2.00 GiB", "wanted"), ("1.06 GiB", "free")],
        );
        assert_eq!(
            printed(&quote, 60),
            "Tried to allocate 2.00 GiB. 1.06 GiB is free.\n                  ^^^^^^^^ wanted\n                            ^^^^^^^^ free\n"
        );
        assert_eq!(
            printed(&quote, 28),
            "Tried to allocate 2.00 GiB.\n           wanted ^^^^^^^^\n1.06 GiB is free.\n^^^^^^^^ free\n"
        );
    }

    #[test]
    fn omits_long_text_without_labels() {
        let text = format!("a 1 {}b 2", "word ".repeat(60));
        let rows = printed(&quote(&text, &[("1", "one"), ("2", "two")]), 200);
        assert!(rows.contains("[...]"), "{rows}");
        assert!(rows.len() < 200, "{rows}");
    }
}
