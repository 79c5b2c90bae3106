//! Finds processes of the command that have the terminal itself open. They read keys there, even if they set modes on
//! the stream they write to (a full-screen program that opens `/dev/tty`).

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::libc::{O_ACCMODE, O_WRONLY};
use nix::sys::stat::{fstat, makedev};

/// Maximum number of processes per command, and of open files per process, that are checked.
const MAX_PROCESSES: usize = 64;
const MAX_FILES: usize = 1024;

/// Returns true if the process or a descendant could read `terminal`. A process that cannot be inspected counts as
/// unable.
pub(super) fn has_reader(pid: u32, terminal: impl AsFd) -> bool {
    let Ok(status) = fstat(terminal) else {
        return false;
    };
    let wanted = [makedev(5, 0), status.st_rdev];
    let mut family = vec![pid];
    let mut next = 0;
    while let Some(&pid) = family.get(next) {
        let process = PathBuf::from(format!("/proc/{pid}"));
        if reads(&process, wanted) {
            return true;
        }
        next += 1;
        family.extend(children(&process));
        family.truncate(MAX_PROCESSES);
    }
    false
}

fn reads(process: &Path, wanted: [u64; 2]) -> bool {
    let files = fs::read_dir(process.join("fd")).into_iter().flatten();
    let mut files = files.flatten().take(MAX_FILES);
    files.any(|file| {
        let is_terminal = fs::metadata(file.path()).is_ok_and(|file| wanted.contains(&file.rdev()));
        is_terminal && !is_only_written(&process.join("fdinfo").join(file.file_name()))
    })
}

/// `flags: 0100001`, in octal.
fn is_only_written(info: &Path) -> bool {
    let text = fs::read_to_string(info).unwrap_or_default();
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| flags & O_ACCMODE == O_WRONLY)
}

/// Returns the child processes of all threads.
fn children(process: &Path) -> Vec<u32> {
    let threads = fs::read_dir(process.join("task")).into_iter().flatten();
    let lists = threads
        .flatten()
        .take(MAX_PROCESSES)
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let all: Vec<u32> = lists
        .flat_map(|list| {
            let pids = list.split_whitespace().filter_map(|pid| pid.parse().ok());
            pids.collect::<Vec<_>>()
        })
        .collect();
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::{FcntlArg, FdFlag, fcntl};
    use nix::pty::openpty;
    use std::process::{Command, Stdio};

    #[test]
    fn finds_a_grandchild_with_the_terminal_open_for_reading() {
        let pty = openpty(None, None).expect("a pty");
        for side in [&pty.master, &pty.slave] {
            fcntl(side, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).expect("close-on-exec is set");
        }
        let started = |script: &str, output: bool| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).stdin(Stdio::piped());
            let slave = pty.slave.try_clone().expect("the slave");
            if output {
                // Open for reading and writing, as a shell passes it on.
                command.stderr(slave);
            }
            command.stdout(Stdio::piped()).spawn().expect("a shell")
        };
        for (output, found) in [(true, true), (false, false)] {
            let mut child = started("sh -c 'echo; read x'; true", output);
            let mut line = [0; 1];
            let stdout = child.stdout.as_mut().expect("a pipe");
            std::io::Read::read_exact(stdout, &mut line).expect("a line");
            assert_eq!(has_reader(child.id(), &pty.slave), found);
            child.kill().expect("it runs");
            child.wait().expect("it ends");
        }
    }
}
