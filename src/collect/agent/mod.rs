//! Brings the sections of all collectors together into one frame a tick, and turns requests into orders.
//!
//! Threads: one per GPU (`nvml/worker.rs`), `nvml` (loads the driver, counts the GPUs, starts the workers), `host`
//! (the kernel's side), `ends` (of processes, and the kernel's log), `xid` (the driver's events), `torch`
//! (allocators), `python` (stacks), `logs` (what the processes write), `detail` (one process on request), `probe` (a card
//! on request), `replay` (allocation traces of failures, from the first on), `requests`, and this one. They only meet in the channel of [`Section`]s; answers to a request go straight to the reader. A frame is published when every GPU that answers has reported for the tick, or a quarter of the
//! interval later without the late ones: a late GPU keeps its last readings, grows old on the screen, and holds up
//! nothing.

mod at_oom;
mod devices;
mod kernel;
mod remembered;
mod told;
mod unattributed;
mod xids;

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use self::at_oom::AtOom;
use self::kernel::{Kernel, KernelOrder};
use self::remembered::Remembered;
use self::unattributed::{Known, explain, is_worth_a_look};
use self::xids::{Half, Xids};
use super::clock::{now_mono, now_wall};
use super::driver::{NvmlFailure, diagnose_driver};
use super::ends::oom::Places;
use super::ends::{End, Ends, Seen};
use super::hook::{News, ToldPools, Traced};
use super::host::hello;
use super::kernel_log::XidLine;
use super::logs::{self, Logs, Told};
use super::nvml::library::Library;
use super::nvml::worker::{self, Order};
use super::nvml::xid;
use super::open_files::ask_for_room;
use super::probe;
use super::process::container::Files;
use super::process::leftovers::Leftover;
use super::process::{ProcessReadout, detail, send_signal};
use super::python::{Python, Stack, Wanted};
use super::torch::Failure;
use super::torch::rise::Rise;
use super::torch::sampler::{PERIOD, Sampler};
use crate::model::event::{Event, Exit, HealthChange, Observation, OomsRose, Xid};
use crate::model::frame::{Frame, ProcessList};
use crate::model::gpu::{ContextKind, Gpu, Health, HealthState};
use crate::model::host::{Driver, Hello, Host, PidNamespace};
use crate::model::leave::Leave;
use crate::model::pool::{FailureMap, Pool, PoolMap, Pools};
use crate::model::probe::Wish;
use crate::model::process::{Process, ProcessKey};
use crate::model::reading::{Missing, Reading, Reason};
use crate::model::replayed::Replayed;
use crate::model::signal::{Signal, Signalled};
use crate::model::stack::StackWhy;
use crate::model::text::visible;
use crate::model::units::{GpuUuid, Millis, Mono, StartTicks};
use crate::source::stream::Feed;
use crate::source::{Request, Update};

/// What the agent needs to know before it starts.
#[derive(Debug, Clone)]
pub struct Options {
    pub interval: Millis,
    /// The value of [`LIBRARY_VARIABLE`](super::nvml::library::LIBRARY_VARIABLE).
    pub library: Option<std::ffi::OsString>,
    pub proc_root: PathBuf,
    pub container_files: Files,
    /// The values of TMUX and TMUX_TMPDIR: where this user's tmux servers are.
    pub tmux: Option<std::ffi::OsString>,
    pub tmux_folder: Option<std::ffi::OsString>,
    /// `/sys/fs/cgroup`
    pub cgroup_root: PathBuf,
    /// `/dev/kmsg`, or the value of [`KERNEL_LOG_VARIABLE`](super::kernel_log::KERNEL_LOG_VARIABLE).
    pub kernel_log: PathBuf,
    /// What else is refused, whoever asks.
    pub leave: Leave,
}

/// What a collector's thread hands in.
#[derive(Debug)]
pub enum Section {
    Gpu(Box<Gpu>),
    Driver(Driver),
    Kernel(Box<(Host, Option<ProcessReadout>)>),
    Pools(Pools),
    Map((ProcessKey, u32), Result<PoolMap, Missing>),
    FailureMap(Box<FailureMap>),
    Stack(ProcessKey, Box<Stack>),
    /// Allocations of a watched process failed.
    Ooms(Box<Rise>),
    Log(Box<Told>),
    Hook(News),
    /// An allocation trace was played.
    Replayed(ProcessKey, Box<Replayed>),
    Seen(Seen),
    /// The driver reported an Xid of this number.
    Xid(Option<GpuUuid>, u64),
    Request(Request),
    /// The reader is gone.
    Closed,
}

