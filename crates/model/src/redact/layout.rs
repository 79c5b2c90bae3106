//! Finds values that the layout connects with a name: on the line below it, in the column below it, in reports of a
//! change or of unexpected input, and as a part of a record.

use std::ops::Range;

use super::harmless::is_placeholder;
use super::name::{self, Sensitivity, is_one_of};
use super::notation::{MAX_LINE, begins, has, line_end, line_start, near, skip, trim_end};
use super::prose::{NameKind, can_be_secret};
use super::value;

/// Maximum number of rows of a table, and of columns.
const MAX_ROWS: usize = 64;
const MAX_COLUMNS: usize = 32;
const MAX_PASSWORD: usize = 64;
/// Maximum distance between a name and the report of its value.
const MAX_REPORT: usize = 240;

/// Returns the line from a position, or `None` at the end of the text or if the line is too long.
fn whole_line(text: &[u8], from: usize) -> Option<Range<usize>> {
    let end = line_end(text, from.min(text.len()), MAX_LINE);
    (end > from && (end == text.len() || text[end] == b'\n') || text.get(from) == Some(&b'\n'))
        .then_some(from..end)
}

/// Returns the value on a line below the name: `Password:`, a blank line, and the password.
pub fn below(text: &[u8], name: &Range<usize>, sensitivity: Sensitivity) -> Option<Range<usize>> {
    if !matches!(sensitivity, Sensitivity::Secret | Sensitivity::Login) {
        return None;
    }
    let before = text[line_start(text, name.start)..name.start].trim_ascii();
    let end = whole_line(text, name.end).map_or(name.end, |line| line.end);
    let after = text[name.end..end].trim_ascii();
    let mut line = whole_line(text, end + 1)?;
    let mut has_length = false;
    for _ in 0..2 {
        let content = text[line.clone()].trim_ascii();
        // The length of a record: `V 10`, `$14`
        let digits = content.strip_prefix(b"V ").or_else(|| content.strip_prefix(b"$"));
        let is_length = digits.is_some_and(|n| !n.is_empty() && n.iter().all(u8::is_ascii_digit));
        if !content.is_empty() && !is_length {
            break;
        }
        has_length |= is_length;
        line = whole_line(text, line.end + 1)?;
    }
    // Quotes, bullets and R's index
    let index = begins(&text[line.clone()], &["[1] "]).map_or(0, str::len);
    let start = skip(&text[..line.end], line.start + index, b" \t\"'`*>-|");
    let content = trim_end(text, start..line.end, b" \t\r\"'`*|");
    let bytes = &text[content.clone()];
    let kind = NameKind::of(&text[name.clone()]);
    let is_rare = |bytes| value::looks_secret(bytes) && value::natural_percent(bytes) < 40;
    let is_likely = value::is_likely_secret(bytes)
        || value::is_grouped(bytes)
        || (kind == NameKind::Code && value::is_code(bytes));
    let is_phrase = text[name.clone()].to_ascii_lowercase().ends_with(b"phrase");
    let is_field =
        has_length || before == b"$" || (after.starts_with(b"\"") && before.ends_with(b"name=\""));
    let is_label = after.ends_with(b":") || (before.is_empty() && after.is_empty());
    let is_secret = if is_field {
        bytes.len() > 2 && value::hides(Sensitivity::Secret, bytes)
    } else if is_label && text[name.clone()].ends_with(b"s") && kind != NameKind::Code {
        // `2 secrets:` introduces a list of names.
        is_rare(bytes)
    } else if is_label {
        is_likely || (is_phrase && is_word_list(bytes))
    } else {
        // The output of a command: `argocd admin initial-password`
        let is_command = begins(before, &["$ ", "# ", "+ "]).is_some();
        value::is_random(bytes) || is_rare(bytes) || (is_command && value::is_credential(bytes))
    };
    let is_secret = is_secret && (is_field || can_be_secret(bytes));
    let is_one = !bytes.contains(&b' ') || value::is_grouped(bytes) || is_phrase;
    (is_secret && is_one && (sensitivity == Sensitivity::Secret || has_length)).then_some(content)
}

/// Returns true for the words of a recovery phrase.
fn is_word_list(line: &[u8]) -> bool {
    let is_word = |word: &[u8]| word.iter().all(u8::is_ascii_lowercase);
    line.split(|b| *b == b' ').count() >= 6 && line.split(|b| *b == b' ').all(is_word)
}

