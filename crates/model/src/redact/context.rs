//! Redacts the values of sensitive names, in any notation that connects a name with a value.
//!
//! A name is found first (`name.rs`). Then the text after it decides (`notation.rs`): `TOKEN=…`, `"token": "…"`, `Token:
//! …`, `setenv("TOKEN", "…")`, `Token("…")`, `<token>…</token>`, `- name: TOKEN\n  value: …`, `| token | … |`, `--token …`,
//! `TOKEN …` at the start of a line, and sentences (`prose.rs`).

use std::ops::Range;

use super::name::{self, Sensitivity, is_one_of};
use super::notation::{
    self, MAX_LINE, MAX_TAGS, QUOTES, Quotes, bare_end, begins, end_of_line, end_of_sign,
    end_of_value, has, in_brackets, inside_quotes, is_name_byte, line_start, literals, near, skip,
    tags, wrapper,
};
use super::{flag, harmless, layout, prose, value};

/// Maximum number of bytes to search after a possibly sensitive name.
const MAX_DOUBTFUL: usize = 256;

/// How a value is connected with its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NameLink {
    /// `=`, `:` and the like.
    Sign,
    /// `("TOKEN", "…")`
    Argument,
    /// `<token>…</token>`
    Markup,
    /// `| token | … |`
    Cell,
    /// `--token …`
    Flag,
}

/// Returns the start of a value that must be hidden in an argument of the form `NAME=value` or `--name=value`. The
/// value extends to the end of the argument.
pub fn value_of_argument(argument: &[u8]) -> Option<usize> {
    let equals = argument.iter().position(|&b| b == b'=')?;
    let (name, value) = (&argument[..equals], &argument[equals + 1..]);
    let is_name = !name.is_empty() && name.iter().all(|b| is_name_byte(*b) || b"+/@~:".contains(b));
    let hides = is_name && value::hides(name::sensitivity(name), value);
    (hides && !harmless::is_file(name, value)).then_some(equals + 1)
}

