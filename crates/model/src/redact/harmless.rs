//! Recognizes text that looks like a secret but is not: placeholders, references to a secret elsewhere, and encoded
//! content and identifiers that are public.

use std::ops::Range;

use super::name::{self, Sensitivity, is_one_of};
use super::notation::begins;
use super::value;

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

/// Types in schemas and names of values in usage lines, besides those of secrets: `--token TEXT`, `password VARCHAR(255)`.
const KINDS: &str = "APIKEY ARG BLOB BOOLEAN BYTEA CHAR FILE IDENT INTEGER KEY NAME NUMBER Option Optional PASS \
    PASSPHRASE PASSWD PASSWORD PATH PIN SECRET STRING String TEXT TOKEN URL USER USERNAME UUID VALUE VARCHAR [String \
    bool bytes char int optional required str string u32 u64 varchar";

/// Beginnings of references to a secret in another place.
#[rustfmt::skip]
const REFERENCES: &[&str] = &[
    "!GetAtt ", "!ImportValue ", "!Ref ", "!Sub ", "!vault", "$env:", "arn:aws:", "aws-ssm:", "awssm:", "conjur:", "data.vault",
    "ENV[", "env.", "env:", "file:", "Fn::", "gcp-sm:", "gcpsm:", "id=", "import.meta.env", "keyring:", "lookup(",
    "op://", "process.env", "projects/", "pass:env", "ref+", "secret://", "secretref:", "ssm:", "sops:", "var.", "vault:",
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
    is_reference(with_bracket)
        || is_after_reference(text, range.start)
        || is_mask(value)
        || is_kind(value)
        || is_reference(value)
        || begins_in_brackets(rest)
}

/// Returns true after `!Ref ` and in the name of a resource: `arn:aws:secretsmanager:…:secret:db`.
fn is_after_reference(text: &[u8], at: usize) -> bool {
    let before = &text[at.saturating_sub(2 * MAX_LABEL)..at];
    let word = before.rsplit(|b| b.is_ascii_whitespace() || b"\"'=(,".contains(b)).next();
    word.is_some_and(|word| word.starts_with(b"arn:"))
        || REFERENCES[..4].iter().any(|tag| before.ends_with(tag.as_bytes()))
}

/// Returns the value after the name of an authentication scheme or a user: `Bearer $TOKEN`, `ana:****`.
fn without_scheme(value: &[u8]) -> &[u8] {
    let word = value.iter().position(|b| *b == b' ').unwrap_or(0);
    let is_scheme = is_one_of(&value[..word], "bearer token basic");
    let value = if is_scheme { &value[word + 1..] } else { value };
    let after_user = memchr::memrchr(b':', value).map(|at| &value[at + 1..]);
    after_user.filter(|word| is_mask(word) || is_reference(word)).unwrap_or(value)
}

/// Returns true for one repeated character: `****`, `XXXXXXXX`, `••••`. The rest of the line may follow it.
fn is_mask(value: &[u8]) -> bool {
    const MIN_MASK: usize = 3;
    let value = value.split(|b| b.is_ascii_whitespace()).next().unwrap_or_default();
    // `hf_xxxxxxxx`, but not `8f2c9d1e-xxx`
    let prefix = value.iter().rposition(|b| b"_-".contains(b)).map_or(0, |at| at + 1);
    if value[..prefix].iter().any(u8::is_ascii_digit) {
        return false;
    }
    let value = &value[prefix..];
    let is_one =
        |mark: &[u8]| value.len() >= MIN_MASK && value.chunks(mark.len()).all(|c| c == mark);
    ["*", "X", "x", ".", "#", "•", "●"].iter().any(|mark| is_one(mark.as_bytes()))
}

/// Returns true for the kind of a value, and for the name of a variable in place of its value: `--token HF_TOKEN`.
fn is_kind(value: &[u8]) -> bool {
    let end = value.iter().position(|b| b"([!]<".contains(b)).filter(|end| *end > 0);
    let word = &value[..end.unwrap_or(value.len())];
    let word = word.strip_prefix(b"YOUR_").unwrap_or(word);
    KINDS.split(' ').any(|kind| kind.as_bytes() == word)
        || value.starts_with(b"[String")
        || (is_variable_name(word) && name::sensitivity(word) != Sensitivity::Plain)
}

