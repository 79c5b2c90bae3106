//! Formats explanations as text, for a terminal or a plain file.

use std::fmt::Write as _;

use gputop_model::incident::{Cause, Verdict};
use gputop_model::{DetectedBy, Incident};
use unicode_width::UnicodeWidthStr;

use super::lines::{StyledLine, Tone, Wrapped, labelled, wrap_lines};
use super::quote::{QuoteRow, rows};
use crate::export::explanation::words::{log_position, name, subject, times};

/// Column at which the text of an explanation's section begins.
pub(super) const INDENT: usize = 6;
/// Width of the longest verdict on a cause (such as `ruled out`) plus two spaces.
const VERDICT_WIDTH: usize = 11;

/// Marks a shortened excerpt, if there is room for it.
const CUT: &str = " [...]";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// The first incident, shortened to fit on one screen of 80 × 24 cells.
    Short {
        /// The option or command that shows what is omitted, for the last line.
        more: &'static str,
    },
    /// The first incident with all suggested checks and the AVOID section.
    Full,
    All,
}

struct TextLimits {
    fixes: usize,
    avoid: usize,
    causes: usize,
    checks: usize,
    secondary: usize,
    quote: usize,
}

/// Maximum number of fixes in a full explanation. After five failed fixes, a sixth is unlikely to help.
pub const MAX_FIXES: usize = 5;

impl TextLimits {
    /// Limits for a full explanation. `--json` has no such limits.
    const FULL: Self =
        Self { fixes: MAX_FIXES, avoid: 4, causes: 6, checks: 2, secondary: 4, quote: usize::MAX };
    const SHORT: Self = Self { fixes: 4, avoid: 0, causes: 3, checks: 0, secondary: 2, quote: 9 };
}

/// Maximum number of lines of a short explanation. With the prompt below, it fits into a terminal of 24 lines.
const MAX_SHORT_LINES: usize = 23;

/// Maximum number of lines for other incidents below a short explanation.
const MAX_SHORT_OTHERS: usize = 4;

#[derive(Debug, Clone, Copy)]
pub struct Style {
    /// Line width in terminal cells.
    pub width: usize,
    pub colour: bool,
    /// Height of the terminal in lines, or `None` if the text is not for a terminal. Commands and code are wrapped only
    /// for a terminal, which would break them within words.
    pub height: Option<usize>,
}

/// Formats the first incident in full and each other incident in one line, or all incidents in full.
pub fn text(incidents: &[Incident], detail: Detail, style: &Style) -> String {
    let mut lines = Vec::new();
    let full = if detail == Detail::All { incidents.len() } else { 1 };
    let rest = incidents.get(full..).unwrap_or_default();
    // Reserve lines for a blank line, the heading of the other incidents, and some of these incidents.
    let reserved = if rest.is_empty() { 0 } else { 2 + rest.len().min(MAX_SHORT_OTHERS) };
    for (n, incident) in incidents.iter().take(full).enumerate() {
        if n > 0 {
            lines.push(StyledLine::default());
        }
        lines.extend(match detail {
            Detail::Short { more } => {
                let mut short = short(incident, style, MAX_SHORT_LINES - reserved - 1);
                if short.len() < limited(incident, style, &TextLimits::FULL).len() {
                    short.push(StyledLine(vec![(
                        Tone::Dim,
                        format!("{more} shows more causes, checks and advice"),
                    )]));
                }
                short
            }
            Detail::Full | Detail::All => limited(incident, style, &TextLimits::FULL),
        });
    }
    if !rest.is_empty() {
        let max = match detail {
            Detail::Short { .. } => {
                let free = |height: usize| height.saturating_sub(printed_lines(&lines) + 3);
                style.height.map_or(usize::MAX, |height| free(height.max(MAX_SHORT_LINES + 1)))
            }
            Detail::Full | Detail::All => usize::MAX,
        };
        lines.extend(others(rest, incidents, max));
    }
    let mut out = String::new();
    for line in &lines {
        let _ = writeln!(out, "{}", line.printed(style.colour));
    }
    out
}

/// Returns a heading with the number of incidents in `rest`, and one line for each of the first `max` incidents.
fn others(rest: &[Incident], all: &[Incident], max: usize) -> Vec<StyledLine> {
    let log = |incident: &Incident| incident.log.as_ref().map(|log| log.file.clone());
    let is_same_log = rest.iter().all(|one| log(one) == log(&all[0]));
    let word = if is_same_log { "EARLIER" } else { "OTHERS" };
    let number = match rest.len() {
        1 => "1 incident".to_owned(),
        n => format!("{n} incidents"),
    };
    let listed = if max < rest.len() { format!(", {max} listed") } else { String::new() };
    let heading = format!("{word}  {number}{listed} (use --all to explain them)");
    let mut lines = vec![StyledLine::default(), StyledLine::plain(heading)];
    lines.extend(rest.iter().take(max).map(one_line));
    lines
}

