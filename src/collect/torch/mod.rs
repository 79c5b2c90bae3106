//! PyTorch's CUDA caching allocator in another process, read while it runs.
//!
//! The target is never written to, and stopped only where the user asks for it. [`Attached`] is made once for a process; from then on
//! [`stats`](Attached::stats) is one system call and [`map`](Attached::map) about thirty.
//!
//! Only processes that the driver lists as users of a GPU are to be attached to: a forked worker (a DataLoader's)
//! carries a copy of its parent's allocator that reads as valid, and would be counted twice. That is the caller's
//! duty, since nothing in the memory tells the two apart; in a container, where nobody lists them, only a comparison
//! with the parent does ([`Attached::is_forked_copy`]).
//!
//! Example: a process with torch 2.6 that was given one tensor of 1000 bytes. `locate` finds the list of devices,
//! `layout` recognises "torch 2.3 to 2.9", the statistics at +40 say 1024 bytes allocated in a segment of 2 MiB, and
//! the walk finds two blocks: 1024 bytes allocated (1000 requested) and the rest free.

pub mod allocation_spike;
mod block;
mod containers;
mod failure;
mod largest;
mod layout;
mod locate;
mod map;
mod retry;
mod sampled_process;
pub mod sampler;
mod stats;
mod walk;

use std::path::Path;
use std::time::Duration;

pub use self::failure::Failure;
pub use self::stats::{DeviceStats, Stat, StatArray};

use self::block::BlockLayout;
use self::largest::UnknownReason;
use self::layout::Layout;
use self::locate::{Located, locate};
use self::walk::Device;
use crate::collect::memory::live::Live;
use crate::collect::memory::view::View;
use crate::collect::memory::{Memory, MemoryError, Range};
use crate::collect::process::stat::{StatBuffer, StatFile};
use crate::model::pool::PoolMap;
use crate::model::reading::{Reading, Reason};
use crate::model::units::{Bytes, Pid};

const STATS_TRIES: usize = 10;
/// So many of them follow each other at once.
const QUICK_TRIES: usize = 5;
const STATS_PAUSE: std::time::Duration = std::time::Duration::from_millis(1);
const MAP_TRIES: usize = 5;
const MAP_PAUSE: Duration = Duration::from_micros(200);
const LARGEST_TRIES: usize = 3;
const NO_CACHING: &[u8] = b"PYTORCH_NO_CUDA_MEMORY_CACHING=";
const UNKNOWN_BUILD: &str = "unknown torch build, borne out by its blocks";

/// One process whose allocator was found.
#[derive(Debug)]
pub struct Attached<M> {
    memory: M,
    located: Located,
    /// Not known before the first block exists.
    blocks: Option<BlockLayout>,
    library: &'static str,
    /// Ordinals of the devices that anything was asked of.
    in_use: Vec<u32>,
    buffer: Vec<u8>,
    /// What the last [`sample`](Self::sample) accepted of all devices in one copy; empty when there is none.
    accepted: Vec<u8>,
}

impl Attached<Live> {
    /// A worker that was forked after CUDA was in use carries its parent's books: the same devices at the same places.
    pub fn is_forked_copy(&self, proc_root: &Path, pid: Pid) -> bool {
        let stat = StatFile::open(&proc_root.join(pid.to_string()).join("stat"));
        let parent = stat.and_then(|stat| Ok(stat.read(&mut StatBuffer::new())?.parent));
        let parent = parent
            .ok()
            .and_then(|parent| Self::open(proc_root, parent).ok());
        parent.is_some_and(|parent| parent.devices() == self.devices())
    }

    /// # Errors
    /// With what is there instead, or why it may not be read.
    pub fn open(proc_root: &Path, pid: Pid) -> Result<Self, Failure> {
        let mut attached = Self::attach(Live::new(proc_root, pid));
        for _ in 0..ATTACH_TRIES {
            // A build that is not known may be one that is being changed.
            if !matches!(attached, Err(Failure::Busy | Failure::UnknownBuild)) {
                break;
            }
            std::thread::sleep(ATTACH_PAUSE);
            attached = Self::attach(Live::new(proc_root, pid));
        }
        let mut attached = attached?;
        let is_touched = attached.stats()?.iter().any(DeviceStats::is_touched);
        if !is_touched && is_caching_off(proc_root, pid) {
            return Err(Failure::CachingOff);
        }
        Ok(attached)
    }
}