/// Returns true for the name of an environment variable.
pub fn is_variable_name(value: &[u8]) -> bool {
    value.contains(&b'_')
        && value.iter().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || *b == b'_')
}

/// Returns true for arguments that refer to a secret: `--secret id=hf,src=/run/hf`, `--token env:HF_TOKEN`, `--token
/// $HF_TOKEN`, `--token <your token>`.
pub fn is_reference_to_secret(word: &[u8]) -> bool {
    let name = word.strip_prefix(b"$").unwrap_or(word);
    let name = name.strip_prefix(b"{").and_then(|name| name.strip_suffix(b"}")).unwrap_or(name);
    let is_variable = is_variable_name(name) && name::sensitivity(name) != Sensitivity::Plain;
    is_variable
        || REFERENCES.iter().any(|reference| word.starts_with(reference.as_bytes()))
        || matches!(word, [b'<', name @ .., b'>'] if name.iter().all(|b| b.is_ascii_alphabetic() || b" _-/|".contains(b)))
}

/// Returns true for references to a secret that is elsewhere, and for the directives of a format: `$HF_TOKEN`,
/// `${HF_TOKEN}`, `%TOKEN%`, `{{ token }}`, `{token!r}`, `%(token)s`, `your_token`.
pub fn is_reference(value: &[u8]) -> bool {
    let value = value.trim_ascii();
    let is_name = |name: &[u8]| {
        let is_digit = |b: &u8| b.is_ascii_digit();
        !name.is_empty()
            && name.iter().all(|b| b.is_ascii_alphanumeric() || b"_.:!-".contains(b))
            && (name.len() < 3 || name[0].is_ascii_uppercase() || !name.iter().any(is_digit))
    };
    let is_upper = |name: &[u8]| {
        let is_part = |b: &u8| b.is_ascii_uppercase() || b.is_ascii_digit() || *b == b'_';
        !name.is_empty() && name.iter().all(is_part)
    };
    match value {
        [b'{', b'{', ..] | [b'$', b'{', b'{', ..] | b"{}" => true,
        // `$(cat /run/token)`, but `$(echo 8f2c | base64 -d)` contains the secret.
        [b'$', b'(', command @ ..] => {
            let literal = match begins(command, &["echo ", "printf "]) {
                Some(_) => command.split(|b| *b == b'|').next(),
                None => memchr::memmem::find(command, b"<<<").map(|at| &command[at..]),
            };
            literal.is_none_or(|literal| literal.contains(&b'$'))
        }
        // `${TOKEN:0:4}`, but `${TOKEN:-8f2c}` has a default.
        [b'$', b'{', name @ .., b'}'] => {
            let dash = memchr::memchr(b'-', name).filter(|at| is_upper(&name[..*at]));
            let end = memchr::memchr(b':', name).or(dash).unwrap_or(name.len());
            is_name(&name[..end]) && !has_default(&name[end..])
        }
        [b'#', b'{', name @ .., b'}'] => is_name(name),
        // ODBC encloses passwords in braces: `PWD={…}`.
        [b'{', name @ .., b'}'] => {
            let field = name.split(|b| b"!:".contains(b)).next().unwrap_or_default();
            is_name(name) && (is_upper(field) || !value::is_likely_secret(field))
        }
        [b'$', name @ ..] => {
            is_upper(name) || is_name(name) && name::sensitivity(name) != Sensitivity::Plain
        }
        [b'%', name @ .., b'%'] => is_upper(name),
        [b'%', b'(', ..] => value.ends_with(b")s"),
        [b'%', kind @ ..] => matches!(kind, b"s" | b"r" | b"v" | b"q" | b"d" | b"+v" | b"@"),
        _ => {
            is_one_of(value.get(..5).unwrap_or_default(), "your_ your-")
                || is_one_of(value, "user:password username:password user:pass")
                || is_reference_to_secret(value)
        }
    }
}

