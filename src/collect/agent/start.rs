//! All threads of the agent, and the driver, which may take its time.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use super::gpu_at_oom::AtOom;
use super::kernel::Kernel;
use super::last_seen::Remembered;
use super::xids::Xids;
use super::{Agent, Options, Section, wanted_at};
use crate::collect::driver::{NvmlFailure, diagnose_driver};
use crate::collect::exits::Ends;
use crate::collect::exits::oom::OomCounterPaths;
use crate::collect::hook::ToldPools;
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
use crate::source::stream::Feed;
use crate::source::{Request, Update};

/// How long a driver that did not load is left alone.
const RETRY_DRIVER: Duration = Duration::from_secs(10);

/// Starts all threads; the stream ends when the reader drops its end.
///
/// # Errors
/// When the system gives no thread.
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

    let (probes, wishes) = mpsc::channel::<(ProbeRequest, Frame)>();
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
        sampler.detect_copies();
    }
    let to_agent = sections.clone();
    let (tmux, tmux_folder) = (options.tmux.as_deref(), options.tmux_folder.as_deref());
    let settings = logs::Settings {
        is_remote: options.is_remote,
        ..logs::Settings::new(&options.proc_root, tmux, tmux_folder)
    };
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
    let places = OomCounterPaths {
        proc_root: options.proc_root.clone(),
        cgroup_root: options.cgroup_root,
        is_host: hello.namespace == PidNamespace::Host,
    };
    let ends = Ends::start(places, &options.kernel_log, move |seen| {
        let _ = to_agent.send(Section::Exit(seen));
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
    let say =
        |r: Result<String, _>| Reading::from(r.map_err(|e| crate::collect::nvml::missing(&e)));
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
