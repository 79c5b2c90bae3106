//! Exited processes that used a GPU.

use std::collections::BTreeSet;
use std::sync::Arc;

use gputop_model::event::{Event, Exit, Observation};
use gputop_model::history::{DAY, worth};
use gputop_model::memory_size;
use gputop_model::process::ProcessKey;
use gputop_model::units::{Mono, UnixMillis};
use jiff::tz::TimeZone;

use super::times::clock_text;

/// Maximum number of exited processes to list. Exited processes are listed for a day. If there are too many, those that
/// used little memory and exited long ago are dropped first.
const MAX_EXITED: usize = 100;
/// Maximum memory of the exited processes.
const MAX_EXITED_BYTES: usize = 4 << 20;

/// An exited process that used a GPU.
#[derive(Debug, Clone, PartialEq)]
pub struct ExitedProcess {
    pub key: ProcessKey,
    pub exit: Exit,
    pub time: UnixMillis,
    pub mono: Mono,
    /// True if the process exited because of a fatal GPU out-of-memory error.
    pub is_gpu_oom: bool,
}

impl ExitedProcess {
    /// Returns the exited process, or `None` if the event is not an exit of a process that used a GPU.
    pub fn from_event(event: &Event) -> Option<Self> {
        let Observation::Exit(exit) = &event.observation else {
            return None;
        };
        if exit.is_candidate {
            return None;
        }
        Some(Self {
            key: event.process?,
            exit: Exit::clone(exit),
            time: event.time,
            mono: event.mono,
            is_gpu_oom: false,
        })
    }

    /// Returns the cause of the exit: `OOM killer`, `OOM`, `signal 11`, `exit 1`. Returns `None` for a clean exit or an
    /// unknown cause.
    pub fn cause(&self) -> Option<String> {
        if self.exit.oom.killed.get() == Some(true) {
            return Some("OOM killer".to_owned());
        }
        if self.is_gpu_oom {
            return Some("OOM".to_owned());
        }
        let signal = self.exit.signal.get().map(|number| format!("signal {number}"));
        let code = self.exit.status.get().filter(|code| *code != 0);
        signal.or_else(|| code.map(|code| format!("exit {code}")))
    }

    /// Describes the exit with its time: `exited 12:03:58, exit 137, OOM killer`.
    pub fn words(&self, zone: &TimeZone, format: &str) -> String {
        let code = self.exit.status.get().map(|code| format!("exit {code}"));
        let mut parts = vec![format!("exited {}", clock_text(self.time, zone, format))];
        parts.extend(code.clone());
        parts.extend(self.cause().filter(|cause| Some(cause) != code.as_ref()));
        parts.join(", ")
    }
}

/// The exited processes of the last day, in the order of their exits.
#[derive(Debug, Default)]
pub struct ExitedProcesses {
    list: Vec<Arc<ExitedProcess>>,
}

impl ExitedProcesses {
    /// Adds a process. Returns false if it is already listed, because a recording repeats exits after a jump.
    pub fn take(&mut self, ended: ExitedProcess) -> bool {
        if self.list.iter().any(|e| e.key == ended.key) {
            return false;
        }
        // Insert the exit in time order, because a recording may report earlier exits late.
        let is_earlier = |other: &Arc<ExitedProcess>| other.mono <= ended.mono;
        let at = self.list.iter().rposition(is_earlier).map_or(0, |at| at + 1);
        self.list.insert(at, Arc::new(ended));
        self.forget_surplus();
        true
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &ExitedProcess> {
        self.list.iter().map(|ended| &**ended)
    }

    /// Returns the processes that had exited at `time`.
    pub fn until(&self, time: Mono) -> Vec<Arc<ExitedProcess>> {
        self.list.iter().filter(|ended| ended.mono <= time).cloned().collect()
    }

    /// Sets which of the processes exited because of a fatal GPU out-of-memory error.
    pub fn mark_gpu_ooms(&mut self, failed: &BTreeSet<ProcessKey>) {
        for ended in &mut self.list {
            let oom = failed.contains(&ended.key);
            if ended.is_gpu_oom != oom {
                Arc::make_mut(ended).is_gpu_oom = oom;
            }
        }
    }

    /// Drops the processes that exited at or after `time`.
    pub fn forget_from(&mut self, time: Mono) {
        self.list.retain(|ended| ended.mono < time);
    }

    pub fn clear(&mut self) {
        self.list.clear();
    }

    /// Drops exited processes beyond the retention limits.
    fn forget_surplus(&mut self) {
        let Some(now) = self.list.last().map(|newest| newest.mono) else {
            return;
        };
        self.list.retain(|ended| now.since(ended.mono) < DAY);
        let worth_of = |ended: &Arc<ExitedProcess>| {
            let peak = ended.exit.peak_vram.get().unwrap_or_default();
            worth(peak, now.since(ended.mono))
        };
        let bytes = |ended: &[Arc<ExitedProcess>]| -> usize {
            ended.iter().map(|ended| memory_size::of(&ended.exit)).sum()
        };
        while self.list.len() > MAX_EXITED
            || self.list.len() > 1 && bytes(&self.list) > MAX_EXITED_BYTES
        {
            let least = (0..self.list.len())
                .min_by(|a, b| worth_of(&self.list[*a]).total_cmp(&worth_of(&self.list[*b])));
            least.map(|at| self.list.remove(at));
        }
    }
}
