//! Reads the GPU memory pools of JAX, TensorFlow and CuPy in another running process.
//!
//! JAX and TensorFlow use the same allocator, `tsl::BFCAllocator` (best fit with coalescing). No exported symbol leads to it, so it is
//! found by the name of its class:
//!
//! ```text
//! xla_cuda_plugin.so ─► "N3tsl12BFCAllocatorE" ─► type_info ─► vtable      (vtable.rs, once for each file)
//! [heap], other private memory ─► words equal to the vtable's address       (scan.rs, once for each process)
//!                              ─► object whose members agree               (layout.rs)
//! object, regions, chunks, object again, in one system call                 (snapshot.rs, for each frame)
//! ```
//!
//! The offsets differ between releases. They are found in each object from relations that hold in every release, such as
//! 21 bins of doubling sizes, and regions that add up to the size of the pool. An object of which they do not hold is
//! not read.
//!
//! For example, JAX 0.11.2 has reserved one region of 8 GB. Its bins are at +48, the regions at +1080, the chunks at
//! +1104 and the statistics at +1152. The chunks have 104 bytes each. Their chain starts at the region's first handle,
//! covers the region exactly, and the chunks in use add up to `bytes_in_use`.
//!
//! The pools of CuPy are Python objects, which the same scan finds by their type (`cupy`). Of JAX's `cuda_async` allocator,
//! the statistics and the live allocations are read (`async_pool`).
//!
//! As with PyTorch ([`torch`](crate::torch)), read only processes that the driver lists: a forked child has a copy of
//! its parent's allocator.

mod allocator;
mod async_pool;
mod chunks;
mod cupy;
mod failure;
mod layout;
mod library;
mod other_pools;
mod pools;
mod scan;
mod search;
mod snapshot;
mod vtable;
pub mod watched;

use std::path::Path;
use std::time::Instant;

use gputop_model::{Pid, ProcessKey};

pub use self::allocator::{Allocator, Place};
pub use self::async_pool::AsyncPool;
pub use self::chunks::{Chunk, Region};
pub use self::cupy::CupyPool;
pub use self::failure::Failure;
pub use self::other_pools::OtherPools;
pub use self::pools::FoundPools;
pub use self::search::Found;
pub use self::snapshot::{ChunkMap, Snapshot, Stats};
pub use self::vtable::VtableCache;

use self::search::Search;
use crate::memory::Memory;
use crate::memory::live::Live;
use crate::process::stat::{StatBuffer, StatFile};

/// Finds all pools of a process. Takes up to a second for a process with much memory.
pub fn find(memory: &dyn Memory, cache: &mut VtableCache) -> Result<Found, Failure> {
    find_until(memory, cache, None)
}

/// Finds all pools of a process. Fails if the search has not ended by `until`.
pub fn find_until(
    memory: &dyn Memory,
    cache: &mut VtableCache,
    until: Option<Instant>,
) -> Result<Found, Failure> {
    let mut search = Search::start(memory, cache)?;
    if !search.advance(memory, cache, until)? {
        return Err(Failure::Searching);
    }
    let found = search.finish()?;
    match found.empty.first() {
        Some(empty) if found.is_empty() => Err(empty.not_initialised()),
        _ => Ok(found),
    }
}

impl Found {
    pub fn is_empty(&self) -> bool {
        self.allocators.is_empty() && self.others.is_empty()
    }

    /// Reads the statistics of all pools. Removes those that no longer exist.
    pub fn read(
        &mut self,
        process: ProcessKey,
        memory: &dyn Memory,
    ) -> Result<FoundPools, Failure> {
        let mut pools = FoundPools::read(process, &mut self.allocators, memory)?;
        pools.add_others(process, &mut self.others, memory)?;
        Ok(pools)
    }
}

/// Finds the pools of a live process, and reads through `recorder` only what a dump needs to find and read them again.
pub fn record(memory: &dyn Memory, recorder: &dyn Memory) -> Result<(), Failure> {
    let mut cache = VtableCache::default();
    let mut found = find(memory, &mut cache)?;
    for pool in &found.others.cupy {
        pool.record(recorder)?;
    }
    // Without a library of JAX or TensorFlow, a search reads the whole module of CuPy.
    if !found.allocators.is_empty() {
        Search::start(recorder, &cache)?;
    }
    recorder.maps()?;
    found.allocators.iter_mut().try_for_each(|allocator| allocator.recognize_and_read(recorder))
}

/// Returns true if the pools of a process are copies of its parent's, because the process was forked from it.
pub fn is_forked_copy(proc_root: &Path, pid: Pid, found: &Found) -> bool {
    let parent = StatFile::of(proc_root, pid)
        .and_then(|stat| Ok(stat.read(&mut StatBuffer::default())?.parent));
    let Ok(parent) = parent else { return false };
    let (own, parent) = (Live::new(proc_root, pid), Live::new(proc_root, parent));
    let mut allocators = found.allocators.iter();
    !found.is_empty()
        && allocators.all(|allocator| allocator.is_same(&own, &parent))
        && found.others.are_same(&own, &parent)
}
