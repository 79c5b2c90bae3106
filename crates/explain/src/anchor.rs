//! Derives the anchors of the cards: literals such that every text that matches a signature contains one of them. Only the
//! build script uses this module, so it must not depend on other modules.
//!
//! The anchors of a signature are the spellings of the required part that is rarest in prose and ordinary log lines. All
//! together, they are too many for a fast search. A [`Search`] is a short text that many anchors contain; where it is found,
//! the anchors are compared.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use regex_syntax::ParserBuilder;
use regex_syntax::hir::literal::{ExtractKind, Extractor, Seq};
use regex_syntax::hir::{Hir, HirKind};

/// Minimum and maximum length of an anchor in bytes. An anchor can be split across two pieces of a log. The maximum is the
/// same in `scan.rs`, which the build script does not contain; a test of `scan` checks that all anchors fit.
const MIN_ANCHOR: usize = 4;
pub const MAX_ANCHOR: usize = 32;
/// Maximum number of anchors of one expression.
const MAX_ANCHORS: usize = 64;
/// Maximum number of consecutive parts of an expression that are combined.
const MAX_PARTS: usize = 6;
/// Lengths of the texts to search for. The vector search compares four bytes at once.
const SEARCH_LENGTHS: std::ops::RangeInclusive<usize> = 4..=6;
/// Number of hits in the prose that cost as much as another text to search for.
const HITS_PER_SEARCH: usize = 40;

type Literal = Vec<u8>;

/// A text to search for, and the anchors that contain it, each with the offset of the text.
#[derive(Debug, PartialEq, Eq)]
pub struct Search {
    pub text: Literal,
    pub anchors: Vec<(usize, Literal)>,
}

/// Returns the anchors of an expression in which a space is a space, or `None` if it requires no literals.
pub fn anchors(expression: &str, prose: &[u8]) -> Option<Vec<Literal>> {
    let mut parser = ParserBuilder::new();
    parser.unicode(false).utf8(false).multi_line(true);
    best(&parser.build().parse(expression).ok()?, prose)
}

/// Returns the literals of the rarest required part.
fn best(hir: &Hir, prose: &[u8]) -> Option<Vec<Literal>> {
    let rarity = |set: &Vec<Literal>| {
        let hits: usize = set.iter().map(|literal| count(prose, literal)).sum();
        let shortest = set.iter().map(Vec::len).min().unwrap_or(0).min(16);
        (hits, set.len().div_ceil(shortest), set.len())
    };
    candidates(hir, prose).into_iter().min_by_key(rarity)
}

fn candidates(hir: &Hir, prose: &[u8]) -> Vec<Vec<Literal>> {
    let mut sets: Vec<Vec<Literal>> = affixes(hir).collect();
    match hir.kind() {
        HirKind::Capture(capture) => sets.extend(candidates(&capture.sub, prose)),
        HirKind::Repetition(repetition) if repetition.min > 0 => {
            sets.extend(candidates(&repetition.sub, prose));
        }
        HirKind::Concat(parts) => {
            for at in 0..parts.len() {
                // Fewer parts have fewer spellings.
                let ends = at + 1..=parts.len().min(at + MAX_PARTS);
                sets.extend(ends.flat_map(|end| {
                    affixes(&Hir::concat(parts[at..end].to_vec())).collect::<Vec<_>>()
                }));
                sets.extend(candidates(&parts[at], prose));
            }
        }
        HirKind::Alternation(alternatives) => {
            let all: Option<Vec<_>> = alternatives.iter().map(|hir| best(hir, prose)).collect();
            let all: Option<BTreeSet<Literal>> = all.map(|all| all.into_iter().flatten().collect());
            sets.extend(all.map(|all| all.into_iter().collect()));
        }
        _ => {}
    }
    sets
}

/// Returns literals such that every match begins with one of them, and such that every match ends with one of them.
fn affixes(hir: &Hir) -> impl Iterator<Item = Vec<Literal>> {
    [ExtractKind::Prefix, ExtractKind::Suffix].into_iter().filter_map(|kind| affix(hir, kind))
}

fn affix(hir: &Hir, kind: ExtractKind) -> Option<Vec<Literal>> {
    let mut extractor = Extractor::new();
    extractor.kind(kind);
    extractor.limit_class(10).limit_repeat(4).limit_literal_len(MAX_ANCHOR).limit_total(256);
    let found: Seq = extractor.extract(hir);
    let all: BTreeSet<Literal> =
        found.literals()?.iter().map(|l| within_line(l.as_bytes())).collect();
    let all = in_usual_case(&all);
    let is_useful = all.iter().all(|literal| literal.len() >= MIN_ANCHOR);
    (is_useful && !all.is_empty() && all.len() <= MAX_ANCHORS).then_some(all)
}

/// Returns the longest part of a literal that is within one line.
fn within_line(literal: &[u8]) -> Literal {
    literal.split(|byte| *byte == b'\n').max_by_key(|line| line.len()).unwrap_or_default().to_vec()
}

/// Drops spellings such as `eXit`, of which an expression that ignores case has very many.
fn in_usual_case(all: &BTreeSet<Literal>) -> Vec<Literal> {
    let mut spellings: BTreeMap<Literal, Vec<&Literal>> = BTreeMap::new();
    for literal in all {
        spellings.entry(literal.to_ascii_lowercase()).or_default().push(literal);
    }
    // Words begin with a capital letter, or all letters are capital.
    let is_usual = |literal: &&Literal| {
        let mut pairs = literal.windows(2);
        **literal == literal.to_ascii_uppercase()
            || !pairs.any(|pair| pair[0].is_ascii_alphanumeric() && pair[1].is_ascii_uppercase())
    };
    let usual = spellings.into_values().flat_map(|same| {
        let is_any = same.len() <= 4;
        same.into_iter().filter(move |literal| is_any || is_usual(literal))
    });
    usual.cloned().collect()
}

