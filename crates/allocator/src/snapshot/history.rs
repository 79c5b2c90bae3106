//! Memory history of a device, computed from its trace: allocated and reserved bytes after each event, memory held by
//! each stack at a given time, and how each stack's memory changed between two times.
//!
//! A time is expressed as a number of events: 0 is before the first event of the trace, `events.len()` after the last.
//! The trace contains only the latest events, so everything is calculated backwards from the map, which describes the
//! state after the last event.

use gputop_model::{BlockState, Bytes};

use super::addresses::ByAddress;
use super::device::Device;
use super::record::{StackId, TraceAction, TraceEvent};

/// Number of events in a chunk: small enough to process event by event, large enough to skip through a trace quickly.
const CHUNK: usize = 4096;

/// Memory history, computed once per trace. Takes 4 bytes per event.
#[derive(Debug, Default)]
pub struct TraceHistory {
    /// For each `free_requested` event, the stack that allocated the block; 0 if the allocation precedes the trace.
    allocated_by: Vec<StackId>,
    chunks: Vec<EventChunk>,
    /// Requested bytes and number of blocks that each stack holds at the end of the trace, indexed by stack.
    live: Vec<Amount>,
}

#[derive(Debug, Clone, Copy)]
struct EventChunk {
    /// Allocated and reserved bytes before the chunk's first event.
    start: MemoryLevel,
    span: EventSpan,
}

/// Allocated and reserved bytes at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct MemoryLevel {
    allocated: i64,
    reserved: i64,
}

/// Memory statistics over a range of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EventSpan {
    /// Minimum and maximum of the total requested bytes in live blocks.
    pub allocated: (Bytes, Bytes),
    /// Maximum reserved bytes.
    pub reserved: Bytes,
    pub ooms: u32,
}

/// Number of blocks and their requested bytes; negative for a decrease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amount {
    pub bytes: i64,
    pub blocks: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByStack {
    /// The stack; 0 for memory without a known stack.
    pub stack: StackId,
    pub amount: Amount,
}

impl TraceHistory {
    pub fn of(device: &Device) -> Self {
        let (allocated_by, live_stacks) = pair(&device.events);
        let mut live = Vec::new();
        for held in &device.held {
            if held.state == BlockState::Allocated {
                // Fall back to the event's stack, because the program may have recorded stacks only for events.
                let stack = Some(held.stack).filter(|&stack| stack > 0);
                let stack = stack.or_else(|| live_stacks.get(&held.address).copied()).unwrap_or(0);
                add(&mut live, stack, signed(held.requested.0), 1);
            }
        }
        Self { chunks: chunks(device), allocated_by, live }
    }

    /// Returns memory statistics over the events `from..to`, or the values at `from` if the range is empty.
    pub fn span(&self, device: &Device, from: usize, to: usize) -> EventSpan {
        let events = &device.events;
        let (from, to) = (from.min(events.len()), to.min(events.len()).max(from));
        let Some(mut level) = self.level(device, from) else { return EventSpan::default() };
        let mut span = EventSpan::at(level);
        let mut at = from;
        while at < to {
            let chunk = self.chunks.get(at / CHUNK);
            if let Some(chunk) = chunk.filter(|_| at.is_multiple_of(CHUNK) && at + CHUNK <= to) {
                span.join(chunk.span);
                at += CHUNK;
                match self.chunks.get(at / CHUNK) {
                    Some(next) => level = next.start,
                    None => break,
                }
                continue;
            }
            level.take(&events[at]);
            span.join(EventSpan::at(level));
            span.ooms += u32::from(events[at].action == TraceAction::Oom);
            at += 1;
        }
        span
    }

    fn level(&self, device: &Device, time: usize) -> Option<MemoryLevel> {
        let at = (time / CHUNK).min(self.chunks.len().checked_sub(1)?);
        let mut level = self.chunks[at].start;
        for event in &device.events[at * CHUNK..time] {
            level.take(event);
        }
        Some(level)
    }

