//! Memory pools of CuPy 14.1 and 14.2.
//!
//! A pool is a Python object whose type Cython compiled into the module `cupy.cuda.memory`. The module has a static type
//! object with a pointer to the name of the type, and each pool has a pointer to that type object:
//!
//! ```text
//! "cupy.cuda.memory.SingleDeviceMemoryPool" ◄─[+24]─ type object ◄─[+8]─ pool
//! ```
//!
//! A pool has 128 bytes: the dictionary of its arenas at +32, a mutex at +40, and the bytes from the driver, the bytes in
//! use and the limit at +80, +88 and +96. The device is at +120. Each stream has an arena with the free chunks of its pool,
//! sorted by size, so the last node of the tree is the largest:
//!
//! ```text
//! dictionary {stream: weak reference} ─► arena ─[+32]─► std::set<(size, chunk)>: root, first and last node, count
//! ```
//!
//! Pools of earlier versions have another size, and no sum of
//! the bytes in use, so they are not read. `tests/fake_cuda/cupy_pool.py` has real pools of any version without a GPU.

use gputop_model::reported_pool::{Framework, PoolSource};
use gputop_model::{Allocator, Bytes, ProcessKey, Reading, Reason, ReportedPool};

use super::failure::mapped;
use super::vtable::positions;
use crate::clock::now_mono;
use crate::memory::maps::{Mapping, images};
use crate::memory::view::View;
use crate::memory::{Memory, MemoryError, Range, exact, is_pointer, pointer, up_to};

const TYPE_NAME: &[u8] = b"cupy.cuda.memory.SingleDeviceMemoryPool\0";
/// Offset of `tp_name` in a type object, and of `ob_type` in every object.
const NAME: u64 = 24;
const TYPE: u64 = 8;
/// Offset of `tp_basicsize`, the size of each object, after `tp_name`.
const SIZE: usize = 32;
const POOL_BYTES: usize = 128;
const ARENAS: usize = 32;
const TOTAL: usize = 80;
const IN_USE: usize = 88;
const LIMIT: usize = 96;
const DEVICE: usize = 120;
const ARENA_NAME: &[u8] = b"cupy.cuda.memory._Arena\0";
/// Offsets in an arena: the list of chunks that wait to be freed, the last node of the set, and the number of nodes.
const PENDING: usize = 24;
const LAST: usize = 64;
const COUNT: usize = 72;
/// Offsets in a node: the node to its right, the size and the chunk.
const RIGHT: usize = 24;
const NODE_SIZE: usize = 32;
const NODE_CHUNK: usize = 40;
/// Offsets in a chunk.
const CHUNK_SIZE: usize = 40;
const CHUNK_ARENA: usize = 48;
/// Maximum number of entries in the dictionary of arenas. A program has few streams.
const MAX_ARENAS: u64 = 256;
/// Offset of the keys in a Python dictionary, of the length of a list, and of the object of a weak reference.
const DICT_KEYS: u64 = 32;
const LIST_LEN: u64 = 16;
const REFERENT: u64 = 16;
/// Sizes are multiples of this.
const UNIT: u64 = 512;
/// Maximum reference count of a pool. A freed object has a pointer in its place.
const MAX_REFERENCES: u32 = 1 << 24;
const MAX_SIZE: u64 = 1 << 50;
const MAX_DEVICE: u32 = 127;
/// Maximum size of the module. That of CuPy 14.2 has 2 MB.
const MAX_MODULE_BYTES: usize = 32 << 20;
const MAX_MODULES: usize = 2;

/// A pool on one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CupyPool {
    pub address: u64,
    type_object: u64,
}

/// The values of a pool at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PoolValues {
    total: u64,
    in_use: u64,
    limit: u64,
    device: u32,
}

/// Result of the search for the type object in a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TypeObject {
    Found(u64),
    /// The module is CuPy's, but its pools have another structure.
    OtherVersion,
    /// The module belongs to another package.
    Missing,
}

