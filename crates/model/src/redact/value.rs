//! Judges values: whether a word can be a secret, given how likely its context makes one.

use super::name::{Sensitivity, is_one_of};

/// Returns true if a value must be hidden, given the sensitivity of its name.
pub fn hides(sensitivity: Sensitivity, value: &[u8]) -> bool {
    match sensitivity {
        Sensitivity::Plain => false,
        Sensitivity::Folder => {
            !is_harmless(value)
                && value.first().is_some_and(|b| !b"/~$.".contains(b))
                && value.get(1) != Some(&b':')
        }
        Sensitivity::Doubtful => looks_secret(value) || is_strong(value),
        Sensitivity::Login => {
            looks_secret(value) || is_login(value) || (value.len() >= 8 && is_credential(value))
        }
        Sensitivity::Secret => !is_harmless(value),
    }
}

/// Returns true for values that cannot be secrets: an empty value, the value of a switch, a small number such as a
/// token ID, or a mask.
fn is_harmless(value: &[u8]) -> bool {
    const WORDS: &str =
        "true false yes no none nil null on off undefined unset bearer basic ~ ? . -";
    let is_small = value.len() <= 2 && value.iter().all(u8::is_ascii_digit);
    is_one_of(value, WORDS) || is_small || value.iter().all(|b| *b == b'*')
}

/// Returns true for `user:password`, but not for `host:8080` or a URL.
fn is_login(value: &[u8]) -> bool {
    let Some(separator) = value.iter().position(|b| b":/".contains(b)) else { return false };
    let password = value[separator + 1..].trim_ascii();
    let is_port = password.iter().all(u8::is_ascii_digit) && password.len() < 6;
    let is_path = value[separator] == b'/' && !is_credential(password);
    separator > 0
        && !is_port
        && !is_path
        && !password.starts_with(b"//")
        && !password.starts_with(b":")
}

/// Returns true for 40 hexadecimal digits: a Weights & Biases key or a commit hash, depending on the context.
pub fn is_hex_key(value: &[u8]) -> bool {
    value.len() == 40 && value.iter().all(u8::is_ascii_hexdigit) && is_mixed(value)
}

/// Returns true for a long value without whitespace whose characters are too random for a word or a file name.
pub fn looks_secret(value: &[u8]) -> bool {
    let is_one_piece = value.iter().all(|b| b.is_ascii_alphanumeric() || b"+/=_-.~%".contains(b));
    value.len() >= 16 && is_one_piece && !b"/.~".contains(&value[0]) && is_mixed(value)
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

/// Returns true for a word that can be a password in a sentence: letters with digits or punctuation, but not a version,
/// a size, a date, a path, an address or the name of a file.
pub fn is_credential(word: &[u8]) -> bool {
    let has = |class: fn(&u8) -> bool| word.iter().any(class);
    // A question mark at the end belongs to the sentence.
    let has_symbol =
        word.iter().rev().skip_while(|b| **b == b'?').any(|b| b"!#$%^&*+?@=~".contains(b));
    let is_path = word.contains(&b'/') && !looks_secret(word)
        || b"~.-<$%({[".contains(word.first().unwrap_or(&b'.'));
    let is_number = word.first().is_some_and(u8::is_ascii_digit)
        && word.iter().filter(|b| b.is_ascii_alphabetic()).count() <= 3;
    let is_host = word.contains(&b'.')
        && word.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b".-_".contains(b));
    let is_address = word.starts_with(b"0x") || word.contains(&b':') || is_host;
    word.len() >= 6
        && word.iter().all(u8::is_ascii_graphic)
        && !is_path
        && !is_number
        && !is_address
        && has(u8::is_ascii_alphabetic)
        && (has(u8::is_ascii_digit) || has_symbol)
}

/// Returns true for `ana@lab.org`.
pub fn is_user_at_host(word: &[u8]) -> bool {
    let is_part = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._@-".contains(b);
    word.iter().skip(2).any(|b| *b == b'@') && word.iter().all(is_part)
}

