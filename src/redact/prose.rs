//! Redacts secrets in sentences: `The password for ana is …`, `invalid token '…'`, `using … as password`, and in
//! configuration files without a separator: `requirepass …`.

use std::ops::Range;

use super::quotes::end_of_value;
use super::value;

/// Maximum length of the text between a name and its value in a sentence.
const MAX_SENTENCE: usize = 120;
/// Maximum number of words before a name that belong to it: `service account key`.
const MAX_PHRASE: usize = 2;
const MAX_WORD: usize = 16;

/// Extends a name over the words before it: `API key` is an API key, and `first token` is not a secret.
pub fn phrase(text: &[u8], name: &Range<usize>) -> Range<usize> {
    let mut start = name.start;
    let is_word = text[name.clone()].iter().all(u8::is_ascii_alphabetic);
    if !is_word {
        return name.clone();
    }
    for _ in 0..MAX_PHRASE {
        let Some(before) = text[..start].strip_suffix(b" ") else { break };
        let word = before
            .iter()
            .rev()
            .take(MAX_WORD)
            .take_while(|b| b.is_ascii_alphabetic() || **b == b'-');
        match word.count() {
            0 | MAX_WORD => break,
            length => start = before.len() - length,
        }
    }
    // `community string`, `token value`
    let after = ["string", "value", "hash"].iter().find(|word| {
        text[name.end..].strip_prefix(b" ").is_some_and(|rest| rest.starts_with(word.as_bytes()))
    });
    start..name.end + after.map_or(0, |word| 1 + word.len())
}

/// Returns true if the value is the first word of a sentence: `Invalid token: unexpected end of input`.
pub fn is_sentence(
    text: &[u8],
    name: &Range<usize>,
    value: &Range<usize>,
    separator: &[u8],
) -> bool {
    let is_plain_name = text[name.clone()].iter().all(u8::is_ascii_alphabetic);
    let is_password = text[name.clone()].to_ascii_lowercase().starts_with(b"pass");
    let word = &text[value.clone()];
    let rest = &text[value.end..];
    let goes_on = rest.first() == Some(&b' ') && rest.get(1).is_some_and(u8::is_ascii_alphabetic);
    is_plain_name
        && separator.ends_with(b": ")
        && value::is_word(word)
        && (value::is_predicate(word) || (!is_password && goes_on))
}

/// Returns the value of a sensitive name in a sentence or in a line of a configuration file.
pub fn value(text: &[u8], name: &Range<usize>, phrase: &Range<usize>) -> Option<Range<usize>> {
    after(text, name).or_else(|| login(text, name)).or_else(|| before(text, phrase))
}

/// Returns the value after a name such as `login`, if it is a user with a password or a password in quotes.
pub fn login(text: &[u8], name: &Range<usize>) -> Option<Range<usize>> {
    let word = following(text, name)?;
    let bytes = &text[word.range.clone()];
    let password = bytes.iter().position(|b| b":/".contains(b)).map_or(0, |at| at + 1);
    let is_secret = value::is_credential(&bytes[password..]) && (password > 1 || word.is_quoted);
    is_secret.then(|| word.range.start + password..word.range.end)
}

/// Returns the random word after a name such as `signature`.
pub fn signature(text: &[u8], name: &Range<usize>) -> Option<Range<usize>> {
    let lower = text[name.clone()].to_ascii_lowercase();
    let is_signature =
        [&b"signature"[..], b"hmac", b"session"].iter().any(|ending| lower.ends_with(ending));
    let word = following(text, name).filter(|_| is_signature)?;
    value::looks_secret(&text[word.range.clone()]).then_some(word.range)
}

/// Returns the word after a name, on the same line.
fn following(text: &[u8], name: &Range<usize>) -> Option<Word> {
    let limit = text.len().min(name.end + MAX_SENTENCE);
    let end = memchr::memchr(b'\n', &text[name.end..limit]).map_or(limit, |n| name.end + n);
    // `login successful: ana/…`
    let word = next_word(text, name.end, end).filter(|_| text.get(name.end) == Some(&b' '))?;
    match word.is_label {
        true => next_word(text, word.range.end + 1, end),
        false => Some(word),
    }
}

struct Word {
    range: Range<usize>,
    is_quoted: bool,
    /// True if `:`, `=` or the like follows.
    is_label: bool,
}

/// Words that can stand between a name and its value.
#[rustfmt::skip]
const FILLERS: &[&str] = &[
    "account", "and", "at", "been", "below", "by", "changed", "code", "database", "enter", "entered", "for", "from",
    "generated", "given", "has", "header", "here", "hit", "host", "in", "instead", "login", "now", "of", "on", "paste",
    "profile", "provided", "reset", "set", "supplied", "the", "type", "updated", "used", "user", "value", "with", "you",
    "your",
];
/// Words after which any word, such as a user's name, belongs to the sentence.
const OPENERS: &[&str] =
    &["account", "at", "by", "database", "for", "from", "host", "of", "on", "user"];
