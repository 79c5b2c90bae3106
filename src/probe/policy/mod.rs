//! Runs a pattern of requests under an allocation policy, in an arena of limited size, and reports the resulting free
//! blocks.
//!
//! A policy allocates and frees addresses. At the end of a run, it describes its memory as segments of blocks, like a
//! process's map, so that one function ([`Fragmentation`](gputop_allocator::fragmentation::Fragmentation)) evaluates
//! both.

mod allocator;
mod driver;
mod torch;

use gputop_allocator::fragmentation::Fragmentation;
use gputop_model::probe::PatternResult;
use gputop_model::{Bytes, Policy, PoolMap, Segment};

use self::allocator::ProbeAllocator;
use self::driver::DriverBlocks;
use self::torch::Torch;
use super::bins;
use super::device::{Device, DeviceError};
use super::pattern::AllocationPattern;

pub fn run<D: Device>(
    device: &mut D,
    policy: Policy,
    pattern: &AllocationPattern,
    arena: Bytes,
    deadline_us: u64,
) -> PatternResult {
    let start = device.now_us();
    let mut run = PatternResult {
        policy,
        source: pattern.source.clone(),
        arena_bytes: arena,
        requests: pattern.requests.len() as u64,
        ..PatternResult::default()
    };
    match open(device, policy, arena.0) {
        Ok(mut allocator) => {
            let result = run_requests(&mut *allocator, pattern, deadline_us, &mut run);
            run.reserved_bytes = Bytes(allocator.reserved());
            record_result(allocator.segments(), &mut run);
            allocator.close();
            run.missing = result.err();
        }
        Err(error) => run.missing = Some(describe(error)),
    }
    run.us = device.now_us().saturating_sub(start);
    run
}

fn open<D: Device>(
    device: &mut D,
    policy: Policy,
    arena: u64,
) -> Result<Box<dyn ProbeAllocator<D> + '_>, DeviceError> {
    Ok(match policy {
        Policy::Native => Box::new(Torch::new(device, arena, false)),
        Policy::Expandable => Box::new(Torch::new(device, arena, true)),
        Policy::Plain => Box::new(DriverBlocks::plain(device, arena)),
        Policy::Pool => Box::new(DriverBlocks::stream_ordered(device, arena)?),
        Policy::Unknown => return Err(DeviceError::Failed("unknown policy".into())),
    })
}

fn run_requests<D: Device>(
    allocator: &mut dyn ProbeAllocator<D>,
    pattern: &AllocationPattern,
    deadline_us: u64,
    run: &mut PatternResult,
) -> Result<(), String> {
    // Time and address of each pending free. Time is counted in requests.
    let mut expiring: Vec<(u64, u64)> = Vec::new();
    for (at, wanted) in (0_u64..).zip(&pattern.requests) {
        if allocator.device().now_us() >= deadline_us {
            return Err("time limit reached".into());
        }
        expiring.retain(|&(end, address)| {
            if end == at {
                allocator.give(address);
            }
            end != at
        });
        run.requests_made += 1;
        match allocator.take(wanted.0) {
            Ok(address) if wanted.1 > 0 => expiring.push((at + u64::from(wanted.1), address)),
            Ok(_) => {}
            Err(DeviceError::OutOfMemory) => run.failures += 1,
            Err(error) => return Err(describe(error)),
        }
        run.reserved_peak_bytes = run.reserved_peak_bytes.max(Bytes(allocator.reserved()));
    }
    Ok(())
}

fn record_result(segments: Vec<Segment>, run: &mut PatternResult) {
    let found = Fragmentation::of(&PoolMap { exact: true, segments, ..PoolMap::default() });
    run.allocated_bytes = found.allocated;
    run.free_bytes = found.free;
    run.largest_free_block = found.largest;
    run.external_fragmentation = found.external();
    run.free_histogram = bins(&found.histogram);
}

fn describe(error: DeviceError) -> String {
    match error {
        DeviceError::OutOfMemory => "the driver is out of memory".into(),
        DeviceError::Failed(why) => why,
    }
}
