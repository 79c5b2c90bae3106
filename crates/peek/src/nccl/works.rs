//! The works of a group that PyTorch's watchdog has not seen completed: `std::list<WorkNCCL>`, oldest first.
//!
//! A node is `{next, previous, WorkNCCL}`, and the list is its own last node. In a WorkNCCL, the timeouts in milliseconds,
//! the time of the call and the number of the work follow each other. Where they are depends on the release.

use std::ops::RangeInclusive;

use gputop_model::process_group::{MAX_PENDING, PendingWork, Work};

use super::copies::{Copies, Parsed, Stop};
use crate::clock::Instants;
use crate::memory::is_pointer;
use crate::memory::view::View;

/// Names of `c10d::OpType`, which only ever grew at its end.
const OPERATIONS: &[&str] = &[
    "BROADCAST",
    "ALLREDUCE",
    "ALLREDUCE_COALESCED",
    "REDUCE",
    "ALLGATHER",
    "_ALLGATHER_BASE",
    "ALLGATHER_COALESCED",
    "GATHER",
    "SCATTER",
    "REDUCE_SCATTER",
    "ALLTOALL_BASE",
    "ALLTOALL",
    "SEND",
    "RECV",
    "RECVANYSOURCE",
    "BARRIER",
    "_REDUCE_SCATTER_BASE",
    "COALESCED",
    "_ALLREDUCE_SPARSE",
];

/// Size of the pointers of a node, before its WorkNCCL.
pub const LINKS: usize = 16;
/// Number of bytes of a node that are read.
pub const NODE_BYTES: usize = LINKS + 368;
/// Offsets of the time of the call in torch 2.7 and later, 2.6, and 2.5.
const KNOWN_STARTS: [usize; 3] = [320, 272, 280];
/// First and last offset that is tried in an unknown release.
const POSSIBLE_STARTS: (usize, usize) = (240, 328);
/// Maximum timeout of a work in milliseconds: 139 years. Pointers are larger.
const MAX_TIMEOUT: u64 = 1 << 42;
/// Minimum time of a call on the clock, which starts with the system. Smaller numbers count something else.
const MIN_START: u64 = 1 << 32;
const MAX_ELEMENTS: u64 = 1 << 50;
const NOT_LINKED: Stop = Stop::Refused("the list of pending works is not linked");
const REFUSED: Stop = Stop::Refused("a pending work of the process group has an unknown layout");

/// Returns true if a text can be the name of an operation. A group without works has an empty one.
pub fn is_operation(name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || "_ ".contains(c);
    name.len() <= 64 && name.chars().all(is_part)
}

/// Maximum time between a reading's start and its copies, in nanoseconds.
const MAX_DELAY: u64 = 1_000_000_000;
/// Age in nanoseconds below which no rank waits for a work: half of the shortest wait that is reported. The works behind a
/// younger one are not read: a running rank has about a hundred, all of them new at each reading, and each takes a system
/// call of its own. In a large job, the host may be some seconds ahead of the GPU.
const MIN_AGE: u64 = 5_000_000_000;

/// Returns true if a work can have been called at this time of the monotonic clock.
pub fn is_start(start: u64, now: Instants) -> bool {
    (MIN_START..=now.monotonic_ns.saturating_add(MAX_DELAY)).contains(&start)
}

pub fn is_timeout(milliseconds: u64) -> bool {
    (1..=MAX_TIMEOUT).contains(&milliseconds)
}

/// Where a list of works is, and the layout of its works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkList {
    /// Address of the list, which is inside the group.
    pub head: u64,
    /// Vtable of WorkNCCL.
    pub vtable: u64,
    /// Offset of the operation in a WorkNCCL. The rank is before it.
    pub operation: usize,
    /// Offset of the time of the call, if the release has a known one.
    pub start: Option<usize>,
}

