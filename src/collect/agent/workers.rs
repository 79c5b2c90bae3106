//! Threads that call the driver: one for each GPU, and one for Xid events.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};

use gputop_model::{Gpu, GpuUuid, Millis};

use crate::collect::agent::section::Section;
use crate::collect::nvml::library::{Library, Session};
use crate::collect::nvml::worker::{self, WorkerCommand};
use crate::collect::nvml::{ReceiverClosed, xid};

/// Maximum number of GPU worker threads, in case a driver reports an absurd number of GPUs.
const MAX_GPUS: u32 = 256;

pub(super) struct Workers {
    library: Arc<Library>,
    sections: Sender<Section>,
    by_index: BTreeMap<u32, Sender<WorkerCommand>>,
    /// Sends the GPUs to the driver's Xid event thread. Stops it when dropped.
    xid_thread: Option<Sender<BTreeSet<u32>>>,
    /// The GPU whose screen is open.
    focus: Option<GpuUuid>,
}

impl Workers {
    pub(super) fn new(library: Arc<Library>, sections: Sender<Section>) -> Self {
        Self { library, sections, by_index: BTreeMap::new(), xid_thread: None, focus: None }
    }

    pub(super) fn has(&self, index: u32) -> bool {
        self.by_index.contains_key(&index)
    }

    /// Stops all threads that call the driver. Each ends after its current call.
    pub(super) fn stop(&mut self) {
        self.by_index.clear();
        self.xid_thread = None;
    }

    pub(super) fn indices(&self) -> impl Iterator<Item = u32> {
        self.by_index.keys().copied()
    }

    /// Starts the workers of these GPUs. Workers that are already running are not replaced: if the driver is briefly
    /// unavailable, each worker waits until its GPU is available again. New workers use `session`.
    pub(super) fn start(
        &mut self,
        indices: impl Iterator<Item = u32>,
        session: Option<&Session>,
        interval: Millis,
    ) {
        let before = self.by_index.len();
        for index in indices.take_while(|index| *index < MAX_GPUS) {
            if self.by_index.contains_key(&index) {
                continue;
            }
            let (commands, inbox) = mpsc::channel();
            let (library, sections) = (Arc::clone(&self.library), self.sections.clone());
            let report = move |gpu| {
                let sent = sections.send(Section::Gpu(Box::new(gpu)));
                sent.map_err(|_| ReceiverClosed)
            };
            match worker::spawn(index, library, session.cloned(), interval, inbox, report) {
                Ok(()) => drop(self.by_index.insert(index, commands)),
                Err(error) => tracing::error!(index, %error, "cannot start a GPU worker thread"),
            }
        }
        if !self.by_index.is_empty() && self.xid_thread.is_none() {
            let (gpus, changes) = mpsc::channel();
            let sections = self.sections.clone();
            let report = move |gpu, number| {
                let sent = sections.send(Section::Xid(gpu, number));
                sent.map_err(|_| ReceiverClosed)
            };
            match xid::spawn(Arc::clone(&self.library), changes, report) {
                Ok(()) => self.xid_thread = Some(gpus),
                Err(error) => tracing::error!(%error, "cannot start the Xid thread"),
            }
        }
        if self.by_index.len() != before
            && let Some(gpus) = &self.xid_thread
        {
            let _ = gpus.send(self.by_index.keys().copied().collect());
        }
    }

    pub(super) fn set_interval(&self, interval: Millis) {
        for worker in self.by_index.values() {
            let _ = worker.send(WorkerCommand::Interval(interval));
        }
    }

    pub(super) fn set_focus(&mut self, focus: Option<GpuUuid>, gpus: &BTreeMap<u32, Gpu>) {
        if self.focus == focus {
            return;
        }
        for (index, worker) in &self.by_index {
            let uuid = gpus.get(index).map(|gpu| &gpu.uuid);
            let (had, has) = (uuid == self.focus.as_ref(), uuid == focus.as_ref());
            if uuid.is_some() && had != has {
                let _ = worker.send(WorkerCommand::Focus(has));
            }
        }
        self.focus = focus;
    }

    /// Tells a worker to read its GPU immediately. Returns false if the worker does not exist.
    pub(super) fn read_now(&self, index: u32) -> bool {
        let worker = self.by_index.get(&index);
        worker.is_some_and(|worker| worker.send(WorkerCommand::Now).is_ok())
    }
}
