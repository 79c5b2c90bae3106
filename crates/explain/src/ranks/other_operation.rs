//! Finds members of a group that called another operation, or another size, than the others under the same number.

use std::collections::BTreeMap;

use gputop_model::process_group::Work;

use super::job_view::{GroupView, RankIndex};
use super::verdict::Cause;

/// Operations for which all ranks pass inputs of the same size.
const SAME_SIZE: [&str; 5] =
    ["ALLREDUCE", "BROADCAST", "REDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE"];

/// Returns the cause and the culprits if members called different operations or sizes under the same number. The culprits
/// are empty if no camp is clearly larger than the others.
pub(super) fn other_operation(group: &GroupView<'_>, seq: u64) -> Option<(Cause, Vec<RankIndex>)> {
    let works = group.members.iter().filter_map(|m| Some((m.index, m.position.work(seq)?)));
    let known: Vec<_> = works.filter(|(_, work)| !work.operation.is_empty()).collect();
    let has_sizes = known
        .iter()
        .all(|(_, work)| SAME_SIZE.contains(&work.operation.as_str()) && work.elements.is_some());
    let mut camps: BTreeMap<_, Vec<(RankIndex, &Work)>> = BTreeMap::new();
    for (index, work) in &known {
        let size = work.elements.map(|(input, _)| input).filter(|_| has_sizes);
        camps.entry((work.operation.as_str(), size)).or_default().push((*index, *work));
    }
    let mut camps: Vec<_> = camps.into_values().collect();
    camps.sort_by_key(|camp| std::cmp::Reverse(camp.len()));
    let (largest, odd) = camps.split_first()?;
    let odd: Vec<_> = odd.iter().flatten().collect();
    let (theirs, usual) = (odd.first()?.1.clone(), largest.first()?.1.clone());
    let unseen = group.members.len() - known.len() + group.unseen();
    let is_clear = odd.len() + unseen < largest.len();
    let culprits = odd.iter().map(|(index, _)| *index).filter(|_| is_clear);
    let mut culprits: Vec<_> = culprits.collect();
    culprits.sort_unstable();
    Some((Cause::OtherOperation { theirs, usual }, culprits))
}
