//! The rows of the process table: one per running process and GPU, and one per exited process.
//!
//! A row references data in its frame and keeps the frame alive, so rows can be sorted, stored and drawn later without
//! copying data.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::sync::Arc;

use gputop_allocator::fits::{FitConditions, Fits};
use gputop_allocator::warnings::NoteKind;
use gputop_model::frame::Frame;
use gputop_model::gpu::{Gpu, GpuProcess, HealthState, UnattributedCause};
use gputop_model::pool::{Pool, PoolStats};
use gputop_model::process::{Process, ProcessKey, RunState, program_of, without_interpreter};
use gputop_model::reading::{Missing, Reading, Reason};
use gputop_model::reported_pool::ReportedPool;
use gputop_model::units::{Bytes, GpuUuid, Millis, Mono, Percent, Pid, StartTicks};

use super::exited::ExitedProcess;
use super::last_busy::Unused;
use crate::dashboard::pools;
use crate::dashboard::sizes::gib_down;
use crate::dashboard::times::span_text;

#[derive(Debug, Clone)]
enum RowOrigin {
    /// A process listed by the driver. The fields are indices into the GPUs, the GPU's process list, the frame's
    /// processes and the frame's pools.
    Listed {
        frame: Arc<Frame>,
        gpu: usize,
        listed: usize,
        facts: Option<usize>,
        pool: Option<usize>,
    },
    /// A process found by its open device file. Used inside containers, where the PIDs listed by the driver are not the
    /// container's PIDs.
    Local {
        frame: Arc<Frame>,
        gpu: usize,
        facts: usize,
        pool: Option<usize>,
    },
    Exited {
        ended: Arc<ExitedProcess>,
        gpu: Option<(u32, GpuUuid)>,
    },
}

#[derive(Debug, Clone)]
pub struct ProcessRow {
    origin: RowOrigin,
    /// Clock ticks per second, the unit of process start times, or 0 if the source does not report it.
    ticks_per_second: u64,
    /// The most severe early warning for the row's pool, derived from several frames.
    warning: Option<NoteKind>,
    /// Change in VRAM over the last minute.
    growth: Option<Growth>,
    /// Time without use of a GPU, if it is long.
    unused_for: Option<Unused>,
}

/// Identity of a process row across frames. The cursor uses it to follow the row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowId {
    pub key: ProcessKey,
    pub gpu: Option<GpuUuid>,
}

/// Smallest change in VRAM that the process table shows, in bytes per minute.
const MIN_SHOWN_GROWTH: f64 = 0.05 * (1 << 30) as f64;

/// A change in VRAM.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Growth {
    pub bytes_per_minute: f64,
    /// True if the VRAM grew about equally in both halves of the last minute.
    pub is_steady: bool,
}

/// Time within which memory that will be full deserves a warning, in minutes.
const SOON: f64 = 5.0;

/// Returns the time until `free` memory is used up by a growth in bytes per minute, or `None` if that is not soon, or
/// if nothing is left.
pub fn full_in(free: Bytes, growth: f64) -> Option<Millis> {
    let minutes = free.0 as f64 / growth;
    let is_soon = growth >= MIN_SHOWN_GROWTH && minutes < SOON;
    is_soon.then_some(Millis((minutes * 60_000.0) as u64)).filter(|time| time.0 >= 1_000)
}

/// The driver frees the memory of a process within this time of its exit, unless something else holds it.
const FREED_WITHIN: Millis = Millis(5000);

const NOT_LISTED: &str =
    "not available inside a container: the PIDs reported by the driver are host PIDs";

impl ProcessRow {
    /// Returns the rows of a frame in the driver's order, followed by the exited processes, newest first.
    pub fn of_frame(
        frame: &Arc<Frame>,
        ended: &[Arc<ExitedProcess>],
        ticks_per_second: u64,
    ) -> Vec<Self> {
        let origins = Self::origins(frame, ended).into_iter();
        origins
            .map(|origin| Self {
                origin,
                ticks_per_second,
                warning: None,
                growth: None,
                unused_for: None,
            })
            .collect()
    }

