//! Finds literals that a text must contain for a regular expression to match.
//!
//! Compiling all signatures costs more than reading a short log. Building a search for their literals is cheap, and the
//! search selects the few expressions that can match.

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Hir, HirKind};

/// Minimum length of a literal in bytes. Shorter literals occur in every text.
const MIN_LENGTH: usize = 4;
/// Maximum number of alternative literals of an expression. With more, the filter is useless.
const MAX_ALTERNATIVES: usize = 48;

/// Returns literals such that every match of `expression` contains at least one of them, or `None` if no useful
/// literals exist.
#[must_use]
pub fn needles(expression: &str) -> Option<Vec<Vec<u8>>> {
    let mut parser = ParserBuilder::new();
    parser.unicode(false).utf8(false).multi_line(true);
    let hir = parser.build().parse(expression).ok()?;
    required(&hir).filter(|all| shortest(all) >= MIN_LENGTH)
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
}
