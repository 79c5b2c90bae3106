//! Compares PyTorch's own report with gputop's and describes every difference.

use std::collections::BTreeMap;
use std::fmt::Debug;

use crate::harness::{DeviceStats, StatArray, TrueSegment, Truth};
use crate::reader::{Device, Reading, Segment, Stat, Stats};

/// A block, with the properties that both reports contain.
#[derive(Debug, PartialEq, Eq)]
struct Known {
    size: u64,
    state: String,
    /// Only for allocated blocks, from torch 2.0. For free blocks PyTorch keeps a stale value.
    requested: Option<u64>,
    stream: u64,
    pool: String,
    /// Address and size of the segment, and whether it is expandable.
    segment: (u64, u64, bool),
}

type Blocks = BTreeMap<u64, Known>;

/// Returns all differences between `reading` and `truth`. The process must have been idle between the two.
pub fn differences(truth: &Truth, reading: &Reading) -> Vec<String> {
    let mut found = Vec::new();
    note(&mut found, "schema", &1, &reading.schema);
    note(&mut found, "pid", &truth.pid, &reading.pid);
    note(&mut found, "allocator", &"native", &reading.allocator.as_str());
    let mut ordinals: Vec<usize> = reading.devices.iter().map(|d| d.ordinal).collect();
    ordinals.dedup();
    note(&mut found, "devices told of, each once", &ordinals.len(), &reading.devices.len());
    for (ordinal, stats) in truth.devices.iter().enumerate() {
        let Some(device) = reading.devices.iter().find(|d| d.ordinal == ordinal) else {
            // A device that the process has never used may be missing.
            if stats.segment[0][1] > 0 || stats.num_ooms > 0 {
                found.push(format!("device {ordinal} is missing"));
            }
            continue;
        };
        let mut here = Vec::new();
        note(&mut here, "exact", &true, &device.exact);
        compare_stats(&mut here, stats, &device.stats);
        let segments = truth.segments.iter().filter(|s| s.device == ordinal);
        compare_blocks(&mut here, true_blocks(segments), read_blocks(device));
        compare_free(&mut here, device);
        found.extend(here.into_iter().map(|what| format!("device {ordinal}: {what}")));
    }
    found
}

fn note<T: PartialEq + Debug>(found: &mut Vec<String>, what: &str, truth: &T, read: &T) {
    if truth != read {
        found.push(format!("{what}: PyTorch {truth:?}, gputop {read:?}"));
    }
}

fn compare_stats(found: &mut Vec<String>, truth: &DeviceStats, read: &Stats) {
    let both = |array: &StatArray| Stat { current: array[0][0], peak: array[0][1] };
    for (what, truth, read) in [
        ("allocated_bytes", &truth.allocated_bytes, &read.allocated_bytes),
        ("reserved_bytes", &truth.reserved_bytes, &read.reserved_bytes),
        ("active_bytes", &truth.active_bytes, &read.active_bytes),
        ("inactive_split_bytes", &truth.inactive_split_bytes, &read.inactive_split_bytes),
        ("segments", &truth.segment, &read.segments),
    ] {
        note(found, what, &both(truth), read);
    }
    let requested = truth.requested_bytes.as_ref().map(both);
    note(found, "requested_bytes", &requested, &read.requested_bytes);
    note(found, "num_alloc_retries", &truth.num_alloc_retries, &read.num_alloc_retries);
    note(found, "num_ooms", &truth.num_ooms, &read.num_ooms);
}

fn true_blocks<'a>(segments: impl Iterator<Item = &'a TrueSegment>) -> Blocks {
    let mut blocks = Blocks::new();
    for segment in segments {
        let mut address = segment.address;
        let pool = match (segment.private, segment.large) {
            (true, _) => "private",
            (false, true) => "large",
            (false, false) => "small",
        };
        for &(size, requested, allocated, active) in &segment.blocks {
            let state = match (allocated, active) {
                (true, _) => "allocated",
                (false, true) => "active",
                (false, false) => "free",
            };
            blocks.insert(
                address,
                Known {
                    size,
                    state: state.to_owned(),
                    requested: (allocated && requested > 0).then_some(requested),
                    stream: segment.stream,
                    pool: pool.to_owned(),
                    segment: (segment.address, segment.size, segment.expandable),
                },
            );
            address += size;
        }
    }
    blocks
}

fn read_blocks(device: &Device) -> Blocks {
    let mut blocks = Blocks::new();
    for segment in device.segments() {
        for block in &segment.blocks {
            if block.state == "unmapped" {
                continue;
            }
            blocks.insert(
                block.address,
                Known {
                    size: block.size,
                    state: block.state.clone(),
                    requested: block.requested,
                    stream: segment.stream,
                    pool: segment.pool.clone(),
                    segment: (segment.address, segment.size, segment.expandable),
                },
            );
        }
    }
    blocks
}

