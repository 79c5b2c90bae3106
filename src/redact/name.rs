//! Classifies flag and variable names by the sensitivity of their values.

use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, MatchKind};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sensitivity {
    Plain,
    /// Names such as `--key` and `sig`, whose value is often a file name or a sort key. Whether such a value is hidden
    /// depends on the value itself.
    Doubtful,
    /// Names such as `--auth`, as in `--auth ana:8f2c`: the value is a user and password, or the name of an
    /// authentication method.
    Login,
    Secret,
    /// `PWD`: a folder, or the password of a connection string.
    Folder,
}

/// Endings of sensitive names, in lower case without separators: `WANDB_API_KEY` ends in `apikey`, `pgPassword` in
/// `password`. Names with a further suffix, such as `_FILE` or `_PATH`, are not sensitive, unless the suffix is one of
/// [`QUALIFIERS`].
#[rustfmt::skip]
const SECRET_ENDINGS: &[&str] = &[
    "accesscode", "activationcode", "activationkey", "accesskey", "accountkey", "addmask", "apikey", "appkey", "authanswer", "authcode", "authkey", "authorization",
    "aeskey", "backupcode", "bearer", "cipherkey", "communitystring", "connectionstring", "cookie", "cookies", "crumb", "credential",
    "credentials", "creds", "decryptionkey", "deploykey", "encryptkey", "encryptionkey", "hmackey", "identityheader", "instrumentationkey", "jwt", "keycontent", "keymaterial", "keypass", "licensekey",
    "logincode", "masterauth", "masterkey", "mnemonic", "onetimecode", "otpseed", "parole", "passw", "passcode", "passcommand", "passphrase", "passwd",
    "password", "passwordcommand", "passwordeval", "passwords", "phpsessid", "pincode", "pragmakey", "presharedkey", "privatekey", "productkey", "pwd",
    "recoverycode", "recoverykey", "recoverypassword", "registrationkey", "regkey", "rocommunity", "rwcommunity", "psw", "puk", "secret", "secretanswer", "secretkey", "secretphrase",
    "secrets", "securestring", "securityanswer", "securitycode", "streamkey", "totpseed", "seedphrase", "servercommunity", "servicekey", "sessionid", "sessionkey", "setupkey", "sharedkey",
    "signingkey", "snmpcommunity", "storagekey", "storepass", "subscriptionkey", "token", "tokencode", "unsealkey", "userkey", "userpwd",
    "verificationcode", "writekey",
    // Words for password, secret and token in other languages.
    "adgangskode", "contrasena", "contraseña", "geheimnis", "hasło", "heslo", "jelszó", "jeton", "kennwort",
    "lozinka", "lösenord", "motdepasse", "palavrapasse", "parola", "passord", "passwort", "pasahitza", "salasana", "senha", "wachtwoord", "şifre", "κωδικός", "пароль", "секрет", "токен", "סיסמה", "令牌", "口令",
    "密码", "密碼", "密钥", "密鑰", "秘密", "トークン", "パスワード", "비밀번호", "토큰",
];

/// Parts of words, of which every sensitive name contains at least one. They are searched for first, because most text
/// contains none.
#[rustfmt::skip]
const STEMS: &[&str] = &[
    "adgangskode", "answer", "appid", "auth", "basic", "bearer", "code", "bind", "client", "community", "connect", "cookie", "cred", "crumb", "geheimnis", "identity_header", "identified", "identify", "jwt",
    "key", "login", "lozinka", "mask", "mnemonic", "palavra", "parol", "otp", "pass", "pat", "phrase", "pin", "pdo", "psk", "psw", "puk", "pw", "salasana", "seed", "setuser", "secret", "secure", "session", "sid", "sig",
    "token", "clave", "clé", "contrasena", "contraseña", "hasło", "heslo", "jelszó", "jeton", "kennwort", "lösenord",
    "senha", "wachtwoord", "şifre", "κωδικός", "ключ", "пароль", "секрет", "токен", "סיסמה", "令牌", "口令", "密码",
    "密碼", "密钥", "密鑰", "秘密", "トークン", "パスワード", "비밀번호", "토큰",
];

/// Last words of a name that do not change its meaning: `DB_PASSWORD_PROD`, `tokenValue`.
#[rustfmt::skip]
const QUALIFIERS: &[&str] = &[
    "admin", "again", "b64", "backup", "base", "base64", "clear", "confirm", "confirmation", "current", "data", "default",
    "dev", "encoded", "encrypted", "hash", "hex", "live", "main", "new", "old", "plain", "plaintext", "prev",
    "previous", "primary", "prod", "production", "raw", "root", "secondary", "stage", "staging", "str",
    "string", "test", "text", "user", "val", "value",
];