    fn origins(frame: &Arc<Frame>, ended: &[Arc<ExitedProcess>]) -> Vec<RowOrigin> {
        let mut rows = Vec::new();
        let pools = pools::Index::new(frame);
        // Skip exited processes: an exit is reported immediately, but the frame may still list the process. One that the
        // driver lists long after its exit still holds memory. The list of a lost GPU is an old one.
        let holds_memory = |ended: &ExitedProcess| {
            let is_later = |gpu: &&Gpu| {
                gpu.processes_at.is_some_and(|at| at.since(ended.mono) >= FREED_WITHIN)
            };
            let lists = frame.gpus.iter().filter(is_later).flat_map(|gpu| gpu.processes.value());
            lists.flatten().any(|listed| listed.process == Some(ended.key))
        };
        let ended: Vec<_> = ended.iter().filter(|ended| !holds_memory(ended)).collect();
        let has_ended = |key: ProcessKey| ended.iter().any(|ended| ended.key == key);
        for (g, gpu) in frame.gpus.iter().enumerate() {
            for (l, listed) in gpu.processes.value().into_iter().flatten().enumerate() {
                if listed.process.is_some_and(has_ended) {
                    continue;
                }
                let facts = listed.process.and_then(|key| position(frame, key));
                rows.push(RowOrigin::Listed {
                    frame: Arc::clone(frame),
                    gpu: g,
                    listed: l,
                    facts,
                    pool: pools.position(listed.key(), gpu),
                });
            }
        }
        for (f, process) in frame.processes.iter().flat_map(|p| &*p.list).enumerate() {
            if has_ended(process.key) {
                continue;
            }
            for uuid in &process.open_gpus {
                if let Some(g) = frame.gpus.iter().position(|gpu| gpu.uuid == *uuid) {
                    rows.push(RowOrigin::Local {
                        frame: Arc::clone(frame),
                        gpu: g,
                        facts: f,
                        pool: pools.position(process.key, &frame.gpus[g]),
                    });
                }
            }
        }
        for ended in ended.iter().rev() {
            let on = |uuid: &GpuUuid| {
                frame.gpus.iter().find(|g| g.uuid == *uuid).map(|g| (g.index, g.uuid.clone()))
            };
            let gpu = ended.exit.gpus.first().and_then(on);
            rows.push(RowOrigin::Exited { ended: Arc::clone(ended), gpu });
        }
        rows
    }

    pub fn id(&self) -> RowId {
        let key = match &self.origin {
            RowOrigin::Listed { .. } => self.listed().map(GpuProcess::key).unwrap_or_default(),
            RowOrigin::Local { .. } => self.facts().map(|f| f.key).unwrap_or_default(),
            RowOrigin::Exited { ended, .. } => ended.key,
        };
        RowId { key, gpu: self.gpu_uuid() }
    }

    /// Returns the GPU of a running process's row.
    pub fn gpu(&self) -> Option<&Gpu> {
        match &self.origin {
            RowOrigin::Listed { frame, gpu, .. } | RowOrigin::Local { frame, gpu, .. } => {
                frame.gpus.get(*gpu)
            }
            RowOrigin::Exited { .. } => None,
        }
    }

    fn gpu_uuid(&self) -> Option<GpuUuid> {
        match &self.origin {
            RowOrigin::Exited { gpu, .. } => gpu.as_ref().map(|g| g.1.clone()),
            _ => self.gpu().map(|g| g.uuid.clone()),
        }
    }

    /// Returns the index of the GPU, with the MIG instance if there is one: `3`, `3:1`.
    pub fn gpu_label(&self) -> Option<String> {
        let index = match &self.origin {
            RowOrigin::Exited { gpu, .. } => gpu.as_ref()?.0,
            _ => self.gpu()?.index,
        };
        match self.listed().and_then(|l| l.gpu_instance) {
            Some(instance) => Some(format!("{index}:{instance}")),
            None => Some(index.to_string()),
        }
    }

    pub fn gpu_index(&self) -> u32 {
        match &self.origin {
            RowOrigin::Exited { gpu, .. } => gpu.as_ref().map_or(u32::MAX, |g| g.0),
            _ => self.gpu().map_or(u32::MAX, |g| g.index),
        }
    }

