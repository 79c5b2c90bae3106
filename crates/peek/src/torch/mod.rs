//! Reads PyTorch's CUDA caching allocator in another running process.
//!
//! The target process is never written to, and is stopped only at the user's request. [`Attached`] is created once per
//! process. After that, [`stats`](Attached::stats) takes one system call and [`map`](Attached::map) about 30.
//!
//! Attach only to processes that the driver lists as users of a GPU. A forked worker (for example of a DataLoader) has
//! a copy of its parent's allocator, which looks valid and would be counted twice. The caller must exclude such copies,
//! because the memory itself does not reveal them. In a container, where the driver's list is not available, comparing
//! a process with its parent detects a copy ([`Attached::is_forked_copy`]).
//!
//! For example, suppose that a process with torch 2.6 has allocated one tensor of 1000 bytes. `locate` finds the list
//! of devices, and `layout` recognizes "torch 2.3 to 2.9". The statistics at +40 report 1024 bytes allocated in a
//! segment of 2 MiB. The walk finds two blocks: an allocated one of 1024 bytes (1000 requested), and a free one with
//! the remaining bytes.

pub mod allocation_spike;
mod block;
mod containers;
mod failure;
pub mod holders;
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
pub use self::stats::{AllocatorStat, DeviceStats, StatArray};

use gputop_model::{Bytes, Pid, PoolMap, Reading, Reason};

use self::block::BlockLayout;
use self::largest::UnknownReason;
use self::layout::Layout;
use self::locate::{Located, locate};
use self::walk::Device;
use crate::memory::live::Live;
use crate::memory::view::View;
use crate::memory::{Memory, MemoryError, Range};
use crate::process::stat::{StatBuffer, StatFile};

const MAX_STATS_TRIES: usize = 40;
/// Number of attempts to read the statistics before the first pause.
const QUICK_TRIES: usize = 5;
/// Number of attempts to read the statistics of an unlocked allocator before a locked one is considered.
const UNLOCKED_TRIES: usize = 10;
/// Maximum CPU time, in nanoseconds, that a thread can need to finish an update of the statistics.
const MAX_UPDATE_TIME: u64 = 500_000;
const STATS_RETRY_INTERVAL: Duration = Duration::from_millis(1);
const MAX_MAP_TRIES: usize = 5;
/// Maximum number of attempts to read the statistics of all devices. A program that does nothing but allocate is between
/// two consistent states most of the time.
const MAX_TRIES_FOR_ALL: u32 = 10;
const MAP_RETRY_INTERVAL: Duration = Duration::from_micros(200);
const MAX_LARGEST_TRIES: usize = 3;
const NO_CACHING: &[u8] = b"PYTORCH_NO_CUDA_MEMORY_CACHING=";
const UNKNOWN_BUILD: &str = "unknown torch build, verified against its blocks";

/// A process whose allocator was found.
#[derive(Debug)]
pub struct Attached<M> {
    memory: M,
    located: Located,
    /// Layout of a Block, or `None` until a block exists.
    blocks: Option<BlockLayout>,
    library: &'static str,
    /// Ordinals of the devices that the process has used.
    in_use: Vec<u32>,
    buffer: Vec<u8>,
    /// Copy of the devices' statistics that the last [`sample`](Self::sample) accepted. Empty if there is none.
    accepted: Vec<u8>,
}

impl Attached<Live> {
    /// Returns true if this process was forked from a process that already used CUDA. Its device allocators then have
    /// the same addresses as the parent's.
    pub fn is_forked_copy(&self, proc_root: &Path, pid: Pid) -> bool {
        let parent = StatFile::of(proc_root, pid)
            .and_then(|stat| Ok(stat.read(&mut StatBuffer::default())?.parent));
        let parent = parent.ok().and_then(|parent| Self::open(proc_root, parent).ok());
        parent.is_some_and(|parent| parent.devices() == self.devices())
    }

    /// Attaches to a running process. Retries while the process's allocator is changing.
    pub fn open(proc_root: &Path, pid: Pid) -> Result<Self, Failure> {
        let mut attached = Self::attach(Live::new(proc_root, pid));
        for _ in 0..MAX_ATTACH_TRIES {
            // Also retry for an unknown layout, because the layout of a changing allocator may look unknown.
            if !matches!(attached, Err(Failure::Busy | Failure::UnknownBuild)) {
                break;
            }
            std::thread::sleep(ATTACH_RETRY_INTERVAL);
            attached = Self::attach(Live::new(proc_root, pid));
        }
        let mut attached = attached?;
        let is_used = attached.stats()?.iter().any(DeviceStats::is_used);
        if !is_used && is_caching_off(proc_root, pid) {
            return Err(Failure::CachingOff);
        }
        Ok(attached)
    }
}

