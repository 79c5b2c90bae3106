//! Converts a device's events to a [`Trace`] for what-if replays.

use gputop_model::{BlockState, Bytes};

use super::device::Device;
use super::record::{TraceAction, TraceEvent};
use super::{Snapshot, addresses::ByAddress};
use crate::trace::{Live, Op, Recorded, RecordedAction, Trace};

impl Snapshot {
    /// Returns the allocation trace of one device, including the blocks that existed before its first event.
    pub fn trace(&self, device: &Device) -> Trace {
        let mut ops = Vec::with_capacity(device.events.len());
        for event in &device.events {
            ops.extend(self.op(event));
        }
        let reserved = Reserved::by(&device.events);
        // If memory was already reserved before the first event, the trace does not cover the program's start.
        let cut = i128::from(device.reserved().0) != reserved.now;
        let peak = u64::try_from(reserved.peak).ok().map(Bytes);
        Trace {
            device: device.ordinal,
            start: self.start(device),
            ops,
            cut,
            recorded: Recorded {
                conf: self.conf().map(str::to_owned),
                reserved_peak: peak.filter(|_| !cut),
                reserved_end: Some(device.reserved()),
                ..Recorded::default()
            },
        }
    }

    fn op(&self, event: &TraceEvent) -> Option<Op> {
        let (block, size) = (event.addr, Bytes(event.size));
        let lane = self.lane(event);
        Some(match event.action {
            TraceAction::Alloc => {
                Op::Alloc { block, requested: size, stream: lane.stream, pool: lane.pool }
            }
            TraceAction::FreeRequested => Op::Free { block },
            TraceAction::FreeCompleted => Op::FreeCompleted { block },
            TraceAction::SegmentAlloc | TraceAction::SegmentMap => {
                Op::Recorded(RecordedAction::Reserved(size))
            }
            TraceAction::SegmentFree | TraceAction::SegmentUnmap => {
                Op::Recorded(RecordedAction::Returned(size))
            }
            TraceAction::Oom => Op::Refused {
                requested: size,
                stream: lane.stream,
                pool: lane.pool,
                driver_free: Some(Bytes(event.addr)),
            },
            TraceAction::Snapshot | TraceAction::UserDefined | TraceAction::Unknown => return None,
        })
    }

    /// Returns the blocks that were live before the first event. These are all live or freed blocks for which the trace
    /// contains no allocation.
    fn start(&self, device: &Device) -> Vec<Live> {
        // Maps each allocated address to true if it is live after the events so far.
        let mut made: ByAddress<bool> = ByAddress::default();
        let mut start: Vec<Live> = Vec::new();
        for event in &device.events {
            match event.action {
                TraceAction::Alloc => drop(made.insert(event.addr, true)),
                TraceAction::FreeRequested if made.insert(event.addr, false) != Some(true) => {
                    let lane = self.lane(event);
                    start.push(Live {
                        block: event.addr,
                        requested: Bytes(event.size),
                        stream: lane.stream,
                        pool: lane.pool,
                    });
                }
                _ => {}
            }
        }
        let live = device.held.iter().filter(|held| held.state == BlockState::Allocated);
        start.extend(live.filter(|held| !made.contains_key(&held.address)).map(|held| Live {
            block: held.address,
            requested: held.requested,
            stream: held.lane.stream,
            pool: held.lane.pool,
        }));
        start.sort_by_key(|live| live.block);
        start.dedup_by_key(|live| live.block);
        start
    }
}

/// Reserved bytes during a trace, relative to the start of the trace.
#[derive(Default)]
struct Reserved {
    now: i128,
    peak: i128,
}

impl Reserved {
    fn by(events: &[TraceEvent]) -> Self {
        let mut reserved = Self::default();
        for event in events {
            match event.action {
                TraceAction::SegmentAlloc | TraceAction::SegmentMap => {
                    reserved.now += i128::from(event.size);
                }
                TraceAction::SegmentFree | TraceAction::SegmentUnmap => {
                    reserved.now -= i128::from(event.size);
                }
                _ => {}
            }
            reserved.peak = reserved.peak.max(reserved.now);
        }
        reserved
    }
}