/// Returns true if a literal default follows the name of a shell variable: `:-8f2c` in `${TOKEN:-8f2c}`.
pub fn has_default(rest: &[u8]) -> bool {
    let rest = rest.strip_prefix(b":").unwrap_or(rest);
    matches!(rest, [b'-' | b'=', first, ..] if !b"$}".contains(first))
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
    let has = |word: &&str| memchr::memmem::find(&inside, word.as_bytes()).is_some();
    is_text && HIDDEN_WORDS.iter().any(has) || is_mask(&inside)
}

/// Returns true for an expression of a programming language that is not a literal: `os.environ[`, `System.getenv(`,
/// `args.token`, `Get-Content`.
pub fn is_expression(value: &[u8]) -> bool {
    const MAX_EXPRESSION: usize = 128;
    /// The verbs of commands of PowerShell.
    const VERBS: &str = "ConvertFrom ConvertTo Get Import Invoke Join New Read Select";
    let verb = value.split(|b| *b == b'-').next().unwrap_or_default();
    let is_command = VERBS.split(' ').any(|known| known.as_bytes() == verb)
        && matches!(&value[verb.len()..], [b'-', b'A'..=b'Z', rest @ ..] if rest.iter().all(u8::is_ascii_alphabetic));
    if is_command || is_one_of(value, "await lambda new not raise return throw") {
        return true;
    }
    let value = value.strip_prefix(b"$").unwrap_or(value);
    let is_name_byte = |b: &u8| b.is_ascii_alphanumeric() || b"_.:".contains(b);
    let length = value.iter().take_while(|b| is_name_byte(b)).count();
    let name = &value[..length];
    let is_lower = name.iter().all(|b| b.is_ascii_lowercase() || b"_.".contains(b));
    let is_path = name.contains(&b'.') || name.windows(2).any(|two| two == b"::");
    value.len() <= MAX_EXPRESSION
        && name.first().is_some_and(|b| b.is_ascii_alphabetic() || *b == b'_')
        && match value.get(length) {
            Some(b'(' | b'[') => is_lower || is_path,
            None if name.starts_with(b"self.") || name.starts_with(b"this.") => true,
            None => is_lower && is_path && name::sensitivity(name) != Sensitivity::Plain,
            _ => false,
        }
}

/// Beginnings of images, sounds, fonts, documents and archives in base64, and of public identifiers.
#[rustfmt::skip]
const PUBLIC: &[&str] = &[
    "/9j/", "AAABAA", "AAAAGGZ0", "AAAAHGZ0", "AAAAIGZ0", "AAEAAAA", "H4sI", "JVBERi0", "PHN2Zy", "Qk0", "R0lGOD",
    "SUQz", "T1RUTw", "T2dnUw", "UEsDB", "UklGR", "d09GM", "d09GR", "gASV", "iVBORw0KGgo", "k05VTVBZ",
    "GPU-", "MIG-", "acct_", "asst_", "batch_", "bc1", "call_", "ch_", "chatcmpl-", "cmpl-", "cus_", "evt_", "file-", "ft-",
    "ftjob-", "gen-", "in_", "job-", "job_", "li_", "msg_", "msgbatch_", "photo_", "pi_", "pm_", "price_", "prod_",
    "raysubmit_", "req-", "req_", "resp_", "rs_", "run-", "run_", "seti_", "si_", "step_", "sub_", "task-", "task_", "thread_",
    "toolu_", "txn_", "vs_", "sha256-", "sha384-", "sha512-",
];

/// Words of labels whose value is public although it is random.
const LABELS: &str = "address amz array artifact audio base64 blake2b blake3 build cache cached ccache cert certificate checkpoint \
    checksum commit crc32c cursor data digest embedding embeddings etag event evt fingerprint font fp graph h1 hash icon image \
    images integrity job ksuid md5 object pic pixels pubkey public publickey ray request revision run screenshot sha1 sha256 sha384 sha512 span task \
    tensor thumbnail trace traceparent ulid upload vector video wav";

