//! A simulation of PyTorch's CUDA caching allocator without a GPU. For a sequence of requests and given [`Rules`], it
//! computes the resulting segments and blocks, the cache flushes, and the out-of-memory failures.
//!
//! The rules come from `DeviceCachingAllocator` in c10/cuda/CUDACachingAllocator.cpp of torch 1.13, 2.0, 2.2, 2.5 and
//! 2.12. They are verified against the real libc10_cuda.so of every torch release in the test bed: after each operation
//! of random traces, segments, blocks and statistics are the same (tests/bed/differential.rs).
//!
//! The allocator serves a request in these steps:
//!
//! 1. Round it up. Requests up to 1 MiB use the small pool and larger ones the large pool: the shared pair, or the pair
//!    of their private pool.
//! 2. Take the smallest free block of its stream that is large enough. If several have the same size, take the one with
//!    the lowest address.
//! 3. If there is no such block, collect garbage, if enabled, and get a segment from the driver (or map pages of an
//!    expandable segment).
//! 4. If the driver has too little memory, return blocks above `max_split_size` to it and try again. If that fails,
//!    return all completely free segments and try again (a *retry*). If that also fails, the request fails with an
//!    out-of-memory error.
//! 5. Split off the rest of the block if the rules allow it. A freed block is merged with its free neighbours.
//!
//! Cost: a few hundred nanoseconds per operation and a few hundred bytes per live block. Neither depends on the length
//! of the trace.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use gputop_model::pool::{self};
use gputop_model::{BlockState, Bytes, PoolKind};

use super::driver::{MemorySource, Simulated};
use super::rules::{Rules, TieBreak};
use super::trace::{BlockId, Op, PoolId};
use super::{GRANULE, MIN_BLOCK, OWN_SEGMENT, SMALL_REQUEST, SMALL_SEGMENT};

/// Placeholder index for a missing block or address range.
const NONE: u32 = u32::MAX;

/// Maximum size of a request. PyTorch rejects larger requests immediately.
const LARGEST_REQUEST: u64 = 1 << 60;

/// Simulated allocator of one GPU.
#[derive(Debug, Clone, PartialEq)]
pub struct Model<D = Simulated> {
    rules: Rules,
    /// Maximum reserved memory in bytes, if the program set a memory fraction.
    limit: Option<u64>,
    driver: D,
    blocks: Vec<ModelBlock>,
    /// Indices of unused entries in `blocks`.
    vacant: Vec<u32>,
    created: u64,
    /// Small and large pools in pairs: the shared pair first, then one pair for each private pool.
    pools: Vec<ModelPool>,
    private: BTreeMap<PoolId, Private>,
    ranges: Vec<AddressSpace>,
    live: HashMap<BlockId, u32>,
    /// Blocks that the program has freed but other streams still use, in the order in which they were freed.
    waiting: BTreeSet<(u64, u32)>,
    /// Total number of blocks ever added to `waiting`.
    waited: u64,
    stats: Stats,
}

/// PyTorch's allocator statistics, in bytes unless the name says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    pub allocated: Counted,
    pub reserved: Counted,
    /// Bytes in allocated blocks, and in freed blocks still used by other streams.
    pub active: Counted,
    pub requested: Counted,
    /// Bytes in free blocks of split segments; excludes expandable segments.
    pub inactive_split: Counted,
    pub segments: Counted,
    pub num_alloc_retries: u64,
    pub num_ooms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counted {
    pub current: u64,
    pub peak: u64,
}

impl Counted {
    fn add(&mut self, amount: u64) {
        self.current = self.current.saturating_add(amount);
        self.peak = self.peak.max(self.current);
    }

