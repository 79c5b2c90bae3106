//! The state of each rank of a job, for a table.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use gputop_model::process::ProcessKey;
use gputop_model::process_group::Work;
use gputop_model::reading::Missing;
use gputop_model::units::Millis;

use super::constant_offset::ConstantOffset;
use super::job_view::{JobView, RankView};
use super::observation::{ProcessStatus, RankExit};
use super::rank_track::Readability;
use super::sentence::RankList;
use super::stack_place::StackPlace;
use super::verdict::{Cause, Verdict};

/// Identity of a job.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct JobKey {
    /// Address of the store, if known.
    pub store: Option<Box<str>>,
    /// The host, if the address has no meaning on other hosts.
    pub host: Option<Arc<str>>,
}

/// What one look at a job showed.
#[derive(Debug, Clone, PartialEq)]
pub struct JobReport {
    pub job: JobKey,
    /// Number of ranks of the job, on all hosts.
    pub world_size: Option<u32>,
    /// The most important verdict first. Empty while no rank waits longer than usual.
    pub verdicts: Vec<Verdict>,
    pub offsets: Vec<ConstantOffset>,
    /// Observed ranks in ascending order.
    pub ranks: Vec<RankRow>,
    /// Ranks with equal stacks, most ranks first.
    pub stacks: Vec<StackGroup>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct RankRow {
    pub rank: u32,
    pub host: Arc<str>,
    pub process: ProcessKey,
    pub gpu: Option<u32>,
    pub state: RankState,
    pub last: Option<LastCollective>,
    pub place: Option<StackPlace>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum RankState {
    Runs,
    /// Waits in the group for the ranks, or for no rank in particular.
    Waits {
        ranks: Vec<u32>,
        group: Arc<str>,
        waited: Option<Millis>,
    },
    HoldsUp,
    InsideNccl,
    Stopped,
    NoProcess(RankExit),
    NotReadable(Missing),
    NotReadYet,
}

/// The oldest pending collective of a rank, or the newest that it has called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastCollective {
    pub group: Arc<str>,
    pub work: Work,
    /// Time since the call, while the collective is pending.
    pub pending: Option<Millis>,
}

/// Ranks whose main threads are at the same place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StackGroup {
    pub ranks: Vec<u32>,
    /// Functions, innermost first.
    pub calls: Vec<String>,
    /// True if all ranks wait for another.
    pub waits: bool,
}

pub(super) fn rows(
    view: &JobView<'_>,
    verdicts: &[Verdict],
    process: impl Fn(u32) -> ProcessKey,
) -> Vec<RankRow> {
    let row = |rank: &RankView<'_>| {
        let last = rank.track.last_work().map(|(position, work, pending)| LastCollective {
            group: position.label.clone(),
            work: work.clone(),
            pending,
        });
        RankRow {
            rank: rank.rank,
            host: rank.track.host.clone(),
            process: process(rank.rank),
            gpu: rank.track.gpu,
            state: state(rank, verdicts, last.as_ref()),
            last,
            place: rank.track.place.as_ref().map(|(_, place)| place.clone()),
        }
    };
    view.ranks.iter().map(row).collect()
}

fn state(rank: &RankView<'_>, verdicts: &[Verdict], last: Option<&LastCollective>) -> RankState {
    match (&rank.readability, &rank.track.status) {
        (Readability::Exited, ProcessStatus::Exited(exit)) => {
            return RankState::NoProcess(exit.clone());
        }
        (_, ProcessStatus::Stopped) => return RankState::Stopped,
        (Readability::NotReadYet, _) => return RankState::NotReadYet,
        (Readability::NotReadable(missing), _) => return RankState::NotReadable(missing.clone()),
        _ => {}
    }
    let named = verdicts.iter().find(|v| v.culprits.binary_search(&rank.rank).is_ok());
    match named.map(|verdict| &verdict.cause) {
        Some(Cause::InsideNccl) => return RankState::InsideNccl,
        Some(Cause::WaitsAlone { .. } | Cause::Deadlock { .. }) => {}
        Some(_) => return RankState::HoldsUp,
        None => {}
    }
    match verdicts.iter().find(|verdict| verdict.concerns(rank.rank)) {
        Some(verdict) => RankState::Waits {
            ranks: if named.is_some() { Vec::new() } else { verdict.culprits.clone() },
            group: last.map_or_else(|| verdict.group.clone(), |last| last.group.clone()),
            waited: last.and_then(|last| last.pending),
        },
        None => RankState::Runs,
    }
}

/// Formats the state as it is shown in a table: `waits for rank 3`.
impl fmt::Display for RankState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Runs => f.write_str("runs"),
            Self::Waits { ranks, group, .. } if ranks.is_empty() => write!(f, "waits in {group}"),
            Self::Waits { ranks, .. } => write!(f, "waits for {}", RankList(ranks)),
            Self::HoldsUp => f.write_str("holds up others"),
            Self::InsideNccl => f.write_str("inside NCCL"),
            Self::Stopped => f.write_str("stopped"),
            Self::NoProcess(_) => f.write_str("no process"),
            Self::NotReadable(missing) => write!(f, "not readable: {missing}"),
            Self::NotReadYet => f.write_str("not read yet"),
        }
    }
}

pub(super) fn stack_groups(view: &JobView<'_>, rows: &[RankRow]) -> Vec<StackGroup> {
    let mut groups: BTreeMap<(&[String], Option<String>), Vec<&RankRow>> = BTreeMap::new();
    for (rank, row) in view.ranks.iter().zip(rows) {
        let calls = rank.track.stack_calls.as_slice();
        if !calls.is_empty() && !rank.is_exited() {
            let place = row.place.as_ref().map(StackPlace::to_string);
            groups.entry((calls, place)).or_default().push(row);
        }
    }
    let group = |((calls, _), rows): ((&[String], _), Vec<&RankRow>)| StackGroup {
        ranks: rows.iter().map(|row| row.rank).collect(),
        calls: calls.to_vec(),
        waits: rows.iter().all(|row| matches!(row.state, RankState::Waits { .. })),
    };
    let mut groups: Vec<_> = groups.into_iter().map(group).collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.ranks.len()));
    groups
}

/// Formats the group as `7 ranks wait in all_reduce < step` or `rank 1 is in next_batch < train`.
impl fmt::Display for StackGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let calls = self.calls.join(" < ");
        match (self.ranks.as_slice(), self.waits) {
            ([rank], true) => write!(f, "rank {rank} waits in {calls}"),
            ([rank], false) => write!(f, "rank {rank} is in {calls}"),
            (ranks, true) => write!(f, "{} ranks wait in {calls}", ranks.len()),
            (ranks, false) => write!(f, "{} ranks are in {calls}", ranks.len()),
        }
    }
}
