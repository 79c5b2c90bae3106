//! Checks the card files.

use super::card::{Card, CheckHint};
use super::catalogue::Catalogue;
use super::tables::Tables;
use super::values;
use super::workload::Workloads;

/// Checks a set of card files and returns the errors: invalid files, unknown names, and cards that do not match their
/// own examples.
#[must_use]
pub fn check(files: &[(String, String)], tables: Tables) -> Vec<String> {
    let (catalogue, mut errors) =
        Catalogue::read(files.iter().map(|(id, text)| (id.as_str(), text.as_str())), tables);
    for card in &catalogue.cards {
        errors.extend(card_errors(card).into_iter().map(|error| format!("{}: {error}", card.id)));
        for (n, example) in card.examples.iter().enumerate() {
            let error = example_error(&catalogue, &card.id, example);
            errors.extend(error.map(|error| format!("{}: example {}: {error}", card.id, n + 1)));
        }
        for (n, example) in card.counterexamples.iter().enumerate() {
            let first =
                super::explain(&catalogue, "example", example.text.as_bytes()).into_iter().next();
            if first.is_some_and(|incident| incident.id == card.id) {
                errors.push(format!("{}: counterexample {} matches the card", card.id, n + 1));
            }
        }
    }
    errors
}

fn card_errors(card: &Card) -> Vec<String> {
    let mut errors = Vec::new();
    let of_causes = card.causes.iter().flat_map(|c| c.evidence.iter().chain(&c.against));
    let of_causes_checks = card.causes.iter().filter_map(|cause| cause.needs.as_ref());
    let of_checks = card.needs.iter().chain(of_causes_checks).filter_map(CheckHint::unless);
    let of_causes = of_causes.chain(card.causes.iter().flat_map(|cause| &cause.when));
    let of_fixes = card.fixes.iter().flat_map(|fix| &fix.when);
    let named = card.when.iter().chain(of_causes).chain(of_fixes);
    for name in named
        .flat_map(|condition| condition.split('|'))
        .map(|name| name.trim_start_matches('!'))
        // The condition of a check is one name, which may contain `|`.
        .chain(of_checks.map(String::as_str))
        .filter(|name| !super::evidence::is_known(name))
    {
        errors.push(format!("unknown evidence: {name}"));
    }
    let only = card.causes.iter().flat_map(|cause| &cause.only);
    let only = only.chain(card.fixes.iter().flat_map(|fix| &fix.only));
    for name in only.map(|name| name.trim_start_matches('!')) {
        if !Workloads::embedded().is_known(name) {
            errors.push(format!("`only` names an unknown program or kind: {name}"));
        }
    }
    for fix in &card.fixes {
        let cause = fix.r#for.as_ref();
        if cause.is_some_and(|cause| !card.causes.iter().any(|c| c.id == *cause)) {
            errors.push(format!("the fix {:?} names an unknown cause", fix.title));
        }
        let remedy = fix.remedy.as_ref();
        if let Some(name) = remedy.filter(|name| !Workloads::embedded().has_remedy(name)) {
            errors.push(format!("unknown remedy: {name}"));
        }
        if let Some(name) = fix.value.as_ref().filter(|name| !values::is_known(name)) {
            errors.push(format!("unknown formula: {name}"));
        }
        if remedy.is_none() && (fix.title.is_empty() || fix.change.is_empty()) {
            errors.push("a fix has neither a remedy nor a change".to_owned());
        }
    }
    for seen in card.causes.iter().flat_map(|c| c.seen.iter().chain(&c.denied)) {
        if let Err(error) = super::signature::Pattern::new(&seen.r#match).check() {
            errors.push(error.to_string());
        }
    }
    if super::template::first(&card.titles, &super::fields::FieldMap::new()).is_empty()
        && !card.titles.is_empty()
        && card.id != "program-exception"
    {
        errors.push("the last title must not contain a field".to_owned());
    }
    if card.titles.is_empty() || card.fixes.is_empty() || card.text.is_empty() {
        errors.push("the title, the fix or the text is missing".to_owned());
    }
    errors
}

fn example_error(
    catalogue: &Catalogue,
    id: &str,
    example: &super::card::Example,
) -> Option<String> {
    let incidents = super::explain(catalogue, "example", example.text.as_bytes());
    let Some(first) = incidents.first() else {
        let hint = if super::scan::has_anchor(example.text.as_bytes()) {
            "no card matches"
        } else {
            "the text contains no anchor of a card"
        };
        return Some(hint.to_owned());
    };
    if first.id != id {
        return Some(format!("the card {} matches instead", first.id));
    }
    let fields = serde_json::to_value(&first.fields).unwrap_or_default();
    let wrong = example.fields.iter().find(|(name, value)| fields.get(*name) != Some(value));
    wrong.map(|(name, value)| {
        format!("{name} is {}, not {value}", fields.get(name).unwrap_or(&serde_json::Value::Null))
    })
}
