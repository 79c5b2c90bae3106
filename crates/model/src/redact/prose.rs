//! Redacts secrets in sentences: `The password for ana is …`, `invalid token '…'`, `using … as password`, and in
//! configuration files without a separator: `requirepass …`.

use std::ops::Range;

use super::name::{self, Sensitivity, is_one_of};
use super::notation::{QUOTES, begins, has, line_end, line_start, skip, trim_end};
use super::{harmless, value};

/// Maximum length of the text between a name and its value in a sentence, and maximum number of words.
const MAX_SENTENCE: usize = 120;
const MAX_WORDS: usize = 9;
/// Maximum number of words before a name that belong to it: `service account key`.
const MAX_PHRASE: usize = 2;
const MAX_WORD: usize = 16;

/// Words that can stand between a name and its value.
const FILLERS: &str = "account and at base64 base64-encoded been below by changed code database de del der di do encoded \
    encrypted enter entered for from für generated given has hashed header here hex hex-encoded hit host in instead login \
    now of on para paste per pour profile provided reset root seed set supplied the type updated used user value von with \
    you your";
/// Words after which any word, such as a user's name, belongs to the sentence.
const OPENERS: &str =
    "account at by database de del der di do for from für host of on para per pour user von";
/// Words that connect a name with its value.
const VERBS: &str = "are as equals es est is ist jest lautet returned to was è é är";
/// Words before a value or a name that do not belong to it: `… is not a valid API key`.
const ARTICLES: &str = "a access an api auth correct for her his invalid its master my new not our private right secret the \
    valid wrong your";

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
        let ends = |list: &str| list.split(' ').any(|ending| name.ends_with(ending.as_bytes()));
        if name.starts_with(b"pass") {
            Self::Password
        } else if ends("pin otp code codes puk secretid") {
            Self::Code
        } else if ends("token identified identify") {
            Self::Token
        } else {
            Self::Other
        }
    }
}

/// Extends a name over the words before it: `API key` is an API key, and `first token` is not a secret.
pub fn phrase(text: &[u8], name: &Range<usize>) -> Range<usize> {
    if !text[name.clone()].iter().all(u8::is_ascii_alphabetic) {
        return name.clone();
    }
    let mut start = name.start;
    for _ in 0..MAX_PHRASE {
        let Some(before) = text[..start].strip_suffix(b" ") else { break };
        let is_part = |b: &&u8| b.is_ascii_alphabetic() || **b == b'-';
        match before.iter().rev().take(MAX_WORD).take_while(is_part).count() {
            0 | MAX_WORD => break,
            length => start = before.len() - length,
        }
    }
    // `community string`, `token value`, and not `session id`
    let after = [" string", " value", " hash", " content", " material", " ID", " id"];
    let is_id = is_one_of(&text[name.clone()], "secret");
    let known = if is_id { &after[..] } else { &after[..5] };
    start..name.end + begins(&text[name.end..], known).map_or(0, str::len)
}

/// Returns true if the value is the first word of a sentence: `Invalid token: unexpected end of input`.
pub fn is_sentence(
    text: &[u8],
    name: &Range<usize>,
    value: &Range<usize>,
    separator: &[u8],
) -> bool {
    let flag = skip(text, name.start, b"-");
    let is_flag = flag > name.start;
    let name = &text[flag..name.end];
    let word = &text[value.clone()];
    let goes_on = matches!(text[value.end..], [b' ', next, ..] if next.is_ascii_alphabetic());
    let can_go_on = !is_one_of(name, "pass passphrase passwd password")
        || name::sensitivity(word) == Sensitivity::Secret;
    name.iter().all(|b| b.is_ascii_alphabetic() || (is_flag && *b == b'-'))
        && separator.ends_with(b": ")
        && value::is_word(word)
        && (value::is_predicate(word) || (goes_on && can_go_on))
}

