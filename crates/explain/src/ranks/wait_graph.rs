//! The graph of who waits for whom, over all groups of a job.
//!
//! A wait point is a collective at which ranks wait. It is blocked by the members that have not called it. These may
//! wait at another point themselves, so the ranks to name are those that block a point and wait at none:
//!
//! ```text
//! rank 2 ─► #3076 of mesh_dp ─► rank 3 ─► #90 of mesh_tp ─► rank 1 (waits for nobody)
//! ```

use std::collections::BTreeMap;
use std::ops::Range;

use gputop_model::process_group::{PendingWork, Work};
use gputop_model::units::Millis;

use super::group_position::{GroupPosition, age};
use super::job_view::{GroupIndex, GroupView, JobView, Member, RankIndex, RankView};

/// A shorter wait is not a wait: ranks arrive a little earlier or later all the time.
const MIN_WAIT: Millis = Millis(2_000);
/// Minimum time without any movement. It takes two looks, so a rank that goes on is never said to wait, even if its
/// watchdog is stuck and its list of pending works is stale.
const MIN_QUIET: Millis = Millis(1_000);

pub(super) type PointIndex = usize;

pub(super) struct WaitGraph {
    /// Collectives, ordered by group and number, then groups with pending point-to-point operations.
    pub(super) points: Vec<WaitPoint>,
    /// For each group its collectives in `points`.
    collectives: Vec<Range<PointIndex>>,
    /// For each rank its groups, and the number of collectives it has called in them.
    memberships: Vec<Vec<(GroupIndex, u64)>>,
    /// Points that a rank blocks although it has called the collective.
    other_blocked: BTreeMap<RankIndex, Vec<PointIndex>>,
    /// For each rank the points at which it waits.
    pub(super) waits_at: Vec<Vec<PointIndex>>,
}

pub(super) struct WaitPoint {
    pub(super) group: GroupIndex,
    /// Number of the collective, or `None` for point-to-point operations.
    pub(super) seq: Option<u64>,
    pub(super) waiters: Vec<Waiter>,
    pub(super) blocked_by: BlockedBy,
}

/// Ranks that block a point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum BlockedBy {
    /// The members that are behind.
    Behind,
    /// Members from whose call NCCL has not returned.
    Inside(Vec<RankIndex>),
    /// Members that have called the collective, and that have exited, are stopped, or are the only peer.
    Others(Vec<RankIndex>),
    Nobody,
}

#[derive(Debug, Clone)]
pub(super) struct Waiter {
    pub(super) index: RankIndex,
    pub(super) waited: Millis,
    pub(super) pending: PendingWork,
}

impl WaitGraph {
    pub(super) fn new(view: &JobView<'_>) -> Self {
        let mut graph = Self {
            points: Vec::new(),
            collectives: Vec::new(),
            memberships: vec![Vec::new(); view.ranks.len()],
            other_blocked: BTreeMap::new(),
            waits_at: vec![Vec::new(); view.ranks.len()],
        };
        for (at, group) in view.groups.iter().enumerate() {
            for member in &group.members {
                graph.memberships[member.index].push((at, member.called));
            }
            let first = graph.points.len();
            graph.points.extend(collectives(view, at, group));
            graph.collectives.push(first..graph.points.len());
        }
        let p2p: Vec<_> =
            view.groups.iter().enumerate().filter_map(|(at, g)| p2p(view, at, g)).collect();
        graph.points.extend(p2p);
        for (at, point) in graph.points.iter().enumerate() {
            for waiter in &point.waiters {
                graph.waits_at[waiter.index].push(at);
            }
        }
        graph.find_peers(view);
        graph.index_others();
        graph
    }

    pub(super) fn waits(&self, rank: RankIndex) -> bool {
        !self.waits_at[rank].is_empty()
    }

    /// Finds for each point with point-to-point operations the only member that can be the reason.
    fn find_peers(&mut self, view: &JobView<'_>) {
        for at in 0..self.points.len() {
            let Some(group) = view.groups.get(self.points[at].group) else { continue };
            if self.points[at].seq.is_some() {
                continue;
            }
            let idle = group.members.iter().map(|m| m.index).filter(|index| !self.waits(*index));
            let idle: Vec<RankIndex> = idle.collect();
            let others = idle.iter().chain(&group.unknown).copied();
            self.points[at].blocked_by = match gone_or_stopped(view, others) {
                gone if !gone.is_empty() => BlockedBy::Others(gone),
                _ if idle.len() == 1 && group.unseen() == 0 => BlockedBy::Others(idle),
                _ => BlockedBy::Nobody,
            };
        }
    }

