//! Allocator statistics that the hook writes each second from inside the program.
//!
//! `{"what": "statistics", "allocators": [{"framework": "torch", "device": 0, "allocated_bytes": {"current": 1, …}}]}`
//! is a page that the hook overwrites each second. PyTorch's entries become pools, which are used for processes whose
//! memory gputop cannot read. Entries of other frameworks become [`ReportedPool`]s. If a framework does not report a
//! value, the value is missing from the page and becomes a missing reading with a reason.

use gputop_model::event::HookGauge;
use gputop_model::reported_pool::{Framework, PoolSource};
use gputop_model::{
    Allocator, Bytes, Mono, Pool, PoolStats, ProcessKey, Reading, Reason, ReportedPool, Sampled,
};
use serde::Deserialize;

/// Maximum number of entries on a statistics page. No machine has this many devices.
const MAX_DEVICES: usize = 16;

/// Pools that running programs reported through the hook.
#[derive(Debug, Clone, Default)]
pub struct ReportedPools {
    /// PyTorch pools, in the same form as those that gputop reads itself.
    pub torch: Vec<Pool>,
    pub others: Vec<ReportedPool>,
}

#[derive(Deserialize)]
struct Page {
    what: String,
    #[serde(default)]
    allocators: Vec<Stats>,
}

#[derive(Deserialize)]
#[serde(tag = "framework", rename_all = "snake_case")]
enum Stats {
    Torch(TorchStatistics),
    Jax(Other),
    Tensorflow(Other),
    Cupy(Other),
    #[serde(other)]
    Unknown,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TorchStatistics {
    device: u32,
    allocated_bytes: HookGauge,
    reserved_bytes: HookGauge,
    active_bytes: HookGauge,
    inactive_split_bytes: HookGauge,
    /// Bytes requested from all pools together, reported from torch 2.0 on.
    requested_in_all_bytes: Option<HookGauge>,
    segments: Segments,
    num_alloc_retries: u64,
    num_ooms: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Segments {
    current: u64,
    peak: u64,
}

/// Statistics of a framework other than PyTorch, with only the values that it reports.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Other {
    device: u32,
    allocator: Option<AllocatorName>,
    allocated_bytes: Gauge,
    reserved_bytes: Gauge,
    limit_bytes: Option<Bytes>,
    largest_free_block: Option<Bytes>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Gauge {
    current: Option<Bytes>,
    peak: Option<Bytes>,
}

/// Allocator that the program is configured to use.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum AllocatorName {
    Bfc,
    MemoryPool,
    CudaMallocAsync,
    #[serde(other)]
    Unknown,
}

impl ReportedPools {
    /// Adds the pools on the statistics page of `process`, read at `at`. Adds none if the page is incomplete.
    pub fn take(&mut self, page: &[u8], process: ProcessKey, at: Mono) {
        let page: Option<Page> = serde_json::from_slice(page.trim_ascii()).ok();
        let page = page.filter(|page| page.what == "statistics");
        self.add(page.map(|page| page.allocators).unwrap_or_default(), process, at);
    }

    /// Parses the list of allocators in another report of the hook.
    pub(super) fn of(list: serde_json::Value, process: ProcessKey, at: Mono) -> Self {
        let mut pools = Self::default();
        pools.add(serde_json::from_value(list).unwrap_or_default(), process, at);
        pools
    }

    fn add(&mut self, all: Vec<Stats>, process: ProcessKey, at: Mono) {
        for stats in all.into_iter().take(MAX_DEVICES) {
            let (framework, other) = match stats {
                Stats::Torch(torch) => {
                    self.torch.push(torch.pool(process, at));
                    continue;
                }
                Stats::Jax(other) => (Framework::Jax, other),
                Stats::Tensorflow(other) => (Framework::Tensorflow, other),
                Stats::Cupy(other) => (Framework::Cupy, other),
                Stats::Unknown => continue,
            };
            self.others.push(other.pool(framework, process, at));
        }
    }