/// What a pending work must agree with.
#[derive(Debug, Clone)]
pub struct Expected {
    pub rank: u32,
    /// Possible numbers of a work of this group.
    pub seqs: RangeInclusive<u64>,
    pub now: Instants,
}

impl WorkList {
    /// Returns the oldest pending works, up to the first young one, and the addresses of their nodes. `list` is a copy of
    /// the list's two pointers.
    pub fn read(
        self,
        copies: &Copies,
        list: View<'_>,
        expected: &Expected,
    ) -> Parsed<(Vec<PendingWork>, Vec<u64>)> {
        let mut node = list.word(0).ok_or(REFUSED)?;
        let (mut previous, mut works, mut nodes) = (self.head, Vec::new(), Vec::new());
        let mut start = self.start;
        let mut is_young = false;
        while node != self.head && nodes.len() < MAX_PENDING && !is_young {
            if !is_pointer(node) {
                return Err(REFUSED);
            }
            let view = copies.get(node, NODE_BYTES)?;
            if view.word(8) != Some(previous) || view.word(LINKS) != Some(self.vtable) {
                return Err(NOT_LINKED);
            }
            let work = view.from(LINKS).ok_or(REFUSED)?;
            let place = match start {
                Some(place) => place,
                None => find_start(work, expected)?,
            };
            // All works have the same layout.
            start = Some(place);
            let called = work.word(place).unwrap_or_default();
            is_young = expected.now.monotonic_ns.saturating_sub(called) < MIN_AGE;
            works.push(self.work(work, place, expected)?);
            nodes.push(node);
            previous = node;
            node = view.word(0).ok_or(REFUSED)?;
        }
        // The copies of the nodes may be older than that of the list.
        if node == self.head && list.word(8) != Some(previous) {
            return Err(NOT_LINKED);
        }
        Ok((works, nodes))
    }

    fn work(self, work: View<'_>, start: usize, expected: &Expected) -> Parsed<PendingWork> {
        let is_of_rank = work.int(self.operation - 4) == Some(expected.rank);
        let operation = work.byte(self.operation).ok_or(REFUSED)?;
        let called = work.word(start).ok_or(REFUSED)?;
        let elements = work.word(start + 24).zip(work.word(start + 32));
        let has_elements = elements.is_some_and(|(a, b)| a.max(b) <= MAX_ELEMENTS);
        if !is_of_rank || !has_elements || !has_start_at(work, start, expected) {
            return Err(REFUSED);
        }
        let operation = OPERATIONS.get(usize::from(operation)).copied().unwrap_or_default();
        Ok(PendingWork {
            work: Work {
                seq: work.word(start + 8).ok_or(REFUSED)?,
                operation: operation.to_owned(),
                elements,
                dtype: None,
            },
            called_ns: expected.now.boot_ns_of(called),
        })
    }
}

/// Returns the offset at which a work has the time of its call. A pointer may look like a time of a host that has been up for
/// days, so the offsets of known releases have priority.
fn find_start(work: View<'_>, expected: &Expected) -> Parsed<usize> {
    let (first, last) = POSSIBLE_STARTS;
    let fits = |at: &usize| has_start_at(work, *at, expected);
    let known: Vec<usize> = KNOWN_STARTS.into_iter().filter(fits).collect();
    let possible = (first..=last).step_by(8).filter(fits);
    let places = if known.is_empty() { possible.collect() } else { known };
    match places[..] {
        [place] => Ok(place),
        _ => Err(REFUSED),
    }
}

fn has_start_at(work: View<'_>, at: usize, expected: &Expected) -> bool {
    // From torch 2.5 on, a second timeout is before the time. It is usually 0.
    let timeouts = work.word(at - 16).zip(work.word(at - 8));
    timeouts.is_some_and(|(a, b)| is_timeout(b) || (b == 0 && is_timeout(a)))
        && work.word(at).is_some_and(|start| is_start(start, expected.now))
        && work.word(at + 8).is_some_and(|seq| expected.seqs.contains(&seq))
}