/// Returns true for a word that can hardly be anything but a password: letters and digits with punctuation, or random
/// ones of both cases.
pub fn is_strong(word: &[u8]) -> bool {
    let has = |class: fn(&u8) -> bool| word.iter().any(class);
    let has_symbol = word.iter().any(|b| b"!#$^&*@".contains(b));
    let has_both_cases = has(u8::is_ascii_uppercase) && has(u8::is_ascii_lowercase);
    word.len() >= 8
        && is_credential(word)
        && !is_user_at_host(word)
        && has(u8::is_ascii_digit)
        && (has_symbol || (has_both_cases && natural_percent(word) <= MAX_NATURAL))
}

/// Returns true for a word that is likely a secret directly after its name.
pub fn is_likely_secret(word: &[u8]) -> bool {
    is_credential(word) || looks_secret(word) || is_hex_token(word) || is_random(word)
}

/// Returns true for the digits of a code, with dashes between groups.
pub fn is_code(word: &[u8]) -> bool {
    word.len() > 3
        && word[0].is_ascii_digit()
        && word.iter().all(|b| b.is_ascii_digit() || *b == b'-')
}

/// Returns true for a hexadecimal number, with dashes for a UUID and colons for bytes, which is an identifier or a
/// checksum except after the name of a secret.
pub fn is_hex_token(word: &[u8]) -> bool {
    const MIN_DIGITS: usize = 16;
    word.iter().filter(|b| b.is_ascii_hexdigit()).count() >= MIN_DIGITS
        && word.iter().any(u8::is_ascii_digit)
        && word.iter().all(|b| b.is_ascii_hexdigit() || b"-:".contains(b))
}

/// Returns the length of the groups at the start of a text that [`is_grouped`] accepts, or 0 if there are none.
pub fn groups_length(text: &[u8]) -> usize {
    const MAX_GROUPS: usize = 80;
    let near = &text[..text.len().min(MAX_GROUPS)];
    let length =
        |from: usize| near[from..].iter().take_while(|b| b.is_ascii_alphanumeric()).count();
    let group = length(0);
    let mut end = group;
    while near.get(end).is_some_and(|b| b"- ".contains(b)) && length(end + 1) == group {
        end += 1 + group;
    }
    if is_grouped(&near[..end]) { end } else { 0 }
}

/// Returns true for at least three groups of the same length: `223062-094672-435352`, `kmyu 4j3s jada anh4`.
pub fn is_grouped(text: &[u8]) -> bool {
    let groups: Vec<&[u8]> = text.split(|b| b"- ".contains(b)).collect();
    let is_mixed_group = |group: &&&[u8]| {
        group.iter().any(u8::is_ascii_digit) || group.iter().skip(1).any(u8::is_ascii_uppercase)
    };
    groups.len() >= 3
        && (4..8).contains(&groups[0].len())
        && groups.iter().filter(is_mixed_group).count() * 2 >= groups.len()
        && text.iter().any(u8::is_ascii_digit)
        && groups
            .iter()
            .all(|g| g.len() == groups[0].len() && g.iter().all(u8::is_ascii_alphanumeric))
}

/// Returns true for a word of one kind of letters, which in a sentence is more likely an ordinary word than a password.
pub fn is_word(value: &[u8]) -> bool {
    let rest = value.get(1..).unwrap_or_default();
    value.first().is_some_and(u8::is_ascii_alphabetic)
        && (rest.iter().all(|b| b.is_ascii_lowercase() || b"-'".contains(b))
            || value.iter().all(|b| b.is_ascii_uppercase() || *b == b'_'))
}