    /// Returns the earliest time at which allocated memory is at its maximum.
    pub fn peak(&self, device: &Device) -> usize {
        let max = |chunk: &EventChunk| chunk.span.allocated.1;
        let Some(max) = self.chunks.iter().map(max).max() else { return 0 };
        let from = self.chunks.iter().position(|c| c.span.allocated.1 == max).unwrap_or(0) * CHUNK;
        let Some(mut level) = self.level(device, from) else { return 0 };
        if bytes(level.allocated) == max {
            return from;
        }
        for (n, event) in (from + 1..).zip(&device.events[from..]) {
            level.take(event);
            if bytes(level.allocated) == max {
                return n;
            }
        }
        from
    }

    /// Returns the memory held by each stack at the given time, in descending order.
    pub fn live_at(&self, device: &Device, time: usize) -> Vec<ByStack> {
        let mut live = self.live.clone();
        for by in self.net(device, time, device.events.len()) {
            add(&mut live, by.stack, -by.amount.bytes, -by.amount.blocks);
        }
        let mut list = listed(&live);
        // Drop negative amounts, which occur if events are missing from the trace.
        list.retain(|by| by.amount.bytes > 0);
        list.sort_by_key(|by| std::cmp::Reverse(by.amount.bytes));
        list
    }

    /// Returns by how much the memory of each stack increased between `from` and `to`, in descending order. Decreases
    /// are negative.
    pub fn growth(&self, device: &Device, from: usize, to: usize) -> Vec<ByStack> {
        let mut list = self.net(device, from, to);
        list.sort_by_key(|by| std::cmp::Reverse(by.amount.bytes));
        list
    }

    fn net(&self, device: &Device, from: usize, to: usize) -> Vec<ByStack> {
        let mut net = Vec::new();
        let to = to.min(device.events.len());
        for at in from.min(to)..to {
            let event = &device.events[at];
            match event.action {
                TraceAction::Alloc => add(&mut net, event.stack, signed(event.size), 1),
                TraceAction::FreeRequested => {
                    let stack = self.allocated_by.get(at).copied().unwrap_or(0);
                    add(&mut net, stack, -signed(event.size), -1);
                }
                _ => {}
            }
        }
        listed(&net)
    }
}

/// Returns the allocation stack for each free event, and a map from address to allocation stack for the blocks live
/// after the last event.
fn pair(events: &[TraceEvent]) -> (Vec<StackId>, ByAddress<StackId>) {
    let mut allocated_by = vec![0; events.len()];
    let mut live = ByAddress::<StackId>::default();
    for (stack, event) in allocated_by.iter_mut().zip(events) {
        match event.action {
            TraceAction::Alloc => drop(live.insert(event.addr, event.stack)),
            TraceAction::FreeRequested => *stack = live.remove(&event.addr).unwrap_or(0),
            _ => {}
        }
    }
    (allocated_by, live)
}

fn chunks(device: &Device) -> Vec<EventChunk> {
    let events = &device.events;
    let mut all = MemoryLevel::default();
    events.iter().for_each(|event| all.take(event));
    let mut level = MemoryLevel {
        allocated: signed(device.requested().0).saturating_sub(all.allocated),
        reserved: signed(device.reserved().0).saturating_sub(all.reserved),
    };
    let mut chunks = Vec::with_capacity(events.len().div_ceil(CHUNK));
    for part in events.chunks(CHUNK) {
        let mut chunk = EventChunk { start: level, span: EventSpan::at(level) };
        for event in part {
            level.take(event);
            chunk.span.join(EventSpan::at(level));
            chunk.span.ooms += u32::from(event.action == TraceAction::Oom);
        }
        chunks.push(chunk);
    }
    chunks
}

impl MemoryLevel {
    #[inline]
    fn take(&mut self, event: &TraceEvent) {
        let size = signed(event.size);
        match event.action {
            TraceAction::Alloc => self.allocated = self.allocated.saturating_add(size),
            TraceAction::FreeRequested => self.allocated = self.allocated.saturating_sub(size),
            TraceAction::SegmentAlloc | TraceAction::SegmentMap => {
                self.reserved = self.reserved.saturating_add(size);
            }
            TraceAction::SegmentFree | TraceAction::SegmentUnmap => {
                self.reserved = self.reserved.saturating_sub(size);
            }
            _ => {}
        }
    }
}

impl EventSpan {
    #[inline]
    fn at(level: MemoryLevel) -> Self {
        let allocated = bytes(level.allocated);
        Self { allocated: (allocated, allocated), reserved: bytes(level.reserved), ooms: 0 }
    }