const DOUBTFUL_ENDINGS: &[&str] =
    &["clave", "clé", "hmac", "key", "keytab", "pat", "session", "sid", "sig", "signature", "ключ"];

/// Endings of several words.
const DOUBTFUL_PAIRS: &[&str] = &["appid", "callbackcode", "devicecode", "secretid", "usercode"];

/// Words before `key` that denote an account key: `--kaggle-key`.
#[rustfmt::skip]
const ACCOUNTS: &[&str] = &[
    "admin", "anthropic", "aws", "azure", "cohere", "comet", "datadog", "gemini", "groq", "hf", "huggingface",
    "kaggle", "mistral", "neptune", "ngc", "openai", "openrouter", "pinecone", "replicate", "together",
    "wandb", "wep", "wifi", "wpa",
];

/// Words before `pin` that denote a secret number. `pin` alone also denotes a secret, but `I_MPI_PIN` pins ranks to
/// cores.
const PIN_OWNERS: &[&str] = &["", "account", "card", "login", "piv", "sim", "so", "token", "user"];

/// Words before `token` that denote a tokenizer's token, not a secret.
#[rustfmt::skip]
const VOCABULARY: &[&str] = &[
    "add", "audio", "bos", "class", "cls", "decoder", "eod", "eos", "eot", "first", "image", "img",
    "initializer", "instance", "last", "mask", "max", "min", "modifier", "next", "num", "pad", "per",
    "placeholder", "prefix", "sep", "special", "start", "stop", "suffix", "trigger", "unk", "video", "end", "expected", "unexpected",
];

/// Words before `pass` that denote a pass over data, and words that end in it, but have nothing to do with a password.
const RUNS: &[&str] = &[
    "analysis",
    "askpass",
    "backward",
    "bypass",
    "compiler",
    "compass",
    "decode",
    "encompass",
    "first",
    "fusion",
    "forward",
    "lowering",
    "multi",
    "optimization",
    "prefill",
    "render",
    "running",
    "second",
    "single",
    "surpass",
    "transform",
    "third",
];

/// Words before `key` that denote one that is not a secret.
const PUBLIC_KEYS: &[&str] = &["foreign", "host", "primary", "pub", "public", "sort"];

/// Variables that contain a folder, or in connection strings a password.
const FOLDERS: &[&[u8]] = &[b"PWD", b"OLDPWD", b"pwd"];

/// Returns true for boolean flags, which do not take the next argument as their value: `--use-auth-token`,
/// `--no-password`.
pub fn is_switch(name: &[u8]) -> bool {
    const SWITCHES: &[&str] =
        &["ask", "disable", "enable", "no", "prompt", "require", "skip", "use", "with", "without"];
    words(name).first().is_some_and(|first| SWITCHES.contains(&first.as_str()))
}

/// Returns the automaton that finds [`STEMS`] in any case.
pub fn stems() -> &'static AhoCorasick {
    static STEMS_FOUND: LazyLock<AhoCorasick> = LazyLock::new(|| {
        let capitalized = |stem: &&str| {
            let mut letters = stem.chars();
            let first = letters.next().map(|first| first.to_uppercase().to_string());
            first.unwrap_or_default() + letters.as_str()
        };
        let others = STEMS
            .iter()
            .filter(|stem| !stem.is_ascii())
            .flat_map(|stem| [stem.to_uppercase(), capitalized(stem)]);
        let stems = STEMS.iter().map(|stem| (*stem).to_owned()).chain(others);
        AhoCorasick::builder()
            .ascii_case_insensitive(true)
            .match_kind(MatchKind::LeftmostLongest)
            .build(stems)
            .expect("valid stems")
    });
    &STEMS_FOUND
}

pub fn sensitivity(name: &[u8]) -> Sensitivity {
    if FOLDERS.contains(&name) {
        return Sensitivity::Folder;
    }
    // The program, unlike the variable `SSHPASS`.
    if name == b"sshpass" {
        return Sensitivity::Plain;
    }
    let mut words = words(name);
    let whole = of_words(&words);
    if whole != Sensitivity::Plain {
        return whole;
    }
    // `token1`, `API_KEY_2`, `password_confirmation`
    while let Some(last) = words.last_mut() {
        let letters = last.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        if letters == 0 || QUALIFIERS.contains(&last.as_str()) {
            words.pop();
        } else if letters < last.len() {
            last.truncate(letters);
        } else {
            break;
        }
        if of_words(&words) == Sensitivity::Secret {
            return Sensitivity::Secret;
        }
    }
    Sensitivity::Plain
}

