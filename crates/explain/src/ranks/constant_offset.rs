//! Finds ranks that stay the same number of collectives behind or ahead while the job goes on: they skipped some, and
//! since then each call is matched with another one.

use std::collections::BTreeMap;
use std::sync::Arc;

use gputop_model::units::{Millis, Mono};

use super::group_position::GroupKey;
use super::job_view::{GroupView, JobView, Member};
use super::rank_track::RankTrack;

const MIN_LOOKS: u32 = 20;
const MIN_TIME: Millis = Millis(30_000);
/// Minimum number of looks at which a rank had not called what another one had completed. Without them, it is only the
/// slowest rank, for which the others wait most of the time.
const MIN_PROOFS: u32 = 3;
/// Resolution of the times of readings.
const RESOLUTION: Millis = Millis(2);
/// These can complete on one rank before the others call them.
const ONE_SIDED: [&str; 5] = ["", "BROADCAST", "REDUCE", "GATHER", "SCATTER"];

/// A warning about ranks that do not wait, and whose sums may be wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConstantOffset {
    pub group: Arc<str>,
    pub ranks: Vec<u32>,
    /// Number of collectives called more than by most ranks. Negative if fewer.
    pub offset: i64,
}

#[derive(Debug)]
struct OffsetTrack {
    offset: i64,
    since: Mono,
    looks: u32,
    proofs: u32,
    /// Number of collectives that the rank had called at the first look.
    called: u64,
}

/// Offsets of the ranks of one job.
#[derive(Debug, Default)]
pub(super) struct OffsetWatch {
    tracks: BTreeMap<(Arc<GroupKey>, u32), OffsetTrack>,
}

impl OffsetWatch {
    pub(super) fn observe(&mut self, now: Mono, view: &JobView<'_>) -> Vec<ConstantOffset> {
        let mut found: BTreeMap<(Arc<str>, i64), Vec<u32>> = BTreeMap::new();
        self.tracks.retain(|(key, rank), _| {
            let is_group = |group: &GroupView<'_>| group.key == &**key;
            view.groups.iter().any(is_group) && view.ranks.iter().any(|r| r.rank == *rank)
        });
        for group in &view.groups {
            for (rank, offset) in self.observe_group(now, view, group) {
                found.entry((group.label.clone(), offset)).or_default().push(rank);
            }
        }
        let warnings = found.into_iter();
        warnings.map(|((group, offset), ranks)| ConstantOffset { group, ranks, offset }).collect()
    }

    fn observe_group(
        &mut self,
        now: Mono,
        view: &JobView<'_>,
        group: &GroupView<'_>,
    ) -> Vec<(u32, i64)> {
        let Some(usual) = usual_count(group) else { return Vec::new() };
        let references = references(view, group, usual);
        let mut warned = Vec::new();
        for member in &group.members {
            let rank = &view.ranks[member.index];
            let key = (member.position.group.clone(), rank.rank);
            let offset = i128::from(member.called) - i128::from(usual);
            let reference = references.get(&rank.track.host);
            let (Ok(offset), Some(reference)) = (i64::try_from(offset), reference) else {
                continue;
            };
            if !rank.is_readable() || !is_slow(rank.track, view.ranks[reference.index].track) {
                continue;
            }
            if offset == 0 {
                self.tracks.remove(&key);
                continue;
            }
            let start =
                OffsetTrack { offset, since: now, looks: 0, proofs: 0, called: member.called };
            let track = self.tracks.entry(key).or_insert_with(|| start);
            if track.offset != offset {
                *track =
                    OffsetTrack { offset, since: now, looks: 0, proofs: 0, called: member.called };
            }
            track.looks = track.looks.saturating_add(1);
            track.proofs = track.proofs.saturating_add(is_proof(member, reference).into());
            if track.is_certain(now, member.called) {
                warned.push((rank.rank, offset));
            }
        }
        warned
    }
}

impl OffsetTrack {
    fn is_certain(&self, now: Mono, called: u64) -> bool {
        let is_long = self.looks >= MIN_LOOKS && now.since(self.since) >= MIN_TIME;
        is_long && self.proofs >= MIN_PROOFS && called > self.called
    }
}

/// Returns the number of collectives that most members have called; of several such numbers the highest.
fn usual_count(group: &GroupView<'_>) -> Option<u64> {
    let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
    for member in &group.members {
        *counts.entry(member.called).or_default() += 1;
    }
    let most = counts.into_iter().max_by_key(|(called, ranks)| (*ranks, *called));
    most.map(|(called, _)| called).filter(|called| *called > 0)
}

/// Returns for each host the usual member that has completed the most collectives. Times of hosts are not compared.
fn references<'a, 'v>(
    view: &JobView<'v>,
    group: &'a GroupView<'v>,
    usual: u64,
) -> BTreeMap<Arc<str>, &'a Member<'v>> {
    let mut references: BTreeMap<Arc<str>, &Member<'v>> = BTreeMap::new();
    for member in group.members.iter().filter(|m| m.called == usual) {
        let rank = &view.ranks[member.index];
        if rank.is_readable() {
            let best = references.entry(rank.track.host.clone()).or_insert(member);
            if completed(member) > completed(best) {
                *best = member;
            }
        }
    }
    references
}

/// Returns the newest collective that all ranks must have called, because it is completed.
fn completed(member: &Member<'_>) -> Option<u64> {
    let work = member.position.completed.as_ref()?;
    let is_collective = member.position.called_p2p == Some(0);
    (is_collective && !ONE_SIDED.contains(&work.operation.as_str())).then_some(work.seq)
}

/// Returns true if one member has completed a collective that the other has not called.
fn is_proof(member: &Member<'_>, reference: &Member<'_>) -> bool {
    let (ahead, behind) =
        if member.called > reference.called { (member, reference) } else { (reference, member) };
    completed(ahead) > Some(behind.called)
}

/// Returns true if the ranks called at most half a collective between the two readings, so that these can be compared.
fn is_slow(a: &RankTrack, b: &RankTrack) -> bool {
    let apart = a.at.0.abs_diff(b.at.0).saturating_add(RESOLUTION.0);
    let is_slow =
        |track: &RankTrack| track.calls.saturating_mul(apart).saturating_mul(2) <= track.elapsed.0;
    is_slow(a) && is_slow(b)
}
