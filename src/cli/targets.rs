//! Hosts on the command line. Reports misspelled subcommands and file names that were passed as hosts.

use std::net::ToSocketAddrs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use color_eyre::Result;
use color_eyre::eyre::bail;
use gputop_model::nearest_name::nearest;
use gputop_model::text::quoted;

use super::settings::{Group, read_text};
use super::slurm;
use crate::incident::with_timeout;
use crate::open_files::restore_in;
use crate::source::remote::Target;

/// Options that select hosts.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct HostArgs {
    /// Remote hosts: [user@]host[:port] for ssh, `via:CMD` for a command that runs `gputop agent`, or a group from the
    /// configuration
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
    /// Read hosts from a file, one per line
    #[arg(long, value_name = "FILE")]
    hosts: Option<PathBuf>,
    /// Connect to the nodes of a Slurm job with `srun --overlap`
    #[arg(long, value_name = "JOB")]
    slurm: Option<String>,
}

impl HostArgs {
    /// Returns all selected hosts. An empty list means this host. Fails if an argument resembles one of the
    /// `subcommands`.
    pub fn targets(&self, groups: &[Group], subcommands: &[&str]) -> Result<Vec<Target>> {
        let mut targets = named(&self.targets, self.hosts.as_deref(), groups, subcommands)?;
        if let Some(job) = &self.slurm {
            targets.extend(slurm::targets(job)?);
        }
        Ok(targets)
    }
}

fn named(
    words: &[String],
    file: Option<&Path>,
    groups: &[Group],
    subcommands: &[&str],
) -> Result<Vec<Target>> {
    // Treat every argument after `--` as a host.
    let is_forced = std::env::args_os().any(|arg| arg == "--");
    let (mut targets, mut explicit) = (Vec::new(), Vec::new());
    for word in words {
        if let Some(group) = groups.iter().find(|group| group.name == *word && !is_forced) {
            // Allow duplicates here, because host groups may overlap.
            group.hosts.iter().for_each(|host| add(&mut targets, host));
            continue;
        }
        if !is_forced && let Some(why) = likely_mistake(word, subcommands, is_known) {
            bail!(why);
        }
        explicit.push(Target::parse(word)?);
        let host = explicit.last();
        host.iter().for_each(|host| add(&mut targets, host));
    }
    if let Some(file) = file {
        explicit.extend(listed(file)?);
        explicit.iter().for_each(|host| add(&mut targets, host));
    }
    let mut known = Vec::new();
    for target in &explicit {
        if known.contains(&target) {
            bail!("host `{}` is listed twice; remove one", quoted(&target.name()));
        }
        known.push(target);
    }
    Ok(targets)
}

fn add(targets: &mut Vec<Target>, host: &Target) {
    if !targets.contains(host) {
        targets.push(host.clone());
    }
}

/// Reads hosts from a file, one per line. A `#` starts a comment.
fn listed(file: &Path) -> Result<Vec<Target>> {
    let name = quoted(&file.to_string_lossy());
    let text = read_text("the list of hosts", file)?;
    let mut targets = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let word = match line.strip_prefix("via:") {
            // Keep `#` in a `via:` command.
            Some(_) => line.trim(),
            None => line.split('#').next().unwrap_or_default().trim(),
        };
        if word.is_empty() {
            continue;
        }
        match Target::parse(word) {
            Ok(target) => targets.push(target),
            Err(error) => bail!("{name}:{number}: {error}"),
        }
    }
    if targets.is_empty() {
        bail!("no host in the list of hosts {name}; write one on each line as [user@]host[:port]");
    }
    Ok(targets)
}

const LOOKUP_TIMEOUT: Duration = Duration::from_secs(3);

/// Returns true if the host is in the ssh configuration, `known_hosts` or DNS, or `None` if the lookup timed out.
fn is_known(host: &str) -> Option<bool> {
    let host = host.to_owned();
    let look_up = move || {
        let mut ssh = Command::new("ssh");
        ssh.args(["-G", &host]).stdin(Stdio::null());
        let output = restore_in(&mut ssh).output();
        let output = output.map_or_else(|_| Vec::new(), |output| output.stdout);
        let known_hosts = match configured(&host, &String::from_utf8_lossy(&output)) {
            Configured::Address => return true,
            Configured::KnownHosts(files) => files,
        };
        known_hosts.iter().any(|file| is_listed(&host, file))
            || (host.as_str(), 22).to_socket_addrs().is_ok()
    };
    with_timeout(LOOKUP_TIMEOUT, look_up)
}

#[derive(Debug, PartialEq, Eq)]
enum Configured {
    /// The ssh configuration maps the host to another name, or uses a proxy.
    Address,
    /// `known_hosts` files to search for the host.
    KnownHosts(Vec<PathBuf>),
}

/// Parses the output of `ssh -G HOST`, which has one option and its value per line.
fn configured(host: &str, options: &str) -> Configured {
    let mut files = Vec::new();
    for (option, value) in options.lines().filter_map(|line| line.split_once(' ')) {
        match option {
            "hostname" if !value.eq_ignore_ascii_case(host) => return Configured::Address,
            "proxyjump" | "proxycommand" if value != "none" => return Configured::Address,
            "userknownhostsfile" | "globalknownhostsfile" => {
                files.extend(value.split_whitespace().map(PathBuf::from));
            }
            _ => {}
        }
    }
    Configured::KnownHosts(files)
}

