//! `c10d::ProcessGroupNCCL`, the class of all process groups up to torch 2.14, and in 2.15 with `TORCH_DIST_USE_NCCL2=0`.
//!
//! From torch 2.5 on, the class names of the objects that a group points to show where everything is. Torch 2.1 to 2.4 have
//! no such object, so [`OLD`] has their offsets. Their options are at different offsets, which tells them apart.

use std::mem;
use std::ops::RangeInclusive;

use gputop_model::process_group::{ProcessGroup, Work};
use gputop_model::{Reading, Reason};

use super::classes::{AddressSpace, STATUS, WORK};
use super::copies::{Copies, Parsed, Stop};
use super::counters::{Counters, Distance, Sample};
use super::identity::{Fields, Identity, OBJECT_BYTES, Parts, is_referenced};
use super::status::{MAX_SEQ, Status, StatusPlace};
use super::strings::StringLayout;
use super::works::{Expected, WorkList};
use crate::clock::Instants;
use crate::memory::Range;
use crate::memory::view::View;

const UNKNOWN_LAYOUT: Stop = Stop::Refused("the process group has an unknown layout");
/// Size of the part of a `std::shared_ptr`'s control block before its object: vtable and two reference counts.
const CONTROL_BYTES: u64 = 16;
/// Offset of the operation in a WorkNCCL of torch 2.3 and later.
const OPERATION: usize = 124;

