//! What a device's trace tells: how much was allocated and reserved after each of its events, and which stacks hold
//! what at a moment, or hold more at one moment than at another.
//!
//! A moment is a number of events: at 0 nothing of the trace has happened, at `events.len()` all of it. The trace is
//! the end of what happened, so everything is counted back from the map, which is known.

use super::addresses::ByAddress;
use super::device::Device;
use super::record::{Action, Event, StackId};
use crate::model::pool::BlockState;
use crate::model::units::Bytes;

/// Events that are summed up together: few enough to walk, many enough to skip.
const CHUNK: usize = 4096;

/// Everything that is computed of a trace once: 4 bytes an event.
#[derive(Debug, Default)]
pub struct History {
    /// Of each `free_requested` the stack that had asked for the block; 0 where that was before the trace.
    makers: Vec<StackId>,
    chunks: Vec<Chunk>,
    /// What each stack holds at the end, by its number: bytes asked for, and blocks.
    live: Vec<Amount>,
}

#[derive(Debug, Clone, Copy)]
struct Chunk {
    /// Before its first event.
    start: Level,
    span: Span,
}

/// Bytes at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Level {
    allocated: i64,
    reserved: i64,
}

/// Bytes over a stretch of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    /// The least and the greatest that was asked for and not yet let go.
    pub allocated: (Bytes, Bytes),
    /// The greatest.
    pub reserved: Bytes,
    /// Requests that failed.
    pub ooms: u32,
}

/// Blocks, and the bytes they were asked for with; below 0 where something shrank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amount {
    pub bytes: i64,
    pub blocks: i64,
}

/// What a stack holds, or holds more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByStack {
    /// 0 is all of which no stack is known.
    pub stack: StackId,
    pub amount: Amount,
}

impl History {
    pub fn of(device: &Device) -> Self {
        let (makers, left) = pair(&device.events);
        let mut live = Vec::new();
        for held in &device.held {
            if held.state == BlockState::Allocated {
                // A program that recorded only events has its stacks there.
                let maker = || left.get(&held.address).copied();
                let stack = Some(held.stack).filter(|&stack| stack > 0);
                let stack = stack.or_else(maker).unwrap_or(0);
                add(&mut live, stack, signed(held.requested.0), 1);
            }
        }
        Self {
            chunks: chunks(device),
            makers,
            live,
        }
    }

    /// Over the events `from..to`; with no events in it, at that moment.
    pub fn span(&self, device: &Device, from: usize, to: usize) -> Span {
        let events = &device.events;
        let (from, to) = (from.min(events.len()), to.min(events.len()).max(from));
        let Some(mut level) = self.level(device, from) else {
            return Span::default();
        };
        let mut span = Span::at(level);
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
            span.join(Span::at(level));
            span.ooms += u32::from(events[at].action == Action::Oom);
            at += 1;
        }
        span
    }

    fn level(&self, device: &Device, moment: usize) -> Option<Level> {
        let at = (moment / CHUNK).min(self.chunks.len().checked_sub(1)?);
        let mut level = self.chunks[at].start;
        for event in &device.events[at * CHUNK..moment] {
            level.take(event);
        }
        Some(level)
    }

    /// The moment at which most was allocated; the first of several.
    pub fn peak(&self, device: &Device) -> usize {
        let most = |chunk: &Chunk| chunk.span.allocated.1;
        let Some(most) = self.chunks.iter().map(most).max() else {
            return 0;
        };
        let at = self.chunks.iter().position(|c| c.span.allocated.1 == most);
        let from = at.unwrap_or(0) * CHUNK;
        let Some(mut level) = self.level(device, from) else {
            return 0;
        };
        if bytes(level.allocated) == most {
            return from;
        }
        for (n, event) in (from + 1..).zip(&device.events[from..]) {
            level.take(event);
            if bytes(level.allocated) == most {
                return n;
            }
        }
        from
    }

    /// What each stack held at a moment, the most first.
    pub fn live_at(&self, device: &Device, moment: usize) -> Vec<ByStack> {
        let mut live = self.live.clone();
        for by in self.net(device, moment, device.events.len()) {
            add(&mut live, by.stack, -by.amount.bytes, -by.amount.blocks);
        }
        let mut list = listed(&live);
        // Of events that were lost in between: nothing holds less than nothing.
        list.retain(|by| by.amount.bytes > 0);
        list.sort_by_key(|by| std::cmp::Reverse(by.amount.bytes));
        list
    }

    /// What each stack holds more at `to` than at `from`, the most first; what it holds less is below 0.
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
                Action::Alloc => add(&mut net, event.stack, signed(event.size), 1),
                Action::FreeRequested => {
                    let maker = self.makers.get(at).copied().unwrap_or(0);
                    add(&mut net, maker, -signed(event.size), -1);
                }
                _ => {}
            }
        }
        listed(&net)
    }
}

