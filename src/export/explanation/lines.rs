//! Wraps text to a width in terminal cells.

use gputop_model::Incident;
use gputop_model::Severity;
use gputop_model::incident::FixKind;
use gputop_model::text::Escaped;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Kind of text in an explanation. The terminal and the dashboard choose their own colours for each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    Plain,
    /// The headline.
    Head(Severity),
    Strong,
    Dim,
    /// Text for the user to copy.
    Change,
    /// Annotation under a log excerpt.
    Mark,
}

/// A line of an explanation, as pieces of styled text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StyledLine(pub Vec<(Tone, String)>);

impl StyledLine {
    pub(super) fn plain(text: impl Into<String>) -> Self {
        Self(vec![(Tone::Plain, text.into())])
    }

    /// Formats the line for a terminal. Escapes control characters in the text before adding colours.
    pub fn printed(&self, colour: bool) -> String {
        let piece = |(tone, text): &(Tone, String)| match tone.code().filter(|_| colour) {
            Some(code) => format!("\x1b[{code}m{}\x1b[0m", Escaped(text)),
            None => Escaped(text).to_string(),
        };
        self.0.iter().map(piece).collect()
    }
}

impl Tone {
    /// Returns the terminal's SGR code for the tone.
    pub(super) fn code(self) -> Option<&'static str> {
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

/// Wraps `text` to `width`. Code between backticks stays on one line if it fits. A word that is wider than `width` gets a
/// line of its own.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in words_and_code(text, width) {
        let word = word.as_str();
        match lines.last_mut() {
            Some(line) if line.width() + 1 + word.width() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Splits `text` at spaces, except within code between backticks that is not wider than `width`.
fn words_and_code(text: &str, width: usize) -> Vec<String> {
    let is_open = |piece: &str| piece.matches('`').count() % 2 == 1;
    let mut pieces: Vec<String> = Vec::new();
    let mut words = text.split_whitespace();
    while let Some(word) = words.next() {
        let mut piece = word.to_owned();
        let mut ahead = words.clone();
        while is_open(&piece) && piece.width() <= width {
            let Some(next) = ahead.next() else { break };
            piece.push(' ');
            piece.push_str(next);
        }
        if !is_open(&piece) && piece.width() <= width {
            words = ahead;
            pieces.push(piece);
        } else {
            pieces.push(word.to_owned());
        }
    }
    pieces
}

/// Appends `text` after `label`, which is padded to `indent` cells. Further lines are indented by the same amount.
pub(super) fn labelled(out: &mut String, label: &str, text: &str, indent: usize, width: usize) {
    let mut label = format!("{label:<indent$}");
    for line in wrapped(text, width.saturating_sub(indent).max(16)) {
        out.push_str(&label);
        out.push_str(&line);
        out.push('\n');
        label = " ".repeat(indent);
    }
}

/// Text to copy that [`wrap_lines`] wraps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrapped {
    /// Only shell commands and code, which mean the same on several lines.
    Equivalent,
    All,
}

/// Wraps the overlong lines of an explanation.
pub fn wrap_lines(
    lines: Vec<StyledLine>,
    incident: &Incident,
    width: usize,
    wrapped: Wrapped,
) -> Vec<StyledLine> {
    let kind_of = |text: &str| {
        let fix = incident.fixes.iter().find(|fix| fix.change == text);
        fix.map(|fix| fix.kind)
    };
    let mut out = Vec::new();
    for line in lines {
        match line.0.as_slice() {
            // Only text to copy can have several lines.
            [(Tone::Change, text)] => {
                let kind = kind_of(text);
                let is_command = matches!(kind, Some(FixKind::Env | FixKind::Command));
                let parts: Vec<String> = match kind {
                    Some(FixKind::Code) => {
                        text.split('\n').flat_map(|part| code_lines(part, width)).collect()
                    }
                    _ => text.split('\n').map(str::to_owned).collect(),
                };
                for part in parts {
                    let part = StyledLine(vec![(Tone::Change, part)]);
                    if is_command || wrapped == Wrapped::All {
                        out.extend(wrap_line(part, width, is_command));
                    } else {
                        out.push(part);
                    }
                }
            }
            _ => out.extend(wrap_line(line, width, false)),
        }
    }
    out
}

/// Wraps an overlong line of Python between statements and within brackets, so that all its lines together mean the
/// same. A comment gets lines of its own.
fn code_lines(line: &str, width: usize) -> Vec<String> {
    if line.width() <= width {
        return vec![line.to_owned()];
    }
    let (code, comment) = line.split_once("  # ").unwrap_or((line, ""));
    let mut lines = Vec::new();
    for statement in statements(code, width) {
        lines.extend(broken_in_brackets(statement, width));
    }
    let comment = wrapped(comment, width.saturating_sub(2));
    lines.extend(comment.iter().map(|text| format!("# {text}")));
    lines
}

/// Splits a line of Python into statements. The body of `for x in y: body` becomes an indented block.
fn statements(code: &str, width: usize) -> Vec<String> {
    const COMPOUND: [&str; 5] = ["for ", "with ", "if ", "while ", "def "];
    let ends = |mark: &str| -> Vec<usize> {
        let at = code.match_indices(mark).map(|(at, _)| at);
        at.filter(|at| open_brackets(&code[..*at]) == Some(0)).collect()
    };
    if code.width() <= width {
        return vec![code.to_owned()];
    }
    let mut indent = code.len() - code.trim_start().len();
    let is_compound = COMPOUND.iter().any(|word| code.trim_start().starts_with(word));
    let (mut out, mut from) = (Vec::new(), 0);
    if let Some(header) = ends(": ").first().filter(|_| is_compound) {
        out.push(code[..=*header].to_owned());
        (from, indent) = (header + 2, indent + 4);
    }
    for end in ends("; ").into_iter().chain([code.len()]) {
        out.push(" ".repeat(indent) + code[from..end].trim_start());
        from = (end + 2).min(code.len());
    }
    out
}

/// Breaks an overlong statement after commas and opening brackets.
fn broken_in_brackets(statement: String, width: usize) -> Vec<String> {
    let indent = statement.len() - statement.trim_start().len() + 4;
    let mut lines = Vec::new();
    let (mut rest, mut done) = (statement.as_str(), 0);
    let mut prefix = String::new();
    while prefix.len() + rest.width() > width {
        let is_break = |at: &usize| {
            let before = &rest[..*at];
            prefix.len() + before.trim_end().width() <= width
                && (before.ends_with(['(', '[', '{']) || before.ends_with(", "))
                && open_brackets(&statement[..done + at]).is_some_and(|open| open > 0)
        };
        let ends = rest.char_indices().map(|(at, c)| at + c.len_utf8());
        let Some(end) = ends.rev().find(is_break) else {
            break;
        };
        lines.push(prefix + rest[..end].trim_end());
        (rest, done, prefix) = (&rest[end..], done + end, " ".repeat(indent));
    }
    lines.push(prefix + rest);
    lines
}

/// Returns the number of brackets that are open at the end of `code`, or `None` within a string.
fn open_brackets(code: &str) -> Option<usize> {
    let (mut open, mut quote) = (0_usize, None);
    for c in code.chars() {
        match (quote, c) {
            (Some(mark), _) if c == mark => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '(' | '[' | '{') => open += 1,
            (None, ')' | ']' | '}') => open = open.saturating_sub(1),
            _ => {}
        }
    }
    quote.is_none().then_some(open)
}

