//! Reads the NCCL process groups of the processes that use a GPU, once a second, on a thread of its own.
//!
//! While a rank waits for a few seconds, the Python stacks of the job's ranks on this host are read as well, because they
//! say what the rank does that the others wait for. The ranks that wait may all be on other hosts, so the stacks are also
//! read while a rank of a job on several hosts calls nothing.
//!
//! Which rank comes last to the collectives is known from PyTorch's flight recorder. Where it is off, the counters are read
//! 50 times a second on request.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use gputop_explain::ranks::ArrivalWatch;
use gputop_model::process_group::GroupArrivals;
use gputop_model::{Millis, Mono, ProcessKey, PythonStack, RankReading, Reading, Reason};
use gputop_peek::clock::{Instants, now_mono};
use gputop_peek::memory::live::Live;
use gputop_peek::nccl::{Failure, ProcessGroups};
use gputop_peek::python::{PythonReader, StackRequest};

/// Time between two readings.
const PERIOD: Millis = Millis(1_000);
/// Time between two readings while arrivals at collectives are counted.
const SWEEP_PERIOD: Millis = Millis(20);
/// Time between two searches of a process. It doubles after each search that finds no group.
const MIN_PAUSE: Millis = Millis(2_000);
const MAX_PAUSE: Millis = Millis(60_000);
/// Age of a pending collective from which on stacks are read.
const MIN_WAIT: Millis = Millis(5_000);
/// Time between two stacks of a process.
const STACK_PERIOD: Millis = Millis(5_000);
/// Maximum number of ranks whose groups are read.
const MAX_RANKS: usize = 64;

/// Handle to the thread, which exits when the handle is dropped.
#[derive(Debug)]
pub struct Ranks {
    commands: Sender<Command>,
}

#[derive(Debug)]
enum Command {
    Watch(Vec<ProcessKey>),
    CountArrivals(bool),
}

/// A message from the thread.
#[derive(Debug)]
pub enum RankAnswer {
    /// The readings of all ranks, sorted by process. Empty once after the last rank has exited.
    Readings(Vec<RankReading>),
    /// Once a second while arrivals are counted or recorded, and once after that.
    Arrivals(Vec<GroupArrivals>),
}

impl Ranks {
    /// Starts the thread, which calls `answer`.
    pub fn start(
        proc_root: &Path,
        answer: impl Fn(RankAnswer) + Send + 'static,
    ) -> std::io::Result<Self> {
        let (commands, inbox) = mpsc::channel();
        let mut ranks = RankThread::new(proc_root);
        let run = move || ranks.run(&inbox, &answer);
        std::thread::Builder::new().name("ranks".into()).spawn(run)?;
        Ok(Self { commands })
    }

    pub fn watch(&self, processes: &[ProcessKey]) {
        let _ = self.commands.send(Command::Watch(processes.to_vec()));
    }

    /// Counts from now on which ranks come last to the collectives, or stops that. Continues if it counts already. Nothing
    /// is counted if the flight recorders of all ranks are on.
    pub fn count_arrivals(&self, is_wanted: bool) {
        let _ = self.commands.send(Command::CountArrivals(is_wanted));
    }
}

struct RankThread {
    reader: RankReader,
    arrivals: Option<ArrivalWatch>,
    /// Arrivals by the flight recorders of the ranks.
    recorded: ArrivalWatch,
    had_recorded: bool,
    /// True if the flight recorders of all ranks are on.
    is_recorded: bool,
    answered_at: Mono,
    had_ranks: bool,
}

impl RankThread {
    fn new(proc_root: &Path) -> Self {
        let reader = RankReader::new(proc_root);
        Self {
            reader,
            arrivals: None,
            recorded: ArrivalWatch::default(),
            had_recorded: false,
            is_recorded: false,
            answered_at: Mono::default(),
            had_ranks: false,
        }
    }

    fn run(&mut self, inbox: &Receiver<Command>, answer: &impl Fn(RankAnswer)) {
        loop {
            let counts = self.arrivals.is_some() && !self.is_recorded;
            let period = if counts { SWEEP_PERIOD } else { PERIOD };
            let command = match self.reader.due(period) {
                None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(due) => inbox.recv_timeout(Duration::from_millis(due.since(now_mono()).0)),
            };
            match command {
                Ok(Command::Watch(processes)) => self.reader.watch(&processes),
                Ok(Command::CountArrivals(is_wanted)) => self.count_arrivals(is_wanted),
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => self.look(answer),
            }
        }
    }

