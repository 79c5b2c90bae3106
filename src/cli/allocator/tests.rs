use std::collections::BTreeSet;

use gputop_model::pool::{Block, BlockState, PoolId};
use gputop_peek::torch::StatArray;
use serde_json::Value;

use super::*;

fn collect_fields(value: &Value, prefix: &str, fields: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                fields.insert(format!("{prefix}{name}"));
                collect_fields(value, &format!("{prefix}{name}."), fields);
            }
        }
        Value::Array(list) => list.iter().for_each(|v| collect_fields(v, prefix, fields)),
        _ => {}
    }
}

/// Fields may be added but not renamed, because scripts read them.
#[test]
fn json_has_the_documented_fields() {
    let block = Block {
        address: 4096,
        requested: Some(Bytes(500)),
        state: BlockState::Allocated,
        ..Block::default()
    };
    let free =
        Block { address: 4608, size: Bytes(512), state: BlockState::Free, ..Block::default() };
    let segment =
        Segment { pool_id: Some(PoolId(1, 0)), blocks: vec![block, free], ..Segment::default() };
    let map = PoolMap { exact: true, segments: vec![segment], ..PoolMap::default() };
    let stats =
        DeviceStats { requested_bytes: Some(StatArray::default()), ..DeviceStats::default() };
    let size = || Reading::Value(Bytes(1));
    let document = AllocatorDocument {
        schema: SCHEMA,
        pid: Pid(1),
        allocator: Allocator::Native,
        library: "",
        devices: vec![device(&stats, size(), Ok(map), true)].into(),
        reported_pools: vec![ReportedPool {
            allocated: size(),
            allocated_peak: size(),
            reserved: size(),
            reserved_peak: size(),
            limit: size(),
            largest_free_block: size(),
            ..ReportedPool::default()
        }],
        pinned_host_pools: Vec::new(),
        chunk_maps: Vec::new(),
        live_allocations: Vec::new(),
        pause: Some(Reading::Value(Pause::default())),
    };
    let json = serde_json::to_value(&document).expect("JSON");
    let mut fields = BTreeSet::new();
    collect_fields(&json, "", &mut fields);
    let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
    let stat = |name: &str| {
        let stat = format!("devices.stats.{name}");
        [stat.clone(), format!("{stat}.current"), format!("{stat}.peak")]
    };
    for expected in [
        "allocated_bytes",
        "reserved_bytes",
        "active_bytes",
        "inactive_split_bytes",
        "requested_bytes",
        "segments",
    ] {
        assert!(stat(expected).iter().all(|name| fields.contains(&name.as_str())), "{expected}");
    }
    let others = fields.iter().filter(|name| !name.starts_with("devices.stats."));
    assert_eq!(
        others.copied().collect::<Vec<_>>().join(" "),
        "allocator devices devices.exact devices.fits devices.free_histogram devices.free_histogram.bytes \
             devices.free_histogram.count devices.free_histogram.up_to_bytes devices.gpu devices.gpu.missing \
             devices.largest_free_block devices.ordinal devices.segments devices.segments.address \
             devices.segments.blocks devices.segments.blocks.address devices.segments.blocks.requested \
             devices.segments.blocks.size devices.segments.blocks.state devices.segments.expandable \
             devices.segments.pool devices.segments.pool_id devices.segments.size devices.segments.stream \
             devices.stats pause pause.cut_short pause.longest_us pause.threads pause.times pause.total_us pid \
             reported_pools reported_pools.allocated_bytes reported_pools.allocated_bytes.current \
             reported_pools.allocated_bytes.peak reported_pools.allocator reported_pools.framework \
             reported_pools.largest_free_block reported_pools.limit_bytes reported_pools.ordinal \
             reported_pools.reserved_bytes reported_pools.reserved_bytes.current reported_pools.reserved_bytes.peak \
             reported_pools.source schema"
    );
    for name in ["devices.stats.num_alloc_retries", "devices.stats.num_ooms"] {
        assert!(fields.contains(&name), "{name}");
    }
    assert_eq!(fields.iter().filter(|name| name.starts_with("devices.stats.")).count(), 20);
}
