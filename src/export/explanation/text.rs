//! Incidents for a terminal or a plain file.

use std::fmt::Write as _;

use super::lines::labelled;
use super::quote::{Row, rows};
use super::{place, subject, times, verdict};
use crate::model::incident::{Cause, DetectedBy, Incident, Severity, Verdict};
use crate::model::text::Escaped;

/// Where the text begins after its label.
pub(super) const INDENT: usize = 6;
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

/// What a piece of a line is, whatever it looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    Plain,
    /// The headline.
    Head(Severity),
    Strong,
    Dim,
    /// A text to copy.
    Change,
    /// What stands under the parts of a quotation.
    Mark,
}

/// A line, piece by piece.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StyledLine(pub Vec<(Tone, String)>);

impl StyledLine {
    pub(super) fn plain(text: impl Into<String>) -> Self {
        Self(vec![(Tone::Plain, text.into())])
    }

    /// Returns the line for a terminal: the text escaped, then our own colors added.
    #[must_use]
    pub fn printed(&self, colour: bool) -> String {
        let piece = |(tone, text): &(Tone, String)| match tone.code().filter(|_| colour) {
            Some(code) => format!("\x1b[{code}m{}\x1b[0m", Escaped(text)),
            None => Escaped(text).to_string(),
        };
        self.0.iter().map(piece).collect()
    }
}

impl Tone {
    /// As a terminal knows it.
    fn code(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Head(Severity::Fatal | Severity::Unknown) => Some("1;31"),
            Self::Head(Severity::Caught) => Some("1;33"),
            Self::Head(Severity::Note) => Some("1;36"),
            Self::Strong => Some("1"),
            Self::Dim => Some("2"),
            Self::Change => Some("36"),
            Self::Mark => Some("33"),
        }
    }
}

/// The first incident in full and a line for each other, or all in full.
#[must_use]
pub fn text(incidents: &[Incident], all: bool, style: &Style) -> String {
    let mut lines = Vec::new();
    let full = if all { incidents.len() } else { 1 };
    for (n, incident) in incidents.iter().take(full).enumerate() {
        if n > 0 {
            lines.push(StyledLine::default());
        }
        lines.extend(self::lines(incident, style.width));
    }
    let rest = incidents.get(full..).unwrap_or_default();
    if !rest.is_empty() {
        lines.push(StyledLine::default());
        lines.push(StyledLine::plain("EARLIER  (--all explains them)"));
        lines.extend(rest.iter().map(one_line));
    }
    let mut out = String::new();
    for line in &lines {
        let _ = writeln!(out, "{}", line.printed(style.colour));
    }
    out
}

/// One incident in full, for a place this many cells wide. What is to be copied starts a line and is not wrapped.
#[must_use]
pub fn lines(incident: &Incident, width: usize) -> Vec<StyledLine> {
    let mut out = vec![head(incident, width)];
    label(&mut out, "", &incident.title, 0, width);
    if let Some(why) = &incident.why_first {
        label(&mut out, "", why, 0, width);
    }
    out.push(StyledLine::default());
    fixes(&mut out, incident, width);
    causes(&mut out, incident, width);
    said(&mut out, incident, width);
    if let Some(at) = &incident.at {
        out.push(StyledLine::plain(format!("{:<INDENT$}{at}", "WHERE")));
    }
    secondary(&mut out, incident, width);
    out
}

/// [`labelled`] as lines.
pub(super) fn label(
    out: &mut Vec<StyledLine>,
    label: &str,
    text: &str,
    indent: usize,
    width: usize,
) {
    let mut body = String::new();
    labelled(&mut body, label, text, indent, width);
    out.extend(body.lines().map(StyledLine::plain));
}

/// `OUT OF MEMORY  GPU 0  train.py 418        oom-fragmentation`.
fn head(incident: &Incident, width: usize) -> StyledLine {
    let mut left = incident.headline.clone();
    let mut rest = subject(incident);
    rest.extend(times(incident));
    for part in rest {
        // The id stands at the right; what does not fit before it is in the fields.
        if left.len() + 2 + part.len() + 2 + incident.id.len() <= width {
            left = format!("{left}  {part}");
        }
    }
    let gap = width.saturating_sub(left.len() + incident.id.len()).max(2);
    let behind = left[incident.headline.len()..].to_owned() + &" ".repeat(gap);
    StyledLine(vec![
        (Tone::Head(incident.severity), incident.headline.clone()),
        (Tone::Plain, behind),
        (Tone::Dim, incident.id.clone()),
    ])
}

