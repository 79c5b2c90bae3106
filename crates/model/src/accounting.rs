//! Splits a GPU's memory into parts that add up:
//! driver + allocated + cached + other + processes + unattributed + free = total.
//!
//! `allocated`, `cached` and `other` cover processes with readable or reported pools: live tensors, cache, and memory
//! outside the pools (context, libraries). `processes` is the total memory of all other processes. If a framework
//! reports only its live tensors, the remaining memory of its process is also part of `processes`.
//!
//! The process list, the memory sizes and the pools are read at slightly different times, so the parts may exceed the
//! used memory. In that case, the later parts in the order above are reduced, and the split is marked approximate.

use super::gpu::{Gpu, GpuProcess, Memory};
use super::host::Host;
use super::pool::{Pool, Pools};
use super::process::ProcessKey;
use super::reading::Reading;
use super::reported_pool::ReportedPool;
use super::units::{Bytes, GpuUuid};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Accounting {
    pub total: Bytes,
    /// Memory reserved by the driver (NVML's `reserved`).
    pub driver: Bytes,
    /// Memory of live tensors in processes whose pools are known.
    pub allocated: Bytes,
    /// Cached memory that live tensors do not use, in processes whose pools are known.
    pub cached: Bytes,
    /// Memory outside the pools (context, libraries, other allocators), in processes whose pools are known.
    pub other: Bytes,
    /// Memory of processes whose pools are unknown, or whose memory cannot be split further.
    pub processes: Bytes,
    /// Used memory not held by any listed process.
    pub unattributed: Bytes,
    pub free: Bytes,
    /// True if the samples are slightly inconsistent, so the parts are approximate. Shown as `~`.
    pub approximate: bool,
    /// True if the driver's process list or a size in it is missing. In that case, `unattributed` includes memory held
    /// by processes.
    pub processes_unknown: bool,
}

/// Splits a GPU's memory into parts, without using pool data.
pub fn account(gpu: &Gpu) -> Option<Accounting> {
    account_pools(gpu, None)
}

/// Splits a GPU's memory into parts. Returns `None` if the driver does not report total and free memory.
pub fn account_pools(gpu: &Gpu, pools: Option<&Pools>) -> Option<Accounting> {
    split(gpu, &gpu.memory, pools)
}

/// Splits the memory of a host into parts, for a GPU that shares it. What no GPU process holds is `unattributed`.
pub fn account_shared(gpu: &Gpu, host: &Host, pools: Option<&Pools>) -> Option<Accounting> {
    let total = host.memory_total.get().filter(|_| gpu.memory.is_shared_with_host())?;
    let free = Bytes(total.0.saturating_sub(host.memory_used.get()?.0));
    let memory = Memory { total: total.into(), free: free.into(), ..Memory::default() };
    split(gpu, &memory, pools)
}

fn split(gpu: &Gpu, memory: &Memory, pools: Option<&Pools>) -> Option<Accounting> {
    let total = memory.total.get()?;
    let free = Bytes(memory.free.get()?.0.min(total.0));
    let used = total.0 - free.0;
    let driver = memory.reserved.get().unwrap_or_default().0.min(used);
    let list = gpu.processes.value();
    let claims = Claims::of(gpu, list.map_or(&[], Vec::as_slice), pools);
    let mut left = used - driver;
    let mut take = |claim: u64| {
        let part = claim.min(left);
        left -= part;
        Bytes(part)
    };
    let (allocated, cached) = (take(claims.allocated), take(claims.cached));
    let (other, processes) = (take(claims.other), take(claims.processes));
    let granted = [allocated, cached, other, processes].iter().map(|p| p.0).sum();
    Some(Accounting {
        total,
        driver: Bytes(driver),
        allocated,
        cached,
        other,
        processes,
        unattributed: Bytes(left),
        free,
        approximate: claims.contradict || claims.sum() > granted,
        processes_unknown: list.is_none_or(|l| l.iter().any(|p| p.vram.get().is_none())),
    })
}

/// Memory held by the processes on a GPU.
#[derive(Debug, Default)]
struct Claims {
    allocated: u64,
    cached: u64,
    other: u64,
    processes: u64,
    /// True if a pool is larger than the memory that the driver reports for its process.
    contradict: bool,
}

