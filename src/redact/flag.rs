//! Flags whose value is the next word: `--api-key 8f2c…`, and the short flags of a few programs that take
//! passwords.

use std::ops::Range;

use super::name;

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
    /// Of `user:password` the password.
    BehindColon,
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
        hides: Part::BehindColon,
        attached: true,
        separate: true,
    },
    Short {
        programs: &["curl", "wget"],
        flag: "-U",
        hides: Part::BehindColon,
        attached: true,
        separate: true,
    },
    Short {
        programs: &["curl", "wget"],
        flag: "--user",
        hides: Part::BehindColon,
        attached: false,
        separate: true,
    },
    Short {
        programs: &["curl", "wget"],
        flag: "--proxy-user",
        hides: Part::BehindColon,
        attached: false,
        separate: true,
    },
    Short {
        programs: &["http", "https"],
        flag: "-a",
        hides: Part::BehindColon,
        attached: false,
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
    words
        .iter()
        .map(|word| {
            let hidden = behind_named(before.last, word).or_else(|| before.behind_short(word));
            before.pass(word);
            hidden
        })
        .collect()
}

/// What stands in front of a word.
#[derive(Default)]
struct Before<'a> {
    last: &'a [u8],
    /// Which entries of [`SHORT`] have had their program named.
    named: [bool; SHORT.len()],
}

impl<'a> Before<'a> {
    fn pass(&mut self, word: &'a [u8]) {
        let program = base_name(word);
        for (named, short) in self.named.iter_mut().zip(SHORT) {
            *named |= short.programs.contains(&program);
        }
        self.last = word;
    }

    fn behind_short(&self, word: &[u8]) -> Option<usize> {
        let named = self.named.iter().zip(SHORT).filter(|(named, _)| **named);
        named
            .into_iter()
            .find_map(|(_, short)| short.hidden_from(self.last, word))
    }
}

/// The same in a text, where words end at blanks and may be quoted.
pub fn find(text: &[u8], hidden: &mut Vec<Range<usize>>) {
    let words = words(text);
    // One word has nothing in front of it.
    if words.len() < 2 {
        return;
    }
    let trimmed: Vec<&[u8]> = words.iter().map(|word| trim(&text[word.clone()])).collect();
    for (i, from) in hidden_in_arguments(&trimmed).into_iter().enumerate() {
        if let Some(from) = from {
            let range = words[i].clone();
            let start = range.start + leading(&text[range.clone()]);
            hidden.push(start + from..end_of_word(text, start, range));
        }
    }
}

fn behind_named(flag: &[u8], word: &[u8]) -> Option<usize> {
    let is_flag = flag.starts_with(b"-") && flag.iter().all(|&b| b.is_ascii_graphic() && b != b'=');
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
            Part::BehindColon => {
                let colon = word[value_at..].iter().position(|&b| b == b':')?;
                Some(value_at + colon + 1)
            }
        }
    }
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
