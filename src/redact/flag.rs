//! Flags whose value is the next word: `--api-key 8f2c…`, and the short flags of a few programs that take
//! passwords.

use std::ops::Range;

use super::name::{self, Sensitivity};

/// A short flag means a secret only to these programs.
struct Short {
    programs: &'static [&'static str],
    flag: &'static str,
    hides: Part,
    /// The value may follow without a blank: `-pSECRET`.
    attached: bool,
    /// It must: to mysql, a word behind a bare `-p` is the database.
    separate: bool,
}

#[derive(Clone, Copy)]
enum Part {
    Whole,
    /// What comes after this byte: of `user:password` the password.
    After(u8),
}

const SHORT: &[Short] = &[
    Short {
        programs: &["mysql", "mysqldump", "mysqladmin", "mariadb"],
        flag: "-p",
        hides: Part::Whole,
        attached: true,
        separate: false,
    },
    Short {
        programs: &["sshpass"],
        flag: "-p",
        hides: Part::Whole,
        attached: true,
        separate: true,
    },
    Short {
        programs: &["login"],
        flag: "-p",
        hides: Part::Whole,
        attached: false,
        separate: true,
    },
    Short {
        programs: &["redis-cli"],
        flag: "-a",
        hides: Part::Whole,
        attached: false,
        separate: true,
    },
    Short {
        programs: &["ldapsearch", "ldapadd", "ldapmodify"],
        flag: "-w",
        hides: Part::Whole,
        attached: true,
        separate: true,
    },
    Short {
        programs: &["curl", "wget"],
        flag: "-u",
        hides: Part::After(b':'),
        attached: true,
        separate: true,
    },
    Short {
        programs: &["curl", "wget"],
        flag: "-U",
        hides: Part::After(b':'),
        attached: true,
        separate: true,
    },
    Short {
        programs: &["curl", "wget"],
        flag: "--user",
        hides: Part::After(b':'),
        attached: false,
        separate: true,
    },
    Short {
        programs: &["curl", "wget"],
        flag: "--proxy-user",
        hides: Part::After(b':'),
        attached: false,
        separate: true,
    },
    Short {
        programs: &["http", "https"],
        flag: "-a",
        hides: Part::After(b':'),
        attached: false,
        separate: true,
    },
    Short {
        programs: &["7z", "7za", "7zr", "7zz", "rar", "unrar"],
        flag: "-p",
        hides: Part::Whole,
        attached: true,
        separate: false,
    },
    Short {
        programs: &["mongo", "mongosh", "mongodump", "mongorestore", "rdesktop"],
        flag: "-p",
        hides: Part::Whole,
        attached: false,
        separate: true,
    },
    Short {
        programs: &["bcp", "ipmitool", "sqlcmd", "unzip", "zip"],
        flag: "-P",
        hides: Part::Whole,
        attached: true,
        separate: true,
    },
    Short {
        programs: &["openssl"],
        flag: "-k",
        hides: Part::Whole,
        attached: false,
        separate: true,
    },
    Short {
        programs: &["smbclient", "smbget", "rpcclient"],
        flag: "-U",
        hides: Part::After(b'%'),
        attached: true,
        separate: true,
    },
    Short {
        programs: &["lftp"],
        flag: "-u",
        hides: Part::After(b','),
        attached: true,
        separate: true,
    },
    // `wandb login KEY`: the last word of the subcommand takes the flag's place.
    Short {
        programs: &["wandb"],
        flag: "login",
        hides: Part::Whole,
        attached: false,
        separate: true,
    },
];

/// For each argument, where the part to hide begins.
pub fn hidden_in_arguments(words: &[&[u8]]) -> Vec<Option<usize>> {
    let mut before = Before::default();
    words.iter().map(|word| before.take(word, true)).collect()
}

/// What stands in front of a word.
#[derive(Default)]
struct Before<'a> {
    last: &'a [u8],
    /// Which entries of [`SHORT`] have had their program named.
    named: [bool; SHORT.len()],
    /// `wandb` was named, whose keys look like commits.
    names_wandb: bool,
    /// A program was named that takes commits.
    names_vcs: bool,
    /// A program was named to which `/p:` is a property.
    names_msbuild: bool,
}

impl<'a> Before<'a> {
    /// Where the part of the next word begins that is to be hidden.
    fn take(&mut self, word: &'a [u8], is_argument: bool) -> Option<usize> {
        let hidden = behind_named(self.last, word)
            .or_else(|| self.behind_short(word))
            .or_else(|| self.behind_slash(word))
            .or_else(|| self.is_key(word, is_argument).then_some(0));
        self.pass(word);
        hidden
    }

