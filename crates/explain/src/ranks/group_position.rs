//! The position of one rank in one group: how many collectives it has called, and which are pending.

use std::sync::Arc;

use gputop_model::process_group::{PendingWork, ProcessGroup, Work};
use gputop_model::text::visible;
use gputop_model::units::{Millis, Mono};

/// Larger groups are dropped as implausible.
const MAX_GROUP_SIZE: u32 = 1 << 16;
const MAX_LABEL_CHARS: usize = 24;
const MAX_OPERATION_CHARS: usize = 24;

/// Operations that are always point-to-point. `COALESCED` can be both.
const P2P: [&str; 2] = ["SEND", "RECV"];
const COALESCED: &str = "COALESCED";

/// Identity of a group within its job. Groups of a mesh share a description, and groups of two libraries may share a
/// name, so the members are part of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GroupKey {
    name: String,
    pub(super) size: u32,
    /// Ranks in the job in ascending order. `None` if they are 0 to `size` - 1.
    members: Option<Arc<[u32]>>,
}

impl GroupKey {
    /// Returns `None` if the group is implausible, or has only one rank.
    pub(super) fn of(group: &ProcessGroup) -> Option<Self> {
        let members = match &group.members {
            Some(members) => sorted(members, group.size)?,
            None => None,
        };
        let is_plausible = (2..=MAX_GROUP_SIZE).contains(&group.size) && group.rank < group.size;
        is_plausible.then(|| Self { name: group.name.clone(), size: group.size, members })
    }

    pub(super) fn contains(&self, rank: u32) -> bool {
        match &self.members {
            Some(members) => members.binary_search(&rank).is_ok(),
            None => rank < self.size,
        }
    }

    /// Returns the ranks in ascending order.
    pub(super) fn ranks(&self) -> impl Iterator<Item = u32> + '_ {
        let listed = self.members.iter().flat_map(|members| members.iter().copied());
        listed.chain(0..if self.members.is_some() { 0 } else { self.size })
    }
}

/// Returns the members in ascending order, `Some(None)` if they are 0 to `size` - 1, and `None` if they are implausible.
fn sorted(members: &Arc<[u32]>, size: u32) -> Option<Option<Arc<[u32]>>> {
    if usize::try_from(size).ok() != Some(members.len()) {
        return None;
    }
    let mut sorted = members.clone();
    if !sorted.is_sorted() {
        Arc::make_mut(&mut sorted).sort_unstable();
    }
    let is_whole = (0..size).eq(sorted.iter().copied());
    Some((!is_whole).then_some(sorted))
}

#[derive(Debug, Clone)]
pub(super) struct GroupPosition {
    pub(super) group: Arc<GroupKey>,
    /// The description, or the name if there is none. For display.
    pub(super) label: Arc<str>,
    pub(super) called: Option<u64>,
    pub(super) called_p2p: Option<u64>,
    pub(super) enqueued: Option<Work>,
    pub(super) completed: Option<Work>,
    /// Oldest pending collective.
    pub(super) collective: Option<PendingWork>,
    /// Oldest pending point-to-point operation.
    pub(super) p2p: Option<PendingWork>,
    /// Time of the first look at which NCCL had not returned from the newest collective.
    pub(super) inside_since: Option<Mono>,
}

impl GroupPosition {
    pub(super) fn of(group: &ProcessGroup) -> Option<Self> {
        let key = GroupKey::of(group)?;
        let pending = group.pending.value().map_or(&[][..], Vec::as_slice);
        let oldest = |p2p| {
            let works = pending.iter().filter(|pending| is_p2p(&pending.work, group) == p2p);
            let oldest = works.min_by_key(|pending| (pending.called_ns, pending.work.seq));
            oldest.map(|pending| PendingWork { work: bounded(&pending.work), ..pending.clone() })
        };
        Some(Self {
            group: Arc::new(key),
            label: label(group).into(),
            called: group.called.get(),
            called_p2p: group.called_p2p.get(),
            enqueued: group.enqueued.as_ref().map(bounded),
            completed: group.completed.as_ref().map(bounded),
            collective: oldest(false),
            p2p: oldest(true),
            inside_since: None,
        })
    }

    /// Returns true if the host has called NCCL for its newest collective and NCCL has not returned. Point-to-point
    /// operations share the numbers of `enqueued`, so nothing is known about groups that use them.
    pub(super) fn is_inside_call(&self) -> bool {
        // A new group has enqueued nothing. Releases without this number do not count point-to-point operations either.
        let enqueued = self.enqueued.as_ref().map_or(0, |work| work.seq);
        let is_collective = self.called_p2p == Some(0);
        is_collective && self.called.is_some_and(|called| Some(called) == enqueued.checked_add(1))
    }

    /// Returns true if nothing has changed since `earlier`: no call, no completion. Times of calls are converted from
    /// another clock at each reading, so they differ by some nanoseconds.
    pub(super) fn is_unchanged(&self, earlier: &Self) -> bool {
        let figures = |p: &Self| {
            let seq = |work: &Option<Work>| work.as_ref().map(|work| work.seq);
            let oldest = |work: &Option<PendingWork>| work.as_ref().map(|w| w.work.seq);
            (p.called, p.called_p2p, seq(&p.completed), oldest(&p.collective), oldest(&p.p2p))
        };
        self.group == earlier.group && figures(self) == figures(earlier)
    }

    /// Returns the number of calls since `earlier`.
    pub(super) fn calls_since(&self, earlier: &Self) -> u64 {
        let calls = |p: &Self| p.called.unwrap_or(0).saturating_add(p.called_p2p.unwrap_or(0));
        calls(self).saturating_sub(calls(earlier))
    }

    /// Returns the collective with this number, if the rank still knows it.
    pub(super) fn work(&self, seq: u64) -> Option<&Work> {
        let pending = self.collective.as_ref().map(|pending| &pending.work);
        // In a group with point-to-point operations, the numbers of the others can mean either.
        let others = [&self.enqueued, &self.completed]
            .map(|work| work.as_ref().filter(|_| self.called_p2p == Some(0)));
        pending.into_iter().chain(others.into_iter().flatten()).find(|work| work.seq == seq)
    }
}

/// Returns the description of a group, or its name if it has none.
pub(super) fn label(group: &ProcessGroup) -> String {
    let label = if group.description.is_empty() { &group.name } else { &group.description };
    visible(label.as_bytes(), MAX_LABEL_CHARS)
}

/// Returns the time since the call by the clock of the host.
pub(super) fn age(pending: &PendingWork, at: Mono) -> Millis {
    at.since(pending.called_at())
}

fn is_p2p(work: &Work, group: &ProcessGroup) -> bool {
    let uses_p2p = group.called_p2p.get().is_some_and(|called| called > 0);
    P2P.contains(&work.operation.as_str()) || (work.operation == COALESCED && uses_p2p)
}

fn bounded(work: &Work) -> Work {
    let operation = visible(work.operation.as_bytes(), MAX_OPERATION_CHARS);
    let dtype = work.dtype.as_ref().map(|dtype| visible(dtype.as_bytes(), MAX_OPERATION_CHARS));
    Work { seq: work.seq, operation, elements: work.elements, dtype }
}
