//! Incidents for a terminal or a plain file.

use std::fmt::Write as _;

use super::lines::labelled;
use super::quote::{Row, rows};
use super::{place, subject, times, verdict};
use crate::model::incident::{Cause, DetectedBy, Incident, Severity, Verdict};

/// Where the text begins after its label.
const INDENT: usize = 6;
/// Fixes that are shown; who has tried five does not need a sixth.
const MAX_FIXES: usize = 5;
const MAX_CAUSES: usize = 6;
/// What would make it surer; `--json` has all.
const MAX_NEEDS: usize = 2;
/// What does not help.
const MAX_NOT: usize = 4;
/// The widest verdict and two blanks.
const VERDICT: usize = 11;
/// Consequences that are named.
const MAX_SECONDARY: usize = 4;

/// How to print.
#[derive(Debug, Clone, Copy)]
pub struct Style {
    /// In cells.
    pub width: usize,
    pub colour: bool,
}

impl Style {
    fn paint(&self, code: &str, text: &str) -> String {
        if self.colour {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

/// The first incident in full and a line for each other, or all in full.
#[must_use]
pub fn text(incidents: &[Incident], all: bool, style: &Style) -> String {
    let mut out = String::new();
    let full = if all { incidents.len() } else { 1 };
    for (n, incident) in incidents.iter().take(full).enumerate() {
        if n > 0 {
            out.push('\n');
        }
        incident_in_full(&mut out, incident, style);
    }
    let rest = incidents.get(full..).unwrap_or_default();
    if !rest.is_empty() {
        let _ = writeln!(out, "\nEARLIER  (--all explains them)");
        for incident in rest {
            one_line(&mut out, incident);
        }
    }
    out
}

fn incident_in_full(out: &mut String, incident: &Incident, style: &Style) {
    head(out, incident, style);
    labelled(out, "", &incident.title, 0, style.width);
    if let Some(why) = &incident.why_first {
        labelled(out, "", why, 0, style.width);
    }
    out.push('\n');
    fixes(out, incident, style);
    causes(out, incident, style);
    said(out, incident, style);
    if let Some(at) = &incident.at {
        let _ = writeln!(out, "{:<INDENT$}{at}", "AT");
    }
    secondary(out, incident, style);
}

/// `OUT OF MEMORY  GPU 0  train.py 418        oom-fragmentation`.
fn head(out: &mut String, incident: &Incident, style: &Style) {
    let mut left = incident.headline.clone();
    let mut rest = subject(incident);
    rest.extend(times(incident));
    for part in rest {
        // The id stands at the right; what does not fit before it is in the fields.
        if left.len() + 2 + part.len() + 2 + incident.id.len() <= style.width {
            left = format!("{left}  {part}");
        }
    }
    let gap = style
        .width
        .saturating_sub(left.len() + incident.id.len())
        .max(2);
    let colour = match incident.severity {
        Severity::Fatal | Severity::Unknown => "1;31",
        Severity::Caught => "1;33",
        Severity::Note => "1;36",
    };
    let head = style.paint(colour, &incident.headline);
    let _ = writeln!(
        out,
        "{head}{}{}{}",
        &left[incident.headline.len()..],
        " ".repeat(gap),
        style.paint("2", &incident.id)
    );
}

/// Commands to copy start a line and are not wrapped.
fn fixes(out: &mut String, incident: &Incident, style: &Style) {
    for (n, fix) in incident.fixes.iter().take(MAX_FIXES).enumerate() {
        let word = if n == 0 { "DO" } else { "" };
        let blanks = " ".repeat(INDENT - word.len());
        let label = format!("{}{blanks}{}", style.paint("1", word), n + 1);
        let effect = fix.effect.as_ref();
        let effect = effect.map_or_else(String::new, |effect| format!(" ({effect})"));
        let mut body = String::new();
        labelled(
            &mut body,
            "",
            &format!("{}{effect}:", fix.title),
            INDENT + 3,
            style.width,
        );
        let _ = write!(out, "{label}{}", body.get(INDENT + 1..).unwrap_or_default());
        let _ = writeln!(out, "{}", style.paint("36", &fix.change));
    }
    for (n, not) in incident.not_helpful.iter().take(MAX_NOT).enumerate() {
        labelled(
            out,
            if n == 0 { "NOT" } else { "" },
            not,
            INDENT + 3,
            style.width,
        );
    }
    out.push('\n');
}

fn causes(out: &mut String, incident: &Incident, style: &Style) {
    for (n, cause) in incident.causes.iter().take(MAX_CAUSES).enumerate() {
        let label = if n == 0 { "WHY" } else { "" };
        let label = format!("{label:<INDENT$}{}", verdict(cause.verdict));
        labelled(out, &label, &because(cause), INDENT + VERDICT, style.width);
    }
    for (n, need) in incident.needs.iter().take(MAX_NEEDS).enumerate() {
        labelled(
            out,
            if n == 0 { "NEED" } else { "" },
            need,
            INDENT,
            style.width,
        );
    }
    if !incident.causes.is_empty() || !incident.needs.is_empty() {
        out.push('\n');
    }
}

/// `fragmentation: 8.02 GiB idle in pieces >= 2.00 GiB wanted`.
fn because(cause: &Cause) -> String {
    let mut evidence: Vec<&str> = Vec::new();
    if cause.verdict != Verdict::RuledOut {
        evidence.extend(cause.r#for.iter().map(String::as_str));
    }
    let against = cause.against.iter().map(String::as_str);
    if evidence.is_empty() {
        evidence.extend(against);
    } else if !cause.against.is_empty() {
        evidence.push("but");
        evidence.extend(against);
    }
    let mut said = evidence.join("; ").replace("; but; ", "; but ");
    if let Some(needs) = cause.needs.as_ref().filter(|_| said.is_empty()) {
        said = format!("to check: {needs}");
    }
    if said.is_empty() {
        cause.title.clone()
    } else {
        format!("{}: {said}", cause.title)
    }
}

fn said(out: &mut String, incident: &Incident, style: &Style) {
    if incident.quote.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "{:<INDENT$}{}",
        "SAID",
        place(incident).unwrap_or_else(|| heard(incident).to_owned())
    );
    for row in rows(&incident.quote, style.width.saturating_sub(INDENT).max(20)) {
        let line = match row {
            Row::Said(text) => text,
            Row::Under(text) => style.paint("33", &text),
        };
        let _ = writeln!(out, "{:INDENT$}{line}", "");
    }
}

/// Who told, where it was no log.
fn heard(incident: &Incident) -> &'static str {
    match incident.detected_by {
        DetectedBy::Hook => "inside the program, heard by the hook",
        _ => "",
    }
}

fn secondary(out: &mut String, incident: &Incident, style: &Style) {
    for (n, one) in incident.secondary.iter().take(MAX_SECONDARY).enumerate() {
        let times = times(one).map_or_else(String::new, |t| format!(" ({t})"));
        let line = format!("{}{times}: {}", one.id, one.title);
        labelled(
            out,
            if n == 0 { "THEN" } else { "" },
            &line,
            INDENT,
            style.width,
        );
    }
    let more = incident.secondary.len().saturating_sub(MAX_SECONDARY);
    if more > 0 {
        let _ = writeln!(
            out,
            "{:INDENT$}and {more} more kinds of consequence (--json lists them)",
            ""
        );
    }
}

fn one_line(out: &mut String, incident: &Incident) {
    let place = place(incident).unwrap_or_default();
    let times = times(incident).map_or_else(String::new, |t| format!(" ({t})"));
    let _ = writeln!(out, "{place}  {}{times}  {}", incident.id, incident.title);
}