/// Returns the value of a sensitive name in a sentence or in a line of a configuration file.
pub fn value(
    text: &[u8],
    name: &Range<usize>,
    phrase: &Range<usize>,
    sensitivity: Sensitivity,
) -> Option<Range<usize>> {
    match sensitivity {
        Sensitivity::Login | Sensitivity::Doubtful => {
            following(text, name, sensitivity == Sensitivity::Login)
        }
        // "pass `x`" is an instruction.
        Sensitivity::Secret
            if text[name.clone()] != *b"pass" || text[name.end..].starts_with(b" '") =>
        {
            after(text, name)
                .filter(|value| !is_name_of_secret(text, name, value))
                .or_else(|| following(text, name, true))
                .or_else(|| before(text, phrase))
        }
        _ => None,
    }
}

/// Returns true for the name of an object of a cluster: `secret "pg-credentials" not found`.
fn is_name_of_secret(text: &[u8], name: &Range<usize>, value: &Range<usize>) -> bool {
    const STATES: &[&str] =
        &["at /", "configured", "created", "deleted", "exists", "found", "not ", "updated", "was "];
    let is_label = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-';
    is_one_of(&text[name.clone()], "secret")
        && text[value.clone()].contains(&b'-')
        && text[value.clone()].iter().all(is_label)
        && begins(&text[skip(text, value.end, b" \"'")..], STATES).is_some()
}

/// Returns the word after a name or its label, if it is a user with a password, a password in quotes, or random:
/// `login successful: ana/…`, `signature 8f2c…`.
fn following(text: &[u8], name: &Range<usize>, is_login: bool) -> Option<Range<usize>> {
    const RANDOM: [&str; 7] =
        ["signature", "hmac", "session", "secret_id", "secretid", "code", "appid"];
    let end = line_end(text, name.end, MAX_SENTENCE);
    let mut word = next_word(text, name.end, end).filter(|_| text.get(name.end) == Some(&b' '))?;
    if word.is_label {
        word = next_word(text, end.min(word.range.end + 1), end)?;
    }
    let bytes = &text[word.range.clone()];
    if !is_login {
        let lower = text[name.clone()].to_ascii_lowercase();
        let is_random = RANDOM.iter().any(|ending| lower.ends_with(ending.as_bytes()));
        return (is_random && value::looks_secret(bytes)).then_some(word.range);
    }
    let password = bytes.iter().position(|b| b":/".contains(b)).map_or(0, |at| at + 1);
    let is_secret = value::is_credential(&bytes[password..]) && (password > 1 || word.is_quoted);
    is_secret.then(|| word.range.start + password..word.range.end)
}

struct Word {
    range: Range<usize>,
    is_quoted: bool,
    /// True if `:`, `=` or the like follows.
    is_label: bool,
}

