//! Redacts flags whose value is the next word, such as `--api-key 8f2c…`, and short password flags of some programs.

use std::ops::Range;

use super::name::{self, Sensitivity};

/// A short flag that takes a secret in the listed programs.
struct ShortFlag {
    programs: &'static [&'static str],
    flag: &'static str,
    value: ValuePosition,
    hides: HiddenPart,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ValuePosition {
    /// `-pSECRET` only, as for mysql, where the word after a bare `-p` is the database.
    Attached,
    NextWord,
    Either,
}

#[derive(Clone, Copy)]
enum HiddenPart {
    Whole,
    /// Hides only the part after this separator. With `:`, that is the password in `user:password`.
    After(u8),
}

const fn short(
    programs: &'static [&'static str],
    flag: &'static str,
    value: ValuePosition,
    hides: HiddenPart,
) -> ShortFlag {
    ShortFlag { programs, flag, value, hides }
}

use HiddenPart::{After, Whole};
use ValuePosition::{Attached, Either, NextWord};

const SHORT_FLAGS: &[ShortFlag] = &[
    short(&["mysql", "mysqldump", "mysqladmin", "mariadb"], "-p", Attached, Whole),
    short(&["sshpass"], "-p", Either, Whole),
    short(&["login"], "-p", NextWord, Whole),
    short(&["redis-cli"], "-a", NextWord, Whole),
    short(&["ldapsearch", "ldapadd", "ldapmodify"], "-w", Either, Whole),
    short(&["curl", "wget"], "-u", Either, After(b':')),
    short(&["curl", "wget"], "-U", Either, After(b':')),
    short(&["curl", "wget"], "--user", NextWord, After(b':')),
    short(&["curl", "wget"], "--proxy-user", NextWord, After(b':')),
    short(&["http", "https"], "-a", NextWord, After(b':')),
    short(&["7z", "7za", "7zr", "7zz", "rar", "unrar"], "-p", Attached, Whole),
    short(&["mongo", "mongosh", "mongodump", "mongorestore", "rdesktop"], "-p", NextWord, Whole),
    short(&["bcp", "ipmitool", "sqlcmd", "unzip", "zip"], "-P", Either, Whole),
    short(&["openssl"], "-k", NextWord, Whole),
    short(&["smbclient", "smbget", "rpcclient"], "-U", Either, After(b'%')),
    short(&["lftp"], "-u", Either, After(b',')),
    // `wandb login KEY`: the subcommand acts as the flag.
    short(&["wandb"], "login", NextWord, Whole),
];

/// Returns, for each argument, the start of the part to hide, if any.
pub fn hidden_in_arguments(words: &[&[u8]]) -> Vec<Option<usize>> {
    let mut before = PrecedingWords::default();
    words.iter().map(|word| before.take(word, true)).collect()
}

#[derive(Default)]
struct PrecedingWords<'a> {
    last: &'a [u8],
    /// True for each entry of [`SHORT_FLAGS`] whose program is among the preceding words.
    named: [bool; SHORT_FLAGS.len()],
    /// True if `wandb` is among the preceding words. Its keys look like commit hashes.
    names_wandb: bool,
    names_vcs: bool,
    /// True if the preceding words include a program that uses `/p:` to set a property.
    names_msbuild: bool,
}

impl<'a> PrecedingWords<'a> {
    /// Reads the next word and returns the start of the part to hide, if any.
    fn take(&mut self, word: &'a [u8], is_argument: bool) -> Option<usize> {
        let hidden = after_named_flag(self.last, word)
            .or_else(|| self.after_short_flag(word))
            .or_else(|| self.after_slash_flag(word))
            .or_else(|| self.is_key(word, is_argument).then_some(0));
        self.pass(word);
        hidden
    }

    /// At a line break, discards all words except the last. The next word may start a command or be the value of a flag
    /// on the previous line.
    fn begin_line(&mut self) {
        *self = Self { last: self.last, ..Self::default() };
    }

    fn pass(&mut self, word: &'a [u8]) {
        let program = base_name(word);
        for (named, short) in self.named.iter_mut().zip(SHORT_FLAGS) {
            *named |= short.programs.contains(&program);
        }
        self.names_wandb |= program == "wandb";
        self.names_vcs |= ["git", "gh", "glab", "hg", "jj", "svn"].contains(&program);
        self.names_msbuild |= ["dotnet", "msbuild", "xbuild"].contains(&program);
        self.last = word;
    }