/// Offsets in a release whose objects do not show them.
struct OldLayout {
    options: usize,
    fields: Fields,
    works: usize,
    operation: usize,
    start: usize,
    counters: OldCounters,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OldCounters {
    /// Offset of the number of calls.
    Calls(usize),
    /// Offset of the number of calls, and of the numbers of the newest enqueued and completed works. These two are
    /// uninitialized until they are used.
    WithNumbers(usize, usize),
    /// Offset of the status, which is part of the group.
    Status(usize),
}

const fn old_fields(rank: usize, name: Option<usize>, description: Option<usize>) -> Fields {
    Fields { rank, name, description, strings: StringLayout::Old }
}

/// Torch 2.1, 2.2, 2.3 and 2.4, from the headers of the wheels.
const OLD: [OldLayout; 4] = [
    OldLayout {
        options: 152,
        fields: old_fields(88, None, None),
        works: 504,
        operation: 132,
        start: 304,
        counters: OldCounters::Calls(912),
    },
    OldLayout {
        options: 96,
        fields: old_fields(24, Some(40), None),
        works: 616,
        operation: 132,
        start: 304,
        counters: OldCounters::Calls(1024),
    },
    OldLayout {
        options: 112,
        fields: old_fields(16, Some(32), None),
        works: 600,
        operation: OPERATION,
        start: 256,
        counters: OldCounters::WithNumbers(1016, 1032),
    },
    OldLayout {
        options: 120,
        fields: old_fields(16, Some(32), Some(40)),
        works: 608,
        operation: OPERATION,
        start: 256,
        counters: OldCounters::Status(1056),
    },
];

/// Where the numbers of a group are.
#[derive(Debug, Clone, PartialEq)]
enum Numbers {
    /// The status is an object of its own. `offset` is that of the pointer to it, and `control` the vtable of its control
    /// block.
    Shared {
        offset: usize,
        place: StatusPlace,
        control: u64,
    },
    /// The status is at `offset` in the group.
    Embedded {
        offset: usize,
        place: StatusPlace,
    },
    Old(OldCounters),
}

impl Numbers {
    /// Returns the end of the numbers in the group. They are behind its other parts.
    fn end(&self) -> usize {
        match *self {
            Self::Shared { offset, .. } | Self::Old(OldCounters::WithNumbers(_, offset)) => {
                offset + 16
            }
            Self::Embedded { offset, .. } | Self::Old(OldCounters::Status(offset)) => offset,
            Self::Old(OldCounters::Calls(offset)) => offset + 8,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Legacy {
    vtable: u64,
    pub address: u64,
    pub identity: Identity,
    /// Copy of the fields that the identity was read from.
    fields: Vec<u8>,
    numbers: Numbers,
    works: WorkList,
    /// Number of bytes of the group that a reading needs.
    len: usize,
    /// Nodes of the pending works at the last reading, which the next one copies in advance.
    nodes: Vec<u64>,
}

/// Vtables of the classes of a group and of its works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vtables {
    pub group: u64,
    pub work: u64,
}

/// What a group holds at one time.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupReading {
    pub group: ProcessGroup,
    /// Number of the group among those that the process created, if it is known.
    pub local_id: Option<u64>,
    /// Nodes of the pending works.
    pub nodes: Vec<u64>,
}

impl GroupReading {
    /// Returns false if another try may read more.
    pub fn is_complete(&self) -> bool {
        self.group.pending.value().is_some() && self.group.called.value().is_some()
    }
}

/// Numbers of a group at one time.
struct Figures {
    called: Option<u64>,
    called_p2p: Option<u64>,
    local_id: Option<u64>,
    enqueued: Option<Work>,
    completed: Option<Work>,
    /// Numbers that a pending work can have.
    seqs: RangeInclusive<u64>,
}

impl Legacy {
    /// Recognizes a group of the process.
    pub fn find(
        space: &AddressSpace,
        copies: &Copies,
        vtables: Vtables,
        address: u64,
    ) -> Parsed<Self> {
        let object = object(copies, address, OBJECT_BYTES, vtables.group)?;
        let (parts, lists) =
            (Parts::find(space, copies, object), lists(space, copies, address, object));
        let (parts, lists) = (parts?, lists?);
        let mut works = WorkList {
            head: address + *lists.first().ok_or(UNKNOWN_LAYOUT)? as u64,
            vtable: vtables.work,
            operation: OPERATION,
            start: None,
        };
        let mut fields = Fields::newer(object);
        let numbers = match shared_status(object, &parts) {
            Some((offset, address, control)) => {
                let place = StatusPlace { address, strings: fields.strings };
                Numbers::Shared { offset, place, control: copies.word(control)? }
            }
            None => {
                let (options, _) = parts.options.ok_or(UNKNOWN_LAYOUT)?;
                let is_at = |old: &&OldLayout| old.options == options;
                let old = OLD.iter().find(is_at).ok_or(UNKNOWN_LAYOUT)?;
                if !lists.contains(&old.works) {
                    return Err(UNKNOWN_LAYOUT);
                }
                works.head = address + old.works as u64;
                works.operation = old.operation;
                works.start = Some(old.start);
                fields = old.fields;
                match old.counters {
                    OldCounters::Status(offset) => {
                        let address = address + offset as u64;
                        let place = StatusPlace { address, strings: fields.strings };
                        Numbers::Embedded { offset, place }
                    }
                    counters => Numbers::Old(counters),
                }
            }
        };
        let identity = Identity::read(space, copies, (address, object), &fields, &parts)?;
        let copied = object.0.get(FIELDS_START..fields.end()).unwrap_or_default();
        Ok(Self {
            vtable: vtables.group,
            address,
            identity,
            fields: copied.to_owned(),
            len: numbers.end(),
            numbers,
            works,
            nodes: Vec::new(),
        })
    }

    /// Returns the ranges whose copies must be equal in two consecutive reads.
    pub fn ranges(&self) -> Vec<Range> {
        let mut ranges = vec![Range { address: self.address, len: self.len }];
        if let Numbers::Shared { place, .. } | Numbers::Embedded { place, .. } = self.numbers {
            ranges.push(Range { address: place.address, len: place.len() });
        }
        if let Numbers::Shared { place, .. } = self.numbers {
            let address = place.address - CONTROL_BYTES;
            ranges.push(Range { address, len: CONTROL_BYTES as usize });
        }
        ranges
    }

