//! Finds the tensors and other objects that hold a process's GPU memory, and makes their names safe to show.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use gputop_model::redact;
use gputop_model::{Holders, Missing, Pid, ProcessKey, Reason};
use gputop_peek::cpython::limits::Options;
use gputop_peek::torch::Failure;
use gputop_peek::torch::holders::read_process;

/// Maximum size of the tensor list in a message. The encoded protocol line is at most three times as long.
const MAX_MESSAGE_BYTES: usize = 4 << 20;

/// Reads the memory holders of a running process once. Their names are redacted and escaped.
pub fn read(proc_root: &Path, pid: Pid, cancelled: &AtomicBool) -> Result<Holders, Failure> {
    let mut holders = read_process(proc_root, pid, &Options::default(), cancelled)?;
    redact::holders(&mut holders);
    Ok(holders)
}

/// Reads the memory holders of a process once, to show them on a screen. Truncates the list of tensors so that it fits
/// into a message.
pub fn read_for_screen(
    proc_root: &Path,
    key: ProcessKey,
    cancelled: &AtomicBool,
) -> Result<Holders, Missing> {
    let mut holders = read(proc_root, key.pid, cancelled).map_err(|failure| failure.missing())?;
    if holders.process != key {
        return Err(Missing::new(
            Reason::Gone,
            "the process has exited, and its PID now belongs to a different process",
        ));
    }
    holders.limit_tensors(MAX_MESSAGE_BYTES);
    Ok(holders)
}
