//! Redacts private keys of several lines: PEM, OpenSSH, SSH2, PGP, OpenVPN and PuTTY.

use std::ops::Range;

/// Maximum length of a marker, and of a key between its markers.
const MAX_MARKER: usize = 40;
const MAX_KEY: usize = 32 << 10;
/// Maximum number of lines of a key without an end marker.
const MAX_LINES: usize = 400;

pub fn find(text: &[u8], hidden: &mut Vec<Range<usize>>) {
    marked(text, b"PRIVATE KEY", hidden);
    marked(text, b"Static key", hidden);
    putty(text, hidden);
    printed(text, hidden);
}

/// Returns the bodies of certificates and public keys, which are not secrets.
pub fn public_blocks(text: &[u8]) -> Vec<Range<usize>> {
    let mut blocks = Vec::new();
    let mut from = 0;
    while let Some(at) = position(text, from, b"-----BEGIN ") {
        let line = at..line_end(text, at);
        from = line.end;
        let kind = &text[line.clone()];
        let is_public = [&b"CERTIFICATE"[..], b"PUBLIC KEY", b"X509 CRL"]
            .iter()
            .any(|kind_of| memchr::memmem::find(kind, kind_of).is_some());
        if !is_public {
            continue;
        }
        let is_part = |b: &&u8| b.is_ascii_alphanumeric() || b"+/=\r\n \t".contains(b);
        let near = &text[line.end..text.len().min(line.end + MAX_KEY)];
        let length = near.iter().take_while(is_part).count();
        if near[length..].starts_with(b"-----END ") {
            from = line.end + length;
            let end = line_end(text, from);
            blocks.push(line.start..end);
        }
    }
    blocks
}

/// Finds the numbers of a key that OpenSSL prints as bytes: `priv:` and lines such as `00:c0:ff:…`.
fn printed(text: &[u8], hidden: &mut Vec<Range<usize>>) {
    const NUMBERS: &[&str] = &[
        "\nprivateExponent:",
        "\nprime1:",
        "\nprime2:",
        "\nexponent1:",
        "\nexponent2:",
        "\ncoefficient:",
        "priv:",
        "PSK:",
        "Master-Key:",
    ];
    for name in NUMBERS {
        for at in memchr::memmem::find_iter(text, name.as_bytes()) {
            let start = at + name.len();
            let near = &text[start..text.len().min(start + MAX_KEY)];
            let is_part = |b: &&u8| b.is_ascii_hexdigit() || b": \n\r\t".contains(b);
            let length = near.iter().take_while(is_part).count();
            // The last line may be the beginning of a word.
            let length = match near.get(length) {
                None => length,
                Some(_) => memchr::memrchr(b'\n', &near[..length]).unwrap_or(0),
            };
            let blank = near[..length].iter().take_while(|b| b.is_ascii_whitespace()).count();
            let digits = near[..length].iter().filter(|b| b.is_ascii_hexdigit()).count();
            if digits >= 16 {
                hidden.push(start + blank..start + near[..length].trim_ascii_end().len());
            }
        }
    }
}

/// Finds the bodies of keys between `-----BEGIN … KEY-----` and `-----END … KEY-----`. Without an end marker, the body
/// extends over all lines that can be part of a key, and without a begin marker backwards over all base64 text.
fn marked(text: &[u8], kind: &[u8], hidden: &mut Vec<Range<usize>>) {
    let mut from = 0;
    while let Some(at) = position(text, from, kind) {
        let rest = &text[at..text.len().min(at + MAX_MARKER)];
        let Some(dashes) = memchr::memmem::find(rest, b"----") else {
            from = at + kind.len();
            continue;
        };
        let start = at + dashes + rest[dashes..].iter().take_while(|b| **b == b'-').count();
        if let Some(end) = end_marker(text, from, at) {
            hidden.push(body_before(text, from, end)..end);
            from = start;
            continue;
        }
        let end = end_of_body(text, start);
        hidden.push(start..end);
        // Skip the end marker, which contains the kind of the key but does not begin another key.
        let marker = &text[end..text.len().min(end + MAX_MARKER)];
        from = end + memchr::memmem::find(marker, kind).map_or(0, |at| at + kind.len());
    }
}

/// Returns the start of the `-----END RSA ` before `at`, if there is one.
fn end_marker(text: &[u8], from: usize, at: usize) -> Option<usize> {
    let from = from.max(at.saturating_sub(MAX_MARKER));
    let end = ["-----END", "---- END"]
        .iter()
        .find_map(|end| memchr::memmem::rfind(&text[from..at], end.as_bytes()))?;
    let begin = memchr::memmem::rfind(&text[from..at], b"BEGIN");
    (begin < Some(end)).then_some(from + end)
}

fn end_of_body(text: &[u8], start: usize) -> usize {
    let near = &text[start..text.len().min(start + MAX_KEY)];
    let ends = ["-----END", "---- END"];
    let end = ends.iter().filter_map(|end| memchr::memmem::find(near, end.as_bytes())).min();
    end.map_or_else(|| end_of_lines(text, start), |end| start + end)
}

/// Returns the end of the lines that can be part of a key. Lines of a log may begin with a time.
fn end_of_lines(text: &[u8], start: usize) -> usize {
    let mut end = line_end(text, start);
    for n in 0..MAX_LINES {
        if end == text.len() {
            break;
        }
        let next = line_end(text, end + 1);
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

/// Returns the first position after `from` such that all bytes from there to `end` can be part of a key.
fn body_before(text: &[u8], from: usize, end: usize) -> usize {
    let may_be_key = |b: &&u8| b.is_ascii_alphanumeric() || b"+/=\\\r\n".contains(b);
    let body = text[from..end].iter().rev().take_while(may_be_key);
    let start = end - body.count();
    let blank = text[start..end].iter().take_while(|b| b"\r\n".contains(b));
    start + blank.count()
}

/// Finds the secret parts of a PuTTY key: the lines after `Private-Lines: N`, and `Private-MAC`.
fn putty(text: &[u8], hidden: &mut Vec<Range<usize>>) {
    let mut from = 0;
    while let Some(at) = position(text, from, b"Private-Lines:") {
        let start = line_end(text, at);
        from = end_of_lines(text, start);
        hidden.push(text.len().min(start + 1)..from);
    }
}

fn line_end(text: &[u8], from: usize) -> usize {
    memchr::memchr(b'\n', &text[from..]).map_or(text.len(), |n| from + n)
}

fn position(text: &[u8], from: usize, wanted: &[u8]) -> Option<usize> {
    memchr::memmem::find(&text[from..], wanted).map(|at| from + at)
}
