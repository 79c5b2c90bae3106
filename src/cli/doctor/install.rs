//! Checks of the installation: which gputop program is running, how it was installed, and which one the shell finds.

use std::env;
use std::path::{Path, PathBuf};

use crate::cli::doctor::check::Check;

/// Paths of completion scripts, relative to the installation's share directory or the user's data directory.
const COMPLETIONS: [&str; 3] = [
    "bash-completion/completions/gputop",
    "zsh/site-functions/_gputop",
    "fish/vendor_completions.d/gputop.fish",
];
const MAN_PAGE: &str = "man/man1/gputop.1";

pub fn checks() -> Vec<Check> {
    let program = match env::current_exe().and_then(|path| path.canonicalize()) {
        Ok(program) => program,
        Err(error) => return vec![Check::new("program", false, error.to_string(), "")],
    };
    let source = source(&program);
    let found = format!("{}, {source}", program.display());
    let path = env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = env::split_paths(&path).collect();
    let shares = shares(&program);
    vec![
        Check::new("program", true, found, ""),
        check_path(&program, &folders),
        check_files(
            "completions",
            &shares,
            &COMPLETIONS,
            "gputop generate completions bash > ~/.local/share/bash-completion/completions/gputop",
        ),
        check_files(
            "man page",
            &shares,
            &[MAN_PAGE, "man/man1/gputop.1.gz"],
            "gputop generate man > ~/.local/share/man/man1/gputop.1",
        ),
    ]
}

/// Describes how the program was installed, judging by its path.
fn source(program: &Path) -> &'static str {
    let has = |name: &str| program.components().any(|part| part.as_os_str() == name);
    let is_beside = |name: &str| program.with_file_name(name).exists();
    if has(".cargo") {
        "installed by cargo"
    } else if has("target") && (has("release") || has("debug")) {
        "built by cargo, not installed"
    } else if is_beside("activate") || is_beside("pip") || has("pipx") || has("uv") {
        "installed by pip, pipx or uv"
    } else if Path::new("/var/lib/dpkg/info/gputop.list").exists()
        && program.starts_with("/usr/bin")
    {
        "installed from the Debian package"
    } else {
        "copied or unpacked by hand"
    }
}

fn check_path(program: &Path, folders: &[PathBuf]) -> Check {
    let first = folders
        .iter()
        .map(|folder| folder.join("gputop"))
        .find(|path| nix::unistd::access(path, nix::unistd::AccessFlags::X_OK).is_ok());
    let folder = program.parent().unwrap_or(Path::new("/")).display();
    let (works, found, fix) = match first {
        Some(first) if first.canonicalize().is_ok_and(|first| first == program) => {
            (true, "finds this program".to_owned(), String::new())
        }
        Some(first) => (
            false,
            format!("finds a different gputop first: {}", first.display()),
            format!("export PATH={folder}:$PATH"),
        ),
        None => {
            (false, "does not contain gputop".to_owned(), format!("export PATH={folder}:$PATH"))
        }
    };
    Check::new("PATH", works, found, &fix)
}

/// Returns the folders that may contain completions and man pages: folders beside the program, the user's folders, and
/// the system's.
fn shares(program: &Path) -> Vec<PathBuf> {
    let prefix = program.parent().and_then(Path::parent);
    let user = env::home_dir().map(|home| home.join(".local/share"));
    prefix
        .map(|prefix| prefix.join("share"))
        .into_iter()
        .chain(user)
        .chain(["/usr/local/share".into(), "/usr/share".into()])
        .collect()
}

fn check_files(name: &'static str, shares: &[PathBuf], files: &[&str], fix: &str) -> Check {
    let mut paths = files.iter().flat_map(|file| shares.iter().map(move |share| share.join(file)));
    match paths.find(|path| path.exists()) {
        Some(path) => Check::new(name, true, path.display().to_string(), ""),
        None => Check::new(name, false, "not found in the usual folders", fix),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_another_gputop_that_comes_first() {
        let folder = tempfile::tempdir().expect("a directory");
        let (first, own) = (folder.path().join("a"), folder.path().join("b"));
        for folder in [&first, &own] {
            std::fs::create_dir(folder).expect("a folder");
            std::fs::copy("/bin/true", folder.join("gputop")).expect("a program");
        }
        let program = own.join("gputop").canonicalize().expect("a path");
        let check = check_path(&program, &[first.clone(), own.clone()]);
        assert!(!check.works && check.found.contains("/a/gputop"), "{check:?}");
        assert!(check_path(&program, &[own, first]).works);
        assert!(!check_path(&program, &[]).works);
    }
}
