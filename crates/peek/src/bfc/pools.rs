//! The pools of one process at one time, as the model describes them.

use gputop_model::{ProcessKey, ReportedPool};

use super::allocator::{Allocator, Place};
use super::failure::Failure;
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
                    Place::Gpu(_) => pools.gpu.push(pool),
                    Place::PinnedHost => pools.pinned_host.push(pool),
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
