//! Redacts the values of sensitive names, in any notation that connects a name with its value.
//!
//! A name is found first (`name.rs`). Then the text after it decides: `TOKEN=…`, `"token": "…"`, `Token: …`,
//! `setenv("TOKEN", "…")`, `Token("…")`, `<token>…</token>`, `- name: TOKEN\n  value: …`, `| token | … |`, `--token …`,
//! `TOKEN …` at the start of a line, and sentences (`prose.rs`).

use std::ops::Range;

use super::call::{acl_password, bracketed, called, identified_by, inserted, protocol_login};
use super::flag;
use super::harmless;
use super::layout;
use super::markup::{is_cell, markup, tags, value_attribute};
use super::name::{self, Sensitivity};
use super::prose;
use super::quotes::{Quotes, end_of_line, end_of_value, inside_quotes, without_quotes};
use super::value;
use super::word::{MAX_TAGS, bare_end, is_name_byte, is_variable_name, skip};

/// Maximum number of bytes to search after a possibly sensitive name.
const MAX_DOUBTFUL: usize = 256;
/// Maximum length of a name, and of the tags after it.
const MAX_NAME: usize = 128;
/// How a value is connected with its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    /// `=`, `:` and the like.
    Sign,
    /// `("TOKEN", "…")`
    Argument,
    /// `<token>…</token>`
    Markup,
    /// `| token | … |`
    Cell,
}

/// Returns the start of a value that must be hidden in an argument of the form `NAME=value` or `--name=value`. The
/// value extends to the end of the argument.
pub fn value_of_argument(argument: &[u8]) -> Option<usize> {
    let equals = argument.iter().position(|&b| b == b'=')?;
    let (name, value) = (&argument[..equals], &argument[equals + 1..]);
    let is_name = !name.is_empty() && name.iter().all(|b| is_name_byte(*b) || b"+/@~:".contains(b));
    let hides = is_name
        && value::hides(name::sensitivity(name), value)
        && !harmless::is_file_of(name, value);
    hides.then_some(equals + 1)
}

pub fn find(text: &[u8], hidden: &mut Vec<Range<usize>>) {
    let mut quotes = Quotes::default();
    let mut done = 0;
    let mut end_of_table = 0;
    for stem in name::stems().find_iter(text) {
        if stem.start() < done {
            continue;
        }
        let name = name_around(text, stem.range(), done);
        done = name.end;
        quotes.advance(text, name.start);
        let phrase = prose::phrase(text, &name);
        let sensitivity = sensitivity(text, &name, &phrase);
        let value = scheme_value(text, &name)
            .or_else(|| value_of(text, &name, &phrase, sensitivity, quotes.open));
        let is_shown =
            |value: &Range<usize>| value.is_empty() || harmless::is_placeholder(text, value);
        if let Some(mut value) = value.filter(|value| !is_shown(value)) {
            value.end = value.end.max(value.start + value::groups_length(&text[value.start..]));
            hidden.extend(layout::reported(text, &name, sensitivity));
            done = done.max(value.end);
            let changed = layout::changed(text, value.end);
            hidden.extend(changed.filter(|value| !is_shown(value)));
            hidden.push(value);
        } else if sensitivity != Sensitivity::Plain {
            hidden.extend(layout::reported(text, &name, sensitivity));
            if let Some(value) = layout::below(text, &name, sensitivity) {
                done = done.max(value.end);
                hidden.push(value);
            } else if sensitivity == Sensitivity::Secret
                && name.start >= end_of_table
                && let Some((values, end)) = layout::columns(text, &name)
            {
                end_of_table = end;
                hidden.extend(values);
            }
        }
    }
}

fn name_around(text: &[u8], stem: Range<usize>, from: usize) -> Range<usize> {
    let from = from.max(stem.start.saturating_sub(MAX_NAME));
    let before = text[from..stem.start].iter().rev().take_while(|b| is_name_byte(**b)).count();
    // Languages without spaces continue after the name: `密码是…`.
    let is_wide = text[stem.end - 1] >= 0x80 && text[stem.start] >= 0xe2;
    let end = if is_wide { stem.end } else { end_of_name(text, stem.end) };
    // A full stop ends a sentence, and a hyphen belongs to an arrow.
    let trailing = text[stem.end..end].iter().rev().take_while(|b| b".-".contains(b)).count();
    stem.start - before..end - trailing
}

