//! Reads the NCCL process groups of a running PyTorch process, without stopping it.
//!
//! [`ProcessGroups::open`] searches the heaps of the process for groups, which takes up to 0.2 s.
//! [`read`](ProcessGroups::read) takes about three system calls for all groups together.
//!
//! ```text
//! libtorch_cuda.so ─► vtable of c10d::ProcessGroupNCCL ─► heaps: objects that begin with it (search.rs)
//!   ─► classes of the objects that a group points to (classes.rs) ─► status, options, store, works
//! ```
//!
//! | torch | class | file | names, elements | point-to-point | pending works |
//! |---|---|---|---|---|---|
//! | 2.1 to 2.3 | `ProcessGroupNCCL` | legacy.rs, by a table | of pending works | not counted | yes |
//! | 2.4 | `ProcessGroupNCCL` | legacy.rs, by a table | yes | yes | yes |
//! | 2.5 and later | `ProcessGroupNCCL` | legacy.rs, by class names | yes | yes | yes |
//! | 2.14 (if chosen) | `nccl2::ProcessGroupNCCL` | nccl2.rs | no | no | no |
//! | 2.15 | `nccl2::ProcessGroupNCCL` | nccl2.rs | no | no | yes |
//!
//! Torch before 2.4 has the members of groups only in Python (python_members.rs).
//! The data types of works are in PyTorch's flight recorder (recorder.rs), where that is on.
//!
//! The program goes on meanwhile. A group is accepted if two copies of its counters are equal, and if all numbers and
//! texts are possible. Every other object is refused: freed memory, an unknown layout, a group that is being created.

mod classes;
mod copies;
mod counters;
mod failure;
mod group;
mod identity;
mod legacy;
mod nccl2;
mod python_members;
mod recorder;
mod search;
mod status;
mod store;
mod strings;
#[cfg(test)]
mod tests;
mod threads;
mod works;

pub use self::failure::Failure;
pub use self::threads::has_watchdog;

use std::cmp::Reverse;
use std::path::{Path, PathBuf};

use gputop_model::process_group::RankReading;
use gputop_model::{Missing, ProcessKey, Reading, Reason};

use self::classes::AddressSpace;
use self::copies::{Copies, Parsed, Stop};
use self::counters::{Distance, find_distance};
use self::group::Group;
use self::legacy::{GroupReading, Legacy, Vtables};
use self::nccl2::Nccl2;
use self::python_members::members_by_name;
use self::recorder::add_recorded;
use self::search::{Classes, Hit, Search};
use self::threads::Threads;
use crate::clock::Instants;
use crate::memory::live::Live;
use crate::memory::maps::Mapping;
use crate::memory::{Memory, MemoryError, Range};
use crate::process::stat::{StatBuffer, StatFile};

/// Maximum number of groups of a process. Large jobs have about 30.
const MAX_GROUPS: usize = 512;
/// Maximum number of flight recorders: one for NCCL, one for other backends.
const MAX_RECORDERS: usize = 4;
/// Maximum number of consecutive searches for a group that was refused, because it may have been in creation.
const MAX_INCOMPLETE_SEARCHES: u8 = 3;
/// Maximum number of times that a group is read while it changes. A group that is refused may be changing too.
const MAX_TRIES: usize = 10;

/// A process that uses NCCL through PyTorch, and its process groups.
#[derive(Debug)]
pub struct ProcessGroups<M> {
    memory: M,
    process: ProcessKey,
    proc_root: Option<PathBuf>,
    threads: Option<Threads>,
    classes: Classes,
    groups: Vec<Group>,
    /// Addresses of the flight recorders.
    recorders: Vec<u64>,
    /// Where the counters of the groups are, once this is known.
    distance: Option<Distance>,
    /// Why an object was refused at the last search.
    refused: Option<&'static str>,
    /// Number of consecutive searches that may have missed a group.
    incomplete_searches: u8,
}