/// Who had asked for what each event lets go; and who for what is live at the end, by address.
fn pair(events: &[Event]) -> (Vec<StackId>, ByAddress<StackId>) {
    let mut makers = vec![0; events.len()];
    let mut live = ByAddress::<StackId>::default();
    for (maker, event) in makers.iter_mut().zip(events) {
        match event.action {
            Action::Alloc => drop(live.insert(event.addr, event.stack)),
            Action::FreeRequested => *maker = live.remove(&event.addr).unwrap_or(0),
            _ => {}
        }
    }
    (makers, live)
}

fn chunks(device: &Device) -> Vec<Chunk> {
    let events = &device.events;
    let mut all = Level::default();
    events.iter().for_each(|event| all.take(event));
    let mut level = Level {
        allocated: signed(device.requested().0).saturating_sub(all.allocated),
        reserved: signed(device.reserved().0).saturating_sub(all.reserved),
    };
    let mut chunks = Vec::with_capacity(events.len().div_ceil(CHUNK));
    for part in events.chunks(CHUNK) {
        let mut chunk = Chunk {
            start: level,
            span: Span::at(level),
        };
        for event in part {
            level.take(event);
            chunk.span.join(Span::at(level));
            chunk.span.ooms += u32::from(event.action == Action::Oom);
        }
        chunks.push(chunk);
    }
    chunks
}

impl Level {
    #[inline]
    fn take(&mut self, event: &Event) {
        let size = signed(event.size);
        match event.action {
            Action::Alloc => self.allocated = self.allocated.saturating_add(size),
            Action::FreeRequested => self.allocated = self.allocated.saturating_sub(size),
            Action::SegmentAlloc | Action::SegmentMap => {
                self.reserved = self.reserved.saturating_add(size);
            }
            Action::SegmentFree | Action::SegmentUnmap => {
                self.reserved = self.reserved.saturating_sub(size);
            }
            _ => {}
        }
    }
}

impl Span {
    #[inline]
    fn at(level: Level) -> Self {
        let allocated = bytes(level.allocated);
        Self {
            allocated: (allocated, allocated),
            reserved: bytes(level.reserved),
            ooms: 0,
        }
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
    let all = (0..).zip(amounts);
    let some = all.filter(|(_, amount)| **amount != Amount::default());
    some.map(|(stack, &amount)| ByStack { stack, amount })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::record::Event;
    use proptest::prelude::*;

    fn device(actions: &[(Action, u64, u64, StackId)]) -> Device {
        let event = |&(action, addr, size, stack): &(Action, u64, u64, StackId)| Event {
            action,
            addr,
            size,
            stack,
            ..Event::default()
        };
        Device {
            events: actions.iter().map(event).collect(),
            ..Device::default()
        }
    }

    #[test]
    fn what_grew_is_what_was_allocated_and_not_let_go() {
        let device = device(&[
            (Action::Alloc, 1, 100, 1),
            (Action::Alloc, 2, 50, 2),
            (Action::FreeRequested, 1, 100, 7),
            (Action::FreeRequested, 9, 30, 7),
            (Action::Alloc, 1, 10, 2),
        ]);
        let history = History::of(&device);
        let grown: Vec<_> = history
            .growth(&device, 0, 5)
            .iter()
            .map(|by| (by.stack, by.amount.bytes, by.amount.blocks))
            .collect();
        // What was let go without having been allocated here was there before.
        assert_eq!(grown, [(2, 60, 2), (0, -30, -1)]);
        let shrunk = history.growth(&device, 1, 4);
        let of_first = shrunk.iter().find(|by| by.stack == 1);
        assert_eq!(of_first.map(|by| by.amount.bytes), Some(-100));
    }

    proptest! {
        #[test]
        fn chunks_tell_the_same_as_walking(
            sizes in prop::collection::vec((0..1_000_u64, any::<bool>()), 0..15_000),
            cuts in (0..15_000_usize, 0..15_000_usize),
        ) {
            let mut now = 0;
            let mut actions = Vec::new();
            for &(size, is_free) in &sizes {
                let is_free = is_free && size <= now;
                now = if is_free { now - size } else { now + size };
                let action = if is_free { Action::FreeRequested } else { Action::Alloc };
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
            let history = History::of(&device);
            let mut levels = vec![0];
            for &(action, _, size, _) in &actions {
                let last = levels[levels.len() - 1];
                levels.push(if action == Action::Alloc { last + size } else { last - size });
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