/// Returns true for words that can follow "the password is" in a sentence about a password.
pub fn is_predicate(word: &[u8]) -> bool {
    const PREDICATES: &str = "a abgelaufen about absent active again all allowed already also always an and any anything as at attempt \
        attempts auth authentication authorization available bad be being blank both but by bytes cache caducada \
        can cannot case change characters check close contains continue correct correcta count credentials \
        default dialog different doesn't due either empty enough entry equals erforderlich error exists expirada \
        expires expiry fails failure falsch field file for format fresh from generator gesetzt good has hash \
        hashing have header here hint id identical ids if in incorrect incorrecta incorrecto index indices input \
        insecure insufficient int invalid is it just leer length less likely limit login long longer malformed \
        manager mandatory matches mismatch must name needed needs never new nicht no nor not now null number \
        obligatoire obligatoria of off ok old on only optional or out over plain please policy present prompt \
        provided public read ready really refresh requerida request required requirements requires reset \
        rotation rules same scheme screen secret sensitive set short should shown similar stale still storage \
        store str strength string strong succeeded success supported than that the then there this to token \
        tokens too twice two type under unknown unset unsupported used using valid value verification very via \
        weak what when where which why will with within without wrong yet you your zu";
    let lower = word.to_ascii_lowercase();
    let ends = |ending: &&str| lower.ends_with(ending.as_bytes());
    is_one_of(word, PREDICATES)
        || (5..15).contains(&word.len())
            && word.iter().all(u8::is_ascii_alphabetic)
            && ["ed", "ing", "able", "ible", "ly", "ful"].iter().any(ends)
}

/// The 180 most frequent pairs of letters in the words and identifiers of this repository, of which they make up 87 %.
/// Random text contains each of the 676 pairs equally often.
const COMMON_PAIRS: &[u8; 2 * 180] = b"\
abacadagaialamanaparasataubabeblbobucacccechcickclcocrctcudadedidodsdueaecedeeefegelemenep\
eresetevexfafefffifogegigrhahehihoiaibicidieifigiliminioipirisitivizkelaldlelilllolsltluly\
mamemimmmompnancndnenfngninnnonsntnvoaocodolomonoooporosotouovowpapepiplpoppprptpuqurarcrd\
rerirmrnrorrrsrtrurysascseshsisospssstsutatctethtitotrtstttutyudueulumunupurusutvaveviwaze";

/// Maximum share of pairs that look natural in a random token, in percent. Random letters and digits of both cases have
/// 15 to 20, words and identifiers 50 to 90, mangled names 40.
const MAX_NATURAL: usize = 33;
/// Maximum share of natural pairs in a random token of letters only.
const MAX_NATURAL_LETTERS: usize = 22;
/// Minimum length of a random token, and of its longest run of letters and digits. A token in quotes may be as short as
/// that run.
pub const MIN_RANDOM: usize = 20;
pub const MIN_RANDOM_RUN: usize = 16;

/// Returns true for a long token that is too random for a word, an identifier or a mangled name. Tokens of hexadecimal
/// digits are not: they are hashes, addresses and UUIDs more often than secrets.
pub fn is_random(token: &[u8]) -> bool {
    if token.len() < MIN_RANDOM_RUN
        || token.iter().all(|b| b.is_ascii_hexdigit() || b"-_.:".contains(b))
    {
        return false;
    }
    let runs = token.split(|b| !b.is_ascii_alphanumeric());
    let run = runs.filter(|run| !run.iter().all(u8::is_ascii_hexdigit)).map(<[u8]>::len).max();
    let digits = token.iter().filter(|b| b.is_ascii_digit()).count();
    let has_both_cases =
        token.iter().any(u8::is_ascii_uppercase) && token.iter().any(u8::is_ascii_lowercase);
    let max_natural = match digits {
        0 | 1 if has_both_cases && run >= Some(MIN_RANDOM) => MAX_NATURAL_LETTERS,
        2.. if has_both_cases || digits * 8 >= token.len() => MAX_NATURAL,
        _ => return false,
    };
    run >= Some(MIN_RANDOM_RUN) && natural_percent(token) <= max_natural
}

/// Returns the share of neighbouring letters and digits that occur in words, identifiers and numbers.
pub fn natural_percent(token: &[u8]) -> usize {
    let pairs = || token.windows(2).filter(|pair| pair.iter().all(u8::is_ascii_alphanumeric));
    let is_natural = |pair: &&[u8]| {
        let changes_to_upper = pair[0].is_ascii_lowercase() && pair[1].is_ascii_uppercase();
        match (pair[0].is_ascii_digit(), pair[1].is_ascii_digit()) {
            (false, false) => !changes_to_upper && is_common(pair[0], pair[1]),
            (first, second) => first && second,
        }
    };
    pairs().filter(is_natural).count() * 100 / usize::max(pairs().count(), 1)
}