/// How long the driver's start may hold back the first frame.
const PATIENCE: Duration = Duration::from_millis(1_500);
/// More than any machine has: a driver that counts wildly must not start a thread for each.
const MOST_GPUS: u32 = 256;
/// How long a driver that did not load is left alone.
const RETRY_DRIVER: Duration = Duration::from_secs(10);
/// Starts all threads; the stream ends when the reader drops its end.
///
/// # Errors
/// When the system gives no thread.
pub fn start(options: Options, feed: Feed, requests: Receiver<Request>) -> std::io::Result<()> {
    ask_for_room();
    let (sections, inbox) = mpsc::channel();
    let thread = |name: &str| std::thread::Builder::new().name(name.into());

    let to_agent = sections.clone();
    thread("requests").spawn(move || {
        while let Ok(request) = requests.recv() {
            if to_agent.send(Section::Request(request)).is_err() {
                return;
            }
        }
        let _ = to_agent.send(Section::Closed);
    })?;

    let library = Arc::new(Library::new(options.library.clone()));
    let (driver_library, to_agent) = (Arc::clone(&library), sections.clone());
    thread("nvml").spawn(move || load_driver(&driver_library, &to_agent))?;

    let hello = hello();
    let (kernel_orders, orders) = mpsc::channel();
    let (kernel, to_agent) = (Kernel::new(&options, hello.namespace), sections.clone());
    thread("host").spawn(move || kernel.run(&orders, &to_agent))?;

    let feed = Arc::new(feed);
    let (details, detail_orders) = mpsc::channel();
    let detail_feed = Arc::clone(&feed);
    let proc_root = options.proc_root.clone();
    thread("detail").spawn(move || {
        while let Ok(key) = detail_orders.recv() {
            detail_feed.push(Update::Detail(key, Box::new(detail(&proc_root, key))));
        }
    })?;

    let (probes, wishes) = mpsc::channel::<(Wish, Frame)>();
    let probe_feed = Arc::clone(&feed);
    let proc_root = options.proc_root.clone();
    thread("probe").spawn(move || {
        while let Ok((wish, known)) = wishes.recv() {
            let probe = probe::probe(&wish, &known, &proc_root);
            probe_feed.push(Update::Probed(Arc::new(probe)));
        }
    })?;

    let to_agent = sections.clone();
    let python = Python::start(move |key, stack| {
        let _ = to_agent.send(Section::Stack(key, Box::new(stack)));
    })?;
    let sampler = Sampler::start(&options.proc_root, PERIOD)?;
    if hello.namespace != PidNamespace::Host {
        sampler.suspect_copies();
    }
    let to_agent = sections.clone();
    let (tmux, tmux_folder) = (options.tmux.as_deref(), options.tmux_folder.as_deref());
    let settings = logs::Settings::new(&options.proc_root, tmux, tmux_folder);
    let logs = logs::start(settings, move |told| {
        let _ = to_agent.send(Section::Log(Box::new(told)));
    })?;
    let (at_rise, at_oom, to_agent) = (python.clone(), logs.clone(), sections.clone());
    sampler.alert(move |rise| {
        let wanted = wanted_at(&rise);
        if rise.is_oom() {
            at_oom.ooms_rose(rise.process);
            // Before its stack can be there: who hears of that must know of what it is.
            let _ = to_agent.send(Section::Ooms(Box::new(rise)));
        }
        at_rise.take(wanted);
    });
    let to_agent = sections.clone();
    let places = Places {
        proc_root: options.proc_root.clone(),
        cgroup_root: options.cgroup_root,
        is_host: hello.namespace == PidNamespace::Host,
    };
    let ends = Ends::start(places, &options.kernel_log, move |seen| {
        let _ = to_agent.send(Section::Seen(seen));
    })?;
    let agent = Agent {
        feed,
        log: ends.log().clone(),
        ends,
        xids: Xids::default(),
        xid_thread: None,
        sampler,
        python,
        logs,
        pools: Pools::default(),
        told: ToldPools::default(),
        watched: Vec::new(),
        map_wanted: None,
        boot_id: hello.boot_id.clone(),
        agent_id: hello.agent.clone(),
        namespace: hello.namespace,
        interval: options.interval,
        library,
        sections,
        kernel: kernel_orders,
        details,
        probes,
        replays: None,
        workers: BTreeMap::new(),
        gpus: BTreeMap::new(),
        driver: None,
        host: None,
        processes: ProcessList::default(),
        copies: HashSet::new(),
        leftovers: None,
        remembered: Remembered::default(),
        awaited: Vec::new(),
        at_oom: AtOom::default(),
        focus: None,
        leave: options.leave,
        proc_root: options.proc_root,
        frame_seq: 0,
        event_seq: 0,
    };
    thread("agent").spawn(move || agent.run(hello, &inbox))?;
    Ok(())
}

