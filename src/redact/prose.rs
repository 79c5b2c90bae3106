//! Redacts secrets in sentences: `The password for ana is …`, `invalid token '…'`, `using … as password`, and in
//! configuration files without a separator: `requirepass …`.

use std::ops::Range;

use super::notation::{end_of_value, literals};
use super::{harmless, name, value};

/// Maximum length of the text between a name and its value in a sentence.
const MAX_SENTENCE: usize = 120;
/// Maximum number of words before a name that belong to it: `service account key`.
const MAX_PHRASE: usize = 2;
const MAX_WORD: usize = 16;
/// Maximum number of words between a name and its value.
const MAX_WORDS: usize = 9;

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
    let after =
        ["string", "value", "hash", "content", "material", "ID", "id"].iter().find(|word| {
            // `session id` is not a secret.
            let belongs = !word.eq_ignore_ascii_case("id")
                || text[name.clone()].eq_ignore_ascii_case(b"secret");
            let rest = text[name.end..].strip_prefix(b" ");
            belongs && rest.is_some_and(|rest| rest.starts_with(word.as_bytes()))
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
    let is_password = is_one_of(&text[name.clone()], &["pass", "passphrase", "passwd", "password"]);
    let word = &text[value.clone()];
    let rest = &text[value.end..];
    let goes_on = rest.first() == Some(&b' ') && rest.get(1).is_some_and(u8::is_ascii_alphabetic);
    is_plain_name
        && separator.ends_with(b": ")
        && value::is_word(word)
        && (value::is_predicate(word)
            || (goes_on && (!is_password || name::sensitivity(word) == name::Sensitivity::Secret)))
}

/// Returns the value of a sensitive name in a sentence or in a line of a configuration file.
pub fn value(text: &[u8], name: &Range<usize>, phrase: &Range<usize>) -> Option<Range<usize>> {
    // "pass `x`" is an instruction.
    if text[name.clone()] == *b"pass" && !text[name.end..].starts_with(b" '") {
        return None;
    }
    after(text, name)
        .filter(|value| !is_name_of_secret(text, name, value))
        .or_else(|| login(text, name))
        .or_else(|| before(text, phrase))
        .or_else(|| annotated(text, phrase))
}

/// Returns true for the name of an object of a cluster: `secret "pg-credentials" not found`.
fn is_name_of_secret(text: &[u8], name: &Range<usize>, value: &Range<usize>) -> bool {
    const STATES: &[&str] =
        &["at /", "configured", "created", "deleted", "exists", "found", "not ", "updated", "was "];
    let is_label = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-';
    let after = text[value.end..].trim_ascii_start();
    let after = after.strip_prefix(b"\"").or(after.strip_prefix(b"'")).unwrap_or(after);
    text[name.clone()].eq_ignore_ascii_case(b"secret")
        && text[value.clone()].contains(&b'-')
        && text[value.clone()].iter().all(is_label)
        && STATES.iter().any(|state| after.trim_ascii_start().starts_with(state.as_bytes()))
}

/// Returns the value that a comment or a note in parentheses describes: `unlock with … (master password)`,
/// `init("…")  # access token`.
fn annotated(text: &[u8], phrase: &Range<usize>) -> Option<Range<usize>> {
    const COMMENTS: &[&str] = &["# ", "// ", "-- ", "/* "];
    let line = line_before(text, phrase.start);
    let start = phrase.start - line.len();
    let trimmed = line.trim_ascii_end();
    if let Some(before) = trimmed.strip_suffix(b"(").map(<[u8]>::trim_ascii_end) {
        let length = before.iter().rev().take_while(|b| !b.is_ascii_whitespace()).count();
        let word = &before[before.len() - length..];
        let is_secret = value::is_credential(word)
            || value::is_hex_token(word)
            || word.iter().filter(|b| **b == b'-').count() >= 3;
        return is_secret.then(|| start + before.len() - length..start + before.len());
    }
    let comment = COMMENTS.iter().find_map(|mark| memchr::memmem::find(line, mark.as_bytes()))?;
    let found = literals(&line[..comment], 0).into_iter().rfind(|literal| {
        let bytes = &line[literal.clone()];
        value::is_hex_token(bytes) || value::looks_secret(bytes) || value::is_strong(bytes)
    })?;
    Some(start + found.start..start + found.end)
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
        [&b"signature"[..], b"hmac", b"session", b"secret_id", b"secretid", b"code", b"appid"]
            .iter()
            .any(|ending| lower.ends_with(ending));
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
        true => next_word(text, end.min(word.range.end + 1), end),
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
    "account", "and", "at", "base64", "base64-encoded", "been", "below", "by", "changed", "code", "database", "de", "del", "der", "di", "do", "für", "para", "per", "pour", "von", "encoded", "encrypted", "enter", "entered", "for", "from",
    "generated", "given", "has", "hashed", "header", "here", "hex", "hex-encoded", "hit", "host", "in", "instead", "login", "now", "of", "on", "paste",
    "profile", "provided", "reset", "root", "seed", "set", "supplied", "the", "type", "updated", "used", "user", "value", "with", "you",
    "your",
];
/// Words after which any word, such as a user's name, belongs to the sentence.
const OPENERS: &[&str] = &[
    "account", "at", "by", "database", "de", "del", "der", "di", "do", "for", "from", "für",
    "host", "of", "on", "para", "per", "pour", "user", "von",
];
/// Words that connect a name with its value.
const VERBS: &[&str] = &[
    "are", "as", "equals", "es", "est", "is", "ist", "jest", "lautet", "è", "é", "returned", "to",
    "was", "är",
];

fn after(text: &[u8], name: &Range<usize>) -> Option<Range<usize>> {
    let limit = text.len().min(name.end + MAX_SENTENCE);
    let end = memchr::memchr(b'\n', &text[name.end..limit]).map_or(limit, |n| name.end + n);
    let closing = text[name.end..end].iter().take_while(|b| b"\"'`)*".contains(b)).count();
    let mut at = name.end + closing;
    if !text.get(at).is_some_and(|b| b" \t".contains(b)) {
        return None;
    }
    let name_kind = NameKind::of(&text[name.clone()]);
    let mut previous: Option<Word> = None;
    for n in 0..MAX_WORDS {
        let word = next_word(text, at, end)?;
        let bytes = &text[word.range.clone()];
        let follows = |list: &[&str]| {
            previous.as_ref().is_some_and(|word| is_one_of(&text[word.range.clone()], list))
        };
        let is_after_label = previous.as_ref().is_some_and(|word| word.is_label);
        // `IDENTIFIED WITH mysql_native_password BY '…'`
        let is_after_by = previous.as_ref().is_some_and(|word| text[word.range.clone()] == *b"BY");
        let is_after_verb = is_after_by || follows(VERBS);
        // `password set from env: PGPASSWORD=…` has another name.
        let names_another = memchr::memchr(b'=', bytes)
            .is_some_and(|at| name::sensitivity(&bytes[..at]) != name::Sensitivity::Plain);
        let can_be_secret = !bytes.is_empty()
            && !harmless::is_reference(bytes)
            && !is_number(bytes)
            && !names_another;
        let is_secret = if is_after_label || (is_after_verb && word.is_quoted) {
            !value::is_predicate(bytes)
                && (name_kind != NameKind::Token || value::is_credential(bytes) || word.is_quoted)
        } else if is_after_verb {
            let is_last = text[word.range.end..].first().is_none_or(|b| b"\n\r.,;!)".contains(b));
            let can_be_word = is_last && name_kind != NameKind::Token && bytes.len() > 3;
            value::is_likely_secret(bytes) || (can_be_word && !value::is_predicate(bytes))
        } else {
            (name_kind == NameKind::Code && value::is_code(bytes))
                || (n > 0 && !follows(OPENERS) && value::is_credential(bytes))
                || (n == 0 && is_adjacent_secret(text, name, &word))
        };
        let groups = match is_after_label || is_after_verb || n == 0 {
            true => value::groups_length(&text[word.range.start..]),
            false => 0,
        };
        if can_be_secret && (is_secret || groups > 0) {
            let end = word.range.end.max(word.range.start + groups);
            return Some(word.range.start..end);
        }
        // `password 7 …` in the configuration of a router
        let is_kind = n == 0 && matches!(bytes, [digit] if digit.is_ascii_digit());
        let is_sign = !bytes.iter().any(u8::is_ascii_alphanumeric);
        // `passphrase for key '/home/ana/key':`
        let belongs = (word.is_label && word.is_quoted)
            || is_one_of(bytes, FILLERS)
            || is_one_of(bytes, VERBS)
            || follows(OPENERS);
        if !is_kind && !is_sign && !belongs {
            return None;
        }
        at = word.range.end + usize::from(word.is_quoted);
        at += text[at..end].iter().take_while(|b| b":=->,)".contains(b)).count();
        previous = Some(word);
    }
    None
}

fn is_one_of(word: &[u8], list: &[&str]) -> bool {
    list.iter().any(|known| word.eq_ignore_ascii_case(known.as_bytes()))
}

/// Meaning of a name in a sentence for the value that follows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameKind {
    /// Any word can be a password.
    Password,
    /// Digits.
    Code,
    /// In sentences about text, a token is a word.
    Token,
    Other,
}

