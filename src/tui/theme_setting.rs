//! Saves the theme in the configuration file. All other lines of the file, including comments, are left unchanged.

use std::fs;
use std::io;
use std::path::Path;

use gputop_model::text::visible;

use crate::user_files::{create, own_folder, replace};

/// The theme's key in the configuration file.
const KEY: &str = "theme";
/// Maximum size of a configuration file, the same as the limit for reading it.
const MAX_BYTES: usize = 1 << 20;

/// Saves the theme and returns a message for the user.
pub fn save(config: &Path, theme: &str) -> String {
    let shown = visible(config.as_os_str().as_encoded_bytes(), 80);
    match write(config, theme) {
        Ok(()) => format!("theme {theme} saved in {shown}"),
        Err(error) => format!("cannot save the theme in {shown}: {error}"),
    }
}

fn write(config: &Path, theme: &str) -> io::Result<()> {
    // Write to the target of a symbolic link, for example in a dotfiles repository, so that the link is preserved.
    let path = match fs::canonicalize(config) {
        Ok(path) => path,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            config.parent().map_or(Ok(()), own_folder)?;
            return create(config, with_theme("", theme)?.as_bytes());
        }
        Err(error) => return Err(error),
    };
    let text = fs::read_to_string(&path)?;
    if text.len() > MAX_BYTES {
        return Err(io::Error::other("the file is too large"));
    }
    replace(&path, with_theme(&text, theme)?.as_bytes())
}

/// Returns the configuration text with this theme set. Fails if the result would not be valid TOML with that theme.
fn with_theme(text: &str, theme: &str) -> io::Result<String> {
    let setting = format!("{KEY} = \"{theme}\"");
    let is_table = |line: &&str| line.trim_start().starts_with('[');
    let is_theme = |line: &str| {
        let key = line.split_once('=').map(|(key, _)| key.trim());
        key == Some(KEY)
    };
    let lines: Vec<&str> = text.lines().collect();
    let top = lines.iter().position(is_table).unwrap_or(lines.len());
    let mut changed: Vec<&str> = lines.clone();
    match lines[..top].iter().position(|line| is_theme(line)) {
        Some(at) => changed[at] = &setting,
        // Insert the key before the first table, because a key below a table heading belongs to that table.
        None => changed.insert(0, &setting),
    }
    let changed = changed.join("\n") + "\n";
    let parsed: Result<toml::Table, _> = toml::from_str(&changed);
    let is_valid =
        parsed.is_ok_and(|table| table.get(KEY).and_then(toml::Value::as_str) == Some(theme));
    is_valid
        .then_some(changed)
        .ok_or_else(|| io::Error::other("the file is not valid; `gputop config check` shows why"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_only_the_line_of_the_theme() {
        let with = |text| with_theme(text, "light").expect("a configuration");
        assert_eq!(with(""), "theme = \"light\"\n");
        assert_eq!(
            with("# mine\ninterval = \"2s\"\ntheme = \"dark\" # old\n\n[keys]\nsort = \"o\"\n"),
            "# mine\ninterval = \"2s\"\ntheme = \"light\"\n\n[keys]\nsort = \"o\"\n"
        );
        // In this table, `theme` is the name of an action.
        assert_eq!(with("[keys]\ntheme = \"F3\"\n"), "theme = \"light\"\n[keys]\ntheme = \"F3\"\n");
        assert!(with_theme("interval =", "light").is_err());
    }

    #[test]
    fn saves_through_a_link_and_creates_a_missing_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let (real, link) = (folder.path().join("real.toml"), folder.path().join("config.toml"));
        fs::write(&real, "mouse = false\n").expect("a file");
        std::os::unix::fs::symlink(&real, &link).expect("a link");
        assert!(save(&link, "light").starts_with("theme light saved in "));
        assert_eq!(
            fs::read_to_string(&real).expect("a file"),
            "theme = \"light\"\nmouse = false\n"
        );
        assert!(link.is_symlink());
        let new = folder.path().join("gputop/config.toml");
        save(&new, "dark");
        assert_eq!(fs::read_to_string(new).expect("a file"), "theme = \"dark\"\n");
    }
}
