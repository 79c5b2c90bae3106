//! Groups of each layout in a small memory, intact and damaged.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use gputop_model::process_group::{MAX_PENDING, ProcessGroup, RecordedCall};
use gputop_model::{Pid, StartTicks};
use proptest::prelude::*;

use super::classes::{OPTIONS, PREFIX_STORE, STATUS, TCP_STORE, WORK};
use super::*;
use crate::memory::maps::Mapping;

const HEAP: u64 = 0x50_0000;
const HEAP_BYTES: usize = 64 << 10;
const LIBRARY: u64 = 0x7_0000_0000;
const LIBRARY_BYTES: usize = 8 << 10;
/// Time by which the host was suspended.
const SUSPENDED: u64 = 5_000_000_000;
const NOW: Instants = Instants { boot_ns: (2 << 40) + SUSPENDED, monotonic_ns: 2 << 40 };
/// Time of the first call on the monotonic clock.
const CALLED: u64 = 1 << 40;
const ELEMENTS: (u64, u64) = (1024, 2048);
const ALLREDUCE: u64 = 1;

/// Offsets of a torch release, as its headers have them.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Release {
    rank: u64,
    name: Option<u64>,
    description: Option<u64>,
    is_new_string: bool,
    options: u64,
    works: u64,
    calls: u64,
    status: StatusAt,
    work_operation: u64,
    work_start: u64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum StatusAt {
    None,
    /// Numbers of the newest enqueued and completed works.
    Numbers(u64),
    Embedded(u64),
    Pointer(u64, u64),
    /// The hash table with the queues of nccl2.
    Queues(u64),
}

const RELEASES: &[(&str, Release)] = &[
    ("2.1", old(88, None, None, (152, 504, 912), StatusAt::None, 132, 304)),
    ("2.2", old(24, Some(40), None, (96, 616, 1024), StatusAt::None, 132, 304)),
    ("2.3", old(16, Some(32), None, (112, 600, 1016), StatusAt::Numbers(1032), 124, 256)),
    ("2.4", old(16, Some(32), Some(40), (120, 608, 992), StatusAt::Embedded(1056), 124, 256)),
    ("2.5", old(16, Some(32), Some(40), (176, 608, 992), StatusAt::Pointer(1056, 32), 124, 280)),
    ("2.6", old(16, Some(32), Some(40), (168, 608, 984), StatusAt::Pointer(1048, 32), 124, 272)),
    ("2.7", new((216, 656, 1152), StatusAt::Pointer(1240, 32))),
    ("2.8", new((232, 472, 992), StatusAt::Pointer(1072, 24))),
    ("2.11", new((240, 480, 1000), StatusAt::Pointer(1080, 24))),
    ("2.13", new((240, 520, 1040), StatusAt::Pointer(1120, 24))),
    ("2.14", new((248, 528, 1048), StatusAt::Pointer(1152, 24))),
    ("2.15", new((688, 0, 312), StatusAt::Queues(360))),
];

const fn old(
    rank: u64,
    name: Option<u64>,
    description: Option<u64>,
    (options, works, calls): (u64, u64, u64),
    status: StatusAt,
    work_operation: u64,
    work_start: u64,
) -> Release {
    Release {
        rank,
        name,
        description,
        is_new_string: false,
        options,
        works,
        calls,
        status,
        work_operation,
        work_start,
    }
}

const fn new((options, works, calls): (u64, u64, u64), status: StatusAt) -> Release {
    Release {
        rank: 16,
        name: Some(32),
        description: Some(64),
        is_new_string: true,
        options,
        works,
        calls,
        status,
        work_operation: 124,
        work_start: 320,
    }
}

/// A change of the memory before a read: `(number of the read, address, word)`.
type Change = (usize, u64, u64);

/// Memory with one heap and one library. Counts the reads.
#[derive(Debug, Clone)]
struct Mimic {
    heap: RefCell<Vec<u8>>,
    library: Vec<u8>,
    classes: HashMap<&'static str, u64>,
    free: u64,
    free_in_library: u64,
    changes: Vec<Change>,
    reads: Cell<usize>,
    bytes: Cell<usize>,
}

