//! A word on the command line that is no subcommand: refused with the hint that helps, never taken for a host.

use std::path::Path;

/// Why `word` is not taken.
pub fn refuse(word: &str, subcommands: &[String]) -> String {
    if Path::new(word).exists() {
        return format!("`{word}` is a file; `gputop replay {word}` plays it if it is a recording");
    }
    let near = subcommands
        .iter()
        .map(|name| (distance(word, name), name))
        .min();
    match near {
        Some((d, name)) if d <= name.len() / 3 + 1 => {
            format!("there is no subcommand `{word}`; did you mean `{name}`?")
        }
        _ => format!(
            "`{word}` would be a host, and this version watches only the one it runs on: `ssh -t {word} gputop`"
        ),
    }
}

/// How many letters must be added, taken away or changed to make one word of the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let cost = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = cost.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
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
