//! Finds the command started by `gputop run` to which a process belongs.
//!
//! For `gputop run bash train.sh`, the run record describes bash, but the process on the GPU is a Python child process.

use std::path::Path;

use gputop_model::{Pid, ProcessKey};
use gputop_peek::process::stat::with_ancestors;

/// gputop's process name. The kernel stores at most 15 bytes of the file name.
const GPUTOP_NAME: &[u8] = b"gputop";

/// Searches the readable ancestors of a process for the command started by `gputop run`. Returns `None` if the process
/// is that command itself.
pub fn command_of(proc_root: &Path, process: ProcessKey, parent: Pid) -> Option<ProcessKey> {
    let mut below = process;
    for (ancestor, name) in with_ancestors(proc_root, parent) {
        if ancestor.pid.0 == 1 {
            break;
        }
        if name == GPUTOP_NAME {
            return Some(below).filter(|command| *command != process);
        }
        below = ancestor;
    }
    None
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn key(pid: u32) -> ProcessKey {
        ProcessKey::new(pid, u64::from(pid) * 10)
    }

    #[test]
    fn finds_the_command_among_the_ancestors() {
        let root = tempfile::tempdir().expect("a directory");
        // PID 20 is a second gputop process of the same run.
        for (pid, name, parent) in [
            (10, "gputop", 1),
            (20, "gputop", 10),
            (30, "bash", 20),
            (40, "python", 30),
            (50, "bash", 1),
            (60, "python", 50),
        ] {
            let folder = root.path().join(pid.to_string());
            fs::create_dir(&folder).expect("a directory");
            let line = format!(
                "{pid} ({name}) S {parent} 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {} 9 25 1 1 1\n",
                pid * 10
            );
            fs::write(folder.join("stat"), line).expect("a file");
        }
        let of = |pid, parent| command_of(root.path(), key(pid), Pid(parent));
        assert_eq!(of(40, 30), Some(key(30)));
        assert_eq!(of(30, 20), None, "the process is the command itself");
        assert_eq!(of(60, 50), None);
        assert_eq!(of(70, 99), None, "the parent has exited");
    }
}
