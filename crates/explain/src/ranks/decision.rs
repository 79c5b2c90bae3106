//! Decides from the graph of waits which ranks to name, and for what.
//!
//! Silence is better than a wrong name: if two explanations fit, no rank is named.

use std::collections::BTreeMap;
use std::sync::Arc;

use gputop_model::process_group::Work;
use gputop_model::text::visible;
use gputop_model::units::Millis;

use super::job_view::{GroupIndex, GroupView, JobView, RankIndex};
use super::observation::{ProcessStatus, RankExit};
use super::other_operation::other_operation;
use super::rank_track::Readability;
use super::stack_place::StackPlace;
use super::verdict::{Camp, Cause, Verdict};
use super::wait_graph::{BlockedBy, PointIndex, WaitGraph, Waiter};

/// Minimum wait before anything is said.
const MIN_WAIT: Millis = Millis(10_000);
/// Factor on the usual interval between collectives.
const UNUSUAL_FACTOR: u64 = 10;
/// Maximum of the minimum wait. PyTorch's watchdog ends the job after 10 min.
const MAX_WAIT: Millis = Millis(300_000);
/// Factor on the minimum wait above which two looks are enough to say that a collective does not complete.
const CERTAIN_FACTOR: u64 = 6;
const MAX_VERDICTS: usize = 8;
const MAX_TEXT_CHARS: usize = 40;

/// An explanation of one or more wait points.
struct Candidate {
    cause: Cause,
    group: GroupIndex,
    culprits: Vec<RankIndex>,
    /// Ranks in the job that were never observed.
    absent: Vec<u32>,
    points: Vec<PointIndex>,
}

struct Decision<'a> {
    view: &'a JobView<'a>,
    graph: &'a WaitGraph,
    /// Minimum wait for causes that may be temporary.
    min_wait: Millis,
}

/// Returns the verdicts on a job, the most important first.
pub(super) fn decide(view: &JobView<'_>, usual_interval: Option<Millis>) -> Vec<Verdict> {
    let graph = WaitGraph::new(view);
    let usual = usual_interval.unwrap_or_default().0.saturating_mul(UNUSUAL_FACTOR);
    let min_wait = Millis(usual).clamp(MIN_WAIT, MAX_WAIT);
    Decision { view, graph: &graph, min_wait }.verdicts()
}

