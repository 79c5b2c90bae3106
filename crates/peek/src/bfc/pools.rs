//! The pools of one process at one time, as the model describes them.

use gputop_model::{Bytes, PoolMap, ProcessKey, Reading, Reason, ReportedPool};

use super::allocator::{Allocator, Place};
use super::failure::Failure;
use super::other_pools::OtherPools;
use crate::clock::now_mono;
use crate::memory::Memory;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct FoundPools {
    /// Pools of GPU memory.
    pub gpu: Vec<ReportedPool>,
    /// Pools of pinned host memory, which are not part of GPU memory.
    pub pinned_host: Vec<ReportedPool>,
}

impl FoundPools {
    /// Reads all pools that have reserved memory. Removes allocators that no longer exist, and leaves out those that
    /// change during every read.
    pub fn read(
        process: ProcessKey,
        allocators: &mut Vec<Allocator>,
        memory: &dyn Memory,
    ) -> Result<Self, Failure> {
        let mut pools = Self::default();
        let mut error = None;
        allocators.retain_mut(|allocator| match allocator.read(memory) {
            Ok(snapshot) if snapshot.stats.reserved > 0 => {
                let pool = allocator.pool(process, now_mono(), &snapshot);
                match allocator.place {
                    Place::Gpu(_) => add(&mut pools.gpu, pool),
                    Place::PinnedHost => add(&mut pools.pinned_host, pool),
                }
                true
            }
            Ok(_) | Err(Failure::Busy) => true,
            Err(Failure::Changed) => false,
            Err(failure) => {
                error = Some(failure);
                true
            }
        });
        error.map_or(Ok(pools), Err)
    }
}

impl FoundPools {
    /// Adds the pools that are not BFC pools. Removes those that no longer exist.
    pub(super) fn add_others(
        &mut self,
        process: ProcessKey,
        pools: &mut OtherPools,
        memory: &dyn Memory,
    ) -> Result<(), Failure> {
        pools.read(process, memory)?.into_iter().for_each(|pool| add(&mut self.gpu, pool));
        Ok(())
    }
}

/// Reads the chunks of the pools that a process has on the GPU with this ordinal.
pub(super) fn map(
    process: ProcessKey,
    ordinal: u32,
    allocators: &mut [Allocator],
    memory: &dyn Memory,
) -> Result<PoolMap, Failure> {
    let mut all = PoolMap::default();
    for allocator in allocators.iter_mut().filter(|one| one.place == Place::Gpu(ordinal)) {
        let segments = std::mem::take(&mut all.segments);
        all = allocator.read_map(memory)?;
        all.segments.extend(segments);
    }
    all.segments.sort_by_key(|segment| segment.address);
    Ok(PoolMap { process, ..all })
}

/// Adds a pool. Pools of one framework on one GPU count as one: JAX has a second one for collective operations.
fn add(pools: &mut Vec<ReportedPool>, pool: ReportedPool) {
    let of = |pool: &ReportedPool| (pool.framework, pool.ordinal);
    match pools.iter_mut().find(|other| of(other) == of(&pool)) {
        Some(other) => join(other, &pool),
        None => pools.push(pool),
    }
}

fn join(pool: &mut ReportedPool, other: &ReportedPool) {
    let sum = |a: Bytes, b: Bytes| Bytes(a.0.saturating_add(b.0));
    let unknown = |what: &str| {
        let why = format!("the process has several pools on this GPU, each with its own {what}");
        Reading::missing(Reason::Unsupported, why)
    };
    pool.allocated = both(&pool.allocated, &other.allocated, sum);
    pool.reserved = both(&pool.reserved, &other.reserved, sum);
    pool.largest_free_block = both(&pool.largest_free_block, &other.largest_free_block, Bytes::max);
    pool.allocated_peak = unknown("peak");
    pool.reserved_peak = unknown("peak");
    pool.limit = unknown("limit");
}

fn both(
    one: &Reading<Bytes>,
    other: &Reading<Bytes>,
    join: fn(Bytes, Bytes) -> Bytes,
) -> Reading<Bytes> {
    match (one, other) {
        (Reading::Value(one), Reading::Value(other)) => join(*one, *other).into(),
        (Reading::Missing(why), _) | (_, Reading::Missing(why)) => Reading::Missing(why.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_on_one_gpu_count_as_one() {
        let pool = |ordinal, allocated, reserved| ReportedPool {
            ordinal,
            allocated: Bytes(allocated).into(),
            allocated_peak: Bytes(9).into(),
            reserved: Bytes(reserved).into(),
            largest_free_block: Bytes(reserved - allocated).into(),
            ..ReportedPool::default()
        };
        let mut pools = Vec::new();
        for one in [pool(0, 3, 8), pool(1, 1, 2), pool(0, 4, 5)] {
            add(&mut pools, one);
        }
        assert_eq!(pools.len(), 2);
        assert_eq!(
            (pools[0].allocated.get(), pools[0].reserved.get()),
            (Some(Bytes(7)), Some(Bytes(13)))
        );
        assert_eq!(pools[0].largest_free_block.get(), Some(Bytes(5)));
        assert_eq!(pools[0].allocated_peak.get(), None);
        assert_eq!(pools[1], pool(1, 1, 2));
    }
}
