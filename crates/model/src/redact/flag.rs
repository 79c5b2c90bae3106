//! Redacts the secrets in command lines, as lists of arguments or in text: `--api-key 8f2c…`, `-u ana -p …`.

use std::ops::Range;

use super::name::{self, Sensitivity, is_one_of};
use super::notation::{line_start, near, skip, trim_end};
use super::{context, harmless, tool, value};

/// Maximum number of words of a command line in text, and maximum length of a word about secrets and of a quoted value.
const MAX_WORDS: usize = 128;
const MAX_SUBCOMMAND: usize = 40;
const MAX_QUOTED: usize = 4096;

/// Quotes and brackets that may enclose a word: `["--token",` is the flag `--token`.
const ENCLOSING: &[u8] = b"\"'`[](),";

/// The kind of text that a list of words comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Arguments,
    /// A line that shows a command: `+ docker login …`, `$ docker login …`.
    Trace,
    Text,
}

/// Returns, for each word, the start of the part to hide, if any.
pub fn hidden_in(words: &[&[u8]], kind: Kind) -> Vec<Option<usize>> {
    let mut hidden = vec![None; words.len()];
    let mut before = Before {
        kind,
        all: &words[..words.len().min(MAX_WORDS)],
        last: b"",
        second_last: b"",
        has_user: false,
        is_about_secrets: false,
    };
    for (n, word) in words.iter().enumerate() {
        let rest = &words[n + 1..words.len().min(n + 1 + MAX_WORDS)];
        for (at, start) in tool::secrets(base_name(word), rest) {
            hidden[n + 1 + at].get_or_insert(start);
        }
        // A shell has replaced the references in arguments.
        let is_reference = kind != Kind::Arguments && harmless::is_reference(word);
        if hidden[n].is_none() && !word.is_empty() && !is_reference {
            hidden[n] = before.hidden_from(word);
        }
        before.pass(word);
    }
    hidden
}

/// Programs with version control, in whose arguments random words are commits.
const VCS: &str = "git gh glab hg jj svn gpg gpg2 apt-key";
/// Programs whose arguments are patterns or the names of packages, such as `pass`.
const SEARCHES: &str = "ack apt apt-get apk brew dnf grep pacman pip rg yum zypper";
/// Programs of which `-p` is a database, a partition or a port, and `-u` no user.
const OTHER_FLAGS: &str = "docker podman kubectl mysql mysqladmin mysqldump mariadb psql python python3 sbatch srun ssh torchrun";
/// Programs of which `--secret` takes the name of a secret.
const CONTAINERS: &str = "docker kubectl podman";
const MYSQL: &str = "mysql mysqladmin mysqldump mariadb";
/// Programs of which `/p:` sets a property.
const MSBUILD: &str = "dotnet msbuild xbuild";

/// The words before a word of a command line.
struct Before<'a> {
    kind: Kind,
    all: &'a [&'a [u8]],
    last: &'a [u8],
    second_last: &'a [u8],
    /// True after `-u ana`.
    has_user: bool,
    /// True after a word about secrets: `login`, `changepassword`, `--with-api-key`.
    is_about_secrets: bool,
}

impl<'a> Before<'a> {
    /// Returns true if the command line contains one of some programs.
    fn names(&self, programs: &str) -> bool {
        self.all.iter().any(|word| is_one_of(base_name(word), programs))
    }

    /// Returns true if arguments are names of secrets: after `access` and `get-login-password`, but not after `--get` or
    /// `get-data.py`.
    fn reads_secrets(&self) -> bool {
        self.all.iter().any(|word| {
            let command = base_name(word);
            let verb = command.split(|b| *b == b'-').next().unwrap_or_default();
            let object = &command[verb.len()..];
            is_one_of(verb, "access delete describe get list ls remove rm show")
                && (object.is_empty()
                    || (!object.contains(&b'.') && name::stems().is_match(object)))
        })
    }

    fn pass(&mut self, word: &'a [u8]) {
        let takes_user = ["-u", "-U", "-x", "-l", "-user", "--user", "--username"];
        let takes_user = takes_user.iter().any(|flag| flag.as_bytes() == self.last);
        self.has_user |= matches!(word, [b'-', b'u', b'=' | b':', ..])
            || (takes_user && word.first().is_some_and(u8::is_ascii_alphabetic));
        self.is_about_secrets |=
            !word.contains(&b'=') && name::stems().is_match(word) && is_about_secrets(word);
        self.second_last = self.last;
        self.last = word;
    }

