//! Finds values that the layout connects with a name: on the line below it, in the column below it, and in reports of a
//! change or of unexpected input.

use std::ops::Range;

use super::harmless::is_placeholder;
use super::name::{self, Sensitivity};
use super::prose::NameKind;
use super::value;

/// Maximum length of the line of a name, and of a line with its value.
const MAX_LINE: usize = 512;
/// Maximum number of rows of a table, and of columns.
const MAX_ROWS: usize = 64;
const MAX_COLUMNS: usize = 32;
const MAX_PASSWORD: usize = 64;
/// Maximum distance between a name and the report of its value.
const MAX_REPORT: usize = 240;

/// How the line of a name leads to the next line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lead {
    /// A part of a form, or a record with its length: any value follows.
    Field,
    /// `Password:`, `Here is your token:`
    Label,
    /// `argocd admin initial-password`
    Command,
}

/// Returns the value on a line below the name: `Password:`, a blank line, and the password.
pub fn below(text: &[u8], name: &Range<usize>, sensitivity: Sensitivity) -> Option<Range<usize>> {
    if !matches!(sensitivity, Sensitivity::Secret | Sensitivity::Login) {
        return None;
    }
    let line = line_around(text, name)?;
    let mut next = line.end + 1;
    let mut has_length = false;
    for _ in 0..3 {
        let length = line_length(text, next)?;
        let content = text[next..next + length].trim_ascii();
        if !content.is_empty() && !is_length(content) {
            break;
        }
        has_length |= is_length(content);
        next += length + 1;
    }
    let end = next + line_length(text, next)?;
    let lead = match lead(text, name, &line) {
        _ if has_length => Lead::Field,
        lead => lead,
    };
    let content = content(text, next..end);
    let bytes = &text[content.clone()];
    let kind = NameKind::of(&text[name.clone()]);
    let is_likely = value::is_likely_secret(bytes)
        || value::is_grouped(bytes)
        || (kind == NameKind::Code && value::is_code(bytes));
    let is_phrase = || text[name.clone()].to_ascii_lowercase().ends_with(b"phrase");
    let is_secret = match lead {
        Lead::Field => bytes.len() > 2 && value::hides(Sensitivity::Secret, bytes),
        // `2 secrets:` introduces a list of names.
        Lead::Label if text[name.clone()].ends_with(b"s") && kind != NameKind::Code => {
            value::looks_secret(bytes) && value::natural_percent(bytes) < 40
        }
        Lead::Label => is_likely || (is_phrase() && is_word_list(bytes)),
        Lead::Command => {
            value::is_random(bytes)
                || (value::looks_secret(bytes) && value::natural_percent(bytes) < 40)
        }
    };
    let is_one = !bytes.contains(&b' ') || value::is_grouped(bytes) || is_phrase();
    let is_named = sensitivity == Sensitivity::Secret || has_length;
    (is_secret && is_one && is_named).then_some(content)
}

fn lead(text: &[u8], name: &Range<usize>, line: &Range<usize>) -> Lead {
    let before = text[line.start..name.start].trim_ascii();
    let after = text[name.end..line.end].trim_ascii();
    let is_form = after.starts_with(b"\"") && before.ends_with(b"name=\"");
    if is_form || before == b"$" {
        Lead::Field
    } else if after.ends_with(b":") || (before.is_empty() && after.is_empty()) {
        Lead::Label
    } else {
        Lead::Command
    }
}

/// Returns true for the length of a record: `V 10`, `$14`.
fn is_length(line: &[u8]) -> bool {
    let digits = line.strip_prefix(b"V ").or_else(|| line.strip_prefix(b"$")).unwrap_or_default();
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}

/// Returns the content of a line without quotes, bullets and R's index.
fn content(text: &[u8], line: Range<usize>) -> Range<usize> {
    const MARKS: &[u8] = b" \t\"'`*>-|";
    const INDEX: &[u8] = b"[1] ";
    let has_index = text[line.clone()].starts_with(INDEX);
    let from = line.start + if has_index { INDEX.len() } else { 0 };
    let start = from + text[from..line.end].iter().take_while(|b| MARKS.contains(b)).count();
    let trailing =
        text[start..line.end].iter().rev().take_while(|b| b" \t\r\"'`*|".contains(b)).count();
    start..line.end - trailing
}

