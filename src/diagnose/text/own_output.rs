//! What gputop itself printed into a log: `gputop run` explains a failure below the program's output, often in the same
//! file, and quotes it there. Whoever reads the log would see the failure twice, the second time in wrapped words.
//!
//! ```text
//! FRAGMENTED MEMORY  GPU 0                     oom-fragmentation   headline … card, then a sentence
//! No free block is large enough for 2.00 GiB, although 8.02 GiB is cached in smaller blocks.
//!
//! FIX   1  Let segments grow so that free blocks merge:            sections: a word in six cells, or six blanks
//! PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True                 only a change begins its line
//!
//! LOG   train.log:812
//!       torch.OutOfMemoryError: CUDA out of memory. …
//! ```

/// Where the text of a section begins.
const INDENT: usize = 6;
/// Words that begin a section. The second line has the names that older versions printed, which saved logs still
/// contain.
const SECTIONS: [&str; 12] = [
    "FIX", "AVOID", "WHY", "CHECK", "LOG", "WHERE", "THEN", //
    "DO", "NOT", "NEED", "SAID", "AT",
];
/// The sentences between headline and sections.
const MAX_SENTENCES: usize = 12;

/// A line that is not blank, and its number.
type Numbered<'a> = (u64, &'a str);

/// Drops the lines that are ours; `of` tells the number and the text of one.
pub(super) fn take_out<L>(lines: &mut Vec<L>, of: impl Fn(&L) -> Numbered<'_>) {
    let numbered: Vec<Numbered<'_>> = lines.iter().map(of).collect();
    let mut is_ours = vec![false; lines.len()];
    let mut at = 0;
    while at < numbered.len() {
        let length = length(&numbered[at..]).unwrap_or(0);
        is_ours[at..at + length].fill(true);
        at += length.max(1);
    }
    let mut is_ours = is_ours.into_iter();
    lines.retain(|_| !is_ours.next().unwrap_or(false));
}

/// How many lines there are of the explanation that begins with the first; `None` where none does.
fn length(lines: &[Numbered<'_>]) -> Option<usize> {
    let (_, first) = lines.first()?;
    let sections = if is_headline(first) {
        let sentences = lines.windows(2).take(MAX_SENTENCES);
        let mut gaps = sentences.map(|pair| is_gap(pair[0], pair[1]));
        gaps.position(|is_gap| is_gap)? + 1
    } else {
        // The beginning may not have been read.
        begins_excerpt(lines).then_some(0)?
    };
    section(lines.get(sections)?.1)?;
    let mut is_change = false;
    for at in sections..lines.len() {
        is_change &= !is_gap(lines[at.saturating_sub(1)], lines[at]);
        match section(lines[at].1) {
            Some(section) => is_change = matches!(section, "FIX" | "DO"),
            None if is_change || lines[at].1.starts_with(&" ".repeat(INDENT)) => {}
            None => return Some(at),
        }
    }
    Some(lines.len())
}

/// Returns true if the first line is the heading of a log excerpt. `LOG` may begin a line of any program, so an
/// indented line must follow.
fn begins_excerpt(lines: &[Numbered<'_>]) -> bool {
    let [(_, first), (_, second), ..] = lines else {
        return false;
    };
    matches!(section(first), Some("LOG" | "SAID")) && second.starts_with(&" ".repeat(INDENT))
}

/// Whether blank lines stood between.
fn is_gap(before: Numbered<'_>, line: Numbered<'_>) -> bool {
    line.0 > before.0 + 1
}

/// `WHY` of `WHY   likely     idle memory …`.
fn section(text: &str) -> Option<&str> {
    let (word, rest) = text.split_at_checked(INDENT)?;
    let word = word.trim_end();
    let is_one = SECTIONS.contains(&word) && !word.starts_with(' ');
    // What ends the cells is a blank; behind them is something.
    (is_one && text[word.len()..].starts_with(' ') && !rest.starts_with("    ")).then_some(word)
}

/// Capitals at the left, a card's name at the right.
fn is_headline(text: &str) -> bool {
    let Some((left, card)) = text.trim_end().rsplit_once("  ") else {
        return false;
    };
    let headline = left.split("  ").next().unwrap_or_default();
    let is_capital = |c: char| !c.is_lowercase() && !c.is_control();
    headline.chars().filter(|c| c.is_uppercase()).count() > 1
        && headline.chars().all(is_capital)
        && card.starts_with(|c: char| c.is_ascii_lowercase())
        && card.contains('-')
        && card
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is left of the lines, numbered as in a file.
    fn left(text: &str) -> Vec<&str> {
        let lines = (1..).zip(text.lines());
        let mut lines: Vec<Numbered<'_>> = lines.filter(|(_, text)| !text.is_empty()).collect();
        take_out(&mut lines, |line| *line);
        lines.into_iter().map(|(_, text)| text).collect()
    }

    const OURS: &str = "OUT OF MEMORY  GPU 0        oom-capacity\nIt did not fit.\n\nFIX   1  take less:\n\
        python train.py --batch 1\n\nLOG   train.log:1\n      CUDA out of memory.\n           ^^^ full\n";

    #[test]
    fn an_explanation_goes_and_what_stands_around_it_stays() {
        let log = format!("before\n\n{OURS}after\n{OURS}\n\nat the end");
        assert_eq!(left(&log), ["before", "after", "at the end"]);
        let without_quotation = OURS.split_once("LOG ").map_or("", |(ours, _)| ours);
        let log = format!("{without_quotation}\nCUDA error: 7\n      indented");
        assert_eq!(left(&log), ["CUDA error: 7", "      indented"]);
    }

    #[test]
    fn of_one_that_was_read_from_its_middle_the_quotation_goes() {
        let (_, end) = OURS.split_once("\n\nLOG ").unwrap_or_default();
        let log = format!("python train.py --batch 1\n\nLOG {end}after");
        assert_eq!(left(&log), ["python train.py --batch 1", "after"]);
    }

    /// The explanation above as older versions printed it.
    #[test]
    fn removes_explanations_with_the_old_section_names() {
        let old = OURS.replace("FIX  ", "DO   ").replace("LOG  ", "SAID ");
        assert_ne!(old, OURS);
        let log = format!("before\n\n{old}after");
        assert_eq!(left(&log), ["before", "after"]);
        let (_, end) = old.split_once("\n\nSAID").unwrap_or_default();
        assert_eq!(left(&format!("SAID{end}after")), ["after"]);
    }

    #[test]
    fn what_only_looks_alike_stays() {
        for log in [
            "TRAINING  GPU 0        oom-capacity\nloss 0.1\n\nCUDA error: 7",
            "TRAINING  GPU 0        oom-capacity\nFIX   nothing\nCUDA error: 7",
            "LOG   CUDA error: 7",
            "LOG   CUDA error: 7\nloss 0.1",
            "SAIDso\n      indented",
            "WHERE train.py:57",
        ] {
            let lines: Vec<&str> = log.lines().filter(|line| !line.is_empty()).collect();
            assert_eq!(left(log), lines);
        }
    }
}
