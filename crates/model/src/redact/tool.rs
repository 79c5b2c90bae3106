//! Command lines whose secrets have no name: `mysql -p…`, `vault login …`, `curl -u ana:…`.

use std::collections::HashMap;
use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, MatchKind};

use super::name::is_one_of;
use super::{harmless, value};

/// Programs, and the arguments in which they take a secret (`§`). `*` stands for any word or part of a word, and other
/// words may be between those of a pattern. After a flag, the secret is the next word; otherwise it is the next word
/// that is not a flag. `$§` is the last of at most three words.
#[rustfmt::skip]
const TOOLS: &[(&str, &str)] = &[
    // Databases, brokers and directories
    ("mysql mariadb", "-p§; password §"),
    ("redis- valkey- sipsak hatch", "-a §; auth|AUTH §"),
    ("mongo cqlsh cypher-shell rdesktop vncdo sshpass", "-p §; -p§"),
    ("elasticsearch-users veracrypt steghide aescrypt security certutil 7zip useradd usermod adduser asterisk \
      freeswitch fs_cli twine conan", "-p §"),
    ("sqlcmd bcp ipmitool zip unzip mosquitto_pub mosquitto_sub", "-P §; -P§"),
    ("sqlplus impdp expdp imp exp sqlldr", "*/§"),
    ("isql tsql", "* * §; -P §"),
    ("db2", "using §"),
    ("rabbitmqctl", "add_user|change_password|set_user_password|authenticate_user * §"),
    ("influx anaconda doctl fly flyctl vercel codecov doppler consul", "-t §"),
    ("createuser", "-W §"),
    ("ldap kadmin", "-w §; -w§; -s §"),
    // HTTP and mail
    ("curl", "-*u *:§; -*u*:§; -*U*:§; -U *:§; --user *:§; --proxy-user *:§; -E|--cert *:§; -b|--cookie *=§"),
    ("wget etcdctl ntfy", "--user *:§; -U *:§; -u *:§"),
    ("http https xh ab siege jenkins-cli jenkins-cli.jar", "-a|-auth *:§; -A *:§"),
    ("transmission-remote nikto lwp-request", "-n|-id|-C *:§"),
    ("swaks sipp sendemail sendEmail", "-ap|-xp §"),
    // Remote hosts, networks and file transfer
    ("plink pscp psftp putty", "-pw §"),
    ("smbclient smbget rpcclient winexe net smbmap wmic", "-U *%§; -U*%§"),
    ("smbclient mount_smbfs", "//* §"),
    ("net net.exe", "user|use * §; use * * §"),
    ("lftp", "-u *,§; -u*,§"),
    ("curlftpfs", "*:§"),
    ("mc mcli minio-client", "alias set * * * §; config host add * * * §"),
    ("iwconfig", "key §"),
    ("nmcli", "wifi-sec.psk §"),
    ("networksetup", "-setairportnetwork * * §"),
    ("ss-local ss-redir ss-server ss-tunnel sslocal ssserver prefect gem nuget dotnet vt", "-k §"),
    ("radius-server tacacs-server tacacs isakmp message-digest-key ntp standby vrrp", "authentication|authentication-key|key|md5 §"),
    ("wpa-psk wpa2-psk", "ascii|hex §"),
    ("nssm nssm.exe", "ObjectName * §"),
    ("hponcfg racadm perccli storcli sshfs gobuster ffuf feroxbuster kerbrute", "-p §; -U *:§"),
    ("getTGT.py GetNPUsers.py psexec.py wmiexec.py secretsdump.py", "*/*:§"),
    ("bluetoothctl btmgmt", "pin|passkey §"),
    ("createUser", "SHA|MD5|SHA-224|SHA-256|SHA-384|SHA-512 §; AES|DES|AES192|AES256 §"),
    ("rootpw sshpw", "--plaintext|--iscrypted §"),
    ("addauth", "digest *:§"),
    ("chpasswd chpasswd:", "*:§"),
    ("wpa_passphrase", "* §"),
    ("wg", "private-key|preshared-key §"),
    ("snmp check_snmp", "-A|-X|-c|-C §"),
    ("expect", "send §"),
    // Commands of protocols
    ("AUTH", "$§"),
    ("LOGIN", "* $§"),
    ("SETUSER", ">§"),
    // Archives, keys and disks
    ("7z 7za 7zr 7zz rar unrar", "-p§; -hp§"),
    ("pdftk", "input_pw|user_pw|owner_pw §"),
    ("pdftotext pdfinfo pdftoppm", "-upw|-opw §"),
    ("keytool", "-new §"),
    ("rclone", "obscure §"),
    ("schtasks schtasks.exe", "/rp §"),
    ("qpdf", "--encrypt §; --encrypt * §"),
    ("openssl ccrypt", "passwd §; -k|-K|-psk|-hmac §"),
    ("ssh-keygen", "-N|-P §"),
    ("security", "-w §"),
    ("htpasswd", "-b*|-cb* * * §; -n* * §"),
    ("mkpasswd slappasswd grub-crypt", "-s §; -m * §"),
    ("signtool", "/p §"),
    ("hashcat john", "--session * §"),
    ("salt", "user.chpass|shadow.set_password * §"),
    ("ansible-vault", "encrypt_string §"),
    ("travis", "encrypt *=§"),
    // Accounts of services
    ("az docker podman nerdctl helm oc twilio expo", "login -p §; login -p§; login -p=§"),
    ("wandb vault cargo snyk ngrok bw lpass huggingface-cli hf tower", "login|auth|authtoken|add-authtoken|unlock|unwrap §"),
    ("bw lpass", "login * §"),
    ("vault", "operator unseal §; token lookup|renew|revoke §"),
    ("op", "signin --raw §"),
    ("chamber", "write * * §"),
    ("cloudflared", "service install §"),
    ("gitlab-runner", "-r §"),
    ("nuget", "setapikey|setApiKey §"),
    ("gh", "secret set -b|--body §; secret set -b§; --with-token §"),
    ("aws", "put-parameter --value §"),
    ("az", "secret set --value §"),
    ("kaggle", "-n key -v §"),
    ("poetry composer bundle", "config pypi-token.*|github-oauth.*|gitlab-token.* §; config http-basic.* * §"),
    ("bundle", "config * *:§"),
    ("pnpm npm yarn", "config set *_auth §"),
    ("dvc", "remote modify * password|secret_access_key|access_key_id|token §"),
    ("pulumi", "config set --secret * §; config set *Key|*Token|*Secret §"),
    ("filebrowser", "users add * §"),
    ("slmgr.vbs slmgr ospp.vbs", "/ipk §; /inpkey:§"),
    ("qemu-system-", "secret,*data=§"),
];

