//! What a program says its allocators hold, each second, where nobody may read its memory.
//!
//! `{"what": "statistics", "allocators": [{"framework": "torch", "device": 0, "allocated_bytes": {"current": 1, …}}]}`,
//! one page that is written over and over. PyTorch's become pools; of other frameworks no pool is shown yet.

use serde::Deserialize;

use crate::model::event::HookGauge;
use crate::model::pool::{Allocator, Pool, PoolStats, Sampled};
use crate::model::process::ProcessKey;
use crate::model::reading::{Reading, Reason};
use crate::model::units::{Bytes, Mono};

/// More than a machine has.
const MOST: usize = 16;

#[derive(Deserialize)]
struct Page {
    what: String,
    #[serde(default)]
    allocators: Vec<Stats>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Stats {
    framework: String,
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

/// The pools of `process` by its own word, read at `at`; none where the page is half written.
pub(super) fn pools(page: &[u8], process: ProcessKey, at: Mono) -> Vec<Pool> {
    let page: Option<Page> = serde_json::from_slice(page.trim_ascii()).ok();
    let page = page.filter(|page| page.what == "statistics");
    let all = page.map(|page| page.allocators).unwrap_or_default();
    let torch = all.into_iter().filter(|stats| stats.framework == "torch");
    let pool = |stats: Stats| Pool {
        process,
        allocator: Allocator::Native,
        library: "torch, by the program's own word".to_owned(),
        ordinal: stats.device,
        gpu: Reading::default(),
        at,
        stats: PoolStats {
            allocated: Sampled::new(stats.allocated_bytes.current),
            allocated_peak: stats.allocated_bytes.peak,
            reserved: Sampled::new(stats.reserved_bytes.current),
            reserved_peak: stats.reserved_bytes.peak,
            active: Sampled::new(stats.active_bytes.current),
            active_peak: stats.active_bytes.peak,
            inactive_split: stats.inactive_split_bytes.current,
            inactive_split_peak: stats.inactive_split_bytes.peak,
            requested: stats
                .requested_in_all_bytes
                .map_or_else(not_told, |requested| requested.current.into()),
            segments: stats.segments.current,
            segments_peak: stats.segments.peak,
            num_alloc_retries: stats.num_alloc_retries,
            num_ooms: stats.num_ooms,
            largest_free_block: not_told(),
        },
    };
    torch.take(MOST).map(pool).collect()
}

fn not_told() -> Reading<Bytes> {
    Reading::missing(Reason::Unsupported, "the hook does not tell it each second")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pytorchs_figures_become_a_pool() {
        let page = br#"{"what": "statistics", "allocators": [{"framework": "jax", "device": 0},
            {"framework": "torch", "device": 1, "allocated_bytes": {"current": 5, "peak": 9}, "num_ooms": 2}]}   "#;
        let found = pools(page, ProcessKey::default(), Mono(7));
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].ordinal, found[0].at), (1, Mono(7)));
        assert_eq!(found[0].stats.allocated.last(), Bytes(5));
        assert_eq!(found[0].stats.num_ooms, 2);
        assert!(pools(&page[..40], ProcessKey::default(), Mono(7)).is_empty());
    }
}