fn after(text: &[u8], name: &Range<usize>) -> Option<Range<usize>> {
    let end = line_end(text, name.end, MAX_SENTENCE);
    let mut at = skip(&text[..end], name.end, b"\"'`)*");
    // A quote that the name closes, but does not open, ends a message.
    let closing = text[name.end..at].iter().find(|b| QUOTES.contains(b));
    let is_message = closing.is_some() && text[..name.start].last() != closing;
    if is_message || !text.get(at).is_some_and(|b| b" \t".contains(b)) {
        return None;
    }
    let kind = NameKind::of(&text[name.clone()]);
    let mut previous: Option<Word> = None;
    for n in 0..MAX_WORDS {
        let word = next_word(text, at, end)?;
        let bytes = &text[word.range.clone()];
        let last = previous.as_ref().map_or(&b""[..], |word| &text[word.range.clone()]);
        let is_after_label = previous.as_ref().is_some_and(|word| word.is_label);
        // `IDENTIFIED WITH mysql_native_password BY '…'`
        let is_after_verb = is_one_of(last, VERBS) || last == b"BY";
        let is_filler = is_one_of(last, OPENERS);
        let is_last = text[word.range.end..].first().is_none_or(|b| b"\n\r.,;!)".contains(b));
        // `password 7 …` in the configuration of a router
        let is_after_kind = n == 1 && matches!(last, [digit] if digit.is_ascii_digit());
        let is_secret = if is_after_label || is_after_kind || (is_after_verb && word.is_quoted) {
            !value::is_predicate(bytes)
                && (kind != NameKind::Token
                    || value::is_credential(bytes)
                    || (word.is_quoted && bytes.len() > 5))
        } else if is_after_verb {
            // "your password to continue" is a sentence.
            let can_be_word = is_last && kind != NameKind::Token && bytes.len() > 3;
            value::is_likely_secret(bytes)
                || (can_be_word
                    && !value::is_predicate(bytes)
                    && !(n == 1 && is_one_of(last, "to as")))
        } else {
            (kind == NameKind::Code && value::is_code(bytes))
                || (n > 0 && !is_filler && value::is_credential(bytes))
                || (n == 0 && is_adjacent_secret(text, name, &word))
        };
        let groups = if is_after_label || is_after_verb || n == 0 {
            value::groups_length(&text[word.range.start..])
        } else {
            0
        };
        if (is_secret || groups > 0) && can_be_secret(bytes) {
            return Some(word.range.start..word.range.end.max(word.range.start + groups));
        }
        let is_kind = n == 0 && matches!(bytes, [digit] if digit.is_ascii_digit());
        // `passphrase for key '/home/ana/key':`
        let belongs = (word.is_label && word.is_quoted)
            || !bytes.iter().any(u8::is_ascii_alphanumeric)
            || is_one_of(bytes, FILLERS)
            || is_one_of(bytes, VERBS);
        if !is_kind && !belongs && !is_filler {
            return None;
        }
        at = skip(&text[..end], word.range.end + usize::from(word.is_quoted), b":=->,)");
        previous = Some(word);
    }
    None
}

/// Returns false for references, small numbers and other assignments: `password set from env: PGPASSWORD=…`.
pub fn can_be_secret(word: &[u8]) -> bool {
    let is_number = word.len() < 4 && word.iter().all(u8::is_ascii_digit);
    let is_redacted = has(word, "***");
    !is_number && !is_assignment(word) && !is_redacted && !harmless::is_reference(word)
}

/// Returns true for `realm="lab"` and `expires_in=3599`.
pub fn is_assignment(word: &[u8]) -> bool {
    let name = word.iter().take_while(|b| b.is_ascii_alphabetic() || b"_-".contains(b)).count();
    name > 0 && matches!(word[name..], [b'=', value, ..] if value != b'=')
}

/// Returns true for a word directly after a name, if it must be hidden: `invalid token '…'`, `password 8f2c!`,
/// `requirepass …`.
fn is_adjacent_secret(text: &[u8], name: &Range<usize>, word: &Word) -> bool {
    /// Words before the name of a variable that is set, and before a password that is used: `login with password
    /// swordfish`.
    const SETTERS: &str = "#define -gx -x ARG ENV SetEnv export set setenv setx";
    const USES: &str = "tried try trying use using with";
    /// Names of settings that are one word.
    const SETTINGS: &str = "bindpw masterauth requirepass rocommunity rootpw rwcommunity";
    let bytes = &text[word.range.clone()];
    if bytes.is_empty() || value::is_predicate(bytes) || b"-=".contains(&bytes[0]) {
        return false;
    }
    let name_text = &text[name.clone()];
    let is_compound = is_one_of(name_text, SETTINGS) || name::words(name_text).len() > 1;
    let line = text[line_start(text, name.start)..name.start].trim_ascii();
    let before = line.rsplit(|b| *b == b' ').next().unwrap_or_default();
    let is_password = NameKind::of(name_text) == NameKind::Password;
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
        !is_title || name_text.iter().any(u8::is_ascii_lowercase)
    } else if word.is_quoted && bytes.contains(&b' ') {
        // `master password "correct horse battery" accepted`
        let words = || bytes.split(|b| *b == b' ');
        is_password
            && words().count() <= 6
            && words().all(|word| word.len() > 2)
            && words().filter(|word| value::is_predicate(word)).count() * 2 < words().count()
    } else if word.is_quoted {
        value::is_likely_secret(bytes)
            || ((is_compound || is_password) && bytes.len() > 3)
            || (bytes.len() > 7 && !value::is_word(bytes))
    } else {
        let is_whole = is_last || after.is_some_and(|b| b"),".contains(b));
        // The password of a remote desktop: `password 51:b:0100…`
        let bytes = bytes.rsplit(|b| *b == b':').next().unwrap_or(bytes);
        (is_one_of(before, USES) && is_whole && bytes.len() > 5) || value::is_likely_secret(bytes)
    }
}

