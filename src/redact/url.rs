//! Redacts credentials in URLs: `scheme://user:password@host`, and webhooks whose path is the secret.

use std::ops::Range;

const WEB_HOOKS: &[&[u8]] =
    &[b"hooks.slack.com/services/", b"discord.com/api/webhooks/", b"discordapp.com/api/webhooks/"];

/// Maximum number of bytes to search in a URL. Without a limit, hostile text would make the search quadratic.
const MAX_URL: usize = 2048;

pub fn find(text: &[u8], hidden: &mut Vec<Range<usize>>) {
    let mut from = 0;
    while let Some(at) = text[from..].windows(3).position(|w| w == b"://") {
        let start = from + at + 3;
        let rest = &text[start..text.len().min(start + MAX_URL)];
        let end = start + rest.iter().position(|&b| ends_url(b)).unwrap_or(rest.len());
        let url = &text[start..end];
        if let Some(length) = credentials(url, scheme(&text[..from + at])) {
            hidden.push(start..start + length);
        }
        hidden.extend(web_hook(url).map(|secret| start + secret..end));
        from = start;
    }
}

/// Returns the length of the credentials before the `@`, if they must be hidden.
fn credentials(url: &[u8], scheme: &[u8]) -> Option<usize> {
    let authority = url.iter().position(|b| b"/?#".contains(b)).unwrap_or(url.len());
    let at = url[..authority].iter().rposition(|&b| b == b'@');
    match at {
        Some(at) if is_only_a_user(&url[..at], scheme) => None,
        Some(at) => Some(at),
        // The password may contain an unescaped slash. In `user:a/b@host`, the text after the colon is not a port
        // number.
        None if has_no_port(&url[..authority]) => url.iter().rposition(|&b| b == b'@'),
        None => None,
    }
}

/// Returns true for `ssh://git@host`, where the part before `@` is only a user name. In a web URL, that part is a
/// token.
fn is_only_a_user(user: &[u8], scheme: &[u8]) -> bool {
    let is_web = scheme.ends_with(b"http") || scheme.ends_with(b"https");
    !user.contains(&b':') && !is_web && user.len() < 20
}

fn has_no_port(authority: &[u8]) -> bool {
    let Some(colon) = authority.iter().rposition(|&b| b == b':') else { return false };
    // The colons in `[::1]` belong to an IPv6 address.
    let port = &authority[colon + 1..];
    !authority.starts_with(b"[") && !port.is_empty() && !port.iter().all(u8::is_ascii_digit)
}

fn scheme(before: &[u8]) -> &[u8] {
    let length =
        before.iter().rev().take_while(|b| b.is_ascii_alphanumeric() || b"+.-".contains(b)).count();
    &before[before.len() - length..]
}

fn web_hook(url: &[u8]) -> Option<usize> {
    WEB_HOOKS.iter().find(|hook| url.starts_with(hook)).map(|hook| hook.len())
}

fn ends_url(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0 || b"\"'`<>".contains(&byte)
}