    fn sub(&mut self, amount: u64) {
        self.current = self.current.saturating_sub(amount);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllocationOutcome {
    Address(u64),
    OutOfMemory,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ModelBlock {
    address: u64,
    size: u64,
    requested: u64,
    /// For a free block, the number of searches that its pool had seen when the block became free. For a waiting block,
    /// its sequence number in `waiting`.
    since: u64,
    /// Sequence number of the block, or of its segment, at creation. 0 if not assigned yet.
    created: u64,
    stream: u64,
    id: BlockId,
    prev: u32,
    next: u32,
    pool: u32,
    /// Index of the expandable range that contains the block.
    range: u32,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Allocated,
    Waiting,
    Free,
    /// A part of an expandable address range to which no memory is mapped.
    Unmapped,
    Vacant,
}

/// Sort key of free blocks in PyTorch's search order: stream, size, age if relevant (see [`TieBreak`]), address.
type FreeKey = (u64, u64, u64, u64, u32);

#[derive(Debug, Clone, PartialEq, Eq)]
struct ModelPool {
    small: bool,
    owner: PoolId,
    free: BTreeSet<FreeKey>,
    /// Unmapped gaps, sorted by stream and address.
    unmapped: BTreeSet<(u64, u64, u32)>,
    /// Number of free-block searches performed while garbage collection was on. Determines the age of free blocks.
    searches: u64,
}

impl ModelPool {
    fn new(small: bool, owner: PoolId) -> Self {
        Self { small, owner, free: BTreeSet::new(), unmapped: BTreeSet::new(), searches: 0 }
    }
}

/// Private pools of a CUDA graph or a `MemPool`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Private {
    /// Index of the small pool in `Model::pools`; the large pool follows.
    at: u32,
    /// True if no further allocations will use these pools.
    released: bool,
}

/// Address space of one stream and pool, slightly larger than the GPU's memory, to which pages are mapped on demand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AddressSpace {
    address: u64,
    page: u64,
}

/// A request rounded to a block size, with the pool that serves it.
#[derive(Debug, Clone, Copy)]
struct BlockRequest {
    size: u64,
    segment: u64,
    stream: u64,
    pool: u32,
}

impl BlockRequest {
    /// Returns a new block on the request's stream and in its pool, without an owner or neighbours.
    fn unsplit_block(&self, address: u64, size: u64, range: u32, state: State) -> ModelBlock {
        ModelBlock {
            address,
            size,
            requested: 0,
            since: 0,
            created: 0,
            stream: self.stream,
            id: 0,
            prev: NONE,
            next: NONE,
            pool: self.pool,
            range,
            state,
        }
    }
}

impl Model {
    /// Creates a simulated allocator for a GPU with `card` bytes, of which `available` can be reserved. The CUDA
    /// context, libraries and other programs use the rest.
    pub fn new(rules: Rules, card: Bytes, available: Bytes) -> Self {
        let limit = rules.limit(card);
        Self {
            limit: limit.map(|limit| limit.0),
            ..Self::on(Simulated::new(card.0, available.0), rules)
        }
    }
}

impl<D: MemorySource> Model<D> {
    pub fn on(driver: D, rules: Rules) -> Self {
        Self {
            limit: None,
            driver,
            rules,
            blocks: Vec::new(),
            vacant: Vec::new(),
            created: 0,
            pools: vec![
                ModelPool::new(true, PoolId::SHARED),
                ModelPool::new(false, PoolId::SHARED),
            ],
            private: BTreeMap::new(),
            ranges: Vec::new(),
            live: HashMap::new(),
            waiting: BTreeSet::new(),
            waited: 0,
            stats: Stats::default(),
        }
    }

    pub fn driver(&mut self) -> &mut D {
        &mut self.driver
    }

    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    pub fn driver_free(&self) -> Bytes {
        Bytes(self.driver.free())
    }

    /// Executes one operation. Returns the outcome if it is a request. Operations on unknown blocks have no effect.
    pub fn play(&mut self, op: &Op) -> Option<AllocationOutcome> {
        match *op {
            Op::Alloc { block, requested, stream, pool } => {
                return Some(self.alloc(block, requested, stream, pool));
            }
            Op::Refused { requested, stream, pool, .. } => {
                // The block's lifetime is unknown, so the request is tried and the block is freed immediately.
                let outcome = self.request(BlockId::MAX, requested.0, stream, pool);
                return Some(match outcome {
                    Some(block) => {
                        let address = self.blocks[block as usize].address;
                        self.mark_freed(block);
                        self.complete(block);
                        AllocationOutcome::Address(address)
                    }
                    None => AllocationOutcome::OutOfMemory,
                });
            }
            Op::Free { block } => {
                if let Some(&block) = self.live.get(&block)
                    && self.blocks[block as usize].state == State::Allocated
                {
                    self.mark_freed(block);
                    self.waited += 1;
                    self.blocks[block as usize].since = self.waited;
                    self.waiting.insert((self.waited, block));
                }
            }
            Op::FreeCompleted { block } => {
                if let Some(&block) = self.live.get(&block)
                    && self.waiting.remove(&(self.block(block).since, block))
                {
                    self.complete(block);
                }
            }
            Op::EmptyCache => self.release_cached(),
            Op::ReleasePool { pool } => {
                if let Some(private) = self.private.get_mut(&pool) {
                    private.released = true;
                }
            }
            Op::Recorded(_) => {}
        }
        None
    }