fn of_words(words: &[String]) -> Sensitivity {
    let (before, last) = match words.split_last() {
        Some((last, before)) => (before.last().map_or("", String::as_str), last.as_str()),
        None => return Sensitivity::Plain,
    };
    let is_ordinary = match last {
        "token" => VOCABULARY.contains(&before),
        "pass" => RUNS.contains(&before),
        "key" => PUBLIC_KEYS.contains(&before),
        "publickey" | "pubkey" => true,
        "secret" | "secrets" => ["existing", "pull"].contains(&before),
        last => RUNS.contains(&last),
    };
    let is_secret = match last {
        "psk" | "otp" | "totp" => true,
        last if last.ends_with("pw") => true,
        last if last.ends_with("pass") => true,
        // `--auth-cred`
        "cred" => true,
        // `x-functions-key` and other headers
        "key" => ACCOUNTS.contains(&before) || (words.len() > 1 && words[0] == "x"),
        "pin" => PIN_OWNERS.contains(&before),
        _ => false,
    };
    if is_ordinary {
        Sensitivity::Plain
    } else if is_secret || is_secret_name(&words.concat()) {
        Sensitivity::Secret
    } else if last.ends_with("auth") || last == "login" {
        Sensitivity::Login
    } else if ends_in(last, DOUBTFUL_ENDINGS) || ends_in(&words.concat(), DOUBTFUL_PAIRS) {
        Sensitivity::Doubtful
    } else {
        Sensitivity::Plain
    }
}

/// Returns true for `public key`.
pub fn is_public_key(name: &[u8]) -> bool {
    let words = words(name);
    matches!(words.as_slice(), [.., kind, key] if key == "key" && PUBLIC_KEYS.contains(&kind.as_str()))
}

/// Returns true if the name implies that its value is a commit hash or a checksum.
pub fn names_revision(name: &[u8]) -> bool {
    const REVISIONS: &[&str] = &[
        "blob", "branch", "checkout", "checksum", "commit", "digest", "etag", "hash", "id", "ref",
        "rev", "revision", "run", "sha", "sha1", "tag", "tree", "version",
    ];
    words(name).iter().any(|word| REVISIONS.contains(&word.as_str()))
}

fn is_secret_name(joined: &str) -> bool {
    // `API_KEYS` are secrets, but `max_tokens` is a number.
    let singular = joined.strip_suffix('s').filter(|name| !name.ends_with("token"));
    ends_in(joined, SECRET_ENDINGS) || singular.is_some_and(|name| ends_in(name, SECRET_ENDINGS))
}

fn ends_in(name: &str, endings: &[&str]) -> bool {
    endings.iter().any(|ending| name.ends_with(ending))
}

/// Returns the lowercase words of a name: `--apiKey`, `API_KEY` and `wandb.api-key` all end in `api`, `key`.
pub fn words(name: &[u8]) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut was_lower = false;
    for c in String::from_utf8_lossy(name).chars() {
        let starts_word = c.is_uppercase() && was_lower;
        if (!c.is_alphanumeric() || starts_word) && !word.is_empty() {
            words.push(std::mem::take(&mut word));
        }
        if c.is_alphanumeric() {
            word.extend(c.to_lowercase());
        }
        was_lower = c.is_lowercase();
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognizes_sensitive_names() {
        for name in [
            "--api-key",
            "--apiKey",
            "-token",
            "HF_TOKEN",
            "WANDB_API_KEY",
            "wandb.api_key",
            "AWS_SECRET_ACCESS_KEY",
            "PGPASSWORD",
            "MYSQL_PWD",
            "--password",
            "--db_passwd",
            "client_secret",
            "SMTP_PASS",
            "authToken",
            "Authorization",
            "--hub-token",
            "AZURE_STORAGE_CONNECTION_STRING",
            "GOOGLE_CREDENTIALS",
            "--pw",
            "--pin",
            "--kaggle-key",
            "--Contraseña",
            "--ПАРОЛЬ",
            "登录密码",
        ] {
            assert_eq!(sensitivity(name.as_bytes()), Sensitivity::Secret, "{name}");
        }
    }

    #[test]
    fn does_not_treat_similar_names_as_sensitive() {
        for name in [
            "--tokenizer",
            "--max-tokens",
            "--pad_token",
            "--eos-token-id",
            "--num_tokens",
            "--placeholder_token",
            "--passes",
            "--forward-pass",
            "--author",
            "--keyboard",
            "--secretary",
            "--password-file",
            "HF_TOKEN_PATH",
            "--compass",
            "--monkeys",
            "--token-type",
            "GIT_AUTHOR",
            "I_MPI_PIN",
            "pin_memory",
        ] {
            assert_eq!(sensitivity(name.as_bytes()), Sensitivity::Plain, "{name}");
        }
    }
}
