//! `/proc/PID/statm`: how large an address space is, the cheapest thing the kernel tells of it.
//!
//! `3181 402 371 9 0 113 0`: seven counts of pages, the first is everything that is mapped. Anybody may read it, of
//! any process, and it is a few counters, where `stat` adds up the times of all threads.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::model::units::Pid;

/// Seven numbers of at most 20 digits.
const STATM_BYTES: usize = 160;

/// Returns the number of pages that a process has mapped. The file is not kept open: this is read every few seconds, and
/// there may be thousands of processes.
///
/// # Errors
/// When there is no such process.
pub fn mapped_pages(proc_root: &Path, pid: Pid) -> io::Result<u64> {
    let mut buffer = [0; STATM_BYTES];
    let n = File::open(proc_root.join(format!("{}/statm", pid.0)))?.read(&mut buffer)?;
    parse(&buffer[..n]).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

fn parse(line: &[u8]) -> Option<u64> {
    let end = line.iter().position(|&b| b == b' ')?;
    std::str::from_utf8(&line[..end]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_number_is_taken_and_half_a_number_is_none() {
        assert_eq!(parse(b"3181 402 371 9 0 113 0\n"), Some(3181));
        assert_eq!(parse(b"31"), None);
        assert_eq!(parse(b""), None);
    }

    #[test]
    fn this_process_maps_something_and_one_that_never_was_has_no_file() {
        let proc_root = Path::new("/proc");
        let own = mapped_pages(proc_root, Pid(std::process::id()));
        assert!(own.expect("own size") > 0);
        assert!(mapped_pages(proc_root, Pid(0x7fff_fff0)).is_err());
    }
}