impl Claims {
    fn of(gpu: &Gpu, list: &[GpuProcess], pools: Option<&Pools>) -> Self {
        let mut claims = Self::default();
        // Memory of driver list entries whose process cannot be identified, for example inside a container.
        let mut unmatched = 0_u64;
        for process in list {
            let vram = process.vram.get().map(|v| v.0);
            let held = pools.and_then(|pools| PoolMemory::of(pools, process.process?, gpu));
            match (held, vram) {
                (Some(held), vram) => claims.take_pool(held, vram),
                (None, Some(vram)) if process.process.is_none() => {
                    unmatched = unmatched.saturating_add(vram);
                }
                (None, vram) => add(&mut claims.processes, vram.unwrap_or(0)),
            }
        }
        let is_listed = |process| list.iter().any(|p| p.process == Some(process));
        let on_gpu = pools.iter().flat_map(|pools| PoolMemory::on(pools, gpu));
        for (_, held) in on_gpu.filter(|(process, _)| !is_listed(*process)) {
            unmatched = unmatched.saturating_sub(held.reserved());
            claims.take_pool(held, None);
        }
        add(&mut claims.processes, unmatched);
        claims
    }

    fn take_pool(&mut self, held: PoolMemory, vram: Option<u64>) {
        let vram = vram.unwrap_or_else(|| held.reserved());
        let allocated = held.allocated.min(vram);
        let cached = held.cached.min(vram - allocated);
        self.contradict |= held.reserved() > vram;
        add(&mut self.allocated, allocated);
        add(&mut self.cached, cached);
        let beyond = if held.is_part { &mut self.processes } else { &mut self.other };
        add(beyond, vram - allocated - cached);
    }

    fn sum(&self) -> u64 {
        [self.allocated, self.cached, self.other, self.processes]
            .iter()
            .fold(0, |sum, part| sum.saturating_add(*part))
    }
}

fn add(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}

/// Memory in one process's pools on a GPU.
#[derive(Debug, Clone, Copy, Default)]
struct PoolMemory {
    allocated: u64,
    cached: u64,
    /// True if the framework does not report its cached memory.
    is_part: bool,
}

impl PoolMemory {
    fn of_pool(pool: &Pool) -> Self {
        Self {
            allocated: pool.stats.allocated.last().0,
            cached: pool.stats.cached().0,
            is_part: false,
        }
    }

    /// Returns a reported pool's memory, or `None` if the framework does not report its allocated memory.
    fn of_reported(pool: &ReportedPool) -> Option<Self> {
        let cached = pool.cached().get();
        Some(Self {
            allocated: pool.allocated.get()?.0,
            cached: cached.unwrap_or_default().0,
            is_part: cached.is_none(),
        })
    }

    fn on<'p>(pools: &'p Pools, gpu: &'p Gpu) -> impl Iterator<Item = (ProcessKey, Self)> + 'p {
        let is_on_gpu = |uuid: &Reading<GpuUuid>| uuid.value().is_some_and(|uuid| is_on(gpu, uuid));
        let read = pools.list.iter().filter(move |pool| is_on_gpu(&pool.gpu));
        let reported = pools.reported.iter().filter(move |pool| is_on_gpu(&pool.gpu));
        let read = read.map(|pool| (pool.process, Self::of_pool(pool)));
        read.chain(reported.filter_map(|pool| Some((pool.process, Self::of_reported(pool)?))))
    }

    fn of(pools: &Pools, process: ProcessKey, gpu: &Gpu) -> Option<Self> {
        Self::on(pools, gpu).filter(|(owner, _)| *owner == process).map(|(_, held)| held).reduce(
            |a, b| Self {
                allocated: a.allocated.saturating_add(b.allocated),
                cached: a.cached.saturating_add(b.cached),
                is_part: a.is_part || b.is_part,
            },
        )
    }

    fn reserved(self) -> u64 {
        self.allocated.saturating_add(self.cached)
    }
}

/// Returns true if `uuid` identifies the GPU or one of its MIG instances.
pub fn is_on(gpu: &Gpu, uuid: &GpuUuid) -> bool {
    gpu.uuid == *uuid || gpu.mig.iter().any(|mig| mig.uuid == *uuid)
}

#[cfg(test)]
mod tests;
