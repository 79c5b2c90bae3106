//! Finds the vtables of the classes, and the objects on the heaps that begin with one.

use std::path::Path;
use std::time::{Duration, Instant};

use gputop_model::Pid;

use super::failure::Failure;
use super::recorder::{is_recorder, may_begin_recorder};
use crate::memory::elf::Image;
use crate::memory::heap_pages::{PresentPages, pieces, read_pages};
use crate::memory::maps::{Mapping, images};
use crate::memory::{Memory, MemoryError};

const LIBRARIES: &[&str] = &["libtorch_cuda.so", "libtorch_hip.so"];
/// Maximum number of PyTorch libraries per process.
const MAX_IMAGES: usize = 4;
const GROUP: &str = "_ZTVN4c10d16ProcessGroupNCCLE";
const WORK: &str = "_ZTVN4c10d16ProcessGroupNCCL8WorkNCCLE";
const NCCL2: &str = "_ZTVN4c10d5nccl216ProcessGroupNCCLE";
/// Distance of a vtable's first function, to which objects point, behind its symbol.
const FIRST_FUNCTION: u64 = 16;
/// Maximum number of bytes that a search reads, and its maximum duration.
const MAX_BYTES: usize = 4 << 30;
const MAX_DURATION: Duration = Duration::from_secs(5);
/// Maximum number of objects that may be groups.
const MAX_HITS: usize = 4_096;
/// Maximum distance of the program's heap to the lowest heap. Other mappings are much farther away.
const MAX_BREAK_DISTANCE: u64 = 1 << 40;

/// First words of the objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Classes {
    pub group: u64,
    pub work: u64,
    /// Exists from torch 2.14 on.
    pub nccl2: Option<u64>,
}

impl Classes {
    /// Finds the classes through the exported symbols of PyTorch's library.
    pub fn find(memory: &dyn Memory, maps: &[Mapping]) -> Result<Self, Failure> {
        let bases = images(maps, |map| LIBRARIES.contains(&map.file_name()));
        for base in bases.into_iter().take(MAX_IMAGES) {
            match Self::find_in(memory, base) {
                Ok(Some(classes)) => return Ok(classes),
                Ok(None) | Err(MemoryError::Unreadable { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Failure::NotNccl)
    }

    fn find_in(memory: &dyn Memory, base: u64) -> Result<Option<Self>, MemoryError> {
        let image = Image::read(memory, base)?;
        let vtable = |name| {
            let symbol = image.symbol(memory, name);
            symbol.map(|symbol| symbol.map(|address| address.wrapping_add(FIRST_FUNCTION)))
        };
        let (group, work, nccl2) = (vtable(GROUP)?, vtable(WORK)?, vtable(NCCL2)?);
        Ok(group.zip(work).map(|(group, work)| Self { group, work, nccl2 }))
    }
}

/// An object that may be a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hit {
    pub address: u64,
    pub vtable: u64,
}

/// A pass over the heaps of a process, one heap after the other.
pub struct Search<'a> {
    memory: &'a dyn Memory,
    heaps: std::vec::IntoIter<&'a Mapping>,
    classes: Classes,
    present: PresentPages,
    buffer: Vec<u8>,
    left: usize,
    start: Instant,
    is_stopped: bool,
    /// Addresses of the objects that may be flight recorders.
    pub recorders: Vec<u64>,
}

impl<'a> Search<'a> {
    /// `process` is the live process whose pages are known, or `None` for recorded memory.
    pub fn new(
        memory: &'a dyn Memory,
        maps: &'a [Mapping],
        classes: Classes,
        process: Option<(&Path, Pid)>,
    ) -> Self {
        let mut heaps: Vec<&Mapping> = maps.iter().filter(|map| map.is_heap).collect();
        let lowest = heaps.iter().map(|map| map.start).min().unwrap_or_default();
        // The heap of the main thread has the lowest address. PyTorch creates groups there, unless another allocator is
        // preloaded. The largest mappings contain tensors.
        heaps.sort_by_key(|map| {
            (map.start - lowest > MAX_BREAK_DISTANCE, map.end.saturating_sub(map.start))
        });
        let present = process
            .map_or_else(PresentPages::all, |(proc_root, pid)| PresentPages::open(proc_root, pid));
        Self {
            memory,
            heaps: heaps.into_iter(),
            classes,
            present,
            buffer: Vec::new(),
            left: MAX_BYTES,
            start: Instant::now(),
            is_stopped: false,
            recorders: Vec::new(),
        }
    }

    /// Returns true if the search stopped before the end of the heaps.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Searches the next heap. Returns `None` after the last one, or at the limits.
    pub fn next_heap(&mut self) -> Option<Vec<Hit>> {
        let heap = self.heaps.next().filter(|_| !self.is_stopped)?;
        let mut hits = Vec::new();
        for piece in pieces(heap) {
            for run in self.present.present(piece) {
                if run.len > self.left || self.start.elapsed() > MAX_DURATION {
                    self.is_stopped = true;
                    return Some(hits);
                }
                self.left -= run.len;
                let (classes, recorders) = (self.classes, &mut self.recorders);
                read_pages(self.memory, run, &mut self.buffer, &mut |bytes, address| {
                    find_objects(bytes, address, classes, &mut hits, recorders);
                });
            }
            hits.truncate(MAX_HITS);
            self.recorders.truncate(MAX_HITS);
        }
        Some(hits)
    }
}

fn find_objects(
    bytes: &[u8],
    address: u64,
    classes: Classes,
    hits: &mut Vec<Hit>,
    recorders: &mut Vec<u64>,
) {
    let nccl2 = classes.nccl2.unwrap_or(classes.group);
    let (words, _) = bytes.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let (vtable, address) = (u64::from_le_bytes(*word), address + 8 * index as u64);
        if vtable == classes.group || vtable == nccl2 {
            hits.push(Hit { address, vtable });
        } else if may_begin_recorder(vtable) && is_recorder(&bytes[8 * index..]) {
            recorders.push(address);
        }
    }
}