/// Returns true for the words of a recovery phrase.
fn is_word_list(line: &[u8]) -> bool {
    let words: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
    words.len() >= 6 && words.iter().all(|word| word.iter().all(u8::is_ascii_lowercase))
}

fn line_around(text: &[u8], name: &Range<usize>) -> Option<Range<usize>> {
    let from = name.start.saturating_sub(MAX_LINE);
    let start = memchr::memrchr(b'\n', &text[from..name.start]).map_or(from, |n| from + n + 1);
    let length = line_length(text, name.end)?;
    (name.end + length < text.len()).then_some(start..name.end + length)
}

/// Returns the length of the rest of a line, or `None` at the end of the text or if the line is too long.
fn line_length(text: &[u8], from: usize) -> Option<usize> {
    let rest = text.get(from..)?;
    let near = &rest[..rest.len().min(MAX_LINE)];
    memchr::memchr(b'\n', near)
        .or((rest.len() < MAX_LINE && !rest.is_empty()).then_some(rest.len()))
}

/// Returns the values in reports about the value of a name: `db_password: got 'x'`, `password changed 'x' to 'y'`,
/// `input_value='x'`.
pub fn reported(text: &[u8], name: &Range<usize>, sensitivity: Sensitivity) -> Vec<Range<usize>> {
    const MARKERS: &[&str] = &[
        "->",
        "=>",
        "actual",
        "changed",
        "entered",
        "found",
        "from",
        "got",
        "input",
        "input_value",
        "provided",
        "received",
        "sent",
        "to",
        "was",
        "with",
    ];
    if sensitivity != Sensitivity::Secret {
        return Vec::new();
    }
    let mut end = text.len().min(name.end + MAX_REPORT);
    let line = memchr::memchr(b'\n', &text[name.end..end]).map_or(end, |n| name.end + n);
    // A validator reports the value below the name.
    let is_alone = text[name.end..line].trim_ascii().is_empty();
    if !is_alone {
        end = line;
    }
    let is_token = NameKind::of(&text[name.clone()]) == NameKind::Token;
    let mut found = Vec::new();
    let mut at = if is_alone { line } else { name.end };
    while let Some(open) = memchr::memchr2(b'\'', b'"', &text[at..end]).map(|n| at + n) {
        let Some(close) = memchr::memchr(text[open], &text[open + 1..end]) else { break };
        let value = open + 1..open + 1 + close;
        let bytes = &text[value.clone()];
        let before = text[name.end..open].trim_ascii_end();
        let before = before.strip_suffix(b"=").or(before.strip_suffix(b":")).unwrap_or(before);
        let length = before
            .iter()
            .rev()
            .take_while(|b| b.is_ascii_alphabetic() || b"_->=".contains(b))
            .count();
        let marker = &before[before.len() - length..];
        let is_reported = MARKERS.iter().any(|known| known.as_bytes() == marker);
        let can_be_secret = bytes.len() > 2
            && !bytes.contains(&b' ')
            && !value::is_predicate(bytes)
            && (!is_token || value::is_likely_secret(bytes));
        if is_reported && can_be_secret {
            found.push(value.clone());
        }
        at = value.end + 1;
    }
    found
}

/// Returns the new value after a hidden one: `"old" -> "new"`.
pub fn changed(text: &[u8], from: usize) -> Option<Range<usize>> {
    const ARROWS: &[&str] = &[" -> ", " => ", " → ", " to ", ", got ", " became "];
    let closed = from + usize::from(text.get(from).is_some_and(|b| b"\"'`".contains(b)));
    let arrow = ARROWS.iter().find(|arrow| text[closed..].starts_with(arrow.as_bytes()))?;
    let open = closed + arrow.len();
    let quote = *text.get(open)?;
    let near = &text[open + 1..text.len().min(open + 1 + MAX_LINE)];
    let length = match quote {
        b'"' | b'\'' | b'`' => memchr::memchr(quote, near)?,
        _ => {
            let word = near.iter().take_while(|b| b.is_ascii_graphic()).count();
            return value::is_credential(&text[open..open + 1 + word])
                .then_some(open..open + 1 + word);
        }
    };
    Some(open + 1..open + 1 + length)
}