/// Words that connect a name with its value.
const VERBS: &[&str] =
    &["is", "was", "to", "as", "equals", "es", "est", "ist", "är", "jest", "are"];

fn after(text: &[u8], name: &Range<usize>) -> Option<Range<usize>> {
    let limit = text.len().min(name.end + MAX_SENTENCE);
    let end = memchr::memchr(b'\n', &text[name.end..limit]).map_or(limit, |n| name.end + n);
    let mut at =
        name.end + text[name.end..end].iter().take_while(|b| b"\"'`)*".contains(b)).count();
    if text.get(at) != Some(&b' ') && text.get(at) != Some(&b'\t') {
        return None;
    }
    let lower = text[name.clone()].to_ascii_lowercase();
    let is_token = lower.ends_with(b"token");
    let is_code = [&b"pin"[..], b"otp", b"code"].iter().any(|ending| lower.ends_with(ending));
    let mut previous: Option<Word> = None;
    let mut n = 0;
    while let Some(word) = next_word(text, at, end) {
        let bytes = &text[word.range.clone()];
        let is =
            |list: &[&str]| list.iter().any(|known| bytes.eq_ignore_ascii_case(known.as_bytes()));
        let last = |list: &[&str]| {
            previous.as_ref().is_some_and(|word| {
                list.iter()
                    .any(|known| text[word.range.clone()].eq_ignore_ascii_case(known.as_bytes()))
            })
        };
        let is_after_label = previous.as_ref().is_some_and(|word| word.is_label);
        let is_after_verb =
            last(VERBS) || previous.as_ref().is_some_and(|word| text[word.range.clone()] == *b"BY");
        let hides = if value::is_reference(bytes) || is_number(bytes) || bytes.is_empty() {
            false
        } else if is_after_label || (is_after_verb && word.is_quoted) {
            !value::is_predicate(bytes)
                && (!is_token || value::is_credential(bytes) || word.is_quoted)
        } else if is_after_verb {
            let is_last = text[word.range.end..].first().is_none_or(|b| b"\n\r.,;!)".contains(b));
            value::is_credential(bytes)
                || value::looks_secret(bytes)
                || (is_last && !is_token && !value::is_predicate(bytes) && bytes.len() > 3)
        } else if is_code && bytes.len() > 3 && bytes.iter().all(u8::is_ascii_digit) {
            true
        } else if n > 0 && !last(OPENERS) && value::is_credential(bytes) {
            true
        } else if n == 0 {
            is_adjacent_secret(text, name, &word)
        } else {
            false
        };
        if hides {
            return Some(word.range);
        }
        // `password 7 …` in the configuration of a router
        let is_kind = n == 0 && bytes.len() == 1 && bytes[0].is_ascii_digit();
        let goes_on = is_kind
            || word.is_label
            || is(FILLERS)
            || is(VERBS)
            || last(OPENERS)
            || is_after_verb && is(&["now", "set"])
            || bytes == b"-";
        if !goes_on || n > 8 {
            return None;
        }
        at = word.range.end + usize::from(word.is_quoted);
        at += text[at..end].iter().take_while(|b| b":=->,)".contains(b)).count();
        previous = Some(word);
        n += 1;
    }
    None
}

/// Returns true for a word directly after a name, if it must be hidden: `invalid token '…'`, `password 8f2c!`,
/// `requirepass …`.
fn is_adjacent_secret(text: &[u8], name: &Range<usize>, word: &Word) -> bool {
    let bytes = &text[word.range.clone()];
    let is_compound = text[name.clone()].iter().any(|b| b"_-.".contains(b))
        || super::name::words(&text[name.clone()]).len() > 1
        || [
            &b"requirepass"[..],
            b"masterauth",
            b"rootpw",
            b"bindpw",
            b"rocommunity",
            b"rwcommunity",
        ]
        .contains(&&text[name.clone()]);
    let line_start =
        memchr::memrchr(b'\n', &text[name.start.saturating_sub(MAX_SENTENCE)..name.start])
            .map_or(name.start.saturating_sub(MAX_SENTENCE), |n| {
                name.start.saturating_sub(MAX_SENTENCE) + n + 1
            });
    let before = text[line_start..name.start].trim_ascii();
    let first = before.rsplit(|b| *b == b' ').next().unwrap_or_default();
    let is_set = [
        &b"set"[..],
        b"setenv",
        b"setx",
        b"-x",
        b"-gx",
        b"ENV",
        b"ARG",
        b"export",
        b"SetEnv",
        b"#define",
    ]
    .contains(&first);
    // `machine lab.org login ana password …`
    let is_netrc =
        memchr::memmem::find(before, b"login ").is_some() && text[name.clone()] == *b"password";
    let after = text[word.range.end + usize::from(word.is_quoted)..].first();
    let is_last = after.is_none_or(|b| b"\n\r\"';".contains(b));
    let gap = &text[name.end..word.range.start];
    if value::is_predicate(bytes) || bytes.starts_with(b"-") || bytes.starts_with(b"=") {
        false
    } else if is_set || is_netrc {
        true
    } else if before.is_empty()
        && is_last
        && (is_compound || gap.len() > 1 + usize::from(word.is_quoted))
    {
        !bytes.is_empty()
    } else if word.is_quoted {
        let lower = text[name.clone()].to_ascii_lowercase();
        let is_password = lower.starts_with(b"pass") || is_compound;
        match is_password {
            true => bytes.len() > 3 && !bytes.contains(&b' '),
            false => {
                value::is_credential(bytes)
                    || bytes.len() > 7 && !bytes.contains(&b' ') && !value::is_word(bytes)
            }
        }
    } else {
        value::is_credential(bytes) || value::looks_secret(bytes) || value::is_hex_key(bytes)
    }
}

