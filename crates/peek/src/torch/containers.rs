//! Parses the two containers in which PyTorch's allocator stores its blocks. Numbers are offsets in bytes.
//!
//! libstdc++'s `std::set` (48 bytes) contains a comparator at 0, then the tree's header: colour 8, root 16, leftmost
//! 24, rightmost 32, count 40. A node: colour 0, parent 8, left 16, right 24, value 32. The root's parent is the
//! header, so a set can be recognized regardless of its contents. An empty set points to its own header twice.
//!
//! c10's `ska::flat_hash_map` (32 bytes): entries 0, slots − 1 at 8, shift 16, max_lookups 17, load factor 20, count
//! 24. An entry begins with its distance from its ideal slot, or −1 if it is free. There are `slots + max_lookups − 1`
//! valid entries, followed by an end marker that looks occupied (c10/util/flat_hash_map.h).

use crate::memory::view::View;
use crate::memory::{Memory, MemoryError, exact, is_pointer, objects, up_to};

/// Maximum number of blocks in a container. A larger count is treated as invalid; even 10,000 blocks would be unusual.
pub const MAX_BLOCKS: u64 = 1 << 18;
/// Maximum number of slots of a hash table. A table is at least half full, so this is enough for `MAX_BLOCKS`.
const MAX_SLOTS: u64 = 1 << 20;
/// Maximum plausible value of a hash table's `max_lookups`, which is log2 of the slots and at least 4.
const MAX_LOOKUPS: u8 = 64;
/// A hash table's load factor of 0.5, as the bits of an f32.
const LOAD_FACTOR: u32 = 0x3f00_0000;

/// The header of a `std::set` of pointers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Set {
    /// Address of the tree's header. The header is the parent of the root.
    header: u64,
    pub root: u64,
    pub leftmost: u64,
    pub rightmost: u64,
    pub count: u64,
}

impl Set {
    pub const SIZE: usize = 48;

    /// Parses the `std::set` at `offset` in the struct at `address`. Returns `None` if the words cannot be a set.
    pub fn parse(view: View<'_>, address: u64, offset: usize) -> Option<Self> {
        let set = Self {
            header: address.wrapping_add(offset as u64 + 8),
            root: view.word(offset + 16)?,
            leftmost: view.word(offset + 24)?,
            rightmost: view.word(offset + 32)?,
            count: view.word(offset + 40)?,
        };
        let is_red = view.int(offset + 8)? == 0;
        let is_plausible = if set.count == 0 {
            set.root == 0 && set.leftmost == set.header && set.rightmost == set.header
        } else {
            let nodes = [set.root, set.leftmost, set.rightmost];
            set.count <= MAX_BLOCKS && nodes.into_iter().all(is_pointer)
        };
        (is_red && is_plausible).then_some(set)
    }

    /// Returns true if the tree's root points back to this header, which does not happen by chance.
    pub fn is_anchored(&self, memory: &dyn Memory) -> Result<bool, MemoryError> {
        if self.count == 0 {
            return Ok(true);
        }
        let node = up_to(memory, self.root, 16)?;
        Ok(View(&node).word(8) == Some(self.header))
    }
}

#[derive(Debug, Clone, Copy)]
pub struct TreeNode {
    pub left: u64,
    pub right: u64,
    pub value: u64,
}

impl TreeNode {
    pub const SIZE: usize = 40;

    pub fn parse(view: View<'_>) -> Option<Self> {
        Some(Self { left: view.word(16)?, right: view.word(24)?, value: view.word(32)? })
    }

    fn children(self) -> impl Iterator<Item = u64> {
        [self.left, self.right].into_iter().filter(|&node| is_pointer(node))
    }
}