/// Loads the driver, says what was found, and looks again while there is none or its GPUs may have changed.
fn load_driver(library: &Library, sections: &Sender<Section>) {
    loop {
        if sections
            .send(Section::Driver(find_driver(library)))
            .is_err()
        {
            return;
        }
        std::thread::sleep(RETRY_DRIVER);
    }
}

fn find_driver(library: &Library) -> Driver {
    let nothing = |failure: &NvmlFailure| {
        let trouble = diagnose_driver(Path::new("/"), failure);
        let reason = if *failure == NvmlFailure::NoPermission {
            Reason::Denied
        } else {
            Reason::Unsupported
        };
        Missing::new(reason, trouble.reason())
    };
    let nvml = match library.acquire() {
        Ok(nvml) => nvml,
        Err(error) => {
            let why = nothing(&NvmlFailure::from(&error));
            return Driver {
                version: Reading::Missing(why.clone()),
                cuda: Reading::Missing(why.clone()),
                gpus: Reading::Missing(why),
            };
        }
    };
    let say = |r: Result<String, _>| Reading::from(r.map_err(|e| super::nvml::missing(&e)));
    Driver {
        version: say(nvml.sys_driver_version().map(|v| visible(v.as_bytes(), 40))),
        cuda: say(nvml
            .sys_cuda_driver_version()
            .map(|v| format!("{}.{}", v / 1_000, v % 1_000 / 10))),
        gpus: match nvml.device_count() {
            Ok(0) => Reading::Missing(nothing(&NvmlFailure::NoGpus)),
            Ok(count) => count.into(),
            Err(error) => Reading::Missing(nothing(&NvmlFailure::from(&error))),
        },
    }
}

struct Agent {
    feed: Arc<Feed>,
    ends: Ends,
    /// Whether the kernel's log is being read.
    log: Result<(), Missing>,
    xids: Xids,
    /// Ends the thread of the driver's Xid events when it is dropped.
    xid_thread: Option<Sender<()>>,
    sampler: Sampler,
    python: Python,
    logs: Logs,
    pools: Pools,
    /// What programs say of themselves that nobody may read.
    told: ToldPools,
    /// The processes whose allocators are sampled: those that the driver lists, and no others.
    watched: Vec<ProcessKey>,
    /// The pool whose map a screen shows.
    map_wanted: Option<(ProcessKey, u32)>,
    boot_id: String,
    agent_id: String,
    namespace: PidNamespace,
    interval: Millis,
    library: Arc<Library>,
    sections: Sender<Section>,
    kernel: Sender<KernelOrder>,
    details: Sender<ProcessKey>,
    probes: Sender<(Wish, Frame)>,
    replays: Option<Sender<Traced>>,
    workers: BTreeMap<u32, Sender<Order>>,
    at_oom: AtOom,
    gpus: BTreeMap<u32, Gpu>,
    driver: Option<Driver>,
    host: Option<Host>,
    processes: ProcessList,
    remembered: Remembered,
    /// Those whose ends are waited for.
    awaited: Vec<ProcessKey>,
    /// In a container: forked copies of processes there, which use no GPU themselves.
    copies: HashSet<ProcessKey>,
    leftovers: Option<Vec<Leftover>>,
    focus: Option<GpuUuid>,
    leave: Leave,
    proc_root: PathBuf,
    frame_seq: u64,
    event_seq: u64,
}

/// The agent's reader is gone; everything winds up.
struct Closed;

impl Agent {
    fn run(mut self, hello: Hello, inbox: &Receiver<Section>) {
        self.feed.push(Update::Hello(Arc::new(hello)));
        let mut ticked = self.first_frame(inbox);
        while ticked.is_ok() {
            ticked = self.tick(inbox);
        }
    }

    /// As soon as every GPU has reported once; with what is there when the driver takes its time.
    fn first_frame(&mut self, inbox: &Receiver<Section>) -> Result<(), Closed> {
        let deadline = Instant::now() + PATIENCE;
        self.take_until(inbox, deadline, |agent| {
            agent.driver.is_some() && agent.gpus.len() == agent.workers.len()
        })?;
        self.publish(inbox)
    }

