//! `c10d::nccl2::ProcessGroupNCCL`: the default of torch 2.15, and in 2.14 with `TORCH_DIST_USE_NCCL2=1`.
//!
//! ```text
//! group ─► {…, store, bootstrap generation, number of calls, …, works: unordered_map<stream, deque<work>>, …}
//! work  ─► WorkNCCL::State {group, …, 40 time of the call, 48 timeout, …, 80 number}
//! ```
//!
//! It has no names of operations. Torch 2.14 queues another type of works, which are not read.

use std::ops::RangeInclusive;

use gputop_model::process_group::{MAX_PENDING, PendingWork, ProcessGroup, Work};
use gputop_model::{Reading, Reason};

use super::classes::AddressSpace;
use super::copies::{Copies, Parsed, Stop};
use super::identity::{Fields, Identity, Parts, is_referenced};
use super::status::MAX_SEQ;
use super::works::{is_start, is_timeout};
use crate::clock::Instants;
use crate::memory::view::View;
use crate::memory::{Range, is_pointer};

/// Number of bytes of a group that are read, up to its options.
const OBJECT_BYTES: usize = 704;
const UNKNOWN_LAYOUT: Stop = Stop::Refused("the process group has an unknown layout");
const FIELDS_START: usize = 16;
/// Distance of the number of calls behind the pointer to the store.
const CALLS_BEHIND_STORE: usize = 16;
const MAX_GENERATION: u64 = 1 << 20;
/// Distances at which the queues of works can be behind the number of calls.
const QUEUES_BEHIND_CALLS: RangeInclusive<usize> = 8..=320;
/// A hash table's default load factor of 1.0, as the bits of an f32.
const LOAD_FACTOR: u32 = 0x3f80_0000;
const MAX_BUCKETS: u64 = 1 << 20;
/// Maximum number of streams with works, and of works in their queues.
const MAX_STREAMS: u64 = 64;
const MAX_WORKS: usize = 1_024;
/// Size of a node of the hash table: next node, stream, and a `std::deque`.
const NODE_BYTES: usize = 16 + 80;
/// Size of a queued work: two shared pointers. A block of the deque has 16.
const ENTRY_BYTES: u64 = 32;
const BLOCK_BYTES: u64 = 512;
const STATE_BYTES: usize = 88;

#[derive(Debug, Clone, PartialEq)]
pub struct Nccl2 {
    vtable: u64,
    pub address: u64,
    pub identity: Identity,
    /// Copy of the fields that the identity was read from.
    fields: Vec<u8>,
    /// Offset of the number of calls.
    calls: usize,
    /// Offsets of the hash tables, one of which has the queues.
    tables: Vec<usize>,
}

impl Nccl2 {
    /// Recognizes a group of the process.
    pub fn find(space: &AddressSpace, copies: &Copies, vtable: u64, address: u64) -> Parsed<Self> {
        let object = object(copies, address, vtable)?;
        let parts = Parts::find(space, copies, object)?;
        let (store, _) = parts.store.ok_or(UNKNOWN_LAYOUT)?;
        parts.options.ok_or(UNKNOWN_LAYOUT)?;
        let generation = object.word(store + 8).ok_or(UNKNOWN_LAYOUT)?;
        let calls = store + CALLS_BEHIND_STORE;
        if generation > MAX_GENERATION || count(object, calls).is_none() {
            return Err(UNKNOWN_LAYOUT);
        }
        let (first, last) = QUEUES_BEHIND_CALLS.into_inner();
        let tables: Vec<usize> = (calls + first..=calls + last)
            .step_by(8)
            .filter(|offset| Table::parse(object, *offset).is_some())
            .collect();
        if tables.is_empty() {
            return Err(UNKNOWN_LAYOUT);
        }
        let fields = Fields::newer(object);
        let identity = Identity::read(space, copies, (address, object), &fields, &parts)?;
        let copied = object.0.get(FIELDS_START..fields.end()).unwrap_or_default().to_owned();
        Ok(Self { vtable, address, identity, fields: copied, calls, tables })
    }

    /// Returns the range whose copies must be equal in two consecutive reads.
    pub fn range(&self) -> Range {
        Range { address: self.address, len: OBJECT_BYTES }
    }

    pub fn read(&self, copies: &Copies, now: Instants) -> Parsed<ProcessGroup> {
        let object = object(copies, self.address, self.vtable)?;
        let end = FIELDS_START + self.fields.len();
        if object.0.get(FIELDS_START..end) != Some(&self.fields[..]) {
            return Err(Stop::Replaced);
        }
        let called = count(object, self.calls)
            .ok_or(Stop::Refused("the process group has impossible counters"))?;
        let pending = match self.pending(copies, object, called, now) {
            Err(Stop::Needs) => return Err(Stop::Needs),
            Err(_) => Reading::missing(
                Reason::Unsupported,
                "the queues of works of this torch release have an unknown layout",
            ),
            Ok(pending) => pending.into(),
        };
        let called_p2p = Reading::missing(
            Reason::Unsupported,
            "PyTorch's nccl2 process groups do not count point-to-point operations",
        );
        Ok(ProcessGroup { called: called.into(), called_p2p, pending, ..self.identity.group() })
    }