/// Returns the values of all sets in any order. Reads all trees together, one level at a time, so that the number of
/// system calls depends on the number of levels, not on the number of nodes.
///
/// If a tree is changing or invalid, the walk stops after slightly more nodes than the tree's stored count.
pub fn set_values(memory: &dyn Memory, sets: &[Set]) -> Result<Vec<u64>, MemoryError> {
    let occupied = sets.iter().filter(|set| set.count > 0);
    let claimed: u64 = occupied.clone().map(|set| set.count + 16).sum();
    let max_values = usize::try_from(claimed.min(MAX_BLOCKS)).unwrap_or_default();
    let mut level: Vec<u64> = occupied.map(|set| set.root).collect();
    let mut values = Vec::with_capacity(max_values);
    while !level.is_empty() && values.len() < max_values {
        level.truncate(max_values - values.len());
        let nodes = objects::read(memory, &level, TreeNode::SIZE)?;
        level.clear();
        for node in nodes.readable().filter_map(TreeNode::parse) {
            values.push(node.value);
            level.extend(node.children());
        }
    }
    Ok(values)
}

/// The header of a `ska::flat_hash_map` or `flat_hash_set`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HashTable {
    entries: u64,
    /// Number of slots in the hash table, including the overflow slots.
    slots: u64,
    pub count: u64,
}

impl HashTable {
    pub const SIZE: usize = 32;

    /// Parses the hash table at `offset`. Returns `None` if the words cannot be a table.
    pub fn parse(view: View<'_>, offset: usize) -> Option<Self> {
        let slots_minus_one = view.word(offset + 8)?;
        let lookups = view.byte(offset + 17)?;
        let table = Self {
            entries: view.word(offset)?,
            slots: slots_minus_one.wrapping_add(u64::from(lookups)),
            count: view.word(offset + 24)?,
        };
        let is_power = slots_minus_one & slots_minus_one.wrapping_add(1) == 0;
        let is_plausible = is_pointer(table.entries)
            && is_power
            && slots_minus_one < MAX_SLOTS
            && (3..MAX_LOOKUPS).contains(&lookups)
            && view.int(offset + 20)? == LOAD_FACTOR
            && table.count <= slots_minus_one + 1;
        is_plausible.then_some(table)
    }

    /// Reads the table's occupied entries, each of which has `entry` bytes. `parse` receives an entry without its
    /// distance.
    pub fn values<T>(
        &self,
        memory: &dyn Memory,
        entry: usize,
        parse: impl Fn(View<'_>) -> Option<T>,
    ) -> Result<Vec<T>, MemoryError> {
        if self.count == 0 {
            return Ok(Vec::new());
        }
        let slots = usize::try_from(self.slots).unwrap_or_default();
        let table = exact(memory, self.entries, slots * entry, "a hash table")?;
        let occupied = table
            .chunks_exact(entry)
            .map(View)
            .filter(|entry| entry.byte(0).is_some_and(|distance| distance < 0x80));
        Ok(occupied.filter_map(|entry| parse(entry.from(8)?)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn recognises_empty_set_by_its_self_references() {
        let bytes = words(&[7, 0, 0, 0x10_0008, 0x10_0008, 0]);
        assert!(Set::parse(View(&bytes), 0x10_0000, 0).is_some());
        assert_eq!(Set::parse(View(&bytes), 0x10_0008, 0), None);
        assert_eq!(Set::parse(View(&[0; 48]), 0x10_0000, 0), None);
        assert_eq!(Set::parse(View(&bytes[..40]), 0x10_0000, 0), None);
    }

    #[test]
    fn empty_hash_table_has_three_slots() {
        let bytes = words(&[0x7f00_0000, 0, 0x3f00_0000_0000_033f, 0]);
        let table = HashTable::parse(View(&bytes), 0).expect("a table");
        assert_eq!((table.slots, table.count), (3, 0));
        assert_eq!(HashTable::parse(View(&[0; 32]), 0), None);
        let absurd = words(&[0x7f00_0000, u64::MAX, 0x3f00_0000_0000_033f, 0]);
        assert_eq!(HashTable::parse(View(&absurd), 0), None);
    }
}
