//! Classifies flag and variable names by the sensitivity of their values.

use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, MatchKind};

/// A list of words, which is split once, because every name is compared with it.
type Words = LazyLock<Vec<&'static str>>;

macro_rules! words {
    ($list:literal) => {
        LazyLock::new(|| $list.split_ascii_whitespace().collect())
    };
}

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
/// [`QUALIFIERS`]. The last rows are words for password, secret and token in other languages.
static SECRET_ENDINGS: Words = words!(
    "addmask authanswer authorization bearer communitystring connectionstring cookie cookies \
    crumb credential credentials creds identityheader jwt keycontent keydata keymaterial keypass masterauth mnemonic otpseed \
    parole passcommand passw passwd password passwordcommand passwordeval passwords phpsessid psw puk pwd \
    rocommunity rwcommunity secret secretanswer secrets securestring securityanswer seedphrase servercommunity \
    snmpcommunity storepass token totpseed userpwd \
    adgangskode contrasena contraseña geheimnis hasło heslo jelszó jeton kennwort lozinka lösenord motdepasse \
    palavrapasse parola passord passwort pasahitza salasana senha wachtwoord şifre κωδικός пароль секрет токен סיסמה \
    令牌 口令 密码 密碼 密钥 密鑰 秘密 トークン パスワード 비밀번호 토큰"
);

/// Words before `key`, `code` and `phrase` that denote a secret: `API_KEY`, `--kaggle-key`, `recovery code`.
static KEY_OWNERS: Words = words!(
    "access account activation admin aes anthropic api app auth aws azure cipher cohere comet \
    datadog decryption deploy encrypt encryption gemini groq hf hmac huggingface instrumentation kaggle license master \
    mistral neptune ngc openai openrouter pinecone pragma preshared private product recovery reg registration \
    replicate secret service session setup shared signing storage stream subscription together unseal user wandb wep \
    wifi wpa write"
);
static CODE_OWNERS: Words = words!(
    "access activation auth backup login onetime pass pin recovery security token verification"
);
static PHRASE_OWNERS: Words = words!("pass secret seed");

/// Parts of words, of which every sensitive name contains at least one. They are searched for first, because most text
/// contains none.
const STEMS: &str = "adgangskode answer appid auth basic bearer code bind client community connect cookie cred crumb \
    geheimnis identity_header identified identify jwt key login lozinka mask mnemonic palavra parol otp pass pat phrase \
    pin pdo psk psw puk pw salasana seed setuser secret secure session sid sig token clave clé contrasena contraseña \
    hasło heslo jelszó jeton kennwort lösenord senha wachtwoord şifre κωδικός ключ пароль секрет токен סיסמה 令牌 口令 \
    密码 密碼 密钥 密鑰 秘密 トークン パスワード 비밀번호 토큰";

/// Last words of a name that do not change its meaning: `DB_PASSWORD_PROD`, `tokenValue`.
static QUALIFIERS: Words = words!(
    "admin again b64 backup base base64 clear confirm confirmation current data default dev encoded \
    encrypted hash hex live main new old plain plaintext prev previous primary prod production raw root secondary stage \
    staging str string test text user val value"
);

/// Endings of words that describe a secret without containing it: `password_file`, `token_ids`.
static DESCRIPTIONS: Words = words!(
    "address arn age algorithm bytes class count dir endpoint expires expiry file folder format \
    hint host id ids index key kind length level limit list memory mode name names path policy ref server service size status \
    store time timeout ttl type uri url usage version"
);

/// Endings of names whose value decides.
static DOUBTFUL_ENDINGS: Words =
    words!("clave clé hmac key keytab pat session sid sig signature ключ");
static DOUBTFUL_PAIRS: Words = words!("appid callbackcode devicecode secretid sessionid usercode");

/// Words before `pin` that denote a secret number. `pin` alone also denotes a secret, but `I_MPI_PIN` pins ranks to
/// cores.
const PIN_OWNERS: &str = "account card login piv sim so token user";

/// Words before `token` that denote a tokenizer's token, not a secret.
const VOCABULARY: &str = "add audio bos class cls decoder end eod eos eot expected first image img initializer instance \
    last mask max min modifier next num pad per placeholder prefix sep special start stop suffix trigger unexpected unk \
    video";

/// Words before `pass` that denote a pass over data, and words that end in it, but have nothing to do with a password.
static RUNS: Words = words!(
    "analysis askpass backward bypass compass compiler decode encompass first forward fusion lowering \
    multi optimization prefill render running second single surpass third transform"
);

/// Words before `key` that denote one that is not a secret.
const PUBLIC_KEYS: &str = "autogenerated dedup foreign group host idempotency kernel lookup object partition primary pub public \
    routing row shard sort";

/// Returns true if the word is in a list of words that blanks separate, in any case.
pub fn is_one_of(word: &[u8], list: &str) -> bool {
    list.split_ascii_whitespace().any(|known| word.eq_ignore_ascii_case(known.as_bytes()))
}

/// Returns true if the name ends in one of the words of a list.
fn ends_in(name: &str, list: &[&str]) -> bool {
    list.iter().any(|ending| name.ends_with(ending))
}

/// Variables that contain a folder, or in connection strings a password.
const FOLDERS: &[&[u8]] = &[b"PWD", b"OLDPWD", b"pwd"];