/// Returns the values in reports about the value of a name: `db_password: got 'x'`, `password changed 'x' to 'y'`,
/// `input_value='x'`, `password: x -> y`.
pub fn reported(text: &[u8], name: &Range<usize>, sensitivity: Sensitivity) -> Vec<Range<usize>> {
    const MARKERS: &str = "-> => actual became changed entered found from got input input_value provided received sent \
        to was with";
    if sensitivity != Sensitivity::Secret {
        return Vec::new();
    }
    let near = near(text, name.end, MAX_REPORT);
    let line = memchr::memchr(b'\n', near).unwrap_or(near.len());
    // A validator reports the value below the name.
    let is_alone = near[..line].trim_ascii().is_empty();
    let (mut at, end) = if is_alone { (line, near.len()) } else { (0, line) };
    let near = &near[..end];
    let is_token = NameKind::of(&text[name.clone()]) == NameKind::Token;
    let mut found = Vec::new();
    while let Some(open) = memchr::memchr3(b'\'', b'"', b'>', &near[at..]).map(|n| at + n) {
        let is_arrow = near[open] == b'>';
        let start = if is_arrow { skip(near, open + 1, b" ") } else { open + 1 };
        let length = if is_arrow {
            near[start..].iter().position(|b| !b.is_ascii_graphic())
        } else {
            memchr::memchr(near[open], &near[start..])
        };
        let value = start..start + length.unwrap_or(near.len() - start);
        at = if is_arrow { start } else { value.end + 1 };
        let bytes = &near[value.clone()];
        let before = near[..open].trim_ascii_end();
        let before = before.strip_suffix(b"=").or(before.strip_suffix(b":")).unwrap_or(before);
        let is_marker = |b: &&u8| b.is_ascii_alphabetic() || b"_->=".contains(b);
        let length = before.iter().rev().take_while(is_marker).count();
        let is_secret = if is_arrow {
            near[..open].ends_with(b" -")
                && !bytes.starts_with(b"\"")
                && value::is_credential(bytes)
        } else {
            is_one_of(&before[before.len() - length..], MARKERS)
                && bytes.len() > 2
                && !bytes.contains(&b' ')
                && !value::is_predicate(bytes)
                && (!is_token || value::is_likely_secret(bytes))
        };
        if is_secret {
            found.push(name.end + value.start..name.end + value.end);
        }
        if at >= near.len() {
            break;
        }
    }
    found
}

/// The separator of the cells of a table without lines.
const BLANKS: &str = "  ";

/// Returns the cells below a name in the header of a table, and the end of the table.
pub fn columns(text: &[u8], name: &Range<usize>) -> Option<(Vec<Range<usize>>, usize)> {
    let header = line_start(text, name.start)..whole_line(text, name.end)?.end;
    let is_name = |cell: &Range<usize>| {
        let bytes = &text[cell.clone()];
        let is_part =
            |b: &u8| b.is_ascii_alphanumeric() || b" _-.#/()".contains(b) || !b.is_ascii();
        bytes.len() <= 32
            && bytes.iter().all(is_part)
            && !bytes.first().is_some_and(u8::is_ascii_digit)
    };
    let (separator, names) =
        ["|", "│", "┃", "\t", ",", ";", BLANKS].into_iter().find_map(|separator| {
            let names = cells(text, &header, separator);
            let count = names.iter().filter(|cell| !cell.is_empty()).count();
            let is_header = count >= 2 && names.len() <= MAX_COLUMNS && names.iter().all(is_name);
            is_header.then_some((separator, names))
        })?;
    // A column of tokens or of passed tests is more often something else.
    let holds_secrets = |cell: &Range<usize>| {
        let cell = &text[cell.clone()];
        !is_one_of(cell, "pass token tokens secrets key")
            && !name::is_switch(cell)
            && name::sensitivity(cell) == Sensitivity::Secret
    };
    let secret: Vec<usize> = (0..names.len()).filter(|n| holds_secrets(&names[*n])).collect();
    let mut found = Vec::new();
    let mut at = header.end + 1;
    for _ in 0..MAX_ROWS {
        let Some(row) = whole_line(text, at).filter(|_| !secret.is_empty()) else { break };
        at = row.end + 1;
        let bytes = &text[row.clone()];
        // A rule
        if !bytes.is_empty() && !bytes.iter().any(u8::is_ascii_alphanumeric) {
            continue;
        }
        let values = cells(text, &row, separator);
        let is_aligned = separator == BLANKS;
        if values.len() < 2 || (!is_aligned && values.len() != names.len()) {
            at = row.start;
            break;
        }
        let below = |n: &usize| {
            if is_aligned {
                let offset = names[*n].start - header.start;
                values.iter().find(|cell| cell.start - row.start == offset).cloned()
            } else {
                Some(values[*n].clone())
            }
        };
        found.extend(secret.iter().filter_map(below).filter(|value| {
            let bytes = &text[value.clone()];
            bytes.len() > 2
                && bytes.iter().any(|b| !b.is_ascii_digit())
                && !(is_aligned && bytes.contains(&b' '))
                && !value::is_predicate(bytes)
                && value::hides(Sensitivity::Secret, bytes)
                && !is_placeholder(text, value)
        }));
    }
    (!found.is_empty()).then_some((found, at))
}

