//! Reads a running process with `process_vm_readv`: up to 1024 ranges per system call. Does not stop the process, write
//! to it, or attach to it with ptrace.
//!
//! `process_vm_readv` identifies the target by its PID. After an `exec` or a reuse of the PID, the call reads a
//! different program, so every read of a structure must be validated; see
//! [`Attached`](crate::torch::Attached).

use std::fs::File;
use std::io::{IoSliceMut, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use gputop_model::units::Pid;
use nix::errno::Errno;
use nix::libc;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use procfs::process::{MemoryMaps, Process, Task};
use procfs::{FromRead, ProcError};

use super::access;
use super::maps::Mapping;
use super::view::View;
use super::{Memory, MemoryError, Range};

/// Maximum number of ranges in one system call: IOV_MAX.
const MAX_RANGES: usize = 1_024;

#[derive(Debug)]
pub struct Live {
    pid: Pid,
    proc_root: PathBuf,
}

impl Live {
    /// Opens a process for reading. Callers should pass only processes that the driver lists: a forked worker has a
    /// stale copy of its parent's allocator, which looks valid.
    pub fn new(proc_root: &Path, pid: Pid) -> Self {
        Self { pid, proc_root: proc_root.to_owned() }
    }

    /// Reads a batch of ranges. Returns the number of bytes read, which may be less than requested.
    fn read_some(&self, ranges: &[RemoteIoVec], into: &mut [u8]) -> Result<usize, MemoryError> {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.pid.0).unwrap_or(i32::MAX));
        match process_vm_readv(pid, &mut [IoSliceMut::new(into)], ranges) {
            Ok(count) => Ok(count),
            Err(Errno::EFAULT) => Ok(0),
            Err(Errno::ESRCH) => Err(MemoryError::Gone),
            Err(Errno::EPERM | Errno::EACCES) => Err(self.denied()),
            Err(errno) => Err(MemoryError::Refused(errno.desc().to_owned())),
        }
    }

    /// Returns an error if the process is not readable. Its mappings may be readable nonetheless.
    pub fn check_access(&self) -> Result<(), MemoryError> {
        self.read_some(&[RemoteIoVec { base: 0, len: 1 }], &mut [0]).map(drop)
    }

    fn denied(&self) -> MemoryError {
        MemoryError::Denied(access::hint(&self.proc_root, self.pid).into())
    }

    fn proc_error(&self, error: &ProcError) -> MemoryError {
        match error {
            ProcError::PermissionDenied(_) => self.denied(),
            ProcError::NotFound(_) => MemoryError::Gone,
            ProcError::Io(error, _) if error.raw_os_error() == Some(Errno::ESRCH as i32) => {
                MemoryError::Gone
            }
            other => MemoryError::Refused(other.to_string()),
        }
    }
}

/// Makes room for a read. A build for size turns `Vec::resize` into a loop over single bytes, which takes as long as the
/// read itself.
fn append_zeros(bytes: &mut Vec<u8>, count: usize) {
    const ZEROS: &[u8] = &[0; 4096];
    bytes.reserve(count);
    let mut left = count;
    while left > 0 {
        let part = left.min(ZEROS.len());
        bytes.extend_from_slice(&ZEROS[..part]);
        left -= part;
    }
}

/// Bits of a pagemap entry for a page in physical memory and a swapped page (Documentation/admin-guide/mm/pagemap.rst).
const PRESENT_OR_SWAPPED: u64 = 0b11 << 62;
/// Number of pages to look up in one read of the pagemap.
const PAGEMAP_BATCH: u64 = 8_192;

/// Maximum size of a process's list of mappings. Linux allows 65,530 mappings by default.
const MAX_MAPS_BYTES: u64 = 32 << 20;

impl Memory for Live {
    fn read(&self, ranges: &[Range], into: &mut Vec<u8>) -> Result<(), MemoryError> {
        for batch in ranges.chunks(MAX_RANGES) {
            let remote: Vec<RemoteIoVec> = batch
                .iter()
                .filter_map(|range| {
                    Some(RemoteIoVec { base: usize::try_from(range.address).ok()?, len: range.len })
                })
                .collect();
            let wanted: usize = remote.iter().map(|range| range.len).sum();
            let start = into.len();
            append_zeros(into, wanted);
            let read = self.read_some(&remote, &mut into[start..]);
            into.truncate(start + read.as_ref().copied().unwrap_or_default());
            if read? < wanted {
                return Ok(());
            }
        }
        Ok(())
    }

    fn maps(&self) -> Result<Vec<Mapping>, MemoryError> {
        let dir = self.proc_root.join(self.pid.to_string());
        let maps = Process::new_with_root(dir)
            .and_then(|process| process.maps().or_else(|_| maps_with_any_bytes(&process)))
            .map_err(|error| self.proc_error(&error))?;
        // Read one byte to find out why the list of mappings is empty: the address space is hidden from this user, or
        // the process is a zombie.
        if maps.0.is_empty() {
            return Err(self.check_access().err().unwrap_or_else(|| self.denied()));
        }
        Ok(maps.0.into_iter().map(Mapping::from).collect())
    }