    fn tick(&mut self, inbox: &Receiver<Section>) -> Result<(), Closed> {
        let interval = self.interval.0.max(1);
        let due = (now_mono().0 / interval + 1) * interval;
        // Until the tick, requests are served and late sections taken; then the workers' reports are awaited.
        self.take_until(inbox, instant_of(due), |_| false)?;
        self.take_until(inbox, instant_of(due + interval / 4), |agent| {
            agent.all_reported(Mono(due))
        })?;
        self.publish(inbox)
    }

    fn all_reported(&self, due: Mono) -> bool {
        self.gpus
            .values()
            .all(|gpu| gpu.at >= due || gpu.health.state != HealthState::Answering)
    }

    /// Applies sections until `done` or the deadline.
    fn take_until(
        &mut self,
        inbox: &Receiver<Section>,
        deadline: Instant,
        done: impl Fn(&Self) -> bool,
    ) -> Result<(), Closed> {
        while !done(self) {
            let now = Instant::now();
            let due = self.xids.next_due().map(|due| instant_of(due.0));
            let until = due.map_or(deadline, |due| due.min(deadline));
            match inbox.recv_timeout(until.saturating_duration_since(now)) {
                Ok(section) => self.apply(section)?,
                Err(RecvTimeoutError::Timeout) if until < deadline => {}
                Err(RecvTimeoutError::Timeout) => return Ok(()),
                Err(RecvTimeoutError::Disconnected) => return Err(Closed),
            }
            for xid in self.xids.due(now_mono()) {
                self.announce_driver_xid(xid);
            }
        }
        Ok(())
    }

    fn apply(&mut self, section: Section) -> Result<(), Closed> {
        match section {
            Section::Gpu(gpu) => self.take_gpu(*gpu),
            Section::Driver(found) => self.take_driver(found),
            Section::Kernel(kernel) => self.take_kernel(*kernel),
            Section::Pools(pools) => self.take_pools(pools),
            Section::Ooms(rise) => self.announce_ooms(*rise),
            Section::Stack(key, stack) => self.feed.push(Update::Stacks(key, Arc::new(*stack))),
            Section::FailureMap(map) => self.feed.push(Update::FailureMap(Arc::new(*map))),
            Section::Map(_, Ok(map)) => self.feed.push(Update::Map(Arc::new(map))),
            Section::Map(pool, Err(why)) => self.feed.push(Update::NoMap(pool, why)),
            Section::Log(told) => {
                self.announce(told.process, None, Observation::Log(Box::new(told.excerpt)));
            }
            Section::Hook(news) => {
                self.told = news.told;
                for (key, event) in news.events {
                    self.announce(Some(key), None, Observation::Hook(event));
                }
                self.replay(news.traced);
            }
            Section::Replayed(key, told) => {
                self.announce(Some(key), None, Observation::Replayed(told));
            }
            Section::Seen(Seen::End(end)) => self.announce_exit(*end),
            Section::Seen(Seen::Xid(line)) => self.take_xid_line(*line),
            Section::Seen(Seen::LogEnded(why)) => self.log = Err(why),
            Section::Xid(gpu, number) => self.take_xid(gpu, number),
            Section::Request(request) => self.serve(request),
            Section::Closed => return Err(Closed),
        }
        Ok(())
    }

    fn take_kernel(&mut self, (host, readout): (Host, Option<ProcessReadout>)) {
        if let Some(readout) = readout {
            let list = self.without_copies(&readout.list);
            let before = std::mem::take(&mut self.processes);
            self.remembered.note_list(&before.list, &list, host.at);
            self.processes = ProcessList { at: host.at, list };
            for (key, last) in readout.ended {
                if !self.copies.contains(&key) && self.remembered.is_news(key, last, host.at) {
                    self.ends.found(key, before.at);
                }
            }
            let is_there = |key: &ProcessKey| readout.list.iter().any(|p| p.key == *key);
            self.copies.retain(is_there);
            self.leftovers = readout.leftovers;
            self.await_ends();
        }
        self.host = Some(host);
    }

    fn await_ends(&mut self) {
        let awaited = self.remembered.awaited(&self.processes.list);
        if awaited != self.awaited {
            self.ends.watch(awaited.clone(), self.processes.at);
            self.awaited = awaited;
        }
    }

