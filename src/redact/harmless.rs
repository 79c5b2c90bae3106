//! Recognizes text that looks like a secret but is not: placeholders, references to a secret elsewhere, and encoded
//! content and identifiers that are public.

use std::ops::Range;

use super::name::{self, Sensitivity};
use super::value::is_reference;

/// Maximum length of a placeholder, and of the label before a public value.
const MAX_PLACEHOLDER: usize = 48;
const MAX_LABEL: usize = 40;

/// Words in the brackets of a placeholder: `[REDACTED]`, `(known after apply)`, `<nil>`.
#[rustfmt::skip]
const HIDDEN_WORDS: &[&str] = &[
    "blank", "censored", "concealed", "empty", "filtered", "hidden", "known after", "masked", "nil", "no value", "none",
    "not set", "not shown", "null", "obscured", "omitted", "private", "protected", "redacted", "removed", "sanitized",
    "scrubbed", "secret", "sensitive", "stripped", "undefined", "unset",
];

/// Names of values in usage lines and types in schemas: `--token TEXT`, `password VARCHAR(255)`.
#[rustfmt::skip]
const KINDS: &[&str] = &[
    "API_KEY", "API_TOKEN", "APIKEY", "ARG", "BLOB", "BOOLEAN", "BYTEA", "CHAR", "FILE", "IDENT", "INTEGER", "KEY", "NAME", "NUMBER",
    "Option", "Optional", "PASS", "PASSPHRASE", "PASSWD", "PASSWORD", "PATH", "PIN", "SECRET", "STRING", "String", "TEXT",
    "TOKEN", "URL", "USER", "USERNAME", "UUID", "VALUE", "VARCHAR", "[String", "char", "optional", "required", "string", "varchar",
];

/// Beginnings of references to a secret in another place.
#[rustfmt::skip]
const REFERENCES: &[&str] = &[
    "!GetAtt ", "!ImportValue ", "!Ref ", "!Sub ", "$env:", "arn:aws:", "aws-ssm:", "awssm:", "conjur:", "data.vault",
    "ENV[", "env.", "env:", "Fn::", "gcp-sm:", "gcpsm:", "id=", "import.meta.env", "keyring:", "lookup(", "op://",
    "process.env", "projects/", "pass:env", "ref+", "secret://", "secretref:", "ssm:", "sops:", "var.", "vault:",
];

/// Returns true if the value in a range is a placeholder or a reference, with or without brackets around the range.
pub fn is_placeholder(text: &[u8], range: &Range<usize>) -> bool {
    let value = without_scheme(text.get(range.clone()).unwrap_or_default());
    let start = range.end - value.len();
    let is_open = |at: usize| b"[(<{".contains(&text[at]);
    let start = match start.checked_sub(1) {
        Some(before) if !value.is_empty() && !is_open(start) && is_open(before) => before,
        _ => start,
    };
    let rest = &text[start..text.len().min(start + MAX_PLACEHOLDER)];
    // `{token}` of which the range excludes the closing bracket
    let with_bracket = rest.get(..value.len() + 1).unwrap_or(value);
    is_elsewhere(with_bracket)
        || is_after_reference(text, range.start)
        || is_mask(value)
        || is_kind(value)
        || is_elsewhere(value)
        || begins_in_brackets(rest)
}

/// Returns true after `!Ref ` and in the name of a resource: `arn:aws:secretsmanager:…:secret:db`.
fn is_after_reference(text: &[u8], at: usize) -> bool {
    let before = &text[at.saturating_sub(2 * MAX_LABEL)..at];
    let word = before.rsplit(|b| b.is_ascii_whitespace() || b"\"'=(,".contains(b)).next();
    word.is_some_and(|word| word.starts_with(b"arn:"))
        || ["!Ref ", "!GetAtt ", "!Sub ", "!ImportValue "]
            .iter()
            .any(|tag| before.ends_with(tag.as_bytes()))
}

/// Returns the value after the name of an authentication scheme or a user: `Bearer $TOKEN`, `ana:****`.
fn without_scheme(value: &[u8]) -> &[u8] {
    const SCHEMES: &[&[u8]] = &[b"bearer ", b"token ", b"basic "];
    let has = |scheme: &&&[u8]| {
        value.get(..scheme.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(scheme))
    };
    let value = SCHEMES.iter().find(has).map_or(value, |scheme| &value[scheme.len()..]);
    let after_user = memchr::memrchr(b':', value).map(|at| &value[at + 1..]);
    after_user.filter(|password| is_mask(password)).unwrap_or(value)
}