fn is_number(word: &[u8]) -> bool {
    word.len() < 4 && word.iter().all(u8::is_ascii_digit)
}

/// Returns the word before the name in `using … as password` and `'…' is not a valid API key`.
fn before(text: &[u8], phrase: &Range<usize>) -> Option<Range<usize>> {
    const ARTICLES: &[&str] = &[
        "a", "an", "the", "my", "your", "our", "his", "her", "its", "correct", "invalid", "new",
        "not", "right", "valid", "wrong", "for",
    ];
    let from = phrase.start.saturating_sub(MAX_SENTENCE);
    let line = memchr::memrchr(b'\n', &text[from..phrase.start]).map_or(from, |n| from + n + 1);
    let is = |word: &[u8], list: &[&str]| {
        list.iter().any(|known| word.eq_ignore_ascii_case(known.as_bytes()))
    };
    // The words of the phrase that do not belong to the name are articles and verbs.
    let name = text[phrase.clone()].rsplit(|b| *b == b' ').next()?.len();
    let mut words = text[line..phrase.end - name].trim_ascii_end().rsplit(|b| *b == b' ');
    let mut end = text[line..phrase.end - name].trim_ascii_end().len();
    let mut has_verb = false;
    for _ in 0..6 {
        let word = words.next()?;
        if has_verb {
            let quoted = word.iter().take_while(|b| b"\"'`(".contains(b)).count();
            let trailing =
                word[quoted..].iter().rev().take_while(|b| b"\"'`),".contains(b)).count();
            let start = line + end - word.len() + quoted;
            let range = start..line + end - trailing;
            let bytes = &text[range.clone()];
            let is_secret = value::is_credential(bytes)
                || value::looks_secret(bytes)
                || (quoted > 0 && trailing > 0 && bytes.len() > 5);
            return (is_secret && !value::is_reference(bytes)).then_some(range);
        }
        if is(word, &["as", "is", "isn't", "was"]) {
            has_verb = true;
        } else if !is(word, ARTICLES) && !is(word, &["api", "access", "secret", "auth", "private"])
        {
            return None;
        }
        end -= word.len();
        end = text[line..line + end].trim_ascii_end().len();
        if is(word, &["not"]) && end > 0 {
            continue;
        }
    }
    None
}

fn next_word(text: &[u8], from: usize, limit: usize) -> Option<Word> {
    let start = from + text[from..limit].iter().take_while(|b| b" \t(:,".contains(b)).count();
    let quote = *text.get(start).filter(|_| start < limit)?;
    if b"\"'`".contains(&quote) {
        let end = memchr::memchr(quote, &text[start + 1..limit]).map(|n| start + 1 + n)?;
        let is_label = text.get(end + 1).is_some_and(|b| b":=".contains(b));
        return Some(Word { range: start + 1..end, is_quoted: true, is_label });
    }
    let length = text[start..limit].iter().take_while(|b| !b.is_ascii_whitespace()).count();
    let word = &text[start..start + length];
    let is_label = word.ends_with(b":")
        || word.ends_with(b"=")
        || matches!(word, b"->" | b"=>" | b"-" | b"\xe2\x86\x92");
    let trailing = word.iter().rev().take_while(|b| b".,;:)]}>\"'`=".contains(b)).count();
    let length = if trailing == word.len() { word.len() } else { word.len() - trailing };
    let end = end_of_value(text, start, None).min(start + length).max(start + 1);
    Some(Word { range: start..end, is_quoted: false, is_label })
}