    fn index_others(&mut self) {
        for (at, point) in self.points.iter().enumerate() {
            if let BlockedBy::Inside(ranks) | BlockedBy::Others(ranks) = &point.blocked_by {
                for rank in ranks {
                    self.other_blocked.entry(*rank).or_default().push(at);
                }
            }
        }
    }

    /// Returns the collectives of a group that come after the first `called`.
    fn after(&self, group: GroupIndex, called: u64) -> Range<PointIndex> {
        let range = self.collectives[group].clone();
        let before = self.points[range.clone()].partition_point(|p| p.seq <= Some(called));
        range.start + before..range.end
    }

    fn others(&self, rank: RankIndex) -> &[PointIndex] {
        self.other_blocked.get(&rank).map_or(&[], Vec::as_slice)
    }

    /// Returns the points that a rank blocks.
    pub(super) fn blocked(&self, rank: RankIndex) -> Vec<PointIndex> {
        let behind = self.memberships[rank].iter().flat_map(|&(group, n)| self.after(group, n));
        behind.chain(self.others(rank).iter().copied()).collect()
    }

    /// Returns the ranks that block a point and wait at none.
    pub(super) fn roots(&self) -> impl Iterator<Item = RankIndex> + '_ {
        (0..self.waits_at.len()).filter(|rank| {
            let is_behind =
                |(group, called): &(GroupIndex, u64)| !self.after(*group, *called).is_empty();
            let blocks = self.memberships[*rank].iter().any(is_behind);
            !self.waits(*rank) && (blocks || !self.others(*rank).is_empty())
        })
    }

    /// Returns true if the rank blocks one of these points.
    pub(super) fn blocks_any(&self, rank: RankIndex, points: &PointSet) -> bool {
        let mut groups = self.memberships[rank].iter();
        groups.any(|(group, called)| points.latest[*group] > Some(*called))
            || self.others(rank).iter().any(|point| points.contains[*point])
    }

    pub(super) fn set(&self, points: impl Iterator<Item = PointIndex>) -> PointSet {
        let mut set = PointSet {
            contains: vec![false; self.points.len()],
            latest: vec![None; self.collectives.len()],
        };
        for at in points {
            set.contains[at] = true;
            let point = &self.points[at];
            set.latest[point.group] = set.latest[point.group].max(point.seq);
        }
        set
    }

    /// Returns the ranks that wait at one of the points, or for one of the ranks, directly or not.
    pub(super) fn reach(
        &self,
        points: impl IntoIterator<Item = PointIndex>,
        ranks: impl IntoIterator<Item = RankIndex>,
    ) -> Vec<bool> {
        let mut reached = vec![false; self.waits_at.len()];
        let mut seen = vec![false; self.points.len()];
        // Collectives from this one on are in the queue already.
        let mut queued: Vec<PointIndex> = self.collectives.iter().map(|range| range.end).collect();
        let mut points: Vec<PointIndex> = points.into_iter().collect();
        let mut ranks: Vec<RankIndex> = ranks.into_iter().collect();
        while !points.is_empty() || !ranks.is_empty() {
            for rank in ranks.drain(..) {
                for &(group, called) in &self.memberships[rank] {
                    let from = self.after(group, called).start.min(queued[group]);
                    points.extend(from..queued[group]);
                    queued[group] = from;
                }
                points.extend(self.others(rank));
            }
            for point in points.drain(..) {
                if std::mem::replace(&mut seen[point], true) {
                    continue;
                }
                for waiter in &self.points[point].waiters {
                    if !std::mem::replace(&mut reached[waiter.index], true) {
                        ranks.push(waiter.index);
                    }
                }
            }
        }
        reached
    }
}