/// Returns the credentials after the name of an authentication scheme: `Bearer 8f2c…`, `Basic YW5h…`.
fn scheme_value(text: &[u8], name: &Range<usize>) -> Option<Range<usize>> {
    let word = &text[name.clone()];
    let is_bearer = word.eq_ignore_ascii_case(b"bearer");
    if !is_bearer && !word.eq_ignore_ascii_case(b"basic") {
        return None;
    }
    let start = skip(text, name.end, b" \t");
    let value = start..bare_end(text, start, end_of_value(text, start, None));
    let credentials = without_quotes(&text[value.clone()]);
    let is_base64 = || {
        credentials.len() >= 8
            && credentials.iter().all(|b| b.is_ascii_alphanumeric() || b"+/=-_".contains(b))
            && !value::is_word(credentials)
    };
    let is_hidden = match is_bearer {
        // `WWW-Authenticate: Bearer realm="…"`
        true => {
            !value::is_predicate(credentials)
                && !value::is_reference(credentials)
                && ![&b"realm="[..], b"scope=", b"error="]
                    .iter()
                    .any(|p| credentials.starts_with(p))
        }
        false => is_base64(),
    };
    (start > name.end && is_hidden && !credentials.starts_with(b"-")).then_some(value)
}

fn value_of(
    text: &[u8],
    name: &Range<usize>,
    phrase: &Range<usize>,
    sensitivity: Sensitivity,
    quote: Option<u8>,
) -> Option<Range<usize>> {
    if let Some(value) =
        inserted(text, name, sensitivity).or_else(|| called(text, name, sensitivity))
    {
        return Some(value);
    }
    let name = &(name.start..phrase.end);
    let within = match sensitivity {
        Sensitivity::Plain => {
            return identified_by(text, name).or_else(|| acl_password(text, name));
        }
        // Limit the search, because only short values can look like a secret and hostile text would make the search
        // quadratic.
        Sensitivity::Doubtful | Sensitivity::Login | Sensitivity::Folder => {
            &text[..text.len().min(name.end + MAX_DOUBTFUL)]
        }
        Sensitivity::Secret => text,
    };
    if let Some(value) = flag::value(text, name) {
        return Some(value);
    }
    if let Some((link, start)) = link(within, name) {
        let value = linked_value(within, name, quote, sensitivity, link, start)?;
        // The value may be longer than what was searched.
        let rest = text[value.end..].iter().take_while(|b| b.is_ascii_graphic());
        let is_cut = within.len() < text.len() && value.end == within.len();
        return Some(value.start..value.end + if is_cut { rest.count() } else { 0 });
    }
    match sensitivity {
        Sensitivity::Secret => prose::value(text, name, phrase),
        Sensitivity::Login => protocol_login(text, name).or_else(|| prose::login(text, name)),
        Sensitivity::Doubtful => prose::signature(text, name),
        _ => None,
    }
}

/// Returns the sensitivity of a name, with the words before it: `API key`, but also `first token`.
fn sensitivity(text: &[u8], name: &Range<usize>, phrase: &Range<usize>) -> Sensitivity {
    let alone = name::sensitivity(&text[name.clone()]);
    let with_words = name::sensitivity(&text[phrase.clone()]);
    if matches!(&text[name.clone()], b"code" | b"t" | b"key")
        && text[..name.start].last().is_some_and(|b| b"?&".contains(b))
    {
        return Sensitivity::Doubtful;
    }
    let depends_on_words =
        matches!(&text[name.clone()], b"token" | b"pass" | b"secret" | b"Secret");
    match (alone, with_words) {
        (Sensitivity::Doubtful, Sensitivity::Plain)
            if text[phrase.clone()].contains(&b' ')
                && name::is_public_key(&text[phrase.clone()]) =>
        {
            Sensitivity::Plain
        }
        (Sensitivity::Doubtful, _) if harmless::is_cache_key(text, name) => Sensitivity::Plain,
        (Sensitivity::Secret, with_words) if depends_on_words => with_words,
        (_, Sensitivity::Secret) => Sensitivity::Secret,
        (alone, _) => alone,
    }
}