/// Returns true if the `known_hosts` file lists the host, in plain text or hashed.
fn is_listed(host: &str, known_hosts: &Path) -> bool {
    let mut command = Command::new("ssh-keygen");
    command.arg("-F").arg(host).arg("-f").arg(known_hosts);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    known_hosts.exists() && restore_in(&mut command).status().is_ok_and(|status| status.success())
}

/// Words that other tools use for what gputop offers under another name.
const OTHER_WORDS: [(&str, &str); 10] = [
    ("list", "To list saved incidents: `gputop incidents`; GPUs and processes: `gputop once`"),
    ("kill", "To end a process, press x in the dashboard"),
    ("top", "To open the dashboard: `gputop`"),
    ("watch", "To open the dashboard: `gputop`"),
    ("ps", "To list GPUs and processes: `gputop once`"),
    ("status", "To list GPUs and processes: `gputop once`"),
    ("log", "To explain a log: `gputop explain FILE`"),
    ("logs", "To explain a log: `gputop explain FILE`"),
    ("theme", "To choose a theme, press A in the dashboard"),
    ("themes", "To choose a theme, press A in the dashboard"),
];

/// Returns an error message if `word` is more likely a file or a misspelled subcommand than a host. The parameter
/// `is_known` is the function that looks up a host, normally [`is_known`].
fn likely_mistake(
    word: &str,
    subcommands: &[&str],
    is_known: impl Fn(&str) -> Option<bool>,
) -> Option<String> {
    if word.starts_with("via:") {
        return None;
    }
    let shown = quoted(word);
    if Path::new(word).exists() && word.ends_with(".pickle") {
        return Some(format!(
            "`{shown}` is a file, not a host. To open a memory snapshot: `gputop snapshot {shown}`"
        ));
    }
    if Path::new(word).exists() {
        let advice = if word.ends_with(".zst") {
            format!("To play a recording: `gputop replay {shown}`")
        } else {
            format!("To explain a log: `gputop explain {shown}`")
        };
        let what = if Path::new(word).is_dir() { "directory" } else { "file" };
        return Some(format!("`{shown}` is a {what}, not a host. {advice}"));
    }
    // Accept a name with a user or a port, which can only be a host.
    if subcommands.is_empty() || word.contains(['@', ':']) {
        return None;
    }
    let is_known = is_known(word);
    let offered = OTHER_WORDS.iter().find(|(other, _)| *other == word);
    if let Some((_, advice)) = offered.filter(|_| is_known != Some(true)) {
        return Some(format!(
            "unknown subcommand `{shown}`. {advice}. For a host of that name: `gputop -- {shown}`"
        ));
    }
    match nearest(word, subcommands.iter().copied()) {
        _ if is_known == Some(true) => None,
        Some(name) => Some(format!(
            "unknown subcommand `{shown}`; did you mean `{name}`? For a host of that name: `gputop -- {shown}`"
        )),
        None if is_known == Some(false) => Some(format!(
            "`{shown}` is neither a subcommand nor a host known to ssh or DNS. `gputop --help` lists the subcommands; \
             `gputop -- {shown}` connects to a host of that name"
        )),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_misspelled_subcommands_and_files_among_hosts() {
        let names = ["once", "record", "replay", "demo", "doctor"];
        for (typo, meant) in
            [("recrod", "record"), ("reply", "replay"), ("onc", "once"), ("docter", "doctor")]
        {
            for known in [None, Some(false)] {
                let why = likely_mistake(typo, &names, |_| known).unwrap_or_default();
                assert!(why.contains(&format!("did you mean `{meant}`?")), "{why}");
            }
            assert_eq!(likely_mistake(typo, &names, |_| Some(true)), None);
        }
        let file = likely_mistake("/proc/self/stat", &names, |_| None).unwrap_or_default();
        assert!(file.contains("is a file"), "{file}");
        for host in ["gpu-node-17", "me@gpu3:2222", "via:recrod"] {
            assert_eq!(likely_mistake(host, &names, |_| None), None);
            assert_eq!(likely_mistake(host, &names, |_| Some(true)), None);
        }
        for (word, advice) in [
            ("kill", "To end a process, press x in the dashboard"),
            ("themes", "press A in the dashboard"),
            ("ps", "`gputop once`"),
            ("gpu-node-17", "is neither a subcommand nor a host"),
        ] {
            let why = likely_mistake(word, &names, |_| Some(false)).unwrap_or_default();
            assert!(why.contains(advice), "{why}");
            assert_eq!(likely_mistake(word, &names, |_| Some(true)), None);
            assert_eq!(likely_mistake(word, &[], |_| Some(false)), None);
        }
    }

    #[test]
    fn the_ssh_configuration_knows_aliases_and_proxies() {
        for (options, expected) in [
            ("user me\nhostname 10.0.0.7\n", Configured::Address),
            ("hostname kill\nproxyjump bastion\n", Configured::Address),
            (
                "hostname kill\nproxycommand none\nuserknownhostsfile /a /b\n",
                Configured::KnownHosts(vec!["/a".into(), "/b".into()]),
            ),
        ] {
            assert_eq!(configured("kill", options), expected, "{options}");
        }
        let folder = tempfile::tempdir().expect("a directory");
        let file = folder.path().join("known_hosts");
        let key =
            "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdXGSCQqMn0hpUf1q2Z1bT0yC5oPNcg9Zw2V6b3gHnJ";
        std::fs::write(&file, format!("gpu5,10.0.0.5 {key}\n")).expect("a file");
        if Command::new("ssh-keygen").arg("-?").output().is_ok() {
            assert!(is_listed("gpu5", &file) && !is_listed("kill", &file));
        }
    }
}
