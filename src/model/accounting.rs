//! Splits a GPU's memory into parts that add up:
//! driver + allocated + idle + other + processes + unattributed + free = total.
//!
//! `allocated`, `idle` and `other` cover processes with readable or reported pools: live tensors, cache, and memory
//! outside the pools (context, libraries). `processes` is the total memory of all other processes. If a framework
//! reports only its live tensors, the remaining memory of its process is also part of `processes`.
//!
//! The process list, the memory sizes and the pools are read at slightly different times, so the parts may exceed the
//! used memory. In that case, the later parts in the order above are reduced, and the split is marked approximate.

use super::gpu::{Gpu, GpuProcess};
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
    pub idle: Bytes,
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
    let total = gpu.memory.total.get()?;
    let free = Bytes(gpu.memory.free.get()?.0.min(total.0));
    let used = total.0 - free.0;
    let driver = gpu.memory.reserved.get().unwrap_or_default().0.min(used);
    let list = gpu.processes.value();
    let claims = Claims::of(gpu, list.map_or(&[], Vec::as_slice), pools);
    let mut left = used - driver;
    let mut take = |claim: u64| {
        let part = claim.min(left);
        left -= part;
        Bytes(part)
    };
    let (allocated, idle) = (take(claims.allocated), take(claims.idle));
    let (other, processes) = (take(claims.other), take(claims.processes));
    let granted = [allocated, idle, other, processes].iter().map(|p| p.0).sum();
    Some(Accounting {
        total,
        driver: Bytes(driver),
        allocated,
        idle,
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
    idle: u64,
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
        let idle = held.idle.min(vram - allocated);
        self.contradict |= held.reserved() > vram;
        add(&mut self.allocated, allocated);
        add(&mut self.idle, idle);
        let beyond = if held.is_part { &mut self.processes } else { &mut self.other };
        add(beyond, vram - allocated - idle);
    }

    fn sum(&self) -> u64 {
        [self.allocated, self.idle, self.other, self.processes]
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
    idle: u64,
    /// True if the framework does not report its idle memory.
    is_part: bool,
}

impl PoolMemory {
    fn of_pool(pool: &Pool) -> Self {
        Self { allocated: pool.stats.allocated.last().0, idle: pool.stats.idle().0, is_part: false }
    }

    /// Returns a reported pool's memory, or `None` if the framework does not report its allocated memory.
    fn of_reported(pool: &ReportedPool) -> Option<Self> {
        let idle = pool.idle().get();
        Some(Self {
            allocated: pool.allocated.get()?.0,
            idle: idle.unwrap_or_default().0,
            is_part: idle.is_none(),
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
                idle: a.idle.saturating_add(b.idle),
                is_part: a.is_part || b.is_part,
            },
        )
    }

    fn reserved(self) -> u64 {
        self.allocated.saturating_add(self.idle)
    }
}

/// Returns true if `uuid` identifies the GPU or one of its MIG instances.
pub fn is_on(gpu: &Gpu, uuid: &GpuUuid) -> bool {
    gpu.uuid == *uuid || gpu.mig.iter().any(|mig| mig.uuid == *uuid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::gpu::{GpuProcess, Memory};
    use crate::model::pool::{PoolStats, Sampled};
    use crate::model::units::Pid;
    use proptest::prelude::*;

    fn gpu(total: u64, free: u64, reserved: u64, processes: &[u64]) -> Gpu {
        Gpu {
            memory: Memory {
                total: Bytes(total).into(),
                free: Bytes(free).into(),
                reserved: Bytes(reserved).into(),
                ..Memory::default()
            },
            processes: processes
                .iter()
                .map(|&vram| GpuProcess { vram: Bytes(vram).into(), ..GpuProcess::default() })
                .collect::<Vec<_>>()
                .into(),
            ..Gpu::default()
        }
    }

    #[test]
    fn leaves_nothing_unattributed_if_processes_exceed_used_memory() {
        let split = account(&gpu(100, 40, 10, &[30, 25])).expect("a split");
        assert_eq!((split.processes, split.unattributed), (Bytes(50), Bytes(0)));
        assert!(split.approximate);
    }

    #[test]
    fn returns_no_split_without_a_total() {
        assert_eq!(account(&Gpu::default()), None);
    }

    fn key(pid: u32) -> ProcessKey {
        ProcessKey { pid: Pid(pid), ..ProcessKey::default() }
    }

    fn pools(list: &[(u32, u64, u64)]) -> Pools {
        let pool = |&(pid, allocated, reserved): &(u32, u64, u64)| Pool {
            process: key(pid),
            gpu: GpuUuid::default().into(),
            stats: PoolStats {
                allocated: Sampled::new(Bytes(allocated)),
                reserved: Sampled::new(Bytes(reserved)),
                ..PoolStats::default()
            },
            ..Pool::default()
        };
        Pools { list: list.iter().map(pool).collect::<Vec<_>>().into(), ..Pools::default() }
    }

    fn with_keys(mut gpu: Gpu) -> Gpu {
        if let crate::model::reading::Reading::Value(list) = &mut gpu.processes {
            for (pid, process) in (1..).zip(list) {
                process.process = Some(key(pid));
            }
        }
        gpu
    }

    #[test]
    fn splits_a_process_with_a_pool_and_keeps_others_whole() {
        let gpu = with_keys(gpu(100, 20, 10, &[40, 25]));
        let split = account_pools(&gpu, Some(&pools(&[(1, 15, 33)]))).expect("a split");
        let parts = [split.allocated, split.idle, split.other, split.processes];
        assert_eq!(parts, [Bytes(15), Bytes(18), Bytes(7), Bytes(25)]);
        assert_eq!(split.unattributed, Bytes(5));
        assert!(!split.approximate);
    }

    #[test]
    fn marks_a_pool_that_grew_after_the_driver_read_as_approximate() {
        let gpu = with_keys(gpu(100, 20, 10, &[40]));
        let split = account_pools(&gpu, Some(&pools(&[(1, 15, 44)]))).expect("a split");
        assert_eq!((split.idle, split.other), (Bytes(25), Bytes(0)));
        assert!(split.approximate);
    }

    #[test]
    fn splits_a_process_as_far_as_its_framework_reports() {
        let gpu = with_keys(gpu(100, 20, 10, &[40, 25]));
        let pool = |reserved: Reading<Bytes>| ReportedPool {
            process: key(1),
            gpu: GpuUuid::default().into(),
            allocated: Bytes(5).into(),
            reserved,
            ..ReportedPool::default()
        };
        let parts = |reported: Vec<ReportedPool>, list: &[(u32, u64, u64)]| {
            let pools = Pools { reported: reported.into(), ..pools(list) };
            let split = account_pools(&gpu, Some(&pools)).expect("a split");
            [split.allocated, split.idle, split.other, split.processes].map(|part| part.0)
        };
        assert_eq!(parts(vec![pool(Bytes(30).into())], &[]), [5, 25, 10, 25]);
        // The process's remaining memory cannot be split into idle memory and context.
        assert_eq!(parts(vec![pool(Reading::default())], &[]), [5, 0, 0, 60]);
        // The same process also has a PyTorch pool.
        assert_eq!(parts(vec![pool(Bytes(6).into())], &[(1, 7, 9)]), [12, 3, 25, 25]);
        let unreported = ReportedPool { allocated: Reading::default(), ..pool(Bytes(30).into()) };
        assert_eq!(parts(vec![unreported], &[]), [0, 0, 0, 65]);
    }

    #[test]
    fn takes_a_pool_in_a_container_from_the_unmatched_entries() {
        let gpu = gpu(100, 20, 10, &[40, 25]);
        let split = account_pools(&gpu, Some(&pools(&[(7, 15, 33)]))).expect("a split");
        assert_eq!((split.allocated, split.idle), (Bytes(15), Bytes(18)));
        assert_eq!((split.other, split.processes), (Bytes(0), Bytes(32)));
    }

    proptest! {
        #[test]
        fn parts_with_pools_add_up_to_the_total(
            total in 0..u64::MAX / 2, free: u64, reserved: u64,
            processes in prop::collection::vec(any::<u64>(), 0..5),
            list in prop::collection::vec((1..8_u32, any::<u64>(), any::<u64>()), 0..6),
            named: bool,
        ) {
            let gpu = gpu(total, free, reserved, &processes);
            let gpu = if named { with_keys(gpu) } else { gpu };
            let split = account_pools(&gpu, Some(&pools(&list))).expect("a split");
            let parts = [
                split.driver, split.allocated, split.idle, split.other, split.processes,
                split.unattributed, split.free,
            ];
            prop_assert_eq!(parts.iter().map(|p| p.0).sum::<u64>(), total);
        }

        #[test]
        fn parts_add_up_to_the_total(
            total in 0..u64::MAX / 2, free in 0..u64::MAX / 2, reserved in any::<u64>(),
            processes in prop::collection::vec(any::<u64>(), 0..5),
        ) {
            let free = free.min(total);
            let split = account(&gpu(total, free, reserved, &processes)).expect("a split");
            let sum = split.driver.0 + split.processes.0 + split.unattributed.0 + split.free.0;
            prop_assert_eq!(sum, total);
        }
    }
}
