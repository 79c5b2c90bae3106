//! Redacts credentials in URLs: `scheme://user:password@host`, webhooks whose path is the secret, and the same
//! credentials without a scheme: `user:password@host`.

use std::ops::Range;

use super::name::{self, Sensitivity};
use super::value;

/// Hosts and paths of webhooks, before the secret.
const WEB_HOOKS: &[&str] = &[
    "hooks.slack.com/services/",
    "hooks.slack.com/workflows/",
    "hooks.slack.com/triggers/",
    "/api/webhooks/",
    "/webhookb2/",
    "hooks.zapier.com/hooks/catch/",
    "/bot/v2/hook/",
];

/// Folders whose content may be a secret.
const SECRET_FOLDERS: &[&[u8]] = &[
    b"activate",
    b"confirm",
    b"hook",
    b"hooks",
    b"invite",
    b"join",
    b"keys",
    b"magic",
    b"reset",
    b"t",
    b"unsubscribe",
    b"verify",
    b"webhook",
    b"webhooks",
];

/// Minimum length of a random last part of a path, which grants access: a link to reset a password.
const MIN_LINK: usize = 32;
/// Maximum number of bytes to search in a URL. Without a limit, hostile text would make the search quadratic.
const MAX_URL: usize = 2048;
const MAX_LOGIN: usize = 256;

pub fn find(text: &[u8], hidden: &mut Vec<Range<usize>>) {
    let mut from = 0;
    let mut done = 0;
    bare(text, hidden);
    while let Some(at) = memchr::memmem::find(&text[from..], b"://") {
        let start = from + at + 3;
        let rest = &text[start..text.len().min(start + MAX_URL)];
        let end = start + rest.iter().position(|&b| ends_url(b)).unwrap_or(rest.len());
        let url = &text[start..end];
        if let Some(length) = credentials(url, scheme(&text[..from + at])) {
            hidden.push(start..start + length);
        }
        // Only the first `://` of a URL is followed by its path.
        if start >= done {
            hidden.extend(secret_path(url).map(|path| start + path.start..start + path.end));
            done = end;
        }
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

/// Returns the secret in a path: what follows a webhook's address, the name of a secret or `bot`, as in
/// `/reset-password/8f2c…` and `api.telegram.org/bot71…:8f2c…`.
fn secret_path(url: &[u8]) -> Option<Range<usize>> {
    let path = memchr::memchr(b'/', url)?;
    let path_end = url.iter().position(|b| b"?#".contains(b)).unwrap_or(url.len());
    let segments = url[..path_end].get(path + 1..)?.split(|b| *b == b'/');
    let hook = |hook: &&str| memchr::memmem::find(url, hook.as_bytes()).map(|at| at + hook.len());
    if let Some(start) = WEB_HOOKS.iter().find_map(hook) {
        return Some(start..url.len());
    }
    let mut start = path + 1;
    let mut is_named = false;
    for segment in segments {
        let range = start..start + segment.len();
        start = range.end + 1;
        if let Some(token) = segment.strip_prefix(b"bot").filter(|token| token.contains(&b':')) {
            return Some(range.end - token.len()..range.end);
        }
        let is_token = is_named
            && segment.len() >= 8
            && value::is_credential(segment)
            && segment.iter().any(u8::is_ascii_digit);
        if is_token && (value::looks_secret(segment) || value::natural_percent(segment) < 40) {
            return Some(range);
        }
        let stem = segment.split(|b| *b == b'.').next().unwrap_or_default();
        if range.end == path_end && stem.len() >= MIN_LINK && value::is_random(stem) {
            return Some(range.start..range.start + stem.len());
        }
        is_named =
            name::sensitivity(segment) != Sensitivity::Plain || SECRET_FOLDERS.contains(&segment);
    }
    None
}

/// Finds `user:password@host` and `user/password@host` without a scheme.
fn bare(text: &[u8], hidden: &mut Vec<Range<usize>>) {
    for at in memchr::memchr_iter(b'@', text) {
        let from = at.saturating_sub(MAX_LOGIN);
        let is_part = |b: &&u8| !b.is_ascii_whitespace() && !b"\"'`<>=,;()[]{}|&".contains(b);
        let length = text[from..at].iter().rev().take_while(is_part).count();
        let login = &text[at - length..at];
        let Some(separator) = login.iter().rposition(|b| b":/".contains(b)) else { continue };
        let (user, password) = (&login[..separator], &login[separator + 1..]);
        let user = user.rsplit(|b| b":/\\".contains(b)).next().unwrap_or_default();
        let host = &text[at + 1..text.len().min(at + 1 + MAX_LOGIN)];
        let name =
            host.iter().take_while(|b| b.is_ascii_alphanumeric() || b"-._/".contains(b)).count();
        let is_host = host.first().is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'/')
            && !host.starts_with(b"sha")
            && host[..name].iter().any(u8::is_ascii_alphanumeric);
        let has_port = host.get(name).is_some_and(|b| b":(".contains(b));
        let is_user = !user.is_empty()
            && user.iter().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(b));
        // `scheme://` and `drive:/path` are not logins, and `npm:x@1.2` and `author:ana@lab.org` have no password.
        let is_password = !password.is_empty()
            && !password.starts_with(b"/")
            && !password.starts_with(b"@")
            // `org/model@main` is not a login.
            && (login[separator] == b':' || has_port || host.starts_with(b"/"))
            && (value::is_credential(password) || (has_port && login[separator] == b':'))
            && !host.first().is_some_and(|b| b.is_ascii_digit() && !host[..name].contains(&b'.'));
        if is_user && is_host && is_password {
            hidden.push(at - password.len()..at);
        }
    }
}

fn ends_url(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0 || b"\"'`<>".contains(&byte)
}