    fn count_arrivals(&mut self, is_wanted: bool) {
        match (is_wanted, &self.arrivals) {
            (true, None) => {
                self.arrivals = Some(ArrivalWatch::default());
                // Answer at once, because the screen may show an older count.
                self.answered_at = Mono::default();
            }
            (true, Some(_)) => {}
            (false, _) => self.arrivals = None,
        }
    }

    fn look(&mut self, answer: &impl Fn(RankAnswer)) {
        let mut ranks = self.reader.read();
        let now = self.reader.read_at;
        if let Some(arrivals) = &mut self.arrivals {
            arrivals.sweep(now, &ranks);
        }
        if now.since(self.answered_at) < PERIOD {
            return;
        }
        self.answered_at = now;
        if let Some(arrivals) = self.count_recorded(now, &mut ranks) {
            answer(RankAnswer::Arrivals(arrivals));
        }
        let has_ranks = !ranks.is_empty();
        if has_ranks || self.had_ranks {
            answer(RankAnswer::Readings(ranks));
        }
        self.had_ranks = has_ranks;
    }

    /// Returns the arrivals, if there is news: those of the flight recorders, or those that were counted if some rank has
    /// no recorder.
    fn count_recorded(
        &mut self,
        now: Mono,
        ranks: &mut [RankReading],
    ) -> Option<Vec<GroupArrivals>> {
        self.recorded.add_recorded(now, ranks);
        let mut is_recorded = !ranks.is_empty();
        for rank in ranks {
            let Reading::Value(groups) = &mut rank.groups else { continue };
            let calls = groups.iter_mut().map(|group| std::mem::take(&mut group.recorded));
            is_recorded &= calls.fold(false, |found, calls| found | !calls.is_empty());
        }
        self.is_recorded = is_recorded;
        let recorded = self.recorded.arrivals();
        let had_recorded = std::mem::replace(&mut self.had_recorded, !recorded.is_empty());
        match &self.arrivals {
            Some(counted) if !is_recorded => Some(counted.arrivals()),
            Some(_) => Some(recorded),
            None => (had_recorded || !recorded.is_empty()).then_some(recorded),
        }
    }
}

/// Reader of all ranks on this host. Separate from its thread, so that a command can use it directly.
pub struct RankReader {
    proc_root: PathBuf,
    processes: BTreeMap<ProcessKey, Watched>,
    python: PythonReader,
    read_at: Mono,
}

#[derive(Default)]
struct Watched {
    /// The process groups, if the process has loaded PyTorch with NCCL.
    groups: Option<ProcessGroups<Live>>,
    /// Number of groups at the last reading.
    count: usize,
    /// Why the memory of the process cannot be read.
    denied: Option<Failure>,
    next_search: Mono,
    pause: Millis,
    stack: Option<Arc<PythonStack>>,
    stack_at: Mono,
    /// Number of operations called, and the time of the first reading with this number.
    calls: u64,
    called_at: Mono,
}

impl RankReader {
    pub fn new(proc_root: &Path) -> Self {
        Self {
            proc_root: proc_root.to_owned(),
            processes: BTreeMap::new(),
            python: PythonReader::default(),
            read_at: Mono::default(),
        }
    }

    /// Sets the processes to read. Pass only processes that the driver lists: a forked worker has a copy of its parent's
    /// groups.
    pub fn watch(&mut self, processes: &[ProcessKey]) {
        self.processes.retain(|key, _| processes.contains(key));
        for key in processes.iter().take(MAX_RANKS) {
            self.processes.entry(*key).or_default();
        }
        self.python.watch(processes);
    }

    /// Returns the time of the next reading or search, if ranks are read once in each period. `None` if there is no
    /// process.
    fn due(&self, period: Millis) -> Option<Mono> {
        let next = Mono(self.read_at.0 + period.0);
        let due = |watched: &Watched| match watched.groups {
            Some(_) => next,
            None => watched.next_search.max(next),
        };
        self.processes.values().map(due).min()
    }

    /// Reads all ranks. Leaves out processes without process groups.
    pub fn read(&mut self) -> Vec<RankReading> {
        self.read_at = now_mono();
        let mut readings = Vec::new();
        for (key, watched) in &mut self.processes {
            watched.search_if_due(&self.proc_root, *key);
            readings.extend(watched.read(*key));
        }
        self.add_stacks(&mut readings);
        readings
    }

