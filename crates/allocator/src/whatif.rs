//! Replays an allocation trace under other settings: how much memory is reserved, and whether the requests fit.
//!
//! [`replay`] plays a [`Trace`] once per setting and records the peaks, the retries, the out-of-memory failures, and a
//! [`Curve`] with a bounded number of points. If a request succeeded in the recording but fails in the replay, the
//! replay stops, because it is unknown what the program would have done next. A request that also failed in the
//! recording ([`Op::Refused`]) is tried, and the replay continues with the recorded operations.

use gputop_model::units::Bytes;
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use super::model::{AllocationOutcome, Model};
use super::rules::Rules;
use super::trace::{Op, PoolId, RecordedAction, Trace};
use super::{GRANULE, MIN_BLOCK};

/// Memory available to the allocator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    pub card: Bytes,
    /// GPU memory used outside the allocator: the CUDA context, libraries, other programs.
    pub outside: Bytes,
}

impl Room {
    /// A memory size that is so large that no request fails.
    pub const UNLIMITED: Self = Self { card: Bytes(1 << 50), outside: Bytes(0) };

    fn available(self) -> Bytes {
        Bytes(self.card.0.saturating_sub(self.outside.0))
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WhatifResult {
    #[serde(rename = "peak_reserved_bytes")]
    pub peak_reserved: Bytes,
    #[serde(rename = "peak_allocated_bytes")]
    pub peak_allocated: Bytes,
    /// Reserved bytes that no live block used when reserved memory reached its peak.
    #[serde(rename = "cached_at_peak_bytes")]
    pub cached_at_peak: Bytes,
    pub num_alloc_retries: u64,
    pub num_ooms: u64,
    /// First failed request.
    pub oom: Option<Oom>,
    /// Last failed request. Several can fail, because a request that also failed in the recording does not end the
    /// replay.
    #[serde(skip)]
    pub last_oom: Option<Oom>,
    /// Number of operations executed: all operations, or those up to the failure that stopped the replay.
    #[serde(rename = "operations_played")]
    pub played: usize,
    #[serde(skip)]
    pub end: Model,
    pub curve: Curve,
}

/// Request that failed in a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Oom {
    /// Number of the operation, counted from 1; 0 for a block that existed before the first operation.
    pub operation: usize,
    #[serde(rename = "requested_bytes")]
    pub requested: Bytes,
    /// True if this request also failed in the recording.
    pub recorded: bool,
}

impl WhatifResult {
    pub fn fits(&self) -> bool {
        self.oom.is_none()
    }

