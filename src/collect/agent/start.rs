//! Starts all threads of the agent. A separate thread loads the driver, because loading can take a long time.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};

use gputop_model::protocol::Request;
use gputop_model::protocol::stream::Feed;
use gputop_model::{Observation, PidNamespace, Pools, ProcessList};
use gputop_peek::clock::now_mono;
use gputop_peek::torch::sampler::{PERIOD, Sampler};

use super::collectors::{CollectorContext, Collectors, job_thread, start_collectors};
use super::driver::DriverLoader;
use super::followed_candidates::FollowedCandidates;
use super::gpu_at_oom::AtOom;
use super::kernel::{Kernel, ReadRequest};
use super::last_seen::LastSeen;
use super::underused::UnderusedGpus;
use super::workers::Workers;
use super::xids::Xids;
use crate::collect::agent::options::Options;
use crate::collect::agent::running::Agent;
use crate::collect::agent::section::Section;
use crate::collect::candidates::CandidateFinder;
use crate::collect::exits::ExitWatcher;
use crate::collect::exits::oom::OomCounterPaths;
use crate::collect::hook::{ReportedPools, Traced};
use crate::collect::host::hello;
use crate::collect::nvml::library::Library;

/// Starts all threads of the agent. They stop when the reader drops its end of the feed.
pub fn start(options: Options, feed: Feed, requests: Receiver<Request>) -> io::Result<()> {
    let (sections, inbox) = mpsc::channel();
    let thread = |name: &str| std::thread::Builder::new().name(name.into());
    let (hello, feed) = (Arc::new(hello()), Arc::new(feed));

    let to_agent = sections.clone();
    thread("requests").spawn(move || forward(&requests, &to_agent))?;

    let library = Arc::new(Library::new(options.library.clone()));
    let loader = DriverLoader {
        library: Arc::clone(&library),
        sys_root: options.sys_root.clone(),
        keeps_awake: options.keeps_gpus_awake,
        idle_limit: options.idle_limit,
    };
    let (driver_commands, commands) = mpsc::channel();
    let to_agent = sections.clone();
    thread("nvml").spawn(move || loader.run(&commands, &to_agent))?;

    let collectors = start_collectors(&CollectorContext {
        options: &options,
        sections: &sections,
        feed: &feed,
    })?;
    let finder = options.finds_candidates.then(|| start_finder(&options, sections.clone()));
    let finder = finder.transpose()?;
    let exits = start_exits(&options, hello.namespace, sections.clone())?;
    let agent = Agent {
        feed,
        log: exits.log().clone(),
        exits,
        _finder: finder,
        candidates: FollowedCandidates::default(),
        followed: Vec::new(),
        xids: Xids::default(),
        sampler: start_sampler(&options, hello.namespace, &collectors, sections.clone())?,
        collectors,
        pools: Pools::default(),
        ranks: Arc::default(),
        reported: ReportedPools::default(),
        watched: Vec::new(),
        map_wanted: None,
        kernel: start_kernel(&options, hello.namespace, sections.clone())?,
        replays: start_replays(sections.clone())?,
        workers: Workers::new(library, sections.clone()),
        driver_commands,
        idle_limit: None,
        used_at: now_mono(),
        sections,
        gpus: BTreeMap::new(),
        driver: None,
        host: None,
        processes: ProcessList::default(),
        copies: HashSet::new(),
        leftovers: None,
        last_seen: LastSeen::default(),
        awaited: Vec::new(),
        underused: UnderusedGpus::default(),
        at_oom: AtOom::default(),
        hello,
        options,
        frame_seq: 0,
        event_seq: 0,
    };
    thread("agent").spawn(move || agent.run(&inbox))?;
    Ok(())
}

/// Forwards requests until the reader drops the source.
fn forward(requests: &Receiver<Request>, sections: &Sender<Section>) {
    while let Ok(request) = requests.recv() {
        if sections.send(Section::Request(request)).is_err() {
            return;
        }
    }
    let _ = sections.send(Section::Closed);
}

fn start_kernel(
    options: &Options,
    namespace: PidNamespace,
    sections: Sender<Section>,
) -> io::Result<Sender<ReadRequest>> {
    let (requests, inbox) = mpsc::channel();
    let kernel = Kernel::new(options, namespace);
    std::thread::Builder::new().name("host".into()).spawn(move || kernel.run(&inbox, &sections))?;
    Ok(requests)
}

fn start_sampler(
    options: &Options,
    namespace: PidNamespace,
    collectors: &Collectors,
    sections: Sender<Section>,
) -> io::Result<Sampler> {
    let sampler = Sampler::start(&options.proc_root, PERIOD)?;
    if namespace != PidNamespace::Host {
        sampler.detect_copies();
    }
    let collectors = Arc::clone(collectors);
    sampler.alert(move |spike| {
        if spike.is_oom() {
            // Send the failed allocation before the collectors request the Python stack, so that the reader receives
            // the failure first.
            let _ = sections.send(Section::Ooms(Box::new(spike.clone())));
        }
        for collector in &*collectors {
            collector.allocation_spike(&spike);
        }
    });
    Ok(sampler)
}

fn start_finder(options: &Options, sections: Sender<Section>) -> io::Result<CandidateFinder> {
    let files = options.container_files.clone();
    CandidateFinder::start(&options.proc_root, files, move |candidate| {
        let _ = sections.send(Section::Candidate(Box::new(candidate)));
    })
}

fn start_exits(
    options: &Options,
    namespace: PidNamespace,
    sections: Sender<Section>,
) -> io::Result<ExitWatcher> {
    let oom_paths = OomCounterPaths {
        proc_root: options.proc_root.clone(),
        cgroup_root: options.cgroup_root.clone(),
        is_host: namespace == PidNamespace::Host,
    };
    ExitWatcher::start(oom_paths, &options.kernel_log, move |report| {
        let _ = sections.send(Section::Exit(report));
    })
}

/// Starts the thread that replays allocation traces one at a time. Replaying the largest trace takes a second, and
/// needs more memory than all other threads of the agent together.
fn start_replays(sections: Sender<Section>) -> io::Result<Sender<Traced>> {
    job_thread("replay", move |failure: Traced| {
        if let Some(replayed) = failure.replay() {
            let observation = Observation::TraceReplay(Box::new(replayed));
            let _ = sections.send(Section::Observation(Some(failure.process), observation));
        }
    })
}
