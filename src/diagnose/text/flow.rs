//! The lines of one writer as one text, with wraps taken back where they are certain, and the way back to the lines.

use std::collections::HashMap;

use super::LogLine;

/// Widths at which terminals and e-mail programs cut a word in two.
const USUAL_WIDTHS: &[usize] = &[76, 78, 79, 80, 100, 120, 132, 160, 200, 238, 240];

/// A line shorter than this was not wrapped by a terminal.
const MIN_WIDTH: usize = 60;

/// What one writer printed in an excerpt.
#[derive(Debug, Clone, Default)]
pub struct Flow {
    pub text: String,
    /// Where each line begins in `text`, and its index among the excerpt's lines.
    starts: Vec<(usize, usize)>,
}

impl Flow {
    /// The index of the line that holds byte `at`.
    #[must_use]
    pub fn line_at(&self, at: usize) -> usize {
        let after = self.starts.partition_point(|&(start, _)| start <= at);
        self.starts.get(after.saturating_sub(1)).map_or(0, |s| s.1)
    }

    /// Where the line that holds byte `at` begins in the text.
    #[must_use]
    pub fn line_start(&self, at: usize) -> usize {
        let after = self.starts.partition_point(|&(start, _)| start <= at);
        self.starts.get(after.saturating_sub(1)).map_or(0, |s| s.0)
    }

    /// The lines that begin at byte `at` or before, the last first: their indices in the excerpt.
    pub fn lines_back_from(&self, at: usize) -> impl Iterator<Item = usize> {
        let after = self.starts.partition_point(|&(start, _)| start <= at);
        self.starts[..after].iter().rev().map(|&(_, line)| line)
    }

    /// The lines that the text came from, as (index in the excerpt, where it begins in the text).
    pub fn lines(&self) -> impl Iterator<Item = (usize, usize)> {
        self.starts.iter().map(|&(start, line)| (line, start))
    }
}

/// One flow for each writer, in the order of their first lines.
#[must_use]
pub fn flows(lines: &[LogLine]) -> Vec<Flow> {
    let width = wrap_width(lines);
    let writers = writers(lines, width);
    let nexts = nexts(lines, &writers);
    let mut numbers: HashMap<&str, usize> = HashMap::new();
    let mut flows: Vec<Flow> = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let at = *numbers.entry(writers[index]).or_insert_with(|| {
            flows.push(Flow::default());
            flows.len() - 1
        });
        let flow = &mut flows[at];
        flow.starts.push((flow.text.len(), index));
        if !line.is_code {
            flow.text.push_str(&line.text);
        }
        // The words of a line of code go, the line stays.
        let next = nexts[index].map(|next| &lines[next]);
        let goes_on = !line.is_code && next.is_some_and(|next| goes_on(line, next, width));
        if !goes_on {
            flow.text.push('\n');
        } else if line.cut_at_blank {
            flow.text.push(' ');
        }
    }
    flows
}

/// Returns who wrote each line.
fn writers(lines: &[LogLine], width: Option<usize>) -> Vec<&str> {
    let mut writers: Vec<&str> = Vec::with_capacity(lines.len());
    for (index, line) in lines.iter().enumerate() {
        let before = index.checked_sub(1).map(|i| (&lines[i], writers[i]));
        // What a terminal wrapped has no prefix of its own.
        let rest_of = before.filter(|(before, _)| width == Some(before.width));
        let writer = match rest_of.filter(|_| line.writer.is_empty()) {
            Some((_, writer)) => writer,
            None => &line.writer,
        };
        writers.push(writer);
    }
    writers
}

/// Returns for each line the next one that its writer, or nobody known, began.
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

/// The width at which this excerpt was cut, if it was.
fn wrap_width(lines: &[LogLine]) -> Option<usize> {
    let widest = lines.iter().map(|line| line.width).max()?;
    let full = lines.iter().filter(|line| line.width == widest).count();
    (widest >= MIN_WIDTH && (full >= 2 || USUAL_WIDTHS.contains(&widest))).then_some(widest)
}

/// Whether the terminal cut `line`, so that it goes on in `next`.
fn goes_on(line: &LogLine, next: &LogLine, width: Option<usize>) -> bool {
    width == Some(line.width)
        && !line.text.is_empty()
        && !next.text.is_empty()
        && !line.is_padded
        // Lines of a table or of many threads are equally long and begin alike.
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
    fn writers_are_kept_apart_and_the_way_back_is_known() {
        let lines = [line("a1", "a"), line("b1", "b"), line("a2", "a")];
        let flows = flows(&lines);
        assert_eq!(flows.len(), 2);
        assert_eq!(flows[0].text, "a1\na2\n");
        assert_eq!(flows[0].line_at(4), 2);
        assert_eq!(flows[0].line_start(4), 3);
    }

    #[test]
    fn a_word_that_the_terminal_cut_is_whole_again() {
        let cut = format!("{}alloc", "x".repeat(75));
        let flows = flows(&[line(&cut, ""), line("ate 2 GiB", "")]);
        assert!(flows[0].text.contains("allocate 2 GiB"));
    }

    #[test]
    fn equally_long_lines_that_begin_alike_stay_lines() {
        let one = format!("Loss.cu:1: {}a", "x".repeat(70));
        let flows = flows(&[line(&one, ""), line(&one, "")]);
        assert_eq!(flows[0].text.lines().count(), 2);
    }
}