/// Maximum number of attempts to attach to a changing allocator, and the interval between them.
const MAX_ATTACH_TRIES: usize = 40;
const ATTACH_RETRY_INTERVAL: Duration = Duration::from_micros(300);

/// Returns true if the program's initial environment disables caching. Does not detect a program that sets the variable
/// itself. Such a program's pool looks empty.
fn is_caching_off(proc_root: &Path, pid: Pid) -> bool {
    let environ = std::fs::read(proc_root.join(pid.to_string()).join("environ"));
    environ.unwrap_or_default().split(|&b| b == 0).any(|entry| entry.starts_with(NO_CACHING))
}

impl<M: Memory> Attached<M> {
    /// Attaches in a single attempt. Fails while the allocator is changing.
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

    /// Returns the PyTorch versions that have this layout: `torch 2.3 to 2.9`.
    pub fn library(&self) -> &'static str {
        self.library
    }

    pub fn device_count(&self) -> usize {
        self.located.devices.len()
    }

    /// Verifies an untested PyTorch build: the blocks of at least one device must add up to its statistics.
    fn verify(&mut self) -> Result<(), Failure> {
        for stats in self.stats()? {
            if stats.reserved_bytes.all.current == 0 {
                continue;
            }
            return if self.map(stats.ordinal)?.exact {
                Ok(())
            } else {
                Err(Failure::UnknownBuild)
            };
        }
        Err(Failure::UnknownBuild)
    }

    /// Returns the addresses of the device allocators, which are the same in a forked copy.
    pub fn devices(&self) -> &[u64] {
        &self.located.devices
    }

    /// Reads consistent statistics of each device: two consecutive copies are equal, and the mutex is unlocked. One
    /// copy between two reads of an unlocked mutex is not enough, because a write may have started and finished in
    /// between. A locked mutex is accepted if the thread that holds it is not updating the statistics. Omits a device
    /// that changes in every attempt. Returns [`Failure::Changed`] if the list of devices has moved, in which case the
    /// caller must attach again.
    pub fn stats(&mut self) -> Result<Vec<DeviceStats>, Failure> {
        let stats = self.read_stats(LibraryScope::All)?;
        let in_use = stats.iter().filter(|stats| stats.is_used());
        let in_use: Vec<u32> = in_use.map(|stats| stats.ordinal).collect();
        if in_use != self.in_use {
            self.in_use = in_use;
            self.accepted.clear();
        }
        Ok(stats)
    }

    /// Reads the statistics of all devices. Fails if a device changed during every read, while [`stats`](Self::stats)
    /// leaves it out.
    pub(crate) fn stats_of_all(&mut self) -> Result<Vec<DeviceStats>, Failure> {
        for attempt in 0..MAX_TRIES_FOR_ALL {
            if attempt > 0 {
                std::thread::sleep(MAP_RETRY_INTERVAL);
            }
            let stats = self.stats()?;
            if stats.len() == self.located.devices.len() {
                return Ok(stats);
            }
        }
        Err(Failure::Busy)
    }

    /// Returns true if a device was in use at the last call to [`stats`](Self::stats). If not, sampling is unnecessary.
    pub fn is_in_use(&self) -> bool {
        !self.in_use.is_empty()
    }

    /// Reads the statistics of the devices that were in use at the last call to [`stats`](Self::stats). Does not
    /// validate the list of devices, which halves the cost. A copy that equals the last accepted one is accepted
    /// without a second copy, which halves the cost again while the program changes nothing. If the allocator no longer
    /// exists, the memory rarely contains valid statistics; the next `stats` call detects this if no earlier read does.
    /// Returns [`Failure::Changed`] if a device has moved.
    pub fn sample(&mut self) -> Result<Vec<DeviceStats>, Failure> {
        if self.in_use.is_empty() {
            return Ok(Vec::new());
        }
        self.read_stats(LibraryScope::InUse)
    }

    fn read_stats(&mut self, scope: LibraryScope) -> Result<Vec<DeviceStats>, Failure> {
        let devices = self.located.devices.len();
        let (ordinals, list, mut before): (Vec<u32>, _, _) = match scope {
            LibraryScope::All => ((0..).take(devices).collect(), VECTOR + 8 * devices, Vec::new()),
            LibraryScope::InUse => (self.in_use.clone(), 0, std::mem::take(&mut self.accepted)),
        };
        let len = self.located.layout.stats_end() + MUTEX;
        let mut stats: Vec<Option<DeviceStats>> = vec![None; ordinals.len()];
        let mut holders = vec![LockHolder::default(); ordinals.len()];
        for attempt in 1..=MAX_STATS_TRIES {
            self.copy_stats(scope, &ordinals)?;
            let missing = stats.iter().filter(|stats| stats.is_none()).count();
            for (index, found) in stats.iter_mut().enumerate().filter(|(_, s)| s.is_none()) {
                let extent = list + index * len..list + (index + 1) * len;
                let copy = Copy(self.buffer.get(extent.clone()).unwrap_or_default());
                let holder = &mut holders[index];
                if before.get(extent) != Some(copy.0) {
                    *holder = LockHolder::default();
                } else {
                    let copied = copy.stats(&self.located.layout, ordinals[index]);
                    *found = copied
                        .filter(|s| copy.is_unlocked() || (holder.is_settled && s.is_valid()));
                }
                if found.is_none() && attempt >= UNLOCKED_TRIES {
                    holder.update(self.memory.runnable_cpu_time(copy.lock_holder()));
                }
            }
            if stats.iter().all(Option::is_some) {
                if scope == LibraryScope::InUse && missing == ordinals.len() {
                    before.clone_from(&self.buffer);
                    self.accepted = before;
                }
                break;
            }
            before.clone_from(&self.buffer);
            // Pause after some attempts, because the thread that holds the lock may be descheduled, so immediate attempts
            // would also fail.
            if attempt < QUICK_TRIES {
                std::hint::spin_loop();
            } else {
                std::thread::sleep(STATS_RETRY_INTERVAL);
            }
        }
        Ok(stats.into_iter().flatten().collect())
    }

    /// Copies the list of devices for validation and, for each device, the mutex, the statistics, and the mutex again,
    /// all in one system call.
    fn copy_stats(&mut self, scope: LibraryScope, ordinals: &[u32]) -> Result<(), Failure> {
        let Located { vector, elements, devices, layout } = &self.located;
        let range = |address, len| Range { address, len };
        let mut ranges = Vec::with_capacity(2 + 2 * ordinals.len());
        if scope == LibraryScope::All {
            ranges.push(range(*vector, VECTOR));
            ranges.push(range(*elements, 8 * devices.len()));
        }
        for &device in ordinals.iter().filter_map(|&ordinal| devices.get(ordinal as usize)) {
            ranges.push(range(device, layout.stats_end()));
            ranges.push(range(device, MUTEX));
        }
        self.buffer.clear();
        self.memory.read(&ranges, &mut self.buffer)?;
        let wanted: usize = ranges.iter().map(|range| range.len).sum();
        let is_valid =
            self.buffer.len() == wanted && (scope == LibraryScope::InUse || self.is_listed());
        if is_valid { Ok(()) } else { Err(Failure::Changed) }
    }

    /// Returns true if the list of devices at the start of the buffer is unchanged.
    fn is_listed(&self) -> bool {
        let mut words = View(&self.buffer).words();
        let is_same_start = words.next() == Some(self.located.elements);
        is_same_start
            && self
                .located
                .devices
                .iter()
                .copied()
                .eq(words.skip(2).take(self.located.devices.len()))
    }

    fn device(&self, ordinal: u32) -> Option<Device<'_>> {
        let index = usize::try_from(ordinal).ok()?;
        Some(Device {
            memory: &self.memory,
            address: *self.located.devices.get(index)?,
            layout: &self.located.layout,
        })
    }

    /// Returns the layout of a Block, or `None` until a block exists.
    fn block_layout(&mut self, ordinal: u32) -> Result<Option<BlockLayout>, MemoryError> {
        if self.blocks.is_none()
            && let Some(device) = self.device(ordinal)
        {
            self.blocks = device.calibrate_blocks()?;
        }
        Ok(self.blocks)
    }

    /// Returns the size of the largest free block of any stream, from the last nodes of the free-block trees, in a few
    /// system calls.
    pub fn largest_free_block(&mut self, ordinal: u32) -> Reading<Bytes> {
        for _ in 0..MAX_LARGEST_TRIES {
            let blocks = match self.block_layout(ordinal) {
                Ok(blocks) => blocks,
                Err(MemoryError::Unreadable { .. }) => continue,
                Err(error) => return Reading::Missing(Failure::from(error).missing()),
            };
            let Some(device) = self.device(ordinal) else {
                return Reading::missing(Reason::Unsupported, "device not found");
            };
            match device.largest_free_block(blocks.as_ref()) {
                Ok(largest) => return Bytes(largest).into(),
                Err(UnknownReason::Busy) => {}
                Err(UnknownReason::TooManyStreams) => {
                    return Reading::missing(
                        Reason::NotRead,
                        "too many streams have free blocks, so not all of them can be read for every sample; see the block map",
                    );
                }
                Err(UnknownReason::Memory(error)) => {
                    return Reading::Missing(Failure::from(error).missing());
                }
            }
        }
        Reading::missing(Reason::NotRead, "the allocator changed during every read")
    }

    /// Reads every segment and block of a device. The caller must set `process` and `at` of the map.
    ///
    /// Makes up to five attempts at a walk during which nothing changes. If the allocator changes in all of them,
    /// returns the last successful walk, marked as not exact. Fails if the device does not exist, or if every walk
    /// failed.
    pub fn map(&mut self, ordinal: u32) -> Result<PoolMap, Failure> {
        self.map_and_stats(ordinal).map(|(map, _)| map)
    }

    /// Reads the map and the statistics with which it was compared. If the map is exact, both describe the same
    /// instant.
    pub fn map_and_stats(&mut self, ordinal: u32) -> Result<(PoolMap, DeviceStats), Failure> {
        let mut best = Err(Failure::Busy);
        for attempt in 0..MAX_MAP_TRIES {
            if attempt > 0 {
                std::thread::sleep(MAP_RETRY_INTERVAL);
            }
            match self.try_map(ordinal) {
                Ok(found) if found.0.exact => return Ok(found),
                Ok(found) => best = Ok(found),
                // Try again, because a table moved while it was read.
                Err(Failure::Memory(MemoryError::Unreadable { .. }) | Failure::Busy) => {}
                Err(failure) => return Err(failure),
            }
        }
        best
    }

    /// Same as [`map_and_stats`](Self::map_and_stats), but with a single attempt. In a paused process, another attempt
    /// would give the same result.
    pub fn try_map(&mut self, ordinal: u32) -> Result<(PoolMap, DeviceStats), Failure> {
        let stats = self.device_stats(ordinal)?;
        let reserved = u64::try_from(stats.reserved_bytes.all.current).unwrap_or_default();
        let mut map = PoolMap { ordinal, ..PoolMap::default() };
        let blocks = self.block_layout(ordinal)?;
        let Some((device, blocks)) = self.device(ordinal).zip(blocks) else {
            map.exact = reserved == 0;
            return if map.exact { Ok((map, stats)) } else { Err(Failure::Busy) };
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
        stats.into_iter().find(|stats| stats.ordinal == ordinal).ok_or(Failure::Busy)
    }
}