impl Decision<'_> {
    fn verdicts(&self) -> Vec<Verdict> {
        let mut candidates = self.roots();
        candidates.extend(self.complete_points());
        candidates.extend(self.deadlock());
        let mut verdicts: Vec<_> = candidates.iter().filter_map(|c| self.verdict(c)).collect();
        verdicts.sort_by_key(|verdict| {
            (importance(verdict), std::cmp::Reverse((verdict.waiting.len(), verdict.waited)))
        });
        let mut kept: Vec<Verdict> = Vec::new();
        for verdict in verdicts {
            let is_consequence = verdict.culprits.is_empty()
                && kept.iter().any(|kept| verdict.waiting.iter().all(|rank| kept.concerns(*rank)));
            if !is_consequence && kept.len() < MAX_VERDICTS {
                kept.push(verdict);
            }
        }
        kept
    }

    /// Returns the ranks for which others wait and which wait for nobody.
    fn roots(&self) -> Vec<Candidate> {
        let mut groups = Vec::new();
        for candidate in self.graph.roots().filter_map(|root| self.root(root)) {
            merge(&mut groups, candidate, |a, b| a.group == b.group);
        }
        // The groups of one dimension of a mesh share a label.
        let label = |candidate: &Candidate| &self.view.groups[candidate.group].label;
        let mut candidates = Vec::new();
        for mut candidate in groups {
            self.prefer_smaller_camp(&mut candidate);
            merge(&mut candidates, candidate, |a, b| label(a) == label(b));
        }
        candidates
    }

    /// Explains the points that a rank blocks, in the group in which another has waited for it the longest.
    fn root(&self, root: RankIndex) -> Option<Candidate> {
        let blocked = self.graph.blocked(root);
        let longest = |point: &&PointIndex| self.longest(&[**point]).map(|w| w.waited);
        let worst = *blocked.iter().max_by_key(longest)?;
        let group = self.graph.points[worst].group;
        let in_group = blocked.into_iter().filter(|p| self.graph.points[*p].group == group);
        let (cause, points) = (self.root_cause(root, worst), in_group.collect());
        Some(Candidate { cause, group, culprits: vec![root], absent: Vec::new(), points })
    }

    fn root_cause(&self, root: RankIndex, point: PointIndex) -> Cause {
        let is_p2p = self.graph.points[point].seq.is_none();
        match (&self.view.ranks[root].track.status, &self.graph.points[point].blocked_by) {
            (ProcessStatus::Exited(exit), _) => Cause::NoProcess(bounded(exit)),
            (ProcessStatus::Stopped, _) => Cause::Stopped,
            (_, BlockedBy::Inside(_)) => Cause::InsideNccl,
            _ if is_p2p => Cause::PointToPoint,
            _ => Cause::Behind,
        }
    }

    /// If few ranks wait for many, the few are the odd ones: rank 0 alone at a barrier. Unless the stacks of the many
    /// explain what they do.
    fn prefer_smaller_camp(&self, candidate: &mut Candidate) {
        let waiting = self.direct_ranks(&candidate.points);
        let unseen = self.view.groups[candidate.group].unseen();
        let others = candidate.culprits.len();
        let explains = |rank: &RankIndex| {
            self.view.place(*rank, Millis(u64::MAX)).is_some_and(|p| p.activity.is_some())
        };
        let is_small = waiting.len() + unseen < others;
        if candidate.cause == Cause::Behind && is_small && !candidate.culprits.iter().all(explains)
        {
            candidate.cause = Cause::WaitsAlone { others };
            candidate.culprits = waiting;
        }
    }

    /// Explains the points that no rank blocks: all observed members have called the collective.
    fn complete_points(&self) -> Vec<Candidate> {
        let points = self.graph.points.iter().enumerate();
        let complete = points.filter(|(_, p)| p.blocked_by == BlockedBy::Nobody);
        let complete: Vec<PointIndex> = complete.map(|(at, _)| at).collect();
        let mut candidates = self.other_orders(&complete);
        candidates.extend(self.skipped());
        for point in complete {
            if !candidates.iter().any(|c| c.points.contains(&point)) {
                candidates.extend(self.complete_point(point));
            }
        }
        candidates
    }

    fn complete_point(&self, at: PointIndex) -> Option<Candidate> {
        let point = &self.graph.points[at];
        let group = self.group(at);
        let candidate = |cause, culprits| Candidate {
            cause,
            group: point.group,
            culprits,
            absent: Vec::new(),
            points: vec![at],
        };
        if let Some((cause, culprits)) = point.seq.and_then(|seq| other_operation(group, seq)) {
            return Some(candidate(cause, culprits));
        }
        if self.is_queued(at) || !self.is_certain(&point.waiters) {
            return None;
        }
        if point.seq.is_none() {
            return Some(candidate(Cause::PointToPoint, Vec::new()));
        }
        if !group.unknown.is_empty() {
            let cause = self.unknown_cause(&group.unknown)?;
            return Some(candidate(cause, group.unknown.clone()));
        }
        if group.absent > 0 {
            let hosts = self.view.hosts;
            let is_unread = self.view.has_unread_processes;
            let cause = if is_unread { Cause::NotReadYet } else { Cause::NotOnHost { hosts } };
            let absent = self.view.absent(group);
            return Some(Candidate { absent, ..candidate(cause, Vec::new()) });
        }
        let all_wait = u32::try_from(point.waiters.len()) == Ok(group.key.size);
        all_wait.then(|| candidate(Cause::NotCompleted, Vec::new()))
    }

    /// Returns the common reason why nothing is known of these members, if there is one.
    fn unknown_cause(&self, unknown: &[RankIndex]) -> Option<Cause> {
        let mut causes = unknown.iter().map(|rank| match &self.view.ranks[*rank].readability {
            Readability::NotReadYet => Some(Cause::NotReadYet),
            Readability::NotReadable(missing) => Some(Cause::NotReadable(missing.clone())),
            Readability::Readable | Readability::Exited => None,
        });
        let first = causes.next().flatten()?;
        causes.all(|cause| cause.as_ref() == Some(&first)).then_some(first)
    }

    /// Returns true if the ranks wait for something else than their own GPUs. A host can run ahead of its GPU for
    /// seconds, so nothing may have completed for the minimum wait, unless the wait is much longer than that.
    fn is_certain(&self, waiters: &[Waiter]) -> bool {
        waiters.iter().all(|waiter| {
            let certain = self.min_wait.0.saturating_mul(CERTAIN_FACTOR);
            let quiet = self.view.ranks[waiter.index].track.quiet();
            quiet >= self.min_wait || waiter.waited.0 >= certain
        })
    }

    /// Finds two groups whose collectives some ranks called in one order, and the others in the other order.
    fn other_orders(&self, complete: &[PointIndex]) -> Vec<Candidate> {
        type Camps = [Vec<RankIndex>; 2];
        let mut pairs: BTreeMap<(PointIndex, PointIndex), Camps> = BTreeMap::new();
        for (rank, points) in self.graph.waits_at.iter().enumerate() {
            let waits: Vec<_> =
                points.iter().filter(|p| complete.binary_search(p).is_ok()).copied().collect();
            for (n, &a) in waits.iter().enumerate() {
                for &b in &waits[n + 1..] {
                    if let Some(is_first) = self.is_earlier(rank, a, b) {
                        pairs.entry((a, b)).or_default()[usize::from(is_first)].push(rank);
                    }
                }
            }
        }
        let mixed = pairs.into_iter().filter(|(_, camps)| camps.iter().all(|c| !c.is_empty()));
        mixed.map(|((a, b), [second, first])| self.other_order(a, b, first, second)).collect()
    }

    /// Finds ranks that called a later collective without an earlier one, at which the others wait for them. They skipped it, or
    /// will call it afterwards.
    fn skipped(&self) -> Vec<Candidate> {
        (0..self.graph.points.len()).filter_map(|earlier| self.skipped_at(earlier)).collect()
    }

    fn skipped_at(&self, earlier: PointIndex) -> Option<Candidate> {
        let (point, group) = (&self.graph.points[earlier], self.group(earlier));
        let odd: Vec<_> = group.behind(point.seq?).iter().map(|member| member.index).collect();
        let later = odd.iter().map(|rank| self.waits_for_waiter(*rank, earlier));
        let mut points = later.collect::<Option<Vec<_>>>()?;
        let later = self.group(*points.first()?).label.clone();
        let is_same = |point: &PointIndex| self.group(*point).label == later;
        if later == group.label || !points.iter().all(is_same) {
            return None;
        }
        let is_clear = odd.len() + group.unseen() < point.waiters.len();
        points.push(earlier);
        points.sort_unstable();
        points.dedup();
        Some(Candidate {
            cause: Cause::OtherOrder { earlier: later, later: group.label.clone() },
            group: point.group,
            culprits: if is_clear { odd } else { Vec::new() },
            absent: Vec::new(),
            points,
        })
    }

    /// Returns a point at which `rank` waits for another rank, which has waited at `earlier` for longer.
    fn waits_for_waiter(&self, rank: RankIndex, earlier: PointIndex) -> Option<PointIndex> {
        let waits_earlier = |waiter: &Waiter, at: PointIndex| {
            self.is_earlier(waiter.index, earlier, at) == Some(true)
        };
        let mut waits = self.graph.waits_at[rank].iter().copied();
        waits.find(|at| self.graph.points[*at].waiters.iter().any(|w| waits_earlier(w, *at)))
    }

    /// Returns true if one of the ranks has waited at another point for longer, so that its GPU has not come to this one.
    fn is_queued(&self, at: PointIndex) -> bool {
        self.graph.points[at].waiters.iter().any(|waiter| {
            let mut waits = self.graph.waits_at[waiter.index].iter();
            waits.any(|other| self.is_earlier(waiter.index, *other, at) == Some(true))
        })
    }

    /// Returns true if a rank called the collective of `a` before that of `b`.
    fn is_earlier(&self, rank: RankIndex, a: PointIndex, b: PointIndex) -> Option<bool> {
        let called = |point: PointIndex| {
            let waiter = self.graph.points[point].waiters.iter().find(|w| w.index == rank)?;
            Some(waiter.pending.called_ns)
        };
        let (a, b) = (called(a)?, called(b)?);
        (a != b).then_some(a < b)
    }

    fn other_order(
        &self,
        a: PointIndex,
        b: PointIndex,
        first: Vec<RankIndex>,
        second: Vec<RankIndex>,
    ) -> Candidate {
        let unseen = self.group(a).unseen().max(self.group(b).unseen());
        let is_first_odd = first.len() < second.len();
        let (earlier, later) = if is_first_odd { (a, b) } else { (b, a) };
        let (odd, usual) = if is_first_odd { (first, second) } else { (second, first) };
        let is_clear = odd.len() + unseen < usual.len();
        let label = |point| self.group(point).label.clone();
        Candidate {
            cause: Cause::OtherOrder { earlier: label(earlier), later: label(later) },
            group: self.graph.points[later].group,
            culprits: if is_clear { odd } else { Vec::new() },
            absent: Vec::new(),
            points: vec![a.min(b), a.max(b)],
        }
    }

    /// Finds ranks that wait for each other, and for no other rank.
    fn deadlock(&self) -> Option<Candidate> {
        let graph = self.graph;
        let points = graph.points.iter().enumerate();
        let complete = points.filter(|(_, p)| p.blocked_by == BlockedBy::Nobody).map(|(at, _)| at);
        let explained = graph.reach(complete, graph.roots());
        let mut circle: Vec<RankIndex> = (0..self.view.ranks.len())
            .filter(|rank| graph.waits(*rank) && !explained[*rank])
            .collect();
        // Leave out those who only wait for the circle.
        loop {
            let points =
                graph.set(circle.iter().flat_map(|rank| graph.waits_at[*rank].iter().copied()));
            let before = circle.len();
            circle.retain(|rank| graph.blocks_any(*rank, &points));
            if circle.len() == before {
                break;
            }
        }
        // A rank that does something well-known may only have launched its collective before.
        let is_busy = |rank: &RankIndex| {
            self.view.place(*rank, MAX_WAIT).is_some_and(|place| place.activity.is_some())
        };
        if circle.iter().any(is_busy) { None } else { self.camps(&circle) }
    }

    /// Divides the ranks of a deadlock by the label of the group of their oldest wait.
    fn camps(&self, circle: &[RankIndex]) -> Option<Candidate> {
        let mut camps: BTreeMap<&str, (Vec<RankIndex>, Vec<PointIndex>)> = BTreeMap::new();
        for &rank in circle {
            let waited = |point: &&PointIndex| {
                let waiters = &self.graph.points[**point].waiters;
                waiters.iter().find(|w| w.index == rank).map(|w| w.waited)
            };
            let oldest = *self.graph.waits_at[rank].iter().max_by_key(waited)?;
            let label = &self.group(oldest).label;
            let (ranks, points) = camps.entry(label).or_default();
            ranks.push(rank);
            points.push(oldest);
        }
        let (smallest, points) = camps.values().min_by_key(|(ranks, _)| ranks.len())?;
        let group = self.graph.points[*points.first()?].group;
        let named = camps.iter().map(|(label, (ranks, _))| Camp {
            group: (*label).into(),
            ranks: self.view.numbers(ranks.iter().copied()),
        });
        let cause = Cause::Deadlock { camps: named.collect() };
        let mut points: Vec<_> = camps.values().flat_map(|(_, points)| points.clone()).collect();
        points.sort_unstable();
        points.dedup();
        let unseen: usize = points.iter().map(|p| self.group(*p).unseen()).sum();
        let is_clear = camps.len() == 2 && 2 * smallest.len() + unseen < circle.len();
        let culprits = if is_clear { smallest.clone() } else { Vec::new() };
        Some(Candidate { cause, group, culprits, absent: Vec::new(), points })
    }

    fn group(&self, point: PointIndex) -> &GroupView<'_> {
        &self.view.groups[self.graph.points[point].group]
    }

    /// Returns the longest wait at these points.
    fn longest(&self, points: &[PointIndex]) -> Option<&Waiter> {
        points.iter().flat_map(|p| &self.graph.points[*p].waiters).max_by_key(|w| w.waited)
    }

    /// Returns the ranks that wait at these points, in ascending order.
    fn direct_ranks(&self, points: &[PointIndex]) -> Vec<RankIndex> {
        let waiters = points.iter().flat_map(|p| &self.graph.points[*p].waiters);
        let mut ranks: Vec<_> = waiters.map(|waiter| waiter.index).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    /// Returns the candidate as a verdict, or `None` if the wait is too short to say anything.
    fn verdict(&self, candidate: &Candidate) -> Option<Verdict> {
        let longest = self.longest(&candidate.points)?;
        let is_certain = matches!(candidate.cause, Cause::NoProcess(_) | Cause::Stopped);
        let min_wait = if is_certain { MIN_WAIT } else { self.min_wait };
        if longest.waited < min_wait {
            return None;
        }
        let reached =
            self.graph.reach(candidate.points.iter().copied(), candidate.culprits.iter().copied());
        let is_alone = matches!(candidate.cause, Cause::WaitsAlone { .. });
        let waiting = (0..reached.len())
            .filter(|rank| reached[*rank] && (is_alone || !candidate.culprits.contains(rank)));
        let mut culprits = self.view.numbers(candidate.culprits.iter().copied());
        culprits.extend(&candidate.absent);
        Some(Verdict {
            cause: candidate.cause.clone(),
            culprit_host: self.host_of_only(&candidate.culprits, &culprits),
            culprits,
            waiting: self.view.numbers(waiting),
            group: self.view.groups[candidate.group].label.clone(),
            work: self.first_work(candidate)?,
            since: longest.pending.called_at(),
            host: self.view.ranks[longest.index].track.host.clone(),
            waited: longest.waited,
            place: self.place(candidate, longest.waited),
        })
    }

    /// Returns the host of the only culprit, if that is not obvious.
    fn host_of_only(&self, indices: &[RankIndex], culprits: &[u32]) -> Option<Arc<str>> {
        let ([index], [_]) = (indices, culprits) else { return None };
        (self.view.hosts > 1).then(|| self.view.ranks[*index].track.host.clone())
    }

    /// Returns the first collective of the group that waits, with its operation if any rank knows it.
    fn first_work(&self, candidate: &Candidate) -> Option<Work> {
        let is_in_group = |p: &&PointIndex| self.graph.points[**p].group == candidate.group;
        let first = candidate.points.iter().find(is_in_group).or(candidate.points.first())?;
        let waiters = &self.graph.points[*first].waiters;
        let works = || waiters.iter().map(|waiter| &waiter.pending.work);
        let named = works().find(|work| !work.operation.is_empty());
        named.or_else(|| works().next()).cloned()
    }

    /// Returns the common place of the culprits, unless it is also that of a waiting rank. Ranks wait for the GPU in
    /// the user's own line, such as `.item()`, whether they are at fault or not.
    fn place(&self, candidate: &Candidate, waited: Millis) -> Option<StackPlace> {
        let of = |rank: &RankIndex| self.view.place(*rank, waited);
        let (first, rest) = candidate.culprits.split_first()?;
        let place = of(first)?;
        let is_common = rest.iter().all(|rank| {
            let other = of(rank);
            let is_same_activity = place.activity.is_some()
                && other.is_some_and(|other| other.activity == place.activity);
            is_same_activity || other == Some(place)
        });
        let waiting = self.direct_ranks(&candidate.points);
        let others = waiting.iter().filter(|rank| !candidate.culprits.contains(rank));
        let is_shared = others.filter_map(of).any(|other| other == place);
        (is_common && !is_shared).then(|| place.clone())
    }
}

