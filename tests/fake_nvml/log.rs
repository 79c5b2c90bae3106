//! Counts every call in a file that is always current. The file has a line of 64 bytes for each call and GPU
//! (`pcie_throughput 3 00000000000000000012`; `-` for a call about no GPU), which is overwritten in place. Nothing is
//! buffered, so a test sees each call as soon as it starts, even from a process that was killed. When the library is
//! loaded again, it appends new lines, so readers must add up the lines of a call.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{LazyLock, OnceLock};

use crate::scenario::Call;
use crate::state;

const LINE: usize = 64;
const CALLS: usize = Call::ALL.len();
/// One column for calls about no GPU and one for each GPU. GPUs beyond the limit share the last column.
const COLUMNS: usize = 65;

static COUNTERS: [[Counter; COLUMNS]; CALLS] =
    [const { [const { Counter::new() }; COLUMNS] }; CALLS];
static LOG: LazyLock<Option<Log>> = LazyLock::new(open_at_end);

struct Log {
    file: File,
    /// Index of the first unused line.
    next: AtomicUsize,
}

struct Counter {
    count: AtomicU64,
    /// Index of the counter's line in the file, once it has one.
    line: OnceLock<usize>,
}

impl Counter {
    const fn new() -> Self {
        Self { count: AtomicU64::new(0), line: OnceLock::new() }
    }
}

fn open() -> Option<File> {
    let path = state::named_or_beside("FAKE_NVML_CALLS", "calls.txt")?;
    let mut options = OpenOptions::new();
    options.create(true).write(true).truncate(false).open(path).ok()
}

fn open_at_end() -> Option<Log> {
    let file = open()?;
    let lines = file.metadata().ok()?.len() as usize / LINE;
    Some(Log { file, next: AtomicUsize::new(lines) })
}

/// Counts a call and returns the number of earlier calls of this kind.
pub fn count(call: Call, gpu: Option<usize>) -> u64 {
    let column = gpu.map_or(0, |gpu| (gpu + 1).min(COLUMNS - 1));
    let counter = &COUNTERS[call as usize][column];
    let before = counter.count.fetch_add(1, Ordering::Relaxed);
    if let Some(log) = &*LOG {
        let free = || log.next.fetch_add(1, Ordering::Relaxed);
        let line = *counter.line.get_or_init(free);
        write(&log.file, line, call, column, before + 1);
    }
    before
}

fn write(file: &File, line: usize, call: Call, column: usize, count: u64) {
    let gpu = match column {
        0 => "-".to_owned(),
        gpu => (gpu - 1).to_string(),
    };
    let name = call.name();
    let text = format!("{name} {gpu} {count:020}");
    let text = format!("{text:<width$}\n", width = LINE - 1);
    // A full disk must not fail the call; the test that reads the log will notice.
    let _ = file.write_all_at(text.as_bytes(), (line * LINE) as u64);
}
