//! Reads every Block of one device: active blocks from their hash set, all others from the sets of each pool.
//!
//! The pools are the device's large and small pool, and two in each PrivatePool (of a MemPool or a CUDA graph). Private
//! pools are found through the map `graph_pools`, even if none of their blocks is in use. That map is recognized by its
//! values: each is a PrivatePool whose BlockPools point back to the PrivatePool as their owner.
//!
//! The target process keeps running, so a walk may see a block twice, miss one, or follow a pointer into freed memory.
//! The consistency of the result is checked afterwards ([`map`](super::map)).

use std::collections::{BTreeMap, HashSet};

use gputop_model::{PoolId, PoolKind};

use super::block::{BlockLayout, SAMPLE_BYTES, TorchBlock};
use super::containers::{HashTable, Set, set_values};
use super::layout::Layout;
use crate::memory::view::View;
use crate::memory::{Memory, MemoryError, exact, is_pointer, objects, up_to};

/// Maximum plausible private pool ID. The IDs count up from 0, or consist of the graph's number and a flag.
const MAX_POOL_ID: u64 = 1 << 48;
/// Maximum number of private pools. vLLM has about a hundred.
const MAX_PRIVATE_POOLS: u64 = 4_096;
/// Size of a `graph_pools` entry in bytes: the distance from the ideal slot, a pair of IDs and a pointer.
const GRAPH_POOL_ENTRY: usize = 32;
const ACTIVE_ENTRY: usize = 16;
/// Number of bytes of a PrivatePool to read, and the range of possible offsets of its first BlockPool: 8, 32 or 40 in
/// known versions.
const PRIVATE_POOL_BYTES: usize = 512;
const FIRST_BLOCK_POOL_OFFSETS: std::ops::Range<usize> = 0..160;
/// Maximum number of blocks to sample for detecting the Block layout.
const MAX_SAMPLES: usize = 512;
/// Allowance in bytes for memory that the program reserves during the walk.
const RESERVED_SLACK: u64 = 1 << 30;

/// The allocator of one device in another process.
#[derive(Debug, Clone, Copy)]
pub struct Device<'a> {
    pub memory: &'a dyn Memory,
    pub address: u64,
    pub layout: &'a Layout,
}

/// Pools of a device by BlockPool address. Private pools have an ID.
pub type DevicePools = BTreeMap<u64, (PoolKind, Option<PoolId>)>;

#[derive(Debug, Default)]
pub struct Walk {
    pub pools: DevicePools,
    /// Blocks ordered by device memory address.
    pub blocks: Vec<TorchBlock>,
    /// Number of block addresses at which no valid Block was found.
    pub lost: usize,
}

