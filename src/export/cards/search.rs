//! Searches the text of the cards, ranks the results, and tolerates typos.

use std::collections::{HashMap, HashSet};

use gputop_explain::Catalogue;
use gputop_explain::card::Card;
use strsim::osa_distance;

const MAX_RESULTS: usize = 8;
/// Maximum number of words in a search query. Longer text is unlikely to be a question.
const MAX_WORDS: usize = 120;
/// Minimum score of a search result, as a fraction of the best score.
const MIN_SHARE: f64 = 0.45;

/// Words that contain no information about an error, ignored in queries.
const STOP_WORDS: &[&str] = &[
    "a", "after", "all", "an", "and", "are", "as", "at", "be", "but", "by", "can", "could", "did",
    "do", "does", "for", "from", "get", "got", "has", "have", "help", "how", "i", "if", "in", "is",
    "it", "its", "me", "my", "no", "not", "of", "on", "or", "please", "run", "several", "so",
    "some", "that", "the", "then", "there", "this", "to", "try", "was", "we", "what", "when",
    "where", "which", "while", "why", "will", "with", "you", "your", "error", "errors", "file",
    "line", "python", "py", "job", "jobs", "training", "train", "step", "steps", "epoch", "epochs",
    "problem", "issue",
];

/// Beginnings of words that report a failure.
#[rustfmt::skip]
const FAILURE_WORDS: &[&str] = &[
    "abort", "assert", "cannot", "corrupt", "crash", "denied", "died", "error", "exception", "exhaust",
    "fail", "fatal", "fault", "hang", "hung", "illegal", "insufficient", "invalid", "kill", "leak",
    "mismatch", "missing", "nan", "oom", "overflow", "refused", "stuck", "timeout", "unable", "unavailable",
    "undefined", "unexpected", "unknown", "unspecified", "unsupported", "violation", "wrong", "xid",
];
const FAILURE_PHRASES: &[&str] = &[
    " no space ",
    " no such ",
    " not found ",
    " not supported ",
    " out of memory ",
    " timed out ",
];

/// Additional score for a card with an alias that equals the query, and for a card with an alias that contains the
/// query.
const SAME_PHRASE: f64 = 30.0;
const PART_OF_PHRASE: f64 = 10.0;

struct Document {
    weights: HashMap<String, f64>,
    /// The card's aliases, normalized by [`spaced`].
    phrases: Vec<String>,
}

/// Returns true if a text reports a failure or asks a question. Tolerates a typo in a word.
pub fn may_report_failure(text: &str) -> bool {
    let is_failure = |word: &str| {
        let is_near = |known: &str| known.len() >= 5 && osa_distance(word, known) <= 1;
        FAILURE_WORDS.iter().any(|known| word.starts_with(known) || is_near(known))
    };
    let phrase = spaced(text);
    text.contains('?')
        || words(text).any(|word| is_failure(&word))
        || FAILURE_PHRASES.iter().any(|known| phrase.contains(known))
}

/// Returns the cards that match the words of `query`, best first.
pub fn search<'c>(catalogue: &'c Catalogue, query: &str) -> Vec<&'c Card> {
    let wanted = search_words(query);
    if wanted.is_empty() || wanted.len() > MAX_WORDS {
        return Vec::new();
    }
    let documents: Vec<Document> = catalogue.cards.iter().map(Document::of).collect();
    let vocabulary: HashSet<&str> =
        documents.iter().flat_map(|document| document.weights.keys().map(String::as_str)).collect();
    // Match a misspelled word to similar words in the cards, at a lower weight.
    let meant: Vec<Vec<(&str, f64)>> =
        wanted.iter().map(|word| similar(word, &vocabulary)).collect();
    // Require at least half of the query's words to be known. If fewer are known, the query is probably not about any
    // card.
    let similarity = |words: &Vec<(&str, f64)>| words.iter().map(|w| w.1).fold(0.0, f64::max);
    let known: f64 = meant.iter().map(similarity).sum();
    if known * 2.0 < wanted.len() as f64 {
        return Vec::new();
    }
    let rarity = |word: &str| {
        let count = documents.iter().filter(|d| d.weights.contains_key(word)).count();
        (documents.len() as f64 / count.max(1) as f64).ln() + 0.1
    };
    let rarities: HashMap<&str, f64> =
        meant.iter().flatten().map(|(word, _)| (*word, rarity(word))).collect();
    let score = |document: &Document| -> f64 {
        let best = |words: &Vec<(&str, f64)>| {
            let each = words.iter().map(|(word, similarity)| {
                document.weights.get(*word).unwrap_or(&0.0) * similarity * rarities[word]
            });
            each.fold(0.0, f64::max)
        };
        let phrase = spaced(query);
        let exact = document.phrases.iter().map(|known| match known.contains(&phrase) {
            true if *known == phrase => SAME_PHRASE,
            true => PART_OF_PHRASE,
            false => 0.0,
        });
        meant.iter().map(best).sum::<f64>() + exact.fold(0.0, f64::max)
    };
    let mut found: Vec<(f64, &Card)> = documents
        .iter()
        .zip(&catalogue.cards)
        .map(|(document, card)| (score(document), card))
        .filter(|(score, _)| *score > 0.0)
        .collect();
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    let min = found.first().map_or(0.0, |(best, _)| best * MIN_SHARE);
    let good = found.into_iter().filter(|(score, _)| *score >= min);
    good.take(MAX_RESULTS).map(|(_, card)| card).collect()
}

