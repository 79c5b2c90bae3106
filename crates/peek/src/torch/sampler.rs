//! Reads the allocator of every watched process 20 times a second, on the sampler thread.
//!
//! The sampler thread attaches to each process once and makes one system call per process and sample. On request, it
//! returns the minimum, the maximum and the last value since the previous request, so a spike between two frames is
//! visible without sending 20 frames a second. Memory maps are read on the same thread, because two threads that share
//! an [`Attached`](super::Attached) would need a lock. Reading a map delays a sample by at most a few milliseconds.
//!
//! The pools of JAX and TensorFlow ([`bfc`](crate::bfc)) are read once for each request. The search for them takes up to a
//! quarter of a second for each process, so it is spread over samples.
//!
//! Samples are taken at multiples of the period after the start of the sampler thread. While there is nothing to
//! sample, the thread sleeps until it receives a command or a process is due for another check.
//!
//! The caller sets the list of watched processes. If the allocator of a watched process is not readable, the process is
//! checked again later (`retry.rs`). If the process has executed another program, the sampler attaches again. If the
//! process has exited, only the exit is reported. A stopped process can be read like any other.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use gputop_model::{Missing, Mono, PoolMap, Pools, ProcessKey};

use super::Failure;
use super::allocation_spike::AllocationSpike;
use super::sampled_process::{SampledProcess, Tick};
use crate::bfc::watched::{SearchStep, WatchedPools};
use crate::bfc::{FoundPools, VtableCache};
use crate::clock::now_mono;

pub const PERIOD: Duration = Duration::from_millis(50);
/// Maximum time in each sample for searching pools of JAX and TensorFlow, in all processes together.
const MAX_SEARCH_TIME: Duration = Duration::from_millis(10);

/// Callback for allocation spikes. It runs on the sampler thread and delays further samples.
type Alert = Box<dyn Fn(AllocationSpike) + Send>;

/// Function to run on the sampler thread.
type SamplerCommand = Box<dyn FnOnce(&mut SamplerThread) + Send>;

/// Handle to the sampler thread, which exits when the last handle is dropped.
#[derive(Debug, Clone)]
pub struct Sampler {
    commands: Sender<SamplerCommand>,
}

impl Sampler {
    pub fn start(proc_root: &Path, period: Duration) -> std::io::Result<Self> {
        let (commands, receiver) = mpsc::channel();
        let thread = SamplerThread {
            proc_root: proc_root.to_owned(),
            period,
            watched: BTreeMap::new(),
            vtables: VtableCache::default(),
            alert: None,
            detects_copies: false,
        };
        std::thread::Builder::new().name("torch".into()).spawn(move || thread.run(&receiver))?;
        Ok(Self { commands })
    }

    /// Sets the processes to watch. Pass only processes that the driver lists as users of a GPU, unless the detection
    /// of forked copies is enabled: a forked worker has a stale copy of its parent's allocator, which looks valid.
    pub fn watch(&self, processes: Vec<ProcessKey>) {
        self.send(move |thread| thread.watch(&processes));
    }

    /// Enables the detection of forked copies. This is needed in a container, where the driver's list is not available.
    /// Each process is compared with its parent, and forked copies are not read.
    pub fn detect_copies(&self) {
        self.send(|thread| thread.detects_copies = true);
    }

    /// Sets the callback for allocation spikes, which runs on the sampler thread and should only forward the spike.
    pub fn alert(&self, alert: impl Fn(AllocationSpike) + Send + 'static) {
        self.send(|thread| thread.alert = Some(Box::new(alert)));
    }

    /// Requests the samples since the previous request. `answer` runs on the sampler thread and should only forward the
    /// pools.
    pub fn pools(&self, answer: impl FnOnce(Pools) + Send + 'static) {
        self.send(|thread| answer(thread.pools()));
    }

    /// Requests an immediate read of every segment and block of one pool: PyTorch's or, on a device without one, that of
    /// JAX or TensorFlow.
    pub fn map(
        &self,
        process: ProcessKey,
        ordinal: u32,
        answer: impl FnOnce(Result<PoolMap, Missing>) + Send + 'static,
    ) {
        self.send(move |thread| answer(thread.map(process, ordinal)));
    }

    fn send(&self, command: impl FnOnce(&mut SamplerThread) + Send + 'static) {
        let _ = self.commands.send(Box::new(command));
    }
}

/// The allocators of one process.
struct WatchedProcess {
    torch: SampledProcess,
    bfc: WatchedPools,
}

