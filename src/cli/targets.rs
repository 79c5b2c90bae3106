//! Hosts on the command line. Misspelled subcommands and file names are detected and reported.

use std::path::{Path, PathBuf};

use color_eyre::Result;
use color_eyre::eyre::bail;

use super::settings::{Group, read_text};
use super::slurm;
use crate::model::nearest_name::nearest;
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
        if let Some(why) = likely_mistake(word, subcommands).filter(|_| !is_forced) {
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

/// Returns an error message if `word` is more likely a file or a misspelled subcommand than a host.
fn likely_mistake(word: &str, subcommands: &[String]) -> Option<String> {
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
    let name = nearest(word, subcommands.iter().map(String::as_str))?;
    Some(format!(
        "unknown subcommand `{shown}`; did you mean `{name}`? For a host of that name: `gputop -- {shown}`"
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
            let why = likely_mistake(typo, &names).unwrap_or_default();
            assert!(why.contains(&format!("did you mean `{meant}`?")), "{why}");
        }
        let file = likely_mistake("/proc/self/stat", &names).unwrap_or_default();
        assert!(file.contains("is a file"), "{file}");
        for host in ["gpu-node-17", "me@gpu3:2222", "via:recrod"] {
            assert_eq!(likely_mistake(host, &names), None);
        }
    }
}