/// Wraps an overlong line at a space or within a path, without losing text. A continued shell command line ends with a
/// backslash, so that copying all its lines yields the same command. It is not broken between single quotes, where a
/// backslash does not continue a line.
fn wrap_line(line: StyledLine, width: usize, is_command: bool) -> Vec<StyledLine> {
    let is_wide = line.0.iter().map(|(_, text)| text.width()).sum::<usize>() > width;
    let has_marks = line.0.iter().any(|(tone, _)| *tone == Tone::Mark);
    if !is_wide || has_marks || width == 0 {
        return vec![line];
    }
    let room = width.saturating_sub(usize::from(is_command)).max(1);
    let all: Vec<(Tone, char)> =
        line.0.iter().flat_map(|(tone, text)| text.chars().map(|c| (*tone, c))).collect();
    let mut rest = all.as_slice();
    let mut lines = Vec::new();
    while let Some(end) = line_end(rest, room, is_command) {
        let (first, after) = rest.split_at(end);
        lines.push(styled(first));
        if let Some(StyledLine(pieces)) = lines.last_mut().filter(|_| is_command) {
            pieces.push((Tone::Change, "\\".to_owned()));
        }
        rest = after;
    }
    lines.push(styled(rest));
    lines
}

/// Returns the number of characters in the first wrapped line, or `None` if the whole line fits or cannot be broken.
fn line_end(text: &[(Tone, char)], width: usize, is_command: bool) -> Option<usize> {
    let mut used = 0;
    let mut end = None;
    let mut is_quoted = false;
    for (at, (_, c)) in text.iter().enumerate() {
        used += c.width().unwrap_or(0);
        if used > width && at > 0 && (end.is_some() || !is_quoted) {
            return Some(end.unwrap_or(at));
        }
        is_quoted ^= is_command && *c == '\'';
        if matches!(c, ' ' | '/') && !is_quoted {
            end = Some(at + 1);
        }
    }
    None
}

/// Joins consecutive characters with the same tone.
fn styled(text: &[(Tone, char)]) -> StyledLine {
    let mut pieces: Vec<(Tone, String)> = Vec::new();
    for (tone, c) in text {
        match pieces.last_mut() {
            Some((last, piece)) if last == tone => piece.push(*c),
            _ => pieces.push((*tone, c.to_string())),
        }
    }
    StyledLine(pieces)
}

#[cfg(test)]
mod tests;
