//! Reads hosts from `~/.ssh/config` for completions: `Host` lines without patterns, also in included files.
//!
//! Reads only one level of includes and limits the input size, because the user is waiting for the completion.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use regex::Regex;

use crate::source::remote::Target;

const MAX_BYTES: u64 = 1 << 20;
const MAX_FILES: usize = 64;
const MAX_HOSTS: usize = 2_000;

/// Returns the hosts in the ssh configuration of this home directory, without duplicates.
pub fn hosts(home: &Path) -> Vec<String> {
    let folder = home.join(".ssh");
    let config = text(&folder.join("config"));
    let mut texts = Vec::new();
    for line in lines(&config).filter(|line| line.is("include")) {
        let mut files: Vec<PathBuf> = Vec::new();
        for word in &line.words {
            files.extend(matching(&absolute(word, home, &folder)));
        }
        let remaining = MAX_FILES - texts.len();
        texts.extend(files.iter().take(remaining).map(|file| text(file)));
    }
    let mut hosts = Vec::new();
    for text in [config].iter().chain(&texts) {
        for host in lines(text).filter(|line| line.is("host")).flat_map(|line| line.words) {
            // Skip patterns, and names that are unsafe in a shell.
            let is_host = !host.contains(['*', '?', '!']) && Target::parse(&host).is_ok();
            if is_host && hosts.len() < MAX_HOSTS && !hosts.contains(&host) {
                hosts.push(host);
            }
        }
    }
    hosts
}

/// Returns the readable part of a regular file, or an empty string if nothing is readable.
fn text(path: &Path) -> String {
    let mut bytes = Vec::new();
    if fs::metadata(path).is_ok_and(|meta| meta.is_file())
        && let Ok(file) = File::open(path)
    {
        // If reading fails, keep the text that was read before the error.
        let _ = file.take(MAX_BYTES).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Parsed line of an ssh configuration: `Host gpu1 "gpu2"`, or `Host=gpu1`.
struct ConfigLine {
    keyword: String,
    words: Vec<String>,
}

impl ConfigLine {
    fn is(&self, keyword: &str) -> bool {
        self.keyword.eq_ignore_ascii_case(keyword)
    }
}

fn lines(text: &str) -> impl Iterator<Item = ConfigLine> {
    text.lines().filter_map(|line| {
        let (keyword, rest) = line.trim().split_once(|c: char| c.is_whitespace() || c == '=')?;
        let words = rest.trim_start_matches(|c: char| c.is_whitespace() || c == '=');
        Some(ConfigLine {
            keyword: keyword.to_owned(),
            words: words
                .split_whitespace()
                .take_while(|word| !word.starts_with('#'))
                .map(|word| word.trim_matches('"').to_owned())
                .collect(),
        })
    })
}

/// Resolves the path of an included file as ssh does: a path after `~/` is relative to the home directory, any other
/// path is relative to `~/.ssh`.
fn absolute(word: &str, home: &Path, folder: &Path) -> PathBuf {
    match word.strip_prefix("~/") {
        Some(rest) => home.join(rest),
        None => folder.join(word),
    }
}

/// Returns the sorted files that match a path. The last component may contain `*` and `?`.
fn matching(path: &Path) -> Vec<PathBuf> {
    let (Some(folder), Some(pattern)) = (path.parent(), path.file_name()) else {
        return Vec::new();
    };
    let pattern = pattern.to_string_lossy();
    if !pattern.contains(['*', '?']) {
        return vec![path.to_owned()];
    }
    let regex = regex::escape(&pattern).replace(r"\*", ".*").replace(r"\?", ".");
    let Ok(regex) = Regex::new(&format!("^(?s:{regex})$")) else { return Vec::new() };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries
        .filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            !name.starts_with('.') && regex.is_match(&name)
        })
        .map(|entry| entry.path())
        .collect();
    files.sort_unstable();
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home(files: &[(&str, &str)]) -> tempfile::TempDir {
        let home = tempfile::tempdir().expect("a directory");
        for (name, text) in files {
            let path = home.path().join(name);
            fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
            fs::write(path, text).expect("a file");
        }
        home
    }

    #[test]
    fn lists_named_hosts_also_from_included_files() {
        let config = "# mine\nHost gpu1 gpu2 *.lab !gpu9 # old\n User me\nhost=\"gpu3\"\nInclude more ~/conf/*.conf\n\
                      Match host gpu7\nHost $(id) a;b gpu1\nHost *\n";
        let home = home(&[
            (".ssh/config", config),
            (".ssh/more", "Host inner\nInclude deeper\n"),
            (".ssh/deeper", "Host too-deep\n"),
            ("conf/b.conf", "Host b\n"),
            ("conf/a.conf", "Host a\n"),
            ("conf/.c.conf", "Host hidden\n"),
            ("conf/a.txt", "Host other\n"),
            ("conf/a.conf.old", "Host old\n"),
        ]);
        assert_eq!(hosts(home.path()), ["gpu1", "gpu2", "gpu3", "inner", "a", "b"]);
        assert!(hosts(Path::new("/nowhere")).is_empty());
    }

    #[test]
    fn skips_pipes_and_limits_the_number_of_hosts() {
        let many: String = (0..MAX_HOSTS * 2).map(|n| format!("Host h{n}\n")).collect();
        let home = home(&[(".ssh/config", &format!("Include pipe\n{many}"))]);
        let pipe = home.path().join(".ssh/pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        assert_eq!(hosts(home.path()).len(), MAX_HOSTS);
    }
}
