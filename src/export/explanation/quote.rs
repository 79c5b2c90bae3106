//! A message with a few words under its parts, wrapped to a width: what a compiler does with a line of source.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::model::incident::Quote;

/// Text without a label on it longer than this is left out in its middle.
const GAP: usize = 90;
/// What is kept of such text on each side.
const KEPT: usize = 34;
/// Text before the first label and after the last.
const EDGE: usize = 120;
const LEFT_OUT: &str = " [...] ";

/// A line of the quotation, or what stands under the one before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Row {
    Said(String),
    Under(String),
}

/// The rows of `quote`, none wider than `width` cells but for labels that need it.
#[must_use]
pub fn rows(quote: &Quote, width: usize) -> Vec<Row> {
    let flat = Flat::of(quote).shortened();
    let mut rows = Vec::new();
    for (start, end) in flat.lines(width) {
        rows.push(Row::Said(flat.chars[start..end].iter().collect()));
        rows.extend(flat.under(start, end, width).into_iter().map(Row::Under));
    }
    rows
}

/// The message as one line of characters; labels by character.
struct Flat {
    chars: Vec<char>,
    labels: Vec<(usize, usize, String)>,
}

impl Flat {
    /// Runs of white space are one blank.
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
        let labels = quote
            .labels
            .iter()
            .map(|l| (place(l.start), place(l.end), l.says.clone()));
        let labels = labels.filter(|(start, end, _)| start < end).collect();
        Self { chars, labels }
    }

    /// Without the middle of long stretches that no label is about.
    fn shortened(self) -> Self {
        if self.labels.is_empty() {
            return self;
        }
        let mut out = Self {
            chars: Vec::new(),
            labels: Vec::new(),
        };
        let mut at = 0;
        for (start, end, says) in &self.labels {
            if *start < at {
                continue;
            }
            out.stretch(
                &self.chars[at..*start],
                if at == 0 { (0, EDGE) } else { (KEPT, KEPT) },
            );
            let from = out.chars.len();
            out.chars.extend(&self.chars[*start..*end]);
            out.labels.push((from, out.chars.len(), says.clone()));
            at = *end;
        }
        let rest = &self.chars[at..];
        out.stretch(rest, (EDGE, 0));
        out
    }

    fn stretch(&mut self, text: &[char], (first, last): (usize, usize)) {
        if text.len() <= GAP.max(first + last) {
            self.chars.extend(text);
            return;
        }
        // Whole words only.
        let first = (0..=first).rev().find(|&i| text[i] == ' ').unwrap_or(0);
        let last = (text.len() - last..text.len())
            .find(|&i| text[i] == ' ')
            .map_or(text.len(), |i| i + 1);
        self.chars.extend(&text[..first]);
        self.chars
            .extend(LEFT_OUT.chars().skip(usize::from(self.chars.is_empty())));
        self.chars.extend(&text[last..]);
    }

    /// (first, end) of each line.
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

    /// What stands under the line, in as many rows as it takes for no label to touch another.
    fn under(&self, start: usize, end: usize, width: usize) -> Vec<String> {
        let mut rows: Vec<String> = Vec::new();
        for (first, last, says) in &self.labels {
            if *first < start || *first >= end {
                continue;
            }
            let column: usize = cells(&self.chars[start..*first]);
            let carets = cells(&self.chars[*first..(*last).min(end)]).max(1);
            // Too far right for its words: they stand before the carets.
            let after = format!("{} {says}", "^".repeat(carets));
            let (column, mark) = if column + after.width() <= width || column < says.width() + 1 {
                (column, after)
            } else {
                (
                    column - says.width() - 1,
                    format!("{says} {}", "^".repeat(carets)),
                )
            };
            // Two labels side by side read as one.
            let is_free = |row: &String| row.width() + 3 <= column || row.is_empty();
            let free = rows.iter().position(is_free);
            let free = free.unwrap_or_else(|| {
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
    use crate::model::incident::Label;

    fn quote(text: &str, labels: &[(&str, &str)]) -> Quote {
        let labels = labels.iter().map(|(part, says)| {
            let start = text.find(part).expect("the part is there");
            Label {
                start,
                end: start + part.len(),
                says: (*says).to_owned(),
            }
        });
        Quote {
            text: text.to_owned(),
            labels: labels.collect(),
        }
    }

    fn printed(quote: &Quote, width: usize) -> String {
        let rows = rows(quote, width).into_iter().map(|row| match row {
            Row::Said(text) | Row::Under(text) => text + "\n",
        });
        rows.collect()
    }

    #[test]
    fn words_stand_under_their_part() {
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
    fn long_stretches_that_nothing_is_said_about_are_left_out() {
        let text = format!("a 1 {}b 2", "word ".repeat(60));
        let rows = printed(&quote(&text, &[("1", "one"), ("2", "two")]), 200);
        assert!(rows.contains("[...]"), "{rows}");
        assert!(rows.len() < 200, "{rows}");
    }
}