/// A set of points that can be asked who blocks it.
pub(super) struct PointSet {
    contains: Vec<bool>,
    /// For each group its last collective in the set.
    latest: Vec<Option<u64>>,
}
/// Returns the waiting member's oldest collective, or `None` if it does not wait.
fn waiter(view: &JobView<'_>, member: &Member<'_>) -> Option<(u64, bool, Waiter)> {
    let rank = view.ranks.get(member.index)?;
    let at = rank.track.at;
    let position = member.position;
    let waiter =
        |pending: PendingWork| Waiter { index: member.index, waited: age(&pending, at), pending };
    let found = if let Some(pending) = &position.collective {
        (pending.work.seq, false, waiter(pending.clone()))
    } else {
        let since = position.inside_since.filter(|since| at.since(*since) >= MIN_QUIET)?;
        let work = Work { seq: member.called, ..Work::default() };
        let called_ns = since.0.saturating_mul(1_000_000);
        (member.called, true, waiter(PendingWork { work, called_ns }))
    };
    let is_long = found.1 || found.2.waited >= MIN_WAIT;
    (is_long && can_wait(rank, found.2.waited)).then_some(found)
}

/// Returns true unless the rank is known to do something else than to wait.
fn can_wait(rank: &RankView<'_>, waited: Millis) -> bool {
    let place = rank.track.place_within(waited);
    let is_busy = place.and_then(|place| place.activity).is_some_and(|a| a.is_cpu_only);
    rank.is_readable() && !rank.is_stopped() && !is_busy && rank.track.quiet() >= MIN_QUIET
}

fn collectives(view: &JobView<'_>, at: GroupIndex, group: &GroupView<'_>) -> Vec<WaitPoint> {
    let mut points: BTreeMap<u64, Vec<Waiter>> = BTreeMap::new();
    let mut inside = Vec::new();
    for member in &group.members {
        match waiter(view, member) {
            // Communicator set-up waits for the others. Any other call is NCCL's own.
            Some((seq, true, _)) if group.behind(seq).is_empty() => inside.push(member.index),
            Some((seq, _, waiter)) => points.entry(seq).or_default().push(waiter),
            None => {}
        }
    }
    let point = |(seq, waiters)| {
        let blocked_by = blocked_by(view, group, seq, &inside);
        WaitPoint { group: at, seq: Some(seq), waiters, blocked_by }
    };
    points.into_iter().map(point).collect()
}

fn blocked_by(
    view: &JobView<'_>,
    group: &GroupView<'_>,
    seq: u64,
    inside: &[RankIndex],
) -> BlockedBy {
    if !group.behind(seq).is_empty() {
        return BlockedBy::Behind;
    }
    let is_inside = |m: &&Member<'_>| m.called == seq && inside.contains(&m.index);
    let inside: Vec<_> = group.members.iter().filter(is_inside).map(|m| m.index).collect();
    if !inside.is_empty() {
        return BlockedBy::Inside(inside);
    }
    let members = group.members.iter().map(|m| m.index).chain(group.unknown.iter().copied());
    match gone_or_stopped(view, members) {
        ranks if ranks.is_empty() => BlockedBy::Nobody,
        ranks => BlockedBy::Others(ranks),
    }
}

/// Returns the ranks that have exited, or those that are stopped if none has.
fn gone_or_stopped(
    view: &JobView<'_>,
    ranks: impl Iterator<Item = RankIndex> + Clone,
) -> Vec<RankIndex> {
    let exited: Vec<_> = ranks.clone().filter(|rank| view.ranks[*rank].is_exited()).collect();
    if exited.is_empty() {
        return ranks.filter(|rank| view.ranks[*rank].is_stopped()).collect();
    }
    exited
}

fn p2p(view: &JobView<'_>, at: GroupIndex, group: &GroupView<'_>) -> Option<WaitPoint> {
    let waiting = |member: &Member<'_>| {
        let rank = view.ranks.get(member.index)?;
        let pending = p2p_only(member.position)?;
        let waited = age(pending, rank.track.at);
        (waited >= MIN_WAIT && can_wait(rank, waited)).then(|| Waiter {
            index: member.index,
            waited,
            pending: pending.clone(),
        })
    };
    let waiters: Vec<_> = group.members.iter().filter_map(waiting).collect();
    let point = WaitPoint { group: at, seq: None, waiters, blocked_by: BlockedBy::Nobody };
    (!point.waiters.is_empty()).then_some(point)
}

/// Returns the oldest pending point-to-point operation, unless a collective is pending as well.
fn p2p_only(position: &GroupPosition) -> Option<&PendingWork> {
    position.p2p.as_ref().filter(|_| position.collective.is_none())
}