impl Mimic {
    fn new() -> Self {
        Self {
            heap: RefCell::new(vec![0; HEAP_BYTES]),
            library: vec![0; LIBRARY_BYTES],
            classes: HashMap::new(),
            free: HEAP + 0x100,
            free_in_library: LIBRARY,
            changes: Vec::new(),
            reads: Cell::new(0),
            bytes: Cell::new(0),
        }
    }

    fn put(&self, address: u64, word: u64) {
        self.put_bytes(address, &word.to_le_bytes());
    }

    fn put_bytes(&self, address: u64, bytes: &[u8]) {
        let at = (address - HEAP) as usize;
        self.heap.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn word(&self, address: u64) -> u64 {
        let at = (address - HEAP) as usize;
        u64::from_le_bytes(self.heap.borrow()[at..at + 8].try_into().expect("8 bytes"))
    }

    fn allocate(&mut self, bytes: u64) -> u64 {
        let address = self.free;
        self.free += bytes.next_multiple_of(16) + 16;
        address
    }

    /// Returns the vtable of a class.
    fn class(&mut self, name: &'static str) -> u64 {
        if let Some(vtable) = self.classes.get(name) {
            return *vtable;
        }
        let info = self.free_in_library;
        let (text, vtable) = (info + 16, info + 16 + 128 + 8);
        self.free_in_library = vtable + 64;
        for (address, bytes) in [
            (info + 8, &text.to_le_bytes()[..]),
            (text, name.as_bytes()),
            (vtable - 8, &info.to_le_bytes()[..]),
        ] {
            let at = (address - LIBRARY) as usize;
            self.library[at..at + bytes.len()].copy_from_slice(bytes);
        }
        self.classes.insert(name, vtable);
        vtable
    }

    /// Allocates an object with its vtable and one reference.
    fn object(&mut self, class: &'static str, bytes: u64) -> u64 {
        let (vtable, address) = (self.class(class), self.allocate(bytes));
        self.put(address, vtable);
        self.put(address + 8, 1 | 1 << 32);
        address
    }

    fn text(&mut self, address: u64, is_new: bool, text: &str) {
        let len = text.len() as u64;
        if !is_new {
            let characters = self.allocate(24 + len + 1) + 24;
            self.put(characters - 24, len);
            self.put(characters - 16, len);
            self.put_bytes(characters, text.as_bytes());
            self.put(address, characters);
            return;
        }
        let characters = if len < 16 { address + 16 } else { self.allocate(len + 1) };
        self.put(address, characters);
        self.put(address + 8, len);
        self.put_bytes(characters, text.as_bytes());
    }

    /// Adds the stores of a group, and returns the outer one.
    fn store(&mut self, is_new: bool, prefixes: &[&str]) -> u64 {
        let size = if is_new { 32 } else { 8 };
        let mut store = self.object(TCP_STORE, 160);
        self.text(store + 24, is_new, "localhost");
        self.put(store + 24 + size, 29_500);
        for prefix in prefixes.iter().rev() {
            let outer = self.object(PREFIX_STORE, 160);
            self.text(outer + 24, is_new, prefix);
            self.put(outer + 24 + size, store);
            store = outer;
        }
        store
    }

    /// Adds a list of works, one for each number.
    fn works(&mut self, release: Release, head: u64, seqs: &[u64]) -> Vec<u64> {
        let vtable = self.class(WORK);
        let nodes: Vec<u64> = seqs.iter().map(|_| self.allocate(400)).collect();
        let ring: Vec<u64> =
            std::iter::once(head).chain(nodes.iter().copied()).chain([head]).collect();
        for links in ring.windows(2) {
            self.put(links[0], links[1]);
            self.put(links[1] + 8, links[0]);
        }
        for (node, seq) in nodes.iter().zip(seqs) {
            let work = node + 16;
            self.put(work, vtable);
            let is_aligned = release.work_operation % 8 == 4;
            assert!(is_aligned, "the rank is before the operation");
            self.put(work + release.work_operation - 4, 1 | ALLREDUCE << 32);
            self.put(work + release.work_start - 8, 600_000);
            self.put(work + release.work_start, CALLED + seq);
            self.put(work + release.work_start + 8, *seq);
            self.put(work + release.work_start + 24, ELEMENTS.0);
            self.put(work + release.work_start + 32, ELEMENTS.1);
        }
        nodes
    }

    fn status(&mut self, address: u64, is_new: bool, [enqueued, completed]: [u64; 2]) {
        let number = |number: u64| if number == 0 { u64::MAX } else { number };
        self.put(address, number(enqueued));
        self.put(address + 8, u64::MAX);
        self.put(address + 16, number(completed));
        let size = if is_new { 32 } else { 8 };
        for (index, seq) in [(0, enqueued), (1, 0), (2, completed)] {
            // The name is longer than what a string of the new layout has inside.
            let name = if seq > 0 { "_REDUCE_SCATTER_BASE" } else { "" };
            self.text(address + 24 + index * size, is_new, name);
        }
        for index in 0..2 {
            self.put(address + 24 + 3 * size + index * 16, ELEMENTS.0);
            self.put(address + 32 + 3 * size + index * 16, ELEMENTS.1);
        }
    }

    /// Adds a hash table with one queue of works.
    fn queues(&mut self, group: u64, table: u64, seqs: &[u64]) {
        let buckets = self.allocate(16);
        self.put(table, buckets);
        self.put(table + 8, 13);
        self.put(table + 32, u64::from(1.0f32.to_bits()));
        if seqs.is_empty() {
            return;
        }
        let (node, blocks) = (self.allocate(96), self.allocate(64));
        self.put(table + 16, node);
        self.put(table + 24, 1);
        // The first entry is the last one of its block, so the others are in the next block.
        let (first, second) = (self.allocate(512), self.allocate(512));
        self.put(blocks, first);
        self.put(blocks + 8, second);
        let entries: Vec<u64> = std::iter::once(first + 480)
            .chain((0..seqs.len() as u64).map(|index| second + index * 32))
            .collect();
        for (entry, seq) in entries.iter().zip(seqs) {
            let state = self.allocate(208);
            self.put(*entry, state);
            self.put(state, group);
            self.put(state + 40, CALLED + seq);
            self.put(state + 48, 600_000);
            self.put(state + 80, *seq);
        }
        let end = entries[seqs.len()];
        let words =
            [first + 480, first, first + 512, blocks, end, second, second + 512, blocks + 8];
        for (index, word) in words.into_iter().enumerate() {
            self.put(node + 32 + 8 * index as u64, word);
        }
    }

    /// Adds a group of rank 1 of 2, which has called `called` collectives, of which `completed` are complete.
    fn group(&mut self, release: Release, name: &str, called: u64, completed: u64) -> u64 {
        let class = match release.status {
            StatusAt::Queues(_) => "N4c10d5nccl216ProcessGroupNCCLE",
            _ => "N4c10d16ProcessGroupNCCLE",
        };
        let is_new = release.is_new_string;
        let group = self.object(class, 1272);
        self.put(group + release.rank, 1 | 2 << 32);
        for (offset, text) in [(release.name, name), (release.description, "mesh_dp")] {
            if let Some(offset) = offset {
                self.text(group + offset, is_new, text);
            }
        }
        let options = self.object(OPTIONS, 256);
        self.put(group + release.options, options);
        let members = self.allocate(16);
        for (index, word) in [members, members + 16, members + 16].into_iter().enumerate() {
            self.put(options + 120 + 8 * index as u64, word);
        }
        self.put(members, 4);
        self.put(members + 8, 7);
        let store = self.store(is_new, &["cuda/", &format!("{name}/")]);
        let calls = group + release.calls;
        self.put(calls, called);
        let pending: Vec<u64> = (completed + 1..=called).collect();
        if let StatusAt::Queues(table) = release.status {
            self.put(calls - 16, store);
            self.queues(group, group + table, &pending);
            return group;
        }
        self.put(group + release.options + 24, store);
        self.works(release, group + release.works, &pending);
        let numbers = [called, completed];
        match release.status {
            StatusAt::Numbers(offset) => {
                self.put(group + offset, called);
                self.put(group + offset + 8, completed);
            }
            StatusAt::Embedded(offset) => self.status(group + offset, is_new, numbers),
            StatusAt::Pointer(offset, local_id) => {
                let control = self.object(STATUS, 256);
                self.status(control + 16, is_new, numbers);
                self.put(group + offset, control + 16);
                self.put(group + offset + 8, control);
                self.put(calls + local_id, name.parse().expect("a number"));
            }
            StatusAt::None | StatusAt::Queues(_) => {}
        }
        if !matches!(release.status, StatusAt::None | StatusAt::Numbers(_)) {
            self.put(calls + 16, called);
        }
        group
    }

    /// Adds a flight recorder of torch 2.11 for `capacity` operations, which has recorded those of group "0" with numbers
    /// from 1 on, one for each list of data types. Returns its address and those of its entries.
    fn recorder(&mut self, capacity: u64, dtypes: &[&[u8]]) -> (u64, Vec<u64>) {
        let recorded = dtypes.len() as u64;
        let len = capacity.min(recorded);
        let (recorder, entries) = (self.allocate(256), self.allocate(len * 512));
        // The bytes after the flags are not initialized.
        self.put(recorder, 0x7f12_3456_789a_0001);
        if len > 0 {
            for (index, word) in [entries, entries + len * 512].into_iter().enumerate() {
                self.put(recorder + 48 + 8 * index as u64, word);
            }
        }
        for (offset, word) in [(72, capacity), (80, recorded % capacity), (88, recorded)] {
            self.put(recorder + offset, word);
        }
        for (offset, word) in [(104, recorder + 152), (112, 1), (128, 1), (136, 0x3f80_0000)] {
            self.put(recorder + offset, word);
        }
        for (number, dtypes) in (0..recorded).zip(dtypes).skip((recorded - len) as usize) {
            let entry = entries + number % capacity * 512;
            self.text(entry + 24, true, "a long description");
            self.text(entry + 56, true, "0");
            self.text(entry + 112, true, "nccl:all_reduce");
            let types = self.allocate(dtypes.len() as u64);
            self.put_bytes(types, dtypes);
            let end = types + dtypes.len() as u64;
            for (offset, word) in [
                (0, number),
                (88, number + 1),
                (176, called_unix_ns(number + 1)),
                (288, types),
                (296, end),
            ] {
                self.put(entry + offset, word);
            }
        }
        (recorder, (0..len).map(|place| entries + place * 512).collect())
    }

    fn classes(&mut self) -> Classes {
        Classes {
            group: self.class("N4c10d16ProcessGroupNCCLE"),
            work: self.class(WORK),
            nccl2: Some(self.class("N4c10d5nccl216ProcessGroupNCCLE")),
        }
    }

    /// Finds and reads the groups.
    fn read(mut self) -> (Vec<ProcessGroup>, RankReading, Self) {
        let classes = self.classes();
        let mut groups = ProcessGroups::with_classes(self, key(), classes);
        groups.search().expect("a memory");
        let reading = groups.read(NOW).expect("a memory");
        let found = reading.groups.value().cloned().unwrap_or_default();
        (found, reading, groups.memory)
    }
}

impl Memory for Mimic {
    fn read(&self, ranges: &[Range], into: &mut Vec<u8>) -> Result<(), MemoryError> {
        let number = self.reads.replace(self.reads.get() + 1);
        for (_, address, word) in self.changes.iter().filter(|(at, ..)| *at == number) {
            self.put(*address, *word);
        }
        let heap = self.heap.borrow();
        for range in ranges {
            let (start, bytes) =
                if range.address >= LIBRARY { (LIBRARY, &self.library) } else { (HEAP, &*heap) };
            let from = range.address.checked_sub(start).map_or(usize::MAX, |at| at as usize);
            let copied = bytes.get(from..).unwrap_or_default();
            let copied = &copied[..copied.len().min(range.len)];
            self.bytes.set(self.bytes.get() + copied.len());
            into.extend(copied);
            if copied.len() < range.len {
                return Ok(());
            }
        }
        Ok(())
    }