    /// Returns ranges that the next reading probably needs.
    pub fn hints(&self) -> impl Iterator<Item = Range> {
        self.nodes.iter().map(|&address| Range { address, len: super::works::NODE_BYTES })
    }

    /// Returns the data to find the counters, or `None` if the release has them at a known offset.
    pub fn sample<'a>(&self, copies: &'a Copies) -> Option<Parsed<Sample<'a>>> {
        let Numbers::Shared { offset, place, .. } = self.numbers else { return None };
        let sample = |object| {
            let enqueued = place.read(copies)?.enqueued.map_or(0, |work| work.seq);
            Ok(Sample { object, status: offset, enqueued })
        };
        Some(self.object(copies).and_then(sample))
    }

    fn object<'a>(&self, copies: &'a Copies) -> Parsed<View<'a>> {
        let object = object(copies, self.address, self.len, self.vtable)?;
        let end = FIELDS_START + self.fields.len();
        if object.0.get(FIELDS_START..end) != Some(&self.fields[..]) {
            return Err(Stop::Replaced);
        }
        Ok(object)
    }

    /// Returns what the group holds now.
    pub fn read(
        &self,
        copies: &Copies,
        distance: Option<Distance>,
        now: Instants,
    ) -> Parsed<GroupReading> {
        let object = self.object(copies)?;
        let figures = self.figures(copies, object, distance)?;
        let expected = Expected { rank: self.identity.rank, seqs: figures.seqs, now };
        let list = usize::try_from(self.works.head - self.address).unwrap_or(usize::MAX);
        let list = object.from(list).ok_or(UNKNOWN_LAYOUT)?;
        let (pending, nodes) = self.works.read(copies, list, &expected)?;
        let not_found = "the counters are found once the process uses a group";
        let called_p2p = match self.numbers {
            Numbers::Old(_) => Reading::missing(
                Reason::Unsupported,
                "torch before 2.4 does not count point-to-point operations",
            ),
            _ => Reading::or_missing(figures.called_p2p, Reason::NotRead, not_found),
        };
        let group = ProcessGroup {
            called: Reading::or_missing(figures.called, Reason::NotRead, not_found),
            called_p2p,
            enqueued: figures.enqueued,
            completed: figures.completed,
            pending: pending.into(),
            ..self.identity.group()
        };
        Ok(GroupReading { group, local_id: figures.local_id, nodes })
    }

    /// Stores the nodes of the last reading.
    pub fn set_nodes(&mut self, nodes: Vec<u64>) {
        self.nodes = nodes;
    }

    fn figures(
        &self,
        copies: &Copies,
        object: View<'_>,
        distance: Option<Distance>,
    ) -> Parsed<Figures> {
        match self.numbers {
            Numbers::Shared { offset, place, control } => {
                let block = copies.get(place.address - CONTROL_BYTES, CONTROL_BYTES as usize)?;
                let words = object.word(offset).zip(object.word(offset + 8));
                let is_same = words == Some((place.address, place.address - CONTROL_BYTES));
                if !is_same || block.word(0) != Some(control) || !is_referenced(block.int(8)) {
                    return Err(Stop::Replaced);
                }
                let status = place.read(copies)?;
                Figures::with_status(status, object, offset, distance)
            }
            Numbers::Embedded { offset, place } => {
                let status = place.read(copies)?;
                Figures::with_status(status, object, offset, Some(Distance::OLDEST))
            }
            Numbers::Old(counters) => Figures::old(object, counters),
        }
    }
}

/// Offset of the first field of all layouts.
const FIELDS_START: usize = 16;

