//! One allocator that was found in a process: where its memory is, and how to read it.

use gputop_model::reported_pool::{PoolSource, ReportedPool};
use gputop_model::{Bytes, Mono, PoolMap, ProcessKey, Reading, Reason};

use super::failure::Failure;
use super::layout::{Layout, LayoutMatch, MAX_CALIBRATION_BYTES};
use super::library::Library;
use super::snapshot::{ChunkMap, Reader, Snapshot};
use crate::clock::now_mono;
use crate::memory::view::View;
use crate::memory::{Memory, Range};

/// Maximum ordinal in a name. No machine has more GPUs.
const MAX_ORDINAL: u32 = 127;

/// The memory that an allocator distributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Memory of the GPU with this ordinal in the process.
    Gpu(u32),
    /// Pinned memory of the host, for copies from and to the GPU. Not part of GPU memory.
    PinnedHost,
}

impl Place {
    /// Parses the allocator's name, such as `GPU_0_bfc`, `GPU_collectivememory_0_bfc` and `xla_gpu_host_bfc`. Returns
    /// `None` for other allocators.
    pub fn of(name: &str) -> Option<Self> {
        let name = name.strip_suffix("_bfc")?;
        if name.ends_with("host") {
            return Some(Self::PinnedHost);
        }
        let (_, ordinal) = name.rsplit_once('_')?;
        ordinal.parse().ok().filter(|ordinal| *ordinal <= MAX_ORDINAL).map(Self::Gpu)
    }
}

#[derive(Debug, Clone)]
pub struct Allocator {
    /// Name that the framework gave it: `GPU_0_bfc`.
    pub name: String,
    pub place: Place,
    pub address: u64,
    vtable: u64,
    layout: Layout,
    library: &'static Library,
    reader: Reader,
}

impl Allocator {
    pub(super) fn new(
        name: String,
        place: Place,
        (address, vtable): (u64, u64),
        layout: Layout,
        library: &'static Library,
    ) -> Self {
        let reader = Reader::new(address, vtable, layout);
        Self { name, place, address, vtable, layout, library, reader }
    }

    /// Reads the regions and chunks, as the model describes a map.
    pub fn read_map(&mut self, memory: &dyn Memory) -> Result<PoolMap, Failure> {
        let map = self.read(memory)?.map.ok_or(Failure::Busy)?;
        let ordinal = match self.place {
            Place::Gpu(ordinal) => ordinal,
            Place::PinnedHost => 0,
        };
        Ok(PoolMap {
            ordinal,
            allocator: self.library.allocator,
            at: now_mono(),
            exact: true,
            segments: map.segments(),
            ..PoolMap::default()
        })
    }

    /// Reads the statistics and the chunks. Recognizes the structure again if the chunks do not add up, because the size
    /// of a chunk can be ambiguous while there are few.
    pub fn read(&mut self, memory: &dyn Memory) -> Result<Snapshot, Failure> {
        let snapshot = self.reader.read(memory)?;
        if !snapshot.is_broken {
            return Ok(snapshot);
        }
        let mut budget = MAX_CALIBRATION_BYTES;
        match Layout::calibrate(memory, self.address, self.vtable, &mut budget)? {
            LayoutMatch::Pool { layout, .. } if layout != self.layout => {
                self.layout = layout;
                self.reader = Reader::new(self.address, self.vtable, layout);
                self.reader.read(memory)
            }
            _ => Ok(snapshot),
        }
    }

    /// Returns why the framework has no pool of GPU memory, if this one is of host memory.
    pub(super) fn not_initialised(&self) -> Failure {
        Failure::NotInitialised(self.library.framework.words())
    }

    /// Reads everything that is needed to find the structure again.
    pub(super) fn recognize_and_read(&mut self, memory: &dyn Memory) -> Result<(), Failure> {
        let mut budget = MAX_CALIBRATION_BYTES;
        Layout::calibrate(memory, self.address, self.vtable, &mut budget)?;
        self.read(memory).map(drop)
    }

    /// Returns true if two processes have this allocator at the same address, with the vector of regions at the same
    /// address.
    pub(super) fn is_same(&self, one: &dyn Memory, other: &dyn Memory) -> bool {
        let address = self.address.wrapping_add(self.layout.regions as u64);
        let ranges = [Range { address: self.address, len: 8 }, Range { address, len: 8 }];
        let (mut words, mut others) = (Vec::new(), Vec::new());
        let is_read = one.read(&ranges, &mut words).and_then(|()| other.read(&ranges, &mut others));
        is_read.is_ok() && View(&words).word(0) == Some(self.vtable) && words == others
    }

    /// Returns the pool as the model describes it.
    pub(super) fn pool(&self, process: ProcessKey, at: Mono, snapshot: &Snapshot) -> ReportedPool {
        let stats = &snapshot.stats;
        let size = |bytes: u64| Reading::Value(Bytes(bytes));
        let largest = snapshot.map.as_ref().map(ChunkMap::largest_free);
        let changed = || Reading::missing(Reason::NotRead, Failure::Busy.to_string());
        ReportedPool {
            process,
            framework: self.library.framework,
            allocator: self.library.allocator,
            source: PoolSource::Memory,
            ordinal: match self.place {
                Place::Gpu(ordinal) => ordinal,
                Place::PinnedHost => 0,
            },
            gpu: Reading::default(),
            at,
            allocated: size(stats.in_use),
            allocated_peak: size(stats.peak_in_use),
            reserved: size(stats.reserved),
            reserved_peak: size(stats.peak_reserved),
            limit: size(stats.limit),
            largest_free_block: largest.map_or_else(changed, size),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_says_which_memory_the_pool_has() {
        let table = [
            ("GPU_0_bfc", Some(Place::Gpu(0))),
            ("GPU_7_bfc", Some(Place::Gpu(7))),
            ("GPU_collectivememory_2_bfc", Some(Place::Gpu(2))),
            ("xla_gpu_host_bfc", Some(Place::PinnedHost)),
            ("gpu_host_bfc", Some(Place::PinnedHost)),
            ("GPU_999_bfc", None),
            ("bfc_cpu_allocator_for_gpu", None),
            ("_bfc", None),
        ];
        for (name, place) in table {
            assert_eq!(Place::of(name), place, "{name}");
        }
    }
}
