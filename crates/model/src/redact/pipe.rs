//! Redacts secrets that a shell passes to standard input: `echo 8f2c… | docker login --password-stdin`, `docker login
//! --password-stdin <<< 8f2c…`.

use std::ops::Range;

use super::flag::is_about_secrets;
use super::harmless::is_reference;
use super::name::{self, is_one_of};
use super::notation::{end_of_value, skip};

/// Maximum number of bytes to search around a pipe for its commands. Without a limit, hostile text would make the
/// search quadratic.
const MAX_COMMAND: usize = 1024;

/// Words that identify a command that reads a secret from standard input.
const READERS: &str = "--passphrase-fd --password-stdin --token-stdin --with-token adcli chpasswd cryptsetup \
    ecryptfs-unwrap-passphrase grub-mkpasswd-pbkdf2 grub2-mkpasswd-pbkdf2 keepassxc-cli kinit login mkpasswd openconnect \
    passwd realm secret-tool smbpasswd su";

pub fn find(text: &[u8], hidden: &mut Vec<Range<usize>>) {
    for at in memchr::memchr_iter(b'|', text) {
        let is_or = text[..at].ends_with(b"|") || text[at + 1..].starts_with(b"|");
        if !is_or && reads_secret(command_after(text, at + 1)) {
            hidden.extend(printed(text, at));
        }
    }
    for at in memchr::memmem::find_iter(text, b"<(") {
        hidden.extend(substituted(text, at));
    }
    for at in memchr::memmem::find_iter(text, b"<<<") {
        let end = at + 3 + command_after(text, at + 3).len();
        let is_piped = text[end..].starts_with(b"|") && reads_secret(command_after(text, end + 1));
        let from = at.saturating_sub(MAX_COMMAND);
        let command = text[from..at].rsplit(|b| b"|;&\n".contains(b)).next().unwrap_or_default();
        if is_piped || reads_secret(command) {
            hidden.extend(not_reference(text, skip(text, at + 3, b" ")));
        }
    }
}

/// Finds the secret in `--passphrase-file <(echo …)`.
fn substituted(text: &[u8], at: usize) -> Option<Range<usize>> {
    const MAX_FLAG: usize = 64;
    let before = text[at.saturating_sub(MAX_FLAG)..at].trim_ascii_end();
    let flag = before.rsplit(|b| b.is_ascii_whitespace()).next().unwrap_or_default();
    let near = &text[at..text.len().min(at + MAX_COMMAND)];
    let end = at + memchr::memchr2(b')', b'\n', near)?;
    (flag.starts_with(b"-") && name::stems().is_match(flag)).then(|| printed(text, end)).flatten()
}

fn reads_secret(command: &[u8]) -> bool {
    let is_sudo = memchr::memmem::find(command, b"sudo ").is_some();
    let ends_in =
        |word: &[u8], endings: &[&str]| endings.iter().any(|end| word.ends_with(end.as_bytes()));
    command.split(|b| b.is_ascii_whitespace() || b"\"'`()".contains(b)).any(|word| {
        is_one_of(word, READERS)
            // `--password-file=-`, `--passwd-on-stdin`
            || (ends_in(word, &["=-", "-stdin", "-fd=0"]) && name::stems().is_match(word))
            || ends_in(word, &["-key", "-keys", "secret", "secrets", "passphrase"])
            || (is_sudo && word == b"-S")
            || is_about_secrets(word)
    })
}

/// Returns the arguments of the `echo` or `printf` before a pipe. They may contain quoted operators, so the search
/// stops only at a line break.
fn printed(text: &[u8], pipe: usize) -> Option<Range<usize>> {
    let from = pipe.saturating_sub(MAX_COMMAND);
    let line = memchr::memrchr(b'\n', &text[from..pipe]).map_or(from, |at| from + at + 1);
    let ends = ["echo ", "printf ", "yes "].into_iter().filter_map(|name| {
        Some(line + memchr::memmem::rfind(&text[line..pipe], name.as_bytes())? + name.len())
    });
    let mut start = skip(text, ends.max()?, b" ");
    while text[start..pipe].starts_with(b"-") {
        let word = text[start..pipe].iter().position(|&b| b == b' ')?;
        start = skip(text, start + word, b" ");
    }
    let end = start + text[start..pipe].trim_ascii_end().len();
    // `echo y | …` answers a question.
    let is_answer = end < start + 3;
    not_reference(&text[..end], start).filter(|_| !is_answer).map(|value| value.start..end)
}

/// Returns the word at `start`, unless it is a variable reference.
fn not_reference(text: &[u8], start: usize) -> Option<Range<usize>> {
    let value = start..end_of_value(text, start, None);
    let bare = text[value.clone()].trim_ascii();
    let bare = bare.strip_prefix(b"\"").and_then(|bare| bare.strip_suffix(b"\"")).unwrap_or(bare);
    (!bare.is_empty() && !is_reference(bare)).then_some(value)
}

/// Returns the text up to the next operator of a shell.
fn command_after(text: &[u8], at: usize) -> &[u8] {
    let near = &text[at..text.len().min(at + MAX_COMMAND)];
    near.split(|b| b"|;&\n".contains(b)).next().unwrap_or_default()
}