impl Document {
    fn of(card: &Card) -> Self {
        let phrases = card.aliases.iter().map(|alias| spaced(alias)).collect();
        let mut document = Self { weights: HashMap::new(), phrases };
        document.add(&card.id, 6.0);
        document.add(&card.headline, 5.0);
        card.aliases.iter().for_each(|text| document.add(text, 5.0));
        card.titles.iter().for_each(|text| document.add(text, 4.0));
        for cause in &card.causes {
            document.add(&cause.title, 2.0);
        }
        for fix in &card.fixes {
            document.add(&fix.title, 1.5);
            document.add(&fix.change, 1.0);
        }
        card.examples.iter().for_each(|example| document.add(&example.text, 1.0));
        document.add(&card.text, 1.0);
        document
    }

    /// Adds the words of `text` to the document. A repeated word keeps its highest weight.
    fn add(&mut self, text: &str, weight: f64) {
        for word in words(text) {
            let known = self.weights.entry(word).or_insert(weight);
            *known = known.max(weight);
        }
    }
}

fn words(text: &str) -> impl Iterator<Item = String> {
    let parts = text.split(|c: char| !c.is_alphanumeric());
    parts.filter(|word| (2..=40).contains(&word.len())).map(str::to_lowercase)
}

/// Returns the distinct words of a text, without stop words.
fn search_words(text: &str) -> Vec<String> {
    let mut distinct: Vec<String> = Vec::new();
    for word in words(text).filter(|word| !STOP_WORDS.contains(&word.as_str())) {
        if !distinct.contains(&word) {
            distinct.push(word);
        }
    }
    distinct
}

/// Returns the words of a text, separated and surrounded by spaces: ` cuda out of memory `.
fn spaced(text: &str) -> String {
    words(text).fold(" ".to_owned(), |all, word| all + &word + " ")
}

/// Returns the words in the cards that are similar to `word`, with their similarity from 0 to 1.
fn similar<'v>(word: &str, vocabulary: &HashSet<&'v str>) -> Vec<(&'v str, f64)> {
    if let Some(same) = vocabulary.get(word) {
        return vec![(same, 1.0)];
    }
    let length = word.chars().count();
    let max_distance = match length {
        0..4 => return Vec::new(),
        4..8 => 1,
        _ => 2,
    };
    let is_number = word.bytes().all(|b| b.is_ascii_digit());
    let candidates = vocabulary.iter().filter_map(|known| {
        let shorter = length.min(known.len());
        let is_prefix = shorter >= 4 && (known.starts_with(word) || word.starts_with(*known));
        if is_prefix {
            return Some((*known, 0.7));
        }
        let is_near = !is_number
            && known.len().abs_diff(length) <= max_distance
            && osa_distance(word, known) <= max_distance;
        is_near.then_some((*known, 0.5))
    });
    candidates.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(query: &str) -> Vec<&'static str> {
        let found = search(Catalogue::embedded(), query);
        found.iter().map(|card| card.id.as_str()).collect()
    }

    #[test]
    fn only_some_texts_report_a_failure() {
        let failures = ["kernel eror", "INTERNAL ASSET FAILED", "why is it slow?", "got loss NaN"];
        for text in failures.into_iter().chain(["No space left on device"]) {
            assert!(may_report_failure(text), "{text}");
        }
        for text in ["ok", "Epoch 1 loss 0.3", "training finished without problems", "hello world"]
        {
            assert!(!may_report_failure(text), "{text}");
        }
    }

    #[test]
    fn ranks_cards_and_tolerates_typing_mistakes() {
        for (query, card) in [
            ("launch failure after several epochs", "cuda-launch-failure-719"),
            ("INTERNAL ASSET FAILED", "internal-assert-torch"),
            ("why does my job get unspecifed launch failure?", "cuda-launch-failure-719"),
            ("No space left on device", "disk-full"),
            ("fragmentaton", "oom-fragmentation"),
            ("DataLoader worker bus error", "dataloader-shm-bus-error"),
        ] {
            let found = first(query);
            assert!(found.iter().take(3).any(|id| *id == card), "{query}: {found:?}");
        }
        for query in ["out of memory", "CUDA out of memory", "out of memory while loading"] {
            assert_eq!(first(query)[0], "oom-capacity", "{query}");
        }
        assert_eq!(first("xyzzy plugh"), [""; 0]);
        assert_eq!(first("step 1\nstep 2"), [""; 0]);
    }
}
