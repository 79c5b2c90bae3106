//! The command that `gputop run` watches, of which a process is a part: what its record is about.
//!
//! Of `gputop run bash train.sh` the record is about bash, and what allocates on the GPU is a Python below it.

use std::path::Path;

use super::stat::{StatBuffer, StatFile};
use crate::model::process::ProcessKey;
use crate::model::units::Pid;

/// As the kernel names it: at most 15 bytes of the file's name.
const RUN: &[u8] = b"gputop";
/// Launchers start launchers, but not without end.
const MAX_PARENTS: usize = 32;

/// Looked for among who began the process, up to where this user may not look; none where it is that command itself.
pub fn command_of(proc_root: &Path, process: ProcessKey, parent: Pid) -> Option<ProcessKey> {
    let (mut below, mut next) = (process, parent);
    let mut buffer = StatBuffer::new();
    for _ in 0..MAX_PARENTS {
        if next.0 <= 1 {
            return None;
        }
        let path = proc_root.join(next.to_string()).join("stat");
        let file = StatFile::open(&path).ok()?;
        let stat = file.read(&mut buffer).ok()?;
        if stat.name == RUN {
            return Some(below).filter(|command| *command != process);
        }
        below = ProcessKey {
            pid: next,
            start: stat.start,
        };
        next = stat.parent;
    }
    None
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::model::units::StartTicks;

    fn key(pid: u32) -> ProcessKey {
        ProcessKey {
            pid: Pid(pid),
            start: StartTicks(u64::from(pid) * 10),
        }
    }

    #[test]
    fn a_part_of_a_command_is_known_by_who_began_it() {
        let root = tempfile::tempdir().expect("a directory");
        // 20 is the keeper, another copy of gputop.
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
        assert_eq!(of(30, 20), None, "it is the command");
        assert_eq!(of(60, 50), None);
        assert_eq!(of(70, 99), None, "who has ended");
    }
}
