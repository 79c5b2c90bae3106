//! What is remembered of processes for the moment they end: the row they had last, the most memory they were seen
//! with, and whose end was told already.
//!
//! The driver drops a dying process from its list while the kernel still takes it apart, so a process that left the
//! list is remembered and watched a while longer.

use std::collections::{BTreeMap, HashMap};

use crate::model::gpu::Gpu;
use crate::model::process::{Process, ProcessKey};
use crate::model::reading::Reading;
use crate::model::units::{Bytes, GpuUuid, Millis, Mono, Pid, StartTicks};

/// As long as the process table watches for an end, and a little longer.
const REMEMBER: Millis = Millis(6 * 60 * 1_000);
/// Of more processes that left the list than this, the first that did are forgotten: each holds an open file.
const MAX_DEPARTED: usize = 1_024;

/// The most memory a process was seen with, and where.
#[derive(Debug, Clone, Default)]
pub struct Peak {
    pub vram: Reading<Bytes>,
    pub gpus: Vec<GpuUuid>,
    /// When the driver last listed it.
    pub seen: Mono,
}

#[derive(Debug, Default)]
pub struct Remembered {
    peaks: HashMap<ProcessKey, Peak>,
    /// Those that left the list, and when.
    departed: BTreeMap<ProcessKey, (Mono, Process)>,
    told: HashMap<ProcessKey, Mono>,
}

impl Remembered {
    /// Memory of a process over all its GPUs, at its highest.
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
        self.peaks.retain(|_, peak| at.since(peak.seen) < REMEMBER);
        self.told.retain(|_, told| at.since(*told) < REMEMBER);
    }

    pub fn peaks(&self) -> &HashMap<ProcessKey, Peak> {
        &self.peaks
    }

    /// Two successive lists, each in the order of PIDs.
    pub fn note_list(&mut self, before: &[Process], now: &[Process], at: Mono) {
        for process in now {
            self.departed.remove(&process.key);
        }
        for process in before {
            let is_there = find(now, process.key).is_some();
            if !is_there && is_known(process.key) && !self.told.contains_key(&process.key) {
                self.departed.insert(process.key, (at, process.clone()));
            }
        }
        self.departed
            .retain(|_, (left, _)| at.since(*left) < REMEMBER);
        while self.departed.len() > MAX_DEPARTED {
            let oldest = self.departed.iter().min_by_key(|(_, (left, _))| *left);
            let Some(key) = oldest.map(|(key, _)| *key) else {
                return;
            };
            self.departed.remove(&key);
        }
    }

    /// Whose ends are waited for, in order.
    pub fn awaited(&self, list: &[Process]) -> Vec<ProcessKey> {
        let listed = list.iter().map(|process| process.key);
        let mut keys: Vec<ProcessKey> = listed
            .filter(|key| is_known(*key))
            .chain(self.departed.keys().copied())
            .filter(|key| !self.told.contains_key(key))
            .collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// The process table found the end of this one; whether that is still to be told.
    pub fn is_news(&mut self, key: ProcessKey, last: Process, at: Mono) -> bool {
        let is_news = !self.told.contains_key(&key);
        if is_news {
            self.departed.insert(key, (at, last));
        }
        is_news
    }

    /// The process that has this PID, or had it last.
    pub fn with_pid(&self, pid: Pid, list: &[Process]) -> Option<ProcessKey> {
        let at = list.binary_search_by_key(&pid, |process| process.key.pid);
        let listed = at.ok().map(|at| list[at].key);
        let departed = || {
            self.departed
                .keys()
                .rev()
                .find(|key| key.pid == pid)
                .copied()
        };
        listed.filter(|key| is_known(*key)).or_else(departed)
    }

    /// What there was of a process that has ended, the first time it is asked for.
    pub fn tell(
        &mut self,
        key: ProcessKey,
        list: &[Process],
        at: Mono,
    ) -> Option<(Option<Process>, Peak)> {
        if self.told.insert(key, at).is_some() {
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

/// A process that could not be opened has no start, and can be taken for another.
fn is_known(key: ProcessKey) -> bool {
    key.start != StartTicks(0)
}
