//! Formats error cards as text: an index, search results, and single cards in full.

mod prose;
mod search;

pub use search::{may_report_failure, search};

use std::fmt::Write as _;

use super::explanation::wrapped;
use crate::diagnose::Catalogue;
use crate::diagnose::card::Card;
use crate::diagnose::workload::Workloads;

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
        let cards: Vec<&Card> = catalogue.cards.iter().filter(|c| c.family == family).collect();
        for card in cards {
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
        for fix in &card.fixes {
            let effect = fix.effect.as_ref().map_or_else(String::new, |e| format!(" ({e})"));
            let remedy = fix.remedy.as_deref();
            let title = match remedy {
                Some(remedy) if fix.title.is_empty() => Workloads::embedded().title(remedy),
                _ => &fix.title,
            };
            paragraph(&mut out, "- ", &format!("{title}{effect}:"), width);
            if remedy.is_none() {
                let _ = writeln!(out, "{}", fix.change);
            }
            for (workload, change) in Workloads::embedded().actions(remedy.unwrap_or_default()) {
                // The value depends on the failed program, so the card shows VALUE instead.
                let change = change.replace("{value}", "VALUE");
                let _ = writeln!(out, "{change}  # {}", workload.name);
            }
        }
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
            let needs =
                cause.needs.as_ref().map_or_else(String::new, |n| format!(". To check: {n}"));
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

fn paragraph(out: &mut String, mark: &str, text: &str, width: usize) {
    let mut mark = mark.to_owned();
    for line in wrapped(text, width.saturating_sub(mark.len()).max(20)) {
        let _ = writeln!(out, "{mark}{line}");
        mark = " ".repeat(mark.len());
    }
}
