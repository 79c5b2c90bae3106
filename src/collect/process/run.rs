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
const MOST_PARENTS: usize = 32;

/// Looked for among who began the process, up to where this user may not look; none where it is that command itself.
pub fn command_of(proc_root: &Path, process: ProcessKey, parent: Pid) -> Option<ProcessKey> {
    let (mut below, mut next) = (process, parent);
    let mut buffer = StatBuffer::new();
    for _ in 0..MOST_PARENTS {
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