fn linked_value(
    text: &[u8],
    name: &Range<usize>,
    quote: Option<u8>,
    mut sensitivity: Sensitivity,
    link: Link,
    start: usize,
) -> Option<Range<usize>> {
    let between = &text[name.end..start];
    let quote = quote.filter(|quote| !between.contains(quote));
    let start = start + wrapper(&text[start..]);
    let is_line = link == Link::Sign && is_header(&text[name.clone()], &text[start..], between);
    let up_to = |end| memchr::memchr2(end, b'\n', &text[start..]).map_or(text.len(), |n| start + n);
    let value = match link {
        Link::Markup => start..up_to(b'<'),
        Link::Cell => start..up_to(b'|'),
        Link::Sign if is_line && text.get(start) != Some(&b'"') => {
            start..end_of_line(text, start, quote)
        }
        Link::Sign => match bracketed(text, start) {
            Some(literal) => {
                // `auth=('ana', '…')`
                if sensitivity == Sensitivity::Login && text[start] == b'(' {
                    sensitivity = Sensitivity::Secret;
                }
                literal
            }
            None => match in_brackets(text, start) {
                Some(value) => value,
                None => start..end_of_value(text, start, quote),
            },
        },
        Link::Argument => start..end_of_value(text, start, quote),
    };
    let is_quoted = without_quotes(&text[value.clone()]).len() < value.len();
    let is_whole =
        is_quoted || is_line || (quote.is_some() && text.get(value.end) == quote.as_ref());
    let value = match is_whole {
        true => inside_quotes(text, value),
        false => value.start..bare_end(text, value.start, value.end),
    };
    let value = value.start..value.start + text[value].trim_ascii_end().len();
    let bare = text[value.clone()].trim_ascii_start();
    if is_line && harmless::are_settings(bare) {
        return None;
    }
    let is_other = match link {
        // A list of names: `['HF_HOME', 'HF_TOKEN', 'LANG']`
        Link::Argument => {
            let is_word = bare.iter().all(u8::is_ascii_alphabetic);
            is_variable_name(bare)
                || bare.starts_with(b"-")
                || (is_word && is_in_list(text, name.start))
        }
        Link::Cell => value::is_predicate(bare),
        Link::Sign => !is_quoted && prose::is_sentence(text, name, &value, between),
        Link::Markup => false,
    };
    // The closing brackets of `${{ secrets.TOKEN }}` are not part of the value.
    let with_brackets = &text[value.start..text.len().min(value.end + 2)];
    let is_expression = !is_quoted
        && (value::is_expression(bare) || value::is_reference(with_brackets.trim_ascii()));
    // `?key=…` in a URL is the key of an API.
    let is_query = sensitivity == Sensitivity::Doubtful
        && text[..name.start].last().is_some_and(|b| b"?&".contains(b));
    // `token: Token` and `token=token`
    let is_same = !is_quoted && bare.eq_ignore_ascii_case(&text[name.clone()]);
    if is_other
        || harmless::is_file_of(&text[name.clone()], bare)
        || is_same
        || is_vocabulary(text, name, &value)
        || is_expression
        || value::is_reference(bare)
        || is_number(&text[name.clone()], bare)
    {
        None
    } else if value::hides(sensitivity, bare) || (is_query && value::is_credential(bare)) {
        Some(value)
    } else {
        after_user(text, value.end).filter(|_| sensitivity == Sensitivity::Login)
    }
}

/// Returns the word in brackets: `password=<…>`, `password: […]`.
fn in_brackets(text: &[u8], start: usize) -> Option<Range<usize>> {
    let close = match text.get(start)? {
        b'<' => b'>',
        b'[' => b']',
        b'{' => b'}',
        _ => return None,
    };
    let near = &text[start + 1..text.len().min(start + 1 + MAX_TAGS)];
    let length = memchr::memchr(close, near)?;
    let word = &near[..length];
    let is_word = !word.iter().any(|b| b.is_ascii_whitespace() || b"\"'<>[]{}=:/,".contains(b));
    (is_word && value::is_likely_secret(word)).then_some(start + 1..start + 1 + length)
}

/// Returns the password in `login: ana / …`.
fn after_user(text: &[u8], user_end: usize) -> Option<Range<usize>> {
    let rest = text[user_end..].strip_prefix(b" / ")?;
    let length = rest.iter().take_while(|b| !b.is_ascii_whitespace()).count();
    let start = user_end + 3;
    value::is_credential(&rest[..length]).then(|| start..start + length)
}

