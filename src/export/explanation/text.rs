//! Explanations as text, for a terminal or a plain file.

use std::fmt::Write as _;

use super::lines::labelled;
use super::quote::{QuoteRow, rows};
use super::{log_position, subject, times, verdict};
use crate::model::incident::{Cause, DetectedBy, Incident, Severity, Verdict};
use crate::model::text::Escaped;

/// Column where the text of a section begins.
pub(super) const INDENT: usize = 6;
/// Fixes that are shown. After five failed attempts a sixth is unlikely to help.
const MAX_FIXES: usize = 5;
const MAX_CAUSES: usize = 6;
/// Lines under CHECK. `--json` has all.
const MAX_CHECKS: usize = 2;
/// Lines under AVOID.
const MAX_AVOID: usize = 4;
/// Width of the longest verdict and two blanks.
const VERDICT_WIDTH: usize = 11;
/// Consequences listed under THEN.
const MAX_SECONDARY: usize = 4;

/// Output width and colour.
#[derive(Debug, Clone, Copy)]
pub struct Style {
    /// In cells.
    pub width: usize,
    pub colour: bool,
}

/// Kind of a piece of text. The terminal and the dashboard choose their own colours for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    Plain,
    /// The headline.
    Head(Severity),
    Strong,
    Dim,
    /// Text to copy.
    Change,
    /// Annotations under a log excerpt.
    Mark,
}

/// A line as pieces of styled text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StyledLine(pub Vec<(Tone, String)>);

impl StyledLine {
    pub(super) fn plain(text: impl Into<String>) -> Self {
        Self(vec![(Tone::Plain, text.into())])
    }

    /// Returns the line for a terminal. Text is escaped before colours are added.
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
    /// Returns the SGR code of a terminal.
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

/// Returns the first incident in full and one line for each other, or all in full.
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
        lines.push(StyledLine::plain("EARLIER  (use --all to explain them)"));
        lines.extend(rest.iter().map(one_line));
    }
    let mut out = String::new();
    for line in &lines {
        let _ = writeln!(out, "{}", line.printed(style.colour));
    }
    out
}

/// Returns one incident in full, wrapped to `width` cells. Text to copy starts at the line and is not wrapped.
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
    excerpt(&mut out, incident, width);
    if let Some(at) = &incident.at {
        out.push(StyledLine::plain(format!("{:<INDENT$}{at}", "WHERE")));
    }
    secondary(&mut out, incident, width);
    out
}

/// Appends the lines of [`labelled`].
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

/// Returns the first line: `OUT OF MEMORY  GPU 0  train.py 418        oom-fragmentation`.
fn head(incident: &Incident, width: usize) -> StyledLine {
    let mut left = incident.headline.clone();
    let mut rest = subject(incident);
    rest.extend(times(incident));
    for part in rest {
        // The id is right-aligned. Parts that do not fit before it are omitted; the fields have them.
        if left.len() + 2 + part.len() + 2 + incident.id.len() <= width {
            left = format!("{left}  {part}");
        }
    }
    let gap = width.saturating_sub(left.len() + incident.id.len()).max(2);
    let tail = left[incident.headline.len()..].to_owned() + &" ".repeat(gap);
    StyledLine(vec![
        (Tone::Head(incident.severity), incident.headline.clone()),
        (Tone::Plain, tail),
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
            // The section name replaces the blanks before the number.
            text.drain(..word.len());
            pieces.insert(0, (Tone::Strong, word.to_owned()));
        }
        out.push(StyledLine(vec![(Tone::Change, fix.change.clone())]));
    }
    for (n, advice) in incident.not_helpful.iter().take(MAX_AVOID).enumerate() {
        let word = if n == 0 { "AVOID" } else { "" };
        label(out, word, advice, INDENT + 3, width);
    }
    out.push(StyledLine::default());
}

fn causes(out: &mut Vec<StyledLine>, incident: &Incident, width: usize) {
    for (n, cause) in incident.causes.iter().take(MAX_CAUSES).enumerate() {
        let word = if n == 0 { "WHY" } else { "" };
        let word = format!("{word:<INDENT$}{}", verdict(cause.verdict));
        label(out, &word, &cause.title, INDENT + VERDICT_WIDTH, width);
        if let Some(evidence) = evidence(cause) {
            label(out, "", &evidence, INDENT + VERDICT_WIDTH + 2, width);
        }
    }
    for (n, check) in incident.needs.iter().take(MAX_CHECKS).enumerate() {
        let word = if n == 0 { "CHECK" } else { "" };
        label(out, word, check, INDENT, width);
    }
    if !incident.causes.is_empty() || !incident.needs.is_empty() {
        out.push(StyledLine::default());
    }
}

/// Returns the evidence below a cause: `8.02 GiB cached in fragments, 2.00 GiB requested`. Without evidence it is the
/// check that would provide some.
fn evidence(cause: &Cause) -> Option<String> {
    let speaks_for = match cause.verdict {
        Verdict::RuledOut => String::new(),
        _ => cause.r#for.join("; "),
    };
    let against = cause.against.join("; ");
    match (speaks_for.is_empty(), against.is_empty()) {
        (false, false) => Some(format!("{speaks_for}, but {against}")),
        (false, true) => Some(speaks_for),
        (true, false) => Some(against),
        (true, true) => cause
            .needs
            .as_ref()
            .map(|needs| format!("To check: {needs}")),
    }
}

fn excerpt(out: &mut Vec<StyledLine>, incident: &Incident, width: usize) {
    if incident.quote.is_empty() {
        return;
    }
    let source = log_position(incident).unwrap_or_else(|| source_without_log(incident).to_owned());
    out.push(StyledLine::plain(format!("{:<INDENT$}{source}", "LOG")));
    let blanks = " ".repeat(INDENT);
    for row in rows(&incident.quote, width.saturating_sub(INDENT).max(20)) {
        out.push(match row {
            QuoteRow::Text(text) => StyledLine::plain(blanks.clone() + &text),
            QuoteRow::Annotation(text) => {
                StyledLine(vec![(Tone::Plain, blanks.clone()), (Tone::Mark, text)])
            }
        });
    }
}

/// Returns the source of an incident that was not found in a log.
fn source_without_log(incident: &Incident) -> &'static str {
    match incident.detected_by {
        DetectedBy::Hook => "exception reported by the Python hook",
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
            "{:INDENT$}and {more} more (--json lists them)",
            ""
        )));
    }
}

fn one_line(incident: &Incident) -> StyledLine {
    let position = log_position(incident).unwrap_or_default();
    let times = times(incident).map_or_else(String::new, |t| format!(" ({t})"));
    StyledLine::plain(format!(
        "{position}  {}{times}  {}",
        incident.id, incident.title
    ))
}