    /// Adds the stacks of the jobs in which a rank waits.
    fn add_stacks(&mut self, readings: &mut [RankReading]) {
        let now = self.read_at;
        let is_on_several_hosts = |job: &RankReading| {
            let here = readings.iter().filter(|other| other.store == job.store).count();
            job.world_size.is_some_and(|size| usize::try_from(size).is_ok_and(|all| all > here))
        };
        let is_quiet = |reading: &RankReading| {
            let watched = self.processes.get(&reading.process);
            watched.is_some_and(|watched| now.since(watched.called_at) >= MIN_WAIT)
        };
        let waits = |reading: &&RankReading| {
            oldest_pending(reading).is_some_and(|called| now.since(called) >= MIN_WAIT)
                || is_on_several_hosts(reading) && is_quiet(reading)
        };
        let waiting: BTreeSet<Option<String>> =
            readings.iter().filter(waits).map(|reading| reading.store.clone()).collect();
        for reading in readings {
            let Some(watched) = self.processes.get_mut(&reading.process) else { continue };
            if !waiting.contains(&reading.store) {
                watched.stack = None;
                continue;
            }
            if watched.stack.is_none() || now.since(watched.stack_at) >= STACK_PERIOD {
                let stack = self.python.take(StackRequest::by_user(reading.process));
                watched.stack = stack.and_then(Result::ok).map(Arc::new);
                watched.stack_at = now;
            }
            reading.stack.clone_from(&watched.stack);
        }
    }
}

/// Returns the time of the oldest call that has not completed.
fn oldest_pending(reading: &RankReading) -> Option<Mono> {
    let groups = reading.groups.value().into_iter().flatten();
    let pending = groups.filter_map(|group| group.pending.value()?.first());
    pending.map(gputop_model::PendingWork::called_at).min()
}

/// Returns the number of operations that a rank has called in all its groups.
fn calls(reading: &RankReading) -> u64 {
    let groups = reading.groups.value().into_iter().flatten();
    let called = groups.flat_map(|group| [group.called.get(), group.called_p2p.get()]);
    called.flatten().fold(0, u64::saturating_add)
}

impl Watched {
    fn search_if_due(&mut self, proc_root: &Path, key: ProcessKey) {
        let now = now_mono();
        if now < self.next_search {
            return;
        }
        let found = match &mut self.groups {
            Some(groups) => {
                if !groups.needs_search() {
                    return;
                }
                groups.search()
            }
            None => ProcessGroups::open(proc_root, key).map(|groups| self.groups = Some(groups)),
        };
        if found.is_err() {
            self.groups = None;
        }
        self.denied = found.err().filter(|why| why.missing().reason == Reason::Denied);
        self.pause = Millis((self.pause.0 * 2).clamp(MIN_PAUSE.0, MAX_PAUSE.0));
        self.next_search = Mono(now_mono().0 + self.pause.0);
    }

    fn read(&mut self, process: ProcessKey) -> Option<RankReading> {
        let now = Instants::now();
        if let Some(why) = &self.denied {
            let groups = Reading::Missing(why.missing());
            return Some(RankReading { process, at: now.mono(), groups, ..RankReading::default() });
        }
        let Ok(reading) = self.groups.as_mut()?.read(now) else {
            self.groups = None;
            return None;
        };
        let count = reading.groups.value()?.len();
        // A search that found a group was worth it, so that the next one need not wait.
        if count > self.count {
            self.pause = Millis(0);
        }
        self.count = count;
        let calls = calls(&reading);
        if calls != self.calls {
            (self.calls, self.called_at) = (calls, now.mono());
        }
        Some(reading)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn arrivals_are_counted_only_on_request() {
        let answers = RefCell::new(Vec::new());
        let mut ranks = RankThread::new(Path::new("/proc"));
        let look = |ranks: &mut RankThread| {
            ranks.look(&|answer| answers.borrow_mut().push(answer));
            let taken = answers.take();
            taken.iter().filter(|answer| matches!(answer, RankAnswer::Arrivals(_))).count()
        };
        assert_eq!(look(&mut ranks), 0);
        ranks.count_arrivals(true);
        assert_eq!(look(&mut ranks), 1, "at once");
        // The request is repeated with every frame, which does not restart the count.
        let answered_at = ranks.answered_at;
        ranks.count_arrivals(true);
        assert_eq!(ranks.answered_at, answered_at);
        ranks.count_arrivals(false);
        ranks.answered_at = Mono::default();
        assert_eq!(look(&mut ranks), 0);
    }
}