pub fn find(text: &[u8], hidden: &mut Vec<Range<usize>>) {
    let mut quotes = Quotes::default();
    let mut done = 0;
    let mut end_of_table = 0;
    for stem in name::stems().find_iter(text) {
        if stem.start() < done {
            continue;
        }
        let name = notation::name_around(text, stem.range(), done);
        done = name.end;
        quotes.advance(text, name.start);
        let phrase = prose::phrase(text, &name);
        let sensitivity = sensitivity(text, &name, &phrase);
        let value = scheme_value(text, &name)
            .or_else(|| value_of(text, &name, &phrase, sensitivity, quotes.open));
        let is_shown =
            |value: &Range<usize>| value.is_empty() || harmless::is_placeholder(text, value);
        let value = value.filter(|value| !is_shown(value));
        if sensitivity != Sensitivity::Plain || value.is_some() {
            hidden.extend(layout::reported(text, &name, sensitivity));
        }
        if let Some(mut value) = value {
            value.end = value.end.max(value.start + value::groups_length(&text[value.start..]));
            done = done.max(value.end);
            hidden.push(value);
        } else if let Some(value) = layout::below(text, &name, sensitivity) {
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

/// Returns the credentials after the name of an authentication scheme: `Bearer 8f2c…`, `Basic YW5h…`.
fn scheme_value(text: &[u8], name: &Range<usize>) -> Option<Range<usize>> {
    let word = &text[name.clone()];
    let start = skip(text, name.end, b" \t");
    if start == name.end || !is_one_of(word, "bearer basic") {
        return None;
    }
    let value = start..bare_end(text, start, end_of_value(text, start, None));
    let credentials = &text[inside_quotes(text, value.clone())];
    let is_hidden = match is_one_of(word, "bearer") {
        // `WWW-Authenticate: Bearer realm="…"`
        true => {
            !value::is_predicate(credentials)
                && prose::can_be_secret(credentials)
                && begins(credentials, &["-", "' ", "\" "]).is_none()
        }
        false => {
            credentials.len() >= 8
                && credentials.iter().all(|b| b.is_ascii_alphanumeric() || b"+/=-_".contains(b))
                && !value::is_word(credentials)
                && credentials[0] != b'-'
        }
    };
    is_hidden.then_some(value)
}

fn value_of(
    text: &[u8],
    name: &Range<usize>,
    phrase: &Range<usize>,
    sensitivity: Sensitivity,
    quote: Option<u8>,
) -> Option<Range<usize>> {
    if let Some(value) = called(text, name, sensitivity) {
        return Some(value);
    }
    let name = &(name.start..phrase.end);
    let within = match sensitivity {
        Sensitivity::Plain => return None,
        Sensitivity::Secret => text,
        // Limit the search, because only short values can look like a secret and hostile text would make the search
        // quadratic.
        _ => &text[..text.len().min(name.end + MAX_DOUBTFUL)],
    };
    if let Some(value) = inserted(text, name, sensitivity) {
        return Some(value);
    }
    if let Some((link, start)) = link(within, name) {
        let value = linked_value(within, name, quote, sensitivity, link, start)?;
        // The value may be longer than what was searched.
        let rest = text[value.end..].iter().take_while(|b| b.is_ascii_graphic());
        let is_cut = within.len() < text.len() && value.end == within.len();
        return Some(value.start..value.end + if is_cut { rest.count() } else { 0 });
    }
    prose::value(text, name, phrase, sensitivity)
}

/// Returns the sensitivity of a name, with the words before it: `API key`, but also `first token`.
fn sensitivity(text: &[u8], name: &Range<usize>, phrase: &Range<usize>) -> Sensitivity {
    let word = &text[name.clone()];
    let alone = name::sensitivity(word);
    let with_words = if phrase == name { alone } else { name::sensitivity(&text[phrase.clone()]) };
    let is_query = text[..name.start].last().is_some_and(|b| b"?&".contains(b));
    // IRC's and SQL's `IDENTIFY …`
    if matches!(word, b"IDENTIFY" | b"IDENTIFIED" | b"identified") {
        return Sensitivity::Secret;
    }
    match (alone, with_words) {
        (Sensitivity::Folder, _) => alone,
        (Sensitivity::Doubtful, _) | (_, Sensitivity::Secret)
            if harmless::is_public_key(text, name) =>
        {
            Sensitivity::Plain
        }
        _ if is_query && matches!(word, b"code" | b"t" | b"key") => Sensitivity::Doubtful,
        (Sensitivity::Doubtful, Sensitivity::Plain)
            if phrase.start < name.start && name::is_public_key(&text[phrase.clone()]) =>
        {
            Sensitivity::Plain
        }
        (Sensitivity::Secret, with_words)
            if matches!(word, b"token" | b"pass" | b"secret" | b"Secret") =>
        {
            with_words
        }
        (_, Sensitivity::Secret) => Sensitivity::Secret,
        (alone, _) => alone,
    }
}

fn linked_value(
    text: &[u8],
    name: &Range<usize>,
    quote: Option<u8>,
    mut sensitivity: Sensitivity,
    link: NameLink,
    start: usize,
) -> Option<Range<usize>> {
    let between = &text[name.end..start];
    let quote = quote.filter(|quote| !between.contains(quote));
    let start = start + wrapper(&text[start..]);
    let is_line = link == NameLink::Sign && is_header(&text[name.clone()], &text[start..], between);
    let up_to = |end| memchr::memchr2(end, b'\n', &text[start..]).map_or(text.len(), |n| start + n);
    let value = match link {
        NameLink::Markup => start..up_to(b'<'),
        NameLink::Cell => start..up_to(b'|'),
        NameLink::Sign if is_line && !text.get(start).is_some_and(|b| b"'\"".contains(b)) => {
            start..end_of_line(text, start, quote)
        }
        NameLink::Sign => {
            let list = bracketed(text, start);
            // `auth=('ana', '…')`
            if list.is_some() && sensitivity == Sensitivity::Login && text[start] == b'(' {
                sensitivity = Sensitivity::Secret;
            }
            list.or_else(|| in_brackets(text, start))
                .unwrap_or_else(|| start..end_after_sign(text, start, quote, between))
        }
        NameLink::Argument | NameLink::Flag => start..end_of_value(text, start, quote),
    };
    let is_quoted = inside_quotes(text, value.clone()) != value;
    let is_whole =
        is_quoted || is_line || (quote.is_some() && text.get(value.end) == quote.as_ref());
    let value = if is_whole {
        inside_quotes(text, value)
    } else {
        value.start..bare_end(text, value.start, value.end)
    };
    let value = value.start..value.start + text[value].trim_ascii_end().len();
    let bare = text[value.clone()].trim_ascii_start();
    // `?key=…` in a URL is the key of an API.
    let is_query = sensitivity == Sensitivity::Doubtful
        && text[..name.start].last().is_some_and(|b| b"?&".contains(b));
    let hides = value::hides(sensitivity, bare) || (is_query && value::is_credential(bare));
    let is_settings = is_line && harmless::are_settings(bare);
    (hides && !is_settings && !is_shown(text, name, link, between, &value, is_quoted))
        .then_some(value)
}

/// Returns true for a value that its link or its form shows to be something other than a secret.
fn is_shown(
    text: &[u8],
    name: &Range<usize>,
    link: NameLink,
    between: &[u8],
    value: &Range<usize>,
    is_quoted: bool,
) -> bool {
    /// Beginnings of schemas and regular expressions. A password may begin with a parenthesis.
    const PATTERNS: &[&str] =
        &["{\"", "(\\", "(?:", "(?P<", "(.*", "(.+", "([^", "([0-", "([A-", "([a-", "\\S", "\\w"];
    let word = &text[name.clone()];
    let bare = text[value.clone()].trim_ascii_start();
    let is_other = match link {
        // A list of names: `['HF_HOME', 'HF_TOKEN', 'LANG']`
        NameLink::Argument => {
            harmless::is_variable_name(bare)
                || bare.starts_with(b"-")
                || (bare.iter().all(u8::is_ascii_alphabetic) && is_in_list(text, name.start))
        }
        NameLink::Cell => value::is_predicate(bare),
        NameLink::Flag => flag::is_no_value(bare, &text[value.end..]),
        // A schema, a pattern and a note: `"password": {"type": "string"}`, `token=(\w+)`, `chpasswd: (user ana) …`
        NameLink::Sign if begins(bare, PATTERNS).is_some() => true,
        NameLink::Sign
            if !is_quoted
                && between.ends_with(b" ")
                && matches!(bare, [b'(', note @ ..] if !note.contains(&b')') && !value::is_likely_secret(note)) =>
        {
            true
        }
        NameLink::Sign => {
            // `secret: name=hf-secret`
            let names_another = between.ends_with(b": ")
                && prose::is_assignment(bare)
                && !is_header(word, bare, between);
            !is_quoted
                && (names_another
                    || prose::is_sentence(text, name, value, between)
                    || is_next_field(text, name, bare, between))
        }
        // `'--password <PASSWORD>' requires a value`
        NameLink::Markup => {
            text.get(value.start).is_some_and(|b| b" \"'])".contains(b))
                && !text[value.end..].starts_with(b"</")
        }
    };
    is_other
        || is_vocabulary(text, name, value)
        || is_number(word, bare)
        || harmless::is_reference(bare)
        || harmless::is_file(word, bare)
        || (is_quoted && text[value.start - 1] == b'`' && bare.contains(&b' '))
        || (!is_quoted && (harmless::is_expression(bare) || is_same(word, between, bare)))
}

/// Returns the end of a value after a sign. After a colon and a blank, there is no shell whose operators end it.
fn end_after_sign(text: &[u8], start: usize, quote: Option<u8>, between: &[u8]) -> usize {
    let mut end = end_of_value(text, start, quote);
    let goes_on = |end: usize| matches!(text[end..], [b';' | b'&' | b'|', next, ..] if next.is_ascii_alphanumeric());
    while between.ends_with(b": ") && goes_on(end) {
        end = end_of_value(text, end + 1, quote);
    }
    end
}

/// Returns true for the name itself as its value: `token: Token`, `self._password = password`, and for the name of a
/// secret that is elsewhere: `--secret=hf-token`. `DB_PASSWORD=password` is a setting.
fn is_same(name: &[u8], between: &[u8], value: &[u8]) -> bool {
    let (names, values) = (name::words(name), name::words(value));
    // A blank before the sign
    let is_apart = between.split_last().is_some_and(|(_, sign)| sign.contains(&b' '));
    let is_name = names == values || (is_apart && names.ends_with(&values));
    (is_name && values.concat().len() + values.len() > value.len())
        // A type: `secret: SecretString`
        || (between == b": "
            && values.len() > 1
            && values.first() == names.last()
            && value[0].is_ascii_uppercase()
            && value.iter().all(u8::is_ascii_alphabetic))
        || (names == ["secret"]
            && value.iter().all(|b| b.is_ascii_lowercase() || *b == b'-')
            && values.len() > 1
            && name::sensitivity(value) != Sensitivity::Plain)
}

/// Returns true for the field after an empty one in Go's output: `{User:ana Password: Port:5432}`.
fn is_next_field(text: &[u8], name: &Range<usize>, value: &[u8], between: &[u8]) -> bool {
    let length = value.iter().take_while(|b| b.is_ascii_alphabetic()).count();
    between == b": "
        && length > 0
        && value.get(length) == Some(&b':')
        && text[line_start(text, name.start)..name.start].iter().any(|b| b"{[".contains(b))
}

/// Returns true for headers and other names whose value has several words: `Authorization: Basic YW5h…`, `Cookie: a=b;
/// c=d`, `seed phrase: legal winner …`.
fn is_header(name: &[u8], value: &[u8], separator: &[u8]) -> bool {
    const SCHEMES: &str = "apikey aws4-hmac-sha256 basic bearer digest dpop geniekey negotiate ntlm oauth splunk ssws \
        token";
    let name = name.to_ascii_lowercase();
    let value = &value[skip(value, 0, b"[({")..];
    let length = value.iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'-').count();
    let has_scheme = || is_one_of(&value[..length], SCHEMES) && value.get(length) == Some(&b' ');
    let has_colon = separator.ends_with(b": ") || separator.ends_with(b":");
    let ends = |ending: &str| name.ends_with(ending.as_bytes());
    if ends("authorization") {
        has_colon || has_scheme()
    } else if ends("cookie") || ends("cookies") {
        has_colon || value.first().is_some_and(u8::is_ascii_alphabetic)
    } else {
        ends("phrase") || ends("mnemonic")
    }
}

/// Returns true for a number that is not a secret, and for the result of a test: `PASS: 120`, `t_token=1.53`, `PASS:
/// nvlink`.
fn is_number(name: &[u8], value: &[u8]) -> bool {
    let is_result = value::is_word(value) || value.iter().any(|b| b"_/:".contains(b));
    let is_number = value.iter().all(|b| b.is_ascii_digit() || *b == b'.')
        && (value.contains(&b'.') || value.len() < 7);
    let is_count = name.to_ascii_lowercase().ends_with(b"token") || is_one_of(name, "pass");
    (name == b"PASS" && is_result) || (is_number && is_count)
}

/// Returns true for a token of a language model: `'pass', '##word'`, `token=' Paris' logprob=-0.1`.
fn is_vocabulary(text: &[u8], name: &Range<usize>, value: &Range<usize>) -> bool {
    const MAX_SCORE: usize = 32;
    let rest = near(text, value.end, MAX_SCORE);
    begins(&text[value.clone()], &["##", "Ġ", "▁"]).is_some()
        || (text[name.clone()].ends_with(b"token")
            && ["prob", "score", "rank=", " id="].iter().any(|score| has(rest, score)))
}

/// Returns true in a list, as opposed to the arguments of a call: `['HF_HOME', 'HF_TOKEN', 'LANG']`.
fn is_in_list(text: &[u8], at: usize) -> bool {
    let before = &text[at.saturating_sub(MAX_TAGS)..at];
    before.iter().rposition(|b| b"([{)]}\n".contains(b)).is_some_and(|at| before[at] == b'[')
}

/// Returns how the name is connected with the text after it, and where its value starts.
fn link(text: &[u8], name: &Range<usize>) -> Option<(NameLink, usize)> {
    let closed = skip(text, name.end, b"\\\"'`])}*");
    let closing = &text[name.end..closed];
    // `input[type=password]:focus` in a style sheet
    let before = text[..name.start].strip_suffix(b"\"").unwrap_or(&text[..name.start]);
    // `${PASSWORD:?missing}`, but not `${PASSWORD:-8f2c}`, and `-v /run/secrets:/run/secrets:ro`
    let is_path =
        matches!(before, [.., dir, b'/'] if is_name_byte(*dir)) && text[closed..].starts_with(b":");
    if is_path
        || (closing.contains(&b']') && before.ends_with(b"[type="))
        || (before.ends_with(b"${") && !harmless::has_default(&text[name.end..]))
    {
        return None;
    }
    let is_quoted = closing.iter().any(|b| QUOTES.contains(b));
    let start = skip(text, closed, b" \t");
    if text[start..].starts_with(b"...") {
        // `token ......: …`
        return Some((NameLink::Sign, skip(text, start, b".: \t")));
    }
    let start = notation::after_note(text, start);
    let start = if text[start..].starts_with(b"</") {
        tags(text, start).filter(|end| end_of_sign(text, *end).is_some()).unwrap_or(start)
    } else {
        start
    };
    if let Some(end) = end_of_sign(text, start) {
        // `**Password:** …` and `<b>Password:</b> …`
        let is_emphasized = text[..name.start].last().is_some_and(|b| b"*_".contains(b));
        let end = skip(text, end, if is_emphasized { b"*_" } else { b"" });
        let is_value =
            harmless::is_placeholder(text, &(end..end)) || in_brackets(text, end).is_some();
        let end = tags(text, end).filter(|_| !is_value).unwrap_or(end);
        let end = skip(text, end, b" \t");
        return Some((NameLink::Sign, notation::after_line_break(text, name, end)));
    }
    let attribute = notation::value_attribute(text, closed)
        .filter(|_| is_quoted || is_value_of_name(text, name));
    if let Some(start) = attribute {
        return Some((NameLink::Sign, start));
    }
    if let Some(end) = notation::markup(text, name, closed) {
        return Some((NameLink::Markup, end));
    }
    if let Some(start) = flag::value_start(text, name) {
        return Some((NameLink::Flag, start));
    }
    if text.get(start) == Some(&b'|') && is_cell(text, name.start) {
        return Some((NameLink::Cell, skip(text, start + 1, b" \t`")));
    }
    let is_argument = text.get(start) == Some(&b',');
    is_argument
        .then(|| argument(text, name, closing, start))
        .flatten()
        .or_else(|| text[closed..start].contains(&b'\t').then_some((NameLink::Sign, start)))
}

/// Returns the start of the literal after a name that is an argument: `("TOKEN", "…")`.
fn argument(
    text: &[u8],
    name: &Range<usize>,
    closing: &[u8],
    start: usize,
) -> Option<(NameLink, usize)> {
    let quote = text[..name.start].last();
    // A value: `"method":"password","result":"denied"`
    let is_value = begins(&text[name.start.saturating_sub(2)..], &[":\"", ":'"]).is_some();
    let is_string = closing.iter().any(|b| QUOTES.contains(b))
        && !closing.contains(&b')')
        && !is_value
        && quote.is_some_and(|b| QUOTES.contains(b));
    let is_name =
        is_string || quote == Some(&b'{') || harmless::is_variable_name(&text[name.clone()]);
    let start = skip(text, start + 1, b" \t\n");
    let literal = start + wrapper(&text[start..]);
    let is_literal = text.get(literal).is_some_and(|b| b"\"'`\\".contains(b));
    (is_name && is_literal).then_some((NameLink::Argument, start))
}

fn is_cell(text: &[u8], name: usize) -> bool {
    text[..name].iter().rev().take(MAX_TAGS).find(|b| !b" \t`*".contains(b)) == Some(&b'|')
}

/// Returns true if the name is itself the value of `name:` or `key:`.
fn is_value_of_name(text: &[u8], name: &Range<usize>) -> bool {
    let before = text[name.start.saturating_sub(16)..name.start].trim_ascii_end();
    let key = before.strip_suffix(b":").or_else(|| before.strip_suffix(b"="));
    let key = key.unwrap_or_default().to_ascii_lowercase();
    key.ends_with(b"name") || key.ends_with(b"key")
}

/// Returns the strings in `INSERT INTO users (name, password) VALUES ('ana', '…')`, or the last secret among the
/// parameters that a log shows before the statement: `parameters: $1 = '…' -- INSERT …`.
fn inserted(text: &[u8], name: &Range<usize>, sensitivity: Sensitivity) -> Option<Range<usize>> {
    let rest = near(text, name.end, MAX_LINE);
    if sensitivity != Sensitivity::Secret || !rest.first().is_some_and(|b| b"),`\"".contains(b)) {
        return None;
    }
    let columns = memchr::memchr2(b')', b'\n', near(rest, 0, MAX_TAGS))?;
    let values = skip(rest, columns, b") \r\n\t");
    let is_insert = rest.get(values..values + 6).is_some_and(|word| is_one_of(word, "values"));
    let open = memchr::memchr(b'(', &rest[values..]).filter(|_| is_insert)?;
    let found = literals(rest, values + open + 1);
    if let Some((first, last)) = found.first().zip(found.last()) {
        return Some(name.end + first.start..name.end + last.end);
    }
    let mut end = line_start(text, name.start);
    let quoted = text[end..name.start].split(|b| *b == b'\'').map(|part| {
        end += part.len() + 1;
        end - 1 - part.len()..end - 1
    });
    quoted.skip(1).step_by(2).filter(|part| value::is_credential(&text[part.clone()])).last()
}

/// Returns the secret among the arguments of a call or a constructor whose name is sensitive: the last string literal in
/// `HTTPBasicAuth("ana", "…")` and `login("…")`.
fn called(text: &[u8], name: &Range<usize>, sensitivity: Sensitivity) -> Option<Range<usize>> {
    const CALLS: &[&str] =
        &["::new(", "::from(", ".new(", ".create(", "]::new(", "->__construct(", "->connect("];
    const READERS: &str = "ask check create decode delete fetch find get getpass has is list load lookup prompt read require validate";
    let function = &text[name.clone()];
    let rest = near(text, name.end, MAX_LINE);
    let open = match rest {
        [b'(', b')', ..] => return None,
        [b'(', ..] => 1,
        [b' ', b'"' | b'\'', ..] if function.contains(&b'_') => 1,
        [b' ', b'{', ..] if function[0].is_ascii_uppercase() => 2,
        _ => begins(rest, CALLS)?.len(),
    };
    let mut parts = function.rsplit(|b| *b == b'.');
    let function = parts.find(|part| !is_one_of(part, "create new of from")).unwrap_or(function);
    let words = name::words(function);
    let takes_login = sensitivity == Sensitivity::Login || words.iter().any(|w| is_login_word(w));
    let connects = words.iter().any(|word| word.starts_with("connect"));
    let takes_secret =
        sensitivity == Sensitivity::Secret || name::sensitivity(function) == Sensitivity::Secret;
    let reads = words.first().is_some_and(|first| is_one_of(first.as_bytes(), READERS))
        && words.last().is_none_or(|last| last != "connection");
    if reads || !(takes_login || takes_secret) {
        return None;
    }
    let found = literals(rest, open);
    let absolute = |range: &Range<usize>| name.end + range.start..name.end + range.end;
    let Some(literal) = found.iter().rfind(|literal| !literal.is_empty()) else {
        // Debug output: `AuthToken(8f2c…)`
        let length = rest[open..].iter().take_while(|b| !b"(){}[], \n".contains(b)).count();
        let word = open..open + length;
        let is_whole = rest.get(word.end) == Some(&b')') && takes_secret;
        let is_secret = is_whole && value::is_likely_secret(&rest[word.clone()]);
        return is_secret.then(|| absolute(&word));
    };
    // `oracledb.connect("ana", "…", "db/x")`, `NetworkCredential("ana", "…", "domain")`
    if (connects || takes_login) && found.len() > 2 {
        return Some(absolute(&(found[1].start..literal.end)));
    }
    // A call without parentheses: `basic_auth 'ana', '…'`
    let is_pair = || found.windows(2).any(|two| rest[two[0].end + 1..two[1].start - 1] == *b", ");
    let is_call = match rest {
        [b' ', b'{', ..] => found.len() < 2,
        [b' ', ..] => is_pair(),
        _ => true,
    };
    let value = &rest[literal.clone()];
    let is_hidden = if (takes_secret || found.len() > 1) && !connects {
        !harmless::is_reference(value) && !harmless::is_variable_name(value)
    } else {
        value::is_credential(value) || value::looks_secret(value)
    };
    (is_call && is_hidden).then(|| absolute(literal))
}

/// Returns true for words in the names of functions that take a login: `simple_bind`, `PlainTextAuthProvider`.
fn is_login_word(word: &str) -> bool {
    let parts = [
        "auth",
        "bind",
        "client",
        "connect",
        "credential",
        "login",
        "mysqli",
        "passw",
        "pdo",
        "pw",
    ];
    parts.iter().any(|part| word.contains(part)) && !word.starts_with("author")
}

/// Returns the last string in a tuple or list of strings: `auth=('ana', '…')`, or the content of a dictionary of one
/// line: `cookies={'session': '…'}`.
fn bracketed(text: &[u8], start: usize) -> Option<Range<usize>> {
    let rest = near(text, start, MAX_LINE);
    let close = match rest {
        [b'(', ..] => b')',
        [b'[', ..] => b']',
        [b'{', b'\'' | b'"', ..] => b'}',
        _ => return None,
    };
    let end = memchr::memchr2(close, b'\n', rest).filter(|end| rest[*end] == close)?;
    let mut found = literals(&rest[..=end], 1);
    // Keys, and the types of a schema
    found.retain(|literal| !rest[literal.end + 1..].starts_with(b":"));
    let last = found.last().filter(|_| !rest.starts_with(b"{\"type"))?;
    let first = if close == b')' { last } else { &found[0] };
    Some(start + first.start..start + last.end)
}
