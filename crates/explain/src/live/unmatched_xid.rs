//! Attributes Xids (errors reported by the driver) to processes. For some faults, the driver writes several lines, and
//! only the last one names the process.
//!
//! A line without a process waits for its owner: a process with an Xid of the same number, or a process on the same GPU
//! whose kernels failed. If no owner is found within [`OWNER_TIMEOUT`], the incident is reported for the GPU only. Xids
//! that programs do not cause are reported without waiting.

use gputop_model::event::{Event, Xid};
use gputop_model::units::GpuUuid;

use super::Observer;
use super::case::{LiveCase, OWNER_TIMEOUT, is_application_error};

impl Observer {
    /// Returns the index of the case to which an Xid without a process belongs.
    pub(super) fn owner_of(&self, event: &Event, xid: &Xid) -> Option<usize> {
        if event.process.is_some() || !is_application_error(xid.number) {
            return None;
        }
        let gpu = event.gpu.as_ref()?;
        let is_match = |case: &LiveCase| {
            let is_recent = event.mono.since(case.last_at()) <= OWNER_TIMEOUT;
            let is_same_gpu = case.has_xid(xid.number, Some(gpu)) || self.is_on(case, gpu);
            is_recent && is_same_gpu && case.is_fault()
        };
        self.cases.iter().rposition(is_match)
    }

    /// Moves waiting Xids to the case at `index`. Returns the case's new index, and true if any Xids were moved.
    pub(super) fn claim(&mut self, index: usize) -> (usize, bool) {
        let case = &self.cases[index];
        if !case.is_fault() {
            return (index, false);
        }
        let is_match = |unmatched: &LiveCase| {
            let gpu = unmatched.gpu();
            unmatched.waits_for_owner(self.now)
                && gpu.is_some_and(|gpu| unmatched.shares_xid(case, gpu) || self.is_on(case, gpu))
        };
        let waiting = self.cases.iter().enumerate();
        let claimed: Vec<usize> = waiting
            .filter(|(at, unmatched)| *at != index && is_match(unmatched))
            .map(|(at, _)| at)
            .collect();
        let mut index = index;
        for at in claimed.iter().rev() {
            let unmatched = self.cases.remove(*at);
            index -= usize::from(*at < index);
            self.cases[index].take_xids(unmatched);
        }
        (index, !claimed.is_empty())
    }

    fn is_on(&self, case: &LiveCase, gpu: &GpuUuid) -> bool {
        let frame = self.history.newest();
        let listed = frame.gpus.iter().find(|known| known.uuid == *gpu);
        let at = listed.map(|listed| listed.index);
        case.processes().any(|key| at.is_some() && self.gpu_indices.get(&key).copied() == at)
    }
}
