//! Compares readings of one process to find out which groups of memory holders grow.
//!
//! A group is growing if it grew in every retained reading. Readings are taken in different phases of a training step,
//! so the memory saved by autograd may rise a few times by chance. Therefore, three readings are enough only for a
//! group inside a Python container, whose name ends with an index as in `history[*]`. Any other group needs five
//! readings.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::Serialize;

use super::{GroupKey, HolderClass, HolderGroup, Holders};
use crate::process::ProcessKey;
use crate::units::{Bytes, Mono};

pub(crate) const MAX_READINGS: usize = 10;
/// Minimum number of readings before a group inside a Python container is reported as growing.
const MIN_READINGS: usize = 3;
/// Minimum number of readings before a group outside a Python container is reported as growing.
const MIN_READINGS_OUTSIDE_CONTAINERS: usize = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct GroupGrowth {
    /// Change in bytes since the previous reading.
    pub bytes: i64,
    /// Change in the number of blocks since the previous reading.
    pub count: i64,
    /// Growth rate, if the group grew in every reading.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<GrowthRate>,
}

/// Mean growth over the compared readings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct GrowthRate {
    pub bytes_per_minute: Bytes,
    pub blocks_per_minute: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Size {
    at: Mono,
    bytes: Bytes,
    count: u64,
}

#[derive(Debug, Clone)]
struct ReadingSizes {
    at: Mono,
    sizes: BTreeMap<GroupKey, Size>,
}

/// The latest memory readings of one process, oldest first.
#[derive(Debug, Clone, Default)]
pub struct HolderGrowth {
    process: ProcessKey,
    readings: VecDeque<ReadingSizes>,
    /// True if the newest reading was incomplete. In that case, `readings` does not contain its sizes.
    is_incomplete: bool,
}

impl HolderGrowth {
    /// Adds a memory reading. Starts over if the reading is from another process or is older than the last one. Ignores
    /// an incomplete reading, because tensors of a group may be missing from it.
    pub fn push(&mut self, holders: &Holders) {
        let last = self.readings.back().map(|reading| reading.at);
        if last == Some(holders.at) && self.process == holders.process {
            return;
        }
        if holders.process != self.process || last.is_some_and(|last| holders.at < last) {
            self.readings.clear();
        }
        self.process = holders.process;
        self.is_incomplete = holders.is_incomplete;
        if holders.is_incomplete {
            return;
        }
        if self.readings.len() == MAX_READINGS {
            self.readings.pop_front();
        }
        let size =
            |group: &HolderGroup| Size { at: holders.at, bytes: group.bytes, count: group.count };
        let groups = holders.groups.iter();
        self.readings.push_back(ReadingSizes {
            at: holders.at,
            sizes: groups.map(|group| (group.key(), size(group))).collect(),
        });
    }

    /// Returns the approximate memory of the retained sizes in bytes.
    pub fn memory_size(&self) -> usize {
        let keys = self.readings.iter().flat_map(|reading| reading.sizes.keys());
        keys.map(|key| size_of::<(GroupKey, Size)>() + key.name.len()).sum()
    }

    /// Returns a group's change since the previous reading, or `None` if there is no previous reading or the newest
    /// reading was incomplete.
    pub fn of(&self, group: &HolderGroup) -> Option<GroupGrowth> {
        if self.is_incomplete {
            return None;
        }
        let key = group.key();
        let sizes: Vec<Option<Size>> =
            self.readings.iter().map(|reading| reading.sizes.get(&key).copied()).collect();
        let [.., before, Some(now)] = sizes[..] else { return None };
        let (bytes, count) = before.map_or((0, 0), |size| (size.bytes.0, size.count));
        Some(GroupGrowth {
            bytes: difference(now.bytes.0, bytes),
            count: difference(now.count, count),
            rate: rate(group, &sizes),
        })
    }
}

/// Returns the groups of an earlier reading that are missing from a later one, largest first. Their memory may have
/// been freed or may have a different name now. Returns `None` if a reading is incomplete, because groups may be
/// missing from it.
pub fn missing_groups<'a>(earlier: &'a Holders, now: &Holders) -> Option<Vec<&'a HolderGroup>> {
    if earlier.is_incomplete || now.is_incomplete {
        return None;
    }
    let present: BTreeSet<GroupKey> = now.groups.iter().map(HolderGroup::key).collect();
    Some(earlier.groups.iter().filter(|group| !present.contains(&group.key())).collect())
}

/// Returns the growth rate of a group that grew in every reading since it appeared. Its first size does not count as
/// growth, because many buffers are allocated only once.
fn rate(group: &HolderGroup, sizes: &[Option<Size>]) -> Option<GrowthRate> {
    let min_readings = match container(&group.name) {
        Some(_) => MIN_READINGS,
        None => MIN_READINGS_OUTSIDE_CONTAINERS,
    };
    // If a group is missing from a later reading, its memory was freed in between, so the group is not growing.
    let sizes = sizes.iter().copied().skip_while(Option::is_none).collect::<Option<Vec<Size>>>()?;
    if sizes.len() < min_readings || !sizes.windows(2).all(|pair| pair[1].bytes > pair[0].bytes) {
        return None;
    }
    let (first, last) = (sizes.first()?, sizes.last()?);
    let minutes = last.at.since(first.at).0 as f64 / 60_000.0;
    if minutes <= 0.0 {
        return None;
    }
    let per_minute = |now: u64, then: u64| (now.saturating_sub(then) as f64 / minutes).round();
    Some(GrowthRate {
        bytes_per_minute: Bytes(per_minute(last.bytes.0, first.bytes.0) as u64),
        blocks_per_minute: per_minute(last.count, first.count) as u64,
    })
}

fn difference(now: u64, before: u64) -> i64 {
    let difference = i128::from(now) - i128::from(before);
    i64::try_from(difference).unwrap_or(if now > before { i64::MAX } else { i64::MIN })
}

/// Returns the Python container in a tensor name: `trainer.history` for `trainer.history[*]`, `cache` for
/// `cache['step_*'].data`.
pub fn container(name: &str) -> Option<&str> {
    let mut from = 0;
    while let Some(open) = name[from..].find('[').map(|at| from + at) {
        let close = name[open..].find(']').map(|at| open + at)?;
        if open > 0 && name[open..close].contains('*') {
            return Some(&name[..open]);
        }
        from = close;
    }
    None
}

/// Returns a sentence, without a period, that says what keeps a growing group alive. For autograd graphs, it suggests a
/// change to the program.
pub fn advice(group: &HolderGroup, rate: GrowthRate) -> Option<String> {
    let name = Some(&group.name).filter(|name| !name.is_empty())?;
    match group.class {
        HolderClass::SavedForBackward => Some(format!(
            "`{name}` keeps autograd graphs alive: store the result of `.item()` or `.detach()` instead, or compute the tensor under `torch.no_grad()`"
        )),
        HolderClass::Variable => {
            let container = container(name)?;
            Some(match rate.blocks_per_minute {
                0 => format!("`{container}` grows"),
                1 => format!("`{container}` gains 1 tensor a minute"),
                count => format!("`{container}` gains {count} tensors a minute"),
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
