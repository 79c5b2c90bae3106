//! Finds the cards' signatures in a text: first searches for all literals, then evaluates only the expressions that can
//! match.

use std::collections::{BTreeSet, HashMap};
use std::sync::OnceLock;

use aho_corasick::{AhoCorasick, AhoCorasickKind};
use gputop_model::text::slice;
use memchr::memmem;
use regex::bytes::{Captures, Regex, RegexBuilder};
use serde::Deserialize;

use super::card::{Card, FieldReach, Signature};
use super::expression::expanded;
use super::fields::{self, FieldMap};
use super::needle::{further_needles, needles};
use super::printed_error;
use super::text::Flow;

/// Maximum number of bytes after a signature to treat as part of its message.
const MESSAGE_REACH: usize = 2048;
/// Number of bytes after a signature that are searched for the `unless` expressions.
const UNLESS_REACH: usize = 400;
/// Maximum number of matches of a signature in an excerpt. A failing GPU kernel prints a line for each thread.
const MAX_MATCHES: usize = 20_000;

/// A card's regular expression, compiled at first use. Most are never needed, and compiling all would delay short logs.
#[derive(Debug, Deserialize)]
#[serde(from = "String")]
pub struct Pattern {
    /// The pattern as written in the card. It is expanded only when the expression is compiled, because most patterns
    /// are never used.
    written: String,
    /// Literals of which every match contains at least one. Searching for them avoids most compilations.
    needles: OnceLock<Option<Vec<Vec<u8>>>>,
    compiled: OnceLock<Option<Regex>>,
}

impl From<String> for Pattern {
    fn from(written: String) -> Self {
        Self { written, needles: OnceLock::new(), compiled: OnceLock::new() }
    }
}

impl Pattern {
    /// Creates a pattern from a card's expression, where a space matches any white space, and `{SIZE}` matches a number
    /// with its unit.
    #[must_use]
    pub fn new(written: &str) -> Self {
        Self::from(written.to_owned())
    }

    /// Compiles the expression and returns the compiler's error, if any.
    pub fn check(&self) -> Result<(), regex::Error> {
        builder(&expanded(&self.written)).build().map(drop)
    }

    fn regex(&self) -> Option<&Regex> {
        let compiled = || builder(&expanded(&self.written)).build().ok();
        self.compiled.get_or_init(compiled).as_ref()
    }

    /// Returns false if no literal of the expression is in the text. The expression then cannot match.
    fn may_match(&self, text: &str) -> bool {
        let needles = self.needles.get_or_init(|| needles(&expanded(&self.written)));
        let contains = |needle: &Vec<u8>| memmem::find(text.as_bytes(), needle).is_some();
        needles.as_ref().is_none_or(|all| all.iter().any(contains))
    }

    #[must_use]
    pub fn is_in(&self, text: &str) -> bool {
        self.may_match(text) && self.regex().is_some_and(|r| r.is_match(text.as_bytes()))
    }

    /// Returns the fields of the pattern's first match.
    #[must_use]
    pub fn groups(&self, text: &str) -> Option<FieldMap> {
        if !self.may_match(text) {
            return None;
        }
        let captures = self.regex()?.captures(text.as_bytes())?;
        Some(named(self.regex()?, &captures).0)
    }
}

/// A signature or an extraction rule, with its card.
#[derive(Debug)]
struct Rule {
    card: usize,
    pattern: Pattern,
    unless: Vec<Pattern>,
    unless_later: Vec<Pattern>,
    plain_words: bool,
    weak: bool,
    /// Literals from the build script. An empty list means that the expression has no required literals.
    needles: Option<Vec<String>>,
    /// Further sets of literals, from other required parts of the expression. Every match contains at least one literal
    /// of each set.
    further_needles: Vec<Vec<Vec<u8>>>,
}

impl Rule {
    /// Returns true if `text` contains at least one literal of every set in `further_needles`.
    fn has_further_needles(&self, text: &[u8]) -> bool {
        let contains = |literal: &Vec<u8>| memmem::find(text, literal).is_some();
        self.further_needles.iter().all(|set| set.iter().any(contains))
    }
}