    fn runnable_cpu_time(&self, thread: u32) -> Option<u64> {
        let thread = i32::try_from(thread).ok()?;
        let process = Process::new_with_root(self.proc_root.join(self.pid.to_string())).ok()?;
        let is_thread = |task: &Task| {
            let ids = task.status().ok().and_then(|status| status.nspid);
            ids.is_some_and(|ids| ids.last() == Some(&thread))
        };
        let task = match process.task_from_tid(thread) {
            Ok(task) => task,
            // The process is in another PID namespace.
            Err(_) => process.tasks().ok()?.flatten().find(is_thread)?,
        };
        let is_runnable = task.stat().is_ok_and(|stat| stat.state == 'R');
        is_runnable.then(|| task.schedstat().ok()).flatten().map(|times| times.sum_exec_runtime)
    }

    fn resident(&self, range: Range) -> Vec<Range> {
        let mut parts = Vec::new();
        if let Ok(pagemap) = File::open(self.proc_root.join(format!("{}/pagemap", self.pid))) {
            let page = procfs::page_size();
            let end = range.address.saturating_add(range.len as u64).div_ceil(page);
            let mut next = range.address / page;
            while next < end {
                let count = (end - next).min(PAGEMAP_BATCH);
                let mut entries = vec![0; usize::try_from(count * 8).unwrap_or_default()];
                if pagemap.read_exact_at(&mut entries, next * 8).is_err() {
                    break;
                }
                add_resident(&mut parts, &entries, next, page);
                next += count;
            }
        }
        parts
    }

    /// Opens the file inside the mount namespace of the process. Does not wait for a named pipe.
    fn open_file(&self, mapping: &Mapping) -> Option<File> {
        let path = Path::new(&mapping.file).strip_prefix("/").ok()?;
        let path = self.proc_root.join(format!("{}/root", self.pid)).join(path);
        let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
        file.metadata().is_ok_and(|metadata| metadata.is_file()).then_some(file)
    }
}

/// Adds the pages of some pagemap entries that are in memory, and joins neighbours.
fn add_resident(parts: &mut Vec<Range>, entries: &[u8], first_page: u64, page: u64) {
    let len = usize::try_from(page).unwrap_or_default();
    let pages = (first_page..).zip(View(entries).words());
    for (number, _) in pages.filter(|(_, entry)| entry & PRESENT_OR_SWAPPED != 0) {
        let address = number * page;
        match parts.last_mut() {
            Some(last) if last.address + last.len as u64 == address => last.len += len,
            _ => parts.push(Range { address, len }),
        }
    }
}

/// Reads the mappings of a process that has loaded a file whose path is not UTF-8.
fn maps_with_any_bytes(process: &Process) -> Result<MemoryMaps, ProcError> {
    let mut bytes = Vec::new();
    let file = process.open_relative("maps")?;
    file.take(MAX_MAPS_BYTES).read_to_end(&mut bytes)?;
    MemoryMaps::from_read(String::from_utf8_lossy(&bytes).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::up_to;

    #[test]
    fn reads_own_memory_up_to_first_unmapped_range() {
        let live = Live::new(Path::new("/proc"), Pid(std::process::id()));
        let words = [1u64, 2, 3];
        let at = words.as_ptr() as u64;
        let ranges = [
            Range { address: at + 16, len: 8 },
            Range { address: at, len: 8 },
            Range { address: 8, len: 8 },
            Range { address: at, len: 8 },
        ];
        let mut bytes = Vec::new();
        live.read(&ranges, &mut bytes).expect("own memory");
        assert_eq!(bytes, [[3, 0, 0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0]].concat());
        assert_eq!(up_to(&live, 8, 8).expect("an empty read"), Vec::<u8>::new());
        assert!(live.maps().expect("maps").iter().any(|map| map.executable));
    }

    #[test]
    fn pages_in_memory_are_resident() {
        let touched = [1_u8; 64];
        let live = Live::new(Path::new("/proc"), Pid(std::process::id()));
        let address = touched.as_ptr() as u64;
        let parts = live.resident(Range { address, len: touched.len() });
        assert!(parts[0].address <= address && !parts.is_empty());
        assert_eq!(live.resident(Range { address: 0, len: 0x1000 }), []);
    }

    #[test]
    fn neighbouring_resident_pages_are_joined() {
        let (present, swapped, absent) = (1_u64 << 63, 1_u64 << 62, (1_u64 << 61) - 1);
        let entries = [present, swapped, absent, present | 7].map(u64::to_le_bytes);
        let mut parts = Vec::new();
        add_resident(&mut parts, entries.as_flattened(), 2, 0x1000);
        add_resident(&mut parts, &present.to_le_bytes(), 6, 0x1000);
        let range = |address, len| Range { address, len };
        assert_eq!(parts, [range(0x2000, 0x2000), range(0x5000, 0x2000)]);
    }

    #[test]
    fn nonexistent_process_is_gone() {
        let live = Live::new(Path::new("/proc"), Pid(0x7fff_fff0));
        assert_eq!(up_to(&live, 0x1000, 8), Err(MemoryError::Gone));
        assert_eq!(live.maps(), Err(MemoryError::Gone));
    }
}
