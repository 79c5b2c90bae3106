//! A word on the command line that is no subcommand: refused with the hint that helps, never taken for a host.

use std::path::Path;

use crate::model::spelling::nearest;

/// Why `word` is not taken.
pub fn refuse(word: &str, subcommands: &[String]) -> String {
    if Path::new(word).exists() && word.ends_with(".pickle") {
        return format!("`{word}` is a file; `gputop snapshot {word}` opens a memory snapshot");
    }
    if Path::new(word).exists() {
        return format!("`{word}` is a file; `gputop replay {word}` plays it if it is a recording");
    }
    match nearest(word, subcommands.iter().map(String::as_str)) {
        Some(name) => format!("there is no subcommand `{word}`; did you mean `{name}`?"),
        None => format!(
            "`{word}` would be a host, and this version watches only the one it runs on: `ssh -t {word} gputop`"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_is_never_a_host() {
        let names: Vec<String> = ["once", "record", "replay", "demo", "doctor"]
            .map(Into::into)
            .into();
        for (typo, meant) in [
            ("recrod", "record"),
            ("reply", "replay"),
            ("onc", "once"),
            ("docter", "doctor"),
        ] {
            assert_eq!(
                refuse(typo, &names),
                format!("there is no subcommand `{typo}`; did you mean `{meant}`?")
            );
        }
        assert!(refuse("gpu-node-17", &names).contains("ssh -t gpu-node-17 gputop"));
        assert!(refuse("/proc/self/stat", &names).contains("is a file"));
    }
}
