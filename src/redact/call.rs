//! Redacts secrets among the arguments of calls, constructors and commands of protocols: `HTTPBasicAuth("ana", "…")`,
//! `Token("…")`, `INSERT INTO users (password) VALUES ('…')`, `IDENTIFIED BY '…'`, `AUTH PLAIN …`.

use std::ops::Range;

use super::name::{self, Sensitivity};
use super::quotes::{end_of_value, literals};
use super::value;
use super::word::{MAX_TAGS, bare_end, is_variable_name, skip};

/// Maximum length of the arguments of a call.
const MAX_CALL: usize = 512;

/// Returns the value in `CREATE USER ana IDENTIFIED BY '…'` and `PRIVMSG NickServ :IDENTIFY …`.
pub fn identified_by(text: &[u8], name: &Range<usize>) -> Option<Range<usize>> {
    let word = &text[name.clone()];
    let rest = &text[name.end..];
    let is_sql = rest.get(..4).is_some_and(|by| by.eq_ignore_ascii_case(b" by "));
    let start = if word.eq_ignore_ascii_case(b"identified") && is_sql {
        name.end + 4
    } else if word == b"IDENTIFY" && rest.starts_with(b" ") {
        name.end + 1
    } else {
        return None;
    };
    // "devices are identified by their UUID" is a sentence.
    let is_quoted = text.get(start).is_some_and(|b| b"\"'".contains(b));
    let value = start..end_of_value(text, start, None);
    let is_statement = rest.starts_with(b" BY ")
        && value::is_credential(&text[start..bare_end(text, start, value.end)]);
    if word != b"IDENTIFY" && !is_quoted && !is_statement {
        return None;
    }
    let literal = literals(&text[start..value.end], 0)
        .first()
        .map(|literal| start + literal.start..start + literal.end);
    Some(literal.unwrap_or_else(|| start..bare_end(text, start, value.end)))
}

/// Returns the secret in commands of mail and database protocols: `AUTH PLAIN …`, `a1 LOGIN ana …`, `AUTH …`.
pub fn protocol_login(text: &[u8], name: &Range<usize>) -> Option<Range<usize>> {
    let word = &text[name.clone()];
    let max_words = match word {
        b"AUTH" => 3,
        b"LOGIN" => 2,
        _ => return None,
    };
    let start = skip(text, name.end, b" ");
    // `A2 LOGIN "ana" "…"`, and `"AUTH" "default" "…"` in the log of a server
    if text[start..].first().is_some_and(|b| b"\"'".contains(b)) {
        return quoted_login(text, name.end);
    }
    let end = start
        + text[start..].iter().take(MAX_CALL).take_while(|b| !b"\r\n'\"\\;".contains(b)).count();
    let words: Vec<&[u8]> = text[start..end].split(|b| *b == b' ').collect();
    let last = *words.last()?;
    let is_hidden = words.len() <= max_words
        && (word == b"AUTH" || words.len() == max_words)
        && !last.is_empty()
        && !value::is_predicate(last)
        && !last.iter().all(u8::is_ascii_uppercase);
    is_hidden.then(|| end - last.len()..end)
}

/// Returns the last of up to three quoted arguments.
fn quoted_login(text: &[u8], from: usize) -> Option<Range<usize>> {
    // The quote after the name closes it.
    let from = from + usize::from(text[from] == b'"');
    let near = &text[..text.len().min(from + MAX_CALL)];
    let length = near[from..].iter().take_while(|b| !b"\n()[]{}".contains(b)).count();
    let found = literals(&near[..from + length], from);
    let is_apart = |two: &[Range<usize>]| two[1].start - two[0].end > 4;
    let count = found.windows(2).position(is_apart).map_or(found.len(), |at| at + 1);
    found.get(count.checked_sub(1)?).filter(|last| count <= 3 && !last.is_empty()).cloned()
}

