//! Finds literals that a text must contain for a regular expression to match.
//!
//! Compiling all signatures takes longer than reading a short log. A search for their literals is fast to build, and
//! its hits show which few expressions need to be compiled.

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Hir, HirKind};

/// Minimum length of a literal in bytes. Shorter literals occur in almost every text.
const MIN_LENGTH: usize = 4;
/// Maximum number of alternative literals of an expression. With more alternatives, almost every text contains one.
const MAX_ALTERNATIVES: usize = 48;

/// Maximum number of literals in each set returned by [`further_needles`].
const MAX_FURTHER_ALTERNATIVES: usize = 8;

/// Returns literals such that every match of `expression` contains at least one of them, or `None` if no useful
/// literals exist.
#[must_use]
pub fn needles(expression: &str) -> Option<Vec<Vec<u8>>> {
    required(&parsed(expression)?).filter(|all| shortest(all) >= MIN_LENGTH)
}

/// Returns further sets of literals. Every match of `expression` contains at least one literal of each set.
#[must_use]
pub fn further_needles(expression: &str) -> Vec<Vec<Vec<u8>>> {
    let Some(hir) = parsed(expression) else {
        return Vec::new();
    };
    let best = required(&hir);
    let mut sets = Vec::new();
    collect_required(&hir, &mut sets);
    let is_useful =
        |set: &Vec<Vec<u8>>| shortest(set) >= MIN_LENGTH && set.len() <= MAX_FURTHER_ALTERNATIVES;
    sets.retain(|set| is_useful(set) && Some(set) != best.as_ref());
    sets.dedup();
    sets
}

fn parsed(expression: &str) -> Option<Hir> {
    let mut parser = ParserBuilder::new();
    parser.unicode(false).utf8(false).multi_line(true);
    parser.build().parse(expression).ok()
}

/// Adds one set of literals for each required part of the expression.
fn collect_required(hir: &Hir, sets: &mut Vec<Vec<Vec<u8>>>) {
    match hir.kind() {
        HirKind::Capture(capture) => collect_required(&capture.sub, sets),
        HirKind::Repetition(repetition) if repetition.min > 0 => {
            collect_required(&repetition.sub, sets);
        }
        HirKind::Concat(parts) => parts.iter().for_each(|part| collect_required(part, sets)),
        _ => sets.extend(required(hir)),
    }
}

fn required(hir: &Hir) -> Option<Vec<Vec<u8>>> {
    match hir.kind() {
        HirKind::Literal(literal) => Some(vec![literal.0.to_vec()]),
        HirKind::Capture(capture) => required(&capture.sub),
        HirKind::Repetition(repetition) if repetition.min > 0 => required(&repetition.sub),
        HirKind::Concat(parts) => {
            let sets = parts.iter().filter_map(required);
            sets.max_by_key(|set| (shortest(set), std::cmp::Reverse(set.len())))
        }
        HirKind::Alternation(alternatives) => {
            let sets: Option<Vec<_>> = alternatives.iter().map(required).collect();
            let all: Vec<Vec<u8>> = sets?.into_iter().flatten().collect();
            (all.len() <= MAX_ALTERNATIVES).then_some(all)
        }
        _ => None,
    }
}

fn shortest(set: &[Vec<u8>]) -> usize {
    set.iter().map(Vec::len).min().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(expression: &str) -> Option<Vec<String>> {
        let text = |needle: Vec<u8>| String::from_utf8(needle).expect("text");
        needles(expression).map(|all| all.into_iter().map(text).collect())
    }

    #[test]
    fn returns_the_longest_required_literal() {
        assert_eq!(of(r"CUDA\s+error: (?<x>\w+)"), Some(vec!["error: ".into()]));
        assert_eq!(
            of(r"(?:hipError|cudaError)\w+"),
            Some(vec!["hipError".into(), "cudaError".into()])
        );
        assert_eq!(of(r"(?:Killed)?\d+"), None);
        assert_eq!(of(r"\d+ of \d"), Some(vec![" of ".into()]));
    }

    #[test]
    fn returns_the_literals_of_all_required_parts() {
        let sets = further_needles(r"launch failed (?:CUDA|HIP1)\s+error(?: code)?");
        let sets: Vec<Vec<&[u8]>> =
            sets.iter().map(|set| set.iter().map(Vec::as_slice).collect()).collect();
        assert_eq!(sets, [vec![&b"CUDA"[..], b"HIP1"], vec![b"error"]]);
    }
}