/// Returns the number of terminal lines that `lines` occupies. A single entry with text to copy can span several lines.
fn printed_lines(lines: &[StyledLine]) -> usize {
    let pieces = lines.iter().flat_map(|line| &line.0);
    let breaks: usize = pieces.map(|(_, text)| text.matches('\n').count()).sum();
    lines.len() + breaks
}

/// Formats one incident in full, wrapped to `width` cells. Text to copy starts at the beginning of a line and is not
/// wrapped.
pub fn lines(incident: &Incident, width: usize) -> Vec<StyledLine> {
    let style = Style { width, colour: false, height: None };
    limited(incident, &style, &TextLimits::FULL)
}

/// Formats an incident in at most `max_lines` lines if possible. The least important parts are shortened first.
fn short(incident: &Incident, style: &Style, max_lines: usize) -> Vec<StyledLine> {
    let mut limits = TextLimits::SHORT;
    // Show a check if there is no cause, because running the check is then the next step.
    limits.checks = usize::from(incident.causes.is_empty());
    loop {
        let lines = limited(incident, style, &limits);
        if printed_lines(&lines) <= max_lines {
            return lines;
        }
        match &mut limits {
            TextLimits { secondary: n @ 1.., .. }
            | TextLimits { quote: n @ 5.., .. }
            | TextLimits { causes: n @ 3.., .. }
            | TextLimits { fixes: n @ 4.., .. }
            | TextLimits { quote: n @ 2.., .. }
            | TextLimits { fixes: n @ 3.., .. } => *n -= 1,
            _ => return lines,
        }
    }
}

fn limited(incident: &Incident, style: &Style, limits: &TextLimits) -> Vec<StyledLine> {
    let width = style.width;
    let mut out = vec![head(incident, width)];
    label(&mut out, "", &incident.title, 0, width);
    if let Some(why) = &incident.why_first {
        label(&mut out, "", why, 0, width);
    }
    if let Some(at) = &incident.at {
        if INDENT + at.width() <= width {
            out.push(StyledLine::plain(format!("{:<INDENT$}{at}", "WHERE")));
        } else {
            label(&mut out, "WHERE", at, INDENT, width);
        }
    }
    out.push(StyledLine::default());
    fixes(&mut out, incident, width, limits);
    causes(&mut out, incident, width, limits);
    excerpt(&mut out, incident, width, limits.quote);
    secondary(&mut out, incident, width, limits.secondary);
    match style.height {
        Some(_) => wrap_lines(out, incident, width, Wrapped::Equivalent),
        None => out,
    }
}

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

/// Formats an explanation's first line: `OUT OF MEMORY  GPU 0  train.py 418        oom-fragmentation`.
fn head(incident: &Incident, width: usize) -> StyledLine {
    let mut left = incident.headline.clone();
    // A narrow line has no room for the ID: the subject says more.
    let id = match left.len() + 2 + incident.id.len() {
        needed if needed <= width => incident.id.as_str(),
        _ => "",
    };
    let mut rest = subject(incident);
    rest.extend(times(incident));
    for part in rest {
        // Omit parts that do not fit before the right-aligned ID. The same values are available in the incident's
        // fields.
        let tail = if id.is_empty() { 0 } else { 2 + id.len() };
        if left.len() + 2 + part.len() + tail <= width {
            left = format!("{left}  {part}");
        }
    }
    let gap = if id.is_empty() { 0 } else { width.saturating_sub(left.len() + id.len()).max(2) };
    let tail = left[incident.headline.len()..].to_owned() + &" ".repeat(gap);
    StyledLine(vec![
        (Tone::Head(incident.severity), incident.headline.clone()),
        (Tone::Plain, tail),
        (Tone::Dim, id.to_owned()),
    ])
}

fn fixes(out: &mut Vec<StyledLine>, incident: &Incident, width: usize, limits: &TextLimits) {
    for (n, fix) in incident.fixes.iter().take(limits.fixes).enumerate() {
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
            // Replace the spaces before the number with the section name.
            text.drain(..word.len());
            pieces.insert(0, (Tone::Strong, word.to_owned()));
        }
        out.push(StyledLine(vec![(Tone::Change, fix.change.clone())]));
    }
    for (n, advice) in incident.not_helpful.iter().take(limits.avoid).enumerate() {
        let word = if n == 0 { "AVOID" } else { "" };
        label(out, word, advice, INDENT + 3, width);
    }
    out.push(StyledLine::default());
}

