//! Reads the function around the failing line from the user's file, as evidence. Only regular files of this user are
//! read, and only if they still contain the line that the traceback printed. Secrets are removed, because saved incidents
//! quote the lines.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gputop_explain::LogFindings;
use gputop_explain::traceback::TracebackFrame;
use gputop_model::redact;

use super::timeout::with_timeout;
use crate::user_files;

/// Maximum number of source files to read.
const MAX_FILES: usize = 32;
const MAX_FILE_BYTES: u64 = 2 << 20;
/// Maximum number of source lines shown before and after the failing one.
const MAX_BEFORE: usize = 60;
const MAX_AFTER: usize = 4;

/// Maximum time for reading the files. One of them may be on a file system that does not respond.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Adds source code to the user's innermost frame in each traceback.
pub fn add(logs: &mut [LogFindings]) {
    let mut frames = Vec::new();
    let mut wanted = Vec::new();
    for log in logs {
        let folder = Path::new(&log.file).parent().map(Path::to_owned);
        let of_errors = log.sightings.iter_mut().map(|sighting| &mut sighting.frames);
        let plain = log.tracebacks.iter_mut().map(|traceback| &mut traceback.frames);
        for all in of_errors.chain(plain) {
            if let Some(frame) = all.iter_mut().rev().find(|frame| frame.is_users()) {
                wanted.push((frame.clone(), folder.clone()));
                frames.push(frame);
            }
        }
    }
    // Each attempt on a file system that does not respond leaves a thread behind, so do not try again.
    static TIMED_OUT: AtomicBool = AtomicBool::new(false);
    if wanted.is_empty() || TIMED_OUT.load(Ordering::Relaxed) {
        return;
    }
    let read = with_timeout(TIMEOUT, move || {
        let mut files = HashMap::new();
        let read = |(frame, folder): &(TracebackFrame, Option<PathBuf>)| {
            function(frame, folder.as_deref(), &mut files)
        };
        wanted.iter().map(read).collect::<Vec<_>>()
    });
    if read.is_none() {
        TIMED_OUT.store(true, Ordering::Relaxed);
    }
    for (frame, source) in frames.into_iter().zip(read.into_iter().flatten()) {
        frame.source = source;
    }
}

fn function(
    frame: &TracebackFrame,
    folder: Option<&Path>,
    files: &mut HashMap<PathBuf, Option<String>>,
) -> Option<Arc<str>> {
    let code = frame.code.as_deref()?.trim();
    let named = Path::new(&frame.file);
    // Also search the log's directory, because the program may have been started there.
    let beside = folder.filter(|_| named.is_relative()).map(|f| f.join(named));
    [Some(named.to_owned()), beside].into_iter().flatten().find_map(|path| {
        if !files.contains_key(&path) && files.len() >= MAX_FILES {
            return None;
        }
        let read = |path: &PathBuf| {
            let bytes = user_files::read(path, MAX_FILE_BYTES).ok()?;
            String::from_utf8(redact::text(&bytes)).ok()
        };
        let text = files.entry(path.clone()).or_insert_with(|| read(&path));
        excerpt(text.as_deref()?, frame.line, code)
    })
}

/// Returns the source lines from the start of the function to just after line `number`, if that line is `code`.
fn excerpt(text: &str, number: u32, code: &str) -> Option<Arc<str>> {
    let lines: Vec<&str> = text.lines().collect();
    let at = usize::try_from(number).ok()?.checked_sub(1)?;
    let failing = lines.get(at)?;
    if code.is_empty() || failing.trim() != code {
        return None;
    }
    let indent = |line: &str| line.len() - line.trim_start().len();
    let is_head = |line: &&str| {
        let text = line.trim_start();
        (text.starts_with("def ") || text.starts_with("async def "))
            && indent(line) < indent(failing)
    };
    let earliest = at.saturating_sub(MAX_BEFORE);
    let mut first = (earliest..at).rev().find(|&n| is_head(&lines[n])).unwrap_or(earliest);
    while first > earliest && lines[first - 1].trim_start().starts_with('@') {
        first -= 1;
    }
    let last = (at + MAX_AFTER).min(lines.len() - 1);
    Some(lines[first..=last].join("\n").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "import torch\n\n@torch.no_grad()\ndef evaluate(net):\n    for x in data:\n        outs.append(net(x))\n    return outs\n";

    #[test]
    fn returns_the_function_if_the_line_is_unchanged() {
        let source = excerpt(FILE, 6, "outs.append(net(x))").expect("the line is unchanged");
        assert!(source.starts_with("@torch.no_grad()"), "{source}");
        assert!(source.ends_with("return outs"), "{source}");
        assert_eq!(excerpt(FILE, 6, "outs.append(net(y))"), None);
        assert_eq!(excerpt(FILE, 600, "x"), None);
    }

    #[test]
    fn reads_only_regular_files_of_this_user() {
        let folder = tempfile::tempdir().expect("a directory");
        let file = folder.path().join("a.py");
        std::fs::write(&file, FILE).expect("a file");
        let link = folder.path().join("link.py");
        std::os::unix::fs::symlink(&file, &link).expect("a link");
        let fifo = folder.path().join("fifo.py");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
        let read = |path: &Path| {
            let frame = TracebackFrame {
                file: path.display().to_string(),
                line: 6,
                function: "evaluate".to_owned(),
                code: Some("outs.append(net(x))".to_owned()),
                source: None,
            };
            function(&frame, None, &mut HashMap::new()).is_some()
        };
        assert!(read(&file));
        assert!(!read(&link) && !read(&fifo) && !read(Path::new("/dev/zero")));
    }
}
