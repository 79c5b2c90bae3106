//! Assigns numbers to events and publishes them. After a failed allocation, also starts immediate reads of the GPU and
//! of the allocator's memory map.

use std::sync::Arc;

use gputop_model::event::{Exit, HealthChange, OomCountIncreased, Xid};
use gputop_model::protocol::Update;
use gputop_model::{
    Event, FailureMap, Gpu, GpuUuid, Health, Missing, Observation, PidNamespace, Pool, ProcessKey,
    Reading, Reason,
};
use gputop_peek::clock::{now_mono, now_wall};
use gputop_peek::torch::allocation_spike::AllocationSpike;

use super::xids::XidReport;
use crate::collect::agent::running::Agent;
use crate::collect::agent::section::Section;
use crate::collect::exits::ProcessExit;
use crate::collect::kernel_log::XidLine;

impl Agent {
    pub(super) fn take_xid(&mut self, gpu: Option<GpuUuid>, number: u64) {
        let event = XidReport { gpu, number, at: now_mono() };
        if let Some(xid) = self.xids.event(event, self.log.is_ok()) {
            self.announce_driver_xid(xid);
        }
    }

    pub(super) fn take_xid_line(&mut self, line: XidLine) {
        let has_bus_id = |gpu: &&Gpu| gpu.board.pci_bus.value() == Some(&line.pci_bus);
        let gpu = self.gpus.values().find(has_bus_id).map(|gpu| gpu.uuid.clone());
        let gpu = self.xids.line(XidReport { gpu, number: line.number, at: now_mono() });
        let pid = line.pid.get().filter(|_| self.hello.namespace == PidNamespace::Host);
        let process = pid.and_then(|pid| {
            let seen = self.last_seen.with_pid(pid, &self.processes.list);
            seen.or_else(|| self.candidates.with_pid(pid))
        });
        let xid = Xid { number: line.number, text: line.text.into(), pid: line.pid };
        self.announce(process, gpu, Observation::Xid(xid));
    }

    /// Publishes an Xid that the driver reported, but for which no kernel log line was found.
    pub(super) fn announce_driver_xid(&mut self, xid: XidReport) {
        let why = match &self.log {
            Ok(()) => Missing::new(Reason::Unknown, "the kernel log has no line for this Xid"),
            Err(why) => why.clone(),
        };
        let observation = Observation::Xid(Xid {
            number: xid.number,
            text: Reading::Missing(why.clone()),
            pid: Reading::Missing(why),
        });
        self.announce(None, xid.gpu, observation);
    }

    pub(super) fn announce_exit(&mut self, found: ProcessExit) {
        // Ignore the exit of a forked copy of a process, because the copy has not used a GPU.
        if self.copies.contains(&found.process) {
            return;
        }
        let now = now_mono();
        let last_seen = self.last_seen.take(found.process, &self.processes.list, now);
        let Some((last, peak)) = last_seen else { return };
        let candidate = self.candidates.remove(found.process).filter(|_| last.is_none());
        let is_candidate = candidate.is_some();
        if is_candidate && found.code.get() == Some(0) {
            return self.follow_candidates();
        }
        let exit = Exit {
            last: last.or(candidate).map(Box::new),
            is_candidate,
            gpus: peak.gpus,
            status: found.code,
            signal: found.signal,
            oom: Box::new(found.oom),
            peak_vram: peak.vram,
            noticed_after: now.since(found.since),
        };
        self.announce(Some(found.process), None, Observation::Exit(Box::new(exit)));
        for collector in &*self.collectors {
            collector.exited(found.process);
        }
        self.follow_candidates();
    }

    pub(super) fn announce_ooms(&mut self, spike: AllocationSpike) {
        let Some((before, after)) = spike.ooms else { return };
        self.ask_for_failure_map(&spike);
        let has_spike =
            |pool: &&Pool| pool.process == spike.process && pool.ordinal == spike.ordinal;
        let pool = self.pools.list.iter().find(has_spike);
        let gpu = pool.and_then(|pool| pool.gpu.value().cloned());
        let rose = OomCountIncreased {
            before,
            after,
            ordinal: spike.ordinal,
            since: spike.since,
            stats: spike.stats,
        };
        self.ask_for_gpu(spike.process, gpu.as_ref());
        self.announce(Some(spike.process), gpu, Observation::Ooms(Box::new(rose)));
    }

    /// Starts an immediate read of the GPU, so that it takes place before the process whose allocation failed frees its
    /// memory.
    pub(super) fn ask_for_gpu(&mut self, process: ProcessKey, gpu: Option<&GpuUuid>) {
        let gpu = self.gpus.values().find(|known| Some(&known.uuid) == gpu);
        if let Some(gpu) = gpu
            && self.workers.read_now(gpu.index)
        {
            self.at_oom.ask(process, gpu.uuid.clone(), now_mono());
        }
    }

    /// Starts an immediate read of the memory map, so that it takes place before the process handles the failure by
    /// freeing memory.
    pub(super) fn ask_for_failure_map(&self, spike: &AllocationSpike) {
        let (sections, since) = (self.sections.clone(), spike.since);
        self.sampler.map(spike.process, spike.ordinal, move |map| {
            if let Ok(map) = map {
                let update = Update::FailureMap(Arc::new(FailureMap { since, map }));
                let _ = sections.send(Section::Update(update));
            }
        });
    }

    pub(super) fn announce_health(&mut self, gpu: &GpuUuid, health: &Health) {
        let change = HealthChange { state: health.state, detail: health.detail.clone() };
        self.announce(None, Some(gpu.clone()), Observation::Health(change));
    }

    pub(super) fn announce(
        &mut self,
        process: Option<ProcessKey>,
        gpu: Option<GpuUuid>,
        observation: Observation,
    ) {
        for candidate in self.candidates.take_unannounced(process, &observation) {
            let key = candidate.key;
            self.publish_event(Some(key), None, Observation::Candidate(Box::new(candidate)));
        }
        self.publish_event(process, gpu, observation);
    }

    fn publish_event(
        &mut self,
        process: Option<ProcessKey>,
        gpu: Option<GpuUuid>,
        observation: Observation,
    ) {
        let event = Event {
            boot_id: self.hello.boot_id.clone(),
            agent: self.hello.agent.clone(),
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