    /// Allocates a block with ID `id`. If a live block already has this ID, the trace is missing the operation that
    /// freed it, so that block is freed first.
    pub fn alloc(
        &mut self,
        id: BlockId,
        requested: Bytes,
        stream: u64,
        pool: PoolId,
    ) -> AllocationOutcome {
        let Some(block) = self.request(id, requested.0, stream, pool) else {
            return AllocationOutcome::OutOfMemory;
        };
        if let Some(lost) = self.live.insert(id, block) {
            if !self.waiting.remove(&(self.block(lost).since, lost)) {
                self.mark_freed(lost);
            }
            self.complete_unnamed(lost);
        }
        AllocationOutcome::Address(self.blocks[block as usize].address)
    }

    fn request(&mut self, id: BlockId, requested: u64, stream: u64, owner: PoolId) -> Option<u32> {
        if requested > LARGEST_REQUEST {
            self.stats.num_ooms += 1;
            return None;
        }
        let size = self.rules.round(requested);
        let wanted = BlockRequest {
            size,
            segment: self.segment_for(size),
            stream,
            pool: self.pool_of(owner, size <= SMALL_REQUEST.0),
        };
        let Some(block) = self.find(&wanted).or_else(|| self.get_new(&wanted)) else {
            self.stats.num_ooms += 1;
            return None;
        };
        Some(self.hand_out(block, &wanted, requested, id))
    }

    fn pool_of(&mut self, owner: PoolId, small: bool) -> u32 {
        let at = if owner.is_private() {
            let next = u32::try_from(self.pools.len()).unwrap_or(NONE);
            let private =
                self.private.entry(owner).or_insert(Private { at: next, released: false });
            // A new allocation makes a released pool usable again.
            private.released = false;
            if private.at == next {
                self.pools.push(ModelPool::new(true, owner));
                self.pools.push(ModelPool::new(false, owner));
            }
            private.at
        } else {
            0
        };
        at + u32::from(!small)
    }

    fn segment_for(&self, size: u64) -> u64 {
        if size <= SMALL_REQUEST.0 {
            SMALL_SEGMENT.0
        } else if size < OWN_SEGMENT.0 {
            self.rules.large_segment.0
        } else {
            size.div_ceil(GRANULE.0) * GRANULE.0
        }
    }

    // --- free blocks

    /// Takes the smallest free block of the stream that is large enough, if the rules permit its use.
    fn find(&mut self, wanted: &BlockRequest) -> Option<u32> {
        let counts_searches = self.collects_garbage();
        let max_split = self.rules.max_split();
        let pool = &mut self.pools[wanted.pool as usize];
        pool.searches += u64::from(counts_searches);
        let blocks = &self.blocks;
        let mut fitting = pool
            .free
            .range((wanted.stream, wanted.size, 0, 0, 0)..)
            .take_while(|key| key.0 == wanted.stream);
        let mut best = *fitting.next()?;
        let expands = |key: &FreeKey| blocks[key.4 as usize].range != NONE;
        if expands(&best) {
            if self.rules.expandable {
                // If an unmapped gap follows a free block, rank the block by the combined size of both, so that blocks
                // that cannot grow are used first.
                let size = |key: &FreeKey| {
                    let next = blocks[key.4 as usize].next;
                    let gap = blocks.get(next as usize);
                    let gap = gap.filter(|next| next.state == State::Unmapped);
                    key.1 + gap.map_or(0, |gap| gap.size)
                };
                for next in fitting {
                    if !(expands(&best) && size(next) < size(&best)) {
                        break;
                    }
                    best = *next;
                }
            } else {
                best = *fitting.find(|key| !expands(key))?;
            }
        }
        let found = best.1;
        let is_rejected = if wanted.size < max_split {
            found >= max_split
        } else {
            found >= wanted.size.saturating_add(self.rules.non_split_rounding.0)
        };
        if is_rejected {
            return None;
        }
        pool.free.remove(&best);
        Some(best.4)
    }