/// How often an allocator that is being changed is tried to be recognised, and the pause between.
const ATTACH_TRIES: usize = 40;
const ATTACH_PAUSE: Duration = Duration::from_micros(300);

/// By the environment that the program was started with; one that sets it itself shows an empty pool.
fn is_caching_off(proc_root: &Path, pid: Pid) -> bool {
    let environ = std::fs::read(proc_root.join(pid.to_string()).join("environ"));
    let environ = environ.unwrap_or_default();
    environ
        .split(|&b| b == 0)
        .any(|entry| entry.starts_with(NO_CACHING))
}

impl<M: Memory> Attached<M> {
    /// In one try, which fails while the allocator is being changed.
    ///
    /// # Errors
    /// With what is there instead, or why it may not be read.
    pub fn attach(memory: M) -> Result<Self, Failure> {
        let located = locate(&memory)?;
        let family = located.layout.family();
        let mut attached = Self {
            memory,
            located,
            blocks: None,
            library: family.map_or(UNKNOWN_BUILD, |family| family.name),
            in_use: Vec::new(),
            buffer: Vec::new(),
            accepted: Vec::new(),
        };
        if family.is_none() {
            attached.verify()?;
        }
        Ok(attached)
    }

    /// The versions that this layout is known from: `torch 2.3 to 2.9`.
    pub fn library(&self) -> &'static str {
        self.library
    }

    pub fn memory(&self) -> &M {
        &self.memory
    }

    pub fn into_memory(self) -> M {
        self.memory
    }

    /// How many devices PyTorch sees in that process.
    pub fn device_count(&self) -> usize {
        self.located.devices.len()
    }

    /// Of a build that nobody tested, at least one device must bear out what its statistics say.
    fn verify(&mut self) -> Result<(), Failure> {
        for stats in self.stats()? {
            if stats.reserved_bytes.all.current == 0 {
                continue;
            }
            return match self.map(stats.ordinal)?.exact {
                true => Ok(()),
                false => Err(Failure::UnknownBuild),
            };
        }
        Err(Failure::UnknownBuild)
    }

    /// Where the allocator's devices lie in the process: the same as in a copy that was made by fork.
    pub fn devices(&self) -> &[u64] {
        &self.located.devices
    }

    /// The statistics of all devices that could be read as one moment each, in one system call if nobody writes
    /// just then. A device that changes in every try is left out.
    ///
    /// # Errors
    /// [`Failure::Changed`] when the list of devices is not where it was: attach again.
    pub fn stats(&mut self) -> Result<Vec<DeviceStats>, Failure> {
        let stats = self.read_stats(Scope::All)?;
        let in_use = stats.iter().filter(|stats| stats.is_touched());
        let in_use: Vec<u32> = in_use.map(|stats| stats.ordinal).collect();
        if in_use != self.in_use {
            self.in_use = in_use;
            self.accepted.clear();
        }
        Ok(stats)
    }

    /// Whether any device was in use when [`stats`](Self::stats) was last asked: else there is nothing to sample.
    pub fn is_in_use(&self) -> bool {
        !self.in_use.is_empty()
    }

    /// The statistics of the devices that were in use when [`stats`](Self::stats) was last asked, without a look at
    /// the list of devices: half the price, for the reads between, and half of that again for a program that changed
    /// nothing since: a copy that equals the last accepted one is the second of two equal copies. What is in the place of an allocator that is gone
    /// is seldom lawful, and never for longer than until the next `stats`.
    ///
    /// # Errors
    /// [`Failure::Changed`] when a device is not where it was.
    pub fn sample(&mut self) -> Result<Vec<DeviceStats>, Failure> {
        if self.in_use.is_empty() {
            return Ok(Vec::new());
        }
        self.read_stats(Scope::InUse)
    }

    fn read_stats(&mut self, scope: Scope) -> Result<Vec<DeviceStats>, Failure> {
        let ordinals: Vec<u32> = match scope {
            Scope::All => (0..).take(self.located.devices.len()).collect(),
            Scope::InUse => self.in_use.clone(),
        };
        let list = match scope {
            Scope::All => VECTOR + 8 * self.located.devices.len(),
            Scope::InUse => 0,
        };
        let len = self.located.layout.stats_end() + MUTEX;
        let mut stats: Vec<Option<DeviceStats>> = vec![None; ordinals.len()];
        let mut before = match scope {
            Scope::All => Vec::new(),
            Scope::InUse => std::mem::take(&mut self.accepted),
        };
        for turn in 1..=STATS_TRIES {
            self.copy_stats(scope, &ordinals)?;
            let missing = stats.iter().filter(|stats| stats.is_none()).count();
            for (index, found) in stats.iter_mut().enumerate().filter(|(_, s)| s.is_none()) {
                let extent = list + index * len..list + (index + 1) * len;
                let copy = Copy(self.buffer.get(extent.clone()).unwrap_or_default());
                let is_still = before.get(extent) == Some(copy.0);
                *found = copy
                    .stats(&self.located.layout, ordinals[index])
                    .filter(|stats| copy.is_one_moment(stats, turn == STATS_TRIES, is_still));
            }
            if stats.iter().all(Option::is_some) {
                if scope == Scope::InUse && missing == ordinals.len() {
                    before.clone_from(&self.buffer);
                    self.accepted = before;
                }
                break;
            }
            before.clone_from(&self.buffer);
            if turn < QUICK_TRIES {
                std::hint::spin_loop();
            } else {
                // Whoever holds the lock may have been put off the processor: more tries at once would all see it.
                std::thread::sleep(STATS_PAUSE);
            }
        }
        Ok(stats.into_iter().flatten().collect())
    }

    /// All in one call: the list of devices, to see that it is still there, and each device's mutex, statistics, and
    /// mutex again.
    fn copy_stats(&mut self, scope: Scope, ordinals: &[u32]) -> Result<(), Failure> {
        let Located {
            vector,
            elements,
            devices,
            layout,
        } = &self.located;
        let range = |address, len| Range { address, len };
        let mut ranges = Vec::with_capacity(2 + 2 * ordinals.len());
        if scope == Scope::All {
            ranges.push(range(*vector, VECTOR));
            ranges.push(range(*elements, 8 * devices.len()));
        }
        for &device in ordinals
            .iter()
            .filter_map(|&ordinal| devices.get(ordinal as usize))
        {
            ranges.push(range(device, layout.stats_end()));
            ranges.push(range(device, MUTEX));
        }
        self.buffer.clear();
        self.memory.read(&ranges, &mut self.buffer)?;
        let wanted: usize = ranges.iter().map(|range| range.len).sum();
        let is_there = self.buffer.len() == wanted && (scope == Scope::InUse || self.is_listed());
        if is_there {
            Ok(())
        } else {
            Err(Failure::Changed)
        }
    }

    /// Whether the buffer begins with the list of devices as it was found.
    fn is_listed(&self) -> bool {
        let mut words = View(&self.buffer).words();
        let begins = words.next() == Some(self.located.elements);
        begins
            && self
                .located
                .devices
                .iter()
                .copied()
                .eq(words.skip(2).take(self.located.devices.len()))
    }

    fn device(&self, ordinal: u32) -> Option<Device<'_, M>> {
        let index = usize::try_from(ordinal).ok()?;
        Some(Device {
            memory: &self.memory,
            address: *self.located.devices.get(index)?,
            layout: &self.located.layout,
        })
    }

    /// Where the members of a Block are, once there is a block.
    fn block_layout(&mut self, ordinal: u32) -> Result<Option<BlockLayout>, MemoryError> {
        if self.blocks.is_none()
            && let Some(device) = self.device(ordinal)
        {
            self.blocks = device.calibrate_blocks()?;
        }
        Ok(self.blocks)
    }

    /// The largest free block of any stream, from the last node of each free tree: a handful of system calls.
    pub fn largest_free_block(&mut self, ordinal: u32) -> Reading<Bytes> {
        let busy = || Reading::missing(Reason::NotRead, "the allocator was changing all the time");
        for _ in 0..LARGEST_TRIES {
            let blocks = match self.block_layout(ordinal) {
                Ok(blocks) => blocks,
                Err(MemoryError::Unreadable { .. }) => continue,
                Err(error) => return Reading::Missing(Failure::from(error).missing()),
            };
            let Some(device) = self.device(ordinal) else {
                return Reading::missing(Reason::Unsupported, "no such device");
            };
            match device.largest_free_block(blocks.as_ref()) {
                Ok(largest) => return Bytes(largest).into(),
                Err(UnknownReason::Busy) => {}
                Err(UnknownReason::TooManyStreams) => {
                    return Reading::missing(
                        Reason::NotRead,
                        "free on too many streams to look at each on every tick: the map has it",
                    );
                }
                Err(UnknownReason::Memory(error)) => {
                    return Reading::Missing(Failure::from(error).missing());
                }
            }
        }
        busy()
    }

    /// Every segment and block of a device. `process` and `at` are the caller's to fill in.
    ///
    /// Up to five tries are made for a walk during which nothing changed; else the last one that found anything is
    /// handed out, marked as not exact.
    ///
    /// # Errors
    /// When there is no such device, or nothing of it could be read.
    pub fn map(&mut self, ordinal: u32) -> Result<PoolMap, Failure> {
        self.map_and_stats(ordinal).map(|(map, _)| map)
    }

    /// The map together with the statistics it was held against: those of the same moment, when it is exact.
    ///
    /// # Errors
    /// As [`map`](Self::map).
    pub fn map_and_stats(&mut self, ordinal: u32) -> Result<(PoolMap, DeviceStats), Failure> {
        let mut best = Err(Failure::Busy);
        for turn in 0..MAP_TRIES {
            if turn > 0 {
                std::thread::sleep(MAP_PAUSE);
            }
            match self.try_map(ordinal) {
                Ok(found) if found.0.exact => return Ok(found),
                Ok(found) => best = Ok(found),
                // A table that was moved while it was read.
                Err(Failure::Memory(MemoryError::Unreadable { .. }) | Failure::Busy) => {}
                Err(failure) => return Err(failure),
            }
        }
        best
    }

    /// As [`map_and_stats`](Self::map_and_stats) in one try: of a process that stands still, another would find the same.
    ///
    /// # Errors
    /// As [`map`](Self::map).
    pub fn map_of_held(&mut self, ordinal: u32) -> Result<(PoolMap, DeviceStats), Failure> {
        self.try_map(ordinal)
    }

    fn try_map(&mut self, ordinal: u32) -> Result<(PoolMap, DeviceStats), Failure> {
        let stats = self.device_stats(ordinal)?;
        let reserved = u64::try_from(stats.reserved_bytes.all.current).unwrap_or_default();
        let mut map = PoolMap {
            ordinal,
            ..PoolMap::default()
        };
        let blocks = self.block_layout(ordinal)?;
        let Some((device, blocks)) = self.device(ordinal).zip(blocks) else {
            map.exact = reserved == 0;
            return if map.exact {
                Ok((map, stats))
            } else {
                Err(Failure::Busy)
            };
        };
        let walk = device.walk(&blocks, reserved)?;
        let after = self.device_stats(ordinal)?;
        let (segments, is_consistent) = map::segments(&walk);
        map.segments = segments;
        map.exact = is_consistent && stats == after && map::sums_agree(&walk.blocks, &stats);
        Ok((map, stats))
    }

    fn device_stats(&mut self, ordinal: u32) -> Result<DeviceStats, Failure> {
        let stats = self.stats()?;
        let found = stats.into_iter().find(|stats| stats.ordinal == ordinal);
        found.ok_or(Failure::Busy)
    }
}

/// The words of a std::vector.
const VECTOR: usize = 24;
/// The mutex's lock word, and the count after it.
const MUTEX: usize = 8;

/// Which devices are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    All,
    InUse,
}

/// One device's part of the buffer.
struct Copy<'a>(&'a [u8]);

impl Copy<'_> {
    fn stats(&self, layout: &Layout, ordinal: u32) -> Option<DeviceStats> {
        layout.parse(View(self.0), ordinal)
    }

    /// The same twice in a row with a free mutex: nobody wrote between the two, so neither is half of something. One
    /// copy between two free mutexes is not enough: a writer may have come and gone meanwhile. A target that is
    /// stopped inside the lock never frees it and never changes anything either; there the laws must do.
    fn is_one_moment(&self, stats: &DeviceStats, is_last: bool, is_still: bool) -> bool {
        let word = |at: usize| View(self.0).int(at);
        let is_free = word(0) == Some(0) && word(self.0.len() - MUTEX) == Some(0);
        is_still && (is_free || (is_last && stats.is_lawful()))
    }
}