    fn after_short_flag(&self, word: &[u8]) -> Option<usize> {
        let named = self.named.iter().zip(SHORT_FLAGS).filter(|(named, _)| **named);
        named.into_iter().find_map(|(_, short)| short.hidden_from(self.last, word))
    }

    /// Handles `/p:SECRET` for Windows programs. `/p:/data` is a volume and is not redacted.
    fn after_slash_flag(&self, word: &[u8]) -> Option<usize> {
        let value = word.strip_prefix(b"/p:").or_else(|| word.strip_prefix(b"/P:"))?;
        let hides = !self.names_msbuild && !value.is_empty() && !value.starts_with(b"/");
        hides.then_some(3)
    }

    /// Returns true if a word of 40 hexadecimal digits is a key: in `wandb login --relogin KEY`, after `API key`, or as
    /// an argument of a program other than a version control tool. Elsewhere, such a word is just as likely to be a
    /// commit hash.
    fn is_key(&self, word: &[u8], is_argument: bool) -> bool {
        if !name::is_hex_key(word) || name::names_revision(self.last) {
            return false;
        }
        self.names_wandb
            || name::sensitivity(self.last) != Sensitivity::Plain
            || (is_argument && !self.names_vcs)
    }
}

/// Finds secret flag values in text whose words are separated by whitespace and may be quoted.
pub fn find(text: &[u8], hidden: &mut Vec<Range<usize>>) {
    let words = words(text);
    // A flag and its value are two words.
    if words.len() < 2 {
        return;
    }
    let mut before = PrecedingWords::default();
    let mut end = 0;
    for range in words {
        let has_line_end = text[end..range.start].contains(&b'\n');
        end = range.end;
        if has_line_end && before.last != b"\\" {
            before.begin_line();
        }
        if let Some(from) = before.take(trim(&text[range.clone()]), false) {
            let start = range.start + leading(&text[range.clone()]);
            hidden.push(start + from..end_of_word(text, start, range));
        }
    }
}

fn after_named_flag(flag: &[u8], word: &[u8]) -> Option<usize> {
    let is_word = |&b: &u8| b != b'=' && !b.is_ascii_whitespace() && !b.is_ascii_control();
    let is_flag = starts_with_dash(flag) && flag.iter().all(is_word);
    // A setting name acts as a flag: `aws configure set aws_secret_access_key …`.
    let is_setting =
        flag.contains(&b'_') && flag.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_');
    let takes_word = is_setting || (is_flag && !name::is_switch(flag));
    // A word that begins with a dash is the next flag. argparse and click also reject such a word as a value.
    let hides = takes_word && !is_flag_like(word) && name::hides(name::sensitivity(flag), word);
    hides.then_some(0)
}

impl ShortFlag {
    fn hidden_from(&self, before: &[u8], word: &[u8]) -> Option<usize> {
        let flag = self.flag.as_bytes();
        let value_at = if self.value != Attached && before == flag && !is_flag_like(word) {
            0
        } else if self.value != NextWord && word.len() > flag.len() && word.starts_with(flag) {
            flag.len()
        } else {
            return None;
        };
        match self.hides {
            Whole => Some(value_at),
            After(separator) => {
                let at = word[value_at..].iter().position(|&b| b == separator)?;
                Some(value_at + at + 1)
            }
        }
    }
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

fn base_name(word: &[u8]) -> &str {
    let name = word.rsplit(|&b| b == b'/').next().unwrap_or_default();
    std::str::from_utf8(name).unwrap_or_default()
}

fn words(text: &[u8]) -> Vec<Range<usize>> {
    let mut words = Vec::new();
    let mut start = None;
    for (at, byte) in text.iter().enumerate() {
        match (byte.is_ascii_whitespace(), start) {
            (false, None) => start = Some(at),
            (true, Some(from)) => {
                words.push(from..at);
                start = None;
            }
            _ => {}
        }
    }
    words.extend(start.map(|from| from..text.len()));
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
    let end = match quote {
        Some(quote) if start > word.start => {
            text[start..].iter().position(|&b| b == quote).map_or(text.len(), |n| start + n)
        }
        _ => word.end,
    };
    end.max(start)
}