    pub fn listed(&self) -> Option<&GpuProcess> {
        match &self.origin {
            RowOrigin::Listed { listed, .. } => self.gpu()?.processes.value()?.get(*listed),
            _ => None,
        }
    }

    /// Returns the kernel's data about the process, or the last known data if the process has exited.
    pub fn facts(&self) -> Option<&Process> {
        match &self.origin {
            RowOrigin::Listed { frame, facts, .. } => frame.processes.as_ref()?.list.get((*facts)?),
            RowOrigin::Local { frame, facts, .. } => frame.processes.as_ref()?.list.get(*facts),
            RowOrigin::Exited { ended, .. } => ended.exit.last.as_deref(),
        }
    }

    /// Returns the process's PyTorch pool on this GPU, if it could be read.
    pub fn pool(&self) -> Option<&Pool> {
        let (frame, pool) = match &self.origin {
            RowOrigin::Listed { frame, pool, .. } | RowOrigin::Local { frame, pool, .. } => {
                (frame, *pool)
            }
            RowOrigin::Exited { .. } => return None,
        };
        frame.pools.as_ref()?.list.get(pool?)
    }

    /// Returns the pools on this GPU that other frameworks in the process report.
    pub fn reported_pools(&self) -> impl Iterator<Item = &ReportedPool> {
        let frame = match &self.origin {
            RowOrigin::Listed { frame, .. } | RowOrigin::Local { frame, .. } => Some(frame),
            RowOrigin::Exited { .. } => None,
        };
        let key = self.id().key;
        let uuid = self.gpu().map(|gpu| &gpu.uuid);
        frame
            .and_then(|frame| Some((frame, frame.pools.as_ref()?)))
            .into_iter()
            .flat_map(move |(frame, pools)| pools.reported_of(key).map(move |pool| (frame, pool)))
            .filter(move |(frame, pool)| {
                let on = pools::gpu_of_reported(frame, pool).map(|gpu| &gpu.uuid);
                on.is_some() && on == uuid
            })
            .map(|(_, pool)| pool)
    }

    /// Returns the memory in live tensors on this GPU, or `None` if one of the process's allocators does not report it.
    pub fn allocated(&self) -> Option<Bytes> {
        self.sum(|stats| stats.allocated.last(), |pool| pool.allocated.get())
    }

    /// Returns the memory that the process's allocators have reserved from the driver.
    pub fn reserved(&self) -> Option<Bytes> {
        self.sum(|stats| stats.reserved.last(), |pool| pool.reserved.get())
    }

    /// Returns the memory that the process's allocators have reserved but do not use.
    pub fn cached(&self) -> Option<Bytes> {
        self.sum(PoolStats::cached, |pool| pool.cached().get())
    }

    fn sum(
        &self,
        of_read: fn(&PoolStats) -> Bytes,
        of_reported: fn(&ReportedPool) -> Option<Bytes>,
    ) -> Option<Bytes> {
        let read = self.pool().map(|pool| Some(of_read(&pool.stats)));
        let parts = read.into_iter().chain(self.reported_pools().map(of_reported));
        parts.reduce(|a, b| Some(Bytes(a?.0.saturating_add(b?.0))))?
    }

    pub fn warn(&mut self, worst: Option<NoteKind>) {
        self.warning = worst;
    }

    pub fn warning(&self) -> Option<NoteKind> {
        self.warning
    }

    pub fn set_growth(&mut self, growth: Option<Growth>) {
        self.growth = growth;
    }

    pub fn set_unused_for(&mut self, unused: Option<Unused>) {
        self.unused_for = unused;
    }

    /// Returns how long a process that holds more than a GiB has not used its GPU, if that is more than a minute.
    pub fn unused_for(&self) -> Option<Unused> {
        let holds_memory = self.vram().get().is_some_and(|vram| vram > Bytes::gib(1));
        self.unused_for.filter(|_| holds_memory && self.ended().is_none())
    }