/// Returns the password in `ACL SETUSER ana on >… ~*`.
pub fn acl_password(text: &[u8], name: &Range<usize>) -> Option<Range<usize>> {
    let rest = &text[name.end..text.len().min(name.end + MAX_CALL)];
    let line = &rest[..memchr::memchr(b'\n', rest).unwrap_or(rest.len())];
    let start = memchr::memmem::find(line, b" >")? + 2;
    let length = line[start..].iter().take_while(|b| b.is_ascii_graphic() && **b != b'"').count();
    text[name.clone()]
        .eq_ignore_ascii_case(b"setuser")
        .then_some(name.end + start..name.end + start + length)
}

/// Returns the strings in `INSERT INTO users (name, password) VALUES ('ana', '…')`.
pub fn inserted(
    text: &[u8],
    name: &Range<usize>,
    sensitivity: Sensitivity,
) -> Option<Range<usize>> {
    if sensitivity != Sensitivity::Secret
        || !text[name.end..].first().is_some_and(|b| b"),`\"".contains(b))
    {
        return None;
    }
    let rest = &text[name.end..text.len().min(name.end + MAX_CALL)];
    let columns = memchr::memchr2(b')', b'\n', &rest[..rest.len().min(MAX_TAGS)])?;
    let values = rest[columns..].strip_prefix(b")")?.trim_ascii_start();
    let is_insert = values.len() > 6 && values[..6].eq_ignore_ascii_case(b"values");
    let open = memchr::memchr(b'(', values).filter(|_| is_insert)?;
    let from = rest.len() - values.len() + open + 1;
    let found = literals(rest, from);
    let Some((first, last)) = found.first().zip(found.last()) else {
        return bound_parameter(text, name.start);
    };
    Some(name.end + first.start..name.end + last.end)
}

/// Returns the secret among the parameters of a statement, which a log shows before it: `parameters: $1 = '…' --
/// INSERT …`.
fn bound_parameter(text: &[u8], before: usize) -> Option<Range<usize>> {
    let from = before.saturating_sub(MAX_CALL);
    let line = memchr::memrchr(b'\n', &text[from..before]).map_or(from, |n| from + n + 1);
    let start = memchr::memmem::find(&text[line..before], b"parameters: ")? + line;
    let unbracketed = &text[..before];
    let open = start + b"parameters: ".len();
    let open = skip(unbracketed, open, b"[({ ");
    let mut at = open;
    let mut found = None;
    while let Some(quote) = memchr::memchr(b'\'', &unbracketed[at..]).map(|n| at + n) {
        let end = memchr::memchr(b'\'', &unbracketed[quote + 1..]).map(|n| quote + 1 + n)?;
        if value::is_credential(&unbracketed[quote + 1..end]) {
            found = Some(quote + 1..end);
        }
        at = end + 1;
    }
    found
}