/// Returns true for headers and other names whose value has several words: `Authorization: Basic YW5h…`, `Cookie: a=b;
/// c=d`, `seed phrase: legal winner …`.
fn is_header(name: &[u8], value: &[u8], separator: &[u8]) -> bool {
    const SCHEMES: &[&[u8]] = &[
        b"apikey",
        b"aws4-hmac-sha256",
        b"basic",
        b"bearer",
        b"digest",
        b"dpop",
        b"geniekey",
        b"negotiate",
        b"ntlm",
        b"oauth",
        b"splunk",
        b"ssws",
        b"token",
    ];
    let name = name.to_ascii_lowercase();
    let value = &value[skip(value, 0, b"[({")..];
    let first =
        value.split(|b| !b.is_ascii_alphanumeric() && *b != b'-').next().unwrap_or_default();
    let has_scheme = || {
        SCHEMES.iter().any(|scheme| first.eq_ignore_ascii_case(scheme))
            && value.get(first.len()) == Some(&b' ')
    };
    let has_colon = || separator.ends_with(b": ") || separator.ends_with(b":");
    let is_authorization = name.ends_with(b"authorization");
    let is_cookie = name.ends_with(b"cookie") || name.ends_with(b"cookies");
    let is_phrase = [&b"phrase"[..], b"mnemonic"].iter().any(|ending| name.ends_with(ending));
    ((is_authorization || is_cookie) && has_colon())
        || (is_authorization && has_scheme())
        || (is_cookie && value.first().is_some_and(u8::is_ascii_alphabetic))
        || is_phrase
}

/// Returns true for a number that is not a secret: `PASS: 120`, `t_token=1.53`.
fn is_number(name: &[u8], value: &[u8]) -> bool {
    // `PASS: nvlink` is the result of a test.
    if name == b"PASS" && (value::is_word(value) || value.iter().any(|b| b"_/:".contains(b))) {
        return true;
    }
    let name = name.to_ascii_lowercase();
    let is_fraction = value.contains(&b'.');
    let is_number =
        value.iter().all(|b| b.is_ascii_digit() || *b == b'.') && (is_fraction || value.len() < 7);
    is_number && (name.ends_with(b"token") || name == b"pass")
}

/// Returns true for a token of a language model: `'pass', '##word'`, `token=' Paris' logprob=-0.1`.
fn is_vocabulary(text: &[u8], name: &Range<usize>, value: &Range<usize>) -> bool {
    const MAX_SCORE: usize = 32;
    let begins = |piece: &str| text[value.clone()].starts_with(piece.as_bytes());
    let rest = &text[value.end..text.len().min(value.end + MAX_SCORE)];
    let has = |score: &str| memchr::memmem::find(rest, score.as_bytes()).is_some();
    ["##", "Ġ", "▁"].into_iter().any(begins)
        || (text[name.clone()].ends_with(b"token")
            && ["prob", "score", "rank=", " id="].into_iter().any(has))
}

/// Returns true in a list, as opposed to the arguments of a call: `['HF_HOME', 'HF_TOKEN', 'LANG']`.
fn is_in_list(text: &[u8], at: usize) -> bool {
    let before = &text[at.saturating_sub(MAX_TAGS)..at];
    before.iter().rposition(|b| b"([{)]}\n".contains(b)).is_some_and(|at| before[at] == b'[')
}

fn end_of_name(text: &[u8], start: usize) -> usize {
    let is_name =
        |at: &usize| is_name_byte(text[*at]) && end_of_wide_separator(text, *at).is_none();
    let limit = text.len().min(start + MAX_NAME);
    let limit = memchr::memmem::find(&text[start..limit], b"..").map_or(limit, |n| start + n);
    (start..limit).find(|at| !is_name(at)).unwrap_or(limit)
}

/// Returns the end of a full-width colon or equals sign, as typed on Chinese and Japanese keyboards, of an arrow, or of
/// a word of these languages for "is".
fn end_of_wide_separator(text: &[u8], start: usize) -> Option<usize> {
    ["\u{ff1a}", "\u{ff1d}", "→", "是", "为", "は"]
        .iter()
        .find(|wide| text[start..].starts_with(wide.as_bytes()))
        .map(|wide| start + wide.len())
}

