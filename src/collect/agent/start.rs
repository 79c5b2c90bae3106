//! Starts all threads of the agent, and loads the driver on one of them because that can take long.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use super::gpu_at_oom::AtOom;
use super::kernel::Kernel;
use super::last_seen::LastSeen;
use super::xids::Xids;
use super::{Agent, Options, Section, stack_request};
use crate::collect::driver::{NvmlFailure, diagnose_driver};
use crate::collect::exits::ExitWatcher;
use crate::collect::exits::oom::OomCounterPaths;
use crate::collect::hook::ReportedPools;
use crate::collect::host::hello;
use crate::collect::nvml::library::Library;
use crate::collect::process::detail;
use crate::collect::python::Python;
use crate::collect::torch::sampler::{PERIOD, Sampler};
use crate::collect::{logs, probe};
use crate::model::frame::{Frame, ProcessList};
use crate::model::host::{Driver, PidNamespace};
use crate::model::pool::Pools;
use crate::model::probe::ProbeRequest;
use crate::model::reading::{Missing, Reading, Reason};
use crate::model::text::visible;
use crate::protocol::{Request, Update};
use crate::source::stream::Feed;

/// Time between attempts to load the driver and between counts of its GPUs.
const DRIVER_INTERVAL: Duration = Duration::from_secs(10);

/// Starts all threads. They stop when the reader drops its end of the feed.
pub fn start(options: Options, feed: Feed, requests: Receiver<Request>) -> std::io::Result<()> {
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
    let (kernel_requests, read_requests) = mpsc::channel();
    let (kernel, to_agent) = (Kernel::new(&options, hello.namespace), sections.clone());
    thread("host").spawn(move || kernel.run(&read_requests, &to_agent))?;

    let feed = Arc::new(feed);
    let (details, detail_requests) = mpsc::channel();
    let detail_feed = Arc::clone(&feed);
    let proc_root = options.proc_root.clone();
    thread("detail").spawn(move || {
        while let Ok(key) = detail_requests.recv() {
            detail_feed.push(Update::Detail(key, Box::new(detail(&proc_root, key))));
        }
    })?;

    let (probes, probe_requests) = mpsc::channel::<(ProbeRequest, Frame)>();
    let probe_feed = Arc::clone(&feed);
    let proc_root = options.proc_root.clone();
    thread("probe").spawn(move || {
        while let Ok((request, known)) = probe_requests.recv() {
            let probe = probe::probe(&request, &known, &proc_root);
            probe_feed.push(Update::Probed(Arc::new(probe)));
        }
    })?;

    let to_agent = sections.clone();
    let python = Python::start(move |key, stack| {
        let _ = to_agent.send(Section::Stack(key, Box::new(stack)));
    })?;
    let sampler = Sampler::start(&options.proc_root, PERIOD)?;
    if hello.namespace != PidNamespace::Host {
        sampler.detect_copies();
    }
    let to_agent = sections.clone();
    let (tmux, tmux_folder) = (options.tmux.as_deref(), options.tmux_folder.as_deref());
    let settings = logs::Settings {
        is_remote: options.is_remote,
        ..logs::Settings::new(&options.proc_root, tmux, tmux_folder)
    };
    let logs = logs::start(settings, move |excerpt| {
        let _ = to_agent.send(Section::Log(Box::new(excerpt)));
    })?;
    let (stacks, oom_logs, to_agent) = (python.clone(), logs.clone(), sections.clone());
    sampler.alert(move |spike| {
        let request = stack_request(&spike);
        if spike.is_oom() {
            oom_logs.ooms_rose(spike.process);
            // Before the stack is requested, so that the reader learns of the failure first.
            let _ = to_agent.send(Section::Ooms(Box::new(spike)));
        }
        stacks.take(request);
    });
    let to_agent = sections.clone();
    let oom_paths = OomCounterPaths {
        proc_root: options.proc_root.clone(),
        cgroup_root: options.cgroup_root,
        is_host: hello.namespace == PidNamespace::Host,
    };
    let exits = ExitWatcher::start(oom_paths, &options.kernel_log, move |report| {
        let _ = to_agent.send(Section::Exit(report));
    })?;
    let agent = Agent {
        feed,
        log: exits.log().clone(),
        exits,
        xids: Xids::default(),
        xid_thread: None,
        sampler,
        python,
        logs,
        pools: Pools::default(),
        reported: ReportedPools::default(),
        watched: Vec::new(),
        map_wanted: None,
        boot_id: hello.boot_id.clone(),
        agent_id: hello.agent.clone(),
        namespace: hello.namespace,
        interval: options.interval,
        library,
        sections,
        kernel: kernel_requests,
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
        last_seen: LastSeen::default(),
        awaited: Vec::new(),
        at_oom: AtOom::default(),
        focus: None,
        permissions: options.permissions,
        proc_root: options.proc_root,
        frame_seq: 0,
        event_seq: 0,
    };
    thread("agent").spawn(move || agent.run(hello, &inbox))?;
    Ok(())
}

/// Loads the driver and reports the result, repeatedly: a driver may be installed later and GPUs may change.
fn load_driver(library: &Library, sections: &Sender<Section>) {
    loop {
        if sections
            .send(Section::Driver(find_driver(library)))
            .is_err()
        {
            return;
        }
        std::thread::sleep(DRIVER_INTERVAL);
    }
}

fn find_driver(library: &Library) -> Driver {
    let missing = |failure: &NvmlFailure| {
        let diagnosis = diagnose_driver(Path::new("/"), failure);
        let reason = if *failure == NvmlFailure::NoPermission {
            Reason::Denied
        } else {
            Reason::Unsupported
        };
        Missing::new(reason, diagnosis.reason())
    };
    let nvml = match library.acquire() {
        Ok(nvml) => nvml,
        Err(error) => {
            let why = missing(&NvmlFailure::from(&error));
            return Driver {
                version: Reading::Missing(why.clone()),
                cuda: Reading::Missing(why.clone()),
                gpus: Reading::Missing(why),
            };
        }
    };
    let reading =
        |r: Result<String, _>| Reading::from(r.map_err(|e| crate::collect::nvml::missing(&e)));
    Driver {
        version: reading(nvml.sys_driver_version().map(|v| visible(v.as_bytes(), 40))),
        cuda: reading(
            nvml.sys_cuda_driver_version()
                .map(|v| format!("{}.{}", v / 1_000, v % 1_000 / 10)),
        ),
        gpus: match nvml.device_count() {
            Ok(0) => Reading::Missing(missing(&NvmlFailure::NoGpus)),
            Ok(count) => count.into(),
            Err(error) => Reading::Missing(missing(&NvmlFailure::from(&error))),
        },
    }
}
