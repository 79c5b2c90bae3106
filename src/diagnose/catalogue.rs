//! All cards, by id, and what is wrong with them.

use std::sync::OnceLock;

use super::card::Card;
use super::signature::Signatures;

/// The files of `assets/cards`, as (id, text), by id.
const EMBEDDED: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/cards.rs"));

/// Cards that can be looked for.
#[derive(Debug)]
pub struct Catalogue {
    pub cards: Vec<Card>,
    pub signatures: Signatures,
}

impl Catalogue {
    /// The cards of this build.
    #[must_use]
    pub fn embedded() -> &'static Self {
        static CATALOGUE: OnceLock<Catalogue> = OnceLock::new();
        // A card that does not parse is found by the tests of this build; the others must still serve.
        CATALOGUE.get_or_init(|| Self::read(EMBEDDED.iter().map(|&(id, text)| (id, text))).0)
    }

    /// The cards that can be read, and a sentence about each that cannot.
    pub fn read<'a>(files: impl Iterator<Item = (&'a str, &'a str)>) -> (Self, Vec<String>) {
        let mut cards = Vec::new();
        let mut faults = Vec::new();
        for (id, text) in files {
            match Card::parse(text) {
                Ok(card) if card.id == id => cards.push(card),
                Ok(card) => faults.push(format!(
                    "{id}: its id is {:?}, not the file's name",
                    card.id
                )),
                Err(error) => faults.push(format!("{id}: {error}")),
            }
        }
        faults.extend(share(&mut cards));
        let catalogue = Self {
            signatures: Signatures::new(&cards),
            cards,
        };
        let wrong = catalogue.signatures.faults();
        let named =
            |(card, fault): (usize, String)| format!("{}: {fault}", catalogue.cards[card].id);
        faults.extend(wrong.into_iter().map(named));
        (catalogue, faults)
    }

    #[must_use]
    pub fn card(&self, id: &str) -> Option<&Card> {
        self.cards.iter().find(|card| card.id == id)
    }

    /// The cards that the text of card `index` can mean, itself included, the likeliest first.
    pub fn meanings(&self, index: usize) -> Vec<usize> {
        let id = &self.cards[index].id;
        let mut meanings: Vec<usize> = (0..self.cards.len())
            .filter(|&i| i == index || self.cards[i].shares.as_ref() == Some(id))
            .collect();
        meanings.sort_by_key(|&i| self.cards[i].order);
        meanings
    }
}

/// Gives cards that share another's text its labels; says which name a card that is not there.
fn share(cards: &mut [Card]) -> Vec<String> {
    let mut faults = Vec::new();
    let labels: Vec<_> = cards
        .iter()
        .map(|c| (c.id.clone(), c.labels.clone()))
        .collect();
    for card in cards {
        let Some(owner) = &card.shares else { continue };
        match labels.iter().find(|(id, _)| id == owner) {
            None => faults.push(format!(
                "{}: it shares the text of {owner}, which is no card",
                card.id
            )),
            Some((_, labels)) => {
                for (field, label) in labels {
                    card.labels.entry(field).or_insert_with(|| label.clone());
                }
            }
        }
    }
    faults
}