/// Returns how the name is connected with the text after it, and where its value starts.
fn link(text: &[u8], name: &Range<usize>) -> Option<(Link, usize)> {
    let closed = skip(text, name.end, b"\\\"'`])}*");
    let closing = &text[name.end..closed];
    // `input[type=password]:focus` in a style sheet
    let before = text[..name.start].strip_suffix(b"\"").unwrap_or(&text[..name.start]);
    if closing.contains(&b']') && before.ends_with(b"[type=") {
        return None;
    }
    let is_quoted = closing.iter().any(|b| b"\"'`".contains(b));
    let start = skip(text, closed, b" \t");
    if text[start..].starts_with(b"...") {
        // `token ......: …`
        return Some((Link::Sign, skip(text, start, b".: \t")));
    }
    let start = after_note(text, start);
    let start = match text[start..].starts_with(b"</") {
        true => tags(text, start).filter(|end| end_of_sign(text, *end).is_some()).unwrap_or(start),
        false => start,
    };
    if let Some(end) = end_of_sign(text, start) {
        // `**Password:** …` and `<b>Password:</b> …`
        let end = skip(text, end, b"*_");
        let is_value =
            harmless::is_placeholder(text, &(end..end)) || in_brackets(text, end).is_some();
        let end = match is_value {
            true => end,
            false => tags(text, end).unwrap_or(end),
        };
        let end = skip(text, end, b" \t");
        return Some((Link::Sign, after_line_break(text, name, end)));
    }
    if let Some(end) =
        value_attribute(text, closed).filter(|_| is_quoted || is_value_of_name(text, name))
    {
        return Some((Link::Sign, end));
    }
    if let Some(end) = markup(text, name, closed) {
        return Some((Link::Markup, end));
    }
    // `Dim password As String = "…"`
    if let Some(end) =
        text[start..].strip_prefix(b"As String = ").map(|rest| text.len() - rest.len())
    {
        return Some((Link::Sign, end));
    }
    let quote = text[..name.start].last();
    let is_string =
        is_quoted && !closing.contains(&b')') && quote.is_some_and(|b| b"\"'`".contains(b));
    let is_in_braces = text[..name.start].ends_with(b"{");
    match text.get(start) {
        Some(b',') if is_string || is_in_braces || is_variable_name(&text[name.clone()]) => {
            let start = skip(text, start + 1, b" \t\n");
            let literal = start + wrapper(&text[start..]);
            let is_literal = text.get(literal).is_some_and(|b| b"\"'`\\".contains(b));
            is_literal.then_some((Link::Argument, start))
        }
        Some(b'|') if is_cell(text, name.start) => {
            Some((Link::Cell, skip(text, start + 1, b" \t`")))
        }
        _ if text[closed..start].contains(&b'\t') => Some((Link::Sign, start)),
        _ => None,
    }
}

/// Returns the position after a note between a name and its separator: `password [ana]:`.
fn after_note(text: &[u8], start: usize) -> usize {
    const MAX_NOTE: usize = 40;
    let close = match text.get(start) {
        Some(b'[') => b']',
        // `def get_token(self):` is a function.
        Some(b'(') if text[..start].ends_with(b" ") => b')',
        _ => return start,
    };
    let note = &text[start..text.len().min(start + MAX_NOTE)];
    let end = memchr::memchr2(close, b'\n', note).map(|end| start + end + 1);
    end.filter(|end| end_of_sign(text, *end).is_some()).unwrap_or(start)
}

/// Returns the end of `=`, `:`, `:=`, `=>`, `->` and the like, but not of `token://`, which is the scheme of a URL, or
/// `token::new`, which is a path.
fn end_of_sign(text: &[u8], start: usize) -> Option<usize> {
    if let Some(end) = end_of_wide_separator(text, start) {
        return Some(end);
    }
    if text[start..].starts_with(b"->") {
        return Some(start + 2);
    }
    if text[start..].starts_with(b"<<<") {
        return Some(start + 3);
    }
    let begin = start
        + if text[start..].starts_with(b"||=") || text[start..].starts_with(b"??=") {
            2
        } else {
            0
        };
    let end = skip(text, begin, b":=>");
    let is_sign = matches!(text.get(begin), Some(b':' | b'='));
    let is_path = text[start..end].starts_with(b"::")
        && text.get(end) != Some(&b' ')
        && !is_workflow_command(text, start);
    let is_other = text[end..].starts_with(b"//") || is_path;
    // `token: string = '…'`
    let is_typed = text[start..end] == *b":";
    let typed = is_typed.then(|| {
        let kind = skip(text, end, b" ");
        let rest = &text[kind..];
        let length = rest
            .iter()
            .take_while(|b| b.is_ascii_alphanumeric() || b"[]_.<>&|?".contains(b))
            .count();
        let after = skip(text, kind + length, b" ");
        let is_kind = matches!(
            &rest[..length],
            b"str" | b"string" | b"String" | b"&str" | b"Optional[str]" | b"SecretStr"
        );
        (is_kind && text.get(after) == Some(&b'=')).then_some(after + 1)
    });
    (is_sign && !is_other).then(|| typed.flatten().unwrap_or(end))
}