impl Device<'_> {
    pub fn pools(&self) -> Result<DevicePools, MemoryError> {
        let mut pools = DevicePools::from([
            (self.address + self.layout.large as u64, (PoolKind::Large, None)),
            (self.address + self.layout.small as u64, (PoolKind::Small, None)),
        ]);
        for (large, id) in self.private_pools()? {
            let pool = (PoolKind::Private, Some(id));
            pools.insert(large, pool);
            pools.insert(large + self.layout.pool_size as u64, pool);
        }
        Ok(pools)
    }

    /// Returns the ID of each PrivatePool and the address of its first BlockPool. The second BlockPool follows the
    /// first.
    fn private_pools(&self) -> Result<Vec<(u64, PoolId)>, MemoryError> {
        let bytes = up_to(self.memory, self.address, self.layout.graph_pools_end())?;
        let mut candidates = Vec::new();
        for offset in self.layout.graph_pools() {
            let table = HashTable::parse(View(&bytes), offset);
            let Some(table) = table.filter(|t| (1..=MAX_PRIVATE_POOLS).contains(&t.count)) else {
                continue;
            };
            // Ignore unreadable entries: if this is a different table with smaller entries, the read may extend beyond
            // the table's end.
            match table.values(self.memory, GRAPH_POOL_ENTRY, graph_pool) {
                Ok(found) => candidates.extend(found),
                Err(MemoryError::Unreadable { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        candidates.sort_unstable();
        candidates.dedup_by_key(|(address, _)| *address);
        let addresses: Vec<u64> = candidates.iter().map(|(address, _)| *address).collect();
        let found = objects::read(self.memory, &addresses, PRIVATE_POOL_BYTES)?;
        let pools = candidates.iter().zip(found.iter());
        Ok(pools
            .filter_map(|(&(address, id), pool)| Some((self.first_block_pool(address, pool?)?, id)))
            .collect())
    }

    fn first_block_pool(&self, address: u64, pool: View<'_>) -> Option<u64> {
        let owner = self.layout.pool_owner();
        FIRST_BLOCK_POOL_OFFSETS
            .step_by(8)
            .find(|&offset| {
                pool.word(offset + owner) == Some(address)
                    && Set::parse(pool, address, offset).is_some()
            })
            .map(|offset| address + offset as u64)
    }

    /// Returns the addresses of all Blocks, with a flag for active ones.
    fn addresses(&self, pools: &DevicePools) -> Result<BTreeMap<u64, bool>, MemoryError> {
        let free = set_values(self.memory, &self.sets(pools)?)?;
        let active = self.active()?;
        let tagged = |addresses: Vec<u64>, is_active| {
            addresses
                .into_iter()
                .filter(|&address| is_pointer(address))
                .map(move |address| (address, is_active))
        };
        Ok(tagged(free, false).chain(tagged(active, true)).collect())
    }

    fn active(&self) -> Result<Vec<u64>, MemoryError> {
        let what = "the set of active blocks";
        let at = self.address + self.layout.active as u64;
        let header = exact(self.memory, at, HashTable::SIZE, what)?;
        let table = HashTable::parse(View(&header), 0)
            .ok_or(MemoryError::Unreadable { what, address: at })?;
        table.values(self.memory, ACTIVE_ENTRY, |entry| entry.word(0))
    }

    /// Reads the block sets of all pools: the first of each (free blocks) and the last (unmapped blocks). The set
    /// between them, which exists since torch 2.13, contains the free blocks in another order.
    fn sets(&self, pools: &DevicePools) -> Result<Vec<Set>, MemoryError> {
        let addresses: Vec<u64> = pools.keys().copied().collect();
        let headers = objects::read(self.memory, &addresses, Set::SIZE * self.layout.sets)?;
        let mut sets = Vec::new();
        for (address, header) in addresses.iter().zip(headers.iter()) {
            for index in [0, self.layout.sets - 1] {
                sets.extend(header.and_then(|view| Set::parse(view, *address, index * Set::SIZE)));
            }
        }
        sets.dedup();
        Ok(sets)
    }

    /// Detects the layout of a Block. Returns `None` if no block exists yet.
    pub fn calibrate_blocks(&self) -> Result<Option<BlockLayout>, MemoryError> {
        let pools = self.pools()?;
        let addresses = self.addresses(&pools)?;
        let addresses: Vec<u64> = addresses.into_keys().take(MAX_SAMPLES).collect();
        let sample = objects::read(self.memory, &addresses, SAMPLE_BYTES)?;
        let pools = pools.into_keys().collect();
        Ok(BlockLayout::calibrate(&sample, self.layout, &pools))
    }

    /// Reads all blocks of the device. `reserved` is the reserved size in bytes from statistics read just before.
    pub fn walk(&self, blocks: &BlockLayout, reserved: u64) -> Result<Walk, MemoryError> {
        let pools = self.pools()?;
        let addresses = self.addresses(&pools)?;
        let at: Vec<u64> = addresses.keys().copied().collect();
        let copies = objects::read(self.memory, &at, blocks.len())?;
        let known: HashSet<u64> = pools.keys().copied().collect();
        let mut found: Vec<TorchBlock> = addresses
            .iter()
            .zip(copies.iter())
            .filter_map(|((&at, &is_active), copy)| blocks.parse(at, copy?, is_active))
            .filter(|block| block.is_plausible(&known, reserved.saturating_add(RESERVED_SLACK)))
            .collect();
        found.sort_unstable_by_key(|block| block.address);
        Ok(Walk { pools, lost: at.len() - found.len(), blocks: found })
    }
}

/// Parses an entry of `graph_pools`. Returns a PrivatePool's address and ID.
fn graph_pool(entry: View<'_>) -> Option<(u64, PoolId)> {
    let ids = [entry.word(0)?, entry.word(8)?];
    let pool = entry.word(16)?;
    (ids.iter().all(|&id| id < MAX_POOL_ID) && is_pointer(pool))
        .then_some((pool, PoolId(ids[0], ids[1])))
}
