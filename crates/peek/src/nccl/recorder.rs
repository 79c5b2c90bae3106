//! PyTorch's flight recorder: the last operations of all groups of a process, with their data types and times of call.
//!
//! It is on by default from torch 2.11 on. Its class has no vtable, so a search recognizes it by its fields:
//!
//! ```text
//! 0 enabled, 1 C++ stacks, 8 mutex, 48 entries: vector<Entry>, 72 maximum, 80 next place, 88 number of the next entry
//! 96 resets, 104 places after resets: unordered_map       (torch 2.11 and later)
//!
//! Entry: 0 number, 8 resets (torch 2.11 and later), then 8 local ID of the group, 16 description, 48 name, 80 number of
//!        the collective, 104 operation, 168 time of call, 184 is point-to-point, 280 types of the inputs: vector<byte>
//! ```
//!
//! The entries are a ring. Each has its own number, so an entry that is overwritten during a reading is refused.

use gputop_model::process_group::{ProcessGroup, RecordedCall, Work};

use super::copies::{Copies, Parsed, Stop};
use super::status::MAX_SEQ;
use super::strings::StringLayout;
use crate::memory::view::View;
use crate::memory::{Memory, is_pointer};
use crate::scalar_types::DTYPES;

/// Number of newest entries that are read besides those that are pending, and maximum of both. A running rank has about a
/// hundred pending works.
const MIN_ENTRIES: u64 = 64;
const MAX_ENTRIES: u64 = 512;
/// Bytes of the recorder that a search and a reading need.
const HEAD_BYTES: usize = 144;
/// Maximum capacity of a recorder. The default is 2,000.
const MAX_CAPACITY: u64 = 1 << 20;
/// A hash table's default load factor of 1.0, as the bits of an f32.
const LOAD_FACTOR: u64 = 0x3f80_0000;
/// Size of an entry, and of its field for the number of resets, in torch 2.11 and later, 2.8 to 2.10, and 2.7.
const ENTRIES: [(usize, usize); 3] = [(512, 8), (504, 0), (464, 0)];
/// Maximum number of tensors of an operation whose types are read.
const MAX_TENSORS: u64 = 4_096;
/// Possible times of a call, in nanoseconds since 1970: 2006 to 2116.
const TIMES: std::ops::Range<u64> = 1 << 60..1 << 62;
const REFUSED: Stop = Stop::Refused("the flight recorder has an unknown layout");

/// Returns true if a recorder may begin with this word: two flags, and padding.
pub fn may_begin_recorder(word: u64) -> bool {
    word & 0xfeff == 1
}

/// Returns true if the bytes begin with a recorder that is on.
pub fn is_recorder(bytes: &[u8]) -> bool {
    Head::parse(View(bytes)).is_some()
}

/// The fields of a recorder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    /// Address of the first entry.
    entries: u64,
    bytes: u64,
    capacity: u64,
    /// Place in the ring of the next entry, and its number.
    next: u64,
    number: u64,
}

impl Head {
    fn parse(view: View<'_>) -> Option<Self> {
        let word = |index: usize| view.word(8 * index);
        let (entries, end) = (word(6)?, word(7)?);
        let head = Self {
            entries,
            bytes: end.checked_sub(entries)?,
            capacity: word(9)?,
            next: word(10)?,
            number: word(11)?,
        };
        // The kind of the mutex, and its list, are 0.
        let has_mutex = (3..6).all(|index| word(index) == Some(0)) && word(1)? <= 2;
        let is_empty = head.number == 0 && entries == 0 && word(8)? == 0;
        // Nothing else identifies a recorder without entries.
        let has_table = is_pointer(word(13)?)
            && (1..=word(14)?).contains(&word(16)?)
            && word(17)? & 0xffff_ffff == LOAD_FACTOR;
        let is_used = is_pointer(entries) && head.len().is_some();
        let is_head = view.byte(0)? == 1
            && view.byte(1)? <= 1
            && has_mutex
            && (1..=MAX_CAPACITY).contains(&head.capacity)
            && head.next <= head.capacity
            && ((is_empty && has_table) || is_used);
        is_head.then_some(head)
    }

