//! Redacts secrets that a shell passes to standard input: `echo 8f2c… | docker login --password-stdin`, `docker login
//! --password-stdin <<< 8f2c…`.

use std::ops::Range;

use super::flag::is_about_secrets;
use super::name;
use super::quotes::end_of_value;
use super::value::is_reference;

/// Maximum number of bytes to search around a pipe for its commands. Without a limit, hostile text would make the
/// search quadratic.
const MAX_COMMAND: usize = 1024;

/// Words that identify a command that reads a secret from standard input.
const READERS: &[&[u8]] = &[
    b"--passphrase-fd",
    b"--password-stdin",
    b"--token-stdin",
    b"--with-token",
    b"adcli",
    b"chpasswd",
    b"cryptsetup",
    b"ecryptfs-unwrap-passphrase",
    b"grub-mkpasswd-pbkdf2",
    b"grub2-mkpasswd-pbkdf2",
    b"keepassxc-cli",
    b"kinit",
    b"login",
    b"mkpasswd",
    b"openconnect",
    b"passwd",
    b"realm",
    b"secret-tool",
    b"smbpasswd",
    b"su",
];

pub fn find(text: &[u8], hidden: &mut Vec<Range<usize>>) {
    for at in memchr::memchr_iter(b'|', text) {
        let is_or = text[..at].ends_with(b"|") || text[at + 1..].starts_with(b"|");
        if !is_or && reads_secret(&text[at + 1..command_end(text, at + 1)]) {
            hidden.extend(printed(text, at));
        }
    }
    for at in memchr::memmem::find_iter(text, b"<(") {
        hidden.extend(substituted(text, at));
    }
    for at in memchr::memmem::find_iter(text, b"<<<") {
        let end = command_end(text, at + 3);
        let is_piped = text.get(end) == Some(&b'|')
            && reads_secret(&text[end + 1..command_end(text, end + 1)]);
        if is_piped || reads_secret(&text[command_start(text, at)..at]) {
            hidden.extend(not_reference(text, skip_blanks(text, at + 3)));
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
    let mut words = command.split(|b| b.is_ascii_whitespace() || b"\"'`()".contains(b));
    let is_sudo = memchr::memmem::find(command, b"sudo ").is_some();
    // `--password-file=-`, `--passwd-on-stdin`
    let reads_input = |word: &[u8]| {
        let ends = |ending: &&[u8]| word.ends_with(ending);
        ([&b"=-"[..], b"-stdin", b"-fd=0"].iter().any(ends) && name::stems().is_match(word))
            || [&b"-key"[..], b"-keys", b"secret", b"secrets", b"passphrase"].iter().any(ends)
    };
    words.any(|word| {
        READERS.contains(&word)
            || reads_input(word)
            || (is_sudo && word == b"-S")
            || is_about_secrets(word)
    })
}

/// Returns the arguments of the `echo` or `printf` before a pipe. They may contain quoted operators, so the search
/// stops only at a line break.
fn printed(text: &[u8], pipe: usize) -> Option<Range<usize>> {
    let from = pipe.saturating_sub(MAX_COMMAND);
    let before = &text[from..pipe];
    let line = memchr::memrchr(b'\n', before).map_or(0, |at| at + 1);
    let printers = [&b"echo "[..], b"printf ", b"yes "];
    let ends = printers.iter().filter_map(|name| {
        let at = memchr::memmem::rfind(&before[line..], name)?;
        Some(from + line + at + name.len())
    });
    let mut start = skip_blanks(text, ends.max()?);
    while text[start..pipe].starts_with(b"-") {
        let word = text[start..pipe].iter().position(|&b| b == b' ')?;
        start = skip_blanks(text, start + word);
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

fn skip_blanks(text: &[u8], from: usize) -> usize {
    from + text[from..].iter().take_while(|b| **b == b' ').count()
}

fn command_start(text: &[u8], at: usize) -> usize {
    let from = at.saturating_sub(MAX_COMMAND);
    let ends = |b: &u8| b"|;&\n".contains(b);
    text[from..at].iter().rposition(ends).map_or(from, |n| from + n + 1)
}

fn command_end(text: &[u8], at: usize) -> usize {
    let end = text.len().min(at + MAX_COMMAND);
    let ends = |b: &u8| b"|;&\n".contains(b);
    text[at..end].iter().position(ends).map_or(end, |n| at + n)
}