    fn take_gpu(&mut self, mut gpu: Gpu) {
        if gpu.uuid == GpuUuid::default() {
            gpu.uuid = unnamed(gpu.index);
        }
        let before = self.gpus.get(&gpu.index).map(|g| g.health.state);
        if before.is_some_and(|before| before != gpu.health.state)
            || (before.is_none() && gpu.health.state == HealthState::Lost)
        {
            self.announce_health(&gpu.uuid, &gpu.health);
        }
        for (process, there) in self.at_oom.answers(&gpu) {
            let there = Observation::GpuAtOom(Box::new(there));
            self.announce(Some(process), Some(gpu.uuid.clone()), there);
        }
        self.gpus.insert(gpu.index, gpu);
    }

    fn take_driver(&mut self, driver: Driver) {
        // A driver that is gone for a moment does not take away the workers: each waits for its own GPU.
        for index in 0..driver.gpus.get().unwrap_or(0).min(MOST_GPUS) {
            self.start_worker(index);
        }
        if !self.workers.is_empty() && self.xid_thread.is_none() {
            self.start_xid_thread();
        }
        self.driver = Some(driver);
    }

    fn start_xid_thread(&mut self) {
        let (alive, is_alive) = mpsc::channel();
        match xid::spawn(Arc::clone(&self.library), is_alive, self.sections.clone()) {
            Ok(()) => self.xid_thread = Some(alive),
            Err(error) => tracing::error!(%error, "no thread for Xids"),
        }
    }

    fn take_xid(&mut self, gpu: Option<GpuUuid>, number: u64) {
        let event = Half {
            gpu,
            number,
            at: now_mono(),
        };
        if let Some(xid) = self.xids.event(event, self.log.is_ok()) {
            self.announce_driver_xid(xid);
        }
    }

    fn take_xid_line(&mut self, line: XidLine) {
        let is_it = |gpu: &&Gpu| gpu.board.pci_bus.value() == Some(&line.pci_bus);
        let gpu = self.gpus.values().find(is_it).map(|gpu| gpu.uuid.clone());
        let gpu = self.xids.line(Half {
            gpu,
            number: line.number,
            at: now_mono(),
        });
        let pid = line
            .pid
            .get()
            .filter(|_| self.namespace == PidNamespace::Host);
        let process = pid.and_then(|pid| self.remembered.with_pid(pid, &self.processes.list));
        let xid = Xid {
            number: line.number,
            text: line.text.into(),
            pid: line.pid,
        };
        self.announce(process, gpu, Observation::Xid(xid));
    }

    /// An Xid without its line.
    fn announce_driver_xid(&mut self, xid: Half) {
        let why = match &self.log {
            Ok(()) => Missing::new(Reason::Unknown, "the kernel log has no line of it"),
            Err(why) => why.clone(),
        };
        let observation = Observation::Xid(Xid {
            number: xid.number,
            text: Reading::Missing(why.clone()),
            pid: Reading::Missing(why),
        });
        self.announce(None, xid.gpu, observation);
    }

    fn start_worker(&mut self, index: u32) {
        if self.workers.contains_key(&index) {
            return;
        }
        let (orders, inbox) = mpsc::channel();
        match worker::spawn(
            index,
            Arc::clone(&self.library),
            self.interval,
            inbox,
            self.sections.clone(),
        ) {
            Ok(()) => {
                self.workers.insert(index, orders);
            }
            Err(error) => tracing::error!(index, %error, "no thread for a GPU"),
        }
    }

    fn serve(&mut self, request: Request) {
        match request {
            Request::Detail(key) => {
                let _ = self.details.send(key);
            }
            Request::Stacks(key) => self.python.take(Wanted::asked(key)),
            Request::Log(key) => {
                let feed = Arc::clone(&self.feed);
                self.logs
                    .view(key, move |view| feed.push(Update::Log(Arc::new(view))));
            }
            Request::Watch { process, path } => {
                let feed = Arc::clone(&self.feed);
                let answer = move |name| feed.push(Update::Watched(process, name));
                self.logs.name(process, path.into(), answer);
            }
            Request::Signal { signal, processes } => self.send_signal(signal, processes),
            Request::Probe(wish) => self.probe(wish),
            Request::Focus(focus) => self.set_focus(focus),
            Request::Interval(interval) => {
                self.interval = interval;
                for worker in self.workers.values() {
                    let _ = worker.send(Order::Interval(interval));
                }
            }
            Request::Map(wanted) => {
                self.map_wanted = wanted;
                self.ask_for_map();
            }
            Request::Play(_) | Request::Connect => {}
        }
    }

    /// On the probe's own thread, one after the other: it waits for its child.
    fn probe(&self, wish: Wish) {
        if let Err(why) = self.leave.probes {
            let refused = probe::refused(&wish.gpu, why.into());
            self.feed.push(Update::Probed(Arc::new(refused)));
            return;
        }
        let known = Frame {
            gpus: self.gpus.values().cloned().collect(),
            pools: Some(self.pools.clone()),
            ..Frame::default()
        };
        let _ = self.probes.send((wish, known));
    }