    /// Returns the number of entries, and the size and the field of resets of an entry. `None` if there is no entry.
    fn len(self) -> Option<(u64, (usize, usize))> {
        let len = self.number.min(self.capacity);
        let layout =
            ENTRIES.into_iter().find(|(size, _)| len.checked_mul(*size as u64) == Some(self.bytes));
        layout.filter(|_| len > 0).map(|layout| (len, layout))
    }
}

/// An operation in the recorder.
#[derive(Debug, Clone, Copy)]
struct Entry<'a> {
    view: View<'a>,
    address: u64,
    resets: usize,
    local_id: u64,
    seq: u64,
    called_ns: u64,
}

impl<'a> Entry<'a> {
    /// Returns `None` for a point-to-point operation.
    fn parse(view: View<'a>, address: u64, resets: usize, number: u64) -> Parsed<Option<Self>> {
        let word = |offset: usize| view.word(offset + resets).ok_or(REFUSED);
        let (local_id, seq, called_ns) = (word(8)?, word(80)?, word(168)?);
        let is_p2p = view.byte(184 + resets).filter(|flag| *flag <= 1).ok_or(REFUSED)? == 1;
        let is_valid = view.word(0) == Some(number)
            && seq <= MAX_SEQ.unsigned_abs()
            && TIMES.contains(&called_ns);
        let entry = Self { view, address, resets, local_id, seq, called_ns };
        if is_valid { Ok((!is_p2p).then_some(entry)) } else { Err(REFUSED) }
    }

    fn text(&self, copies: &Copies, offset: usize) -> Parsed<String> {
        StringLayout::New.read(copies, self.view, self.address, offset + self.resets)
    }

    /// Returns the type of the input tensors, or `None` if they have several or an unknown one.
    fn dtype(&self, copies: &Copies) -> Parsed<Option<&'static str>> {
        let word = |offset: usize| self.view.word(offset + self.resets).ok_or(REFUSED);
        let (types, end) = (word(280)?, word(288)?);
        let len = end.checked_sub(types).filter(|len| *len <= MAX_TENSORS).ok_or(REFUSED)?;
        if len == 0 {
            return Ok(None);
        }
        let types = copies.get(types, usize::try_from(len).unwrap_or_default())?.0;
        let first = types.first().filter(|first| types.iter().all(|other| other == *first));
        Ok(first.and_then(|dtype| DTYPES.get(usize::from(*dtype))).map(|dtype| dtype.name))
    }
}

/// Adds what the recorder at `address` has of groups with their local IDs. Changes no group if it is not a recorder, or
/// if it has another group under one of the IDs.
pub fn add_recorded(memory: &dyn Memory, address: u64, groups: &mut [(u64, &mut ProcessGroup)]) {
    let mut copies = Copies::default();
    let head = |copies: &Copies| {
        let head = copies.get(address, HEAD_BYTES)?;
        Head::parse(head).filter(|head| head.number > 0).ok_or(REFUSED)
    };
    let pending = groups.iter().filter_map(|(_, group)| {
        let oldest = group.pending.value()?.first()?.work.seq;
        Some(group.called.get()?.saturating_sub(oldest))
    });
    let wanted = pending.fold(MIN_ENTRIES, u64::saturating_add).min(MAX_ENTRIES);
    let read = |copies: &Copies| -> Parsed<(Head, Vec<Recorded>)> {
        let head = head(copies)?;
        let entries = entries(copies, head, wanted)?;
        // All groups ask for their ranges before the first one stops.
        let read = |(id, group): &(u64, &mut ProcessGroup)| of_group(copies, &entries, *id, group);
        let recorded: Vec<Parsed<Recorded>> = groups.iter().map(read).collect();
        Ok((head, recorded.into_iter().collect::<Parsed<_>>()?))
    };
    let found = copies.complete(memory, read);
    let Ok(Ok((first, recorded))) = found else { return };
    // A vector that grows moves its entries.
    let mut again = Copies::default();
    let second = again.complete(memory, head);
    if !second.is_ok_and(|second| second.is_ok_and(|second| second.entries == first.entries)) {
        return;
    }
    for ((_, group), (calls, dtypes)) in groups.iter_mut().zip(recorded) {
        for (seq, dtype) in dtypes {
            for work in works(group).filter(|work| work.seq == seq) {
                work.dtype = Some(dtype.to_owned());
            }
        }
        group.recorded = calls;
    }
}