/// Returns the secret among the arguments of a call or a constructor whose name is sensitive: the last string literal in
/// `HTTPBasicAuth("ana", "…")` and `login("…")`.
pub fn called(text: &[u8], name: &Range<usize>, sensitivity: Sensitivity) -> Option<Range<usize>> {
    const READERS: &[&str] = &[
        "check", "create", "decode", "delete", "fetch", "find", "get", "has", "is", "list", "load",
        "lookup", "read", "require", "validate",
    ];
    let rest = &text[name.end..text.len().min(name.end + MAX_CALL)];
    let open = match rest {
        [b'(', b')', ..] => return None,
        [b'(', ..] => 1,
        [b' ', b'"' | b'\'', ..] if text[name.clone()].contains(&b'_') => 1,
        [b' ', b'{', ..] if text[name.start].is_ascii_uppercase() => 2,
        _ => ["::new(", "::from(", ".new(", ".create(", "]::new(", "->__construct(", "->connect("]
            .iter()
            .find(|call| rest.starts_with(call.as_bytes()))?
            .len(),
    };
    let function = &text[name.clone()];
    let mut parts = function.rsplit(|b| *b == b'.');
    let is_constructor = |part: &&[u8]| !matches!(*part, b"create" | b"new" | b"of" | b"from");
    let function = parts.find(is_constructor).unwrap_or(function);
    let words = name::words(function);
    let last = words.last().map(String::as_str);
    // `NetworkCredential(`, `PSCredential(`, `getConnection(`
    let takes_login =
        sensitivity == Sensitivity::Login || words.iter().any(|word| is_login_word(word));
    let connects = words.iter().any(|word| word.starts_with("connect"));
    let takes_secret =
        sensitivity == Sensitivity::Secret || name::sensitivity(function) == Sensitivity::Secret;
    let reads = words.first().is_some_and(|first| READERS.contains(&first.as_str()))
        && last != Some("connection");
    if reads || !(takes_login || takes_secret) {
        return None;
    }
    let found = literals(rest, open);
    let Some(literal) = found.iter().rfind(|literal| !literal.is_empty()) else {
        // Debug output: `AuthToken(8f2c…)`
        let length = rest[open..].iter().take_while(|b| !b"(){}[], \n".contains(b)).count();
        let word = &rest[open..open + length];
        let is_whole = rest.get(open + length) == Some(&b')') && takes_secret;
        let start = name.end + open;
        return (is_whole && (value::is_credential(word) || value::looks_secret(word)))
            .then(|| start..start + length);
    };
    // `oracledb.connect("ana", "…", "db/x")`, `NetworkCredential("ana", "…", "domain")`
    if (connects || takes_login) && found.len() > 2 {
        return Some(name.end + found[1].start..name.end + literal.end);
    }
    // A call without parentheses: `basic_auth 'ana', '…'`
    if rest[0] == b' ' && rest[1] == b'{' && found.len() > 1 {
        return None;
    }
    if rest[0] == b' '
        && rest[1] != b'{'
        && found.windows(2).all(|two| rest[two[0].end + 1..two[1].start - 1] != *b", ")
    {
        return None;
    }
    let value = &rest[literal.clone()];
    let is_hidden = match (takes_secret, found.len()) {
        (true, _) | (false, 2..) if !connects || value::is_credential(value) => {
            !value.is_empty() && !value::is_reference(value) && !is_variable_name(value)
        }
        _ => value::is_credential(value) || value::looks_secret(value),
    };
    is_hidden.then(|| name.end + literal.start..name.end + literal.end)
}

/// Returns true for words in the names of functions that take a login: `simple_bind`, `PlainTextAuthProvider`.
fn is_login_word(word: &str) -> bool {
    const PARTS: &[&str] = &[
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
    PARTS.iter().any(|part| word.contains(part)) && !word.starts_with("author")
}

/// Returns the last string in a tuple or list of strings: `auth=('ana', '…')`, or the content of a dictionary of one
/// line: `cookies={'session': '…'}`.
pub fn bracketed(text: &[u8], start: usize) -> Option<Range<usize>> {
    let rest = &text[start..text.len().min(start + MAX_CALL)];
    let close = match rest.first()? {
        b'(' => b')',
        b'[' => b']',
        b'{' if rest.get(1).is_some_and(|b| b"'\"".contains(b)) => b'}',
        _ => return None,
    };
    let end = memchr::memchr2(close, b'\n', rest).filter(|end| rest[*end] == close)?;
    let found = literals(&rest[..=end], 1);
    match (close, found.as_slice()) {
        (_, []) => None,
        (b')', [.., last]) => Some(start + last.start..start + last.end),
        // The first string is a key.
        (b'}', [_, last]) => Some(start + last.start..start + last.end),
        (b'}', [_, first, .., last]) | (_, [first, .., last]) => {
            Some(start + first.start..start + last.end)
        }
        (_, [one]) => Some(start + one.start..start + one.end),
    }
}