fn is_common(first: u8, second: u8) -> bool {
    static COMMON: [bool; 676] = common_pairs();
    let letter = |b: u8| usize::from(b.to_ascii_lowercase().wrapping_sub(b'a'));
    COMMON.get(letter(first) * 26 + letter(second)).is_some_and(|common| *common)
}

const fn common_pairs() -> [bool; 676] {
    let mut common = [false; 676];
    let mut at = 0;
    while at + 1 < COMMON_PAIRS.len() {
        let first = (COMMON_PAIRS[at] - b'a') as usize;
        common[first * 26 + (COMMON_PAIRS[at + 1] - b'a') as usize] = true;
        at += 2;
    }
    common
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_decides_for_a_doubtful_name() {
        for value in ["9f8e7d6c5b4a39281706f5e4d3c2b1a0", "AbCdEfGh1234567890xY"] {
            assert!(hides(Sensitivity::Doubtful, value.as_bytes()), "{value}");
        }
        let plain =
            "server.key image /etc/ssl/private/a1b2c3d4e5f6.pem resnet50-imagenet-2024-run3";
        for value in plain.split(' ') {
            assert!(!hides(Sensitivity::Doubtful, value.as_bytes()), "{value}");
        }
    }

    #[test]
    fn folder_is_shown_and_password_of_a_connection_string_is_not() {
        for folder in ["/home/ana", "~", "C:\\data"] {
            assert!(!hides(Sensitivity::Folder, folder.as_bytes()), "{folder}");
        }
        assert!(hides(Sensitivity::Folder, b"hunter2"));
    }

    #[test]
    fn random_tokens_differ_from_names_and_hashes() {
        const TOKENS: &str = "k7Zp9QmX2vLr8TsWbN4cYd6FgHjA1eUo ZmFrZS1zZXNzaW9uLXRva2VuLXdpdGgtbGVuZ3RoLTQ4 \
            x7k2m9qp4v8w3z6b1n5c OGyMMoQPnHnpGXFEeSnaBWraLnVQxIbM";
        const NAMES: &str = "9f8e7d6c5b4a39281706f5e4d3c2b1a09f8e7d6c 0f9b2c3d-1a2b-4c5d-8e9f-a0b1c2d3e4f5 \
            TransformerEngineFlashAttentionWithContextParallelBackward0 \
            sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_kernel__5x_cublas \
            N2at6native29vectorized_elementwise_kernelILi4EZZZNS0_23direct_copy_kernel_cudaERNS_18TensorIteratorBase \
            CUBLAS_STATUS_NOT_SUPPORTED_IN_THIS_CONFIGURATION_12 cmpl-9f8e7d6c5b4a39281706f5e4d3c2b1a0 \
            run-20261101_100000-k7zp9qmx BFloat16TensorDescriptorMKLDNNConvTransposeBackwardHelper";
        for (words, are_random) in [(TOKENS, true), (NAMES, false)] {
            for word in words.split(' ').map(str::as_bytes) {
                assert_eq!(is_random(word), are_random, "{:?}", std::str::from_utf8(word));
            }
        }
    }

    #[test]
    fn credentials_differ_from_sizes_versions_hosts_and_files() {
        const WORDS: &str = "512MiB 2.5.1 gpu17.lab.org train_v2.py /data/run7 10:00:00 0x7fc2a4 required </s> now?";
        for word in ["hunter2", "S3cr3t!pw", "correct-horse-7", "k7Zp9QmX2vLr8TsW"] {
            assert!(is_credential(word.as_bytes()), "{word}");
        }
        for word in WORDS.split(' ') {
            assert!(!is_credential(word.as_bytes()), "{word}");
        }
    }
}