    fn maps(&self) -> Result<Vec<Mapping>, MemoryError> {
        let end = HEAP + HEAP_BYTES as u64;
        let heap = Mapping { start: HEAP, end, is_heap: true, ..Mapping::default() };
        let (start, end) = (LIBRARY, LIBRARY + LIBRARY_BYTES as u64);
        let file = "/lib/libtorch_cuda.so".to_owned();
        Ok(vec![heap, Mapping { start, end, file, ..Mapping::default() }])
    }
}

fn called_unix_ns(seq: u64) -> u64 {
    1_700_000_000_000_000_000 + seq
}

fn key() -> ProcessKey {
    ProcessKey { pid: Pid(1), start: StartTicks(0) }
}

fn release(name: &str) -> Release {
    RELEASES.iter().find(|(release, _)| *release == name).expect("a release").1
}

/// Returns a memory with two groups, and the address of the first one.
fn two_groups(release: Release) -> (Mimic, u64) {
    let mut mimic = Mimic::new();
    let group = mimic.group(release, "0", 7, 5);
    mimic.group(release, "1", 0, 0);
    (mimic, group)
}

#[test]
fn every_release_is_read() {
    for (name, release) in RELEASES {
        let (groups, reading, _) = two_groups(*release).0.read();
        assert_eq!(groups.len(), 2, "torch {name}: {:?}", reading.groups);
        assert_eq!(reading.store.as_deref(), Some("localhost:29500"), "torch {name}");
        assert_eq!((reading.rank, reading.world_size), (Some(7), Some(2)), "torch {name}");
        let [used, unused] = &groups[..] else { panic!("two groups") };
        assert_eq!((&used.name[..], &unused.name[..]), ("0", "1"), "torch {name}");
        assert_eq!((used.rank, used.size, used.member(0)), (1, 2, Some(4)), "torch {name}");
        let has_description = release.description.is_some();
        assert_eq!(used.description == "mesh_dp", has_description, "torch {name}");
        assert_eq!((used.called.get(), unused.called.get()), (Some(7), Some(0)), "torch {name}");
        let seq = |work: &Option<gputop_model::process_group::Work>| work.as_ref().map(|w| w.seq);
        let has_numbers = !matches!(release.status, StatusAt::None | StatusAt::Queues(_));
        let numbers = (seq(&used.enqueued), seq(&used.completed));
        assert_eq!(numbers, has_numbers.then_some((7, 5)).unzip(), "torch {name}");
        assert_eq!((seq(&unused.enqueued), seq(&unused.completed)), (None, None), "torch {name}");
        let pending = used.pending.value().expect("the works");
        let found: Vec<(u64, u64)> =
            pending.iter().map(|pending| (pending.work.seq, pending.called_ns)).collect();
        let called = |seq| (seq, CALLED + seq + SUSPENDED);
        assert_eq!(found, [called(6), called(7)], "torch {name}");
        assert_eq!(unused.pending.value().map(Vec::len), Some(0), "torch {name}");
    }
}

#[test]
fn operations_and_elements_are_read() {
    for name in ["2.4", "2.6", "2.11"] {
        let (groups, ..) = two_groups(release(name)).0.read();
        let enqueued = groups[0].enqueued.as_ref().expect("a work");
        assert_eq!(enqueued.operation, "_REDUCE_SCATTER_BASE");
        assert_eq!(enqueued.elements, Some(ELEMENTS));
        let pending = &groups[0].pending.value().expect("the works")[0].work;
        assert_eq!((&pending.operation[..], pending.elements), ("ALLREDUCE", Some(ELEMENTS)));
    }
}

#[test]
fn single_unused_group_has_no_counters_yet() {
    let mut mimic = Mimic::new();
    mimic.group(release("2.14"), "0", 0, 0);
    let (groups, ..) = mimic.read();
    assert!(groups[0].called.why().is_some_and(|why| why.reason == Reason::NotRead));
    // With the numbers of torch 2.13, the ID of a group looks like a counter.
    let mut mimic = Mimic::new();
    mimic.group(release("2.14"), "1", 0, 0);
    assert_eq!(mimic.read().0[0].called.get(), None);
    let mut mimic = Mimic::new();
    mimic.group(release("2.11"), "1", 0, 0);
    assert_eq!(mimic.read().0[0].called.get(), None);
}

#[test]
fn shifted_objects_are_refused() {
    let shifts = (-16..=16).filter(|shift| *shift != 0).map(|shift| shift * 8);
    for (shift, (name, release)) in
        shifts.flat_map(|shift: i64| RELEASES.iter().map(move |release| (shift, release)))
    {
        let (mut mimic, group) = two_groups(*release);
        let classes = mimic.classes();
        let is_nccl2 = matches!(release.status, StatusAt::Queues(_));
        let vtable = if is_nccl2 { classes.nccl2.expect("a class") } else { classes.group };
        mimic.put(group, 0);
        mimic.put(group.wrapping_add_signed(shift), vtable);
        let (groups, ..) = mimic.read();
        let names: Vec<&str> = groups.iter().map(|group| &group.name[..]).collect();
        assert_eq!(names, ["1"], "torch {name}, shifted by {shift}");
    }
}

#[test]
fn freed_groups_and_those_without_a_status_are_refused() {
    for (offset, word) in [(8, 0), (8, HEAP), (16, 2 | 2 << 32), (16, 1 | 1 << 63), (1080, 0)] {
        let (mimic, group) = two_groups(release("2.11"));
        mimic.put(group + offset, word);
        assert_eq!(mimic.read().0.len(), 1, "{word:#x} at {offset}");
    }
    let (mimic, group) = two_groups(release("2.11"));
    let control = mimic.word(group + 1088);
    mimic.put(control + 8, 0);
    assert_eq!(mimic.read().0.len(), 1, "the status was freed");
}

#[test]
fn groups_that_disappear_are_forgotten() {
    let (mut mimic, group) = two_groups(release("2.11"));
    let classes = mimic.classes();
    let mut groups = ProcessGroups::with_classes(mimic, key(), classes);
    groups.search().expect("a memory");
    assert!(!groups.needs_search());
    groups.memory.put(group, 0);
    let reading = groups.read(NOW).expect("a memory");
    assert_eq!(reading.groups.value().map(Vec::len), Some(1));
    assert!(groups.needs_search());
    groups.search().expect("a memory");
    assert!(!groups.needs_search());
}

#[test]
fn group_that_gets_its_name_later_is_found_again() {
    let (mut mimic, group) = two_groups(release("2.11"));
    mimic.put(group + 40, 0);
    let classes = mimic.classes();
    let mut groups = ProcessGroups::with_classes(mimic, key(), classes);
    groups.search().expect("a memory");
    groups.memory.put(group + 40, 1);
    groups.read(NOW).expect("a memory");
    assert!(groups.needs_search());
    groups.search().expect("a memory");
    let reading = groups.read(NOW).expect("a memory");
    assert_eq!(reading.groups.value().expect("groups")[0].name, "0");
}

/// Returns the first group of a memory with a list of works that was changed.
fn with_works(change: impl FnOnce(&mut Mimic, u64, &[u64])) -> Option<ProcessGroup> {
    let release = release("2.11");
    let (mut mimic, group) = two_groups(release);
    let head = group + release.works;
    let nodes = mimic.works(release, head, &[5, 6, 7]);
    change(&mut mimic, head, &nodes);
    mimic.read().0.into_iter().find(|group| group.name == "0")
}

#[test]
fn cyclic_and_broken_lists_are_refused() {
    assert!(with_works(|_, _, _| {}).is_some());
    assert!(with_works(|mimic, _, nodes| mimic.put(nodes[2], nodes[0])).is_none());
    assert!(with_works(|mimic, _, nodes| mimic.put(nodes[1], nodes[1])).is_none());
    assert!(with_works(|mimic, _, nodes| mimic.put(nodes[1] + 8, nodes[2])).is_none());
    assert!(with_works(|mimic, head, _| mimic.put(head + 8, head)).is_none());
    assert!(with_works(|mimic, _, nodes| mimic.put(nodes[0] + 16, LIBRARY)).is_none());
    let in_the_future = NOW.monotonic_ns + (1 << 34);
    let start = 16 + release("2.11").work_start;
    assert!(with_works(|mimic, _, nodes| mimic.put(nodes[0] + start, in_the_future)).is_none());
}

#[test]
fn long_list_is_cut() {
    let release = release("2.11");
    let mut mimic = Mimic::new();
    mimic.group(release, "0", 100, 10);
    mimic.group(release, "1", 0, 0);
    let (groups, ..) = mimic.read();
    let pending = groups[0].pending.value().expect("the works");
    assert_eq!((pending.len(), pending[0].work.seq), (MAX_PENDING, 11));
}

/// A running rank has about a hundred pending works, all of them new at each reading.
#[test]
fn works_behind_a_young_one_are_not_read() {
    let mut mimic = Mimic::new();
    mimic.group(release("2.11"), "0", 100, 10);
    mimic.group(release("2.11"), "1", 0, 0);
    let classes = mimic.classes();
    let mut groups = ProcessGroups::with_classes(mimic, key(), classes);
    groups.search().expect("a memory");
    let mut read = |age_ns| {
        let monotonic_ns = CALLED + age_ns;
        let now = Instants { boot_ns: monotonic_ns + SUSPENDED, monotonic_ns };
        groups.memory.reads.set(0);
        let reading = groups.read(now).expect("a memory");
        let group = &reading.groups.value().expect("groups")[0];
        let pending = group.pending.value().expect("the works");
        assert_eq!(pending[0].work.seq, 11);
        (pending.len(), groups.memory.reads.get())
    };
    assert_eq!(read(50_000_000), (1, 4));
    // The node of the last reading is copied in advance.
    assert_eq!(read(4_000_000_000), (1, 3));
    let (works, reads) = read(6_000_000_000);
    assert!(works == MAX_PENDING && reads > MAX_PENDING, "{reads} reads of {works} works");
}

const FLOAT32: u8 = 6;
const BFLOAT16: u8 = 15;

/// Returns the data types of the enqueued and the completed work, and of the first pending one, and the numbers and times
/// of the recorded calls.
fn recorded(change: impl FnOnce(&Mimic, u64, &[u64])) -> ([Option<String>; 3], Vec<(u64, u64)>) {
    let mut mimic = two_groups(release("2.11")).0;
    let types: [&[u8]; 7] =
        [&[1], &[1], &[1], &[1], &[BFLOAT16, FLOAT32], &[BFLOAT16, BFLOAT16], &[FLOAT32]];
    let (recorder, entries) = mimic.recorder(4, &types);
    change(&mimic, recorder, &entries);
    let (groups, ..) = mimic.read();
    let group = groups.into_iter().next().expect("a group");
    let pending = group.pending.value().expect("the works")[0].work.dtype.clone();
    let dtype = |work: Option<gputop_model::process_group::Work>| work.expect("a work").dtype;
    let call = |call: &RecordedCall| (call.seq, call.called_unix_ns - called_unix_ns(0));
    let calls = group.recorded.iter().map(call).collect();
    ([dtype(group.enqueued), dtype(group.completed), pending], calls)
}

#[test]
fn data_types_and_calls_are_in_the_flight_recorder() {
    let float32 = Some("float32".to_owned());
    // Operation 5 has tensors of two types.
    let whole = (
        [float32.clone(), None, Some("bfloat16".to_owned())],
        vec![(7, 7), (6, 6), (5, 5), (4, 4)],
    );
    assert_eq!(recorded(|_, _, _| {}), whole);
    // The parts of a coalesced operation have the same number.
    let (types, _) = recorded(|mimic, _, entries| mimic.put(entries[1] + 88, 7));
    assert_eq!(types, [None, None, None]);
    let (types, calls) = recorded(|mimic, _, entries| mimic.put(entries[1] + 192, 1));
    assert_eq!((types, calls), ([float32, None, None], vec![(7, 7), (5, 5), (4, 4)]));
}

#[test]
fn damaged_flight_recorders_are_refused() {
    let none = ([None, None, None], Vec::new());
    let newest = 2;
    for (offset, word) in [(0, 7), (56, 8), (72, 0x31), (88, 1 << 41), (176, 5), (192, 2)] {
        let found = recorded(|mimic, _, entries| mimic.put(entries[newest] + offset, word));
        assert_eq!(found, none, "{word:#x} at {offset} of the newest entry");
    }
    let gloo = |mimic: &Mimic, entries: &[u64]| mimic.put_bytes(entries[newest] + 128, b"gloo");
    assert_eq!(recorded(|mimic, _, entries| gloo(mimic, entries)), none);
    for (offset, word) in
        [(0, 0), (0, 0x201), (24, 1), (48, 8), (56, HEAP), (72, 0), (80, 5), (88, 0)]
    {
        let found = recorded(|mimic, recorder, _| mimic.put(recorder + offset, word));
        assert_eq!(found, none, "{word:#x} at {offset}");
    }
}

/// The groups are usually found before the first operation.
#[test]
fn a_flight_recorder_without_entries_is_found() {
    let mut mimic = two_groups(release("2.11")).0;
    let (recorder, _) = mimic.recorder(2_000, &[]);
    let classes = mimic.classes();
    let mut groups = ProcessGroups::with_classes(mimic, key(), classes);
    groups.search().expect("a memory");
    assert_eq!(groups.recorders, [recorder]);
    assert_eq!(groups.read(NOW).expect("a memory").groups.value().map(Vec::len), Some(2));
}

/// Torch before 2.4 has the members of groups only in Python, which this memory does not contain.
#[test]
fn members_of_a_part_of_the_job_are_unknown_without_python() {
    let release = release("2.2");
    let mut mimic = Mimic::new();
    for (name, size) in [("0", 4), ("1", 2)] {
        let group = mimic.group(release, name, 7, 5);
        mimic.put(group + release.rank, 1 | size << 32);
        let options = mimic.word(group + release.options);
        mimic.put(options + 120, 0);
    }
    let (groups, reading, _) = mimic.read();
    let members: Vec<Option<usize>> =
        groups.iter().map(|group| group.members.as_ref().map(|members| members.len())).collect();
    assert_eq!((members, reading.rank), (vec![None, Some(0)], Some(1)));
}

#[test]
fn stores_that_contain_each_other_have_no_address() {
    let (mimic, group) = two_groups(release("2.11"));
    let outer = mimic.word(group + release("2.11").options + 24);
    let inner = mimic.word(outer + 56);
    mimic.put(inner + 56, outer);
    let (groups, reading, _) = mimic.read();
    assert_eq!((groups.len(), reading.store.is_some()), (2, true), "the other group has a store");
}

#[test]
fn pending_works_of_an_unknown_queue_are_missing() {
    let release = release("2.15");
    let (mimic, group) = two_groups(release);
    let node = mimic.word(group + 360 + 16);
    let state = mimic.word(mimic.word(node + 32));
    mimic.put(state, HEAP);
    let (groups, ..) = mimic.read();
    assert_eq!(groups[0].called.get(), Some(7));
    assert_eq!(groups[0].pending.why().map(|why| why.reason), Some(Reason::Unsupported));
}

#[test]
fn group_that_changes_once_is_read_again() {
    let (mut mimic, group) = two_groups(release("2.11"));
    let (found, _, unchanged) = mimic.clone().read();
    let last = unchanged.reads.get() - 1;
    let calls = group + release("2.11").calls;
    mimic.changes = vec![(last, calls, 8), (last, calls + 16, 8)];
    let (groups, _, changed) = mimic.clone().read();
    assert_eq!((found[0].called.get(), groups[0].called.get()), (Some(7), Some(8)));
    assert!(changed.reads.get() > unchanged.reads.get());
    // A group that changes at every read is refused. The other one is read.
    mimic.changes = (0..1_000).map(|read| (read, calls + 16, 8 + read as u64)).collect();
    let (groups, ..) = mimic.read();
    assert_eq!(groups.len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn mutated_memory_does_not_panic_and_is_not_read_without_bound(
        index in 0..RELEASES.len(),
        mutations in prop::collection::vec((0..HEAP_BYTES as u64 / 8, 0u64..6, any::<u64>()), 1..40),
    ) {
        let (mimic, group) = two_groups(RELEASES[index].1);
        let used = (mimic.free - HEAP) / 8;
        for (at, kind, word) in mutations {
            let at = HEAP + at % used * 8;
            let word = match kind {
                // Other words of the memory are more harmful than random ones.
                0..=2 => mimic.word(HEAP + word % used * 8),
                3 => group + word % 1272,
                4 => word % 1024,
                _ => word,
            };
            mimic.put(at, word);
        }
        let (groups, _, mimic) = mimic.read();
        prop_assert!(groups.len() <= MAX_GROUPS);
        prop_assert!(mimic.reads.get() < 10_000, "{} reads", mimic.reads.get());
        prop_assert!(mimic.bytes.get() < 64 << 20, "{} bytes", mimic.bytes.get());
    }
}