    /// On a thread that is started for the first and plays them one after the other: the largest takes a second and
    /// more memory than everything else here.
    fn replay(&mut self, failures: Vec<Traced>) {
        if failures.is_empty() {
            return;
        }
        if self.replays.is_none() {
            let (replays, inbox) = mpsc::channel::<Traced>();
            let sections = self.sections.clone();
            let work = move || {
                while let Ok(failure) = inbox.recv() {
                    let Some(told) = failure.replay() else {
                        continue;
                    };
                    let told = Section::Replayed(failure.process, Box::new(told));
                    if sections.send(told).is_err() {
                        return;
                    }
                }
            };
            let thread = std::thread::Builder::new().name("replay".into());
            match thread.spawn(work) {
                Ok(_) => self.replays = Some(replays),
                Err(error) => tracing::error!(%error, "no thread for allocation traces"),
            }
        }
        let Some(replays) = &self.replays else { return };
        for failure in failures {
            let _ = replays.send(failure);
        }
    }

    fn send_signal(&self, signal: Signal, processes: Vec<ProcessKey>) {
        let send = |key| match self.leave.signals {
            Err(why) => Err(Missing::new(Reason::Denied, why)),
            Ok(()) => send_signal(&self.proc_root, key, signal),
        };
        let outcomes = processes.into_iter().map(|key| (key, send(key)));
        self.feed.push(Update::Signalled(Signalled {
            signal,
            outcomes: outcomes.collect(),
        }));
    }

    fn set_focus(&mut self, focus: Option<GpuUuid>) {
        if self.focus == focus {
            return;
        }
        for (index, worker) in &self.workers {
            let uuid = self.gpus.get(index).map(|gpu| &gpu.uuid);
            let (had, has) = (uuid == self.focus.as_ref(), uuid == focus.as_ref());
            if uuid.is_some() && had != has {
                let _ = worker.send(Order::Focus(has));
            }
        }
        self.focus = focus;
    }

    fn publish(&mut self, inbox: &Receiver<Section>) -> Result<(), Closed> {
        let now = now_mono();
        self.mark_silent(now);
        self.read_kernel(now, inbox)?;
        self.link_processes();
        self.remembered.note_peaks(self.gpus.values(), now);
        self.read_pools(now, inbox)?;
        self.drop_copies();
        self.explain_unattributed();
        let frame = Frame {
            seq: self.frame_seq,
            time: now_wall(),
            mono: now_mono(),
            interval: self.interval,
            driver: Some(self.driver.clone().unwrap_or_else(not_answering)),
            host: self.host.clone(),
            gpus: self.gpus.values().cloned().collect(),
            processes: Some(self.processes.clone()),
            pools: Some(self.pools.clone()),
        };
        self.frame_seq += 1;
        self.feed.push(Update::Frame(Arc::new(frame)));
        Ok(())
    }

    /// A GPU whose worker has not come back from a call for two ticks.
    fn mark_silent(&mut self, now: Mono) {
        let limit = Millis(self.interval.0 * 2 + 500);
        let mut silent = Vec::new();
        for gpu in self.gpus.values_mut() {
            if gpu.health.state == HealthState::Answering && now.since(gpu.at) > limit {
                gpu.health = Health {
                    state: HealthState::Silent,
                    since: Some(gpu.at),
                    detail: None,
                };
                silent.push((gpu.uuid.clone(), gpu.health.clone()));
            }
        }
        for (uuid, health) in silent {
            self.announce_health(&uuid, &health);
        }
        // A GPU that never reported has no section to grow old.
        for index in self.workers.keys() {
            self.gpus.entry(*index).or_insert_with(|| Gpu {
                index: *index,
                uuid: unnamed(*index),
                name: "GPU that has not answered yet".into(),
                health: Health {
                    state: HealthState::Silent,
                    since: Some(now),
                    detail: None,
                },
                ..Gpu::default()
            });
        }
    }

    /// Has the host thread read the processes of this tick, and waits for it only a moment.
    fn read_kernel(&mut self, now: Mono, inbox: &Receiver<Section>) -> Result<(), Closed> {
        let order = self.kernel_order();
        if self.kernel.send(order).is_err() {
            return Err(Closed);
        }
        let patience = Duration::from_millis((self.interval.0 / 4).clamp(20, 200));
        self.take_until(inbox, Instant::now() + patience, |agent| {
            agent.host.as_ref().is_some_and(|host| host.at >= now)
        })
    }