    /// Returns the memory in live tensors when reserved memory peaks. The peak of live tensors may be at another time.
    pub fn allocated_at_peak(&self) -> Bytes {
        Bytes(self.peak_reserved.0.saturating_sub(self.cached_at_peak.0))
    }
}

pub fn replay(trace: &Trace, rules: &Rules, room: Room) -> WhatifResult {
    let mut model = Model::new(rules.clone(), room.card, room.available());
    let mut curve = Curve::new(trace.ops.len());
    let (mut oom, mut last_oom) = (None, None);
    for live in &trace.start {
        let outcome = model.alloc(live.block, live.requested, live.stream, live.pool);
        if outcome == AllocationOutcome::OutOfMemory {
            oom = Some(Oom { operation: 0, requested: live.requested, recorded: false });
            last_oom = oom;
            break;
        }
    }
    let mut cached_at_peak = cached(&model);
    let mut peak = model.stats().reserved.peak;
    let mut played = 0;
    let start_failed = oom.is_some();
    for (at, op) in trace.ops.iter().enumerate() {
        if start_failed {
            break;
        }
        played = at + 1;
        if model.play(op) == Some(AllocationOutcome::OutOfMemory) {
            let failed = failed(op, played);
            oom = oom.or(failed);
            last_oom = failed;
            if failed.is_none_or(|oom| !oom.recorded) {
                break;
            }
        }
        let stats = model.stats();
        if stats.reserved.peak > peak {
            peak = stats.reserved.peak;
            cached_at_peak = cached(&model);
        }
        curve.note(at, stats.allocated.current, stats.reserved.current);
    }
    let stats = *model.stats();
    WhatifResult {
        peak_reserved: Bytes(stats.reserved.peak),
        peak_allocated: Bytes(stats.allocated.peak),
        cached_at_peak,
        num_alloc_retries: stats.num_alloc_retries,
        num_ooms: stats.num_ooms,
        oom,
        last_oom,
        played,
        end: model,
        curve,
    }
}

fn cached(model: &Model) -> Bytes {
    let stats = model.stats();
    Bytes(stats.reserved.current.saturating_sub(stats.allocated.current))
}

fn failed(op: &Op, operation: usize) -> Option<Oom> {
    match *op {
        Op::Alloc { requested, .. } => Some(Oom { operation, requested, recorded: false }),
        Op::Refused { requested, .. } => Some(Oom { operation, requested, recorded: true }),
        _ => None,
    }
}

/// Returns the largest request on the default stream that succeeds at the end of a replay.
pub fn largest_fit(model: &Model) -> Bytes {
    let (mut fits, mut fails) = (0, model.stats().reserved.current + model.driver_free().0 + 1);
    // First search in steps of a driver page (2 MiB), then in steps of the minimum block size.
    for step in [GRANULE.0, MIN_BLOCK.0] {
        fails = fails.div_ceil(step) * step;
        while fails - fits > step {
            let middle = (fits + (fails - fits) / 2) / step * step;
            let size = middle.max(fits + step);
            if succeeds(model, Bytes(size)) {
                fits = size;
            } else {
                fails = size;
            }
        }
    }
    Bytes(fits)
}

/// Returns true if one more request would succeed at the end of a replay.
pub fn succeeds(model: &Model, requested: Bytes) -> bool {
    let mut model = model.clone();
    let refused = Op::Refused { requested, stream: 0, pool: PoolId::SHARED, driver_free: None };
    matches!(model.play(&refused), Some(AllocationOutcome::Address(_)))
}

/// Maximum number of bytes by which a segment can exceed the request for which it is allocated.
const MAX_OVERHEAD: u64 = 20 << 20;

/// Returns the total memory available to the allocator: its reserved memory plus the memory that the driver reported as
/// free at the last failure. If the driver had enough free memory, a memory fraction caused the failure, and the result
/// is at least the peak of reserved memory. `None` if no request failed.
pub fn available(trace: &Trace) -> Option<Bytes> {
    let end = trace.recorded.reserved_end?.0;
    let (mut reserved, mut peak, mut room) = (end, end, None);
    for op in trace.ops.iter().rev() {
        match *op {
            Op::Recorded(RecordedAction::Reserved(size)) => {
                reserved = reserved.saturating_sub(size.0);
            }
            Op::Recorded(RecordedAction::Returned(size)) => {
                reserved = reserved.saturating_add(size.0);
            }
            Op::Refused { requested, driver_free: Some(free), .. } if room.is_none() => {
                let is_forbidden = free.0 >= requested.0.saturating_add(MAX_OVERHEAD);
                room = Some((!is_forbidden).then(|| reserved.saturating_add(free.0)));
            }
            _ => {}
        }
        peak = peak.max(reserved);
    }
    let peak = trace.recorded.reserved_peak.map_or(peak, |recorded| recorded.0.max(peak));
    room.map(|driver| Bytes(driver.unwrap_or(peak)))
}

const MAX_POINTS: usize = 512;

/// Maximum allocated and reserved memory in each of several equally long sections of a trace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Curve {
    /// Number of trace operations per point of the curve.
    pub each: usize,
    pub points: Vec<Point>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Point {
    pub allocated: Bytes,
    pub reserved: Bytes,
}

impl Serialize for Curve {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let column = |of: fn(&Point) -> Bytes| self.points.iter().map(of).collect::<Vec<_>>();
        let mut curve = to.serialize_struct("Curve", 3)?;
        curve.serialize_field("operations_each", &self.each)?;
        curve.serialize_field("allocated_bytes", &column(|point| point.allocated))?;
        curve.serialize_field("reserved_bytes", &column(|point| point.reserved))?;
        curve.end()
    }
}

impl Curve {
    fn new(operations: usize) -> Self {
        Self { each: operations.div_ceil(MAX_POINTS).max(1), points: Vec::new() }
    }

    fn note(&mut self, at: usize, allocated: u64, reserved: u64) {
        let index = at / self.each;
        if self.points.len() <= index {
            self.points.resize(index + 1, Point::default());
        }
        let point = &mut self.points[index];
        point.allocated = point.allocated.max(Bytes(allocated));
        point.reserved = point.reserved.max(Bytes(reserved));
    }
}

#[cfg(test)]
mod tests;
