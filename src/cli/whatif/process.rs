//! Converts the current memory blocks of a running process to an allocation trace.

use std::path::Path;

use gputop_allocator::rules::{TorchVersion, torch_of};
use gputop_allocator::trace::{Live, Recorded, Trace};
use gputop_model::{BlockState, Bytes, Missing, Pid, PoolId, PoolKind, PoolMap};

use super::gpu;
use crate::cli::allocator;
use crate::collect::process::alloc_conf_of;

/// Returns a trace without operations for each device of the process. If `needs_card` is true, also adds the memory
/// size of its device to each trace, or returns the reason if a size is unknown. An error consists of a message and an
/// exit code.
pub(super) fn of_process(
    pid: Pid,
    needs_card: bool,
) -> Result<(Vec<Trace>, Option<Missing>), (String, u8)> {
    let proc_root = Path::new("/proc");
    let (maps, library) = allocator::maps(proc_root, pid)
        .map_err(|failure| (failure.to_string(), allocator::exit_code(&failure)))?;
    let recorded = Recorded {
        torch: last_version(library),
        conf: alloc_conf_of(proc_root, pid),
        ..Recorded::default()
    };
    let mut traces: Vec<Trace> = maps.iter().map(|map| of_map(map, recorded.clone())).collect();
    let why = needs_card.then(|| gpu::add_device_memory(pid, &mut traces)).flatten();
    Ok((traces, why))
}

fn of_map(map: &PoolMap, recorded: Recorded) -> Trace {
    let mut start = Vec::new();
    for segment in &map.segments {
        let pool = match (segment.pool, segment.pool_id) {
            (_, Some(id)) => id,
            // The ID of the private pool is unknown, so put all such blocks into one private pool.
            (PoolKind::Private, None) => PoolId(1, 0),
            _ => PoolId::SHARED,
        };
        let used = [BlockState::Allocated, BlockState::Active];
        let blocks = segment.blocks.iter().filter(|b| used.contains(&b.state));
        start.extend(blocks.map(|block| Live {
            block: block.address,
            requested: block.requested.unwrap_or(block.size),
            stream: segment.stream,
            pool,
        }));
    }
    let reserved = map.segments.iter().map(|segment| segment.size.0).sum();
    Trace {
        device: map.ordinal,
        start,
        recorded: Recorded { reserved_peak: Some(Bytes(reserved)), ..recorded },
        ..Trace::default()
    }
}

/// Returns the newest torch release in the name of a detected library: `(2, 15)` for `torch 2.13 to 2.15`.
fn last_version(library: &str) -> Option<TorchVersion> {
    library.split(' ').rev().find_map(torch_of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chooses_the_newest_release_of_a_layout() {
        assert_eq!(last_version("torch 2.13 to 2.15"), Some((2, 15)));
        assert_eq!(last_version("torch 2.12"), Some((2, 12)));
    }
}
