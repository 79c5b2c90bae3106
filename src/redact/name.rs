//! Classifies flag and variable names by the sensitivity of their values.

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
}

/// Endings of sensitive names, in lower case without separators: `WANDB_API_KEY` ends in `apikey`, `pgPassword` in
/// `password`. Names with a further suffix, such as `_FILE` or `_PATH`, are not sensitive.
#[rustfmt::skip]
const SECRET_ENDINGS: &[&str] = &[
    "accesskey", "accountkey", "apikey", "appkey", "authkey", "authorization", "bearer", "connectionstring",
    "cookie", "credential", "credentials", "creds", "deploykey", "encryptionkey", "jwt", "keypass",
    "licensekey", "masterkey", "passcode", "passphrase", "passwd", "password", "passwords", "privatekey",
    "pwd", "requirepass", "secret", "secretkey", "secrets", "servicekey", "sessionkey", "sharedkey",
    "signingkey", "storagekey", "storepass", "subscriptionkey", "token", "userpwd", "writekey",
    // Words for password, secret and token in other languages.
    "contrasena", "contraseña", "hasło", "heslo", "jelszó", "jeton", "kennwort", "lösenord", "motdepasse",
    "passwort", "senha", "wachtwoord", "şifre", "κωδικός", "пароль", "секрет", "токен", "סיסמה", "令牌", "口令",
    "密码", "密碼", "密钥", "密鑰", "秘密", "トークン", "パスワード", "비밀번호", "토큰",
];

const DOUBTFUL_ENDINGS: &[&str] =
    &["clave", "clé", "key", "otp", "pat", "sessionid", "sid", "sig", "signature", "ключ"];

/// Words before `key` that denote an account key: `--kaggle-key`.
#[rustfmt::skip]
const ACCOUNTS: &[&str] = &[
    "anthropic", "aws", "azure", "cohere", "comet", "datadog", "gemini", "groq", "hf", "huggingface",
    "kaggle", "mistral", "neptune", "ngc", "openai", "openrouter", "pinecone", "replicate", "together",
    "wandb",
];

/// Words before `pin` that denote a secret number. `pin` alone also denotes a secret, but `I_MPI_PIN` pins ranks to
/// cores.
const PIN_OWNERS: &[&str] = &["", "account", "card", "login", "piv", "sim", "so", "token", "user"];

/// Words before `token` that denote a tokenizer's token, not a secret.
#[rustfmt::skip]
const VOCABULARY: &[&str] = &[
    "add", "audio", "bos", "class", "cls", "decoder", "eod", "eos", "eot", "first", "image", "img",
    "initializer", "instance", "last", "mask", "max", "min", "modifier", "new", "next", "num", "pad", "per",
    "placeholder", "prefix", "sep", "special", "start", "stop", "suffix", "trigger", "unk", "video", "end",
];

/// Words before `pass` that denote a pass over data, not a password.
const RUNS: &[&str] =
    &["backward", "bypass", "first", "forward", "multi", "second", "single", "third"];

/// Names that end like a secret but are not sensitive.
const PLAIN: &[&str] = &["pwd", "oldpwd"];

/// Returns true for boolean flags, which do not take the next argument as their value: `--use-auth-token`,
/// `--no-password`.
pub fn is_switch(name: &[u8]) -> bool {
    const SWITCHES: &[&str] =
        &["disable", "enable", "no", "require", "skip", "use", "with", "without"];
    words(name).first().is_some_and(|first| SWITCHES.contains(&first.as_str()))
}

pub fn sensitivity(name: &[u8]) -> Sensitivity {
    let words = words(name);
    let joined = words.concat();
    if PLAIN.contains(&joined.as_str()) {
        return Sensitivity::Plain;
    }
    let (before, last) = match words.split_last() {
        Some((last, before)) => (before.last().map_or("", String::as_str), last.as_str()),
        None => return Sensitivity::Plain,
    };
    let is_ordinary = match last {
        "token" => VOCABULARY.contains(&before),
        "pass" => RUNS.contains(&before),
        _ => false,
    };
    let is_secret = match last {
        "pass" | "pw" | "psk" => true,
        "key" => ACCOUNTS.contains(&before),
        "pin" => PIN_OWNERS.contains(&before),
        _ => false,
    };
    if is_ordinary {
        Sensitivity::Plain
    } else if is_secret || ends_in(&joined, SECRET_ENDINGS) {
        Sensitivity::Secret
    } else if last.ends_with("auth") {
        Sensitivity::Login
    } else if ends_in(last, DOUBTFUL_ENDINGS) {
        Sensitivity::Doubtful
    } else {
        Sensitivity::Plain
    }
}

