//! Reads the size of a process's address space from `/proc/PID/statm`.
//!
//! The line `3181 402 371 9 0 113 0` contains seven page counts. The first is the total mapped size. Every user can
//! read the file for every process. It is cheaper than `stat`, for which the kernel adds up the CPU times of all
//! threads.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::model::units::Pid;

/// Buffer size for a statm file, enough for seven numbers of up to 20 digits.
const STATM_BYTES: usize = 160;

/// Returns the number of mapped pages of a process. Does not keep statm open, because it is read only every few seconds
/// and there may be thousands of processes.
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
    fn parses_first_number_and_rejects_truncated_line() {
        assert_eq!(parse(b"3181 402 371 9 0 113 0\n"), Some(3181));
        assert_eq!(parse(b"31"), None);
        assert_eq!(parse(b""), None);
    }

    #[test]
    fn reads_own_size_and_fails_for_nonexistent_process() {
        let proc_root = Path::new("/proc");
        let own = mapped_pages(proc_root, Pid(std::process::id()));
        assert!(own.expect("own size") > 0);
        assert!(mapped_pages(proc_root, Pid(0x7fff_fff0)).is_err());
    }
}
