//! Loads the catalogue of error cards.

use std::sync::OnceLock;

use super::card::Card;
use super::embedded::unpacked;
use super::signature::Signatures;
use super::tables::Tables;

/// The tables, and the card files in `assets/cards` sorted by ID, as compressed JSON, one per line.
const EMBEDDED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cards.jsonl.gz"));

#[derive(Debug)]
pub struct Catalogue {
    pub cards: Vec<Card>,
    pub signatures: Signatures,
    pub tables: Tables,
}

impl Catalogue {
    #[must_use]
    pub fn embedded() -> &'static Self {
        static CATALOGUE: OnceLock<Catalogue> = OnceLock::new();
        // Skip cards that do not parse, so that the others remain usable. The tests report such cards.
        CATALOGUE.get_or_init(|| {
            let lines = unpacked(EMBEDDED);
            let (tables, cards) = lines.split_once('\n').unwrap_or_default();
            let cards = cards.lines().filter_map(|line| serde_json::from_str(line).ok());
            Self::of(cards.collect(), serde_json::from_str(tables).unwrap_or_default()).0
        })
    }

    /// Returns a catalogue of the valid cards, and an error for each invalid one.
    pub fn read<'a>(
        files: impl Iterator<Item = (&'a str, &'a str)>,
        tables: Tables,
    ) -> (Self, Vec<String>) {
        let mut cards = Vec::new();
        let mut errors = Vec::new();
        for (id, text) in files {
            match Card::parse(text) {
                Ok(card) if card.id == id => cards.push(card),
                Ok(card) => {
                    errors.push(format!("{id}: the ID {:?} does not match the file name", card.id));
                }
                Err(error) => errors.push(format!("{id}: {error}")),
            }
        }
        let (catalogue, more) = Self::of(cards, tables);
        errors.extend(more);
        let of_signatures = catalogue.signatures.errors();
        let with_id =
            |(card, error): (usize, String)| format!("{}: {error}", catalogue.cards[card].id);
        errors.extend(of_signatures.into_iter().map(with_id));
        (catalogue, errors)
    }

    fn of(mut cards: Vec<Card>, tables: Tables) -> (Self, Vec<String>) {
        let errors = share(&mut cards);
        let catalogue = Self { signatures: Signatures::new(&cards), cards, tables };
        (catalogue, errors)
    }

    #[must_use]
    pub fn card(&self, id: &str) -> Option<&Card> {
        self.cards.iter().find(|card| card.id == id)
    }

    /// Returns card `index` and all cards that use the same signatures, ordered by priority.
    pub(crate) fn meanings(&self, index: usize) -> Vec<usize> {
        let id = &self.cards[index].id;
        let mut meanings: Vec<usize> = (0..self.cards.len())
            .filter(|&i| i == index || self.cards[i].shares.as_ref() == Some(id))
            .collect();
        meanings.sort_by_key(|&i| self.cards[i].order);
        meanings
    }
}

/// Copies a card's labels to the cards that share its signatures. Returns an error for each reference to an unknown
/// card.
fn share(cards: &mut [Card]) -> Vec<String> {
    let mut errors = Vec::new();
    let labels: Vec<_> = cards.iter().map(|c| (c.id.clone(), c.labels.clone())).collect();
    for card in cards {
        let Some(owner) = &card.shares else { continue };
        match labels.iter().find(|(id, _)| id == owner) {
            None => errors.push(format!("{}: `shares` names the unknown card {owner}", card.id)),
            Some((_, labels)) => {
                for (field, label) in labels {
                    card.labels.entry(field).or_insert_with(|| label.clone());
                }
            }
        }
    }
    errors
}
