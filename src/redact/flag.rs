//! Redacts the secrets in command lines, as lists of arguments or in text: `--api-key 8f2c…`, `-u ana -p …`.

use std::ops::Range;

use super::name::{self, Sensitivity};
use super::{tool, value};

/// Maximum number of words of a command line in text, and of bytes before the name of its program.
const MAX_WORDS: usize = 128;
const MAX_BEFORE: usize = 512;
/// Maximum length of a quoted value.
const MAX_QUOTED: usize = 4096;

/// Returns, for each argument, the start of the part to hide, if any.
pub fn hidden_in_arguments(words: &[&[u8]]) -> Vec<Option<usize>> {
    hidden_in(words, true)
}

fn hidden_in(words: &[&[u8]], are_arguments: bool) -> Vec<Option<usize>> {
    let mut hidden = vec![None; words.len()];
    for (n, word) in words.iter().enumerate().take(MAX_WORDS) {
        for (at, start) in
            tool::secrets(base_name(word), &words[n + 1..words.len().min(n + 1 + MAX_WORDS)])
        {
            hidden[n + 1 + at].get_or_insert(start);
        }
    }
    let (mut names_wandb, mut names_vcs, mut names_msbuild, mut takes_login) =
        (false, false, false, true);
    for word in words {
        match base_name(word) {
            b"wandb" => names_wandb = true,
            b"git" | b"gh" | b"glab" | b"hg" | b"jj" | b"svn" => names_vcs = true,
            b"dotnet" | b"msbuild" | b"xbuild" => names_msbuild = true,
            // Their `-p` is something else: a database, a partition or a port.
            b"docker" | b"kubectl" | b"mysql" | b"mysqldump" | b"mariadb" | b"psql" | b"python"
            | b"python3" | b"sbatch" | b"srun" | b"ssh" => takes_login = false,
            _ => {}
        }
    }
    let mut last: &[u8] = b"";
    let mut before_last: &[u8] = b"";
    let mut has_user = false;
    for (word, hidden) in words.iter().zip(&mut hidden) {
        let names_key = || {
            value::is_hex_key(word)
                && !name::names_revision(last)
                && (names_wandb
                    || name::sensitivity(last) != Sensitivity::Plain
                    || (are_arguments && !names_vcs))
        };
        let is_login = || {
            takes_login
                && has_user
                && matches!(last, b"-p" | b"-P" | b"-w" | b"-W")
                && is_password(word)
        };
        let is_positional = || are_arguments && is_login_command(last) && is_token(word);
        let is_setting = || {
            let is_secret = |name| name::sensitivity(name) == Sensitivity::Secret;
            let is_set = before_last == b"set"
                || (are_arguments && (last.ends_with(b"=") || last.starts_with(b"pass")));
            let is_value = matches!(last, b"-Value" | b"--value" | b"-v" | b"--body")
                && is_secret(before_last);
            let takes_value = is_value
                || (is_set
                    && !starts_with_dash(last)
                    && is_secret(last.strip_suffix(b"=").unwrap_or(last)));
            takes_value
                && !is_flag_like(word)
                && value::hides(Sensitivity::Secret, word)
                && !value::is_predicate(word)
        };
        if hidden.is_none() {
            *hidden = after_named_flag(last, word, are_arguments)
                .or_else(|| (is_login() || is_positional() || is_setting()).then_some(0))
                .or_else(|| attached_password(word).filter(|_| has_user && takes_login))
                .or_else(|| after_slash_flag(word).filter(|_| !names_msbuild))
                .or_else(|| names_key().then_some(0));
        }
        has_user |= matches!(last, b"-u" | b"-U" | b"-x" | b"-user" | b"--user" | b"--username")
            && !is_flag_like(word)
            && !word.first().is_none_or(u8::is_ascii_digit);
        has_user |= word.starts_with(b"-u=");
        before_last = last;
        last = word;
    }
    hidden
}

/// Returns the start of the password in `-p=…`.
fn attached_password(word: &[u8]) -> Option<usize> {
    let value = word.strip_prefix(b"-p=").or_else(|| word.strip_prefix(b"-P="))?;
    is_password(value).then_some(3)
}

/// Returns true for a word that can be the password of `-u ana -p …`, but not for a port, a path or a partition.
fn is_password(word: &[u8]) -> bool {
    let is_port = word.iter().all(|b| b.is_ascii_digit() || b":.-".contains(b));
    !word.is_empty()
        && !is_flag_like(word)
        && !is_port
        && !word.contains(&b'/')
        && !value::is_reference(word)
}

/// Returns true for subcommands that take a token: `snyk auth …`.
fn is_login_command(word: &[u8]) -> bool {
    matches!(word, b"login" | b"auth" | b"authtoken" | b"add-authtoken" | b"unseal" | b"unlock")
}

/// Returns true for a word that can be a token, but not for an address, a host or a file.
fn is_token(word: &[u8]) -> bool {
    value::is_credential(word) && !word.iter().any(|b| b"@/.:".contains(b))
        || value::looks_secret(word)
}

/// Handles `/p:SECRET` for Windows programs. `/p:/data` is a volume and is not redacted.
fn after_slash_flag(word: &[u8]) -> Option<usize> {
    let value = word.strip_prefix(b"/p:").or_else(|| word.strip_prefix(b"/P:"))?;
    (!value.is_empty() && !value.starts_with(b"/")).then_some(3)
}