/// The separator of the cells of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cells {
    Separated(&'static str),
    /// At least two blanks.
    Aligned,
}

/// Returns the cells below a name in the header of a table, and the end of the table.
pub fn columns(text: &[u8], name: &Range<usize>) -> Option<(Vec<Range<usize>>, usize)> {
    let header = line_around(text, name)?;
    let (cells, names) = header_cells(text, &header)?;
    let secret: Vec<usize> = names
        .iter()
        .enumerate()
        .filter(|(_, cell)| is_header_of_secret(&text[(*cell).clone()]))
        .map(|(n, _)| n)
        .collect();
    if secret.is_empty() {
        return None;
    }
    let mut found = Vec::new();
    let mut at = header.end + 1;
    for _ in 0..MAX_ROWS {
        let Some(length) = line_length(text, at) else { break };
        let row = at..at + length;
        let bytes = &text[row.clone()];
        let is_rule = !bytes.is_empty() && !bytes.iter().any(u8::is_ascii_alphanumeric);
        if !is_rule {
            let Some(values) = row_cells(text, cells, &header, &names, &row) else { break };
            found.extend(secret.iter().filter_map(|n| values.get(*n).cloned()).filter(|value| {
                let bytes = &text[value.clone()];
                bytes.len() > 2
                    && bytes.iter().any(|b| !b.is_ascii_digit())
                    && (cells != Cells::Aligned || !bytes.contains(&b' '))
                    && !value::is_predicate(bytes)
                    && value::hides(Sensitivity::Secret, bytes)
                    && !is_placeholder(text, value)
            }));
        }
        at = row.end + 1;
    }
    (!found.is_empty()).then_some((found, at))
}

/// Returns true for the name of a column with secrets. A column of tokens or of passed tests is more often something
/// else.
fn is_header_of_secret(cell: &[u8]) -> bool {
    let lower = cell.to_ascii_lowercase();
    !matches!(lower.as_slice(), b"pass" | b"token" | b"tokens" | b"secrets" | b"key")
        && !name::is_switch(cell)
        && name::sensitivity(cell) == Sensitivity::Secret
}

fn header_cells(text: &[u8], line: &Range<usize>) -> Option<(Cells, Vec<Range<usize>>)> {
    let bytes = &text[line.clone()];
    let separators = ["|", "│", "┃", "\t", ",", ";"].into_iter().map(Cells::Separated);
    separators.chain([Cells::Aligned]).find_map(|cells| {
        let names = match cells {
            Cells::Separated(separator) => separated(text, line, separator),
            Cells::Aligned => aligned(bytes)
                .into_iter()
                .map(|c| line.start + c.start..line.start + c.end)
                .collect(),
        };
        let is_name = |cell: &Range<usize>| {
            cell.len() <= 32
                && text[cell.clone()]
                    .iter()
                    .all(|b| b.is_ascii_alphanumeric() || b" _-.#/()".contains(b) || !b.is_ascii())
        };
        let count = names.iter().filter(|cell| !cell.is_empty()).count();
        let is_header = count >= 2 && names.len() <= MAX_COLUMNS && names.iter().all(is_name);
        is_header.then_some((cells, names))
    })
}

/// Returns the cells of a line between separators, without quotes.
fn separated(text: &[u8], line: &Range<usize>, separator: &str) -> Vec<Range<usize>> {
    let mut start = line.start;
    let mut cells = Vec::new();
    let ends = memchr::memmem::find_iter(&text[line.clone()], separator.as_bytes());
    let ends: Vec<usize> = ends.map(|at| line.start + at).chain([line.end]).collect();
    for end in ends {
        let cell = &text[start..end];
        let leading = cell.iter().take_while(|b| b" \t\"'`\r*".contains(b)).count();
        let rest = &cell[leading..];
        let trailing = rest.iter().rev().take_while(|b| b" \t\"'`\r*".contains(b)).count();
        cells.push(start + leading..end - trailing);
        start = end + separator.len();
    }
    cells
}

