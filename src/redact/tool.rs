//! Command lines whose secrets have no name: `mysql -p…`, `vault login …`, `curl -u ana:…`.

use std::collections::HashMap;
use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, MatchKind};

use super::value;

/// Programs, and the arguments in which they take a secret (`§`). `*` stands for any word or part of a word, and other
/// words may be between those of a pattern. After a flag, the secret is the next word; otherwise it is the next word
/// that is not a flag.
#[rustfmt::skip]
const TOOLS: &[(&[&str], &[&str])] = &[
    // Databases and brokers
    (&["mysql", "mariadb"], &["-p§", "password §"]),
    (&["redis-", "valkey-"], &["-a §", "auth|AUTH §"]),
    (&["mongo", "cqlsh", "cypher-shell"], &["-p §", "-p§"]),
    (&["sqlcmd", "bcp"], &["-P §", "-P§"]),
    (&["sqlplus", "impdp", "expdp", "imp", "exp", "sqlldr"], &["*/§"]),
    (&["isql", "tsql"], &["* * §", "-P §"]),
    (&["transmission-remote"], &["-n *:§"]),
    (&["db2"], &["using §"]),
    (&["neo4j-admin"], &["set-initial-password §"]),
    (&["rabbitmqctl"], &["add_user|change_password|set_user_password|authenticate_user * §"]),
    (&["mosquitto_pub", "mosquitto_sub"], &["-P §"]),
    (&["influx"], &["-t §", "-password §"]),
    (&["etcdctl"], &["--user *:§"]),
    (&["psql"], &["-W §"]),
    (&["elasticsearch-users"], &["-p §"]),
    // HTTP
    (&["curl"], &[
        "-*u *:§", "-u*:§", "-su*:§", "-sSu*:§", "-sku*:§", "-fsSu*:§", "-fsSLu*:§", "-U *:§", "-U*:§", "--user *:§", "--proxy-user *:§", "-b *=§", "-E *:§", "--cert *:§",
        "--cookie *=§",
    ]),
    (&["wget"], &["--user *:§", "-U *:§", "-u *:§"]),
    (&["http", "https", "xh", "ab", "siege"], &["-a *:§", "-A *:§"]),
    (&["ntfy"], &["-u *:§"]),
    (&["jenkins-cli", "jenkins-cli.jar"], &["-auth *:§"]),
    // Remote hosts and file transfer
    (&["sshpass"], &["-p §", "-p§"]),
    (&["plink", "pscp", "psftp", "putty"], &["-pw §"]),
    (&["rdesktop", "vncdo"], &["-p §", "-p§"]),
    (&["x11vnc"], &["-passwd §"]),
    (&["smbclient", "smbget", "rpcclient", "winexe", "net", "smbmap", "wmic"], &["-U *%§", "-U*%§"]),
    (&["net", "net.exe"], &["user * §", "use * §", "use * * §"]),
    (&["lftp"], &["-u *,§", "-u*,§"]),
    (&["curlftpfs"], &["*:§"]),
    (&["mc", "mcli", "minio-client"], &["alias set * * * §", "config host add * * * §"]),
    (&["iwconfig"], &["key §"]),
    (&["nmcli"], &["password §", "wifi-sec.psk §"]),
    (&["networksetup"], &["-setairportnetwork * * §"]),
    (&["ss-local", "ss-redir", "ss-server", "ss-tunnel", "sslocal", "ssserver"], &["-k §"]),
    (&["sipsak"], &["-a §"]),
    (&["radius-server", "tacacs-server", "tacacs", "isakmp", "message-digest-key", "ntp", "standby", "vrrp"], &["authentication|authentication-key|key|md5 §"]),
    (&["wpa-psk", "wpa2-psk"], &["ascii|hex §"]),
    (&["nssm", "nssm.exe"], &["ObjectName * §"]),
    (&["sipp"], &["-ap §"]),
    (&["nikto"], &["-id *:§"]),
    (&["hponcfg", "racadm", "perccli", "storcli", "sshfs", "gobuster", "ffuf", "feroxbuster", "kerbrute"], &["-p §", "-U *:§"]),
    (&["smbclient", "mount_smbfs"], &["//* §"]),
    (&["getTGT.py", "GetNPUsers.py", "psexec.py", "wmiexec.py", "secretsdump.py"], &["*/*:§"]),
    (&["bluetoothctl", "btmgmt"], &["pin|passkey §"]),
    (&["dconf", "gsettings"], &["set * vnc-password|password §"]),
    (&["createuser"], &["-W §"]),
    (&["asterisk", "freeswitch", "fs_cli"], &["-p §"]),
    (&["vncviewer", "vncserver", "tigervncserver"], &["-passwd §"]),
    (&["kinit", "kpasswd"], &["--password §"]),
    (&["mkpasswd", "slappasswd", "grub-crypt"], &["-s §", "-m * §"]),
    (&["createUser"], &["SHA|MD5|SHA-224|SHA-256|SHA-384|SHA-512 §", "AES|DES|AES192|AES256 §"]),
    (&["rootpw", "sshpw"], &["--plaintext|--iscrypted §"]),
    (&["addauth"], &["digest *:§"]),
    (&["chpasswd", "chpasswd:"], &["*:§"]),
    (&["wpa_passphrase"], &["* §"]),
    (&["wg"], &["private-key|preshared-key §"]),
    (&["snmp", "check_snmp"], &["-A §", "-X §", "-c §", "-C §"]),
    (&["ipmitool"], &["-P §", "-P§"]),
    (&["ldap", "kadmin"], &["-w §", "-w§", "-s §"]),
    (&["swaks"], &["-ap §"]),
    (&["sendemail", "sendEmail"], &["-xp §"]),
    (&["expect"], &["send §"]),
    // Archives, keys and disks
    (&["7z", "7za", "7zr", "7zz", "rar", "unrar"], &["-p§", "-hp§"]),
    (&["zip", "unzip"], &["-P §", "-P§"]),
    (&["pdftk"], &["input_pw|user_pw|owner_pw §"]),
    (&["pdftotext", "pdfinfo", "pdftoppm"], &["-upw §", "-opw §"]),
    (&["keytool"], &["-new §"]),
    (&["rclone"], &["obscure §"]),
    (&["lwp-request"], &["-C *:§"]),
    (&["schtasks", "schtasks.exe"], &["/rp §"]),
    (&["gitlab-runner"], &["-r §"]),
    (&["nuget"], &["setapikey|setApiKey §"]),
    (&["qpdf"], &["--encrypt §", "--encrypt * §"]),
    (&["openssl"], &["passwd §", "-k §", "-K §", "-psk §", "-hmac §"]),
    (&["ssh-keygen"], &["-N §", "-P §"]),
    (&["veracrypt", "steghide", "aescrypt", "security", "certutil", "7zip"], &["-p §"]),
    (&["security"], &["-w §"]),
    (&["ccrypt"], &["-K §"]),
    (&["ffmpeg", "ffplay"], &["-decryption_key §"]),
    (&["htpasswd"], &["-b* * * §", "-cb* * * §", "-n* * §"]),
    (&["useradd", "usermod", "adduser"], &["-p §"]),
    (&["signtool"], &["/p §"]),
    (&["hashcat", "john"], &["--session * §"]),
    (&["salt"], &["user.chpass|shadow.set_password * §"]),
    (&["ansible-vault"], &["encrypt_string §"]),
    (&["travis"], &["encrypt *=§"]),
    // Accounts of services
    (&["az", "docker", "podman", "nerdctl", "helm", "oc", "twilio", "expo"], &["login -p §", "login -p§", "login -p=§"]),
    (&["wandb", "vault", "cargo", "snyk", "ngrok", "bw", "lpass", "huggingface-cli", "hf", "tower"], &["login|auth|authtoken|add-authtoken|unlock|unwrap §"]),
    (&["bw", "lpass"], &["login * §"]),
    (&["vault"], &["operator unseal §", "token lookup|renew|revoke §"]),
    (&["op"], &["signin --raw §"]),
    (&["chamber"], &["write * * §"]),
    (&["cloudflared"], &["service install §"]),
    (&["anaconda", "doctl", "fly", "flyctl", "vercel", "codecov", "doppler", "consul"], &["-t §"]),
    (&["prefect", "gem", "nuget", "dotnet"], &["-k §"]),
    (&["hatch"], &["-a §"]),
    (&["twine", "conan"], &["-p §"]),
    (&["gh"], &["secret set -b|--body §", "secret set -b§", "--with-token §"]),
    (&["aws"], &["put-parameter --value §", "--secret-string §"]),
    (&["az"], &["secret set --value §"]),
    (&["kaggle"], &["-n key -v §"]),
    (&["poetry", "composer", "bundle"], &["config pypi-token.*|github-oauth.*|gitlab-token.* §", "config http-basic.* * §"]),
    (&["bundle"], &["config * *:§"]),
    (&["pnpm", "npm", "yarn"], &["config set *_auth*|*authToken|*AuthToken|*_password §"]),
    (&["dvc"], &["remote modify * password|secret_access_key|access_key_id|token §"]),
    (&["pulumi"], &["config set --secret * §", "config set *Key|*Token|*Secret §"]),
    (&["grafana-cli", "grafana"], &["reset-admin-password §"]),
    (&["filebrowser"], &["users add * §"]),
    (&["vt"], &["-k §"]),
    (&["slmgr.vbs", "slmgr", "ospp.vbs"], &["/ipk §", "/inpkey:§"]),
    (&["qemu-system-"], &["secret,*data=§"]),
    (&["kubeadm"], &["--token §", "--certificate-key §"]),
];

