//! The numbers of calls of a group, and where they are in torch 2.4 and later.
//!
//! ```text
//! seqCollective_, seqP2P_, op_id_, [an exception pointer up to 2.7,] local_id_, logPrefix_, … pgStatus_
//! ```
//!
//! Their distance to the status differs by release. An unused group alone fits several distances, because its numbers are
//! 0: in torch 2.14, local_id_ is where torch 2.13 has a counter. So all groups of a process decide together, and only
//! if a single distance fits. In a program with its heap at low addresses, such as Ubuntu's Python, a pointer can pass for
//! a counter too.

use std::collections::HashSet;
use std::ops::RangeInclusive;

use super::status::MAX_SEQ;
use crate::memory::view::View;

/// Distance of the counters to the status, and the offset of the local ID in them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Distance {
    before_status: usize,
    local_id: usize,
}

impl Distance {
    /// The distance in torch 2.4 to 2.6.
    pub const OLDEST: Self = Self { before_status: 64, local_id: 32 };
    /// The distances of torch 2.8 to 2.13, 2.14 and later, 2.4 to 2.6, and 2.7.
    const ALL: [Self; 4] = [
        Self { before_status: 80, local_id: 24 },
        Self { before_status: 104, local_id: 24 },
        Self::OLDEST,
        Self { before_status: 88, local_id: 32 },
    ];
}

/// Maximum number of groups that a process creates.
const MAX_LOCAL_ID: u64 = 1 << 16;
/// No object has a lower address.
const MIN_ADDRESS: u64 = 1 << 16;
/// Number of operations by which a coalesced call may lag behind.
const MAX_LAG: u64 = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counters {
    pub called: u64,
    pub called_p2p: u64,
    /// Number of the group among those that the process created.
    pub local_id: u64,
}

impl Counters {
    /// Returns the numbers that a work can have. Up to torch 2.5, a point-to-point operation has the number of the last
    /// collective, which may be 0.
    pub fn seqs(self) -> RangeInclusive<u64> {
        let first = u64::from(self.called_p2p == 0);
        first..=self.called.max(self.called_p2p)
    }
}

/// A group whose counters are searched.
#[derive(Debug, Clone, Copy)]
pub struct Sample<'a> {
    pub object: View<'a>,
    /// Offset of the status in the object.
    pub status: usize,
    /// Number of the newest enqueued work, or 0.
    pub enqueued: u64,
}

impl Sample<'_> {
    /// Returns the counters, or `None` if the words cannot be counters.
    pub fn counters(self, distance: Distance) -> Option<Counters> {
        let at = self.status.checked_sub(distance.before_status)?;
        let word = |offset| self.object.word(at + offset);
        let (called, called_p2p, operations) = (word(0)?, word(8)?, word(16)?);
        let local_id = word(distance.local_id)?;
        let is_count = |count: u64| count <= MAX_SEQ.unsigned_abs();
        let exception = (distance.local_id > 24).then(|| word(24)).flatten().unwrap_or(0);
        let is_valid = (exception == 0 || exception >= MIN_ADDRESS)
            && [called, called_p2p, operations].into_iter().all(is_count)
            && local_id <= MAX_LOCAL_ID
            && called + called_p2p <= operations + MAX_LAG
            && called.max(called_p2p) >= self.enqueued;
        is_valid.then_some(Counters { called, called_p2p, local_id })
    }
}

/// Returns the distance that fits all groups of a process, or `None` if several or none fit.
pub fn find_distance(groups: &[Sample<'_>]) -> Option<Distance> {
    let mut fitting = Distance::ALL.into_iter().filter_map(|distance| {
        let counters = fitting_counters(groups, distance)?;
        Some((distance, counters))
    });
    let (distance, counters) = fitting.next()?;
    let is_used = counters.iter().any(|group| group.called.max(group.called_p2p) > 0);
    (fitting.next().is_none() && (is_used || groups.len() > 1)).then_some(distance)
}

/// Returns the counters of all groups, if they can be at this distance.
fn fitting_counters(groups: &[Sample<'_>], distance: Distance) -> Option<Vec<Counters>> {
    let counters: Option<Vec<Counters>> =
        groups.iter().map(|group| group.counters(distance)).collect();
    let counters = counters?;
    let local_ids: HashSet<u64> = counters.iter().map(|group| group.local_id).collect();
    (local_ids.len() == groups.len()).then_some(counters)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Offset of the status in the words below.
    const STATUS: usize = 80;

    /// Returns the words before the status of torch 2.8 to 2.13. The text of `logPrefix_` is in a heap at low addresses.
    fn words(called: u64, local_id: u64, log_prefix: u64) -> Vec<u8> {
        let text = 0x2a3b_4c50 + local_id * 64;
        let words = [called, 0, called, local_id, text, log_prefix, log_prefix, 0, 0, 8, 0, 0];
        words.into_iter().flat_map(u64::to_le_bytes).collect()
    }

    fn sample((words, enqueued): &(Vec<u8>, u64)) -> Sample<'_> {
        Sample { object: View(words), status: STATUS, enqueued: *enqueued }
    }

    #[test]
    fn the_length_of_a_text_on_a_low_heap_is_no_counter() {
        let groups = [(words(100, 0, 47), 100), (words(99, 1, 40), 99), (words(0, 2, 42), 0)];
        let samples: Vec<_> = groups.iter().map(sample).collect();
        assert_eq!(find_distance(&samples), Some(Distance { before_status: 80, local_id: 24 }));
    }
}