/// Returns the word before the name in `using … as password`, `'…' is not a valid API key`, `unlock with … (master
/// password)` and `init("…")  # access token`.
fn before(text: &[u8], phrase: &Range<usize>) -> Option<Range<usize>> {
    const MAX_BEFORE: usize = 6;
    const LINKS: &str = "( # // -- /* as is isn't was";
    let from = line_start(text, phrase.start).max(phrase.start.saturating_sub(MAX_SENTENCE));
    // The words of the phrase that do not belong to the name are articles and verbs.
    let name = text[phrase.clone()].rsplit(|b| *b == b' ').next()?.len();
    let mut end = phrase.end - name;
    let mut is_linked = false;
    for _ in 0..MAX_BEFORE {
        end = trim_end(text, from..end, b" ").end;
        let length = text[from..end].iter().rev().take_while(|b| **b != b' ').count();
        let word = &text[end - length..end];
        let is_article = is_one_of(word.strip_prefix(b"(").unwrap_or(word), ARTICLES);
        let is_link = is_one_of(word, LINKS) || (word.starts_with(b"(") && is_article);
        if is_linked && !is_link && !is_one_of(word, "not") {
            let quoted = word.iter().position(|b| QUOTES.contains(b)).map_or(0, |at| at + 1);
            let inner = skip(&text[..end], end - word.len() + quoted, b"\"'`(")..end;
            let inner = trim_end(text, inner, b"\"'`),");
            let bytes = &text[inner.clone()];
            let is_quoted = quoted == 1 && inner.end < end && bytes.len() > 5;
            let has_groups = bytes.iter().filter(|b| **b == b'-').count() >= 3;
            let is_secret = is_quoted || has_groups || value::is_likely_secret(bytes);
            return (is_secret && !harmless::is_reference(bytes)).then_some(inner);
        }
        if !is_link && !is_article {
            return None;
        }
        is_linked |= is_link;
        end -= word.len();
    }
    None
}

fn next_word(text: &[u8], from: usize, limit: usize) -> Option<Word> {
    let start = skip(&text[..limit], from, b" \t(:,");
    let quote = *text[..limit].get(start)?;
    if QUOTES.contains(&quote) {
        let end = memchr::memchr(quote, &text[start + 1..limit]).map(|n| start + 1 + n)?;
        let is_label = text.get(end + 1).is_some_and(|b| b":=".contains(b));
        return Some(Word { range: start + 1..end, is_quoted: true, is_label });
    }
    let length = text[start..limit].iter().take_while(|b| !b.is_ascii_whitespace()).count();
    let word = &text[start..start + length];
    let is_label = word.ends_with(b":")
        || (word.ends_with(b"=") && !matches!(word, b"==" | b"!="))
        || matches!(word, b"->" | b"=>" | b"-" | b"\xe2\x86\x92");
    let trimmed = trim_end(text, start..start + length, b".,;:)]}>\"'`=");
    let end = if trimmed.is_empty() { start + length } else { trimmed.end };
    Some(Word { range: start..end, is_quoted: false, is_label })
}