    fn kernel_order(&self) -> KernelOrder {
        if self.namespace != PidNamespace::Host {
            let devices = self
                .gpus
                .values()
                .filter_map(|g| Some((g.board.minor.get()?, g.uuid.clone())))
                .collect();
            return KernelOrder {
                pids: Vec::new(),
                devices,
                leftovers: false,
            };
        }
        let listed = self
            .gpus
            .values()
            .filter_map(|g| g.processes.value())
            .flatten();
        let pids = listed.map(|process| process.pid).collect();
        let processes = &self.processes.list;
        let leftovers = self
            .gpus
            .values()
            .any(|gpu| is_worth_a_look(gpu, processes));
        KernelOrder {
            pids,
            devices: Vec::new(),
            leftovers,
        }
    }

    /// Ties the driver's entries to the kernel's processes: only here, where both were read in the same tick, and
    /// only where PIDs mean the same to both.
    fn link_processes(&mut self) {
        if self.namespace != PidNamespace::Host {
            return;
        }
        let list = &self.processes.list;
        for gpu in self.gpus.values_mut() {
            let Reading::Value(listed) = &mut gpu.processes else {
                continue;
            };
            for process in listed {
                let found = list.binary_search_by_key(&process.pid, |p| p.key.pid).ok();
                process.process = found.map(|at| list[at].key);
            }
        }
    }

    /// What the allocators were sampled as since the last frame; asked for right after the processes were read.
    fn read_pools(&mut self, now: Mono, inbox: &Receiver<Section>) -> Result<(), Closed> {
        self.watch_processes();
        if self.watched.is_empty() {
            self.take_pools(Pools {
                at: now,
                ..Pools::default()
            });
            return Ok(());
        }
        self.ask_for_map();
        let sections = self.sections.clone();
        self.sampler.pools(move |pools| {
            let _ = sections.send(Section::Pools(pools));
        });
        // Attaching to many processes takes longer than reading them: the first frame does not wait for it.
        let patience = if self.frame_seq == 0 {
            Duration::ZERO
        } else {
            Duration::from_millis((self.interval.0 / 10).clamp(10, 50))
        };
        self.take_until(inbox, Instant::now() + patience, |agent| {
            agent.pools.at >= now
        })
    }

    fn take_pools(&mut self, pools: Pools) {
        let pools = told::added(pools, &self.told);
        self.pools = devices::placed(pools, &self.gpus, &self.processes.list);
    }

    fn watch_processes(&mut self) {
        let listed = self
            .gpus
            .values()
            .filter_map(|gpu| gpu.processes.value())
            .flatten();
        let local = self.processes.list.iter();
        let local = local
            .filter(|process| !process.open_gpus.is_empty())
            .map(|p| p.key);
        let mut keys: Vec<ProcessKey> = listed
            .filter(|process| process.kind != ContextKind::Graphics)
            .filter_map(|process| process.process)
            // In a container, those that hold a device open.
            .chain(local)
            // A process that could not be opened has no start, and no memory to read.
            .filter(|key| key.start != StartTicks(0))
            .collect();
        keys.sort_unstable();
        keys.dedup();
        if keys != self.watched {
            self.sampler.watch(keys.clone());
            self.python.watch(keys.clone());
            self.logs.watch(&keys);
            self.watched = keys;
        }
    }

    fn ask_for_map(&self) {
        if let Some((process, ordinal)) = self.map_wanted {
            let sections = self.sections.clone();
            self.sampler.map(process, ordinal, move |map| {
                let _ = sections.send(Section::Map((process, ordinal), map));
            });
        }
    }

    fn announce_exit(&mut self, end: End) {
        // A forked copy was no user of a GPU.
        if self.copies.contains(&end.process) {
            return;
        }
        let now = now_mono();
        let told = self.remembered.tell(end.process, &self.processes.list, now);
        let Some((last, peak)) = told else { return };
        let exit = Exit {
            last: last.map(Box::new),
            gpus: peak.gpus,
            status: end.code,
            signal: end.signal,
            oom: Box::new(end.oom),
            peak_vram: peak.vram,
            noticed_after: now.since(end.since),
        };
        self.announce(Some(end.process), None, Observation::Exit(exit));
        self.logs.ended(end.process);
    }