impl WatchedProcess {
    fn new(key: ProcessKey) -> Self {
        Self { torch: SampledProcess::new(key), bfc: WatchedPools::new(key) }
    }

    /// Returns the time of the next sample or search.
    fn wake(&self) -> Mono {
        self.torch.wake().map_or(self.bfc.wake(), |wake| wake.min(self.bfc.wake()))
    }
}

struct SamplerThread {
    proc_root: PathBuf,
    period: Duration,
    watched: BTreeMap<ProcessKey, WatchedProcess>,
    vtables: VtableCache,
    alert: Option<Alert>,
    detects_copies: bool,
}

impl SamplerThread {
    fn run(mut self, receiver: &Receiver<SamplerCommand>) {
        let start = Instant::now();
        let mut due: Option<Instant> = None;
        loop {
            let command = match due {
                None => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(due) => receiver.recv_timeout(due.saturating_duration_since(Instant::now())),
            };
            match command {
                Ok(command) => {
                    command(&mut self);
                    // Take a sample that became due during the command instead of skipping it.
                    due = due.into_iter().chain(self.due(start)).min();
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.sample();
                    due = self.due(start);
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Returns the first multiple of the sampling period at which any process is due.
    fn due(&self, start: Instant) -> Option<Instant> {
        let wake = self.watched.values().map(WatchedProcess::wake).min()?;
        let pause = Duration::from_millis(wake.since(now_mono()).0);
        Some(self.after(start, Instant::now() + pause))
    }

    /// Returns the next multiple of the sampling period after `now`. Skips missed multiples.
    fn after(&self, start: Instant, now: Instant) -> Instant {
        let period = self.period.max(Duration::from_millis(1));
        let passed = now.duration_since(start).as_nanos() / period.as_nanos();
        start + period.saturating_mul(u32::try_from(passed + 1).unwrap_or(u32::MAX))
    }

    fn sample(&mut self) {
        let mut tick = Tick::new(now_mono(), self.detects_copies);
        for WatchedProcess { torch, .. } in self.watched.values_mut() {
            torch.sample(&self.proc_root, &mut tick);
            if let (Some(spike), Some(alert)) = (torch.spike(tick.now()), &self.alert) {
                alert(spike);
            }
        }
        self.search(tick.now());
    }

    /// Continues the searches for pools of JAX and TensorFlow, first in the process that waited longest.
    fn search(&mut self, now: Mono) {
        let step = SearchStep {
            proc_root: &self.proc_root,
            now,
            until: Instant::now() + MAX_SEARCH_TIME,
            detects_copies: self.detects_copies,
        };
        let due = self.watched.values_mut().map(|watched| &mut watched.bfc);
        let mut due: Vec<&mut WatchedPools> = due.filter(|bfc| bfc.wake() <= now).collect();
        due.sort_by_key(|bfc| bfc.last_turn());
        for bfc in due {
            bfc.advance(&step, &mut self.vtables);
            if Instant::now() >= step.until {
                return;
            }
        }
    }

    fn watch(&mut self, processes: &[ProcessKey]) {
        self.watched.retain(|key, _| processes.contains(key));
        for &key in processes {
            self.watched.entry(key).or_insert_with(|| WatchedProcess::new(key));
        }
    }

    fn pools(&mut self) -> Pools {
        let now = now_mono();
        let (mut list, mut unread, mut others) = (Vec::new(), Vec::new(), FoundPools::default());
        for WatchedProcess { torch, bfc } in self.watched.values_mut() {
            torch.refresh(now);
            list.extend(torch.take_pools());
            let found = bfc.read(&self.proc_root, now);
            let is_read = !found.gpu.is_empty();
            unread.extend(torch.unread(if is_read { Ok(()) } else { Err(bfc.why_missing()) }));
            others.gpu.extend(found.gpu);
            others.pinned_host.extend(found.pinned_host);
        }
        Pools {
            at: now,
            list: Arc::new(list),
            unread: Arc::new(unread),
            reported: Arc::new(others.gpu),
            pinned_host: Arc::new(others.pinned_host),
        }
    }

    fn map(&mut self, process: ProcessKey, ordinal: u32) -> Result<PoolMap, Missing> {
        let watched =
            self.watched.get_mut(&process).ok_or_else(|| Failure::NotWatched.missing())?;
        match watched.torch.map(ordinal) {
            Err(_) if watched.bfc.is_on(ordinal) => {
                let map = watched.bfc.map(&self.proc_root, ordinal);
                map.map_err(|failure| failure.missing())
            }
            read => read.map_err(|failure| failure.missing()),
        }
    }
}