#[derive(Debug)]
pub struct Signatures {
    rules: Vec<Rule>,
    extracts: Vec<Vec<(Pattern, FieldReach)>>,
    filter: OnceLock<Filter>,
}

/// Selects the rules that can match a text, by searching for the literals that each rule requires.
#[derive(Debug)]
struct Filter {
    search: Option<AhoCorasick>,
    /// For each literal, the index of its rule.
    rules: Vec<usize>,
    /// Indices of rules without a required literal.
    always: Vec<usize>,
}

impl Filter {
    fn of(rules: &[Rule]) -> Self {
        let mut literals = Vec::new();
        let mut filter = Self { search: None, rules: Vec::new(), always: Vec::new() };
        for (index, rule) in rules.iter().enumerate() {
            let known = rule
                .needles
                .as_ref()
                .map(|all| all.iter().map(|n| n.clone().into_bytes()).collect());
            let needles = known
                .or_else(|| needles(&expanded(&rule.pattern.written)))
                .filter(|all: &Vec<_>| !all.is_empty());
            match needles {
                Some(needles) => {
                    filter.rules.extend(needles.iter().map(|_| index));
                    literals.extend(needles);
                }
                None => filter.always.push(index),
            }
        }
        // Use the automaton that is fastest to build, because build time matters more than search speed for short
        // texts.
        let mut search = AhoCorasick::builder();
        filter.search = search.kind(Some(AhoCorasickKind::NoncontiguousNFA)).build(&literals).ok();
        filter
    }

    /// Returns the indices of rules that can match, in card order.
    fn candidates(&self, text: &[u8]) -> BTreeSet<usize> {
        let mut candidates: BTreeSet<usize> = self.always.iter().copied().collect();
        if let Some(search) = &self.search {
            let found = search.find_overlapping_iter(text);
            candidates.extend(found.map(|m| self.rules[m.pattern().as_usize()]));
        }
        candidates
    }
}

