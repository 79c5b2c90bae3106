//! Formats error cards as text: an index, search results, and single cards in full.

mod prose;
mod search;

pub use search::{may_report_failure, search};

use std::fmt::Write as _;

use gputop_explain::Catalogue;
use gputop_explain::card::{Card, FixRule};
use gputop_explain::template::general;
use gputop_explain::workload::{Workload, Workloads, warning};

use super::explanation::{check, wrapped};

/// Formats an index of all cards grouped by family, with one line per card.
pub fn index(catalogue: &Catalogue) -> String {
    let mut families: Vec<&str> = Vec::new();
    for card in &catalogue.cards {
        if !families.contains(&card.family.as_str()) {
            families.push(&card.family);
        }
    }
    let mut out = String::new();
    for family in families {
        let _ = writeln!(out, "{family}");
        for card in catalogue.cards.iter().filter(|c| c.family == family) {
            let _ = writeln!(out, "  {:<32} {}", card.id, title(card));
        }
    }
    out.push_str("\nPrograms and platforms with their own fixes\n");
    for workload in &Workloads::embedded().all {
        let kind = workload.kind.name();
        let _ = writeln!(out, "  {:<32} {} ({kind})", workload.id, workload.name);
    }
    out
}

/// Formats a list of cards, with one line per card.
pub fn list(cards: &[&Card]) -> String {
    cards.iter().map(|card| format!("{:<32} {}\n", card.id, title(card))).collect()
}

/// Returns a card's last title. Unlike the earlier titles, it never contains a placeholder.
fn title(card: &Card) -> &str {
    card.titles.last().map_or("", String::as_str)
}

/// Returns the card with the given ID or Xid number, or the cards that best match the query.
pub fn find<'c>(catalogue: &'c Catalogue, query: &str) -> Vec<&'c Card> {
    let wanted = query.trim().to_lowercase();
    if let Some(card) = catalogue.card(&wanted) {
        return vec![card];
    }
    let number = wanted.strip_prefix("xid").unwrap_or(&wanted).trim_start_matches([' ', '-', ':']);
    if let Ok(code) = number.parse() {
        let row = catalogue.tables.xid(code);
        return row.and_then(|row| catalogue.card(&row.card)).into_iter().collect();
    }
    search(catalogue, query)
}

/// Formats a card in full: title, fixes, advice to avoid, causes and description.
pub fn card(card: &Card, width: usize) -> String {
    let mut out = format!("{}  {}\n\n", card.headline, card.id);
    paragraph(&mut out, "", title(card), width);
    if !card.fixes.is_empty() {
        out.push_str("\nFix\n");
        let mut rules: Vec<&FixRule> = card.fixes.iter().collect();
        rules.sort_by_key(|rule| {
            let is_dangerous = warning(&rule.change).is_some();
            (is_dangerous, actions(rule).count() > MANY_PROGRAMS, is_special(rule))
        });
        let mut fixes: Vec<String> = Vec::new();
        for text in rules.into_iter().filter_map(|rule| fix(rule, width)) {
            if !fixes.contains(&text) {
                fixes.push(text);
            }
        }
        out.push_str(&fixes.concat());
    }
    if !card.not_helpful.is_empty() {
        out.push_str("\nAvoid\n");
        for not in &card.not_helpful {
            paragraph(&mut out, "- ", not, width);
        }
    }
    if !card.causes.is_empty() {
        out.push_str("\nCauses, most likely first\n");
        for cause in &card.causes {
            let needs = cause.needs.as_ref().map(|needs| format!(". {}", check(needs.says())));
            let needs = needs.unwrap_or_default();
            paragraph(&mut out, "- ", &format!("{}{needs}", cause.title), width);
        }
    }
    let _ = write!(out, "\n{}", prose::prose(&card.text, width));
    if !card.references.is_empty() {
        out.push('\n');
        for reference in &card.references {
            let _ = writeln!(out, "{}\n{}", reference.title, reference.url);
        }
    }
    out
}

/// Number of programs above which a fix is printed after the others, because its list of commands is long.
const MANY_PROGRAMS: usize = 4;

/// Returns true if a fix is offered only for some programs or with evidence for its cause.
fn is_special(fix: &FixRule) -> bool {
    fix.proven || !fix.only.is_empty() || !fix.when.is_empty()
}

/// Returns the programs with their own text to copy for a fix.
fn actions(fix: &FixRule) -> impl Iterator<Item = (&Workload, &str)> {
    fix.remedy.iter().flat_map(|remedy| Workloads::embedded().actions(remedy))
}

/// Formats a fix with its commands. Returns `None` if its text to copy consists of a value from the log.
fn fix(rule: &FixRule, width: usize) -> Option<String> {
    if rule.change.starts_with('{') && rule.change.ends_with('}') {
        return None;
    }
    let mut out = String::new();
    let effect = rule.effect.as_ref().map_or_else(String::new, |e| format!(" ({e})"));
    let title = match &rule.remedy {
        Some(remedy) if rule.title.is_empty() => Workloads::embedded().title(remedy),
        _ => &rule.title,
    };
    paragraph(&mut out, "- ", &general(&format!("{title}{effect}:")), width);
    if rule.remedy.is_none() {
        let _ = writeln!(out, "{}", general(&rule.change));
    }
    for (workload, change) in actions(rule) {
        let _ = writeln!(out, "{}  # {}", general(change), workload.name);
    }
    Some(out)
}

fn paragraph(out: &mut String, mark: &str, text: &str, width: usize) {
    let mut mark = mark.to_owned();
    for line in wrapped(text, width.saturating_sub(mark.len()).max(20)) {
        let _ = writeln!(out, "{mark}{line}");
        mark = " ".repeat(mark.len());
    }
}