impl ProcessGroups<Live> {
    /// Finds the groups of a running process. A forked worker, which has a copy of its parent's groups, is refused.
    pub fn open(proc_root: &Path, process: ProcessKey) -> Result<Self, Failure> {
        let mut groups = Self::locate(Live::new(proc_root, process.pid), process)?;
        groups.proc_root = Some(proc_root.to_owned());
        groups.threads = Some(Threads::new(proc_root, process.pid));
        groups.search()?;
        if groups.are_copies(proc_root) { Err(Failure::Forked) } else { Ok(groups) }
    }

    /// Returns true if the parent of the process has the same groups at the same addresses, because it was forked from it.
    fn are_copies(&self, proc_root: &Path) -> bool {
        let parent = StatFile::of(proc_root, self.process.pid)
            .and_then(|stat| Ok(stat.read(&mut StatBuffer::default())?.parent));
        let Ok(parent) = parent else { return false };
        // The vtable, and the rank, which is behind the reference count.
        let parts =
            |group: &Group| [(0, 8), (16, 16)].map(|(offset, len)| (group.address() + offset, len));
        let ranges =
            self.groups.iter().flat_map(parts).map(|(address, len)| Range { address, len });
        let ranges: Vec<Range> = ranges.collect();
        let (mut own, mut copies) = (Vec::new(), Vec::new());
        let is_read = self.memory.read(&ranges, &mut own).is_ok()
            && Live::new(proc_root, parent).read(&ranges, &mut copies).is_ok();
        is_read && !own.is_empty() && own == copies
    }
}

impl<M: Memory> ProcessGroups<M> {
    /// Finds the groups in memory of which only the bytes are known, such as a dump.
    pub fn attach(memory: M, process: ProcessKey) -> Result<Self, Failure> {
        let mut groups = Self::locate(memory, process)?;
        groups.search()?;
        Ok(groups)
    }

    fn locate(memory: M, process: ProcessKey) -> Result<Self, Failure> {
        let classes = Classes::find(&memory, &memory.maps()?)?;
        Ok(Self::with_classes(memory, process, classes))
    }

    fn with_classes(memory: M, process: ProcessKey, classes: Classes) -> Self {
        Self {
            memory,
            process,
            proc_root: None,
            threads: None,
            classes,
            groups: Vec::new(),
            recorders: Vec::new(),
            distance: None,
            refused: None,
            incomplete_searches: 0,
        }
    }

    /// Returns true if the process may have created a group that the last search did not find. Cheap enough to call before
    /// every reading. [`search`](Self::search) is not: a caller can run it, or [`open`](ProcessGroups::open), in the
    /// background.
    pub fn needs_search(&mut self) -> bool {
        if self.threads.as_mut().is_some_and(Threads::has_new_group) {
            self.incomplete_searches = 0;
            return true;
        }
        (1..=MAX_INCOMPLETE_SEARCHES).contains(&self.incomplete_searches)
    }

    /// Searches the heaps for groups again. Takes up to 0.2 s for a small process, and at most 5 s.
    pub fn search(&mut self) -> Result<(), Failure> {
        let watchdogs = self.threads.as_mut().map_or(0, Threads::count_watchdogs);
        let maps = self.memory.maps()?;
        let space = AddressSpace::new(&maps);
        let process = self.proc_root.as_deref().map(|proc_root| (proc_root, self.process.pid));
        let mut search = Search::new(&self.memory, &maps, self.classes, process);
        let (mut groups, mut refused, mut legacy) = (Vec::new(), None, 0);
        while let Some(hits) = search.next_heap() {
            for group in self.recognize(&space, &hits)? {
                match group {
                    Ok(group) => groups.push(group),
                    Err(reason) => refused = Some(reason),
                }
            }
            legacy = groups.iter().filter(|group| matches!(group, Group::Legacy(_))).count();
            if groups.len() >= MAX_GROUPS || (watchdogs > 0 && legacy >= watchdogs) {
                break;
            }
        }
        if search.is_stopped() {
            refused = Some("the search stopped at its limit of time or memory");
        }
        groups.truncate(MAX_GROUPS);
        let mut recorders = search.recorders;
        recorders.truncate(MAX_RECORDERS);
        let is_incomplete = legacy < watchdogs || (watchdogs == 0 && refused.is_some());
        self.incomplete_searches =
            if is_incomplete { self.incomplete_searches.saturating_add(1) } else { 0 };
        self.add_members(&maps, &mut groups);
        (self.groups, self.recorders, self.refused) = (groups, recorders, refused);
        Ok(())
    }