    /// Returns the start of the part of the next word to hide, if any.
    fn hidden_from(&self, word: &[u8]) -> Option<usize> {
        let is_named = self.is_named(word);
        let assigned = context::value_of_argument(word).filter(|value| {
            let is_name = self.reads_secrets() && word.starts_with(b"--secret=");
            self.kind == Kind::Arguments
                && (starts_with_dash(word) || !self.names(SEARCHES))
                && (!is_name || value::is_credential(&word[*value..]))
        });
        let is_whole = (is_named && !harmless::is_reference_to_secret(word))
            || self.is_password(word)
            || self.is_random(word);
        after_slash_flag(word)
            .filter(|_| !self.names(MSBUILD))
            .or(assigned)
            .or_else(|| self.login_start(word))
            .filter(|_| !is_named)
            .or(is_whole.then_some(0))
            .or_else(|| self.credential_start(word))
    }

    /// Returns true for the value of a flag or a setting with a sensitive name: `--api-key …`, `aws configure set
    /// aws_secret_access_key …`, `connect lab password …`, `env:TOKEN -Value …`.
    fn is_named(&self, word: &[u8]) -> bool {
        let is_value = matches!(self.last, b"-Value" | b"--value" | b"-v" | b"--body" | b"/d");
        let name = if is_value { self.second_last } else { self.last };
        let name = name.strip_suffix(b"=").unwrap_or(name);
        let is_flag = !is_value
            && starts_with_dash(name)
            && !name.iter().any(|b| *b == b'=' || b.is_ascii_whitespace() || b.is_ascii_control())
            && !name::is_switch(name);
        // `-e HF_TOKEN` passes a variable on.
        let is_passed_on = matches!(self.second_last, b"-e" | b"--env" | b"-u" | b"-x" | b"unset");
        let is_command = self.kind != Kind::Text && !is_passed_on;
        let is_setting = is_command
            && name.iter().any(|b| b"_.".contains(b))
            && name.iter().all(|b| b.is_ascii_alphanumeric() || b"_./:-".contains(b));
        // `argocd reset-admin-password …`
        let is_password =
            name.starts_with(b"pass") || memchr::memmem::find(name, b"-passw").is_some();
        let is_set = is_value
            || is_one_of(self.second_last, "set --arg --set")
            || (is_command && self.last.ends_with(b"="))
            || (is_command
                && is_password
                && !is_flag_like(self.second_last)
                && !self.reads_secrets());
        // `getent passwd ana` names a database, and `pass show` is a program.
        let is_program = name == b"passwd" || self.second_last.is_empty();
        let sensitivity = name::sensitivity(name);
        let takes_word = is_set
            && sensitivity == Sensitivity::Secret
            && !starts_with_dash(name)
            && !word.starts_with(b"/")
            && !value::is_predicate(word)
            && (is_value || !is_program || value::is_credential(word));
        // The password of MySQL follows `=`, and `--secret` may take the name of a secret.
        let is_prompt = || {
            (self.names(MYSQL) && name == b"--password")
                || (name == b"--secret" && (self.reads_secrets() || self.names(CONTAINERS)))
        };
        // A word that begins with a dash is the next flag. argparse and click also reject such a word as a value.
        (is_flag || is_setting || takes_word)
            && !is_flag_like(word)
            && value::hides(sensitivity, word)
            && !harmless::is_file(name, word)
            && (is_flag || !self.names(SEARCHES))
            && (value::is_credential(word) || !is_prompt())
    }

    /// Returns the start of the password in `-u ana:…` and of that in `-p=…`.
    fn login_start(&self, word: &[u8]) -> Option<usize> {
        const LOGINS: [&str; 9] =
            ["-a", "-A", "-u", "-U", "-auth", "--auth", "--user", "--login", "--proxy-user"];
        let is_login = |name: &[u8]| LOGINS.iter().any(|flag| flag.as_bytes() == name);
        let equals = memchr::memchr(b'=', word).filter(|at| {
            is_login(&word[..*at]) && name::sensitivity(&word[..*at]) == Sensitivity::Plain
        });
        if equals.is_some() || is_login(self.last) {
            let from = equals.map_or(0, |at| at + 1);
            let colon = from + memchr::memchr(b':', &word[from..])? + 1;
            return (colon > from + 1 && value::is_credential(&word[colon..])).then_some(colon);
        }
        let is_attached = matches!(word, [b'-', b'p' | b'P', b'=' | b':', ..]);
        let takes_login = self.has_user && !self.names(OTHER_FLAGS);
        (is_attached && takes_login && !is_number_or_path(&word[3..])).then_some(3)
    }

