//! Joins the log lines of one writer into a text, undoes line wrapping where that is certain, and maps offsets in the
//! text back to lines.

use std::collections::HashMap;

use crate::text::log_line::LogLine;

/// Widths in characters at which terminals and e-mail programs wrap lines, even inside words.
const USUAL_WIDTHS: &[usize] = &[76, 78, 79, 80, 100, 120, 132, 160, 200, 238, 240];

/// Minimum length of a line to be treated as wrapped by a terminal.
const MIN_WIDTH: usize = 60;

/// Text printed by one writer within an excerpt.
#[derive(Debug, Clone, Default)]
pub struct Flow {
    /// Process or rank that printed the text. Empty if unknown.
    pub writer: String,
    pub text: String,
    /// Offset of each line in `text`, and the line's index in the excerpt.
    starts: Vec<(usize, usize)>,
}

impl Flow {
    /// Returns the index of the line that contains byte offset `at`.
    #[must_use]
    pub fn line_at(&self, at: usize) -> usize {
        let after = self.starts.partition_point(|&(start, _)| start <= at);
        self.starts.get(after.saturating_sub(1)).map_or(0, |s| s.1)
    }

    /// Returns the start offset of the line that contains byte offset `at`.
    #[must_use]
    pub fn line_start(&self, at: usize) -> usize {
        let after = self.starts.partition_point(|&(start, _)| start <= at);
        self.starts.get(after.saturating_sub(1)).map_or(0, |s| s.0)
    }

    /// Returns the indices of the lines that begin at or before byte offset `at`, in reverse order.
    pub fn lines_back_from(&self, at: usize) -> impl Iterator<Item = usize> {
        let after = self.starts.partition_point(|&(start, _)| start <= at);
        self.starts[..after].iter().rev().map(|&(_, line)| line)
    }

    /// Returns the lines of the text as (index in the excerpt, offset in the text).
    pub fn lines(&self) -> impl Iterator<Item = (usize, usize)> {
        self.starts.iter().map(|&(start, line)| (line, start))
    }
}

/// Returns one flow per writer, in the order of their first lines.
#[must_use]
pub fn flows(lines: &[LogLine]) -> Vec<Flow> {
    let width = wrap_width(lines);
    let writers = writers(lines, width);
    let nexts = nexts(lines, &writers);
    let mut numbers: HashMap<&str, usize> = HashMap::new();
    let mut flows: Vec<Flow> = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let at = *numbers.entry(writers[index]).or_insert_with(|| {
            flows.push(Flow { writer: writers[index].to_owned(), ..Flow::default() });
            flows.len() - 1
        });
        let flow = &mut flows[at];
        flow.starts.push((flow.text.len(), index));
        if !line.is_code {
            flow.text.push_str(&line.text);
        }
        // Drop the text of source code lines, but keep their entries in `starts`.
        let next = nexts[index].map(|next| &lines[next]);
        let continues = !line.is_code && next.is_some_and(|next| continues(line, next, width));
        if !continues {
            flow.text.push('\n');
        } else if line.cut_at_blank {
            flow.text.push(' ');
        }
    }
    flows
}

fn writers(lines: &[LogLine], width: Option<usize>) -> Vec<&str> {
    let mut writers: Vec<&str> = Vec::with_capacity(lines.len());
    for (index, line) in lines.iter().enumerate() {
        let before = index.checked_sub(1).map(|i| (&lines[i], writers[i]));
        // The continuation of a wrapped line has no prefix, so it belongs to the previous line's writer.
        let wrapped = before.filter(|(before, _)| width == Some(before.width));
        let writer = match wrapped.filter(|_| line.writer.is_empty()) {
            Some((_, writer)) => writer,
            None => &line.writer,
        };
        writers.push(writer);
    }
    writers
}

/// Returns, for each line, the index of the next line from the same writer or an unknown writer.
fn nexts(lines: &[LogLine], writers: &[&str]) -> Vec<Option<usize>> {
    let mut nexts = vec![None; lines.len()];
    let mut next_of: HashMap<&str, usize> = HashMap::new();
    for (index, line) in lines.iter().enumerate().rev() {
        let own = next_of.get(writers[index]).copied();
        let unnamed = next_of.get("").copied();
        nexts[index] = own.into_iter().chain(unnamed).min();
        next_of.insert(&line.writer, index);
    }
    nexts
}

/// Returns the width at which the excerpt's lines were wrapped, or `None` if they were not wrapped.
fn wrap_width(lines: &[LogLine]) -> Option<usize> {
    let widest = lines.iter().map(|line| line.width).max()?;
    let full = lines.iter().filter(|line| line.width == widest).count();
    (widest >= MIN_WIDTH && (full >= 2 || USUAL_WIDTHS.contains(&widest))).then_some(widest)
}

/// Returns true if the terminal wrapped `line`, so that `next` is its continuation.
fn continues(line: &LogLine, next: &LogLine, width: Option<usize>) -> bool {
    width == Some(line.width)
        && !line.text.is_empty()
        && !next.text.is_empty()
        && !line.is_padded
        // Table rows and lines from many threads can also fill the width, but they were not wrapped. Such lines begin
        // with the same text.
        && line.text.get(..6) != next.text.get(..6)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str, writer: &str) -> LogLine {
        LogLine {
            text: text.to_owned(),
            writer: writer.to_owned(),
            width: text.len(),
            ..LogLine::default()
        }
    }

    #[test]
    fn separates_writers_and_maps_offsets_to_lines() {
        let lines = [line("a1", "a"), line("b1", "b"), line("a2", "a")];
        let flows = flows(&lines);
        assert_eq!(flows.len(), 2);
        assert_eq!(flows[0].text, "a1\na2\n");
        assert_eq!(flows[0].line_at(4), 2);
        assert_eq!(flows[0].line_start(4), 3);
    }

    #[test]
    fn joins_words_that_the_terminal_wrapped() {
        let cut = format!("{}alloc", "x".repeat(75));
        let flows = flows(&[line(&cut, ""), line("ate 2 GiB", "")]);
        assert!(flows[0].text.contains("allocate 2 GiB"));
    }

    #[test]
    fn does_not_join_equally_long_lines_with_the_same_start() {
        let one = format!("Loss.cu:1: {}a", "x".repeat(70));
        let flows = flows(&[line(&one, ""), line(&one, "")]);
        assert_eq!(flows[0].text.lines().count(), 2);
    }
}
