//! Compares the ranks of a collective operation that timed out. The watchdog of each rank prints where that rank is
//! waiting:
//!
//! ```text
//! [rank0]: … WorkNCCL(SeqNum=18234, OpType=ALLREDUCE, NumelIn=4096, …
//! [rank2]: … WorkNCCL(SeqNum=18233, OpType=ALLGATHER, NumelIn=512, …      <- the odd one
//! ```

use std::collections::BTreeMap;

use crate::conclusion::diagnosis::Item;
use crate::fields::FieldMap;

const MAX_LISTED: usize = 8;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RankComparison {
    pub(super) sentence: String,
    /// Rank that differs from all others.
    pub(super) odd_rank: Option<u32>,
}

/// A collective operation in which a rank is waiting.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct RankPosition {
    operation: String,
    number: Option<u64>,
    elements: Option<String>,
}

impl RankPosition {
    fn of(found: &FieldMap) -> Option<Self> {
        let text = |name: &str| Some(found.get(name)?.as_str()?.to_owned());
        Some(Self {
            operation: text("op_type")?,
            number: text("seq_num").and_then(|number| number.parse().ok()),
            elements: text("numel_in"),
        })
    }

    /// Formats the position as `ALLGATHER #18233`. Adds the number of elements if it is the only difference.
    fn shown(&self, other: &Self) -> String {
        let number = self.number.map_or_else(String::new, |n| format!(" #{n}"));
        let is_same = (&self.operation, self.number) == (&other.operation, other.number);
        let elements = self.elements.as_ref().filter(|_| is_same);
        let elements = elements.map_or_else(String::new, |n| format!(" with {n} elements"));
        format!("{}{number}{elements}", self.operation)
    }
}

/// Returns the difference between the ranks' collective operations, or `None` if all report the same operation.
pub(super) fn compare<'i>(
    items: impl Iterator<Item = (Option<u32>, &'i Item<'i>)>,
) -> Option<RankComparison> {
    let mut positions: BTreeMap<u32, RankPosition> = BTreeMap::new();
    for (rank, item) in items {
        if let (Some(rank), Some(position)) = (rank, RankPosition::of(&item.sighting.found)) {
            positions.entry(rank).or_insert(position);
        }
    }
    between(&positions)
}

fn between(positions: &BTreeMap<u32, RankPosition>) -> Option<RankComparison> {
    let mut groups: BTreeMap<&RankPosition, Vec<u32>> = BTreeMap::new();
    for (rank, position) in positions {
        groups.entry(position).or_default().push(*rank);
    }
    if groups.len() < 2 {
        return None;
    }
    let mut groups: Vec<(&RankPosition, Vec<u32>)> = groups.into_iter().collect();
    groups.sort_by_key(|(_, ranks)| std::cmp::Reverse(ranks.len()));
    let (usual, majority) = &groups[0];
    let (differs, minority) = &groups[1];
    let verb = |ranks: &[u32]| if ranks.len() == 1 { "is" } else { "are" };
    let others = match groups.len() {
        2 if majority.len() > 1 && minority.len() == 1 => "all others are".to_owned(),
        _ => format!("{} {}", listed(majority).to_lowercase(), verb(majority)),
    };
    let meaning = match (differs.number, usual.number) {
        _ if differs.operation != usual.operation => {
            "they took different paths through the program"
        }
        (Some(a), Some(b)) if a < b => "a lower number means that the rank fell behind",
        (Some(a), Some(b)) if a > b => {
            "a higher number means that the rank skipped an operation that the others are waiting for"
        }
        _ => "their tensors have different sizes",
    };
    let sentence = format!(
        "{} {} at {}; {others} at {}: {meaning}.",
        listed(minority),
        verb(minority),
        differs.shown(usual),
        usual.shown(differs),
    );
    let is_odd = groups.len() == 2 && minority.len() == 1 && majority.len() > 1;
    Some(RankComparison { sentence, odd_rank: minority.first().copied().filter(|_| is_odd) })
}

/// Formats ranks as `Rank 2` or `Ranks 0, 1, 3`.
fn listed(ranks: &[u32]) -> String {
    let shown: Vec<String> = ranks.iter().take(MAX_LISTED).map(u32::to_string).collect();
    let more = ranks.len().saturating_sub(MAX_LISTED);
    let more = match more {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    let word = if ranks.len() == 1 { "Rank" } else { "Ranks" };
    format!("{word} {}{more}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentence(ranks: &[(u32, &str, u64, &str)]) -> Option<(String, Option<u32>)> {
        let positions = ranks.iter().map(|&(rank, operation, number, elements)| {
            let position = RankPosition {
                operation: operation.to_owned(),
                number: Some(number),
                elements: Some(elements.to_owned()),
            };
            (rank, position)
        });
        let found = between(&positions.collect())?;
        Some((found.sentence, found.odd_rank))
    }

    #[test]
    fn names_the_rank_that_differs_and_how() {
        assert_eq!(
            sentence(&[
                (0, "ALLREDUCE", 34, "64"),
                (1, "ALLREDUCE", 34, "64"),
                (2, "ALLGATHER", 33, "8"),
            ]),
            Some((
                "Rank 2 is at ALLGATHER #33; all others are at ALLREDUCE #34: they took different paths through the program."
                    .to_owned(),
                Some(2)
            ))
        );
        let (behind, _) =
            sentence(&[(0, "ALLREDUCE", 9, "4"), (1, "ALLREDUCE", 7, "4")]).expect("they differ");
        assert!(behind.contains("#9") && behind.contains("#7"), "{behind}");
        let (sizes, _) = sentence(&[
            (0, "ALLREDUCE", 9, "4"),
            (1, "ALLREDUCE", 9, "4"),
            (2, "ALLREDUCE", 9, "5"),
        ])
        .expect("they differ");
        assert!(sizes.contains("with 5 elements") && sizes.contains("different sizes"), "{sizes}");
        assert_eq!(sentence(&[(0, "ALLREDUCE", 9, "4"), (1, "ALLREDUCE", 9, "4")]), None);
    }
}