fn count(text: &[u8], literal: &[u8]) -> usize {
    memchr::memmem::find_iter(text, literal).count()
}

/// Returns texts such that every anchor contains one of them: few texts, which are rare in the prose.
pub fn searches(anchors: &BTreeSet<Literal>, prose: &[u8]) -> Vec<Search> {
    let contains = |long: &Literal, short: &Literal| {
        long.len() > short.len() && memchr::memmem::find(long, short).is_some()
    };
    let anchors: Vec<&Literal> =
        anchors.iter().filter(|long| !anchors.iter().any(|short| contains(long, short))).collect();
    let users = users(&anchors);
    let hits = hits(&users, prose);
    let mut is_open = vec![true; anchors.len()];
    let open = |text: &Literal, is_open: &[bool]| -> BTreeSet<usize> {
        users[text].iter().copied().filter(|index| is_open[*index]).collect()
    };
    let gain = |text: &Literal, is_open: &[bool]| {
        let hits = hits.get(text.as_slice()).copied().unwrap_or(0);
        open(text, is_open).len() * 1000 * HITS_PER_SEARCH / (HITS_PER_SEARCH + hits)
    };
    // The gain of a text only falls, so the first one whose gain is still right is the best.
    let mut queue: BinaryHeap<(usize, &Literal)> =
        users.keys().map(|text| (gain(text, &is_open), text)).collect();
    let mut chosen: Vec<Search> = Vec::new();
    while let Some((expected, text)) = queue.pop() {
        let now = gain(text, &is_open);
        if now == 0 {
            continue;
        }
        if now < expected {
            queue.push((now, text));
            continue;
        }
        let open = open(text, &is_open);
        let anchor = |index: &usize| {
            let at = memchr::memmem::find(anchors[*index], text).unwrap_or(0);
            (at, anchors[*index].clone())
        };
        chosen.push(Search { text: text.clone(), anchors: open.iter().map(anchor).collect() });
        open.iter().for_each(|index| is_open[*index] = false);
    }
    without_contained(chosen)
}

/// Returns all texts that can be searched for, each with the indices of the anchors that contain it.
fn users(anchors: &[&Literal]) -> BTreeMap<Literal, Vec<usize>> {
    let mut users: BTreeMap<Literal, Vec<usize>> = BTreeMap::new();
    for (index, anchor) in anchors.iter().enumerate() {
        for text in SEARCH_LENGTHS.flat_map(|length| anchor.windows(length)) {
            users.entry(text.to_vec()).or_default().push(index);
        }
    }
    users
}

/// Returns how often each text is in the prose.
fn hits<'p>(users: &BTreeMap<Literal, Vec<usize>>, prose: &'p [u8]) -> BTreeMap<&'p [u8], usize> {
    let mut hits: BTreeMap<&[u8], usize> = BTreeMap::new();
    for text in SEARCH_LENGTHS.flat_map(|length| prose.windows(length)) {
        if users.contains_key(text) {
            *hits.entry(text).or_default() += 1;
        }
    }
    hits
}

/// Leaves out texts that contain another one, because a search reports only one of them. Its anchors become those of the
/// other text.
fn without_contained(mut all: Vec<Search>) -> Vec<Search> {
    all.sort_by_key(|search| search.text.len());
    let mut kept: Vec<Search> = Vec::new();
    for search in all {
        let within = kept.iter_mut().find_map(|short| {
            let at = memchr::memmem::find(&search.text, &short.text)?;
            Some((short, at))
        });
        match within {
            Some((short, at)) => {
                let anchors = search.anchors.into_iter();
                short.anchors.extend(anchors.map(|(offset, anchor)| (offset + at, anchor)));
            }
            None => kept.push(search),
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(expression: &str, prose: &str) -> Vec<String> {
        let text = |anchor: Literal| String::from_utf8(anchor).expect("text");
        anchors(expression, prose.as_bytes()).unwrap_or_default().into_iter().map(text).collect()
    }

    #[test]
    fn chooses_the_part_that_is_rare_in_prose() {
        let expression = r"exit code \d+: (?:bus|segment) fault";
        assert_eq!(of(expression, ""), ["exit code "]);
        assert_eq!(of(expression, "an exit code is a number"), [" fault"]);
        assert_eq!(of(r"(?:[Oo]ut|OUT) of", ""), ["OUT of", "Out of", "out of"]);
        assert_eq!(of(r"(?i:exitcode) \d", ""), ["EXITCODE ", "Exitcode ", "exitcode "]);
        assert_eq!(of(r"(?:Killed)?\d+", ""), [""; 0]);
    }

    #[test]
    fn every_anchor_contains_one_of_the_texts() {
        let all = ["CUDA error: ", "cudaError", "Some error", "Errors"];
        let all: BTreeSet<Literal> = all.iter().map(|text| text.as_bytes().to_vec()).collect();
        let searches = searches(&all, b"");
        let is_at = |search: &Search, (at, anchor): &(usize, Literal)| {
            anchor[*at..].starts_with(&search.text)
        };
        assert!(searches.iter().all(|s| s.anchors.iter().all(|anchor| is_at(s, anchor))));
        let found: BTreeSet<Literal> =
            searches.into_iter().flat_map(|s| s.anchors).map(|(_, anchor)| anchor).collect();
        assert_eq!(found, all);
    }
}
