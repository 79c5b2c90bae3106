//! Replays an allocation trace under other allocator settings. The hook writes the trace when a process runs out of
//! memory.
//!
//! The hook announces the trace with a `trace` line in the spool, and writes it to this user's trace directory. The
//! file name identifies the process. Parsing and replaying the largest trace takes a second. Never do this on a thread
//! that other threads wait for.

use std::fs;
use std::path::{Path, PathBuf};

use gputop_allocator::config::Config;
use gputop_allocator::remedies::{try_all, until};
use gputop_allocator::rules::torch_of;
use gputop_allocator::snapshot;
use gputop_allocator::trace::{Recorded, Trace};
use gputop_allocator::whatif::{Room, available};
use gputop_model::{Bytes, HookOom, ProcessKey, TraceReplay};

use super::spool::traces;
use crate::user_files;

/// Maximum size of a trace. The hook does not write larger ones.
const MAX_BYTES: u64 = 64 << 20;
const MAX_FILES: usize = 10_000;

/// A failed allocation that may have a trace.
#[derive(Debug, Clone, PartialEq)]
pub struct Traced {
    pub process: ProcessKey,
    /// Torch version as reported by the process: `2.8.0+cu126`.
    pub torch: String,
    pub oom: HookOom,
}

impl Traced {
    /// Replays the trace of the failed allocation under other settings. Returns `None` if the process has no trace.
    /// Other failures are part of the result.
    pub fn replay(&self) -> Option<TraceReplay> {
        self.replay_in(&traces()?)
    }

    fn replay_in(&self, folder: &Path) -> Option<TraceReplay> {
        let entries = fs::read_dir(folder).ok()?.flatten().take(MAX_FILES);
        let path = of_process(entries.map(|entry| entry.path()), self.process)?;
        let result = self.read(&path).and_then(|trace| {
            let room = room(&trace, &self.oom)
                .ok_or("The allocation trace does not contain a failed request.")?;
            try_all(&trace, room)
        });
        let replayed = result
            .unwrap_or_else(|why| TraceReplay { missing: Some(why), ..TraceReplay::default() });
        Some(TraceReplay { ordinal: self.oom.device, free_bytes: self.oom.free_bytes, ..replayed })
    }

    /// Reads the allocation trace up to the failure.
    fn read(&self, path: &Path) -> Result<Trace, String> {
        let fault = |why: String| format!("Cannot read the allocation trace: {why}.");
        let bytes = user_files::read(path, MAX_BYTES).map_err(|why| fault(why.to_string()))?;
        let snapshot = snapshot::read(bytes.as_slice(), bytes.len() as u64)
            .map_err(|why| fault(why.to_string()))?;
        let device = snapshot.devices.iter().find(|device| device.ordinal == self.oom.device);
        let trace = device.map(|device| snapshot.trace(device));
        let trace = trace.and_then(|trace| until(trace, self.oom.free_bytes));
        let Some(trace) = trace else {
            return Err(
                "The allocation trace is from an earlier failure: the hook saves traces for only the first few failures."
                    .to_owned(),
            );
        };
        Ok(Trace { recorded: Recorded { torch: torch_of(&self.torch), ..trace.recorded }, ..trace })
    }
}

/// Reads one device's trace from the last out-of-memory trace of a process, which may still be running.
pub fn last_history(process: ProcessKey, ordinal: u32) -> Option<Trace> {
    let entries = fs::read_dir(traces()?).ok()?.flatten().take(MAX_FILES);
    let path = of_process(entries.map(|entry| entry.path()), process)?;
    let bytes = user_files::read(&path, MAX_BYTES).ok()?;
    let snapshot = snapshot::read(bytes.as_slice(), bytes.len() as u64).ok()?;
    let device = snapshot.devices.iter().find(|d| d.ordinal == ordinal)?;
    Some(snapshot.trace(device))
}

/// Returns the last out-of-memory trace of a process: `RUN.PID.START.oom.N.pickle`.
fn of_process(traces: impl Iterator<Item = PathBuf>, process: ProcessKey) -> Option<PathBuf> {
    let number = |path: &PathBuf| -> Option<(u32, String)> {
        let mut parts = path.file_name()?.to_str()?.split('.').skip(1);
        let is_match = parts.next()?.parse() == Ok(process.pid.0)
            && parts.next()?.parse() == Ok(process.start.0)
            && parts.next()? == "oom";
        // If the process has called `exec`, the new program also numbers its traces from 1 and adds a suffix: `1-1`.
        let (n, again) = parts.next().map(|n| n.split_once('-').unwrap_or((n, "")))?;
        let is_match = is_match && parts.next()? == "pickle";
        is_match.then_some((n.parse().ok()?, again.to_owned()))
    };
    let all = traces.filter_map(|path| Some((number(&path)?, path)));
    // If several programs ran in the same process, prefer the traces of the last one.
    let last = all.max_by(|((n, again), _), ((m, later), _)| (again, n).cmp(&(later, m)));
    last.map(|(_, path)| path)
}

/// Returns the size of the GPU's memory, and how much of it belongs to other programs: the memory that is neither free
/// nor held by the allocator. The limit reported by the allocator is the size of the GPU, or the configured fraction of
/// it (CUDACachingAllocator.cpp, `oom_observers_`).
fn room(trace: &Trace, oom: &HookOom) -> Option<Room> {
    let conf = trace.recorded.conf.as_deref().map(Config::parse);
    let fraction = conf.and_then(|conf| conf.memory_fraction);
    let fraction = fraction.filter(|fraction| *fraction > 0.0).unwrap_or(1.0);
    let card = Bytes((oom.limit_bytes.0 as f64 / fraction) as u64);
    // A memory fraction set in the program's code is not known here. In that case, `card` is less than the GPU's
    // memory.
    let outside = card.0.saturating_sub(available(trace)?.0);
    Some(Room { card, outside: Bytes(outside) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_last_out_of_memory_trace_of_the_process() {
        let names = [
            "7-1.418.99.oom.1.pickle",
            "7-1.418.99.oom.2.pickle",
            "7-1.418.99.exit.3.pickle",
            "7-1.419.99.oom.4.pickle",
            "7-1.418.98.oom.4.pickle",
            "7-1.418.99.oom.4.part",
            "notes",
        ];
        let process = ProcessKey::new(418, 99);
        let of = |names: &[&str]| {
            let path = of_process(names.iter().map(PathBuf::from), process);
            path.map(|path| path.display().to_string())
        };
        assert_eq!(of(&names).as_deref(), Some("7-1.418.99.oom.2.pickle"));
        let replaced = [names[1], "7-1.418.99.oom.1-1.pickle"];
        assert_eq!(of(&replaced).as_deref(), Some("7-1.418.99.oom.1-1.pickle"));
        assert_eq!(of(&names[2..5]), None);
    }

    #[test]
    fn reports_why_a_trace_cannot_be_read() {
        let folder = tempfile::tempdir().expect("a directory");
        let traced = Traced {
            process: ProcessKey::new(418, 99),
            torch: "2.8.0".to_owned(),
            oom: HookOom::default(),
        };
        assert_eq!(traced.replay_in(folder.path()), None);
        let path = folder.path().join("7-1.418.99.oom.1.pickle");
        fs::write(path, b"\x80\x04}.").expect("written");
        let replayed = traced.replay_in(folder.path()).expect("an answer");
        let why = replayed.missing.expect("a reason");
        assert!(why.starts_with("Cannot read the allocation trace: "), "{why}");
    }
}