    /// Returns the change in VRAM over the last minute, in bytes per minute.
    pub fn growth(&self) -> Option<f64> {
        Some(self.growth?.bytes_per_minute)
    }

    /// Returns the growth to expect in the next minutes, in bytes per minute: that of the last minute if it was steady.
    pub fn expected_growth(&self) -> f64 {
        self.growth.filter(|growth| growth.is_steady).map_or(0.0, |growth| growth.bytes_per_minute)
    }

    /// Returns true if the VRAM grew by an amount that the process table shows.
    pub fn is_growing(&self) -> bool {
        self.growth().is_some_and(|growth| growth >= MIN_SHOWN_GROWTH)
    }

    /// Returns true if the process would soon use up the GPU's memory if it went on growing steadily.
    pub fn fills_gpu_soon(&self) -> bool {
        let free = self.gpu().and_then(|gpu| gpu.memory.free.get());
        free.is_some_and(|free| full_in(free, self.expected_growth()).is_some())
    }

    /// Says that the process grows steadily, and when its GPU is full then: `grows by 75.0 GiB/min and fills GPU 3 in ~9s`.
    pub fn growth_sentence(&self) -> Option<String> {
        Some(self.growth_phrases()?.join(" and "))
    }

    /// Returns `grows by 75.0 GiB/min` if the process grows steadily, and `fills GPU 3 in ~9s` if its GPU is full soon.
    pub fn growth_phrases(&self) -> Option<Vec<String>> {
        if self.expected_growth() < MIN_SHOWN_GROWTH {
            return None;
        }
        let rate =
            format!("grows by {:.1} GiB/min", self.expected_growth() / Bytes::gib(1).0 as f64);
        let free = self.gpu().and_then(|gpu| gpu.memory.free.get());
        let time = free.and_then(|free| full_in(free, self.expected_growth()));
        let fills =
            time.map(|time| format!("fills GPU {} in ~{}", self.gpu_index(), span_text(time)));
        Some(std::iter::once(rate).chain(fills).collect())
    }

    /// Formats the change in VRAM over the last minute, in GiB: `+73.5`, `0.0`.
    pub fn growth_text(&self) -> Option<String> {
        let growth = self.growth()?;
        Some(if growth.abs() < MIN_SHOWN_GROWTH {
            "0.0".to_owned()
        } else {
            format!("{:+.1}", growth / Bytes::gib(1).0 as f64)
        })
    }

    /// Returns the reason why [`pool`](Self::pool) is `None`.
    pub fn why_no_pool(&self) -> Missing {
        match &self.origin {
            RowOrigin::Listed { frame, .. } | RowOrigin::Local { frame, .. } => {
                pools::why_no_pool(frame, self.id().key)
            }
            RowOrigin::Exited { .. } => Reason::Gone.into(),
        }
    }

    /// Returns true if the process's allocator is unreadable but the user can make it readable.
    pub fn is_unreadable(&self) -> bool {
        match &self.origin {
            RowOrigin::Listed { frame, .. } | RowOrigin::Local { frame, .. } => {
                pools::is_unreadable(frame, self.id().key)
            }
            RowOrigin::Exited { .. } => false,
        }
    }

    /// Returns the largest request that would succeed now, estimated from allocator statistics alone.
    pub fn fits(&self) -> Option<Bytes> {
        self.estimated_fits()?.largest()
    }

    fn estimated_fits(&self) -> Option<Fits> {
        let pool = match self.pool() {
            Some(pool) => Cow::Borrowed(pool),
            None => Cow::Owned(self.bfc_pool()?),
        };
        let conditions = FitConditions::of(self.facts(), &pool, self.gpu());
        Some(Fits::of_pool(&pool, &conditions))
    }

    /// Returns the pool of JAX or TensorFlow on this GPU, if the process has only one pool there.
    fn bfc_pool(&self) -> Option<Pool> {
        let mut reported = self.reported_pools();
        let only = reported.next().filter(|_| reported.next().is_none())?;
        // The hook does not report every value.
        let is_known = only.limit.value().is_some() && only.largest_free_block.value().is_some();
        only.to_pool().filter(|pool| pool.allocator.is_bfc() && is_known)
    }