/// Programs with the arguments of another, whose name theirs begins with: `mysqldump` is like `mysql`.
const FAMILIES: &[&str] =
    &["mysql", "mariadb", "mongo", "redis-", "valkey-", "snmp", "ldap", "htpasswd", "qemu-system-"];

/// Parts of a command line for which all its words are examined, besides the names of programs.
const SIGNS: &[&str] = &["+ ", "$ ", " -p ", " -P ", " -W ", " -w ", "/p:", "/P:"];

struct Index {
    automaton: AhoCorasick,
    /// The words of the patterns of each program.
    patterns: HashMap<&'static str, Vec<Vec<&'static str>>>,
}

static INDEX: LazyLock<Index> = LazyLock::new(|| {
    let mut patterns: HashMap<_, Vec<_>> = HashMap::new();
    for (programs, rows) in TOOLS {
        for program in programs.split_ascii_whitespace() {
            let rows = rows.split("; ").map(|row| row.split(' ').collect());
            patterns.entry(program).or_default().extend(rows);
        }
    }
    let automaton = AhoCorasick::builder()
        .match_kind(MatchKind::LeftmostLongest)
        .build(SIGNS.iter().chain(patterns.keys()))
        .expect("valid names");
    Index { automaton, patterns }
});

/// Returns the positions in the text at which a command line that takes a secret may be.
pub fn mentions(text: &[u8]) -> impl Iterator<Item = usize> {
    let is_part = |b: u8| b.is_ascii_alphanumeric() || b"_-.".contains(&b);
    INDEX.automaton.find_iter(text).filter_map(move |found| {
        let before = found.start().checked_sub(1).map(|at| text[at]);
        let program = &text[found.range()];
        let is_found = if found.pattern().as_usize() < SIGNS.len() {
            // In the middle of a line, a plus is that of a sum.
            program != b"+ " || before.is_none_or(|before| b"\n+".contains(&before))
        } else {
            let is_family = FAMILIES.iter().any(|family| program.starts_with(family.as_bytes()));
            let rest = text[found.end()..].iter().take_while(|b| is_family && is_part(**b));
            let after = text.get(found.end() + rest.count());
            before.is_none_or(|before| !is_part(before))
                && after.is_some_and(|b| b" '\",\t".contains(b))
        };
        is_found.then_some(found.start())
    })
}