/// Finds secrets in the lines of a text that contain a command line.
pub fn find(text: &[u8], hidden: &mut Vec<Range<usize>>) {
    let mut done = 0;
    for at in tool::mentions(text) {
        if at < done {
            continue;
        }
        let from = done.max(at.saturating_sub(MAX_BEFORE));
        let start = memchr::memrchr(b'\n', &text[from..at]).map_or(from, |n| from + n + 1);
        let ranges = words(text, start);
        done = ranges.last().map_or(at + 1, |last| last.end.max(at + 1));
        // A flag and its value are two words.
        if ranges.len() < 2 {
            continue;
        }
        let trimmed: Vec<&[u8]> = ranges.iter().map(|range| trim(&text[range.clone()])).collect();
        for (range, from) in ranges.iter().zip(hidden_in(&trimmed, false)) {
            let start = range.start + leading(&text[range.clone()]);
            hidden.extend(from.map(|from| start + from..end_of_word(text, start, range.clone())));
        }
    }
}

/// Returns the value after the name of a flag in text: `--token 8f2c`, `'--token', '8f2c'`.
pub fn value(text: &[u8], flag: &Range<usize>) -> Option<Range<usize>> {
    if !starts_with_dash(&text[flag.clone()]) || name::is_switch(&text[flag.clone()]) {
        return None;
    }
    let closed = text[flag.end..].iter().take_while(|b| ENCLOSING.contains(b)).count();
    let start = flag.end + closed;
    let blanks = text[start..].iter().take_while(|b| b" \t\r\n\\".contains(b)).count();
    let word = start + blanks;
    let length = text[word..].iter().take_while(|b| !b.is_ascii_whitespace()).count();
    if blanks == 0 || length == 0 {
        return None;
    }
    let range = word..word + length;
    let bytes = trim(&text[range.clone()]);
    let hides = !is_flag_like(bytes)
        && !value::is_reference(bytes)
        && value::hides(name::sensitivity(&text[flag.clone()]), bytes);
    let start = word + leading(&text[range.clone()]);
    hides.then(|| start..end_of_word(text, start, range))
}

fn after_named_flag(flag: &[u8], word: &[u8], are_arguments: bool) -> Option<usize> {
    let is_word = |&b: &u8| b != b'=' && !b.is_ascii_whitespace() && !b.is_ascii_control();
    let is_flag = starts_with_dash(flag) && flag.iter().all(is_word);
    // A setting name acts as a flag: `aws configure set aws_secret_access_key …`.
    let is_setting = are_arguments
        && flag.iter().any(|b| b"_.".contains(b))
        && flag.iter().all(|b| b.is_ascii_alphanumeric() || b"_./:-".contains(b));
    let takes_word = is_setting || (is_flag && !name::is_switch(flag));
    // A word that begins with a dash is the next flag. argparse and click also reject such a word as a value.
    let hides = takes_word && !is_flag_like(word) && value::hides(name::sensitivity(flag), word);
    hides.then_some(0)
}

/// Returns true if the word begins with a hyphen, or with a dash inserted by a word processor, as in `–token`.
fn starts_with_dash(word: &[u8]) -> bool {
    let is_typeset = || {
        let first = word.utf8_chunks().next()?.valid().chars().next()?;
        matches!(first, '\u{2010}'..='\u{2015}' | '\u{2212}').then_some(())
    };
    word.starts_with(b"-") || is_typeset().is_some()
}

fn is_flag_like(word: &[u8]) -> bool {
    matches!(word, [b'-', b'-', ..] | [b'-'] | [b'-', b'a'..=b'z' | b'A'..=b'Z', ..])
}

fn base_name(word: &[u8]) -> &[u8] {
    word.rsplit(|b| b"/'\"([{=`".contains(b)).next().unwrap_or_default()
}

/// Returns the words of a line and of those that continue it after a backslash.
fn words(text: &[u8], start: usize) -> Vec<Range<usize>> {
    let mut words = Vec::new();
    let mut at = start;
    while at < text.len() && words.len() < MAX_WORDS {
        match text[at] {
            b'\n' => break,
            b'\\' if text.get(at + 1) == Some(&b'\n') => at += 2,
            b if b.is_ascii_whitespace() => at += 1,
            _ => {
                let length = text[at..].iter().take_while(|b| !b.is_ascii_whitespace()).count();
                words.push(at..at + length);
                at += length;
            }
        }
    }
    words
}

/// Quotes and brackets that may enclose a word: `["--token",` is the flag `--token`.
const ENCLOSING: &[u8] = b"\"'`[](),";

fn leading(word: &[u8]) -> usize {
    word.iter().take_while(|b| ENCLOSING.contains(b)).count()
}

fn trim(word: &[u8]) -> &[u8] {
    let trailing = word.iter().rev().take_while(|b| ENCLOSING.contains(b)).count();
    let start = leading(word).min(word.len() - trailing);
    &word[start..word.len() - trailing]
}

/// Returns the end of a word. A quoted value extends to its closing quote, including whitespace.
fn end_of_word(text: &[u8], start: usize, word: Range<usize>) -> usize {
    let quote = start.checked_sub(1).map(|at| text[at]).filter(|b| b"\"'`".contains(b));
    let near = &text[start..text.len().min(start + MAX_QUOTED)];
    let end = match quote {
        Some(quote) if start > word.start => memchr::memchr(quote, near)
            .or_else(|| memchr::memchr(b'\n', near))
            .map_or(start + near.len(), |n| start + n),
        _ => word.start + leading(&text[word.clone()]) + trim(&text[word]).len(),
    };
    end.max(start)
}