    /// Formats [`Self::fits`] in GiB, with a plus sign if a larger request may succeed: `56.0`, `56.0+` or `106+`.
    pub fn fits_text(&self) -> Option<String> {
        let fits = self.estimated_fits()?;
        let text = gib_down(fits.largest()?);
        let whole = text.split('.').next().filter(|_| text.len() > 4);
        Some(if fits.is_complete() { text } else { format!("{}+", whole.unwrap_or(&text)) })
    }

    pub fn ended(&self) -> Option<&ExitedProcess> {
        match &self.origin {
            RowOrigin::Exited { ended, .. } => Some(ended),
            _ => None,
        }
    }

    pub fn is_stale(&self) -> bool {
        self.gpu().is_none_or(|gpu| gpu.health.state != HealthState::Answering)
    }

    pub fn pid(&self) -> Pid {
        self.id().key.pid
    }

    /// Returns the process's current device memory, or its peak if the process has exited.
    pub fn vram(&self) -> Reading<Bytes> {
        match &self.origin {
            RowOrigin::Listed { .. } => self.listed().map(|l| l.vram.clone()).unwrap_or_default(),
            RowOrigin::Local { .. } => Reading::missing(Reason::Unsupported, NOT_LISTED),
            RowOrigin::Exited { ended, .. } => ended.exit.peak_vram.clone(),
        }
    }

    pub fn sm(&self) -> Reading<Percent> {
        self.listed().map_or_else(gone, |l| l.sm.clone())
    }

    pub fn fact<T: Clone>(&self, of: impl Fn(&Process) -> &Reading<T>) -> Reading<T> {
        match self.facts() {
            Some(facts) => of(facts).clone(),
            None => Reading::Missing(self.why_no_facts()),
        }
    }

    /// Returns the rank of the process in its job, by its environment or by its process groups.
    pub fn rank(&self) -> Reading<u32> {
        let named = self.fact(|facts| &facts.rank);
        let (RowOrigin::Listed { frame, .. } | RowOrigin::Local { frame, .. }) = &self.origin
        else {
            return named;
        };
        let key = self.facts().map(|facts| facts.key);
        let read = frame.ranks.iter().find(|reading| Some(reading.process) == key);
        match read.and_then(|reading| reading.rank) {
            Some(rank) if named.value().is_none() => Reading::Value(rank),
            _ => named,
        }
    }

    /// Like [`fact`](Self::fact), but returns a missing value for an exited process.
    pub fn live_fact<T: Clone>(&self, of: impl Fn(&Process) -> &Reading<T>) -> Reading<T> {
        if self.ended().is_some() { gone() } else { self.fact(of) }
    }

    fn why_no_facts(&self) -> Missing {
        if let RowOrigin::Listed { frame, .. } = &self.origin
            && frame.has_unread_processes()
        {
            return Missing::new(Reason::NotRead, "the processes of this host are not read yet");
        }
        Missing::new(
            Reason::Gone,
            "process not visible: it is in another PID namespace, or has just exited",
        )
    }

    /// Returns the run time. For an exited process, this is the time from its start to its exit. Uses the monotonic
    /// clock, like the start time.
    pub fn shown_age(&self) -> Option<Millis> {
        // Return no run time if the start time is unknown because the process could not be opened.
        let start = self.facts()?.key.start;
        if start == StartTicks(0) || self.ticks_per_second == 0 {
            return None;
        }
        let started = Mono(start.0.saturating_mul(1_000) / self.ticks_per_second);
        let until = match &self.origin {
            RowOrigin::Listed { frame, .. } | RowOrigin::Local { frame, .. } => frame.mono,
            RowOrigin::Exited { ended, .. } => ended.mono,
        };
        Some(until.since(started))
    }

    pub fn run_state(&self) -> RunState {
        self.facts().map_or(RunState::Unknown, |f| f.state)
    }

