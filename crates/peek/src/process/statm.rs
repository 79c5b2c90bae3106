//! Reads the size of a process's address space from `/proc/PID/statm`.
//!
//! The line `3181 402 371 9 0 113 0` contains seven page counts. The first is the total mapped size, and the sixth the
//! part that is private and writable: heap, stacks and global variables. Every user can read the file for every process.
//! It is cheaper than `stat`, for which the kernel adds up the CPU times of all threads.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use gputop_model::units::Pid;

/// Buffer size for a statm file, enough for seven numbers of up to 20 digits.
const STATM_BYTES: usize = 160;

/// Sizes in pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MappedPages {
    /// Total size, or 0 for a kernel thread and for a process that has exited.
    pub total: u64,
    /// Size of everything that is not private and writable. Grows when a library is loaded.
    pub read_only: u64,
}

/// Returns the number of mapped pages of a process. Does not keep statm open, because there may be thousands of
/// processes.
pub fn mapped_pages(proc_root: &Path, pid: Pid) -> io::Result<MappedPages> {
    let mut buffer = [0; STATM_BYTES];
    let n = File::open(proc_root.join(format!("{}/statm", pid.0)))?.read(&mut buffer)?;
    parse(&buffer[..n]).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

fn parse(line: &[u8]) -> Option<MappedPages> {
    let mut pages = std::str::from_utf8(line).ok()?.split(' ');
    let total = pages.next()?.parse().ok()?;
    let private: u64 = pages.nth(6 - 2)?.parse().ok()?;
    // The two counts are not read at the same time.
    Some(MappedPages { total, read_only: total.saturating_sub(private) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_sizes_and_rejects_truncated_line() {
        let pages = MappedPages { total: 3181, read_only: 3181 - 113 };
        assert_eq!(parse(b"3181 402 371 9 0 113 0\n"), Some(pages));
        assert_eq!(parse(b"3181 402 371"), None);
        assert_eq!(parse(b""), None);
    }

    #[test]
    fn reads_own_size_and_fails_for_nonexistent_process() {
        let proc_root = Path::new("/proc");
        let own = mapped_pages(proc_root, Pid(std::process::id()));
        assert!(own.expect("own size").read_only > 0);
        assert!(mapped_pages(proc_root, Pid(0x7fff_fff0)).is_err());
    }
}