    /// Adds the members of groups that are a part of the job, if the groups do not have them (torch before 2.4). Members
    /// that do not contain this rank at its place are refused, and then unknown.
    fn add_members(&self, maps: &[Mapping], groups: &mut [Group]) {
        let all = groups.iter().map(Group::identity).max_by_key(|group| group.size);
        let Some((rank, size)) = all.map(|all| (all.group().member(all.rank), all.size)) else {
            return;
        };
        let identities = groups.iter_mut().map(Group::identity_mut);
        let unknown = identities.filter(|group| group.members.is_none() && group.size < size);
        let mut unknown = unknown.peekable();
        if unknown.peek().is_none() {
            return;
        }
        let mut by_name = members_by_name(&self.memory, maps);
        for group in unknown {
            let place = usize::try_from(group.rank).unwrap_or(usize::MAX);
            let is_own = |members: &Vec<u32>| {
                u32::try_from(members.len()) == Ok(group.size)
                    && members.get(place).copied() == rank
            };
            let members = by_name.remove(&group.name).filter(is_own);
            group.members = Some(members.unwrap_or_default().into());
        }
    }

    /// Returns for each object the group that it is, or why it is none.
    fn recognize(
        &self,
        space: &AddressSpace,
        hits: &[Hit],
    ) -> Result<Vec<Result<Group, &'static str>>, MemoryError> {
        let Classes { group, work, nccl2 } = self.classes;
        let find = |copies: &Copies, hit: &Hit| {
            if Some(hit.vtable) == nccl2 {
                let found = Nccl2::find(space, copies, hit.vtable, hit.address);
                found.map(|found| Group::Nccl2(Box::new(found)))
            } else {
                let found = Legacy::find(space, copies, Vtables { group, work }, hit.address);
                found.map(|found| Group::Legacy(Box::new(found)))
            }
        };
        let mut copies = Copies::default();
        let found = copies.complete(&self.memory, |copies| {
            hits.iter().map(|hit| find(copies, hit)).collect::<Vec<_>>()
        })?;
        Ok(found.into_iter().map(|found| found.map_err(reason)).collect())
    }

    /// Reads all groups. A group that cannot be read is left out.
    pub fn read(&mut self, now: Instants) -> Result<RankReading, Failure> {
        let mut left: Vec<usize> = (0..self.groups.len()).collect();
        let (mut read, mut replaced) = (Vec::new(), Vec::new());
        let mut refused = self.refused;
        for attempt in 1..=MAX_TRIES {
            let (parsed, is_same) = self.read_once(&left, now)?;
            let mut again = Vec::new();
            for ((index, parsed), is_same) in left.into_iter().zip(parsed).zip(is_same) {
                match parsed {
                    // What cannot be read may be changing, too.
                    Ok(found) if is_same && (found.is_complete() || attempt == MAX_TRIES) => {
                        read.push((index, found));
                    }
                    Err(Stop::Replaced) if is_same => replaced.push(index),
                    Err(stop) if is_same => {
                        refused = Some(reason(stop));
                        again.push(index);
                    }
                    _ => {
                        refused = Some("the process group changed during every read");
                        again.push(index);
                    }
                }
            }
            left = again;
            if left.is_empty() {
                break;
            }
        }
        if !left.is_empty() {
            // The counters may be elsewhere, if they were found among numbers that changed.
            self.distance = None;
        }
        if !replaced.is_empty() && read.is_empty() {
            refused = Some(reason(Stop::Replaced));
        }
        let groups = read.iter_mut();
        let mut groups: Vec<_> =
            groups.filter_map(|(_, read)| Some((read.local_id?, &mut read.group))).collect();
        for recorder in &self.recorders {
            add_recorded(&self.memory, *recorder, &mut groups);
        }
        let reading = self.reading(read, refused, now);
        self.remove(&replaced);
        Ok(reading)
    }

    /// Reads groups, and returns for each of them whether a second copy was equal.
    fn read_once(
        &mut self,
        indices: &[usize],
        now: Instants,
    ) -> Result<(Vec<Parsed<GroupReading>>, Vec<bool>), MemoryError> {
        let selected = || indices.iter().filter_map(|index| self.groups.get(*index));
        let ranges: Vec<Range> = selected().flat_map(Group::ranges).collect();
        let hints = selected().flat_map(Group::hints);
        let mut copies = Copies::default();
        copies.copy(&self.memory, ranges.iter().copied().chain(hints).collect())?;
        let distance = match self.distance {
            None if indices.len() == self.groups.len() => self.calibrate(&mut copies)?,
            distance => distance,
        };
        let parsed = copies.complete(&self.memory, |copies| {
            selected().map(|group| group.read(copies, distance, now)).collect()
        })?;
        let mut again = Copies::default();
        again.copy(&self.memory, ranges)?;
        let is_equal = |range: &Range| {
            let (first, second) =
                (copies.get(range.address, range.len), again.get(range.address, range.len));
            first == second
        };
        let is_same = selected().map(|group| group.ranges().iter().all(is_equal)).collect();
        self.distance = distance;
        Ok((parsed, is_same))
    }

    /// Returns where the counters are, if all groups together show it.
    fn calibrate(&self, copies: &mut Copies) -> Result<Option<Distance>, MemoryError> {
        copies.complete(&self.memory, |copies| {
            let samples = self.groups.iter().filter_map(|group| match group {
                Group::Legacy(group) => group.sample(copies)?.ok(),
                Group::Nccl2(_) => None,
            });
            find_distance(&samples.collect::<Vec<_>>())
        })
    }

    /// Forgets groups that no longer exist.
    fn remove(&mut self, replaced: &[usize]) {
        let mut index = 0..;
        self.groups.retain(|_| !index.next().is_some_and(|index| replaced.contains(&index)));
        if !replaced.is_empty() {
            self.incomplete_searches = self.incomplete_searches.max(1);
        }
    }

    fn reading(
        &mut self,
        mut read: Vec<(usize, GroupReading)>,
        refused: Option<&str>,
        now: Instants,
    ) -> RankReading {
        read.sort_by_cached_key(|(_, reading)| (reading.local_id, order(&reading.group.name)));
        let mut by_size: Vec<_> = read.iter().collect();
        by_size.sort_by_key(|(_, reading)| Reverse(reading.group.size));
        let store = |(index, _): &&(usize, _)| self.groups.get(*index)?.identity().store.clone();
        let store = by_size.iter().copied().find_map(|read| store(&read));
        let largest = by_size.first().map(|(_, reading)| &reading.group);
        let reading = RankReading {
            process: self.process,
            at: now.mono(),
            store,
            rank: largest.and_then(|group| group.member(group.rank)),
            world_size: largest.map(|group| group.size),
            ..RankReading::default()
        };
        let mut groups = Vec::new();
        for (index, GroupReading { group, nodes, .. }) in read {
            groups.push(group);
            if let Some(Group::Legacy(group)) = self.groups.get_mut(index) {
                group.set_nodes(nodes);
            }
        }
        let missing = match refused {
            Some(why) => Missing::new(Reason::Unknown, why),
            None => Missing::new(Reason::NotRead, "no process group found"),
        };
        let groups = if groups.is_empty() { Reading::Missing(missing) } else { groups.into() };
        RankReading { groups, ..reading }
    }
}

/// Returns a text that completes a sentence about the process.
fn reason(stop: Stop) -> &'static str {
    match stop {
        Stop::Needs => "the process group has too many parts",
        Stop::Replaced => "the process group was destroyed",
        Stop::Refused(reason) => reason,
    }
}

/// Returns a key that sorts names by their number, if they have one.
fn order(name: &str) -> (u64, String) {
    (name.parse().unwrap_or(u64::MAX), name.to_owned())
}