fn causes(out: &mut Vec<StyledLine>, incident: &Incident, width: usize, limits: &TextLimits) {
    let is_short = limits.avoid == 0;
    let shown =
        incident.causes.iter().filter(|cause| !is_short || cause.verdict != Verdict::RuledOut);
    for (n, cause) in shown.take(limits.causes).enumerate() {
        let word = if n == 0 { "WHY" } else { "" };
        let word = format!("{word:<INDENT$}{}", cause.verdict.words());
        label(out, &word, &cause.title, INDENT + VERDICT_WIDTH, width);
        if let Some(evidence) = evidence(cause) {
            label(out, "", &evidence, INDENT + VERDICT_WIDTH + 2, width);
        }
    }
    for (n, check) in incident.needs.iter().take(limits.checks).enumerate() {
        let word = if n == 0 { "CHECK" } else { "" };
        label(out, word, check, INDENT, width);
    }
    if out.last().is_some_and(|line| !line.0.is_empty()) {
        out.push(StyledLine::default());
    }
}

/// Returns the evidence for a cause: `8.02 GiB cached in fragments, 2.00 GiB requested`. If there is no evidence,
/// returns a check that would provide it.
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
        (true, true) => cause.needs.as_deref().map(check),
    }
}

/// Formats what would prove a cause: `To check: run nvidia-smi`, or `Check the port number`.
pub(in crate::export) fn check(needs: &str) -> String {
    match needs.strip_prefix("check ") {
        Some(what) => format!("Check {what}"),
        None => format!("To check: {needs}"),
    }
}

fn excerpt(out: &mut Vec<StyledLine>, incident: &Incident, width: usize, max_rows: usize) {
    if incident.quote.is_empty() {
        return;
    }
    let source = log_position(incident).unwrap_or_else(|| source_without_log(incident).to_owned());
    let word = if incident.detected_by == DetectedBy::Ranks { "RANKS" } else { "LOG" };
    out.push(StyledLine::plain(format!("{word:<INDENT$}{source}")));
    let blanks = " ".repeat(INDENT);
    if let Some(note) = gpu_numbers(incident) {
        out.push(StyledLine(vec![(Tone::Plain, blanks.clone()), (Tone::Dim, note)]));
    }
    let rows = rows(&incident.quote, width.saturating_sub(INDENT).max(20));
    let is_cut = rows.len() > max_rows;
    for row in rows.into_iter().take(max_rows) {
        out.push(match row {
            QuoteRow::Text(text) => StyledLine::plain(blanks.clone() + &text),
            QuoteRow::Annotation(text) => {
                StyledLine(vec![(Tone::Plain, blanks.clone()), (Tone::Mark, text)])
            }
        });
    }
    if is_cut && let Some(StyledLine(pieces)) = out.last_mut() {
        let used: usize = pieces.iter().map(|(_, text)| text.width()).sum();
        if used + CUT.width() <= width {
            pieces.push((Tone::Dim, CUT.to_owned()));
        }
    }
}

/// Explains a GPU number in the message that differs from the GPU's number on the host: `GPU 0 in the program is GPU 2
/// here`. A program numbers only the GPUs that are visible to it.
fn gpu_numbers(incident: &Incident) -> Option<String> {
    let here = incident.fields.gpu_index?;
    let (_, rest) = incident.quote.text.split_once("GPU ")?;
    let own: u32 = rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()?;
    (own != here).then(|| format!("GPU {own} in the program is GPU {here} here"))
}

/// Describes where an incident's message came from if it was not found in a log.
fn source_without_log(incident: &Incident) -> &'static str {
    match incident.detected_by {
        DetectedBy::Hook => "exception reported by the Python hook",
        DetectedBy::Xid => "reported by the driver (NVML)",
        DetectedBy::Ranks => "read from the process groups of the ranks",
        _ => "",
    }
}

fn secondary(out: &mut Vec<StyledLine>, incident: &Incident, width: usize, max: usize) {
    for (n, one) in incident.secondary.iter().take(max).enumerate() {
        let times = times(one).map_or_else(String::new, |t| format!(" ({t})"));
        let line = format!("{}{times}: {}", name(one), one.title);
        label(out, if n == 0 { "THEN" } else { "" }, &line, INDENT, width);
    }
    let more = incident.secondary.len().saturating_sub(max);
    if more > 0 && max > 0 {
        out.push(StyledLine::plain(format!("{:INDENT$}and {more} more (--json lists them)", "")));
    }
}

fn one_line(incident: &Incident) -> StyledLine {
    let position = log_position(incident).unwrap_or_default();
    let times = times(incident).map_or_else(String::new, |t| format!(" ({t})"));
    StyledLine::plain(format!("{position}  {}{times}  {}", incident.id, incident.title))
}
