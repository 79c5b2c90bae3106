//! The ranks and groups of one job at one look.

use std::collections::BTreeMap;
use std::sync::Arc;

use gputop_model::units::Millis;

use super::group_position::{GroupKey, GroupPosition};
use super::observation::ProcessStatus;
use super::rank_track::{RankTrack, Readability};
use super::stack_place::StackPlace;

/// Index of a rank in [`JobView::ranks`].
pub(super) type RankIndex = usize;
/// Index of a group in [`JobView::groups`].
pub(super) type GroupIndex = usize;

pub(super) struct JobView<'a> {
    /// Sorted by rank.
    pub(super) ranks: Vec<RankView<'a>>,
    pub(super) groups: Vec<GroupView<'a>>,
    /// True if processes exist that may be ranks of the job, and whose ranks are unknown.
    pub(super) has_unread_processes: bool,
    /// Number of hosts with ranks of the job.
    pub(super) hosts: usize,
}

pub(super) struct RankView<'a> {
    pub(super) rank: u32,
    pub(super) track: &'a RankTrack,
    pub(super) readability: Readability,
}

impl RankView<'_> {
    pub(super) fn is_stopped(&self) -> bool {
        self.track.status == ProcessStatus::Stopped
    }

    pub(super) fn is_exited(&self) -> bool {
        self.readability == Readability::Exited
    }

    pub(super) fn is_readable(&self) -> bool {
        self.readability == Readability::Readable
    }
}

pub(super) struct GroupView<'a> {
    pub(super) key: &'a GroupKey,
    pub(super) label: Arc<str>,
    /// Members whose number of calls is known, in the order of that number. Exited ranks are among them.
    pub(super) members: Vec<Member<'a>>,
    /// Members on the observed hosts whose number of calls is unknown.
    pub(super) unknown: Vec<RankIndex>,
    /// Number of members that are not on the observed hosts.
    pub(super) absent: u32,
}

pub(super) struct Member<'a> {
    pub(super) index: RankIndex,
    pub(super) called: u64,
    pub(super) position: &'a GroupPosition,
}

impl GroupView<'_> {
    /// Returns the members that have not called this collective.
    pub(super) fn behind(&self, seq: u64) -> &[Member<'_>] {
        let end = self.members.partition_point(|member| member.called < seq);
        self.members.get(..end).unwrap_or_default()
    }

    /// Returns the number of members that may be in either camp.
    pub(super) fn unseen(&self) -> usize {
        self.unknown.len() + usize::try_from(self.absent).unwrap_or(usize::MAX)
    }
}

impl<'a> JobView<'a> {
    pub(super) fn new(ranks: &BTreeMap<u32, &'a RankTrack>, has_unread_processes: bool) -> Self {
        let ranks: Vec<_> = ranks
            .iter()
            .map(|(rank, track)| RankView { rank: *rank, track, readability: track.readability() })
            .collect();
        let mut hosts: Vec<_> = ranks.iter().map(|rank| &rank.track.host).collect();
        hosts.sort_unstable();
        hosts.dedup();
        let hosts = hosts.len();
        let groups = groups(&ranks);
        Self { ranks, groups, has_unread_processes, hosts }
    }

    pub(super) fn numbers(&self, indices: impl IntoIterator<Item = RankIndex>) -> Vec<u32> {
        indices.into_iter().filter_map(|index| Some(self.ranks.get(index)?.rank)).collect()
    }

    /// Returns the members of the group that are not on the observed hosts.
    pub(super) fn absent(&self, group: &GroupView<'_>) -> Vec<u32> {
        let is_absent = |rank: &u32| self.ranks.binary_search_by_key(rank, |r| r.rank).is_err();
        group.key.ranks().filter(is_absent).collect()
    }

    /// Returns the place of a rank, if its stack was read in the last `time`.
    pub(super) fn place(&self, index: RankIndex, time: Millis) -> Option<&StackPlace> {
        self.ranks.get(index)?.track.place_within(time)
    }
}

fn groups<'a>(ranks: &[RankView<'a>]) -> Vec<GroupView<'a>> {
    let mut positions: BTreeMap<&GroupKey, Vec<(RankIndex, &'a GroupPosition)>> = BTreeMap::new();
    for (index, rank) in ranks.iter().enumerate() {
        for position in &rank.track.positions {
            positions.entry(&position.group).or_default().push((index, position));
        }
    }
    positions.into_iter().map(|(key, found)| group(key, found, ranks)).collect()
}

fn group<'a>(
    key: &'a GroupKey,
    mut found: Vec<(RankIndex, &'a GroupPosition)>,
    ranks: &[RankView<'a>],
) -> GroupView<'a> {
    found.dedup_by_key(|(index, _)| *index);
    let is_known = |index: RankIndex| ranks[index].is_readable() || ranks[index].is_exited();
    let (mut members, mut unknown) = (Vec::new(), Vec::new());
    for (index, position) in &found {
        match position.called.filter(|_| is_known(*index)) {
            Some(called) => members.push(Member { index: *index, called, position }),
            None => unknown.push(*index),
        }
    }
    members.sort_by_key(|member| member.called);
    if found.len() < usize::try_from(key.size).unwrap_or(usize::MAX) {
        let is_listed = |i: &RankIndex| found.binary_search_by_key(i, |(index, _)| *index).is_ok();
        unknown.extend((0..ranks.len()).filter(|i| !is_listed(i) && key.contains(ranks[*i].rank)));
    }
    let seen = u32::try_from(members.len() + unknown.len()).unwrap_or(u32::MAX);
    // All members have the same description, unless the program is at fault: take any.
    let label = found.iter().map(|(_, position)| &position.label).min().cloned();
    GroupView {
        key,
        label: label.unwrap_or_default(),
        members,
        unknown,
        absent: key.size.saturating_sub(seen),
    }
}
