//! Assigns every allocated block to a holder, and groups the blocks by their holders' names.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use gputop_model::holders::{
    HeldTensor, HolderClass, HolderGroup, MAX_GROUPS, MAX_LISTED, keep_largest, merge_smallest,
};
use gputop_model::pool::{BlockState, PoolKind, PoolMap};
use gputop_model::units::Bytes;

use super::tensors::{HeldBlock, Tensor};

/// Maximum number of additional names for one tensor storage.
const MAX_ALIASES: usize = 8;

/// The allocated blocks of all devices, sorted by address.
#[derive(Debug, Default)]
pub struct Blocks(Vec<HeldBlock>);

impl Blocks {
    /// Returns the blocks of PyTorch's pools and those of arrays.
    pub fn new(maps: &[PoolMap], arrays: &[HeldBlock]) -> Self {
        let mut blocks = arrays.to_vec();
        for map in maps {
            for segment in &map.segments {
                let allocated = segment.blocks.iter();
                let allocated = allocated.filter(|block| block.state == BlockState::Allocated);
                blocks.extend(allocated.map(|block| HeldBlock {
                    address: block.address,
                    bytes: block.size.0,
                    requested: block.requested.map(|bytes| bytes.0),
                    ordinal: map.ordinal,
                    is_private: segment.pool == PoolKind::Private,
                    array_of: None,
                }));
            }
        }
        blocks.sort_unstable_by_key(|block| block.address);
        Self(blocks)
    }

    /// Returns the index of the block that contains an address.
    pub fn index_of(&self, address: u64) -> Option<usize> {
        let index = self.0.partition_point(|block| block.address <= address).checked_sub(1)?;
        let block = self.0.get(index)?;
        (address - block.address < block.bytes).then_some(index)
    }

    /// Returns the index of the block that was allocated for a tensor storage. Also compares the sizes: if the tensor
    /// was freed before the blocks were read, a new block often has its address, but rarely its size.
    fn index_of_storage(&self, address: u64, bytes: u64) -> Option<usize> {
        let index = self.index_of(address)?;
        let block = self.0.get(index)?;
        let fits = match block.requested {
            Some(requested) => requested == bytes,
            None => bytes <= block.bytes,
        };
        (block.address == address && fits).then_some(index)
    }

    pub fn size_at(&self, address: u64) -> Option<u64> {
        Some(self.0.get(self.index_of(address)?)?.bytes)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    fn bytes(&self) -> u64 {
        self.0.iter().map(|block| block.bytes).fold(0, u64::saturating_add)
    }
}

/// A possible holder of a block. If a block has several candidates, the one with the lowest rank wins.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct HolderCandidate {
    pub class: HolderClass,
    pub name: String,
    pub path: Vec<String>,
    /// Weighted number of references in the path. If the candidates are otherwise equal, the lowest cost wins.
    pub cost: u32,
    pub tensor: Tensor,
    pub aliases: Vec<String>,
}

impl HolderCandidate {
    /// Returns the candidate's rank. The class is compared first: tensors with a name, then tensors saved by a graph,
    /// then all others. Within a class, tensors that cover their storage come before views, and large views before
    /// small ones.
    fn rank(&self) -> (u8, bool, Reverse<u64>, u32) {
        let class = match self.class {
            HolderClass::Parameter => 0,
            HolderClass::Gradient => 1,
            HolderClass::OptimizerState => 2,
            HolderClass::Buffer => 3,
            HolderClass::Variable => 4,
            HolderClass::SavedForBackward => 5,
            HolderClass::Unnamed | HolderClass::UnnamedArray => 6,
            HolderClass::CppStorage => 7,
            HolderClass::GraphPool => 8,
            HolderClass::Workspace => 9,
            HolderClass::OutsideArrays | HolderClass::Unknown => 10,
        };
        let is_view = self.tensor.is_view();
        let viewed = if is_view { self.tensor.elements } else { 0 };
        (class, is_view, Reverse(viewed), self.cost)
    }
}

#[derive(Debug)]
pub struct BlockAssignment {
    blocks: Blocks,
    candidates: Vec<Option<HolderCandidate>>,
}

impl BlockAssignment {
    pub fn new(blocks: Blocks) -> Self {
        let candidates = vec![None; blocks.len()];
        Self { blocks, candidates }
    }