/// Adds a candidate to the list, or its culprits to a candidate with the same cause.
fn merge(
    candidates: &mut Vec<Candidate>,
    new: Candidate,
    is_same_group: impl Fn(&Candidate, &Candidate) -> bool,
) {
    let same = candidates.iter_mut().find(|c| c.cause == new.cause && is_same_group(c, &new));
    let Some(candidate) = same else {
        candidates.push(new);
        return;
    };
    candidate.culprits.extend(new.culprits);
    candidate.culprits.sort_unstable();
    candidate.culprits.dedup();
    candidate.points.extend(new.points);
    candidate.points.sort_unstable();
    candidate.points.dedup();
}

/// Returns the position of a verdict in the list: facts about processes first, verdicts without a name last.
fn importance(verdict: &Verdict) -> u8 {
    match verdict.cause {
        _ if verdict.culprits.is_empty() => 4,
        Cause::NoProcess(_) => 0,
        Cause::Stopped => 1,
        Cause::NotOnHost { .. } | Cause::NotReadYet | Cause::NotReadable(_) => 3,
        _ => 2,
    }
}

fn bounded(exit: &RankExit) -> RankExit {
    let bounded = |text: &Option<Box<str>>| {
        text.as_ref().map(|text| visible(text.as_bytes(), MAX_TEXT_CHARS).into())
    };
    RankExit { description: bounded(&exit.description), incident: bounded(&exit.incident) }
}