impl Figures {
    fn with_status(
        status: Status,
        object: View<'_>,
        offset: usize,
        distance: Option<Distance>,
    ) -> Parsed<Self> {
        let seq = |work: &Option<Work>| work.as_ref().map_or(0, |work| work.seq);
        let (enqueued, completed) = (seq(&status.enqueued), seq(&status.completed));
        let sample = Sample { object, status: offset, enqueued };
        let counters = match distance {
            Some(distance) => Some(sample.counters(distance).ok_or(IMPOSSIBLE)?),
            None => None,
        };
        // Collectives and point-to-point operations have numbers of their own, so they cannot be compared.
        let is_ordered =
            |c: Counters| c.called_p2p > 0 || (completed <= enqueued && enqueued <= c.called);
        if !counters.is_none_or(is_ordered) {
            return Err(IMPOSSIBLE);
        }
        Ok(Self {
            called: counters.map(|counters| counters.called),
            called_p2p: counters.map(|counters| counters.called_p2p),
            local_id: counters.map(|counters| counters.local_id),
            seqs: counters.map_or(0..=enqueued, Counters::seqs),
            enqueued: status.enqueued,
            completed: status.completed,
        })
    }

    fn old(object: View<'_>, counters: OldCounters) -> Parsed<Self> {
        let count = |offset| object.word(offset).filter(|count| *count <= MAX_SEQ.unsigned_abs());
        let (called, numbers) = match counters {
            OldCounters::Calls(at) | OldCounters::Status(at) => (count(at), None),
            OldCounters::WithNumbers(at, numbers) => (count(at), Some(numbers)),
        };
        let called = called.ok_or(IMPOSSIBLE)?;
        let numbers = numbers.and_then(|at| count(at).zip(count(at + 8)));
        let numbers = numbers.filter(|(enqueued, done)| done <= enqueued && *enqueued <= called);
        let work = |seq| (seq > 0).then(|| Work { seq, ..Work::default() });
        let (enqueued, completed) = numbers.unwrap_or_default();
        Ok(Self {
            called: Some(called),
            called_p2p: None,
            local_id: None,
            enqueued: work(enqueued),
            completed: work(completed),
            // A point-to-point operation has the number of the last collective.
            seqs: 0..=called,
        })
    }
}

const IMPOSSIBLE: Stop = Stop::Refused("the process group has impossible counters");

/// Returns a copy of a group, if it is still one.
fn object(copies: &Copies, address: u64, len: usize, vtable: u64) -> Parsed<View<'_>> {
    let object = copies.get(address, len)?;
    if object.word(0) != Some(vtable) || !is_referenced(object.int(mem::size_of::<u64>())) {
        return Err(Stop::Replaced);
    }
    Ok(object)
}

/// Returns the offset of the pointer to the status, the address of the status, and that of its control block.
fn shared_status(object: View<'_>, parts: &Parts<'_>) -> Option<(usize, u64, u64)> {
    let is_control = |index: &usize| parts.classes[*index].starts_with(STATUS);
    (FIELDS_START / 8 + 1..parts.classes.len()).filter(is_control).find_map(|index| {
        let (status, control) = (object.word(index * 8 - 8)?, object.word(index * 8)?);
        let is_status = status.checked_sub(control) == Some(CONTROL_BYTES);
        is_status.then_some((index * 8 - 8, status, control))
    })
}

/// Returns the offsets of the lists of a group that are empty or contain works. The first one has the pending works.
fn lists(
    space: &AddressSpace,
    copies: &Copies,
    address: u64,
    object: View<'_>,
) -> Parsed<Vec<usize>> {
    let offsets = (FIELDS_START..OBJECT_BYTES - 8).step_by(8);
    let found: Vec<Parsed<Option<usize>>> = offsets
        .map(|offset| {
            let head = address + offset as u64;
            let (Some(first), Some(last)) = (object.word(offset), object.word(offset + 8)) else {
                return Ok(None);
            };
            let is_list = if first == head {
                last == head
            } else {
                space.is_object(first)
                    && space.is_object(last)
                    && copies.word(first + 8)? == head
                    && space.class(copies, first + super::works::LINKS as u64)? == WORK
            };
            Ok(is_list.then_some(offset))
        })
        .collect();
    let found: Vec<Option<usize>> = found.into_iter().collect::<Parsed<_>>()?;
    Ok(found.into_iter().flatten().collect())
}