/// Returns the words of a line that at least two blanks separate.
fn aligned(line: &[u8]) -> Vec<Range<usize>> {
    let mut cells: Vec<Range<usize>> = Vec::new();
    let mut start = 0;
    for word in line.split(|b| *b == b' ') {
        let range = start..start + word.len();
        start = range.end + 1;
        match cells.last_mut() {
            _ if word.is_empty() => {}
            Some(last) if range.start <= last.end + 1 => last.end = range.end,
            _ => cells.push(range),
        }
    }
    cells
}

fn row_cells(
    text: &[u8],
    cells: Cells,
    header: &Range<usize>,
    names: &[Range<usize>],
    row: &Range<usize>,
) -> Option<Vec<Range<usize>>> {
    match cells {
        Cells::Separated(separator) => {
            Some(separated(text, row, separator)).filter(|values| values.len() == names.len())
        }
        Cells::Aligned => {
            let found = aligned(&text[row.clone()]);
            let at = |name: &Range<usize>| {
                let offset = name.start - header.start;
                let cell = found.iter().find(|cell| cell.start == offset);
                cell.map_or(row.start..row.start, |cell| {
                    row.start + cell.start..row.start + cell.end
                })
            };
            let values: Vec<_> = names.iter().map(at).collect();
            let is_row = values.iter().filter(|cell| !cell.is_empty()).count() >= 2;
            is_row.then_some(values)
        }
    }
}

/// Finds values that the traceback of a debugging library shows below the code: `└ '…'`.
pub fn find_traced(text: &[u8], hidden: &mut Vec<Range<usize>>) {
    for at in memchr::memmem::find_iter(text, "└ '".as_bytes()) {
        let start = at + "└ '".len();
        let near = &text[start..text.len().min(start + MAX_LINE)];
        let length = memchr::memchr2(b'\'', b'\n', near).unwrap_or(near.len());
        hidden.extend(value::is_strong(&near[..length]).then_some(start..start + length));
    }
}

/// Finds the passwords in `host:5432:database:user:password`.
pub fn find_pgpass(text: &[u8], hidden: &mut Vec<Range<usize>>) {
    let ports = memchr::memmem::find_iter(text, b":5432:");
    let any_database = memchr::memmem::find_iter(text, b":*:").filter_map(|at| {
        let digits = text[..at].iter().rev().take(5).take_while(|b| b.is_ascii_digit()).count();
        let port = at.checked_sub(digits + 1)?;
        (digits > 1 && text[port] == b':').then_some(port)
    });
    for at in ports.chain(any_database) {
        let near = &text[at + 1..text.len().min(at + MAX_LINE)];
        let length =
            near.iter().take_while(|b| b.is_ascii_graphic() && !b"\"'/@".contains(b)).count();
        let mut fields = near[..length].splitn(4, |b| *b == b':');
        if let Some(password) = fields.nth(3).filter(|password| password.len() > 2) {
            hidden.push(at + 1 + length - password.len()..at + 1 + length);
        }
    }
}

/// Finds the password in `login with ana / …` and `ana / … (user/password)`.
pub fn find_pairs(text: &[u8], hidden: &mut Vec<Range<usize>>) {
    for at in memchr::memmem::find_iter(text, b" / ") {
        let start = at + 3;
        let length =
            text[start..].iter().take(MAX_PASSWORD).take_while(|b| b.is_ascii_graphic()).count();
        let trailing = text[start..start + length]
            .iter()
            .rev()
            .take_while(|b| b".,;)\"'`".contains(b))
            .count();
        let password = start..start + length - trailing;
        if !value::is_credential(&text[password.clone()]) {
            continue;
        }
        let from = at.saturating_sub(MAX_PASSWORD);
        let end = text.len().min(password.end + MAX_PASSWORD);
        let before = memchr::memrchr(b'\n', &text[from..at]).map_or(from, |n| from + n + 1);
        let after =
            memchr::memchr(b'\n', &text[password.end..end]).map_or(end, |n| password.end + n);
        let line = text[before..after].to_ascii_lowercase();
        let is_login = ["login", "log in", "password", "credential", "sign in", "username"]
            .iter()
            .any(|word| memchr::memmem::find(&line, word.as_bytes()).is_some());
        hidden.extend(is_login.then_some(password));
    }
}
