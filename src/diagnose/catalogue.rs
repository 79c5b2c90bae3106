//! All cards, by id, and what is wrong with them.

use std::sync::OnceLock;

use super::card::{Card, CheckHint};
use super::signature::Signatures;
use super::tables::Tables;

/// The files of `assets/cards`, as (id, front matter in JSON, text), by id.
const EMBEDDED: &[(&str, &str, &str)] = include!(concat!(env!("OUT_DIR"), "/cards.rs"));

/// Cards that can be looked for.
#[derive(Debug)]
pub struct Catalogue {
    pub cards: Vec<Card>,
    pub signatures: Signatures,
    pub tables: Tables,
}

impl Catalogue {
    /// The cards of this build.
    #[must_use]
    pub fn embedded() -> &'static Self {
        static CATALOGUE: OnceLock<Catalogue> = OnceLock::new();
        // A card that does not parse is found by the tests of this build; the others must still serve.
        CATALOGUE.get_or_init(|| {
            let cards = EMBEDDED
                .iter()
                .filter_map(|(_, front, text)| Card::embedded(front, text).ok());
            Self::of(cards.collect(), Tables::embedded().unwrap_or_default()).0
        })
    }

    /// The cards that can be read, and a sentence about each that cannot.
    pub fn read<'a>(
        files: impl Iterator<Item = (&'a str, &'a str)>,
        tables: Tables,
    ) -> (Self, Vec<String>) {
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
        let (catalogue, more) = Self::of(cards, tables);
        faults.extend(more);
        let wrong = catalogue.signatures.faults();
        let named =
            |(card, fault): (usize, String)| format!("{}: {fault}", catalogue.cards[card].id);
        faults.extend(wrong.into_iter().map(named));
        (catalogue, faults)
    }

    fn of(mut cards: Vec<Card>, tables: Tables) -> (Self, Vec<String>) {
        let faults = share(&mut cards);
        let catalogue = Self {
            signatures: Signatures::new(&cards),
            cards,
            tables,
        };
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

/// What is wrong with a set of card files, a sentence each: what does not parse, names what is not there, or does not
/// explain its own examples.
#[must_use]
pub fn check(files: &[(String, String)], tables: Tables) -> Vec<String> {
    let (catalogue, mut faults) = Catalogue::read(
        files.iter().map(|(id, text)| (id.as_str(), text.as_str())),
        tables,
    );
    for card in &catalogue.cards {
        faults.extend(
            card_faults(card)
                .into_iter()
                .map(|fault| format!("{}: {fault}", card.id)),
        );
        for (n, example) in card.examples.iter().enumerate() {
            let fault = example_fault(&catalogue, &card.id, example);
            faults.extend(fault.map(|fault| format!("{}: example {}: {fault}", card.id, n + 1)));
        }
        for (n, example) in card.counterexamples.iter().enumerate() {
            let first = super::explain(&catalogue, "example", example.text.as_bytes())
                .into_iter()
                .next();
            if first.is_some_and(|incident| incident.id == card.id) {
                faults.push(format!(
                    "{}: counterexample {} is taken for it",
                    card.id,
                    n + 1
                ));
            }
        }
    }
    faults
}

fn card_faults(card: &Card) -> Vec<String> {
    let mut faults = Vec::new();
    let of_causes = card.causes.iter();
    let of_causes = of_causes.flat_map(|c| c.evidence.iter().chain(&c.against));
    let of_needs = card.needs.iter().filter_map(CheckHint::unless);
    let named = card.when.iter().chain(of_causes).chain(of_needs);
    for name in named
        .flat_map(|condition| condition.split('|'))
        .map(|name| name.trim_start_matches('!'))
        .filter(|name| !super::evidence::is_known(name))
    {
        faults.push(format!("there is no evidence called {name}"));
    }
    for fix in &card.fixes {
        let cause = fix.r#for.as_ref();
        if cause.is_some_and(|cause| !card.causes.iter().any(|c| c.id == *cause)) {
            faults.push(format!(
                "the fix {:?} is for a cause that is not there",
                fix.title
            ));
        }
    }
    for seen in card
        .causes
        .iter()
        .flat_map(|c| c.seen.iter().chain(&c.denied))
    {
        if let Err(error) = super::signature::Pattern::new(&seen.r#match).check() {
            faults.push(error.to_string());
        }
    }
    if super::template::first(&card.titles, &super::fields::FieldMap::new()).is_empty()
        && !card.titles.is_empty()
        && card.id != "program-exception"
    {
        faults.push("its last title needs a field".to_owned());
    }
    if card.titles.is_empty() || card.fixes.is_empty() || card.text.is_empty() {
        faults.push("it has no title, no fix or no text".to_owned());
    }
    faults
}

fn example_fault(
    catalogue: &Catalogue,
    id: &str,
    example: &super::card::Example,
) -> Option<String> {
    let incidents = super::explain(catalogue, "example", example.text.as_bytes());
    let Some(first) = incidents.first() else {
        let hint = if super::scan::has_anchor(example.text.as_bytes()) {
            "nothing is found in it"
        } else {
            "none of scan::ANCHORS is in it"
        };
        return Some(hint.to_owned());
    };
    if first.id != id {
        return Some(format!("it is taken for {}", first.id));
    }
    let fields = serde_json::to_value(&first.fields).unwrap_or_default();
    let wrong = example
        .fields
        .iter()
        .find(|(name, value)| fields.get(*name) != Some(value));
    wrong.map(|(name, value)| {
        format!(
            "{name} is {}, not {value}",
            fields.get(name).unwrap_or(&serde_json::Value::Null)
        )
    })
}