impl NameKind {
    pub fn of(name: &[u8]) -> Self {
        let name = name.to_ascii_lowercase();
        let ends =
            |endings: &[&str]| endings.iter().any(|ending| name.ends_with(ending.as_bytes()));
        if name.starts_with(b"pass") {
            Self::Password
        } else if ends(&["pin", "otp", "code", "codes", "puk", "secretid"]) {
            Self::Code
        } else if ends(&["token"]) {
            Self::Token
        } else {
            Self::Other
        }
    }
}

/// Returns true for a word directly after a name, if it must be hidden: `invalid token '…'`, `password 8f2c!`,
/// `requirepass …`.
fn is_adjacent_secret(text: &[u8], name: &Range<usize>, word: &Word) -> bool {
    /// Words before the name of a variable that is set.
    const SETTERS: &[&str] =
        &["#define", "-gx", "-x", "ARG", "ENV", "SetEnv", "export", "set", "setenv", "setx"];
    /// Words before a password that is used: `login with password swordfish`.
    const USES: &[&str] =
        &["bad", "incorrect", "invalid", "tried", "try", "trying", "use", "using", "with", "wrong"];
    /// Names of settings that are one word.
    const SETTINGS: &[&str] =
        &["bindpw", "masterauth", "requirepass", "rocommunity", "rootpw", "rwcommunity"];
    let bytes = &text[word.range.clone()];
    if value::is_predicate(bytes) || bytes.starts_with(b"-") || bytes.starts_with(b"=") {
        return false;
    }
    let name_text = &text[name.clone()];
    let is_compound = is_one_of(name_text, SETTINGS)
        || name_text.iter().any(|b| b"_-.".contains(b))
        || name::words(name_text).len() > 1;
    let line = line_before(text, name.start).trim_ascii();
    let before = line.rsplit(|b| *b == b' ').next().unwrap_or_default();
    // `machine lab.org login ana password …`
    let is_netrc = name_text == b"password" && memchr::memmem::find(line, b"login ").is_some();
    let after = text.get(word.range.end + usize::from(word.is_quoted));
    let is_last = after.is_none_or(|b| b"\n\r\"';".contains(b));
    let is_apart = word.range.start - name.end > 1 + usize::from(word.is_quoted);
    if is_one_of(before, SETTERS) || is_netrc {
        true
    } else if line.is_empty() && is_last && (is_compound || is_apart) {
        // `GITHUB_TOKEN Permissions` is a heading.
        let is_title = value::is_word(bytes) && bytes[0].is_ascii_uppercase();
        let is_heading = is_title && !name_text.iter().any(u8::is_ascii_lowercase);
        !bytes.is_empty() && !is_heading
    } else if word.is_quoted && bytes.contains(&b' ') {
        // `master password "correct horse battery" accepted`
        let mut words = bytes.split(|b| *b == b' ');
        NameKind::of(name_text) == NameKind::Password
            && words.clone().count() <= 6
            && words.all(|word| word.len() > 2 && !value::is_predicate(word))
    } else if word.is_quoted {
        let is_name = is_compound || NameKind::of(name_text) == NameKind::Password;
        let can_be_secret = !bytes.contains(&b' ')
            && ((is_name && bytes.len() > 3) || (bytes.len() > 7 && !value::is_word(bytes)));
        can_be_secret || value::is_credential(bytes)
    } else {
        let is_whole = is_last || after.is_some_and(|b| b"),".contains(b));
        // The password of a remote desktop: `password 51:b:0100…`
        let bytes = bytes.strip_prefix(b"51:b:").unwrap_or(bytes);
        (is_one_of(before, USES) && is_whole && bytes.len() > 5) || value::is_likely_secret(bytes)
    }
}

/// Returns the text before a position on its line.
fn line_before(text: &[u8], at: usize) -> &[u8] {
    let before = &text[at.saturating_sub(MAX_SENTENCE)..at];
    memchr::memrchr(b'\n', before).map_or(before, |n| &before[n + 1..])
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
            return (is_secret && !harmless::is_reference(bytes)).then_some(range);
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
    let end = end_of_value(&text[..start + length], start, None).max(start + 1);
    Some(Word { range: start..end, is_quoted: false, is_label })
}