/// Size of a std::vector in bytes: three words.
const VECTOR: usize = 24;
/// Number of bytes to read from a mutex: the lock word, the recursion count, the holder, and the number of users.
const MUTEX: usize = 16;
/// Offset of `__owner` in glibc's pthread_mutex_t, on both architectures.
const LOCK_HOLDER: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LibraryScope {
    All,
    InUse,
}

/// The part of the buffer that belongs to one device.
struct Copy<'a>(&'a [u8]);

impl Copy<'_> {
    fn stats(&self, layout: &Layout, ordinal: u32) -> Option<DeviceStats> {
        layout.parse(View(self.0), ordinal)
    }

    fn is_unlocked(&self) -> bool {
        let word = |at: usize| View(self.0).int(at);
        word(0) == Some(0) && word(self.0.len() - MUTEX) == Some(0)
    }

    /// Returns the ID of the thread that holds the mutex, in the PID namespace of the thread.
    fn lock_holder(&self) -> u32 {
        View(self.0).int(LOCK_HOLDER).unwrap_or_default()
    }
}

/// State of the thread that has held the mutex since the first of several equal copies was read.
///
/// Equal copies of a locked allocator may all show the same unfinished update, because a thread that has to wait for a
/// CPU keeps the lock. However, the copies are consistent if, since the first one, the thread was blocked or stopped,
/// or has run for longer than an update takes.
#[derive(Debug, Clone, Copy, Default)]
struct LockHolder {
    /// CPU time in nanoseconds at the first call to [`update`](Self::update).
    first_cpu_time: Option<u64>,
    is_settled: bool,
}

impl LockHolder {
    /// Updates the state with the result of [`Memory::runnable_cpu_time`].
    fn update(&mut self, cpu_time: Option<u64>) {
        self.is_settled = match cpu_time {
            None => true,
            Some(now) => {
                now.saturating_sub(*self.first_cpu_time.get_or_insert(now)) > MAX_UPDATE_TIME
            }
        };
    }
}