/// Returns the cells of a line between separators, without quotes. Cells between blanks are not empty.
fn cells(text: &[u8], line: &Range<usize>, separator: &str) -> Vec<Range<usize>> {
    const MARKS: &[u8] = b" \t\"'`\r*";
    let ends = memchr::memmem::find_iter(&text[line.clone()], separator.as_bytes());
    let mut start = line.start;
    let mut cells = Vec::new();
    for end in ends.map(|at| line.start + at).chain([line.end]) {
        cells.push(trim_end(text, skip(&text[..end], start, MARKS)..end, MARKS));
        start = end + separator.len();
    }
    cells.retain(|cell| separator != BLANKS || !cell.is_empty());
    cells
}

/// Finds secrets that their place shows: the value that a debugging library prints below the code (`└ '…'`), what a
/// script types (`send "…\r"`), the password in `login with ana / …`, and that in `host:5432:database:user:password`.
pub fn find_in_records(text: &[u8], hidden: &mut Vec<Range<usize>>) {
    for at in memchr::memmem::find_iter(text, "└ '".as_bytes()) {
        let start = at + "└ '".len();
        let near = near(text, start, MAX_LINE);
        let length = memchr::memchr2(b'\'', b'\n', near).unwrap_or(near.len());
        hidden.extend(value::is_strong(&near[..length]).then_some(start..start + length));
    }
    for end in memchr::memmem::find_iter(text, b"\\r\"") {
        let from = end.saturating_sub(MAX_PASSWORD);
        let start = memchr::memrchr(b'"', &text[from..end]).map_or(end, |n| from + n + 1);
        hidden.extend(value::is_credential(&text[start..end]).then_some(start..end));
    }
    for at in memchr::memmem::find_iter(text, b" / ") {
        const LOGINS: [&str; 6] =
            ["login", "log in", "password", "credential", "sign in", "username"];
        let near = near(text, at + 3, MAX_PASSWORD);
        let length = near.iter().take_while(|b| b.is_ascii_graphic()).count();
        let password = trim_end(text, at + 3..at + 3 + length, b".,;)\"'`");
        if value::is_credential(&text[password.clone()]) {
            let from = line_start(text, at).max(at.saturating_sub(MAX_PASSWORD));
            let line = &text[from..line_end(text, at, 2 * MAX_PASSWORD)].to_ascii_lowercase();
            hidden.extend(LOGINS.iter().any(|word| has(line, word)).then_some(password));
        }
    }
    for at in
        [":5432:", ":*:"].iter().flat_map(|port| memchr::memmem::find_iter(text, port.as_bytes()))
    {
        let is_part = |b: &&u8| b.is_ascii_graphic() && !b"\"'/@".contains(b);
        let start = at - text[..at].iter().rev().take(MAX_PASSWORD).take_while(is_part).count();
        let record = near(text, start, MAX_LINE);
        let record = &record[..record.iter().take_while(is_part).count()];
        let mut fields = record.splitn(5, |b| *b == b':');
        let port = fields.nth(1).unwrap_or_default();
        let is_port = port == b"*" || (port.len() > 1 && port.iter().all(u8::is_ascii_digit));
        let password = fields.nth(2).filter(|word| is_port && word.len() > 2);
        let end = start + record.len();
        hidden.extend(password.map(|password| end - password.len()..end));
    }
}