/// Returns the parts in memory of each module that may be `cupy.cuda.memory`. A dump contains no folder names.
pub(super) fn modules(maps: &[Mapping]) -> Vec<Vec<Range>> {
    let is_module = |map: &Mapping| {
        let name = map.file_name();
        name.starts_with("memory.") && name.ends_with(".so")
    };
    let of_image = |base: u64| {
        let file = maps.iter().find(|map| map.start == base).map(|map| &map.file);
        let parts = maps.iter().filter(|map| map.start >= base && Some(&map.file) == file);
        let range = |map: &Mapping| Range {
            address: map.start,
            len: usize::try_from(map.end.saturating_sub(map.start)).unwrap_or_default(),
        };
        let mut left = MAX_MODULE_BYTES;
        let parts = parts.map(range).take_while(|part| {
            let fits = part.len <= left;
            left = left.saturating_sub(part.len);
            fits
        });
        parts.collect()
    };
    images(maps, is_module).into_iter().take(MAX_MODULES).map(of_image).collect()
}

/// Finds the type object in a module, first in what is in physical memory.
pub(super) fn type_object(
    memory: &dyn Memory,
    module: &[Range],
) -> Result<TypeObject, MemoryError> {
    let resident: Vec<Range> = module.iter().flat_map(|part| memory.resident(*part)).collect();
    let found = match find_type(memory, &resident)? {
        Some(found) => Some(found),
        None => find_type(memory, module)?,
    };
    let Some(found) = found else { return Ok(TypeObject::Missing) };
    let head = up_to(memory, found, SIZE + 8)?;
    let is_known = View(&head).word(SIZE) == Some(POOL_BYTES as u64);
    Ok(if is_known { TypeObject::Found(found) } else { TypeObject::OtherVersion })
}

fn find_type(memory: &dyn Memory, parts: &[Range]) -> Result<Option<u64>, MemoryError> {
    let mut bytes = Vec::new();
    for part in parts {
        bytes.push((part.address, up_to(memory, part.address, part.len)?));
    }
    for (start, part) in &bytes {
        for at in positions(part, TYPE_NAME) {
            let name = start.wrapping_add(at as u64);
            let pointer = bytes.iter().find_map(|(start, part)| {
                let at = View(part).words().position(|word| word == name)?;
                Some(start.wrapping_add(8 * at as u64))
            });
            if let Some(pointer) = pointer {
                return Ok(Some(pointer.wrapping_sub(NAME)));
            }
        }
    }
    Ok(None)
}

impl CupyPool {
    /// Returns the pool with its pointer to `type_object` at `address`, if it is one.
    pub(super) fn recognize(
        memory: &dyn Memory,
        address: u64,
        type_object: u64,
    ) -> Result<Option<Self>, MemoryError> {
        let pool = Self { address: address.wrapping_sub(TYPE), type_object };
        let Some(bytes) = mapped(pool.bytes(memory))? else { return Ok(None) };
        Ok(pool.values(&bytes).map(|_| pool))
    }

    fn bytes(&self, memory: &dyn Memory) -> Result<Vec<u8>, MemoryError> {
        up_to(memory, self.address, POOL_BYTES)
    }

    fn values(&self, bytes: &[u8]) -> Option<PoolValues> {
        let view = View(bytes);
        let references = view.int(0).filter(|count| (1..MAX_REFERENCES).contains(count));
        let is_pool = references.is_some() && view.word(8) == Some(self.type_object);
        let size = |offset| view.word(offset).filter(|size| *size < MAX_SIZE);
        let sum = |offset| size(offset).filter(|size| size.is_multiple_of(UNIT));
        let values = PoolValues {
            total: sum(TOTAL)?,
            in_use: sum(IN_USE)?,
            limit: size(LIMIT)?,
            device: view.int(DEVICE).filter(|device| *device <= MAX_DEVICE)?,
        };
        (is_pool && view.word(ARENAS).is_some_and(is_pointer)).then_some(values)
    }

    /// Reads the pool. Returns `None` if it no longer exists.
    pub(super) fn read(
        &self,
        process: ProcessKey,
        memory: &dyn Memory,
    ) -> Result<Option<ReportedPool>, MemoryError> {
        let bytes = mapped(self.bytes(memory))?;
        let Some(values) = bytes.and_then(|bytes| self.values(&bytes)) else { return Ok(None) };
        let not_counted =
            |what| Reading::missing(Reason::Unsupported, format!("CuPy does not count {what}"));
        Ok(Some(ReportedPool {
            process,
            framework: Framework::Cupy,
            allocator: Allocator::CupyMemoryPool,
            source: PoolSource::Memory,
            ordinal: values.device,
            gpu: Reading::default(),
            at: now_mono(),
            // The program can change one value between the copies of both.
            allocated: Bytes(values.in_use.min(values.total)).into(),
            allocated_peak: not_counted("the peak"),
            reserved: Bytes(values.total).into(),
            reserved_peak: not_counted("the peak of reserved memory"),
            limit: match values.limit {
                0 => Reading::missing(Reason::Unsupported, "no limit is set"),
                limit => Bytes(limit).into(),
            },
            largest_free_block: match mapped(self.largest_free(memory, values))?.flatten() {
                Some(largest) => Bytes(largest).into(),
                None => {
                    Reading::missing(Reason::NotRead, "the free blocks changed during the read")
                }
            },
        }))
    }

