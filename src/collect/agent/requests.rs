//! Dispatches requests to the threads that serve them, and refuses those that are not permitted.

use std::sync::{Arc, mpsc};

use super::{Agent, Section};
use crate::collect::hook::Traced;
use crate::collect::nvml::worker::WorkerCommand;
use crate::collect::probe;
use crate::collect::process::send_signal;
use crate::collect::python::StackRequest;
use crate::model::frame::Frame;
use crate::model::probe::ProbeRequest;
use crate::model::process::ProcessKey;
use crate::model::reading::{Missing, Reason};
use crate::model::signal::{Signal, Signalled};
use crate::model::units::GpuUuid;
use crate::protocol::{Request, Update};

impl Agent {
    pub(super) fn serve(&mut self, request: Request) {
        match request {
            Request::Detail(key) => {
                let _ = self.details.send(key);
            }
            Request::Stacks(key) => self.python.take(StackRequest::by_user(key)),
            Request::Log(key) => {
                let feed = Arc::clone(&self.feed);
                self.logs
                    .view(key, move |view| feed.push(Update::Log(Arc::new(view))));
            }
            Request::Watch { process, path } => {
                if let Err(why) = self.permissions.watches {
                    let refused = Err(Missing::new(Reason::Denied, why));
                    self.feed.push(Update::Watched(process, refused));
                    return;
                }
                let feed = Arc::clone(&self.feed);
                let answer = move |name| feed.push(Update::Watched(process, name));
                self.logs.name(process, path.into(), answer);
            }
            Request::Signal { signal, processes } => self.send_signal(signal, processes),
            Request::Probe(request) => self.probe(request),
            Request::Focus(focus) => self.set_focus(focus),
            Request::Interval(interval) => {
                self.interval = interval;
                for worker in self.workers.values() {
                    let _ = worker.send(WorkerCommand::Interval(interval));
                }
            }
            Request::Map(wanted) => {
                self.map_wanted = wanted;
                self.ask_for_map();
            }
            Request::Play(_) | Request::Connect => {}
        }
    }

    /// Queues a probe for the probe thread, which runs one at a time because it waits for a child process.
    pub(super) fn probe(&self, request: ProbeRequest) {
        if let Err(why) = self.permissions.probes {
            let refused = probe::refused(&request.gpu, why.into());
            self.feed.push(Update::Probed(Arc::new(refused)));
            return;
        }
        let known = Frame {
            gpus: self.gpus.values().cloned().collect(),
            pools: Some(self.pools.clone()),
            ..Frame::default()
        };
        let _ = self.probes.send((request, known));
    }

    /// Replays allocation traces one at a time, on a thread that the first one starts. The largest takes a second and
    /// more memory than the rest of the agent.
    pub(super) fn replay(&mut self, failures: Vec<Traced>) {
        if failures.is_empty() {
            return;
        }
        if self.replays.is_none() {
            let (replays, inbox) = mpsc::channel::<Traced>();
            let sections = self.sections.clone();
            let work = move || {
                while let Ok(failure) = inbox.recv() {
                    let Some(replayed) = failure.replay() else {
                        continue;
                    };
                    let replayed = Section::TraceReplay(failure.process, Box::new(replayed));
                    if sections.send(replayed).is_err() {
                        return;
                    }
                }
            };
            let thread = std::thread::Builder::new().name("replay".into());
            match thread.spawn(work) {
                Ok(_) => self.replays = Some(replays),
                Err(error) => {
                    tracing::error!(%error, "cannot start the thread for allocation traces");
                }
            }
        }
        let Some(replays) = &self.replays else { return };
        for failure in failures {
            let _ = replays.send(failure);
        }
    }

    pub(super) fn send_signal(&self, signal: Signal, processes: Vec<ProcessKey>) {
        let send = |key| match self.permissions.signals {
            Err(why) => Err(Missing::new(Reason::Denied, why)),
            Ok(()) => send_signal(&self.proc_root, key, signal),
        };
        let outcomes = processes.into_iter().map(|key| (key, send(key)));
        self.feed.push(Update::Signalled(Signalled {
            signal,
            outcomes: outcomes.collect(),
        }));
    }

    pub(super) fn set_focus(&mut self, focus: Option<GpuUuid>) {
        if self.focus == focus {
            return;
        }
        for (index, worker) in &self.workers {
            let uuid = self.gpus.get(index).map(|gpu| &gpu.uuid);
            let (had, has) = (uuid == self.focus.as_ref(), uuid == focus.as_ref());
            if uuid.is_some() && had != has {
                let _ = worker.send(WorkerCommand::Focus(has));
            }
        }
        self.focus = focus;
    }

    pub(super) fn ask_for_map(&self) {
        if let Some((process, ordinal)) = self.map_wanted {
            let sections = self.sections.clone();
            self.sampler.map(process, ordinal, move |map| {
                let _ = sections.send(Section::Map((process, ordinal), map));
            });
        }
    }
}