/// Returns true for one repeated character: `****`, `XXXXXXXX`, `••••`. The rest of the line may follow it.
fn is_mask(value: &[u8]) -> bool {
    const MIN_MASK: usize = 3;
    let value = value.split(|b| b.is_ascii_whitespace()).next().unwrap_or_default();
    let value = value.trim_ascii_end();
    match value {
        [first @ (b'*' | b'X' | b'x' | b'.' | b'#'), rest @ ..] => {
            value.len() >= MIN_MASK && rest.iter().all(|b| b == first)
        }
        _ => {
            !value.is_empty() && value.chunks(3).all(|c| c == "•".as_bytes() || c == "●".as_bytes())
        }
    }
}

fn is_kind(value: &[u8]) -> bool {
    let end = value.iter().position(|b| b"([!]<".contains(b)).filter(|end| *end > 0);
    let word = &value[..end.unwrap_or(value.len())];
    let word = word.strip_prefix(b"YOUR_").unwrap_or(word);
    let word = if value.starts_with(b"[String") { &b"[String"[..] } else { word };
    KINDS.iter().any(|kind| kind.as_bytes() == word)
}

/// Returns true for arguments that refer to a secret: `--secret id=hf,src=/run/hf`, `--token env:HF_TOKEN`.
pub fn is_reference_to_secret(word: &[u8]) -> bool {
    REFERENCES.iter().any(|reference| word.starts_with(reference.as_bytes()))
}

fn is_elsewhere(value: &[u8]) -> bool {
    let value = value.trim_ascii();
    let is_named = |open: &[u8], close: &[u8]| {
        value
            .strip_prefix(open)
            .and_then(|rest| rest.strip_suffix(close))
            .is_some_and(is_identifier)
    };
    let is_variable = value
        .strip_prefix(b"$")
        .is_some_and(|name| is_identifier(name) && name::sensitivity(name) != Sensitivity::Plain);
    is_reference(value)
        || is_variable
        || value.starts_with(b"${{")
        || value.get(..5).is_some_and(|begin| {
            begin.eq_ignore_ascii_case(b"your_") || begin.eq_ignore_ascii_case(b"your-")
        })
        || is_reference_to_secret(value)
        || is_named(b"{", b"}")
        || is_named(b"#{", b"}")
        || is_named(b"${", b"}")
        || is_named(b"$(", b")")
}

fn is_identifier(name: &[u8]) -> bool {
    !name.is_empty()
        && !name[0].is_ascii_digit()
        && name.iter().all(|b| b.is_ascii_alphabetic() || b"_.:-".contains(b))
}

fn begins_in_brackets(rest: &[u8]) -> bool {
    let close = match rest.first() {
        Some(b'[') => b']',
        Some(b'(') => b')',
        Some(b'<') => b'>',
        Some(b'{') => b'}',
        _ => return false,
    };
    let Some(end) = memchr::memchr(close, rest) else { return false };
    let inside = rest[1..end].to_ascii_lowercase();
    let is_text = inside.iter().all(|b| b.is_ascii_alphabetic() || b" _-:".contains(b));
    is_text
        && HIDDEN_WORDS.iter().any(|word| memchr::memmem::find(&inside, word.as_bytes()).is_some())
        || is_mask(&inside)
}

/// Beginnings of images, sounds, fonts, documents and archives in base64.
#[rustfmt::skip]
const CONTENTS: &[&str] = &[
    "/9j/", "AAABAA", "AAAAGGZ0", "AAAAHGZ0", "AAAAIGZ0", "AAEAAAA", "H4sI", "JVBERi0", "PHN2Zy", "Qk0", "R0lGOD",
    "SUQz", "T1RUTw", "T2dnUw", "UEsDB", "UklGR", "d09GM", "d09GR", "gASV", "iVBORw0KGgo", "k05VTVBZ",
];

/// Beginnings of public identifiers.
#[rustfmt::skip]
const IDENTIFIERS: &[&str] = &[
    "GPU-", "MIG-", "acct_", "asst_", "batch_", "bc1", "call_", "ch_", "chatcmpl-", "cmpl-", "cus_", "evt_", "file-", "ft-",
    "ftjob-", "gen-", "in_", "job-", "job_", "li_", "msg_", "msgbatch_", "photo_", "pi_", "pm_", "price_", "prod_",
    "raysubmit_", "req-", "req_", "resp_", "rs_", "run-", "run_", "seti_", "si_", "step_", "sub_", "task-", "task_", "thread_",
    "toolu_", "txn_", "vs_",
];