/// Returns the further literals of a signature. Computes them for cards that the build script did not process.
fn further_literals(signature: &Signature) -> Vec<Vec<Vec<u8>>> {
    if signature.needles.is_none() {
        return further_needles(&expanded(&signature.r#match));
    }
    let bytes = |set: &Vec<String>| set.iter().map(|text| text.clone().into_bytes()).collect();
    signature.further_needles.iter().map(bytes).collect()
}

#[derive(Debug, Clone, PartialEq)]
pub struct Match {
    pub card: usize,
    pub weak: bool,
    /// Byte offset of the match in its flow's text.
    pub start: usize,
    pub end: usize,
    pub found: FieldMap,
    /// Byte range of each field.
    pub places: Vec<(String, std::ops::Range<usize>)>,
}

impl Signatures {
    #[must_use]
    pub fn new(cards: &[Card]) -> Self {
        let mut rules = Vec::new();
        for (card, from) in cards.iter().enumerate() {
            for signature in &from.signatures {
                rules.push(Rule {
                    card,
                    pattern: Pattern::new(&signature.r#match),
                    unless: signature.unless.iter().map(|u| Pattern::new(u)).collect(),
                    unless_later: signature.unless_later.iter().map(|u| Pattern::new(u)).collect(),
                    plain_words: signature.plain_words,
                    weak: signature.weak,
                    needles: signature.needles.clone(),
                    further_needles: further_literals(signature),
                });
            }
        }
        let extracts = cards.iter().map(|card| {
            card.extracts.iter().map(|e| (Pattern::new(&e.r#match), e.reach)).collect()
        });
        Self { rules, extracts: extracts.collect(), filter: OnceLock::new() }
    }

    /// Returns the errors in the cards' expressions as (card, message).
    #[must_use]
    pub fn errors(&self) -> Vec<(usize, String)> {
        let signatures = self.rules.iter().flat_map(|r| {
            let all = std::iter::once(&r.pattern).chain(&r.unless).chain(&r.unless_later);
            all.map(move |pattern| (r.card, pattern))
        });
        let extracts = self.extracts.iter().enumerate();
        let extracts = extracts.flat_map(|(card, all)| all.iter().map(move |(p, _)| (card, p)));
        signatures
            .chain(extracts)
            .filter_map(|(card, pattern)| Some((card, pattern.check().err()?.to_string())))
            .collect()
    }

    /// Returns all matches in `flow` in order. If matches overlap, keeps the one whose card has the lowest `order`.
    /// `untagged` is the text without a writer, which can contain fields of all writers, such as versions.
    #[must_use]
    pub fn matches(&self, flow: &Flow, untagged: Option<&Flow>, cards: &[Card]) -> Vec<Match> {
        let mut matches = Vec::new();
        for index in self.filter().candidates(flow.text.as_bytes()) {
            let rule = &self.rules[index];
            // First search for the further literals, because that is faster than compiling the expression.
            if rule.has_further_needles(flow.text.as_bytes()) {
                self.collect(rule, flow, &mut matches);
            }
        }
        without_overlaps(&mut matches, cards);
        self.extract(flow, untagged, &mut matches);
        matches
    }

    fn collect(&self, rule: &Rule, flow: &Flow, matches: &mut Vec<Match>) {
        let Some(regex) = rule.pattern.regex() else {
            return;
        };
        for captures in regex.captures_iter(flow.text.as_bytes()).take(MAX_MATCHES) {
            let Some(whole) = captures.get(0).filter(|w| !w.is_empty()) else {
                continue;
            };
            let line = flow.line_start(whole.start());
            let near = slice(&flow.text, line, whole.end() + UNLESS_REACH);
            let later = slice(&flow.text, whole.end(), flow.text.len());
            if rule.unless.iter().any(|u| u.is_in(near))
                || rule.unless_later.iter().any(|u| u.is_in(later))
                || !printed_error::is_machine_printed(
                    &flow.text,
                    line,
                    whole.range(),
                    rule.plain_words,
                )
            {
                continue;
            }
            let (found, places) = named(regex, &captures);
            matches.push(Match {
                card: rule.card,
                weak: rule.weak,
                start: whole.start(),
                end: whole.end(),
                found,
                places,
            });
        }
    }

    fn extract(&self, flow: &Flow, untagged: Option<&Flow>, matches: &mut [Match]) {
        let starts: Vec<usize> = matches.iter().map(|m| m.start).collect();
        let mut around: HashMap<(usize, usize), NearbyFields> = HashMap::new();
        for (i, one) in matches.iter_mut().enumerate() {
            // End the message at the next match, because lines from other threads contain no new fields.
            let next_start = starts[i + 1..].first().copied().unwrap_or(usize::MAX);
            let line = flow.line_start(one.start);
            for (index, (pattern, reach)) in self.extracts[one.card].iter().enumerate() {
                match reach {
                    FieldReach::Message => {
                        let to = (one.end + MESSAGE_REACH).min(next_start.max(one.end));
                        one.add(&NearbyFields::read(pattern, slice(&flow.text, line, to), line));
                    }
                    FieldReach::Around => {
                        let read = || {
                            let mut nearby = NearbyFields::read(pattern, &flow.text, 0);
                            let further = untagged.and_then(|flow| pattern.groups(&flow.text));
                            for (name, value) in further.unwrap_or_default() {
                                nearby.found.entry(name).or_insert(value);
                            }
                            nearby
                        };
                        one.add(around.entry((one.card, index)).or_insert_with(read));
                    }
                }
            }
        }
    }

    /// Adds the fields that the extraction rules of `card` find in `text`. Used for a card that was chosen without a
    /// signature match.
    pub fn read_around(&self, card: usize, text: &str, found: &mut FieldMap) {
        for (pattern, _) in &self.extracts[card] {
            for (name, value) in pattern.groups(text).unwrap_or_default() {
                found.entry(name).or_insert(value);
            }
        }
    }

    fn filter(&self) -> &Filter {
        self.filter.get_or_init(|| Filter::of(&self.rules))
    }
}

/// Fields that an extraction rule found near a match. All matches of one writer share their surrounding text, so it is
/// read only once.
#[derive(Default)]
struct NearbyFields {
    found: FieldMap,
    other_processes: Vec<serde_json::Value>,
    places: Places,
}

impl NearbyFields {
    /// Reads fields from `text`, which begins at byte `from` of its flow. Keeps the first occurrence of each field.
    fn read(pattern: &Pattern, text: &str, from: usize) -> Self {
        let mut nearby = Self::default();
        let Some(regex) = pattern.regex() else {
            return nearby;
        };
        for captures in regex.captures_iter(text.as_bytes()).take(64) {
            let (found, places) = named(regex, &captures);
            if let Some(process) = other_process(&found) {
                nearby.other_processes.push(process);
            } else {
                for (name, value) in found {
                    nearby.found.entry(name).or_insert(value);
                }
            }
            for (name, range) in places {
                if !nearby.places.iter().any(|(known, _)| *known == name) {
                    let range = range.start + from..range.end + from;
                    nearby.places.push((name, range));
                }
            }
        }
        nearby
    }
}

impl Match {
    /// Adds fields found near the match. Keeps the values of existing fields; appends to the list of other processes.
    fn add(&mut self, nearby: &NearbyFields) {
        if !nearby.other_processes.is_empty() {
            let others = self.found.entry("other_processes");
            let others = others.or_insert_with(|| Vec::<u8>::new().into());
            if let Some(others) = others.as_array_mut() {
                others.extend(nearby.other_processes.iter().cloned());
            }
        }
        for (name, value) in &nearby.found {
            if !self.found.contains_key(name) {
                self.found.insert(name.clone(), value.clone());
            }
        }
        for (name, range) in &nearby.places {
            if !self.places.iter().any(|(known, _)| known == name) {
                self.places.push((name.clone(), range.clone()));
            }
        }
    }
}

/// Returns the process described by the groups `other_pid` and `other_bytes`.
fn other_process(found: &FieldMap) -> Option<serde_json::Value> {
    let pid = fields::read("pid", found.get("other_pid")?.as_str()?)?;
    let bytes = found.get("other_bytes")?.as_u64()?;
    Some(serde_json::json!({"pid": pid, "bytes": bytes}))
}

fn without_overlaps(matches: &mut Vec<Match>, cards: &[Card]) {
    let order = |m: &Match| (cards[m.card].order, m.weak, std::cmp::Reverse(m.end - m.start));
    matches.sort_by(|a, b| order(a).cmp(&order(b)).then(a.start.cmp(&b.start)));
    // Map the start of each accepted match to its end. Only neighbouring matches can overlap.
    let mut accepted = std::collections::BTreeMap::new();
    matches.retain(|m| {
        let before = accepted.range(..m.end).next_back();
        let is_free = before.is_none_or(|(_, &end)| end <= m.start);
        if is_free {
            accepted.insert(m.start, m.end);
        }
        is_free
    });
    matches.sort_by_key(|m| m.start);
}

type Places = Vec<(String, std::ops::Range<usize>)>;

fn named(regex: &Regex, captures: &Captures<'_>) -> (FieldMap, Places) {
    let mut found = FieldMap::new();
    let mut places = Vec::new();
    for name in regex.capture_names().flatten() {
        let Some(group) = captures.name(name) else {
            continue;
        };
        // A suffix as in `rank_2` marks a second group for the same field.
        let field = name.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches('_');
        let text = String::from_utf8_lossy(group.as_bytes());
        if let Some(value) = fields::read(field, &text) {
            places.push((field.to_owned(), group.range()));
            found.insert(field.to_owned(), value);
        }
    }
    (found, places)
}

fn builder(source: &str) -> RegexBuilder {
    let mut builder = RegexBuilder::new(source);
    builder.unicode(false).multi_line(true).size_limit(4 << 20);
    builder
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_space_matches_any_white_space_and_a_size_includes_its_unit() {
        let pattern = Pattern::new("allocate (?<requested_bytes>{SIZE})[. ]");
        let found = pattern.groups("allocate\n   2.00 GiB. GPU").expect("it matches");
        assert_eq!(found["requested_bytes"], 2_u64 << 30);
        assert!(Pattern::new("a ?b").is_in("ab"));
    }
}
