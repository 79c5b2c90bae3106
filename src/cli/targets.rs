//! Hosts on the command line. Misspelled subcommands and file names are detected and reported.

use std::net::ToSocketAddrs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use color_eyre::Result;
use color_eyre::eyre::bail;

use super::settings::{Group, read_text};
use super::{slurm, ssh_config};
use crate::incident::with_timeout;
use crate::model::nearest_name::{instead_of, nearest};
use crate::model::text::quoted;
use crate::source::remote::Target;

/// Options that select hosts.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct HostArgs {
    /// Remote hosts: [user@]host[:port] for ssh, `via:CMD` for a command that runs `gputop agent`, or a group from the
    /// configuration
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
    /// Read hosts from a file, one on each line
    #[arg(long, value_name = "FILE")]
    hosts: Option<PathBuf>,
    /// Use the nodes of a Slurm job, connected with `srun --overlap`
    #[arg(long, value_name = "JOB")]
    slurm: Option<String>,
}

impl HostArgs {
    /// Returns all selected hosts, or an empty list for this host. An argument similar to one of the `subcommands` is an
    /// error.
    pub fn targets(&self, groups: &[Group], subcommands: &[String]) -> Result<Vec<Target>> {
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
    subcommands: &[String],
) -> Result<Vec<Target>> {
    // After `--` every argument is a host.
    let is_forced = std::env::args_os().any(|arg| arg == "--");
    let (mut targets, mut explicit) = (Vec::new(), Vec::new());
    for word in words {
        let is_group = |group: &&Group| group.name == *word && !is_forced;
        if let Some(group) = groups.iter().find(is_group) {
            // Groups may overlap.
            group.hosts.iter().for_each(|host| add(&mut targets, host));
            continue;
        }
        if !is_forced && let Some(why) = likely_mistake(word, subcommands, has_address) {
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
            bail!(
                "host `{}` is listed twice; remove one",
                quoted(&target.name())
            );
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

/// Reads hosts from a file, one on each line. A `#` begins a comment.
fn listed(file: &Path) -> Result<Vec<Target>> {
    let name = quoted(&file.to_string_lossy());
    let text = read_text("the list of hosts", file)?;
    let mut targets = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let word = match line.strip_prefix("via:") {
            // A command may contain `#`.
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

/// Maximum time to look up a host name.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(3);

/// Returns true if ssh or DNS knows the host, or `None` if DNS does not answer in time.
fn has_address(host: &str) -> Option<bool> {
    let home = std::env::var_os("HOME").unwrap_or_default();
    if ssh_config::is_known(home.as_ref(), host) {
        return Some(true);
    }
    let host = host.to_owned();
    with_timeout(LOOKUP_TIMEOUT, move || {
        (host.as_str(), 22).to_socket_addrs().is_ok()
    })
}

/// Returns an error message if `word` is more likely a file or a misspelled subcommand than a host. `has_address` is as
/// [`has_address`].
fn likely_mistake(
    word: &str,
    subcommands: &[String],
    has_address: impl Fn(&str) -> Option<bool>,
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
        return Some(format!(
            "`{shown}` is a file, not a host. To play a recording: `gputop replay {shown}`"
        ));
    }
    // A user or a port makes it a host.
    if subcommands.is_empty() || word.contains(['@', ':']) {
        return None;
    }
    let is_known = has_address(word);
    let names = || subcommands.iter().map(String::as_str);
    let what = match nearest(word, names()) {
        _ if is_known == Some(true) => return None,
        Some(name) => format!("unknown subcommand `{shown}`; did you mean `{name}`?"),
        None if is_known == Some(false) => format!(
            "`{shown}` is neither a subcommand nor a host known to ssh or DNS; {}.",
            instead_of(word, names())
        ),
        None => return None,
    };
    Some(format!(
        "{what} For a host of that name: `gputop -- {shown}`"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_misspelled_subcommands_and_files_among_hosts() {
        let names: Vec<String> = ["once", "record", "replay", "demo", "doctor"]
            .map(Into::into)
            .into();
        for (typo, meant) in [
            ("recrod", "record"),
            ("reply", "replay"),
            ("onc", "once"),
            ("docter", "doctor"),
        ] {
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
        for word in ["kill", "top", "themes"] {
            let why = likely_mistake(word, &names, |_| Some(false)).unwrap_or_default();
            let expected = "expected one of once, record, replay, demo, doctor. For a host";
            assert!(why.contains(expected), "{why}");
            assert_eq!(likely_mistake(word, &[], |_| Some(false)), None);
        }
    }
}