    fn put_free(&mut self, at: u32) {
        let key = self.free_key(at);
        let block = &mut self.blocks[at as usize];
        let pool = &mut self.pools[block.pool as usize];
        block.state = State::Free;
        block.since = pool.searches;
        pool.free.insert(key);
    }

    fn take_free(&mut self, at: u32) {
        let key = self.free_key(at);
        let pool = self.block(at).pool;
        self.pools[pool as usize].free.remove(&key);
    }

    fn free_key(&self, at: u32) -> FreeKey {
        let block = self.block(at);
        let age = match self.rules.tie_break() {
            TieBreak::Address => 0,
            TieBreak::Block | TieBreak::Segment => block.created,
        };
        (block.stream, block.size, age, block.address, at)
    }

    fn put_unmapped(&mut self, at: u32) {
        let block = &mut self.blocks[at as usize];
        block.state = State::Unmapped;
        let key = (block.stream, block.address, at);
        self.pools[block.pool as usize].unmapped.insert(key);
    }

    fn take_unmapped(&mut self, at: u32) {
        let block = &self.blocks[at as usize];
        let key = (block.stream, block.address, at);
        self.pools[block.pool as usize].unmapped.remove(&key);
    }

    // --- blocks and their neighbours

    fn new_block(&mut self, mut block: ModelBlock) -> u32 {
        if block.created == 0 || self.rules.tie_break() == TieBreak::Block {
            self.created += 1;
            block.created = self.created;
        }
        if let Some(at) = self.vacant.pop() {
            self.blocks[at as usize] = block;
            return at;
        }
        self.blocks.push(block);
        u32::try_from(self.blocks.len() - 1).unwrap_or(NONE)
    }

    fn forget(&mut self, at: u32) {
        self.blocks[at as usize].state = State::Vacant;
        self.vacant.push(at);
    }

    fn block(&self, at: u32) -> &ModelBlock {
        &self.blocks[at as usize]
    }

    fn is_split(&self, at: u32) -> bool {
        let block = self.block(at);
        block.prev != NONE || block.next != NONE
    }

    /// Inserts block `at` between two blocks, either of which may be missing.
    fn link(&mut self, before: u32, at: u32, after: u32) {
        if before != NONE {
            self.blocks[before as usize].next = at;
        }
        if after != NONE {
            self.blocks[after as usize].prev = at;
        }
        let block = &mut self.blocks[at as usize];
        block.prev = before;
        block.next = after;
    }

    /// Merges the neighbouring block `other` into block `at` if `other` has the given state. Block `at` must not be in
    /// any set. Returns the bytes added.
    fn merge(&mut self, at: u32, other: u32, state: State) -> u64 {
        if other == NONE || self.block(other).state != state {
            return 0;
        }
        if state == State::Free {
            self.take_free(other);
        } else {
            self.take_unmapped(other);
        }
        let taken = *self.block(other);
        let block = self.block(at);
        let (before, after) =
            if block.prev == other { (taken.prev, block.next) } else { (block.prev, taken.next) };
        let block = &mut self.blocks[at as usize];
        block.address = block.address.min(taken.address);
        block.size += taken.size;
        self.link(before, at, after);
        self.forget(other);
        taken.size
    }

    /// Serves a request from a free block already removed from its set. The remainder of the block stays free.
    fn hand_out(&mut self, found: u32, wanted: &BlockRequest, requested: u64, id: BlockId) -> u32 {
        let whole = *self.block(found);
        let was_split = self.is_split(found);
        let counted = whole.range == NONE;
        let rest = whole.size - wanted.size;
        let at = if self.should_split(&whole, wanted.size) {
            let at = self.new_block(ModelBlock { size: wanted.size, ..whole });
            self.link(whole.prev, at, found);
            let remaining = &mut self.blocks[found as usize];
            remaining.address += wanted.size;
            remaining.size = rest;
            self.put_free(found);
            if counted && was_split {
                self.stats.inactive_split.sub(wanted.size);
            } else if counted {
                self.stats.inactive_split.add(rest);
            }
            at
        } else {
            if counted && was_split {
                self.stats.inactive_split.sub(whole.size);
            }
            found
        };
        let block = &mut self.blocks[at as usize];
        block.state = State::Allocated;
        block.requested = requested;
        block.id = id;
        let size = block.size;
        self.stats.allocated.add(size);
        self.stats.active.add(size);
        self.stats.requested.add(requested);
        at
    }

