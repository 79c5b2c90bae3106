//! Runs a pattern of requests under a policy, in an arena of bounded size, and tells what free blocks it ends with.
//!
//! A policy hands out addresses and takes them back; at the end it lays out what it holds as segments of blocks, the
//! same shape as the map of a process, so that one function judges both
//! ([`Fragmentation`](crate::allocator::fragmentation::Fragmentation)).

mod blocks;
mod driver;
mod expandable;
mod native;

use self::driver::{Plain, StreamOrdered};
use self::expandable::Expandable;
use self::native::Native;
use super::bins;
use super::device::{Device, DeviceError};
use super::pattern::Pattern;
use crate::allocator::fragmentation::Fragmentation;
use crate::model::pool::{PoolMap, Segment};
use crate::model::probe::{PatternRun, Policy};
use crate::model::units::Bytes;

/// An allocator on a device.
trait Allocator<D: Device> {
    fn take(&mut self, device: &mut D, size: u64) -> Result<u64, DeviceError>;
    fn give(&mut self, device: &mut D, address: u64);
    /// Held from the driver now.
    fn reserved(&self) -> u64;
    /// What it holds, block by block.
    fn segments(&mut self, device: &mut D) -> Vec<Segment>;
    /// Gives everything back to the driver, blocks that are still live too.
    fn close(&mut self, device: &mut D);
}

/// Runs a pattern until `deadline_us`.
pub fn run<D: Device>(
    device: &mut D,
    policy: Policy,
    pattern: &Pattern,
    arena: Bytes,
    deadline_us: u64,
) -> PatternRun {
    let begun = device.now_us();
    let mut run = PatternRun {
        policy,
        source: pattern.source.clone(),
        arena_bytes: arena,
        requests: pattern.requests.len() as u64,
        ..PatternRun::default()
    };
    let allocator: Result<Box<dyn Allocator<D>>, DeviceError> = match policy {
        Policy::Native => Ok(Box::new(Native::new(arena.0))),
        Policy::Expandable => {
            Expandable::open(device, arena.0).map(|it| Box::new(it) as Box<dyn Allocator<D>>)
        }
        Policy::Plain => Ok(Box::new(Plain::new(arena.0))),
        Policy::Pool => {
            StreamOrdered::open(device, arena.0).map(|it| Box::new(it) as Box<dyn Allocator<D>>)
        }
        Policy::Unknown => Err(DeviceError::Failed("this version does not know it".into())),
    };
    match allocator {
        Ok(mut allocator) => {
            let result = drive(device, &mut *allocator, pattern, deadline_us, &mut run);
            run.reserved_bytes = Bytes(allocator.reserved());
            judge(allocator.segments(device), &mut run);
            allocator.close(device);
            run.missing = result.err();
        }
        Err(error) => run.missing = Some(words(error)),
    }
    run.us = device.now_us().saturating_sub(begun);
    run
}

fn drive<D: Device>(
    device: &mut D,
    allocator: &mut dyn Allocator<D>,
    pattern: &Pattern,
    deadline_us: u64,
    run: &mut PatternRun,
) -> Result<(), String> {
    // When each ends, and where it is.
    let mut ends: Vec<(u64, u64)> = Vec::new();
    for (at, wanted) in (0_u64..).zip(&pattern.requests) {
        if device.now_us() >= deadline_us {
            return Err("the time limit came first".into());
        }
        ends.retain(|&(end, address)| {
            if end == at {
                allocator.give(device, address);
            }
            end != at
        });
        run.requests_made += 1;
        match allocator.take(device, wanted.0) {
            Ok(address) if wanted.1 > 0 => ends.push((at + u64::from(wanted.1), address)),
            Ok(_) => {}
            Err(DeviceError::OutOfMemory) => run.failures += 1,
            Err(error) => return Err(words(error)),
        }
        run.reserved_peak_bytes = run.reserved_peak_bytes.max(Bytes(allocator.reserved()));
    }
    Ok(())
}

fn judge(segments: Vec<Segment>, run: &mut PatternRun) {
    let found = Fragmentation::of(&PoolMap {
        exact: true,
        segments,
        ..PoolMap::default()
    });
    run.allocated_bytes = found.allocated;
    run.free_bytes = found.free;
    run.largest_free_block = found.largest;
    run.external_fragmentation = found.external();
    run.free_histogram = bins(&found.histogram);
}

fn words(error: DeviceError) -> String {
    match error {
        DeviceError::OutOfMemory => "the driver gave no memory for it".into(),
        DeviceError::Failed(why) => why,
    }
}