    pub fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// Makes the candidate the holder of the block that contains its tensor, unless the block's current holder has a
    /// lower rank.
    pub fn add(&mut self, candidate: HolderCandidate) {
        let (address, bytes) = (candidate.tensor.data, candidate.tensor.storage_bytes);
        let Some(index) = self.blocks.index_of_storage(address, bytes) else { return };
        let Some(slot) = self.candidates.get_mut(index) else { return };
        let (mut winner, loser) = match slot.take() {
            None => (candidate, HolderCandidate::default()),
            Some(other) if candidate.rank() < other.rank() => (candidate, other),
            Some(other) => (other, candidate),
        };
        // Do not add an alias for a tensor saved by a graph, because saving a tensor does not give the tensor another
        // name.
        let name = match loser.class {
            HolderClass::SavedForBackward => String::new(),
            _ => loser.name,
        };
        for name in std::iter::once(name).chain(loser.aliases) {
            let is_new = !name.is_empty() && name != winner.name && !winner.aliases.contains(&name);
            if is_new && winner.aliases.len() < MAX_ALIASES {
                winner.aliases.push(name);
            }
        }
        *slot = Some(winner);
    }

    pub fn is_assigned(&self, address: u64) -> bool {
        let index = self.blocks.index_of(address);
        index.is_some_and(|index| self.candidates.get(index).is_some_and(Option::is_some))
    }

    /// Returns the groups of blocks, largest first, and the sum of their bytes. `is_known` is called for blocks without
    /// a tensor, and returns whether the block at an address was already allocated before the read.
    pub fn into_groups(self, is_known: impl Fn(u64) -> bool) -> (Vec<HolderGroup>, Bytes) {
        let allocated = Bytes(self.blocks.bytes());
        let mut groups: BTreeMap<(u32, HolderClass, String), HolderGroup> = BTreeMap::new();
        for (block, candidate) in self.blocks.0.into_iter().zip(self.candidates) {
            let candidate = candidate.unwrap_or_else(|| HolderCandidate {
                class: match () {
                    () if block.is_private => HolderClass::GraphPool,
                    () if is_known(block.address) => HolderClass::Workspace,
                    () => HolderClass::Unnamed,
                },
                ..HolderCandidate::default()
            });
            let name = group_name(&candidate.name);
            let key = (block.ordinal, candidate.class, name.clone());
            let group = groups.entry(key).or_insert_with(|| HolderGroup {
                ordinal: block.ordinal,
                class: candidate.class,
                name,
                ..HolderGroup::default()
            });
            group.count += 1;
            group.bytes.0 = group.bytes.0.saturating_add(block.bytes);
            group.tensors.push(held_tensor(&block, candidate));
            // Drop small tensors only when the list is twice as long as needed, so that it is not sorted for every
            // block.
            if group.tensors.len() >= 2 * MAX_LISTED {
                keep_largest(&mut group.tensors);
            }
        }
        let mut groups: Vec<HolderGroup> = groups.into_values().collect();
        groups.iter_mut().for_each(|group| keep_largest(&mut group.tensors));
        (merge_smallest(groups, MAX_GROUPS), allocated)
    }
}

fn held_tensor(block: &HeldBlock, candidate: HolderCandidate) -> HeldTensor {
    HeldTensor {
        name: candidate.name,
        bytes: Bytes(block.bytes),
        address: block.address,
        dtype: match candidate.tensor.implementation {
            0 => String::new(),
            _ => candidate.tensor.dtype.name.to_owned(),
        },
        is_view: candidate.tensor.is_view(),
        shape: candidate.tensor.shape,
        path: candidate.path,
        aliases: candidate.aliases,
    }
}

/// Replaces indices in a variable's name with `*`: `model.layers.3.weight` becomes `model.layers.*.weight`, and
/// `cache['step_12']` becomes `cache['step_*']`. Digits in attribute names remain: `model.fc1.weight`.
pub fn group_name(name: &str) -> String {
    let mut group = String::with_capacity(name.len());
    let mut component = String::new();
    let mut is_quoted = false;
    for c in name.chars() {
        match c {
            '\'' => {
                is_quoted = !is_quoted;
                group.push_str(&starred(&component));
                component.clear();
                group.push(c);
            }
            '0'..='9' if is_quoted => {
                if !group.ends_with('*') {
                    group.push('*');
                }
            }
            _ if is_quoted => group.push(c),
            '.' | '[' | ']' => {
                group.push_str(&starred(&component));
                component.clear();
                group.push(c);
            }
            _ => component.push(c),
        }
    }
    group + &starred(&component)
}

/// Returns `*` for a name component that is an index, and any other component unchanged.
fn starred(component: &str) -> String {
    let is_index = !component.is_empty() && component.bytes().all(|b| b.is_ascii_digit());
    if is_index { "*" } else { component }.to_owned()
}