    fn should_split(&self, block: &ModelBlock, size: u64) -> bool {
        let rest = block.size - size;
        if self.pools[block.pool as usize].small || self.rules.expandable {
            rest >= MIN_BLOCK.0
        } else {
            size < self.rules.max_split() && rest > SMALL_REQUEST.0
        }
    }

    /// Marks a block as freed by the program. Other streams may still use it.
    fn mark_freed(&mut self, at: u32) {
        let block = &mut self.blocks[at as usize];
        block.state = State::Waiting;
        self.stats.allocated.sub(block.size);
    }

    /// Frees a block that neither the program nor a stream uses any more.
    fn complete(&mut self, at: u32) {
        let id = self.block(at).id;
        if self.live.get(&id) == Some(&at) {
            self.live.remove(&id);
        }
        self.complete_unnamed(at);
    }

    fn complete_unnamed(&mut self, at: u32) {
        let block = *self.block(at);
        let taken = [block.prev, block.next].map(|other| self.merge(at, other, State::Free));
        self.put_free(at);
        if block.range == NONE {
            let split = if self.is_split(at) { self.block(at).size } else { 0 };
            // Update the statistic only once, so that its peak never includes an intermediate value.
            let before: u64 = taken.iter().sum();
            if split >= before {
                self.stats.inactive_split.add(split - before);
            } else {
                self.stats.inactive_split.sub(before - split);
            }
        }
        self.stats.active.sub(block.size);
        self.stats.requested.sub(block.requested);
    }

    // --- memory from the driver

    /// Gets memory from the driver, after returning cached memory if necessary (steps 3 and 4 in the module
    /// documentation).
    fn get_new(&mut self, wanted: &BlockRequest) -> Option<u32> {
        if self.collects_garbage() {
            self.collect_garbage();
        }
        if let Some(block) = self.ask_driver(wanted) {
            return Some(block);
        }
        if self.release_oversize(wanted)
            && let Some(block) = self.ask_driver(wanted)
        {
            return Some(block);
        }
        // Do not flush the cache during graph capture: the allocator cannot wait for the device.
        let private = self.pools[wanted.pool as usize].owner.is_private();
        if private && self.rules.private_pools_capture() {
            return None;
        }
        self.release_cached();
        self.stats.num_alloc_retries += 1;
        self.ask_driver(wanted)
    }

    fn ask_driver(&mut self, wanted: &BlockRequest) -> Option<u32> {
        let more = self.stats.reserved.current.checked_add(wanted.segment)?;
        if self.limit.is_some_and(|limit| more > limit) {
            return None;
        }
        let private = self.pools[wanted.pool as usize].owner.is_private();
        if self.rules.expandable && (!private || self.rules.private_pools_expand()) {
            return self.expand(wanted);
        }
        let address = self.driver.alloc(wanted.segment)?;
        self.stats.segments.add(1);
        self.stats.reserved.add(wanted.segment);
        Some(self.new_block(wanted.unsplit_block(address, wanted.segment, NONE, State::Free)))
    }

    fn expand(&mut self, wanted: &BlockRequest) -> Option<u32> {
        let mut at = self.find_range(wanted)?;
        if self.block(at).state == State::Unmapped {
            let size = self.block(at).size.min(wanted.size);
            if !self.map(at, size) {
                return None;
            }
        }
        while self.block(at).size < wanted.size {
            let missing = wanted.size - self.block(at).size;
            let next = self.block(at).next;
            let size = self.block(next).size.min(missing);
            if !self.map(next, size) {
                return None;
            }
            at = next;
        }
        self.take_free(at);
        Some(at)
    }

    /// Finds the lowest address at which adjacent free blocks and gaps of the stream are large enough together. If
    /// there is none, reserves a new range.
    fn find_range(&mut self, wanted: &BlockRequest) -> Option<u32> {
        let usable =
            |at: u32| at != NONE && matches!(self.block(at).state, State::Free | State::Unmapped);
        let pool = &self.pools[wanted.pool as usize];
        let gaps = pool.unmapped.range((wanted.stream, 0, 0)..);
        for &(_, _, gap) in gaps.take_while(|key| key.0 == wanted.stream) {
            let before = self.block(gap).prev;
            let start = if usable(before) { before } else { gap };
            let mut size = 0;
            let mut at = start;
            while size < wanted.size && usable(at) {
                size += self.block(at).size;
                at = self.block(at).next;
            }
            if size >= wanted.size {
                return Some(start);
            }
        }
        let page = if pool.small { SMALL_SEGMENT.0 } else { self.rules.large_segment.0 };
        let (address, size) = self.driver.reserve(page)?;
        if size < wanted.size && self.rules.releases_short_ranges() {
            return None;
        }
        let range = u32::try_from(self.ranges.len()).ok()?;
        self.ranges.push(AddressSpace { address, page });
        let at = self.new_block(wanted.unsplit_block(address, size, range, State::Unmapped));
        self.put_unmapped(at);
        Some(at)
    }