/// Words of labels whose value is public although it is random.
#[rustfmt::skip]
const LABELS: &[&str] = &[
    "address", "amz", "array", "artifact", "audio", "base64", "build", "cache", "cached", "ccache", "cert", "certificate",
    "checkpoint", "checksum", "commit", "cursor", "data", "digest", "embedding", "embeddings", "etag", "event", "evt", "fingerprint",
    "font", "fp", "graph", "h1", "hash", "icon", "image", "images", "integrity", "job", "ksuid", "object", "pic", "pixels", "pubkey",
    "public", "publickey", "ray", "request", "revision", "run", "screenshot", "span",
    "task", "tensor", "thumbnail", "trace", "traceparent", "ulid", "upload", "vector", "video", "wav",
];

/// Returns true for a random word that its beginning, or the label before it, identifies as public.
pub fn is_public(text: &[u8], token: &Range<usize>) -> bool {
    let bytes = &text[token.clone()];
    let begins = |list: &[&str]| list.iter().any(|begin| bytes.starts_with(begin.as_bytes()));
    begins(CONTENTS) || begins(IDENTIFIERS) || is_ulid(bytes) || is_labelled(text, token.start)
}

/// Returns true for a time-ordered identifier: `01HV46R4P5STFC6R0XTFHJ01BH`.
fn is_ulid(token: &[u8]) -> bool {
    token.len() == 26
        && token.starts_with(b"0")
        && token
            .iter()
            .all(|b| b.is_ascii_digit() || (b.is_ascii_uppercase() && !b"ILOU".contains(b)))
}

/// Returns true if the last words before a position name something public: `cache hit for key`, `"embedding": "`.
fn is_labelled(text: &[u8], at: usize) -> bool {
    /// The word `cache` may be farther away: `cache restored from key`.
    const MAX_WORDS: usize = 5;
    const NEAR_WORDS: usize = 3;
    let before = &text[at.saturating_sub(MAX_LABEL)..at];
    let line = memchr::memrchr(b'\n', before).map_or(before, |n| &before[n + 1..]);
    // The name of a function is not a label: `run("…")`.
    let line = line.rsplit(|b| *b == b'(').next().unwrap_or_default();
    let words = line.rsplit(|b| !b.is_ascii_alphanumeric());
    let mut words = words.filter(|word| !word.is_empty()).take(MAX_WORDS).enumerate();
    words.any(|(n, word)| {
        (n < NEAR_WORDS && LABELS.iter().any(|label| word.eq_ignore_ascii_case(label.as_bytes())))
            || (n == 0
                && [&b"id"[..], b"uuid", b"guid"].iter().any(|id| word.eq_ignore_ascii_case(id)))
            || word.eq_ignore_ascii_case(b"cache")
    })
}

/// Returns true for the key of a cache: `cache hit for key`.
pub fn is_cache_key(text: &[u8], name: &Range<usize>) -> bool {
    let before = &text[name.start.saturating_sub(MAX_LABEL)..name.start];
    let line = memchr::memrchr(b'\n', before).map_or(before, |n| &before[n + 1..]);
    text[name.clone()].ends_with(b"key")
        && memchr::memmem::find(&line.to_ascii_lowercase(), b"cache").is_some()
}

/// Returns true for a cookie that holds only settings: `theme=dark; Path=/`.
pub fn are_settings(cookie: &[u8]) -> bool {
    const SETTINGS: &[&str] = &[
        "color-mode",
        "color_mode",
        "consent",
        "cookie_consent",
        "cookieconsent",
        "currency",
        "dark_mode",
        "domain",
        "expires",
        "httponly",
        "lang",
        "language",
        "locale",
        "max-age",
        "path",
        "priority",
        "samesite",
        "secure",
        "theme",
        "timezone",
        "tz",
    ];
    cookie.split(|b| *b == b';').all(|pair| {
        let name = pair.split(|b| *b == b'=').next().unwrap_or_default().trim_ascii();
        SETTINGS.iter().any(|setting| name.eq_ignore_ascii_case(setting.as_bytes()))
    })
}

/// Returns true for the path of a file with credentials: `credentials=/home/ana/.smb`.
pub fn is_file_of(name: &[u8], value: &[u8]) -> bool {
    const FILES: &[&str] = &["cookie", "cookies", "credential", "credentials", "creds", "secrets"];
    let lower = name.to_ascii_lowercase();
    let is_part = |b: &u8| b.is_ascii_alphanumeric() || b"/._-".contains(b);
    let is_path = [&b"/"[..], b"~/", b"./"].iter().any(|root| value.starts_with(root));
    let length = value.iter().take_while(|b| is_part(b)).count();
    is_path
        && value[..length].iter().filter(|b| **b == b'/').count() > 1
        && value.get(length).is_none_or(|b| b",;: ".contains(b))
        && !super::value::is_random(&value[..length])
        && FILES.iter().any(|file| lower.ends_with(file.as_bytes()))
}