    /// Returns true for the password in `-u ana -p …`.
    fn is_password(&self, word: &[u8]) -> bool {
        matches!(self.last, b"-p" | b"-P" | b"-w" | b"-W" | b"-pw")
            && (self.has_user || self.is_about_secrets)
            && !self.names(OTHER_FLAGS)
            && !is_flag_like(word)
            && !is_number_or_path(word)
    }

    /// Returns the start of a word, or of the value in `name=value`, that can be a password or a token, in a command line
    /// about secrets: `cf auth ana …`, `gh secret set X --body=…`.
    fn credential_start(&self, word: &[u8]) -> Option<usize> {
        // `--from-literal=key=8f2c…`
        let is_name = |b: &u8| b.is_ascii_alphanumeric() || b"-_./=".contains(b);
        let equals = memchr::memchr_iter(b'=', word).take(2).map(|at| at + 1);
        let is_start = |at: &usize| *at < word.len() && word[..*at].iter().all(is_name);
        let value_at = equals.filter(is_start).last().unwrap_or(0);
        let value = &word[value_at..];
        let is_credential = self.is_about_secrets
            && !harmless::is_reference_to_secret(word)
            && !word.starts_with(b"--from-file=")
            && !is_flag_like(value)
            && (value::is_credential(value) || value::looks_secret(value))
            && !value.contains(&b'/')
            && !value::is_user_at_host(value)
            && !self.reads_secrets();
        is_credential.then_some(value_at)
    }

    /// Returns true for an argument without a name that is too random for a name: `./app -t k7Zp9Qm…`. A word of 40
    /// hexadecimal digits is a key in `wandb login --relogin KEY`, after `API key`, and as an argument of a program other
    /// than a version control tool. Elsewhere, it is just as likely to be a commit hash.
    fn is_random(&self, word: &[u8]) -> bool {
        const HASHES: [usize; 3] = [32, 40, 64];
        if value::is_hex_key(word) {
            return !name::names_revision(self.last)
                && (self.names("wandb")
                    || name::sensitivity(self.last) != Sensitivity::Plain
                    || (self.kind == Kind::Arguments && !self.names(VCS)));
        }
        let is_short_flag = matches!(self.last, [b'-', letter] if letter.is_ascii_alphabetic());
        let is_hash = word.iter().all(u8::is_ascii_hexdigit) && HASHES.contains(&word.len());
        let is_secret = || value::is_strong(word) || (value::looks_secret(word) && !is_hash);
        self.kind != Kind::Text
            && !word.iter().any(|b| b"/.=:,".contains(b))
            && (value::is_random(word) || (is_short_flag && is_secret()))
            && !harmless::is_public(word, &(0..word.len()))
            && !self.names(VCS)
    }
}

/// Returns true for a word about secrets, such as the name of a subcommand.
pub fn is_about_secrets(word: &[u8]) -> bool {
    if word.len() > MAX_SUBCOMMAND || word.starts_with(b"./") || word.starts_with(b"//") {
        return false;
    }
    let word = base_name(word);
    matches!(name::sensitivity(word), Sensitivity::Secret | Sensitivity::Login)
        || ["-tokens", "unlock", "unseal", "unwrap"]
            .iter()
            .any(|end| word.ends_with(end.as_bytes()))
}

/// Returns true for a port, a path or a mapping of ports.
fn is_number_or_path(word: &[u8]) -> bool {
    word.iter().all(|b| b.is_ascii_digit() || b":.-".contains(b)) || word.contains(&b'/')
}

/// Handles `/p:SECRET` for Windows programs. `/p:/data` is a volume and is not redacted.
fn after_slash_flag(word: &[u8]) -> Option<usize> {
    let colon = memchr::memchr(b':', word.strip_prefix(b"/")?)?;
    let (name, value) = (word[1..=colon].to_ascii_lowercase(), &word[colon + 2..]);
    let takes_secret = name == b"p"
        || name.starts_with(b"passw")
        || name::sensitivity(&name) == Sensitivity::Secret;
    (takes_secret && !value.is_empty() && !value.starts_with(b"/")).then_some(colon + 2)
}

