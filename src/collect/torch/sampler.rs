//! Twenty samples a second of every watched process, on one thread.
//!
//! The thread attaches to each process once, takes one system call a process and sample, and hands out what it has
//! when it is asked: minimum, maximum and last since it was asked before. So a spike between two frames is seen
//! without twenty frames. Maps are read on the same thread: two readers of one attachment would need a lock, and a
//! map delays a sample by a few milliseconds at most.
//!
//! Samples fall on the multiples of the period since the thread began, whatever a sample took; while there is
//! nothing to sample the thread sleeps until it is told something, or until a process is to be looked at again.
//!
//! A process is watched as long as it is on the list. One in which nothing could be read is looked at again later
//! (`waiting`); one that executed another program is attached to anew; of one that ended only that
//! is handed out. A target that is stopped reads as any other.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use super::Failure;
use super::allocation_spike::AllocationSpike;
use super::sampled_process::{SampledProcess, Tick};
use crate::collect::clock::now_mono;
use crate::model::pool::{PoolMap, Pools};
use crate::model::process::ProcessKey;
use crate::model::reading::Missing;

pub const PERIOD: Duration = Duration::from_millis(50);

type Answer<T> = Box<dyn FnOnce(T) + Send>;

/// Told on the sampler's thread, which waits for it.
type Alert = Box<dyn Fn(AllocationSpike) + Send>;

enum SamplerCommand {
    Alert(Alert),
    SuspectCopies,
    Watch(Vec<ProcessKey>),
    Pools(Answer<Pools>),
    Map(ProcessKey, u32, Answer<Result<PoolMap, Missing>>),
}

/// A handle on the thread, which ends when the handle is dropped.
#[derive(Debug, Clone)]
pub struct Sampler {
    orders: Sender<SamplerCommand>,
}

impl Sampler {
    /// # Errors
    /// When the system gives no thread.
    pub fn start(proc_root: &Path, period: Duration) -> std::io::Result<Self> {
        let (orders, inbox) = mpsc::channel();
        let thread = SamplerThread {
            proc_root: proc_root.to_owned(),
            period,
            watched: BTreeMap::new(),
            alert: None,
            suspects_copies: false,
        };
        std::thread::Builder::new()
            .name("torch".into())
            .spawn(move || thread.run(&inbox))?;
        Ok(Self { orders })
    }

    /// The processes to watch from now on: only such as the driver lists as users of a GPU, unless copies are suspected.
    /// A forked worker carries a stale copy of its parent's allocator, which reads as valid.
    pub fn watch(&self, processes: Vec<ProcessKey>) {
        let _ = self.orders.send(SamplerCommand::Watch(processes));
    }

    /// From now on nobody vouches for the processes, as in a container: each is compared with its parent first, and a
    /// forked copy is not read.
    pub fn suspect_copies(&self) {
        let _ = self.orders.send(SamplerCommand::SuspectCopies);
    }

    /// Whom to tell that something rose that is worth a look at the program; `alert` should only pass it on.
    pub fn alert(&self, alert: impl Fn(AllocationSpike) + Send + 'static) {
        let _ = self.orders.send(SamplerCommand::Alert(Box::new(alert)));
    }

    /// What was sampled since this was asked before. `answer` is called on the sampler's thread and should only
    /// pass the value on.
    pub fn pools(&self, answer: impl FnOnce(Pools) + Send + 'static) {
        let _ = self.orders.send(SamplerCommand::Pools(Box::new(answer)));
    }

    /// Every segment and block of one pool, now.
    pub fn map(
        &self,
        process: ProcessKey,
        ordinal: u32,
        answer: impl FnOnce(Result<PoolMap, Missing>) + Send + 'static,
    ) {
        let order = SamplerCommand::Map(process, ordinal, Box::new(answer));
        let _ = self.orders.send(order);
    }
}

struct SamplerThread {
    proc_root: PathBuf,
    period: Duration,
    watched: BTreeMap<ProcessKey, SampledProcess>,
    alert: Option<Alert>,
    suspects_copies: bool,
}

impl SamplerThread {
    fn run(mut self, inbox: &Receiver<SamplerCommand>) {
        let start = Instant::now();
        let mut due: Option<Instant> = None;
        loop {
            let order = match due {
                None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(due) => inbox.recv_timeout(due.saturating_duration_since(Instant::now())),
            };
            match order {
                Ok(order) => {
                    self.serve(order);
                    // A sample that came due meanwhile is taken now, not left out.
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

    /// The first multiple of the period at which any process has something to do.
    fn due(&self, start: Instant) -> Option<Instant> {
        let wake = self
            .watched
            .values()
            .filter_map(SampledProcess::wake)
            .min()?;
        let pause = Duration::from_millis(wake.since(now_mono()).0);
        Some(self.after(start, Instant::now() + pause))
    }

    /// The next multiple of the period after `now`; those that were missed are left out.
    fn after(&self, start: Instant, now: Instant) -> Instant {
        let period = self.period.max(Duration::from_millis(1));
        let passed = now.duration_since(start).as_nanos() / period.as_nanos();
        start + period.saturating_mul(u32::try_from(passed + 1).unwrap_or(u32::MAX))
    }

    fn sample(&mut self) {
        let mut tick = Tick::new(now_mono(), self.suspects_copies);
        for watched in self.watched.values_mut() {
            watched.sample(&self.proc_root, &mut tick);
            if let (Some(rise), Some(alert)) = (watched.rise(tick.now()), &self.alert) {
                alert(rise);
            }
        }
    }

    fn serve(&mut self, order: SamplerCommand) {
        match order {
            SamplerCommand::Alert(alert) => self.alert = Some(alert),
            SamplerCommand::SuspectCopies => self.suspects_copies = true,
            SamplerCommand::Watch(processes) => self.watch(&processes),
            SamplerCommand::Pools(answer) => answer(self.pools()),
            SamplerCommand::Map(process, ordinal, answer) => answer(self.map(process, ordinal)),
        }
    }

    fn watch(&mut self, processes: &[ProcessKey]) {
        self.watched.retain(|key, _| processes.contains(key));
        for &key in processes {
            self.watched
                .entry(key)
                .or_insert_with(|| SampledProcess::new(key));
        }
    }

    fn pools(&mut self) -> Pools {
        let now = now_mono();
        let mut list = Vec::new();
        let mut unread = Vec::new();
        for watched in self.watched.values_mut() {
            watched.refresh(now);
            unread.extend(watched.unread());
            list.extend(watched.hand_out());
        }
        Pools {
            at: now,
            list: Arc::new(list),
            unread: Arc::new(unread),
            ..Pools::default()
        }
    }

    fn map(&mut self, process: ProcessKey, ordinal: u32) -> Result<PoolMap, Missing> {
        let watched = self.watched.get_mut(&process);
        let watched = watched.ok_or_else(|| Failure::NotWatched.missing())?;
        watched.map(ordinal).map_err(|failure| failure.missing())
    }
}