#[cfg(test)]
mod tests {
    use gputop_model::reported_pool::Framework;

    use super::*;

    #[test]
    fn group_names_have_stars_for_indices_only() {
        let table = [
            ("model.layers.3.fc1.weight", "model.layers.*.fc1.weight"),
            ("trainer.history[12]", "trainer.history[*]"),
            ("cache['step_120']", "cache['step_*']"),
            (
                "opt.state[model.layers.3.fc1.weight]['exp_avg']",
                "opt.state[model.layers.*.fc1.weight]['exp_avg']",
            ),
            ("x", "x"),
            ("", ""),
        ];
        for (name, group) in table {
            assert_eq!(group_name(name), group);
        }
    }

    fn block(address: u64, bytes: u64) -> HeldBlock {
        HeldBlock {
            requested: Some(bytes - 12),
            ..HeldBlock::of_array(address, bytes, 0, Framework::Cupy)
        }
    }

    fn candidate(
        (address, bytes): (u64, u64),
        class: HolderClass,
        name: &str,
        cost: u32,
    ) -> HolderCandidate {
        let tensor = Tensor { data: address, storage_bytes: bytes, ..Tensor::default() };
        HolderCandidate { class, name: name.to_owned(), cost, tensor, ..HolderCandidate::default() }
    }

    #[test]
    fn every_block_is_in_one_group_and_the_lowest_rank_wins() {
        let mut assignment = BlockAssignment::new(Blocks(vec![
            block(0x1000, 512),
            block(0x2000, 512),
            block(0x3000, 1_024),
        ]));
        let (first, second) = ((0x1000, 500), (0x2000, 500));
        assignment.add(candidate(first, HolderClass::Variable, "copy", 3));
        assignment.add(candidate(first, HolderClass::Parameter, "model.0.weight", 9));
        assignment.add(candidate((0x1100, 100), HolderClass::Variable, "inside", 1));
        assignment.add(candidate((0x1200, 500), HolderClass::Variable, "outside", 1));
        // The gradient was freed, and its address now belongs to another tensor.
        assignment.add(candidate((0x1000, 12), HolderClass::Parameter, "stale", 0));
        assignment.add(candidate(second, HolderClass::Parameter, "model.1.weight", 9));
        let (groups, allocated) = assignment.into_groups(|_| true);
        assert_eq!(allocated, Bytes(2_048));
        let found: Vec<_> = groups.iter().map(|g| (g.class, g.name.as_str(), g.count)).collect();
        assert_eq!(
            found,
            [(HolderClass::Parameter, "model.*.weight", 2), (HolderClass::Workspace, "", 1)]
        );
        assert_eq!(groups[0].tensors[0].aliases, ["copy"]);
    }

    #[test]
    fn the_largest_of_several_views_names_their_block() {
        let mut assignment = BlockAssignment::new(Blocks(vec![block(0x1000, 4_108)]));
        let view = |name: &str, cost, elements| {
            let mut view = candidate((0x1000, 4_096), HolderClass::Gradient, name, cost);
            view.tensor.elements = elements;
            view
        };
        assignment.add(view("model.0.bias.grad", 3, 16));
        assignment.add(view("model.0.weight.grad", 4, 1_000));
        assignment.add(view("model.1.bias.grad", 2, 8));
        let (groups, _) = assignment.into_groups(|_| true);
        let held = &groups[0].tensors[0];
        assert_eq!(held.name, "model.0.weight.grad");
        assert_eq!(held.aliases, ["model.0.bias.grad", "model.1.bias.grad"]);
    }

    #[test]
    fn groups_beyond_the_maximum_are_joined_without_losing_bytes() {
        let blocks = (0..3_000).map(|index| block(0x1000 * (index + 1), 512 + index)).collect();
        let mut assignment = BlockAssignment::new(Blocks(blocks));
        for index in 0..3_000u64 {
            let name = format!("v{index}x");
            let storage = (0x1000 * (index + 1), 500 + index);
            assignment.add(candidate(storage, HolderClass::Variable, &name, 1));
        }
        let (groups, allocated) = assignment.into_groups(|_| true);
        assert_eq!(groups.len(), MAX_GROUPS);
        assert_eq!(groups.iter().map(|group| group.bytes.0).sum::<u64>(), allocated.0);
        assert_eq!(groups.iter().map(|group| group.count).sum::<u64>(), 3_000);
    }
}
