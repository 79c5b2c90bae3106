//! What a program says its allocators hold, each second: PyTorch's where nobody may read its memory, other frameworks'
//! always.
//!
//! `{"what": "statistics", "allocators": [{"framework": "torch", "device": 0, "allocated_bytes": {"current": 1, …}}]}`,
//! one page that is written over and over. PyTorch's become pools, the others' [`ReportedPool`]s: a figure that a framework
//! does not tell is not on the page, and is a reason from here on.

use serde::Deserialize;

use crate::model::event::HookGauge;
use crate::model::pool::{Allocator, Pool, PoolStats, Sampled};
use crate::model::process::ProcessKey;
use crate::model::reading::{Reading, Reason};
use crate::model::reported_pool::{Framework, ReportedPool};
use crate::model::units::{Bytes, Mono};

/// More than a machine has.
const MAX_DEVICES: usize = 16;

/// What running programs say that their allocators hold.
#[derive(Debug, Clone, Default)]
pub struct ToldPools {
    /// PyTorch's, as good as read.
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
    Torch(Torch),
    Jax(Other),
    Tensorflow(Other),
    Cupy(Other),
    #[serde(other)]
    Unknown,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Torch {
    device: u32,
    allocated_bytes: HookGauge,
    reserved_bytes: HookGauge,
    active_bytes: HookGauge,
    inactive_split_bytes: HookGauge,
    /// From torch 2.0 on.
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

/// Whatever of it the framework tells.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Other {
    device: u32,
    allocator: Option<Named>,
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

/// What the program was told to use, by the words of its framework.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Named {
    Bfc,
    MemoryPool,
    CudaMallocAsync,
    #[serde(other)]
    Unknown,
}

impl ToldPools {
    /// Adds what stands on the page of `process`, read at `at`; nothing where the page is half written.
    pub fn take(&mut self, page: &[u8], process: ProcessKey, at: Mono) {
        let page: Option<Page> = serde_json::from_slice(page.trim_ascii()).ok();
        let page = page.filter(|page| page.what == "statistics");
        let all = page.map(|page| page.allocators).unwrap_or_default();
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
}

impl Torch {
    fn pool(self, process: ProcessKey, at: Mono) -> Pool {
        let not_told =
            || Reading::missing(Reason::Unsupported, "the hook does not tell it each second");
        Pool {
            process,
            allocator: Allocator::Native,
            library: "torch, by the program's own word".to_owned(),
            ordinal: self.device,
            gpu: Reading::default(),
            at,
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
                    .map_or_else(not_told, |requested| requested.current.into()),
                segments: self.segments.current,
                segments_peak: self.segments.peak,
                num_alloc_retries: self.num_alloc_retries,
                num_ooms: self.num_ooms,
                largest_free_block: not_told(),
            },
        }
    }
}

impl Other {
    fn pool(self, framework: Framework, process: ProcessKey, at: Mono) -> ReportedPool {
        let allocator = match (self.allocator, framework) {
            (Some(Named::Bfc), Framework::Jax) => Allocator::XlaBfc,
            (Some(Named::Bfc), Framework::Tensorflow) => Allocator::TensorflowBfc,
            (Some(Named::MemoryPool), Framework::Cupy) => Allocator::CupyMemoryPool,
            (Some(Named::CudaMallocAsync), _) => Allocator::CudaMallocAsync,
            _ => Allocator::Unknown,
        };
        let figure = |told: Option<Bytes>, what: &str| {
            let why = || {
                let of = framework.words();
                Reading::missing(Reason::Unsupported, format!("{of} does not tell {what}"))
            };
            told.map_or_else(why, Reading::Value)
        };
        ReportedPool {
            process,
            framework,
            allocator,
            ordinal: self.device,
            gpu: Reading::default(),
            at,
            allocated: figure(self.allocated_bytes.current, "what is allocated"),
            allocated_peak: figure(self.allocated_bytes.peak, "the peak"),
            reserved: figure(self.reserved_bytes.current, "what its pool holds"),
            reserved_peak: figure(self.reserved_bytes.peak, "the most that its pool held"),
            limit: figure(self.limit_bytes, "a limit"),
            largest_free_block: figure(self.largest_free_block, "its largest free block"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(page: &[u8]) -> ToldPools {
        let mut told = ToldPools::default();
        told.take(page, ProcessKey::default(), Mono(7));
        told
    }

    #[test]
    fn pytorchs_figures_become_a_pool() {
        let page = br#"{"what": "statistics", "allocators": [{"framework": "of tomorrow", "device": 0},
            {"framework": "torch", "device": 1, "allocated_bytes": {"current": 5, "peak": 9}, "num_ooms": 2}]}   "#;
        let found = told(page).torch;
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].ordinal, found[0].at), (1, Mono(7)));
        assert_eq!(found[0].stats.allocated.last(), Bytes(5));
        assert_eq!(found[0].stats.num_ooms, 2);
        assert!(told(&page[..40]).torch.is_empty());
    }

    #[test]
    fn what_another_framework_does_not_tell_is_a_reason() {
        let page = br#"{"what": "statistics", "allocators": [
            {"framework": "jax", "device": 2, "allocator": "bfc", "allocated_bytes": {"current": 5, "peak": 9},
             "reserved_bytes": {"current": 8}, "limit_bytes": 100},
            {"framework": "jax", "device": 3, "allocator": "platform"},
            {"framework": "cupy", "device": 0, "allocator": "memory_pool", "allocated_bytes": {"current": 3}}]}"#;
        let told = told(page);
        assert!(told.torch.is_empty());
        let [bfc, platform, cupy] = &told.others[..] else {
            panic!("{:?}", told.others);
        };
        assert_eq!((bfc.ordinal, bfc.allocator), (2, Allocator::XlaBfc));
        assert_eq!(bfc.allocated_peak, Bytes(9).into());
        assert_eq!(
            (bfc.idle().get(), bfc.limit.get()),
            (Some(Bytes(3)), Some(Bytes(100)))
        );
        let why = |reading: &Reading<Bytes>| reading.why().expect("missing").to_string();
        assert_eq!(
            why(&bfc.largest_free_block),
            "JAX does not tell its largest free block"
        );
        assert_eq!(
            why(&platform.allocated),
            "JAX does not tell what is allocated"
        );
        assert_eq!(platform.allocator, Allocator::Unknown);
        assert_eq!(why(&cupy.allocated_peak), "CuPy does not tell the peak");
        assert_eq!(
            (cupy.allocator, cupy.idle().get()),
            (Allocator::CupyMemoryPool, None)
        );
    }
}