    /// Returns the largest free chunk of all streams, or `None` if the chunks are changing.
    fn largest_free(
        &self,
        memory: &dyn Memory,
        values: PoolValues,
    ) -> Result<Option<u64>, MemoryError> {
        let free = values.total.saturating_sub(values.in_use);
        let mut largest = 0;
        for arena in self.arenas(memory)? {
            let bytes = exact(memory, arena, COUNT + 8, "an arena")?;
            let word = |offset| View(&bytes).word(offset).unwrap_or(0);
            let waiting = pointer(memory, word(PENDING).wrapping_add(LIST_LEN), "a list")?;
            if waiting > 0 {
                return Ok(None);
            }
            if word(COUNT) == 0 {
                continue;
            }
            let node = exact(memory, word(LAST), NODE_CHUNK + 8, "a free chunk")?;
            let node = |offset| View(&node).word(offset).unwrap_or(0);
            let chunk = exact(memory, node(NODE_CHUNK), CHUNK_ARENA + 8, "a free chunk")?;
            let chunk = |offset| View(&chunk).word(offset);
            let is_free = chunk(CHUNK_SIZE) == Some(node(NODE_SIZE))
                && chunk(CHUNK_ARENA) == Some(arena)
                && node(RIGHT) == 0;
            if !is_free || node(NODE_SIZE) > free {
                return Ok(None);
            }
            largest = largest.max(node(NODE_SIZE));
        }
        Ok(Some(largest).filter(|largest| *largest > 0 || free == 0))
    }

    /// Returns the arenas in the pool's dictionary.
    fn arenas(&self, memory: &dyn Memory) -> Result<Vec<u64>, MemoryError> {
        let dict = pointer(memory, self.address.wrapping_add(ARENAS as u64), "a pool")?;
        let keys = pointer(memory, dict.wrapping_add(DICT_KEYS), "a dictionary")?;
        let header = exact(memory, keys, 40, "a dictionary")?;
        let word = |index: usize| View(&header).word(8 * index).unwrap_or(0);
        // Since Python 3.11, the second byte is the logarithm of the size of the indices, which precede the entries.
        let (first, count) = match word(1) >> 8 & 0xff {
            0 => (40 + word(1), word(4)),
            log2_indices => (32 + (1 << log2_indices.min(32)), word(3)),
        };
        let len = 24 * count.min(MAX_ARENAS) as usize;
        let entries = exact(memory, keys.wrapping_add(first), len, "a dictionary")?;
        let mut arenas = Vec::new();
        // An entry has a hash, a key and a value. The value of a removed entry is null.
        for reference in View(&entries).words().skip(2).step_by(3).filter(|at| is_pointer(*at)) {
            let arena = pointer(memory, reference.wrapping_add(REFERENT), "a weak reference")?;
            let of = pointer(memory, arena.wrapping_add(TYPE), "an arena")?;
            let name = pointer(memory, of.wrapping_add(NAME), "a type")?;
            // The reference of an arena that no longer exists leads to `None`.
            if up_to(memory, name, ARENA_NAME.len())? == ARENA_NAME {
                arenas.push(arena);
            }
        }
        Ok(arenas)
    }

    /// Returns true if two processes have the same pool at the same address.
    pub(super) fn is_same(&self, one: &dyn Memory, other: &dyn Memory) -> bool {
        let head = |memory: &dyn Memory| {
            let bytes = self.bytes(memory).ok()?;
            self.values(&bytes)?;
            View(&bytes).word(ARENAS)
        };
        let own = head(one);
        own.is_some() && own == head(other)
    }

    /// Reads through `memory` what is needed to find the pool again.
    pub(super) fn record(&self, memory: &dyn Memory) -> Result<(), MemoryError> {
        let head = up_to(memory, self.type_object, SIZE + 8)?;
        if let Some(name) = View(&head).word(24) {
            up_to(memory, name, TYPE_NAME.len())?;
        }
        self.read(ProcessKey::default(), memory).map(drop)
    }
}
