//! The words on the command line that are hosts. A typo of a subcommand and the name of a file are told as such.

use std::path::Path;

use color_eyre::Result;
use color_eyre::eyre::bail;

use crate::model::spelling::nearest;
use crate::model::text::quoted;
use crate::source::remote::Target;

/// The one host to watch; `None` for this one.
///
/// # Errors
/// When a word is no host, or there are several.
pub fn target(words: &[String], subcommands: &[String]) -> Result<Option<Target>> {
    // Behind `--` everything is a host.
    let is_forced = std::env::args_os().any(|arg| arg == "--");
    let mut targets = Vec::new();
    for word in words {
        if let Some(why) = doubt(word, subcommands).filter(|_| !is_forced) {
            bail!(why);
        }
        targets.push(Target::parse(word)?);
    }
    if targets.len() > 1 {
        bail!(
            "this version watches one host at a time: `gputop {}`",
            words[0]
        );
    }
    Ok(targets.pop())
}

/// Why `word` is more likely something else than a host.
fn doubt(word: &str, subcommands: &[String]) -> Option<String> {
    if word.starts_with("via:") {
        return None;
    }
    let shown = quoted(word);
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
