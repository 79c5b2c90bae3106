//! Formats incidents as Markdown, for an issue tracker.

use std::fmt::Write as _;

use gputop_model::incident::{Cause, Fix, FixKind, Incident};

use super::quote::{QuoteRow, rows};
use crate::export::explanation::words::{log_position, name, subject, times};

/// Width of the code block with a log excerpt, in characters.
const WIDTH: usize = 100;

/// Formats the first incident in full and each other incident in one line, or all incidents in full.
pub fn markdown(incidents: &[Incident], all: bool) -> String {
    let full = if all { incidents.len() } else { 1 };
    let mut out = String::new();
    for incident in incidents.iter().take(full) {
        write_full(&mut out, incident);
    }
    let rest = incidents.get(full..).unwrap_or_default();
    if !rest.is_empty() {
        out.push_str("## Earlier\n\n");
        for incident in rest {
            let _ = writeln!(
                out,
                "- `{}` {} ({})",
                incident.id,
                plain(&incident.title),
                log_position(incident).unwrap_or_default()
            );
        }
    }
    out
}

fn write_full(out: &mut String, incident: &Incident) {
    let mut parts = subject(incident);
    parts.extend(times(incident));
    let _ = writeln!(out, "## {} (`{}`)\n", incident.headline, incident.id);
    let _ = writeln!(out, "{}\n", plain(&incident.title));
    if let Some(why) = &incident.why_first {
        let _ = writeln!(out, "{}\n", plain(why));
    }
    if !parts.is_empty() {
        let _ = writeln!(out, "{}\n", plain(&parts.join(" | ")));
    }
    write_fixes(out, &incident.fixes);
    list(out, "Avoid", &incident.not_helpful);
    write_causes(out, &incident.causes);
    list(out, "Check", &incident.needs);
    if !incident.quote.is_empty() {
        let excerpt: String = rows(&incident.quote, WIDTH)
            .into_iter()
            .map(|row| match row {
                QuoteRow::Text(line) | QuoteRow::Annotation(line) => line + "\n",
            })
            .collect();
        let _ = writeln!(
            out,
            "### Log\n\n{}\n\n{}\n",
            plain(&log_position(incident).unwrap_or_default()),
            fenced("", excerpt.trim_end())
        );
    }
    if let Some(at) = &incident.at {
        let _ = writeln!(out, "Where: `{}`\n", at.replace('`', "'"));
    }
    let then = incident.secondary.iter().map(|one| format!("{}: {}", name(one), one.title));
    list(out, "Then", &then.collect::<Vec<_>>());
    let references = incident.references.iter();
    let links = references.map(|one| format!("- [{}]({})\n", plain(&one.title), one.url));
    let links: String = links.collect();
    if !links.is_empty() {
        let _ = writeln!(out, "### References\n\n{links}");
    }
}

fn write_fixes(out: &mut String, fixes: &[Fix]) {
    if fixes.is_empty() {
        return;
    }
    out.push_str("### Fix\n\n");
    for (n, fix) in fixes.iter().enumerate() {
        let effect = fix.effect.as_ref().map_or_else(String::new, |e| format!(" ({})", plain(e)));
        let language = match fix.kind {
            FixKind::Code => "python",
            FixKind::Env | FixKind::Command => "sh",
            _ => "",
        };
        let _ = writeln!(out, "{}. {}{effect}:\n", n + 1, plain(&fix.title));
        let _ = writeln!(out, "{}\n", indented(&fenced(language, &fix.change)));
    }
}

fn write_causes(out: &mut String, causes: &[Cause]) {
    if causes.is_empty() {
        return;
    }
    out.push_str("### Why\n\n| | cause | for | against |\n|---|---|---|---|\n");
    for cause in causes {
        let cells = [cause.title.as_str(), &cause.r#for.join("; "), &cause.against.join("; ")];
        let cells = cells.map(cell).join(" | ");
        let _ = writeln!(out, "| {} | {cells} |", cause.verdict.words());
    }
    out.push('\n');
}

fn list(out: &mut String, title: &str, items: &[String]) {
    if items.is_empty() {
        return;
    }
    let _ = writeln!(out, "### {title}\n");
    for item in items {
        let _ = writeln!(out, "- {}", plain(item));
    }
    out.push('\n');
}

/// Returns a Markdown code block whose fence is longer than any run of backticks in `text`.
pub fn fenced(language: &str, text: &str) -> String {
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    format!("{fence}{language}\n{text}\n{fence}")
}

fn indented(block: &str) -> String {
    block.lines().map(|line| format!("   {line}")).collect::<Vec<_>>().join("\n")
}

fn cell(text: &str) -> String {
    plain(text).replace('|', "\\|")
}

/// Joins text from other programs into one line and escapes HTML.
fn plain(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
