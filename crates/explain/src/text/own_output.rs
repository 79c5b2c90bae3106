//! Removes explanations that gputop itself printed into a log. `gputop run` explains a failure below the program's
//! output and quotes the message. If the explanation were not removed, a diagnosis of that log would find the failure
//! twice.
//!
//! ```text
//! FRAGMENTED MEMORY  GPU 0                     oom-fragmentation   headline … card, then a sentence
//! No free block is large enough for 2.00 GiB, although 8.02 GiB is cached in smaller blocks.
//!
//! FIX   1  Let segments grow so that free blocks merge:            sections: a name or blanks in six cells
//! PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True                 only text to copy begins its line
//!
//! LOG   train.log:812
//!       torch.OutOfMemoryError: CUDA out of memory. …
//! ```

/// Column at which the text of an explanation's section begins.
const INDENT: usize = 6;
/// Words that begin a section of an explanation. The second line lists the names printed by older versions, which saved
/// logs still contain.
const SECTIONS: [&str; 12] = [
    "FIX", "AVOID", "WHY", "CHECK", "LOG", "WHERE", "THEN", //
    "DO", "NOT", "NEED", "SAID", "AT",
];
const MAX_INTRODUCTION: usize = 12;

/// A non-blank line with its line number.
type Numbered<'a> = (u64, &'a str);

/// Removes the lines of gputop's explanations. `numbered` returns a line's number and text.
pub(super) fn remove_explanations<L>(lines: &mut Vec<L>, numbered: impl Fn(&L) -> Numbered<'_>) {
    let texts: Vec<Numbered<'_>> = lines.iter().map(numbered).collect();
    let mut is_ours = vec![false; lines.len()];
    let mut at = 0;
    while at < texts.len() {
        let length = length(&texts[at..]).unwrap_or(0);
        is_ours[at..at + length].fill(true);
        at += length.max(1);
    }
    let mut is_ours = is_ours.into_iter();
    lines.retain(|_| !is_ours.next().unwrap_or(false));
}

/// Returns the number of lines of the explanation that begins at the first line, or `None` if none begins there.
fn length(lines: &[Numbered<'_>]) -> Option<usize> {
    let (_, first) = lines.first()?;
    let sections = if is_headline(first) {
        let mut gaps = lines.windows(2).take(MAX_INTRODUCTION).map(|pair| is_gap(pair[0], pair[1]));
        gaps.position(|is_gap| is_gap)? + 1
    } else {
        // The log excerpt may begin in the middle of an explanation.
        begins_excerpt(lines).then_some(0)?
    };
    section(lines.get(sections)?.1)?;
    let mut is_fix = false;
    for at in sections..lines.len() {
        is_fix &= !is_gap(lines[at.saturating_sub(1)], lines[at]);
        match section(lines[at].1) {
            Some(section) => is_fix = matches!(section, "FIX" | "DO"),
            None if is_fix || lines[at].1.starts_with(&" ".repeat(INDENT)) => {}
            None => return Some(at),
        }
    }
    Some(lines.len())
}

/// Returns true if the first line is the heading of the log excerpt in an explanation. Any program may print a line
/// that begins with `LOG`, so an indented line must follow.
fn begins_excerpt(lines: &[Numbered<'_>]) -> bool {
    let [(_, first), (_, second), ..] = lines else {
        return false;
    };
    matches!(section(first), Some("LOG" | "SAID")) && second.starts_with(&" ".repeat(INDENT))
}

/// Returns true if there are blank lines between `before` and `line`.
fn is_gap(before: Numbered<'_>, line: Numbered<'_>) -> bool {
    line.0 > before.0 + 1
}

/// Returns the name of the section that begins with this line: `WHY` for `WHY   likely     …`.
fn section(text: &str) -> Option<&str> {
    let (word, rest) = text.split_at_checked(INDENT)?;
    let word = word.trim_end();
    let is_one = SECTIONS.contains(&word) && !word.starts_with(' ');
    // Require a space after the name, and text at the section's column.
    (is_one && text[word.len()..].starts_with(' ') && !rest.starts_with("    ")).then_some(word)
}

/// Returns true for a line with an upper-case headline on the left and a card ID on the right.
fn is_headline(text: &str) -> bool {
    let Some((left, card)) = text.trim_end().rsplit_once("  ") else {
        return false;
    };
    let headline = left.split("  ").next().unwrap_or_default();
    headline.chars().filter(|c| c.is_uppercase()).count() > 1
        && headline.chars().all(|c| !c.is_lowercase() && !c.is_control())
        && card.starts_with(|c: char| c.is_ascii_lowercase())
        && card.contains('-')
        && card.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remaining(text: &str) -> Vec<&str> {
        let lines = (1..).zip(text.lines());
        let mut lines: Vec<Numbered<'_>> = lines.filter(|(_, text)| !text.is_empty()).collect();
        remove_explanations(&mut lines, |line| *line);
        lines.into_iter().map(|(_, text)| text).collect()
    }

    const OURS: &str = "OUT OF MEMORY  GPU 0        oom-capacity\nIt did not fit.\n\nFIX   1  take less:\n\
        python train.py --batch 1\n\nLOG   train.log:1\n      CUDA out of memory.\n           ^^^ full\n";

    #[test]
    fn removes_explanations_and_keeps_other_lines() {
        let log = format!("before\n\n{OURS}after\n{OURS}\n\nat the end");
        assert_eq!(remaining(&log), ["before", "after", "at the end"]);
        let without_excerpt = OURS.split_once("LOG ").map_or("", |(ours, _)| ours);
        let log = format!("{without_excerpt}\nCUDA error: 7\n      indented");
        assert_eq!(remaining(&log), ["CUDA error: 7", "      indented"]);
    }

    #[test]
    fn removes_the_excerpt_of_an_explanation_without_its_start() {
        let (_, end) = OURS.split_once("\n\nLOG ").unwrap_or_default();
        let log = format!("python train.py --batch 1\n\nLOG {end}after");
        assert_eq!(remaining(&log), ["python train.py --batch 1", "after"]);
    }

    #[test]
    fn removes_explanations_with_the_old_section_names() {
        let old = OURS.replace("FIX  ", "DO   ").replace("LOG  ", "SAID ");
        assert_ne!(old, OURS);
        let log = format!("before\n\n{old}after");
        assert_eq!(remaining(&log), ["before", "after"]);
        let (_, end) = old.split_once("\n\nSAID").unwrap_or_default();
        assert_eq!(remaining(&format!("SAID{end}after")), ["after"]);
    }

    #[test]
    fn keeps_similar_lines() {
        for log in [
            "TRAINING  GPU 0        oom-capacity\nloss 0.1\n\nCUDA error: 7",
            "TRAINING  GPU 0        oom-capacity\nFIX   nothing\nCUDA error: 7",
            "LOG   CUDA error: 7",
            "LOG   CUDA error: 7\nloss 0.1",
            "SAIDso\n      indented",
            "WHERE train.py:57",
        ] {
            let lines: Vec<&str> = log.lines().filter(|line| !line.is_empty()).collect();
            assert_eq!(remaining(log), lines);
        }
    }
}