/// Finds secrets in the lines of a text that contain a command line.
pub fn find(text: &[u8], hidden: &mut Vec<Range<usize>>) {
    let mut done = 0;
    for at in tool::mentions(text) {
        if at < done {
            continue;
        }
        let start = done.max(line_start(text, at));
        let ranges = words(text, start);
        done = ranges.last().map_or(at + 1, |last| last.end.max(at + 1));
        // A flag and its value are two words.
        if ranges.len() < 2 {
            continue;
        }
        let trim = |word: Range<usize>| {
            let start = word.start + leading(&text[word.clone()]);
            trim_end(text, start..word.end, ENCLOSING)
        };
        let trimmed: Vec<Range<usize>> = ranges.into_iter().map(trim).collect();
        let words: Vec<&[u8]> = trimmed.iter().map(|word| &text[word.clone()]).collect();
        let is_trace =
            text[start..at].iter().all(|b| b"+#> ".contains(b)) || text[at..].starts_with(b"$ ");
        let kind = if is_trace { Kind::Trace } else { Kind::Text };
        for (word, from) in trimmed.iter().zip(hidden_in(&words, kind)) {
            hidden.extend(from.map(|from| word.start + from..end_of_word(text, word)));
        }
    }
}

/// Returns the start of the value after the name of a flag in text: `--token 8f2c`, `'--token', '8f2c'`.
pub fn value_start(text: &[u8], flag: &Range<usize>) -> Option<usize> {
    let name = &text[flag.clone()];
    let closed = skip(text, flag.end, ENCLOSING);
    let start = skip(text, closed, b" \t\r\n\\");
    // The next line continues that of a flag after a backslash, or in a list with a line for each word.
    let gap = &text[closed..start];
    let is_broken = gap.contains(&b'\n') && !gap.contains(&b'\\');
    let before = text[line_start(text, flag.start)..flag.start].trim_ascii();
    if is_broken && !before.iter().all(|b| b"-\"'".contains(b)) {
        return None;
    }
    let is_item = is_broken && text[start..].starts_with(b"- ");
    let start = skip(text, start + if is_item { 2 } else { 0 }, b"`[](),");
    (starts_with_dash(name) && !name::is_switch(name) && start > closed && start < text.len())
        .then_some(start)
}

/// Returns true for the next flag, and for a sentence: "Using --password via the CLI is insecure."
pub fn is_no_value(word: &[u8], rest: &[u8]) -> bool {
    let goes_on = matches!(rest, [b' ', next, ..] if next.is_ascii_alphabetic());
    let is_word = tool::belongs_to_sentence(word) || value::is_predicate(word);
    is_flag_like(word) || (is_word && goes_on)
}

/// Returns true if the word begins with a hyphen, or with a dash inserted by a word processor, as in `–token`.
fn starts_with_dash(word: &[u8]) -> bool {
    // U+2010 to U+2015, and the minus sign
    matches!(word, [b'-', ..] | [0xe2, 0x80, 0x90..=0x95, ..] | [0xe2, 0x88, 0x92, ..])
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
    while at < text.len() && words.len() < MAX_WORDS && text[at] != b'\n' {
        let length = text[at..].iter().take_while(|b| !b.is_ascii_whitespace()).count();
        if text[at..].starts_with(b"\\\n") {
            at += 2;
        } else if length == 0 {
            at += 1;
        } else {
            words.push(at..at + length);
            at += length;
        }
    }
    words
}

/// Returns the length of what is before the word itself. An audit log numbers the words: `a0="mysql" a1="-p…"`.
fn leading(word: &[u8]) -> usize {
    let number = word.iter().skip(1).take_while(|b| b.is_ascii_digit()).count();
    let is_record = number > 0 && word.starts_with(b"a") && word[1 + number..].starts_with(b"=\"");
    skip(word, if is_record { number + 2 } else { 0 }, ENCLOSING)
}

/// Returns the end of a word without quotes. A quoted value extends to its closing quote, including whitespace.
fn end_of_word(text: &[u8], word: &Range<usize>) -> usize {
    match word.start.checked_sub(1).map(|at| text[at]) {
        Some(quote @ (b'"' | b'\'' | b'`')) => {
            let near = near(text, word.start, MAX_QUOTED);
            let end = memchr::memchr(quote, near).or_else(|| memchr::memchr(b'\n', near));
            word.start + end.unwrap_or(near.len())
        }
        _ => word.end,
    }
}