fn compare_blocks(found: &mut Vec<String>, truth: Blocks, read: Blocks) {
    let (mut missing, mut invented, mut different) = (Vec::new(), Vec::new(), Vec::new());
    for (address, known) in &truth {
        match read.get(address) {
            None => missing.push(format!("{address:#x} {known:?}")),
            Some(other) if other != known => {
                different.push(format!("{address:#x}: PyTorch {known:?}, gputop {other:?}"));
            }
            Some(_) => {}
        }
    }
    for (address, known) in &read {
        if !truth.contains_key(address) {
            invented.push(format!("{address:#x} {known:?}"));
        }
    }
    for (what, list) in [("missing", missing), ("invented", invented), ("different", different)] {
        if let Some(first) = list.first() {
            found.push(format!(
                "{} of {} blocks {what}, the first {first}",
                list.len(),
                truth.len()
            ));
        }
    }
}

/// Checks that values derived from the blocks agree with them.
fn compare_free(found: &mut Vec<String>, device: &Device) {
    // Exclude private pools: only their own graphs can use their blocks.
    let shared = device.segments().iter().filter(|s| s.pool != "private");
    let shared = shared.flat_map(|segment| &segment.blocks);
    let largest = shared.filter(|b| b.state == "free").map(|b| b.size).max();
    note(
        found,
        "largest_free_block",
        &largest.unwrap_or(0),
        // The value may be missing if nothing is free.
        &device.largest_free_block.unwrap_or(0),
    );
    let free: Vec<u64> = blocks_in(device, "free").map(|b| b.1).collect();
    let bars = |f: fn(&crate::reader::Bar) -> u64| device.free_histogram.iter().map(f).sum::<u64>();
    note(found, "free_histogram count", &(free.len() as u64), &bars(|bar| bar.count));
    note(found, "free_histogram bytes", &free.iter().sum::<u64>(), &bars(|bar| bar.bytes));
}

/// Returns (address, size, requested) of the blocks in a state.
pub fn blocks_in<'a>(
    device: &'a Device,
    state: &'a str,
) -> impl Iterator<Item = (u64, u64, Option<u64>)> + 'a {
    device
        .segments()
        .iter()
        .flat_map(|segment| &segment.blocks)
        .filter(move |block| block.state == state)
        .map(|block| (block.address, block.size, block.requested))
}

/// Returns violations of the invariants of an exact map, which hold whatever the process does during the read.
pub fn map_violations(device: &Device) -> Vec<String> {
    let mut found = Vec::new();
    let sum = |state| blocks_in(device, state).map(|b| b.1 as i64).sum::<i64>();
    let (allocated, active, free) = (sum("allocated"), sum("active"), sum("free"));
    note(&mut found, "Σ allocated", &device.stats.allocated_bytes.current, &allocated);
    note(&mut found, "Σ active", &device.stats.active_bytes.current, &(allocated + active));
    note(
        &mut found,
        "Σ mapped",
        &device.stats.reserved_bytes.current,
        &(allocated + active + free),
    );
    let mut end = 0;
    for segment in device.segments() {
        if segment.address < end {
            found.push(format!("segment {:#x} begins inside another", segment.address));
        }
        end = segment.address + segment.size;
        found.extend(gap(segment));
    }
    found
}

fn gap(segment: &Segment) -> Option<String> {
    let mut next = segment.address;
    for block in &segment.blocks {
        if block.address != next {
            return Some(format!("hole before the block {:#x}", block.address));
        }
        next += block.size;
    }
    (next != segment.address + segment.size)
        .then(|| format!("segment {:#x} does not end with its last block", segment.address))
}

/// Returns violations of the invariants of statistics, which hold at any time.
pub fn invalid_stats(stats: &Stats) -> Vec<String> {
    let mut found = Vec::new();
    let all = [
        ("allocated_bytes", Some(stats.allocated_bytes)),
        ("reserved_bytes", Some(stats.reserved_bytes)),
        ("active_bytes", Some(stats.active_bytes)),
        ("inactive_split_bytes", Some(stats.inactive_split_bytes)),
        ("requested_bytes", stats.requested_bytes),
        ("segments", Some(stats.segments)),
    ];
    for (what, stat) in all {
        if let Some(Stat { current, peak }) = stat
            && (current < 0 || current > peak)
        {
            found.push(format!("{what}: {current} now, {peak} at most"));
        }
    }
    let (allocated, active, reserved) =
        (stats.allocated_bytes.current, stats.active_bytes.current, stats.reserved_bytes.current);
    if !(allocated <= active && active <= reserved) {
        found.push(format!("allocated {allocated}, active {active}, reserved {reserved}"));
    }
    found
}
