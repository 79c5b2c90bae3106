//! The figures that PyTorch's message would hold, for a failed allocation of which no text is known.
//!
//! The statistics are those of the sample that saw `num_ooms` rise, up to 50 ms after the failure; the driver's are
//! those of the last frame, moved by what the pool has taken or given back since, until the GPU was read because of
//! the failure. What was wanted is not known from
//! outside, only that it was more than what would have been there: the driver's free memory, and the largest free
//! block of the cache.

use crate::diagnose::fields::FieldMap;
use crate::model::event::{GpuAtOom, HookGauge, HookOom, OomsRose};
use crate::model::gpu::{Gpu, GpuProcess, Memory};
use crate::model::pool::Pool;
use crate::model::pool_location::listed;
use crate::model::process::ProcessKey;
use crate::model::units::Bytes;

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Figures {
    pub ordinal: u32,
    /// CUDA's: what the driver keeps is not in it.
    pub total: Option<Bytes>,
    pub free: Option<Bytes>,
    /// All that the process holds on the GPU.
    pub process: Option<Bytes>,
    pub allocated: Bytes,
    pub reserved: Bytes,
    /// Only where the tensors of the moment were still there in the sample.
    pub largest_hole: Option<Bytes>,
    /// Of every other process that the driver lists there.
    pub others: Vec<(u32, Bytes)>,
}

impl Figures {
    /// `pool` and `gpu` as in the last frame.
    pub fn new(
        process: ProcessKey,
        rose: &OomsRose,
        pool: Option<&Pool>,
        gpu: Option<&Gpu>,
    ) -> Self {
        let stats = &rose.stats;
        let reserved = stats.reserved.last();
        let before = pool.map_or(Bytes(0), |pool| pool.stats.reserved.last());
        let moved = |bytes: Bytes, sign: bool| {
            let (more, less) = if sign {
                (reserved, before)
            } else {
                (before, reserved)
            };
            Bytes((bytes.0 + more.0).saturating_sub(less.0))
        };
        let memory = gpu.map(|gpu| &gpu.memory);
        let own = gpu.and_then(|gpu| listed(gpu, process));
        let allocated = stats.allocated.max().min(reserved);
        let others = gpu
            .and_then(|gpu| gpu.processes.value())
            .into_iter()
            .flatten();
        let mut figures = Self {
            ordinal: rose.ordinal,
            total: memory.and_then(total),
            free: memory
                .and_then(|memory| memory.free.get())
                .map(|free| moved(free, false)),
            process: own
                .and_then(|own| own.vram.get())
                .map(|vram| moved(vram, true)),
            allocated,
            reserved,
            largest_hole: None,
            others: held(others.filter(|other| own.is_none_or(|own| own.pid != other.pid))),
        };
        if figures.is_still(stats.allocated.last()) {
            figures.largest_hole = stats.largest_free_block.get();
        }
        figures
    }

    /// What the driver said because of the failure, nearer to it than the last frame.
    pub fn see(&mut self, process: ProcessKey, there: &GpuAtOom) {
        self.total = total(&there.memory).or(self.total);
        self.free = there.memory.free.get().or(self.free);
        let list = || there.processes.value().into_iter().flatten();
        // Where the driver counts processes otherwise, its own would stand among the others.
        let is_own =
            |listed: &&GpuProcess| listed.process == Some(process) || listed.pid == process.pid;
        if let Some(own) = list().find(is_own) {
            self.process = own.vram.get().or(self.process);
            self.others = held(list().filter(|listed| !is_own(listed)));
        }
    }

    /// With this much allocated the pool is as it was at the failure. The exception frees what its frames held; what
    /// is free then is not what was free before.
    pub fn is_still(&self, allocated: Bytes) -> bool {
        allocated.0 >= self.allocated.0 - self.allocated.0 / 50
    }

    /// As the hook measured them, where nobody may read the process.
    pub fn heard(oom: &HookOom) -> Self {
        let current = |gauge: Option<HookGauge>| gauge.map_or(Bytes(0), |gauge| gauge.current);
        Self {
            ordinal: oom.device,
            total: Some(oom.limit_bytes),
            free: Some(oom.free_bytes),
            allocated: current(oom.allocated_bytes),
            reserved: current(oom.reserved_bytes),
            largest_hole: oom.largest_free_block,
            ..Self::default()
        }
    }

    /// Either would have served a request of this size.
    pub fn wanted_over(&self) -> Option<Bytes> {
        let hole = self.largest_hole.unwrap_or_default();
        self.free.map(|free| free.max(hole))
    }

    /// By the names that a text's figures have.
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

/// CUDA's.
fn total(memory: &Memory) -> Option<Bytes> {
    let kept = memory.reserved.get().unwrap_or_default();
    Some(Bytes(memory.total.get()?.0.saturating_sub(kept.0)))
}

fn held<'a>(processes: impl Iterator<Item = &'a GpuProcess>) -> Vec<(u32, Bytes)> {
    processes
        .filter_map(|process| Some((process.pid.0, process.vram.get()?)))
        .collect()
}