    /// Returns the pools of other frameworks that gputop has read itself, and those of other devices and frameworks that
    /// the hook reported.
    pub fn others_beside(&self, read: &[ReportedPool]) -> Vec<ReportedPool> {
        let of = |pool: &ReportedPool| (pool.process, pool.framework, pool.ordinal);
        let is_new = |pool: &&ReportedPool| read.iter().all(|read| of(read) != of(pool));
        read.iter().chain(self.others.iter().filter(is_new)).cloned().collect()
    }
}

impl TorchStatistics {
    fn pool(self, process: ProcessKey, at: Mono) -> Pool {
        let not_reported = || {
            Reading::missing(Reason::Unsupported, "the hook's statistics do not include this value")
        };
        Pool {
            process,
            allocator: Allocator::Native,
            library: "torch (reported by the hook)".to_owned(),
            ordinal: self.device,
            gpu: Reading::default(),
            at,
            limit: None,
            stats: PoolStats {
                allocated: Sampled::new(self.allocated_bytes.current),
                allocated_peak: self.allocated_bytes.peak,
                reserved: Sampled::new(self.reserved_bytes.current),
                reserved_peak: self.reserved_bytes.peak,
                active: Sampled::new(self.active_bytes.current),
                active_peak: self.active_bytes.peak,
                inactive_split: self.inactive_split_bytes.current,
                inactive_split_peak: self.inactive_split_bytes.peak,
                requested: self
                    .requested_in_all_bytes
                    .map_or_else(not_reported, |requested| requested.current.into()),
                segments: self.segments.current,
                segments_peak: self.segments.peak,
                num_alloc_retries: self.num_alloc_retries,
                num_ooms: self.num_ooms,
                largest_free_block: not_reported(),
            },
        }
    }
}

impl Other {
    fn pool(self, framework: Framework, process: ProcessKey, at: Mono) -> ReportedPool {
        let allocator = match (self.allocator, framework) {
            (Some(AllocatorName::Bfc), Framework::Jax) => Allocator::XlaBfc,
            (Some(AllocatorName::Bfc), Framework::Tensorflow) => Allocator::TensorflowBfc,
            (Some(AllocatorName::MemoryPool), Framework::Cupy) => Allocator::CupyMemoryPool,
            (Some(AllocatorName::CudaMallocAsync), _) => Allocator::CudaMallocAsync,
            _ => Allocator::Unknown,
        };
        let figure = |reported: Option<Bytes>, what: &str| {
            let why = || {
                let name = framework.words();
                Reading::missing(Reason::Unsupported, format!("{name} does not report {what}"))
            };
            reported.map_or_else(why, Reading::Value)
        };
        ReportedPool {
            process,
            framework,
            allocator,
            source: PoolSource::Hook,
            ordinal: self.device,
            gpu: Reading::default(),
            at,
            allocated: figure(self.allocated_bytes.current, "allocated memory"),
            allocated_peak: figure(self.allocated_bytes.peak, "the peak"),
            reserved: figure(self.reserved_bytes.current, "reserved memory"),
            reserved_peak: figure(self.reserved_bytes.peak, "the peak of reserved memory"),
            limit: figure(self.limit_bytes, "a limit"),
            largest_free_block: figure(self.largest_free_block, "the largest free block"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pools(page: &[u8]) -> ReportedPools {
        let mut pools = ReportedPools::default();
        pools.take(page, ProcessKey::default(), Mono(7));
        pools
    }

    #[test]
    fn converts_pytorch_statistics_to_a_pool() {
        let page = br#"{"what": "statistics", "allocators": [{"framework": "of tomorrow", "device": 0},
            {"framework": "torch", "device": 1, "allocated_bytes": {"current": 5, "peak": 9}, "num_ooms": 2}]}   "#;
        let found = pools(page).torch;
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].ordinal, found[0].at), (1, Mono(7)));
        assert_eq!(found[0].stats.allocated.last(), Bytes(5));
        assert_eq!(found[0].stats.num_ooms, 2);
        assert!(pools(&page[..40]).torch.is_empty());
    }

    #[test]
    fn a_figure_that_a_framework_does_not_report_is_missing_with_a_reason() {
        let page = br#"{"what": "statistics", "allocators": [
            {"framework": "jax", "device": 2, "allocator": "bfc", "allocated_bytes": {"current": 5, "peak": 9},
             "reserved_bytes": {"current": 8}, "limit_bytes": 100},
            {"framework": "jax", "device": 3, "allocator": "platform"},
            {"framework": "cupy", "device": 0, "allocator": "memory_pool", "allocated_bytes": {"current": 3}}]}"#;
        let pools = pools(page);
        assert!(pools.torch.is_empty());
        let [bfc, platform, cupy] = &pools.others[..] else {
            panic!("{:?}", pools.others);
        };
        assert_eq!((bfc.ordinal, bfc.allocator), (2, Allocator::XlaBfc));
        assert_eq!(bfc.allocated_peak, Bytes(9).into());
        assert_eq!((bfc.cached().get(), bfc.limit.get()), (Some(Bytes(3)), Some(Bytes(100))));
        let why = |reading: &Reading<Bytes>| reading.why().expect("missing").to_string();
        assert_eq!(why(&bfc.largest_free_block), "JAX does not report the largest free block");
        assert_eq!(why(&platform.allocated), "JAX does not report allocated memory");
        assert_eq!(platform.allocator, Allocator::Unknown);
        assert_eq!(why(&cupy.allocated_peak), "CuPy does not report the peak");
        assert_eq!((cupy.allocator, cupy.cached().get()), (Allocator::CupyMemoryPool, None));
    }
}