struct Index {
    automaton: AhoCorasick,
    /// The words of the patterns of each program.
    patterns: HashMap<&'static str, Vec<Vec<&'static str>>>,
}

/// Parts of a command line for which all its words are examined, besides the names of programs.
const SIGNS: &[&str] = &["+ ", "$ ", " -p ", " -P ", " -W ", " -w ", "/p:", "/P:"];

static INDEX: LazyLock<Index> = LazyLock::new(|| {
    let mut patterns: HashMap<_, Vec<_>> = HashMap::new();
    for (programs, rows) in TOOLS {
        let rows = || rows.iter().map(|row| row.split(' ').collect());
        programs.iter().for_each(|program| patterns.entry(*program).or_default().extend(rows()));
    }
    let automaton = AhoCorasick::builder()
        .match_kind(MatchKind::LeftmostLongest)
        .build(SIGNS.iter().chain(patterns.keys()))
        .expect("valid names");
    Index { automaton, patterns }
});

/// Programs with the arguments of another, whose name theirs begins with: `mysqldump` is like `mysql`.
const FAMILIES: &[&str] =
    &["mysql", "mariadb", "mongo", "redis-", "valkey-", "snmp", "ldap", "htpasswd", "qemu-system-"];

/// Returns the positions in the text at which a command line that takes a secret may be.
pub fn mentions(text: &[u8]) -> impl Iterator<Item = usize> {
    let is_part = |b: u8| b.is_ascii_alphanumeric() || b"_-.".contains(&b);
    INDEX.automaton.find_iter(text).filter_map(move |found| {
        let is_sign = found.pattern().as_usize() < SIGNS.len();
        // In the middle of a line, a plus is that of a sum.
        let is_sum = text[found.range()] == *b"+ "
            && found.start().checked_sub(1).is_some_and(|at| !b"\n+".contains(&text[at]));
        let program = &text[found.range()];
        let is_family = FAMILIES.iter().any(|family| program.starts_with(family.as_bytes()));
        let rest = if is_family {
            text[found.end()..].iter().take_while(|b| is_part(**b)).count()
        } else {
            0
        };
        let is_word = found.start().checked_sub(1).is_none_or(|at| !is_part(text[at]))
            && text.get(found.end() + rest).is_some_and(|b| b" '\",\t".contains(b));
        ((is_sign && !is_sum) || is_word).then_some(found.start())
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
    let mut at = 0;
    let mut is_after_flag = false;
    for element in pattern {
        let rest = words.get(at..)?;
        let Some(head) = element.strip_suffix('§') else {
            let is_any = *element == "*";
            let found = match is_any {
                true => rest.iter().position(|word| !is_flag(word))?,
                false => rest.iter().position(|word| matches(element, word))?,
            };
            at += found + 1;
            is_after_flag = element.starts_with('-');
            continue;
        };
        let (prefix, separator) = head.split_once('*').unwrap_or((head, ""));
        let start = |word: &[u8]| {
            let rest = word.strip_prefix(prefix.as_bytes())?;
            let skipped = match separator {
                "" => 0,
                separator => memchr::memmem::find(rest, separator.as_bytes())? + separator.len(),
            };
            let secret = &rest[skipped..];
            let has_user = separator.is_empty() || skipped > separator.len();
            // `hf auth login`, `vault token lookup`
            let is_command = matches!(
                secret,
                b"help"
                    | b"list"
                    | b"login"
                    | b"logout"
                    | b"lookup"
                    | b"status"
                    | b"switch"
                    | b"token"
                    | b"whoami"
            );
            let is_secret = has_user
                && !is_command
                && !secret.is_empty()
                && !value::is_reference(secret)
                && !secret.starts_with(b"//");
            is_secret.then_some(prefix.len() + skipped)
        };
        return match (prefix, is_after_flag) {
            ("", true) => {
                let word = rest.first().filter(|word| !is_flag(word))?;
                start(word).map(|start| (at, start))
            }
            ("", false) => {
                // A flag may take a value: `wandb login --host https://… 8f2c…`.
                let is_url = |word: &[u8]| memchr::memmem::find(word, b"://").is_some();
                let of_command = rest.iter().take_while(|word| !belongs_to_sentence(word));
                let mut positional = of_command.enumerate().filter(|(_, word)| {
                    !is_flag(word)
                        && !is_url(word)
                        // `key 7 …` in the configuration of a router
                        && !matches!(word, [digit] if digit.is_ascii_digit())
                        && !is_setting(word)
                        && (separator.is_empty() || start(word).is_some())
                });
                let token = positional
                    .clone()
                    .find(|(_, word)| value::is_credential(word) || value::looks_secret(word));
                let (n, word) = token.or_else(|| positional.next())?;
                start(word).map(|start| (at + n, start))
            }
            _ => rest.iter().enumerate().find_map(|(n, word)| Some((at + n, start(word)?))),
        };
    }
    None
}

/// Returns true if the word is one of the alternatives of an element: `login|auth`, `*Key|*Token`.
fn matches(element: &str, word: &[u8]) -> bool {
    element.split('|').any(|alternative| match alternative.split_once('*') {
        Some((prefix, suffix)) => {
            let middle = suffix.trim_end_matches('*');
            word.starts_with(prefix.as_bytes())
                && match suffix.ends_with('*') {
                    true => memchr::memmem::find(word, middle.as_bytes()).is_some(),
                    false => word.ends_with(suffix.as_bytes()),
                }
        }
        None => word == alternative.as_bytes(),
    })
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
    const WORDS: &[&[u8]] = &[
        b"and", b"as", b"for", b"from", b"if", b"in", b"instead", b"is", b"on", b"option", b"or",
        b"the", b"to", b"via", b"was", b"with",
    ];
    WORDS.contains(&word)
}
