//! Retains data about each process for a while after it exits: its last readings, its peak memory, and whether its exit
//! was reported.
//!
//! The driver drops a process from its list while the kernel is still tearing the process down. gputop therefore
//! watches a process that left the list for a few more minutes.

use std::collections::{BTreeMap, HashMap};

use gputop_model::{
    Bytes, Gpu, GpuUuid, Millis, Mono, Pid, Process, ProcessKey, Reading, StartTicks,
};

/// Retention time of process data. Slightly longer than the time for which the process table watches for an exit.
const RETENTION: Millis = Millis(6 * 60 * 1_000);
/// Maximum number of processes to watch after they left the driver's list. Limited because each watched process uses an
/// open file.
const MAX_DEPARTED: usize = 1_024;

/// Peak GPU memory of a process, and the GPUs that the process used.
#[derive(Debug, Clone, Default)]
pub struct Peak {
    pub vram: Reading<Bytes>,
    pub gpus: Vec<GpuUuid>,
    /// Time at which the driver last listed the process.
    pub seen: Mono,
}

#[derive(Debug, Default)]
pub struct LastSeen {
    peaks: HashMap<ProcessKey, Peak>,
    /// Processes that left the driver's list, and when each of them left.
    departed: BTreeMap<ProcessKey, (Mono, Process)>,
    /// Processes whose exits were reported, and when.
    reported: HashMap<ProcessKey, Mono>,
}

impl LastSeen {
    /// Updates the peak memory of each process, summed over its GPUs.
    pub fn note_peaks<'g>(&mut self, gpus: impl Iterator<Item = &'g Gpu>, at: Mono) {
        let mut now: HashMap<ProcessKey, (u64, bool, Vec<GpuUuid>)> = HashMap::new();
        for gpu in gpus {
            for process in gpu.processes.value().into_iter().flatten() {
                let Some(key) = process.process else { continue };
                let entry = now.entry(key).or_default();
                entry.2.push(gpu.uuid.clone());
                match process.vram.get() {
                    Some(vram) => entry.0 += vram.0,
                    None => entry.1 = true,
                }
            }
        }
        for (key, (vram, unknown, gpus)) in now {
            let peak = self.peaks.entry(key).or_default();
            peak.seen = at;
            if !unknown && peak.vram.get().is_none_or(|p| p.0 < vram) {
                peak.vram = Bytes(vram).into();
            }
            for gpu in gpus {
                if !peak.gpus.contains(&gpu) {
                    peak.gpus.push(gpu);
                }
            }
        }
        self.peaks.retain(|_, peak| at.since(peak.seen) < RETENTION);
        self.reported.retain(|_, reported| at.since(*reported) < RETENTION);
    }

    pub fn peaks(&self) -> &HashMap<ProcessKey, Peak> {
        &self.peaks
    }

    /// Records the processes that are in the list `before` but not in the list `now`. Both lists are sorted by PID.
    pub fn note_list(&mut self, before: &[Process], now: &[Process], at: Mono) {
        for process in now {
            self.departed.remove(&process.key);
        }
        for process in before {
            let is_listed = find(now, process.key).is_some();
            let is_reported = self.reported.contains_key(&process.key);
            if !is_listed && has_start(process.key) && !is_reported {
                self.departed.insert(process.key, (at, process.clone()));
            }
        }
        self.departed.retain(|_, (left, _)| at.since(*left) < RETENTION);
        while self.departed.len() > MAX_DEPARTED {
            let oldest = self.departed.iter().min_by_key(|(_, (left, _))| *left);
            let Some(key) = oldest.map(|(key, _)| *key) else { return };
            self.departed.remove(&key);
        }
    }

    /// Returns the processes to watch for exits, in ascending order.
    pub fn awaited(&self, list: &[Process]) -> Vec<ProcessKey> {
        let listed = list.iter().map(|process| process.key);
        let mut keys: Vec<ProcessKey> = listed
            .filter(|key| has_start(*key))
            .chain(self.departed.keys().copied())
            .filter(|key| !self.reported.contains_key(key))
            .collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// Records an exit found by the process table. Returns true if the exit has not been reported yet.
    pub fn note_exit(&mut self, key: ProcessKey, last: Process, at: Mono) -> bool {
        let is_new = !self.reported.contains_key(&key);
        if is_new {
            self.departed.insert(key, (at, last));
        }
        is_new
    }

    /// Returns the process that has this PID, or the last process that had it.
    pub fn with_pid(&self, pid: Pid, list: &[Process]) -> Option<ProcessKey> {
        let at = list.binary_search_by_key(&pid, |process| process.key.pid);
        let listed = at.ok().map(|at| list[at].key);
        let departed = || self.departed.keys().rev().find(|key| key.pid == pid).copied();
        listed.filter(|key| has_start(*key)).or_else(departed)
    }

    /// Removes and returns the data about an exited process. Only the first call for a process returns data.
    pub fn take(
        &mut self,
        key: ProcessKey,
        list: &[Process],
        at: Mono,
    ) -> Option<(Option<Process>, Peak)> {
        if self.reported.insert(key, at).is_some() {
            return None;
        }
        let departed = self.departed.remove(&key).map(|(_, process)| process);
        let last = departed.or_else(|| find(list, key).cloned());
        Some((last, self.peaks.remove(&key).unwrap_or_default()))
    }
}

fn find(list: &[Process], key: ProcessKey) -> Option<&Process> {
    let at = list.binary_search_by_key(&key.pid, |process| process.key.pid);
    at.ok().map(|at| &list[at]).filter(|p| p.key == key)
}

/// Returns true if the process's start time is known. It is unknown if the process could not be opened. Such a process
/// is not watched, because another process with the same PID could be mistaken for it.
fn has_start(key: ProcessKey) -> bool {
    key.start != StartTicks(0)
}
