//! Xids that name no process: of some faults the driver writes several lines, and only the last says whose it was.
//!
//! Such a line waits a moment for its owner: a process of which an Xid of the same number is told, or one on the same
//! GPU whose kernels went wrong. What nobody claims by then is told of the GPU alone. Xids that are no program's doing
//! wait for nobody.

use super::Observer;
use super::case::Case;
use crate::diagnose::catalogue::Catalogue;
use crate::model::event::{Event, Xid};
use crate::model::units::{GpuUuid, Millis};

/// Lines of one fault lie within milliseconds; what the program writes of it comes later.
pub const STRAY: Millis = Millis(2_000);

/// By the table of Xids it is a program that is at fault.
pub fn is_of_programs(number: u64) -> bool {
    let mut xids = Catalogue::embedded().tables.xids.iter();
    let known = xids.find(|xid| xid.codes.contains(&number));
    known.is_some_and(|xid| xid.side == "application")
}

impl Observer {
    /// The case of an Xid that names no process.
    pub(super) fn owner_of(&self, event: &Event, xid: &Xid) -> Option<usize> {
        if event.process.is_some() || !is_of_programs(xid.number) {
            return None;
        }
        let gpu = event.gpu.as_ref()?;
        let is_its = |case: &Case| {
            let is_now = event.mono.since(case.last_at()) <= STRAY;
            let is_there = case.has_xid(xid.number, Some(gpu)) || self.is_on(case, gpu);
            is_now && is_there && case.is_fault()
        };
        self.cases.iter().rposition(is_its)
    }

    /// Gives the case at `index` the Xids that waited for it; where it stands now, and whether there were any.
    pub(super) fn claim(&mut self, index: usize) -> (usize, bool) {
        let case = &self.cases[index];
        if !case.is_fault() {
            return (index, false);
        }
        let is_its = |stray: &Case| {
            let gpu = stray.gpu();
            stray.waits(self.now)
                && gpu.is_some_and(|gpu| stray.shares_xid(case, gpu) || self.is_on(case, gpu))
        };
        let waiting = self.cases.iter().enumerate();
        let claimed: Vec<usize> = waiting
            .filter(|(at, stray)| *at != index && is_its(stray))
            .map(|(at, _)| at)
            .collect();
        let mut index = index;
        for at in claimed.iter().rev() {
            let stray = self.cases.remove(*at);
            index -= usize::from(*at < index);
            self.cases[index].take_xids(stray);
        }
        (index, !claimed.is_empty())
    }

    fn is_on(&self, case: &Case, gpu: &GpuUuid) -> bool {
        let frame = self.tracks.newest();
        let place = frame.gpus.iter().find(|known| known.uuid == *gpu);
        let at = place.map(|place| place.index);
        case.processes()
            .any(|key| at.is_some() && self.places.get(&key).copied() == at)
    }
}