    /// Another line of a text is another command, but a flag's value may stand on it.
    fn begin_line(&mut self) {
        *self = Self {
            last: self.last,
            ..Self::default()
        };
    }

    fn pass(&mut self, word: &'a [u8]) {
        let program = base_name(word);
        for (named, short) in self.named.iter_mut().zip(SHORT) {
            *named |= short.programs.contains(&program);
        }
        self.names_wandb |= program == "wandb";
        self.names_vcs |= ["git", "gh", "glab", "hg", "jj", "svn"].contains(&program);
        self.names_msbuild |= ["dotnet", "msbuild", "xbuild"].contains(&program);
        self.last = word;
    }

    fn behind_short(&self, word: &[u8]) -> Option<usize> {
        let named = self.named.iter().zip(SHORT).filter(|(named, _)| **named);
        named
            .into_iter()
            .find_map(|(_, short)| short.hidden_from(self.last, word))
    }

    /// `/p:SECRET`, as programs from Windows write it. `/p:/data` is a volume.
    fn behind_slash(&self, word: &[u8]) -> Option<usize> {
        let value = word
            .strip_prefix(b"/p:")
            .or_else(|| word.strip_prefix(b"/P:"))?;
        let hides = !self.names_msbuild && !value.is_empty() && !value.starts_with(b"/");
        hides.then_some(3)
    }

    /// `wandb login --relogin KEY`, `API key KEY`, or an argument that nothing says is a commit. In a text a commit is as
    /// likely.
    fn is_key(&self, word: &[u8], is_argument: bool) -> bool {
        if !name::is_hex_key(word) || name::names_revision(self.last) {
            return false;
        }
        self.names_wandb
            || name::sensitivity(self.last) != Sensitivity::Plain
            || (is_argument && !self.names_vcs)
    }
}

/// The same in a text, where words end at blanks and may be quoted.
pub fn find(text: &[u8], hidden: &mut Vec<Range<usize>>) {
    let words = words(text);
    // One word has nothing in front of it.
    if words.len() < 2 {
        return;
    }
    let mut before = Before::default();
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

fn behind_named(flag: &[u8], word: &[u8]) -> Option<usize> {
    let is_word = |&b: &u8| b != b'=' && !b.is_ascii_whitespace() && !b.is_ascii_control();
    let is_flag = starts_with_dash(flag) && flag.iter().all(is_word);
    // `aws configure set aws_secret_access_key …`
    let is_setting =
        flag.contains(&b'_') && flag.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_');
    let takes_word = is_setting || (is_flag && !name::is_switch(flag));
    // A word that begins with a dash is the next flag: argparse and click refuse such a value as well.
    let hides = takes_word && !is_flag_like(word) && name::hides(name::sensitivity(flag), word);
    hides.then_some(0)
}

impl Short {
    fn hidden_from(&self, before: &[u8], word: &[u8]) -> Option<usize> {
        let flag = self.flag.as_bytes();
        let value_at = if self.separate && before == flag && !is_flag_like(word) {
            0
        } else if self.attached && word.len() > flag.len() && word.starts_with(flag) {
            flag.len()
        } else {
            return None;
        };
        match self.hides {
            Part::Whole => Some(value_at),
            Part::After(separator) => {
                let at = word[value_at..].iter().position(|&b| b == separator)?;
                Some(value_at + at + 1)
            }
        }
    }
}

/// Also with a dash that a word processor made of a hyphen: `–token`.
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

/// Quotes and brackets of a list: `["--token",` is the flag `--token`.
const AROUND: &[u8] = b"\"'`[](),";

fn leading(word: &[u8]) -> usize {
    word.iter().take_while(|b| AROUND.contains(b)).count()
}

fn trim(word: &[u8]) -> &[u8] {
    let trailing = word.iter().rev().take_while(|b| AROUND.contains(b)).count();
    let start = leading(word).min(word.len() - trailing);
    &word[start..word.len() - trailing]
}

/// A quoted value goes on to its closing quote, blanks included.
fn end_of_word(text: &[u8], start: usize, word: Range<usize>) -> usize {
    let quote = start
        .checked_sub(1)
        .map(|at| text[at])
        .filter(|b| b"\"'`".contains(b));
    let end = match quote {
        Some(quote) if start > word.start => text[start..]
            .iter()
            .position(|&b| b == quote)
            .map_or(text.len(), |n| start + n),
        _ => word.end,
    };
    end.max(start)
}