    /// In a container nobody says who really uses a GPU: a worker that was forked holds its parent's devices open and
    /// a copy of its allocator, and none of its memory.
    fn drop_copies(&mut self) {
        let why = Failure::Forked.missing();
        let unread = self.pools.unread.iter();
        let new: Vec<ProcessKey> = unread.filter(|u| u.why == why).map(|u| u.process).collect();
        if new.is_empty() {
            return;
        }
        Arc::make_mut(&mut self.pools.unread).retain(|unread| unread.why != why);
        self.copies.extend(new);
        self.processes.list = self.without_copies(&self.processes.list);
    }

    fn without_copies(&self, list: &[Process]) -> Arc<Vec<Process>> {
        let is_kept = |process: &&Process| !self.copies.contains(&process.key);
        Arc::new(list.iter().filter(is_kept).cloned().collect())
    }

    fn explain_unattributed(&mut self) {
        let known = Known {
            namespace: self.namespace,
            processes: &self.processes.list,
            pools: &self.pools,
            leftovers: self.leftovers.as_deref(),
            peaks: self.remembered.peaks(),
        };
        for gpu in self.gpus.values_mut() {
            gpu.unattributed = explain(gpu, &known);
        }
    }

    fn announce_ooms(&mut self, rise: Rise) {
        let Some((before, after)) = rise.ooms else {
            return;
        };
        self.ask_for_failure_map(&rise);
        let is_it = |pool: &&Pool| pool.process == rise.process && pool.ordinal == rise.ordinal;
        let pool = self.pools.list.iter().find(is_it);
        let gpu = pool.and_then(|pool| pool.gpu.value().cloned());
        let rose = OomsRose {
            before,
            after,
            ordinal: rise.ordinal,
            since: rise.since,
            stats: rise.stats,
        };
        self.ask_for_gpu(rise.process, gpu.as_ref());
        self.announce(Some(rise.process), gpu, Observation::Ooms(Box::new(rose)));
    }

    /// What is there now, before who failed lets go of it.
    fn ask_for_gpu(&mut self, process: ProcessKey, gpu: Option<&GpuUuid>) {
        let known = self.gpus.values().find(|known| Some(&known.uuid) == gpu);
        let worker = known.and_then(|known| Some((known, self.workers.get(&known.index)?)));
        if let Some((known, worker)) = worker
            && worker.send(Order::Now).is_ok()
        {
            self.at_oom.ask(process, known.uuid.clone(), now_mono());
        }
    }

    /// The sooner it is read, the less of what failed is taken apart.
    fn ask_for_failure_map(&self, rise: &Rise) {
        let (sections, since) = (self.sections.clone(), rise.since);
        self.sampler.map(rise.process, rise.ordinal, move |map| {
            if let Ok(map) = map {
                let _ = sections.send(Section::FailureMap(Box::new(FailureMap { since, map })));
            }
        });
    }

    fn announce_health(&mut self, gpu: &GpuUuid, health: &Health) {
        let change = HealthChange {
            state: health.state,
            detail: health.detail.clone(),
        };
        self.announce(None, Some(gpu.clone()), Observation::Health(change));
    }

    fn announce(
        &mut self,
        process: Option<ProcessKey>,
        gpu: Option<GpuUuid>,
        observation: Observation,
    ) {
        let event = Event {
            boot_id: self.boot_id.clone(),
            agent: self.agent_id.clone(),
            seq: self.event_seq,
            time: now_wall(),
            mono: now_mono(),
            process,
            gpu,
            observation,
        };
        self.event_seq += 1;
        self.feed.push(Update::Event(event));
    }
}

/// The stack at what the sampler saw.
fn wanted_at(rise: &Rise) -> Wanted {
    Wanted {
        process: rise.process,
        why: if rise.is_oom() {
            StackWhy::Oom
        } else {
            StackWhy::NewMaximum
        },
        since: rise.since,
        allocated: Some(rise.allocated),
    }
}

/// The driver while `nvmlInit` has not returned.
fn not_answering() -> Driver {
    let why = Missing::new(Reason::NotRead, "the driver has not answered yet");
    Driver {
        version: Reading::Missing(why.clone()),
        cuda: Reading::Missing(why.clone()),
        gpus: Reading::Missing(why),
    }
}

/// What stands for the UUID of a GPU that was never opened: screens tell GPUs apart by it.
fn unnamed(index: u32) -> GpuUuid {
    GpuUuid(format!("unknown, of the GPU with index {index}").into())
}

/// The moment on the program's clock at which the boot clock will read `mono`.
fn instant_of(mono: u64) -> Instant {
    Instant::now() + Duration::from_millis(mono.saturating_sub(now_mono().0))
}