/// Returns true for the commands of GitHub Actions: `::add-mask::…`, `::set-output name=token::…`.
fn is_workflow_command(text: &[u8], at: usize) -> bool {
    let before = &text[at.saturating_sub(MAX_NAME)..at];
    let line = memchr::memrchr(b'\n', before).map_or(before, |n| &before[n + 1..]);
    [&b"::add-mask"[..], b"::set-output ", b"::save-state "]
        .iter()
        .any(|command| memchr::memmem::find(line, command).is_some())
}

/// In YAML and after a flag, the value may be on the next line: `password:\n  8f2c`.
fn after_line_break(text: &[u8], name: &Range<usize>, start: usize) -> usize {
    let line = memchr::memrchr(b'\n', &text[name.start.saturating_sub(MAX_NAME)..name.start])
        .map_or(name.start.min(MAX_NAME), |at| name.start.min(MAX_NAME) - at - 1);
    let start = match text[start..] {
        [b'|' | b'>', b'-' | b'+', b'\n', ..] => start + 2,
        [b'|' | b'>', b'\n', ..] => start + 1,
        _ => start,
    };
    let before = &text[name.start - line..name.start];
    // PHP prints `["password"]=>` and the value below.
    let before = before.strip_suffix(b"[\"").unwrap_or(before);
    let indent = before.iter().take_while(|b| b" \t".contains(b)).count();
    if before.len() > indent || text.get(start) != Some(&b'\n') {
        return start;
    }
    let next = skip(text, start + 1, b" \t");
    let is_deeper = next - start - 1 > indent;
    let line = &text[next..end_of_line(text, next, None)];
    let has_name = line.windows(2).any(|pair| pair == b": ") || line.ends_with(b":");
    match is_deeper && !has_name {
        true => next + if line.starts_with(b"- ") { 2 } else { 0 },
        false => start,
    }
}

/// Returns true if the name is itself the value of `name:` or `key:`.
fn is_value_of_name(text: &[u8], name: &Range<usize>) -> bool {
    let before = text[name.start.saturating_sub(16)..name.start].trim_ascii_end();
    let Some(key) = before.strip_suffix(b":").or_else(|| before.strip_suffix(b"=")) else {
        return false;
    };
    let key = key.to_ascii_lowercase();
    key.ends_with(b"name") || key.ends_with(b"key")
}

/// Returns the length of what may be before a value: the prefix of a string literal, and the constructors of debug
/// output, as in `b'…'`, `Some("…")`, `SecretStr('…')`.
fn wrapper(value: &[u8]) -> usize {
    const CALLS: &[&str] = &[
        "Some(",
        "SecretStr(",
        "SecretString(",
        "Secret(",
        "Just(",
        "Ok(",
        "string(",
        "String(",
        "<<",
        "&",
        "@",
    ];
    let mut at = 0;
    // A type in YAML: `!vault …`
    if value.starts_with(b"!") {
        let kind =
            value.iter().take(16).take_while(|b| **b == b'!' || b.is_ascii_alphabetic()).count();
        at = if value.get(kind) == Some(&b' ') { kind + 1 } else { 0 };
    }
    // PHP's `string(9) "…"`, Go's `(len=9) "…"` and a debugger's `0x5555 "…"`
    const MAX_NOTE: usize = 24;
    let note = &value[..value.len().min(MAX_NOTE)];
    if let Some(end) = memchr::memmem::find(note, b" \"")
        && (note[..end].ends_with(b")") && memchr::memchr(b'(', &note[..end]).is_some()
            || note.starts_with(b"0x"))
        && (!note[..end].contains(&b' ') || note.starts_with(b"("))
    {
        at = end + 1;
    }
    while let Some(call) = CALLS.iter().find(|call| value[at..].starts_with(call.as_bytes())) {
        at += call.len();
    }
    match &value[at..] {
        [b'b' | b'r' | b'f' | b'u' | b'L', b'"' | b'\'', ..] => at + 1,
        [b'"' | b'\'' | b'`', ..] => at,
        _ if at > 1 => at,
        _ => 0,
    }
}