/// Returns true for a random word that its beginning, or the label before it, identifies as public.
pub fn is_public(text: &[u8], token: &Range<usize>) -> bool {
    let bytes = &text[token.clone()];
    let is_ulid_byte =
        |b: &u8| b.is_ascii_digit() || (b.is_ascii_uppercase() && !b"ILOU".contains(b));
    PUBLIC.iter().any(|begin| bytes.starts_with(begin.as_bytes()))
        // A time-ordered identifier: `01HV46R4P5STFC6R0XTFHJ01BH`
        || (bytes.len() == 26 && bytes[0] == b'0' && bytes.iter().all(is_ulid_byte))
        || is_labelled(text, token.start)
}

/// Returns true if the last words before a position name something public: `cache hit for key`, `"embedding": "`.
fn is_labelled(text: &[u8], at: usize) -> bool {
    /// The word `cache` may be farther away: `cache restored from key`.
    const MAX_WORDS: usize = 5;
    const NEAR_WORDS: usize = 3;
    // The name of a function is not a label: `run("…")`.
    let line = label(text, at).rsplit(|b| *b == b'(').next().unwrap_or_default();
    let words = line.rsplit(|b| !b.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.take(MAX_WORDS).enumerate().any(|(n, word)| {
        is_one_of(word, "cache")
            || (n < NEAR_WORDS && is_one_of(word, LABELS))
            || (n == 0 && is_one_of(word, "id uuid guid"))
    })
}

/// Returns the text on the line before a position.
fn label(text: &[u8], at: usize) -> &[u8] {
    let before = &text[at.saturating_sub(MAX_LABEL)..at];
    memchr::memrchr(b'\n', before).map_or(before, |n| &before[n + 1..])
}

/// Returns true for the key of a cache, and for one that a kernel loads: `cache hit for key`, `cache_key`.
pub fn is_public_key(text: &[u8], name: &Range<usize>) -> bool {
    let label = label(text, name.end).to_ascii_lowercase();
    let has = |word: &&str| memchr::memmem::find(&label, word.as_bytes()).is_some();
    label.ends_with(b"key") && ["asymmetric", "cache", "cert ", "kernel"].iter().any(has)
}

/// Returns true for a cookie that holds only settings: `theme=dark; Path=/`.
pub fn are_settings(cookie: &[u8]) -> bool {
    const SETTINGS: &str = "color-mode color_mode consent cookie_consent cookieconsent currency dark_mode domain expires \
        httponly lang language locale max-age path priority samesite secure theme timezone tz";
    cookie.split(|b| *b == b';').all(|pair| {
        let name = pair.split(|b| *b == b'=').next().unwrap_or_default().trim_ascii();
        is_one_of(name, SETTINGS)
    })
}

/// Returns true for the path of a file after a name for which one is usual: `credentials=/home/ana/.smb`, `--private-key
/// /etc/keys/k.pem`. A password may look like a path.
pub fn is_file(name: &[u8], value: &[u8]) -> bool {
    const MIN_PATH: usize = 8;
    const NAMES: &str = "cookie cookies cred credential credentials creds key keys secrets";
    let words = name::words(name);
    let is_usual = words.last().is_some_and(|last| is_one_of(last.as_bytes(), NAMES));
    let length =
        value.iter().take_while(|b| b.is_ascii_alphanumeric() || b"/._-~".contains(b)).count();
    let path = &value[..length];
    let is_rooted = ["/", "~/", "./", "../"].iter().any(|root| path.starts_with(root.as_bytes()));
    let is_deep = !path.starts_with(b"/") || path.iter().filter(|b| **b == b'/').count() > 1;
    is_usual
        && is_rooted
        && is_deep
        && length >= MIN_PATH
        && value.get(length).is_none_or(|b| b",;: ".contains(b))
        && !path.windows(2).any(|two| two == b"//")
        && path
            .split(|b| *b == b'/')
            .all(|part| !value::looks_secret(part) && !value::is_strong(part))
}
