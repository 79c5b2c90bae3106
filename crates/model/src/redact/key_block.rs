//! Redacts private keys of several lines: PEM, OpenSSH, SSH2, PGP, OpenVPN and PuTTY, and keys that OpenSSL prints.

use std::ops::Range;

use super::notation::{has, line_end, near, trim_end};

/// Maximum length of a marker, and of a key between its markers.
const MAX_MARKER: usize = 40;
const MAX_KEY: usize = 32 << 10;
/// Maximum number of lines of a key without an end marker.
const MAX_LINES: usize = 400;

/// Parts of the markers of private keys, and headers before the secret lines of a key.
const MARKERS: &[&str] = &["PRIVATE KEY", "Static key"];
const HEADERS: &[&str] = &["Private-Lines:"];
/// Names of the numbers of a key that OpenSSL prints as bytes: `priv:` and lines such as `00:c0:ff:…`.
#[rustfmt::skip]
const NUMBERS: &[&str] = &[
    "\nprivateExponent:", "\nprime1:", "\nprime2:", "\nexponent1:", "\nexponent2:", "\ncoefficient:", "priv:", "PSK:",
    "Master-Key:",
];
const ENDS: &[&str] = &["-----END", "---- END"];

pub fn find(text: &[u8], hidden: &mut Vec<Range<usize>>) {
    for kind in MARKERS {
        marked(text, kind.as_bytes(), hidden);
    }
    for header in HEADERS {
        let mut from = 0;
        while let Some(at) = position(text, from, header.as_bytes()) {
            let start = line_end(text, at, MAX_KEY);
            from = end_of_lines(text, start);
            hidden.push(text.len().min(start + 1)..from);
        }
    }
    for name in NUMBERS {
        for at in memchr::memmem::find_iter(text, name.as_bytes()) {
            let start = at + name.len();
            let near = near(text, start, MAX_KEY);
            let is_part = |b: &&u8| b.is_ascii_hexdigit() || b": \n\r\t".contains(b);
            let length = near.iter().take_while(is_part).count();
            // The last line may be the beginning of a word.
            let length = match near.get(length) {
                None => length,
                Some(_) => memchr::memrchr(b'\n', &near[..length]).unwrap_or(0),
            };
            let blank = near[..length].iter().take_while(|b| b.is_ascii_whitespace()).count();
            if near[..length].iter().filter(|b| b.is_ascii_hexdigit()).count() >= 16 {
                hidden.push(trim_end(text, start + blank..start + length, b" \n\r\t"));
            }
        }
    }
}

/// Returns the bodies of certificates and public keys, which are not secrets.
pub fn public_blocks(text: &[u8]) -> Vec<Range<usize>> {
    let mut blocks = Vec::new();
    let mut from = 0;
    while let Some(at) = position(text, from, b"-----BEGIN ") {
        from = end_of_marker(text, at);
        let kind = &text[at..from];
        if !["CERTIFICATE", "PUBLIC KEY", "X509 CRL"].iter().any(|public| has(kind, public)) {
            continue;
        }
        let is_part = |b: &&u8| b.is_ascii_alphanumeric() || b"+/=\r\n \t".contains(b);
        let end = from + near(text, from, MAX_KEY).iter().take_while(is_part).count();
        if text[end..].starts_with(b"-----END ") {
            from = end_of_marker(text, end);
            blocks.push(at..from);
        }
    }
    blocks
}

/// Returns the position after the dashes that close a marker. Secrets may follow on its line.
fn end_of_marker(text: &[u8], start: usize) -> usize {
    let begin = start + "-----".len();
    let dashes = memchr::memmem::find(near(text, begin, MAX_MARKER), b"-----");
    dashes.map_or(begin, |at| begin + at + "-----".len())
}

/// Finds the bodies of keys between `-----BEGIN … KEY-----` and `-----END … KEY-----`. Without an end marker, the body
/// extends over all lines that can be part of a key, and without a begin marker backwards over all base64 text.
fn marked(text: &[u8], kind: &[u8], hidden: &mut Vec<Range<usize>>) {
    let mut from = 0;
    while let Some(at) = position(text, from, kind) {
        let Some(dashes) = memchr::memmem::find(near(text, at, MAX_MARKER), b"----") else {
            from = at + kind.len();
            continue;
        };
        let start = at + dashes + text[at + dashes..].iter().take_while(|b| **b == b'-').count();
        let before = &text[from.max(at.saturating_sub(MAX_MARKER))..at];
        let last = |mark: &str| memchr::memmem::rfind(before, mark.as_bytes());
        if let Some(end) =
            ENDS.iter().find_map(|end| last(end)).filter(|end| last("BEGIN") < Some(*end))
        {
            let end = at - before.len() + end;
            let is_part = |b: &&u8| b.is_ascii_alphanumeric() || b"+/=\\\r\n".contains(b);
            let body = end - text[from..end].iter().rev().take_while(is_part).count();
            let blank = text[body..end].iter().take_while(|b| b"\r\n".contains(b)).count();
            hidden.push(body + blank..end);
            from = start;
            continue;
        }
        let near_start = near(text, start, MAX_KEY);
        let end =
            ENDS.iter().filter_map(|end| memchr::memmem::find(near_start, end.as_bytes())).min();
        let end = end.map_or_else(|| end_of_lines(text, start), |end| start + end);
        hidden.push(start..end);
        // Skip the end marker, which contains the kind of the key but does not begin another key.
        let marker = near(text, end, MAX_MARKER);
        from = end + memchr::memmem::find(marker, kind).map_or(0, |at| at + kind.len());
    }
}

/// Returns the end of the lines that can be part of a key. Lines of a log may begin with a time.
fn end_of_lines(text: &[u8], start: usize) -> usize {
    let mut end = line_end(text, start, MAX_KEY);
    for n in 0..MAX_LINES {
        if end == text.len() {
            break;
        }
        let next = line_end(text, end + 1, MAX_KEY);
        let line = text[end + 1..next].trim_ascii();
        let last = line.rsplit(|b| b" \t".contains(b)).next().unwrap_or_default();
        let is_base64 = last.iter().all(|b| b.is_ascii_alphanumeric() || b"+/=\\\"',".contains(b));
        let is_header = n < 4 && line.contains(&b':');
        let is_part = is_base64 && (last.len() == line.len() || last.len() >= 16);
        if !is_header && !is_part {
            break;
        }
        end = next;
    }
    end
}

fn position(text: &[u8], from: usize, wanted: &[u8]) -> Option<usize> {
    memchr::memmem::find(&text[from..], wanted).map(|at| from + at)
}
