//! Redacts credentials in URLs: `scheme://user:password@host`, webhooks whose path is the secret, and the same
//! credentials without a scheme: `user:password@host`.

use std::ops::Range;

use super::harmless::is_placeholder;
use super::name::{self, Sensitivity, is_one_of};
use super::notation::near;
use super::value;

/// Hosts and paths of webhooks, before the secret.
#[rustfmt::skip]
const WEB_HOOKS: &[&str] = &[
    "hooks.slack.com/services/", "hooks.slack.com/workflows/", "hooks.slack.com/triggers/", "/api/webhooks/",
    "/webhookb2/", "hooks.zapier.com/hooks/catch/", "/bot/v2/hook/",
];

/// Folders whose content may be a secret.
const SECRET_FOLDERS: &str = "activate confirm hook hooks invite join keys magic reset t unsubscribe verify webhook webhooks";

/// Minimum length of a random last part of a path, which grants access: a link to reset a password.
const MIN_LINK: usize = 32;
/// Maximum number of bytes to search in a URL. Without a limit, hostile text would make the search quadratic.
const MAX_URL: usize = 2048;
const MAX_LOGIN: usize = 256;

pub fn find(text: &[u8], hidden: &mut Vec<Range<usize>>) {
    let mut done = 0;
    for at in memchr::memchr_iter(b'@', text) {
        hidden.extend(bare(text, at));
    }
    for at in memchr::memmem::find_iter(text, b"://") {
        let start = at + 3;
        let url = near(text, start, MAX_URL);
        let ends = |b: &u8| b.is_ascii_whitespace() || *b == 0 || b"\"'`<>".contains(b);
        let url = &url[..url.iter().position(ends).unwrap_or(url.len())];
        if let Some(length) = credentials(url, &text[..at]) {
            hidden.push(start..start + length);
        }
        // Only the first `://` of a URL is followed by its path.
        if start >= done {
            hidden.extend(secret_path(url).map(|path| start + path.start..start + path.end));
            done = start + url.len();
        }
    }
}

/// Returns the length of the credentials before the `@`, if they must be hidden. In `ssh://git@host`, the part before
/// `@` is only a user name. In a web URL, it is a token.
fn credentials(url: &[u8], before: &[u8]) -> Option<usize> {
    let authority = url.iter().position(|b| b"/?#".contains(b)).unwrap_or(url.len());
    let at = match memchr::memrchr(b'@', &url[..authority]) {
        // The password may contain an unescaped slash. In `user:a/b@host`, the text after the colon is not a port
        // number. The colons in `[::1]` belong to an IPv6 address.
        None => {
            let port = &url[memchr::memrchr(b':', &url[..authority])? + 1..authority];
            let is_port = port.is_empty() || port.iter().all(u8::is_ascii_digit);
            memchr::memrchr(b'@', url).filter(|_| !is_port && !url.starts_with(b"["))
        }
        at => at,
    }?;
    let is_web = before.ends_with(b"http") || before.ends_with(b"https");
    let is_word = at < 12 && url[..at].iter().all(u8::is_ascii_lowercase);
    let is_only_a_user = !url[..at].contains(&b':') && (is_word || (!is_web && at < 20));
    (!is_only_a_user && !is_placeholder(url, &(0..at))).then_some(at)
}

/// Returns the secret in a path: what follows a webhook's address, the name of a secret or `bot`, as in
/// `/reset-password/8f2c…` and `api.telegram.org/bot71…:8f2c…`.
fn secret_path(url: &[u8]) -> Option<Range<usize>> {
    let hook = |hook: &&str| memchr::memmem::find(url, hook.as_bytes()).map(|at| at + hook.len());
    if let Some(start) = WEB_HOOKS.iter().find_map(hook) {
        return Some(start..url.len());
    }
    let end = url.iter().position(|b| b"?#".contains(b)).unwrap_or(url.len());
    let mut start = memchr::memchr(b'/', &url[..end])? + 1;
    let mut is_named = false;
    for segment in url[start..end].split(|b| *b == b'/') {
        let range = start..start + segment.len();
        start = range.end + 1;
        if let Some(token) = segment.strip_prefix(b"bot").filter(|token| token.contains(&b':')) {
            return Some(range.end - token.len()..range.end);
        }
        let is_token = segment.len() >= 8
            && value::is_credential(segment)
            && segment.iter().any(u8::is_ascii_digit)
            && (value::looks_secret(segment) || value::natural_percent(segment) < 40);
        if is_named && is_token {
            return Some(range);
        }
        let stem = segment.split(|b| *b == b'.').next().unwrap_or_default();
        if range.end == end && stem.len() >= MIN_LINK && value::is_random(stem) {
            return Some(range.start..range.start + stem.len());
        }
        is_named =
            name::sensitivity(segment) != Sensitivity::Plain || is_one_of(segment, SECRET_FOLDERS);
    }
    None
}

/// Returns the password in `user:password@host` and `user/password@host` without a scheme.
fn bare(text: &[u8], at: usize) -> Option<Range<usize>> {
    let from = at.saturating_sub(MAX_LOGIN);
    let is_part = |b: &&u8| !b.is_ascii_whitespace() && !b"\"'`<>=,;()[]{}|&".contains(b);
    let length = text[from..at].iter().rev().take_while(is_part).count();
    let login = &text[at - length..at];
    let separator = login.iter().rposition(|b| b":/".contains(b))?;
    let (user, password) = (&login[..separator], &login[separator + 1..]);
    // A URL whose scheme is cut off or mistyped.
    let is_url = memchr::memmem::find(user, b"//").is_some();
    let user = user.rsplit(|b| b":/\\".contains(b)).next().unwrap_or_default();
    let host = near(text, at + 1, MAX_LOGIN);
    let name = host.iter().take_while(|b| b.is_ascii_alphanumeric() || b"-._/".contains(b)).count();
    let first = *host.first()?;
    let is_host = (first.is_ascii_alphanumeric() || first == b'/')
        && !host.starts_with(b"sha")
        && host[..name].iter().any(u8::is_ascii_alphanumeric);
    let has_port = host.get(name).is_some_and(|b| b":(".contains(b));
    let is_user =
        !user.is_empty() && user.iter().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(b));
    // `scheme://` and `drive:/path` are not logins, and `npm:x@1.2` and `author:ana@lab.org` have no password.
    let is_login = login[separator] == b':';
    let is_password = !password.is_empty()
        && !b"/@".contains(&password[0])
        && !is_one_of(password, "password pass secret token")
        // `org/model@main` is not a login.
        && (is_login || has_port || first == b'/')
        && (value::is_credential(password) || (is_login && (has_port || is_url)))
        && (!first.is_ascii_digit() || host[..name].contains(&b'.'));
    (is_user && is_host && is_password).then(|| at - password.len()..at)
}