/// Returns true for boolean flags, which do not take the next argument as their value: `--use-auth-token`,
/// `--no-password`.
pub fn is_switch(name: &[u8]) -> bool {
    const SWITCHES: &str = "ask disable enable export list no prompt require skip use with without";
    words(name).first().is_some_and(|first| is_one_of(first.as_bytes(), SWITCHES))
}

/// Returns the automaton that finds [`STEMS`] in any case.
pub fn stems() -> &'static AhoCorasick {
    static STEMS_FOUND: LazyLock<AhoCorasick> = LazyLock::new(|| {
        let capitalized = |stem: &str| match stem.chars().next() {
            Some(first) => first.to_uppercase().to_string() + &stem[first.len_utf8()..],
            None => String::new(),
        };
        let cases = |stem: &str| [stem.to_owned(), stem.to_uppercase(), capitalized(stem)];
        AhoCorasick::builder()
            .ascii_case_insensitive(true)
            .match_kind(MatchKind::LeftmostLongest)
            .build(STEMS.split_ascii_whitespace().flat_map(cases))
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
    // `TOKEN_GITHUB`, but not `token_id`
    let is_described = words.iter().any(|word| ends_in(word, &DESCRIPTIONS));
    let begins = || (1..words.len()).any(|n| of_words(&words[..n]) == Sensitivity::Secret);
    if !is_described && begins() { Sensitivity::Doubtful } else { Sensitivity::Plain }
}

fn of_words(words: &[String]) -> Sensitivity {
    let Some((last, before)) = words.split_last() else { return Sensitivity::Plain };
    let before = before.last().map_or("", String::as_str);
    let follows = |list| is_one_of(before.as_bytes(), list);
    let joined = words.concat();
    // `API_KEYS` are secrets, but `max_tokens` is a number.
    let singular = joined.strip_suffix('s').filter(|name| !name.ends_with("token"));
    let is_secret = |name: &str| {
        let owned =
            |noun, owners: &[&str]| name.strip_suffix(noun).is_some_and(|of| ends_in(of, owners));
        ends_in(name, &SECRET_ENDINGS)
            || owned("key", &KEY_OWNERS)
            || owned("code", &CODE_OWNERS)
            || owned("phrase", &PHRASE_OWNERS)
    };
    let is_ordinary = match last.as_str() {
        "token" => follows(VOCABULARY),
        "pass" => RUNS.contains(&before),
        "key" => follows(PUBLIC_KEYS),
        "publickey" | "pubkey" => true,
        "secret" | "secrets" => follows("existing pull"),
        last => RUNS.contains(&last),
    };
    let is_secret_word = match last.as_str() {
        "cred" | "otp" | "psk" | "totp" => true,
        // `x-functions-key` and other headers
        "key" => words.len() > 1 && words[0] == "x",
        "pin" => before.is_empty() || follows(PIN_OWNERS),
        last => ends_in(last, &["pw", "pass"]),
    };
    if is_ordinary {
        Sensitivity::Plain
    } else if is_secret_word || is_secret(&joined) || singular.is_some_and(is_secret) {
        Sensitivity::Secret
    } else if last.ends_with("auth") || last == "login" {
        Sensitivity::Login
    } else if ends_in(last, &DOUBTFUL_ENDINGS) || ends_in(&joined, &DOUBTFUL_PAIRS) {
        Sensitivity::Doubtful
    } else {
        Sensitivity::Plain
    }
}

/// Returns true for `public key`.
pub fn is_public_key(name: &[u8]) -> bool {
    let words = words(name);
    matches!(words.as_slice(), [.., kind, key] if key == "key" && is_one_of(kind.as_bytes(), PUBLIC_KEYS))
}

/// Returns true if the name implies that its value is a commit hash or a checksum.
pub fn names_revision(name: &[u8]) -> bool {
    const REVISIONS: &str = "blob branch checkout checksum commit digest etag hash id ref rev revision run sha sha1 tag \
        tree version";
    words(name).iter().any(|word| is_one_of(word.as_bytes(), REVISIONS))
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
        const NAMES: &str = "--api-key --apiKey -token HF_TOKEN WANDB_API_KEY wandb.api_key AWS_SECRET_ACCESS_KEY PGPASSWORD \
            MYSQL_PWD --password --db_passwd client_secret SMTP_PASS authToken Authorization --hub-token \
            AZURE_STORAGE_CONNECTION_STRING GOOGLE_CREDENTIALS --pw --pin --kaggle-key --Contraseña --ПАРОЛЬ \
            登录密码";
        for name in NAMES.split(' ') {
            assert_eq!(sensitivity(name.as_bytes()), Sensitivity::Secret, "{name}");
        }
    }

    #[test]
    fn does_not_treat_similar_names_as_sensitive() {
        const NAMES: &str = "--tokenizer --max-tokens --pad_token --eos-token-id --num_tokens --placeholder_token --passes \
            --forward-pass --author --keyboard --secretary --password-file HF_TOKEN_PATH --compass --monkeys \
            --token-type GIT_AUTHOR I_MPI_PIN pin_memory";
        for name in NAMES.split(' ') {
            assert_eq!(sensitivity(name.as_bytes()), Sensitivity::Plain, "{name}");
        }
    }
}