    /// Maps memory to the first `size` bytes of a gap, rounded to complete pages. Maps nothing if too little memory is
    /// free.
    fn map(&mut self, at: u32, size: u64) -> bool {
        let gap = *self.block(at);
        let page = self.ranges[gap.range as usize].page;
        let size = size.div_ceil(page) * page;
        if !self.driver.map(gap.address, size, page) {
            return false;
        }
        self.take_unmapped(at);
        if size < gap.size {
            let rest = self.new_block(ModelBlock {
                address: gap.address + size,
                size: gap.size - size,
                ..gap
            });
            self.link(at, rest, gap.next);
            self.put_unmapped(rest);
            self.blocks[at as usize].size = size;
        }
        for other in [gap.prev, self.block(at).next] {
            self.merge(at, other, State::Free);
        }
        self.put_free(at);
        self.stats.reserved.add(size);
        true
    }

    // --- returning memory to the driver

    /// Returns all unused memory of the shared pools, and of private pools whose owner was destroyed, to the driver.
    fn release_cached(&mut self) {
        for (_, at) in std::mem::take(&mut self.waiting) {
            self.complete(at);
        }
        self.release_pool(1);
        self.release_pool(0);
        let released: Vec<u32> =
            self.private.values().filter(|p| p.released).map(|p| p.at).collect();
        for at in released {
            self.release_pool(at);
            self.release_pool(at + 1);
        }
    }

    fn release_pool(&mut self, pool: u32) {
        let mut pages = Vec::new();
        let mut segments = Vec::new();
        for &(.., at) in &self.pools[pool as usize].free {
            if self.block(at).range != NONE {
                pages.push(at);
            } else if !self.is_split(at) {
                segments.push(at);
            }
        }
        for at in segments {
            self.release(at);
        }
        for at in pages {
            self.unmap(at);
        }
    }

    fn release(&mut self, at: u32) {
        let block = *self.block(at);
        self.take_free(at);
        self.driver.free_segment(block.address, block.size);
        self.stats.segments.sub(1);
        self.stats.reserved.sub(block.size);
        self.forget(at);
    }

    /// Unmaps the pages that lie completely inside a free block.
    fn unmap(&mut self, at: u32) {
        let block = *self.block(at);
        let range = self.ranges[block.range as usize];
        let inside = |address: u64| address - range.address;
        let start = range.address + inside(block.address).div_ceil(range.page) * range.page;
        let end = range.address + inside(block.address + block.size) / range.page * range.page;
        if start >= end {
            return;
        }
        self.take_free(at);
        let before = start - block.address;
        if before > 0 {
            let piece = self.new_block(ModelBlock { size: before, ..block });
            self.link(block.prev, piece, at);
            self.put_free(piece);
        }
        let after = block.address + block.size - end;
        if after > 0 {
            let piece = self.new_block(ModelBlock { address: end, size: after, ..block });
            self.link(at, piece, block.next);
            self.put_free(piece);
        }
        let gap = &mut self.blocks[at as usize];
        gap.address = start;
        gap.size = end - start;
        for other in [self.block(at).prev, self.block(at).next] {
            self.merge(at, other, State::Unmapped);
        }
        self.put_unmapped(at);
        self.driver.unmap(start, end - start, range.page);
        self.stats.reserved.sub(end - start);
        if !self.is_split(at) {
            self.take_unmapped(at);
            self.forget(at);
        }
    }