fn fixes(out: &mut Vec<StyledLine>, incident: &Incident, width: usize) {
    for (n, fix) in incident.fixes.iter().take(MAX_FIXES).enumerate() {
        let word = if n == 0 { "FIX" } else { "" };
        let effect = fix.effect.as_ref();
        let effect = effect.map_or_else(String::new, |effect| format!(" ({effect})"));
        let before = out.len();
        let number = format!("{:INDENT$}{}", "", n + 1);
        let what = format!("{}{effect}:", fix.title);
        label(out, &number, &what, INDENT + 3, width);
        if let Some(StyledLine(pieces)) = out.get_mut(before)
            && let Some((_, text)) = pieces.first_mut()
        {
            // The word stands in the place of its blanks.
            text.drain(..word.len());
            pieces.insert(0, (Tone::Strong, word.to_owned()));
        }
        out.push(StyledLine(vec![(Tone::Change, fix.change.clone())]));
    }
    for (n, not) in incident.not_helpful.iter().take(MAX_NOT).enumerate() {
        let word = if n == 0 { "AVOID" } else { "" };
        label(out, word, not, INDENT + 3, width);
    }
    out.push(StyledLine::default());
}

fn causes(out: &mut Vec<StyledLine>, incident: &Incident, width: usize) {
    for (n, cause) in incident.causes.iter().take(MAX_CAUSES).enumerate() {
        let word = if n == 0 { "WHY" } else { "" };
        let word = format!("{word:<INDENT$}{}", verdict(cause.verdict));
        label(out, &word, &because(cause), INDENT + VERDICT, width);
    }
    for (n, need) in incident.needs.iter().take(MAX_NEEDS).enumerate() {
        let word = if n == 0 { "CHECK" } else { "" };
        label(out, word, need, INDENT, width);
    }
    if !incident.causes.is_empty() || !incident.needs.is_empty() {
        out.push(StyledLine::default());
    }
}

/// `fragmentation: 8.02 GiB idle, in pieces, and 2.00 GiB wanted`.
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

fn said(out: &mut Vec<StyledLine>, incident: &Incident, width: usize) {
    if incident.quote.is_empty() {
        return;
    }
    let place = place(incident).unwrap_or_else(|| heard(incident).to_owned());
    out.push(StyledLine::plain(format!("{:<INDENT$}{place}", "LOG")));
    let blanks = " ".repeat(INDENT);
    for row in rows(&incident.quote, width.saturating_sub(INDENT).max(20)) {
        out.push(match row {
            Row::Said(text) => StyledLine::plain(blanks.clone() + &text),
            Row::Under(text) => StyledLine(vec![(Tone::Plain, blanks.clone()), (Tone::Mark, text)]),
        });
    }
}

/// Who told, where it was no log.
fn heard(incident: &Incident) -> &'static str {
    match incident.detected_by {
        DetectedBy::Hook => "inside the program, heard by the hook",
        _ => "",
    }
}

fn secondary(out: &mut Vec<StyledLine>, incident: &Incident, width: usize) {
    for (n, one) in incident.secondary.iter().take(MAX_SECONDARY).enumerate() {
        let times = times(one).map_or_else(String::new, |t| format!(" ({t})"));
        let line = format!("{}{times}: {}", one.id, one.title);
        label(out, if n == 0 { "THEN" } else { "" }, &line, INDENT, width);
    }
    let more = incident.secondary.len().saturating_sub(MAX_SECONDARY);
    if more > 0 {
        out.push(StyledLine::plain(format!(
            "{:INDENT$}and {more} more kinds of consequence (--json lists them)",
            ""
        )));
    }
}

fn one_line(incident: &Incident) -> StyledLine {
    let place = place(incident).unwrap_or_default();
    let times = times(incident).map_or_else(String::new, |t| format!(" ({t})"));
    StyledLine::plain(format!(
        "{place}  {}{times}  {}",
        incident.id, incident.title
    ))
}
