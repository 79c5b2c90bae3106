//! The answers to the examples of all cards, which several tests examine.

use std::sync::LazyLock;

use gputop::diagnose::{Catalogue, explain};
use gputop::model::incident::Incident;

static ANSWERS: LazyLock<Vec<(&str, Vec<Incident>)>> = LazyLock::new(|| {
    let catalogue = Catalogue::embedded();
    let examples = catalogue.cards.iter().flat_map(|card| &card.examples);
    let answer = |text: &'static str| (text, explain(catalogue, "train.log", text.as_bytes()));
    examples.map(|example| answer(&example.text)).collect()
});

/// Returns the text of each example, and the incidents found in it.
pub fn answers() -> &'static [(&'static str, Vec<Incident>)] {
    &ANSWERS
}