/// Returns true if a value must be hidden, given the sensitivity of its name.
pub fn hides(sensitivity: Sensitivity, value: &[u8]) -> bool {
    match sensitivity {
        Sensitivity::Plain => false,
        Sensitivity::Doubtful => looks_secret(value),
        Sensitivity::Login => looks_secret(value) || is_login(value),
        Sensitivity::Secret => !is_harmless(value),
    }
}

/// Returns true for values that cannot be secrets: an empty value, the value of a switch, or a small number such as a
/// token ID.
fn is_harmless(value: &[u8]) -> bool {
    const WORDS: &[&str] = &["", "true", "false", "yes", "no", "none", "null", "on", "off"];
    let is_word = WORDS.iter().any(|word| value.eq_ignore_ascii_case(word.as_bytes()));
    is_word || (value.len() <= 2 && value.iter().all(u8::is_ascii_digit))
}

/// Returns true for `user:password`, but not for `host:8080` or a URL.
fn is_login(value: &[u8]) -> bool {
    let Some(colon) = value.iter().position(|&b| b == b':') else { return false };
    let password = &value[colon + 1..];
    let is_port = password.iter().all(u8::is_ascii_digit) && password.len() < 6;
    colon > 0 && !is_port && !password.starts_with(b"//")
}

/// Returns true for 40 hexadecimal digits: a Weights & Biases key or a commit hash, depending on the context.
pub fn is_hex_key(value: &[u8]) -> bool {
    value.len() == 40 && value.iter().all(u8::is_ascii_hexdigit) && is_mixed(value)
}

/// Returns true if the name implies that its value is a commit hash or a checksum.
pub fn names_revision(name: &[u8]) -> bool {
    const REVISIONS: &[&str] = &[
        "blob", "branch", "checkout", "checksum", "commit", "digest", "etag", "hash", "id", "ref",
        "rev", "revision", "run", "sha", "sha1", "tag", "tree", "version",
    ];
    words(name).iter().any(|word| REVISIONS.contains(&word.as_str()))
}

/// Returns true for a long value without whitespace whose characters are too random for a word or a file name.
fn looks_secret(value: &[u8]) -> bool {
    let is_one_piece = value.iter().all(|b| b.is_ascii_alphanumeric() || b"+/=_-.~%".contains(b));
    let is_path = value.starts_with(b"/") || value.starts_with(b".") || value.starts_with(b"~");
    value.len() >= 16 && is_one_piece && !is_path && is_mixed(value)
}

fn is_mixed(value: &[u8]) -> bool {
    let has = |class: fn(&u8) -> bool| value.iter().any(class);
    let changes = value
        .windows(2)
        .filter(|pair| pair.iter().all(u8::is_ascii_alphanumeric))
        .filter(|pair| pair[0].is_ascii_digit() != pair[1].is_ascii_digit())
        .count();
    changes >= 5
        || (has(u8::is_ascii_uppercase) && has(u8::is_ascii_lowercase) && has(u8::is_ascii_digit))
}

fn ends_in(name: &str, endings: &[&str]) -> bool {
    endings.iter().any(|ending| name.ends_with(ending))
}

/// Returns the lowercase words of a name: `--apiKey`, `API_KEY` and `wandb.api-key` all end in `api`, `key`.
fn words(name: &[u8]) -> Vec<String> {
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
            "PWD",
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

    #[test]
    fn value_decides_for_a_doubtful_name() {
        assert_eq!(sensitivity(b"--key"), Sensitivity::Doubtful);
        for (value, is_hidden) in [
            ("server.key", false),
            ("image", false),
            ("/etc/ssl/private/a1b2c3d4e5f6.pem", false),
            ("resnet50-imagenet-2024-run3", false),
            ("9f8e7d6c5b4a39281706f5e4d3c2b1a0", true),
            ("AbCdEfGh1234567890xY", true),
        ] {
            assert_eq!(hides(Sensitivity::Doubtful, value.as_bytes()), is_hidden, "{value}");
        }
    }
}
