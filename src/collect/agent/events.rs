//! Events: each has the next number, and brings what is read because of it under way.

use super::xids::Half;
use super::{Agent, Section};
use crate::collect::clock::{now_mono, now_wall};
use crate::collect::exits::End;
use crate::collect::kernel_log::XidLine;
use crate::collect::nvml::worker::WorkerCommand;
use crate::collect::torch::allocation_spike::AllocationSpike;
use crate::model::event::{Event, Exit, HealthChange, Observation, OomsRose, Xid};
use crate::model::gpu::{Gpu, Health};
use crate::model::host::PidNamespace;
use crate::model::pool::{FailureMap, Pool};
use crate::model::process::ProcessKey;
use crate::model::reading::{Missing, Reading, Reason};
use crate::model::units::GpuUuid;
use crate::source::Update;

impl Agent {
    pub(super) fn take_xid(&mut self, gpu: Option<GpuUuid>, number: u64) {
        let event = Half {
            gpu,
            number,
            at: now_mono(),
        };
        if let Some(xid) = self.xids.event(event, self.log.is_ok()) {
            self.announce_driver_xid(xid);
        }
    }

    pub(super) fn take_xid_line(&mut self, line: XidLine) {
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
    pub(super) fn announce_driver_xid(&mut self, xid: Half) {
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

    pub(super) fn announce_exit(&mut self, end: End) {
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

    pub(super) fn announce_ooms(&mut self, rise: AllocationSpike) {
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
    pub(super) fn ask_for_gpu(&mut self, process: ProcessKey, gpu: Option<&GpuUuid>) {
        let known = self.gpus.values().find(|known| Some(&known.uuid) == gpu);
        let worker = known.and_then(|known| Some((known, self.workers.get(&known.index)?)));
        if let Some((known, worker)) = worker
            && worker.send(WorkerCommand::Now).is_ok()
        {
            self.at_oom.ask(process, known.uuid.clone(), now_mono());
        }
    }

    /// The sooner it is read, the less of what failed is taken apart.
    pub(super) fn ask_for_failure_map(&self, rise: &AllocationSpike) {
        let (sections, since) = (self.sections.clone(), rise.since);
        self.sampler.map(rise.process, rise.ordinal, move |map| {
            if let Ok(map) = map {
                let _ = sections.send(Section::FailureMap(Box::new(FailureMap { since, map })));
            }
        });
    }

    pub(super) fn announce_health(&mut self, gpu: &GpuUuid, health: &Health) {
        let change = HealthChange {
            state: health.state,
            detail: health.detail.clone(),
        };
        self.announce(None, Some(gpu.clone()), Observation::Health(change));
    }

    pub(super) fn announce(
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