/// Returns the words after `program` that contain a secret, and where it starts in the word.
pub fn secrets(program: &[u8], words: &[&[u8]]) -> Vec<(usize, usize)> {
    let program = std::str::from_utf8(program).unwrap_or_default();
    let family = || FAMILIES.iter().find(|family| program.starts_with(**family));
    let patterns = INDEX.patterns.get(program).or_else(|| INDEX.patterns.get(*family()?));
    patterns.into_iter().flatten().filter_map(|pattern| find(pattern, words)).collect()
}

fn find(pattern: &[&str], words: &[&[u8]]) -> Option<(usize, usize)> {
    let (secret, elements) = pattern.split_last()?;
    let mut at = 0;
    for element in elements {
        let is_match = |word: &&[u8]| match *element {
            "*" => !is_flag(word),
            element => element.split('|').any(|kind| end_of_match(kind, word) == Some(word.len())),
        };
        at += words.get(at..)?.iter().position(is_match)? + 1;
    }
    let rest = words.get(at..)?;
    let head = secret.strip_suffix('§')?;
    let start = |word: &[u8]| {
        let start = end_of_match(head, word)?;
        is_secret(&word[start..]).then_some(start)
    };
    let (n, word) = if head == "$" {
        let last = rest.last().filter(|word| rest.len() <= 3 && is_argument(word))?;
        return Some((words.len() - 1, 0)).filter(|_| is_secret(last));
    } else if !head.is_empty() && !head.starts_with('*') {
        rest.iter().enumerate().find(|(_, word)| start(word).is_some())?
    } else if elements.last().is_some_and(|element| element.starts_with('-')) {
        (0, rest.first().filter(|word| !is_flag(word))?)
    } else {
        positional(rest, |word| head.is_empty() || start(word).is_some())?
    };
    Some((at + n, start(word)?))
}

/// Returns the next word that is not a flag, or a later one that looks like a secret, because a flag may take a value:
/// `wandb login --host lab.org 8f2c…`.
fn positional<'a>(
    words: &'a [&'a [u8]],
    accepts: impl Fn(&[u8]) -> bool,
) -> Option<(usize, &'a &'a [u8])> {
    let of_command = words.iter().take_while(|word| !belongs_to_sentence(word)).enumerate();
    let mut words = of_command.filter(|(_, word)| {
        !is_flag(word)
            && memchr::memmem::find(word, b"://").is_none()
            // `key 7 …` in the configuration of a router
            && !matches!(word, [digit] if digit.is_ascii_digit())
            && !is_setting(word)
            && accepts(word)
    });
    let is_token = |word: &[u8]| value::is_credential(word) || value::looks_secret(word);
    words.clone().find(|(_, word)| is_token(word)).or_else(|| words.next())
}

/// Returns the end of the parts of a pattern in a word: `-*u*:` in `-sSuana:…`. The last part ends the word if the
/// pattern does not end in `*`.
fn end_of_match(pattern: &str, word: &[u8]) -> Option<usize> {
    let mut parts = pattern.split('*').map(str::as_bytes);
    let first = parts.next()?;
    let mut end = word.starts_with(first).then_some(first.len())?;
    for part in parts {
        // An asterisk stands for at least one byte.
        let from = usize::from(!part.is_empty() && end == 0);
        end += from + memchr::memmem::find(word.get(end + from..)?, part)? + part.len();
    }
    Some(if pattern.ends_with('*') { word.len() } else { end })
}

fn is_secret(word: &[u8]) -> bool {
    // `hf auth login`, `vault token lookup`
    const COMMANDS: &str = "help list login logout lookup status switch token whoami";
    !word.is_empty()
        && !is_one_of(word, COMMANDS)
        && !harmless::is_reference(word)
        && !word.starts_with(b"//")
}

/// Returns true for an argument of a protocol's command, but not for a word of a sentence or a mechanism: `PLAIN`.
fn is_argument(word: &[u8]) -> bool {
    let is_setting =
        word.iter().rposition(|b| *b != b'=').is_some_and(|at| word[..at].contains(&b'='));
    !is_setting && !value::is_predicate(word) && !word.iter().all(u8::is_ascii_uppercase)
}

fn is_flag(word: &[u8]) -> bool {
    (word.starts_with(b"-") && word.len() > 1) || word.starts_with(b"/user:")
}

/// Returns true for `role=ml`.
fn is_setting(word: &[u8]) -> bool {
    let name = word.iter().take_while(|b| b.is_ascii_lowercase() || **b == b'_').count();
    name > 0 && word.get(name) == Some(&b'=') && word[name + 1..].iter().any(|b| *b != b'=')
}

/// Returns true for a word that continues a sentence about a command: "Use `wandb login` to …".
pub fn belongs_to_sentence(word: &[u8]) -> bool {
    const WORDS: &str = "and as for from if in instead is on option or the to via was with";
    is_one_of(word, WORDS)
}