    /// With `max_split_size`, releases one oversize block that is large enough, or several that are large enough
    /// together. Returns true if the request to the driver should be repeated.
    fn release_oversize(&mut self, wanted: &BlockRequest) -> bool {
        let max_split = self.rules.max_split();
        if max_split == u64::MAX {
            return false;
        }
        let needed = wanted.size.max(max_split);
        let free = &self.pools[wanted.pool as usize].free;
        let from = (wanted.stream, needed, 0, 0, 0);
        let expands = |key: &FreeKey| self.block(key.4).range != NONE;
        if let Some(key) = free.range(from..).next()
            && key.0 == wanted.stream
            && !expands(key)
        {
            let at = key.4;
            self.release(at);
            return true;
        }
        let mut released = 0;
        let mut chosen = Vec::new();
        for key in free.range(..from).rev() {
            if released >= needed || key.1 < max_split || key.0 != wanted.stream {
                break;
            }
            if !expands(key) {
                released += key.1;
                chosen.push(key.4);
            }
        }
        for at in chosen {
            self.release(at);
        }
        released >= needed
    }

    // --- garbage collection

    /// Returns true if garbage collection is on. PyTorch requires a memory fraction for `garbage_collection_threshold`.
    fn collects_garbage(&self) -> bool {
        self.limit.is_some() && self.rules.garbage_collection_threshold > 0.0
    }

    /// Releases fully free segments of the large pool, starting with those at or above the mean age, until the reserved
    /// memory is below the threshold.
    fn collect_garbage(&mut self) {
        let limit = self.limit.unwrap_or(u64::MAX) as f64;
        let threshold = (self.rules.garbage_collection_threshold * limit) as u64;
        let reserved = self.stats.reserved.current;
        if reserved <= threshold {
            return;
        }
        let target = reserved - threshold;
        let pool = &self.pools[1];
        let age = |at: u32| pool.searches - self.block(at).since;
        let mut candidates: Vec<(u32, u64)> = pool
            .free
            .iter()
            .map(|key| key.4)
            .filter(|&at| self.block(at).range == NONE && !self.is_split(at))
            .map(|at| (at, age(at)))
            .collect();
        let mut total: u64 = candidates.iter().map(|(_, age)| age).sum();
        let mut reclaimed = 0;
        while reclaimed < target && !candidates.is_empty() {
            let mean = total as f64 / candidates.len() as f64;
            let (old, young): (Vec<_>, Vec<_>) =
                candidates.iter().partition(|&&(_, age)| age as f64 >= mean);
            if old.is_empty() {
                return;
            }
            for (at, age) in old {
                total -= age;
                reclaimed += self.block(at).size;
                self.release(at);
            }
            candidates = young;
        }
    }

    // --- inspection

    /// Returns every segment and block by address, as `torch.cuda.memory_snapshot()` lists them. Each mapped part of an
    /// expandable range is a segment.
    pub fn segments(&self) -> Vec<pool::Segment> {
        let mut segments: Vec<pool::Segment> = (0..u32::try_from(self.blocks.len())
            .unwrap_or(NONE))
            .filter(|&at| self.is_head(at))
            .map(|at| self.segment(at))
            .collect();
        segments.sort_unstable_by_key(|segment| segment.address);
        segments
    }

    fn is_head(&self, at: u32) -> bool {
        let block = self.block(at);
        let is_used = !matches!(block.state, State::Unmapped | State::Vacant);
        is_used && (block.prev == NONE || self.block(block.prev).state == State::Unmapped)
    }

    fn segment(&self, head: u32) -> pool::Segment {
        let first = self.block(head);
        let pool = &self.pools[first.pool as usize];
        let mut blocks = Vec::new();
        let mut at = head;
        while at != NONE && self.block(at).state != State::Unmapped {
            let block = self.block(at);
            let (state, requested) = match block.state {
                State::Allocated => (BlockState::Allocated, Some(Bytes(block.requested))),
                State::Waiting => (BlockState::Active, Some(Bytes(block.requested))),
                _ => (BlockState::Free, None),
            };
            blocks.push(pool::Block {
                address: block.address,
                size: Bytes(block.size),
                requested,
                state,
            });
            at = block.next;
        }
        pool::Segment {
            address: first.address,
            size: Bytes(blocks.iter().map(|block| block.size.0).sum()),
            pool: match (pool.owner.is_private(), pool.small) {
                (true, _) => PoolKind::Private,
                (false, true) => PoolKind::Small,
                (false, false) => PoolKind::Large,
            },
            pool_id: pool.owner.is_private().then_some(pool.owner),
            stream: first.stream,
            expandable: first.range != NONE,
            blocks,
        }
    }
}