    /// Returns the queued works, oldest first.
    fn pending(
        &self,
        copies: &Copies,
        object: View<'_>,
        called: u64,
        now: Instants,
    ) -> Parsed<Vec<PendingWork>> {
        let mut works = Vec::new();
        for offset in &self.tables {
            let table = Table::parse(object, *offset).ok_or(UNKNOWN_LAYOUT)?;
            for state in table.states(copies)? {
                works.push(self.work(copies, state, called, now));
            }
        }
        let mut works: Vec<PendingWork> = works.into_iter().collect::<Parsed<_>>()?;
        works.sort_by_key(|pending| (pending.called_ns, pending.work.seq));
        works.truncate(MAX_PENDING);
        Ok(works)
    }

    fn work(&self, copies: &Copies, state: u64, called: u64, now: Instants) -> Parsed<PendingWork> {
        let view = copies.get(state, STATE_BYTES)?;
        let start = view.word(40).filter(|start| is_start(*start, now));
        // A point-to-point operation has the number of the last collective.
        let seq = view.word(80).filter(|seq| (0..=called).contains(seq));
        let is_of_group = view.word(0) == Some(self.address);
        match start.zip(seq) {
            Some((start, seq)) if is_of_group && view.word(48).is_some_and(is_timeout) => {
                let work = Work { seq, ..Work::default() };
                Ok(PendingWork { work, called_ns: now.boot_ns_of(start) })
            }
            _ => Err(UNKNOWN_LAYOUT),
        }
    }
}

/// Returns a copy of a group, if it is still one.
fn object(copies: &Copies, address: u64, vtable: u64) -> Parsed<View<'_>> {
    let object = copies.get(address, OBJECT_BYTES)?;
    if object.word(0) != Some(vtable) || !is_referenced(object.int(8)) {
        return Err(Stop::Replaced);
    }
    Ok(object)
}

fn count(object: View<'_>, offset: usize) -> Option<u64> {
    object.word(offset).filter(|count| *count <= MAX_SEQ.unsigned_abs())
}

/// The header of a `std::unordered_map`: buckets 0, their number 8, first node 16, number of elements 24, load factor 32.
#[derive(Debug, Clone, Copy)]
struct Table {
    first: u64,
    len: u64,
}

impl Table {
    fn parse(object: View<'_>, offset: usize) -> Option<Self> {
        let (buckets, bucket_count) = (object.word(offset)?, object.word(offset + 8)?);
        let (first, len) = (object.word(offset + 16)?, object.word(offset + 24)?);
        let is_table = is_pointer(buckets)
            && (1..=MAX_BUCKETS).contains(&bucket_count)
            && len <= bucket_count
            && (len > 0) == is_pointer(first)
            && object.int(offset + 32)? == LOAD_FACTOR;
        is_table.then_some(Self { first, len })
    }

    /// Returns the addresses of the works in all queues.
    fn states(self, copies: &Copies) -> Parsed<Vec<u64>> {
        if self.len > MAX_STREAMS {
            return Err(UNKNOWN_LAYOUT);
        }
        let (mut node, mut states) = (self.first, Vec::new());
        for _ in 0..self.len {
            let view = copies.get(node, NODE_BYTES)?;
            let queue = view.from(16).ok_or(UNKNOWN_LAYOUT)?;
            queued_states(copies, queue, &mut states)?;
            node = view.word(0).ok_or(UNKNOWN_LAYOUT)?;
        }
        Ok(states)
    }
}

/// Adds the addresses of the works in a `std::deque`: `{blocks, their number, begin, end}`, where an iterator is
/// `{current, first, last, block}`.
fn queued_states(copies: &Copies, queue: View<'_>, states: &mut Vec<u64>) -> Parsed<()> {
    let word = |index: usize| queue.word(index * 8).ok_or(UNKNOWN_LAYOUT);
    let (mut current, mut last, mut block, end) = (word(2)?, word(4)?, word(5)?, word(6)?);
    while current != end {
        let stop = if (current..last).contains(&end) { end } else { last };
        let len = stop.checked_sub(current).filter(|len| (1..=BLOCK_BYTES).contains(len));
        let len = len.filter(|_| states.len() < MAX_WORKS).ok_or(UNKNOWN_LAYOUT)?;
        let entries = copies.get(current, usize::try_from(len).unwrap_or_default())?;
        states.extend(entries.words().step_by(ENTRY_BYTES as usize / 8));
        current = stop;
        if current == last && current != end {
            block = block.wrapping_add(8);
            current = copies.word(block)?;
            last = current.wrapping_add(BLOCK_BYTES);
        }
    }
    Ok(())
}