    /// Returns the text of the COMMAND column: the command line without the path of the Python interpreter.
    pub fn command(&self) -> Reading<String> {
        match self.facts() {
            Some(facts) => match &facts.command {
                Reading::Value(command) if !command.is_empty() => {
                    Reading::Value(without_interpreter(command))
                }
                _ if !facts.name.is_empty() => Reading::Value(format!("[{}]", facts.name)),
                Reading::Value(_) => Reading::Missing(self.why_no_facts()),
                Reading::Missing(why) => Reading::Missing(why.clone()),
            },
            None => Reading::Missing(self.why_no_facts()),
        }
    }

    /// Returns in a few words why there is no command line: `no such process`.
    pub fn why_no_command(&self) -> &'static str {
        let has_part = |cause| {
            let mut parts = self.gpu().into_iter().flat_map(|gpu| &gpu.unattributed);
            parts.any(|part| part.cause == cause)
        };
        match self.command().why() {
            Some(why) if why.hint.as_deref().is_some_and(|hint| hint.contains("hidepid")) => {
                "hidden by hidepid"
            }
            Some(why) if why.reason == Reason::Denied => "no permission",
            Some(_) if has_part(UnattributedCause::OutsideContainer) => "outside this container",
            Some(_) if has_part(UnattributedCause::OutsideWsl) => "outside WSL",
            Some(why) if why.reason == Reason::Gone => "no such process",
            Some(why) if why.reason == Reason::NotRead => "not read yet",
            _ => "unknown",
        }
    }

    /// Returns true if both processes belong to the same job: that of a scheduler, or else the same command of a user.
    pub fn is_of_job_of(&self, other: &Self) -> bool {
        let (Some(own), Some(others)) = (self.facts(), other.facts()) else { return false };
        match (own.job.value(), others.job.value()) {
            (Some(own), Some(other)) => own == other,
            (None, None) => own.uid == others.uid && own.command == others.command,
            _ => false,
        }
    }

    /// Returns the name of the program, without its folder and arguments: `train.py`.
    pub fn program(&self) -> String {
        let name = self.command().value().and_then(|command| program_of(command));
        name.unwrap_or_else(|| "process".to_owned())
    }

    /// Returns true if the row matches the free text of a filter.
    pub fn matches(&self, filter: &str) -> bool {
        let has = |text: &str| text.to_lowercase().contains(filter);
        let exit = self.ended().and_then(ExitedProcess::cause);
        has(&self.pid().to_string())
            || self.ended().is_some_and(|_| has("exited"))
            || exit.is_some_and(|cause| has(&cause))
            || self.gpu_label().is_some_and(|gpu| format!("gpu{gpu}") == filter)
            || self.facts().is_some_and(|facts| {
                has(&facts.name)
                    || facts.command.value().is_some_and(|v| has(v))
                    || facts.user.value().is_some_and(|v| has(v))
                    || facts.job.value().is_some_and(|v| has(v))
                    || facts.container.value().is_some_and(|v| has(v))
                    || facts.container_text().is_some_and(|v| has(&v))
            })
            || self.rank().get().is_some_and(|rank| format!("rank{rank}") == filter)
    }

    /// Returns the sort key of the default order: running processes by GPU and descending size, then exited processes,
    /// newest first.
    pub fn default_order(&self) -> impl Ord + use<> {
        let ended = self.ended().map(|e| Reverse(e.mono));
        (ended, self.gpu_index(), Reverse(self.vram().get()), self.pid())
    }
}

fn gone<T>() -> Reading<T> {
    Reading::Missing(Reason::Gone.into())
}

fn position(frame: &Frame, key: ProcessKey) -> Option<usize> {
    let list = &frame.processes.as_ref()?.list;
    list.binary_search_by_key(&key.pid, |p| p.key.pid).ok().filter(|&at| list[at].key == key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_full_soon_only_if_it_grows_fast() {
        let gib = Bytes::gib(1).0 as f64;
        assert_eq!(full_in(Bytes::gib(30), 60.0 * gib), Some(Millis(30_000)));
        assert_eq!(full_in(Bytes::gib(30), 5.0 * gib), None);
        assert_eq!(full_in(Bytes::gib(0), 0.0), None);
        assert_eq!(full_in(Bytes::gib(30), -60.0 * gib), None);
    }
}
