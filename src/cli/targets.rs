//! The words on the command line that are hosts. A typo of a subcommand and the name of a file are told as such.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use color_eyre::Result;
use color_eyre::eyre::bail;

use super::settings::Group;
use super::slurm;
use crate::model::nearest_name::nearest;
use crate::model::text::quoted;
use crate::source::remote::Target;

/// Which hosts are meant.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct HostArgs {
    /// Other hosts, as ssh takes them: [user@]host[:port]; `via:CMD`, a command that runs `gputop agent`; or a group of
    /// them that the configuration names
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
    /// Hosts from a file, one on each line
    #[arg(long, value_name = "FILE")]
    hosts: Option<PathBuf>,
    /// The nodes of a job of Slurm, each entered as a part of it: `srun --overlap`
    #[arg(long, value_name = "JOB")]
    slurm: Option<String>,
}

impl HostArgs {
    /// All of them; none for this one. A word near one of the `subcommands` is no host.
    ///
    /// # Errors
    /// When a word is no host, the file cannot be read, or the job has no nodes.
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
    // Behind `--` everything is a host.
    let is_forced = std::env::args_os().any(|arg| arg == "--");
    let (mut targets, mut told) = (Vec::new(), Vec::new());
    for word in words {
        let is_it = |group: &&Group| group.name == *word && !is_forced;
        if let Some(group) = groups.iter().find(is_it) {
            // Groups may overlap.
            group.hosts.iter().for_each(|host| add(&mut targets, host));
            continue;
        }
        if let Some(why) = doubt(word, subcommands).filter(|_| !is_forced) {
            bail!(why);
        }
        told.push(Target::parse(word)?);
        told.last().iter().for_each(|host| add(&mut targets, host));
    }
    if let Some(file) = file {
        told.extend(listed(file)?);
        told.iter().for_each(|host| add(&mut targets, host));
    }
    let mut known = Vec::new();
    for target in &told {
        if known.contains(&target) {
            bail!("`{}` is named twice", quoted(&target.name()));
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

/// More is no list of hosts.
const MAX_BYTES: u64 = 1 << 20;

/// One on each line; what follows a `#` is for people.
fn listed(file: &Path) -> Result<Vec<Target>> {
    let name = quoted(&file.to_string_lossy());
    let read = || -> std::io::Result<String> {
        let mut text = String::new();
        File::open(file)?
            .take(MAX_BYTES)
            .read_to_string(&mut text)?;
        Ok(text)
    };
    let text = match read() {
        Ok(text) => text,
        Err(error) => bail!("the list of hosts {name} cannot be read: {error}"),
    };
    let mut targets = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let word = match line.strip_prefix("via:") {
            // A command may have a `#` of its own.
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
        bail!("the list of hosts {name} names none: one on each line, as ssh takes it");
    }
    Ok(targets)
}

/// Why `word` is more likely something else than a host.
fn doubt(word: &str, subcommands: &[String]) -> Option<String> {
    if word.starts_with("via:") {
        return None;
    }
    let shown = quoted(word);
    if Path::new(word).exists() && word.ends_with(".pickle") {
        return Some(format!(
            "`{shown}` is a file; `gputop snapshot {shown}` opens a memory snapshot"
        ));
    }
    if Path::new(word).exists() {
        return Some(format!(
            "`{shown}` is a file; `gputop replay {shown}` plays it if it is a recording"
        ));
    }
    let name = nearest(word, subcommands.iter().map(String::as_str))?;
    Some(format!(
        "there is no subcommand `{shown}`; did you mean `{name}`? (a host of that name: `gputop -- {shown}`)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_or_a_file_is_doubted_and_a_host_is_not() {
        let names: Vec<String> = ["once", "record", "replay", "demo", "doctor"]
            .map(Into::into)
            .into();
        for (typo, meant) in [
            ("recrod", "record"),
            ("reply", "replay"),
            ("onc", "once"),
            ("docter", "doctor"),
        ] {
            let why = doubt(typo, &names).unwrap_or_default();
            assert!(why.contains(&format!("did you mean `{meant}`?")), "{why}");
        }
        let file = doubt("/proc/self/stat", &names).unwrap_or_default();
        assert!(file.contains("is a file"), "{file}");
        for host in ["gpu-node-17", "me@gpu3:2222", "via:recrod"] {
            assert_eq!(doubt(host, &names), None);
        }
    }
}
