//! The pools of a process that are not BFC pools: those of CuPy, and JAX's allocations in the CUDA driver's pool.

use gputop_model::{Bytes, ProcessKey, ReportedPool};

use super::async_pool::AsyncPool;
use super::cupy::CupyPool;
use super::failure::Failure;
use crate::memory::Memory;

#[derive(Debug, Clone, Default)]
pub struct OtherPools {
    pub cupy: Vec<CupyPool>,
    pub cuda_async: Vec<AsyncPool>,
}

impl OtherPools {
    pub fn len(&self) -> usize {
        self.cupy.len() + self.cuda_async.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds the pools that are new.
    pub(super) fn add(&mut self, found: Self) {
        let is_new = |new: &CupyPool| self.cupy.iter().all(|known| known.address != new.address);
        let new: Vec<CupyPool> = found.cupy.into_iter().filter(is_new).collect();
        self.cupy.extend(new);
        let is_new =
            |new: &AsyncPool| self.cuda_async.iter().all(|known| known.address != new.address);
        let new: Vec<AsyncPool> = found.cuda_async.into_iter().filter(is_new).collect();
        self.cuda_async.extend(new);
    }

    /// Reads the pools that hold memory. Removes those that no longer exist.
    pub(super) fn read(
        &mut self,
        process: ProcessKey,
        memory: &dyn Memory,
    ) -> Result<Vec<ReportedPool>, Failure> {
        let mut read = Vec::new();
        for pool in std::mem::take(&mut self.cupy) {
            if let Some(values) = pool.read(process, memory)? {
                self.cupy.push(pool);
                read.extend(Some(values).filter(|pool| pool.reserved.get() > Some(Bytes(0))));
            }
        }
        for pool in std::mem::take(&mut self.cuda_async) {
            match pool.read(process, memory) {
                Ok(values) => {
                    self.cuda_async.push(pool);
                    read.push(values);
                }
                Err(Failure::Changed) => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(read)
    }

    /// Returns true if two processes have the same pools at the same addresses.
    pub(super) fn are_same(&self, one: &dyn Memory, other: &dyn Memory) -> bool {
        self.cupy.iter().all(|pool| pool.is_same(one, other))
            && self.cuda_async.iter().all(|pool| pool.is_same(one, other))
    }
}
