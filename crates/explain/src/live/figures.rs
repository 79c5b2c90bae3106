//! Collects the numbers that PyTorch's out-of-memory message would contain, for a failed allocation whose message is
//! unknown.
//!
//! Pool statistics come from the sample that detected the increase of `num_ooms`, up to 50 ms after the failure. Driver
//! values come from the last frame, adjusted for changes in the pool since then. The failure also triggers a read of
//! the GPU, whose values replace those of the frame as soon as they arrive. The requested size is not visible from
//! outside the process, but it was larger than the free memory that the driver reports, and larger than the largest
//! free block in the cache.

use gputop_model::event::{GpuAtOom, HookGauge, HookOom, OomCountIncreased};
use gputop_model::gpu::{Gpu, GpuProcess, Memory};
use gputop_model::pool::Pool;
use gputop_model::pool_location::listed;
use gputop_model::process::ProcessKey;
use gputop_model::units::Bytes;

use crate::fields::FieldMap;

#[derive(Debug, Clone, PartialEq, Default)]
pub struct OomFigures {
    pub ordinal: u32,
    /// Total GPU memory as reported by CUDA. It excludes the memory reserved by the driver.
    pub total: Option<Bytes>,
    pub free: Option<Bytes>,
    /// Memory used by the process on the GPU.
    pub process: Option<Bytes>,
    pub allocated: Bytes,
    pub reserved: Bytes,
    /// Size of the largest free block, set only if the tensors that existed at the failure were still alive when the
    /// pool was sampled.
    pub largest_free_block: Option<Bytes>,
    /// Memory of each other process on the GPU, by PID.
    pub others: Vec<(u32, Bytes)>,
}

impl OomFigures {
    /// Creates the figures from an OOM event, with `pool` and `gpu` from the last frame.
    pub fn new(
        process: ProcessKey,
        rose: &OomCountIncreased,
        pool: Option<&Pool>,
        gpu: Option<&Gpu>,
    ) -> Self {
        let stats = &rose.stats;
        let reserved = stats.reserved.last();
        let before = pool.map_or(Bytes(0), |pool| pool.stats.reserved.last());
        let moved = |bytes: Bytes, sign: bool| {
            let (more, less) = if sign { (reserved, before) } else { (before, reserved) };
            Bytes((bytes.0 + more.0).saturating_sub(less.0))
        };
        let memory = gpu.map(|gpu| &gpu.memory);
        let own = gpu.and_then(|gpu| listed(gpu, process));
        let allocated = stats.allocated.max().min(reserved);
        let others = gpu.and_then(|gpu| gpu.processes.value()).into_iter().flatten();
        let mut figures = Self {
            ordinal: rose.ordinal,
            total: memory.and_then(total),
            free: memory.and_then(|memory| memory.free.get()).map(|free| moved(free, false)),
            process: own.and_then(|own| own.vram.get()).map(|vram| moved(vram, true)),
            allocated,
            reserved,
            largest_free_block: None,
            others: held(others.filter(|other| own.is_none_or(|own| own.pid != other.pid))),
        };
        if figures.matches_allocated(stats.allocated.last()) {
            figures.largest_free_block = stats.largest_free_block.get();
        }
        figures
    }

    /// Replaces the driver's values from the last frame with values that were read in response to the failure and are
    /// therefore closer to it in time.
    pub fn update_gpu(&mut self, process: ProcessKey, gpu: &GpuAtOom) {
        self.total = total(&gpu.memory).or(self.total);
        self.free = gpu.memory.free.get().or(self.free);
        let list = || gpu.processes.value().into_iter().flatten();
        // Skip the update if the failed process is not in the list. It may be listed under a different PID, and would
        // be counted as another process.
        let is_own =
            |listed: &&GpuProcess| listed.process == Some(process) || listed.pid == process.pid;
        if let Some(own) = list().find(is_own) {
            self.process = own.vram.get().or(self.process);
            self.others = held(list().filter(|listed| !is_own(listed)));
        }
    }

    /// Returns true if `allocated` indicates that the pool has not changed since the failure. The exception frees
    /// tensors as it unwinds the stack, and each freed tensor changes the free blocks.
    pub fn matches_allocated(&self, allocated: Bytes) -> bool {
        allocated.0 >= self.allocated.0 - self.allocated.0 / 50
    }

    /// Builds the figures from the hook's report, for processes that cannot be read from outside.
    pub fn from_hook(oom: &HookOom) -> Self {
        let current = |gauge: Option<HookGauge>| gauge.map_or(Bytes(0), |gauge| gauge.current);
        Self {
            ordinal: oom.device,
            total: Some(oom.limit_bytes),
            free: Some(oom.free_bytes),
            allocated: current(oom.allocated_bytes),
            reserved: current(oom.reserved_bytes),
            largest_free_block: oom.largest_free_block,
            ..Self::default()
        }
    }

    /// Returns a lower bound on the size of the failed request: a smaller request would have succeeded.
    pub fn request_over(&self) -> Option<Bytes> {
        let largest = self.largest_free_block.unwrap_or_default();
        self.free.map(|free| free.max(largest))
    }

    /// Returns the figures, keyed by the field names that cards use.
    pub fn found(&self, process: ProcessKey) -> FieldMap {
        let mut found = FieldMap::new();
        let mut put = |name: &str, value: Option<Bytes>| {
            if let Some(value) = value {
                found.insert(name.into(), value.0.into());
            }
        };
        put("total_bytes", self.total);
        put("free_bytes", self.free);
        put("process_bytes", self.process);
        put("allocated_bytes", Some(self.allocated));
        put("reserved_bytes", Some(self.reserved));
        let idle = Bytes(self.reserved.0.saturating_sub(self.allocated.0));
        put("reserved_unallocated_bytes", Some(idle));
        found.insert("gpu_index".into(), self.ordinal.into());
        found.insert("pid".into(), process.pid.0.into());
        if !self.others.is_empty() {
            let others = self.others.iter();
            let others: Vec<_> = others
                .map(|(pid, bytes)| serde_json::json!({ "pid": pid, "bytes": bytes.0 }))
                .collect();
            found.insert("other_processes".into(), others.into());
        }
        found
    }
}

/// Returns the GPU's total memory as CUDA reports it.
fn total(memory: &Memory) -> Option<Bytes> {
    let reserved = memory.reserved.get().unwrap_or_default();
    Some(Bytes(memory.total.get()?.0.saturating_sub(reserved.0)))
}

fn held<'a>(processes: impl Iterator<Item = &'a GpuProcess>) -> Vec<(u32, Bytes)> {
    processes.filter_map(|process| Some((process.pid.0, process.vram.get()?))).collect()
}