    #[inline]
    fn join(&mut self, other: Self) {
        self.allocated.0 = self.allocated.0.min(other.allocated.0);
        self.allocated.1 = self.allocated.1.max(other.allocated.1);
        self.reserved = self.reserved.max(other.reserved);
        self.ooms = self.ooms.saturating_add(other.ooms);
    }
}

#[inline]
fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[inline]
fn bytes(signed: i64) -> Bytes {
    Bytes(u64::try_from(signed).unwrap_or(0))
}

fn add(amounts: &mut Vec<Amount>, stack: StackId, bytes: i64, blocks: i64) {
    let at = stack as usize;
    if amounts.len() <= at {
        amounts.resize(at + 1, Amount::default());
    }
    let amount = &mut amounts[at];
    amount.bytes = amount.bytes.saturating_add(bytes);
    amount.blocks = amount.blocks.saturating_add(blocks);
}

fn listed(amounts: &[Amount]) -> Vec<ByStack> {
    let some = (0..).zip(amounts).filter(|(_, amount)| **amount != Amount::default());
    some.map(|(stack, &amount)| ByStack { stack, amount }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::record::TraceEvent;
    use proptest::prelude::*;

    fn device(actions: &[(TraceAction, u64, u64, StackId)]) -> Device {
        let event = |&(action, addr, size, stack): &(TraceAction, u64, u64, StackId)| TraceEvent {
            action,
            addr,
            size,
            stack,
            ..TraceEvent::default()
        };
        Device { events: actions.iter().map(event).collect(), ..Device::default() }
    }

    #[test]
    fn growth_counts_allocations_that_were_not_freed() {
        let device = device(&[
            (TraceAction::Alloc, 1, 100, 1),
            (TraceAction::Alloc, 2, 50, 2),
            (TraceAction::FreeRequested, 1, 100, 7),
            (TraceAction::FreeRequested, 9, 30, 7),
            (TraceAction::Alloc, 1, 10, 2),
        ]);
        let history = TraceHistory::of(&device);
        let grown: Vec<_> = history
            .growth(&device, 0, 5)
            .iter()
            .map(|by| (by.stack, by.amount.bytes, by.amount.blocks))
            .collect();
        // A block freed without an allocation in the trace was allocated before the trace began.
        assert_eq!(grown, [(2, 60, 2), (0, -30, -1)]);
        let shrunk = history.growth(&device, 1, 4);
        let of_first = shrunk.iter().find(|by| by.stack == 1);
        assert_eq!(of_first.map(|by| by.amount.bytes), Some(-100));
    }

    proptest! {
        #[test]
        fn chunks_give_the_same_result_as_walking(
            sizes in prop::collection::vec((0..1_000_u64, any::<bool>()), 0..15_000),
            cuts in (0..15_000_usize, 0..15_000_usize),
        ) {
            let mut now = 0;
            let mut actions = Vec::new();
            for &(size, is_free) in &sizes {
                let is_free = is_free && size <= now;
                now = if is_free { now - size } else { now + size };
                let action = if is_free { TraceAction::FreeRequested } else { TraceAction::Alloc };
                actions.push((action, 1, size, 0));
            }
            let mut device = device(&actions);
            device.held.push(crate::snapshot::Held {
                address: 1,
                size: Bytes(now),
                requested: Bytes(now),
                state: BlockState::Allocated,
                stack: 0,
                lane: crate::snapshot::Lane::default(),
            });
            let history = TraceHistory::of(&device);
            let mut levels = vec![0];
            for &(action, _, size, _) in &actions {
                let last = levels[levels.len() - 1];
                levels.push(if action == TraceAction::Alloc { last + size } else { last - size });
            }
            let (from, to) = (cuts.0.min(cuts.1).min(sizes.len()), cuts.0.max(cuts.1).min(sizes.len()));
            let span = history.span(&device, from, to);
            let walked = &levels[from..=to];
            if !sizes.is_empty() {
                prop_assert_eq!(Some(&span.allocated.0.0), walked.iter().min());
                prop_assert_eq!(Some(&span.allocated.1.0), walked.iter().max());
                let peak = history.peak(&device);
                prop_assert_eq!(Some(&levels[peak]), levels.iter().max());
            }
        }
    }
}