/// Calls of a group, newest first, and the types of those that a reading shows.
type Recorded = (Vec<RecordedCall>, Vec<(u64, &'static str)>);

/// Returns the collectives among the newest entries, newest first.
fn entries(copies: &Copies, head: Head, wanted: u64) -> Parsed<Vec<Entry<'_>>> {
    let (len, (size, resets)) = head.len().ok_or(REFUSED)?;
    let newest = head.next.checked_add(len - 1).ok_or(REFUSED)? % len;
    let wanted = len.min(wanted);
    // The part of the ring that ends with the newest entry, and that at its end.
    let first = wanted.min(newest + 1);
    let parts = [(newest + 1 - first, first), (len - (wanted - first), wanted - first)];
    let copy = |(place, count): (u64, u64)| {
        let address = head.entries.wrapping_add(place * size as u64);
        let bytes = usize::try_from(count).unwrap_or_default() * size;
        (count > 0).then(|| copies.get(address, bytes).map(|view| (address, view))).transpose()
    };
    let copied = parts.map(copy);
    let mut number = head.number;
    let mut found = Vec::new();
    for part in copied {
        let Some((address, view)) = part? else { continue };
        for (place, entry) in view.0.chunks_exact(size).enumerate().rev() {
            number = number.checked_sub(1).ok_or(REFUSED)?;
            let address = address + (place * size) as u64;
            found.extend(Entry::parse(View(entry), address, resets, number)?);
        }
    }
    Ok(found)
}

fn of_group(
    copies: &Copies,
    entries: &[Entry<'_>],
    local_id: u64,
    group: &ProcessGroup,
) -> Parsed<Recorded> {
    let own = || entries.iter().filter(|entry| entry.local_id == local_id);
    let Some(newest) = own().next() else { return Ok(Recorded::default()) };
    let texts = (newest.text(copies, 48), newest.text(copies, 104));
    // Another recorder has the operations of Gloo.
    if texts.0? != group.name || !texts.1?.starts_with("nccl:") {
        return Err(REFUSED);
    }
    let calls = own().map(|entry| RecordedCall { seq: entry.seq, called_unix_ns: entry.called_ns });
    let mut seqs: Vec<u64> = shown(group).map(|work| work.seq).collect();
    seqs.sort_unstable();
    seqs.dedup();
    // The parts of a coalesced operation have the same number.
    let only = |seq: u64| {
        let mut entries = own().filter(|entry| entry.seq == seq);
        entries.next().filter(|_| entries.next().is_none())
    };
    let dtypes: Vec<_> =
        seqs.into_iter().filter_map(|seq| Some((seq, only(seq)?.dtype(copies)))).collect();
    let dtypes = dtypes.into_iter().map(|(seq, dtype)| Ok((seq, dtype?)));
    let dtypes: Vec<_> = dtypes.collect::<Parsed<_>>()?;
    let known = dtypes.into_iter().filter_map(|(seq, dtype)| Some((seq, dtype?)));
    Ok((calls.collect(), known.collect()))
}

/// Returns the collectives of a group. In a group with point-to-point operations, a number can mean either.
fn shown(group: &ProcessGroup) -> impl Iterator<Item = &Work> {
    let pending = group.pending.value().into_iter().flatten().map(|pending| &pending.work);
    let works = [&group.enqueued, &group.completed].into_iter().flatten().chain(pending);
    works.filter(|_| group.called_p2p.get() == Some(0))
}

fn works(group: &mut ProcessGroup) -> impl Iterator<Item = &mut Work> {
    let pending = match &mut group.pending {
        gputop_model::Reading::Value(pending) => &mut pending[..],
        gputop_model::Reading::Missing(_) => &mut [],
    };
    let pending = pending.iter_mut().map(|pending| &mut pending.work);
    [&mut group.enqueued, &mut group.completed].into_iter().flatten().chain(pending)
}
