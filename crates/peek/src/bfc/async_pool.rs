//! The allocator that JAX uses with `XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async`.
//!
//! The CUDA driver has the pool, so there is no list of free memory in the process. JAX counts what it allocates, and has a
//! hash table of all allocations:
//!
//! ```text
//! allocator ─► statistics, as those of the BFC allocator
//!     │
//!     └──────► control bytes, one for each slot: below 0x80 if it is used, 0xFF after the last
//!              slots: address and size
//! ```
//!
//! In JAX 0.11.2, the name is at +24, the pointer to the statistics at +72, and those to the control bytes and the slots at
//! +88 and +96. The offsets are found in each object: the name says which GPU it is, the statistics contain a plausible
//! limit, and the sizes of the slots add up to `bytes_in_use`.

use gputop_model::reported_pool::PoolSource;
use gputop_model::{Allocator, Bytes, ProcessKey, Reading, Reason, ReportedPool};

use super::failure::{Failure, mapped};
use super::library::Library;
use crate::clock::now_mono;
use crate::memory::view::View;
use crate::memory::{Memory, MemoryError, Range, is_pointer, up_to};

/// Start of the name. The number of the GPU follows.
const NAME: &[u8] = b"gpu_async_";
const OBJECT_BYTES: usize = 256;
const STRING: usize = 32;
const NAME_OFFSETS: std::ops::Range<usize> = 8..64;
const STATS_BYTES: usize = 48;
/// Offset of `bytes_limit` in the statistics, and of the byte that says whether it is set.
const LIMIT: usize = 32;
const LIMIT_IS_SET: usize = 40;
const MAX_SIZE: u64 = 1 << 50;
const MAX_DEVICE: u32 = 127;
/// Distances from the pointer to the statistics to that of the control bytes.
const TABLE_OFFSETS: std::ops::RangeInclusive<usize> = 8..=64;
const SLOT: usize = 16;
/// Control byte after the last slot.
const END: u8 = 0xFF;
/// Maximum number of slots: a million allocations. JAX programs have some thousands.
const MAX_SLOTS: usize = 1 << 20;
const BLOCK: usize = 4_096;
const MAX_TRIES: u32 = 5;

#[derive(Debug, Clone, Copy)]
pub struct AsyncPool {
    pub address: u64,
    vtable: u64,
    library: &'static Library,
    /// Index of the GPU as the process sees it.
    pub ordinal: u32,
    /// Offset of the pointer to the statistics.
    stats: usize,
    /// Offset of the pointers to the control bytes and the slots, if the table was recognized.
    table: Option<usize>,
}

/// Statistics, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stats {
    in_use: u64,
    peak: u64,
    limit: u64,
}

impl Stats {
    fn read(memory: &dyn Memory, address: u64) -> Result<Option<Self>, MemoryError> {
        let bytes = mapped(up_to(memory, address, STATS_BYTES))?.unwrap_or_default();
        let view = View(&bytes);
        let size = |offset| view.word(offset).filter(|size| *size < MAX_SIZE);
        let (Some(_), Some(in_use), Some(peak)) = (size(0), size(8), size(16)) else {
            return Ok(None);
        };
        let limit = size(LIMIT).filter(|limit| *limit >= 1 << 20);
        let limit = limit.filter(|_| view.byte(LIMIT_IS_SET) == Some(1));
        let is_plausible = |limit: &u64| in_use <= peak && peak <= limit.saturating_mul(2);
        Ok(limit.filter(is_plausible).map(|limit| Self { in_use, peak, limit }))
    }
}

impl AsyncPool {
    /// Recognizes the allocator at `address`.
    pub(super) fn recognize(
        memory: &dyn Memory,
        address: u64,
        vtable: u64,
        library: &'static Library,
    ) -> Result<Option<Self>, MemoryError> {
        let bytes = mapped(up_to(memory, address, OBJECT_BYTES))?.unwrap_or_default();
        let view = View(&bytes);
        if view.word(0) != Some(vtable) {
            return Ok(None);
        }
        let Some((ordinal, name_end)) = ordinal(view, address) else { return Ok(None) };
        for stats in (name_end..OBJECT_BYTES).step_by(8) {
            let Some(pointer) = view.word(stats).filter(|word| is_pointer(*word)) else { continue };
            if Stats::read(memory, pointer)?.is_none() {
                continue;
            }
            let mut pool = Self { address, vtable, library, ordinal, stats, table: None };
            pool.table = pool.find_table(memory)?;
            return Ok(Some(pool));
        }
        Ok(None)
    }

    /// Finds the table whose sizes add up to the bytes in use.
    fn find_table(&self, memory: &dyn Memory) -> Result<Option<usize>, MemoryError> {
        for distance in TABLE_OFFSETS.step_by(8) {
            let with = Self { table: Some(self.stats + distance), ..*self };
            if with.allocations(memory)?.is_some_and(|found| !found.is_empty()) {
                return Ok(with.table);
            }
        }
        Ok(None)
    }

    fn object(&self, memory: &dyn Memory) -> Result<Vec<u8>, Failure> {
        let bytes = mapped(up_to(memory, self.address, OBJECT_BYTES))?.unwrap_or_default();
        let is_same = View(&bytes).word(0) == Some(self.vtable);
        if is_same { Ok(bytes) } else { Err(Failure::Changed) }
    }

    /// Reads the statistics.
    pub(super) fn read(
        &self,
        process: ProcessKey,
        memory: &dyn Memory,
    ) -> Result<ReportedPool, Failure> {
        let object = self.object(memory)?;
        let pointer = View(&object).word(self.stats).ok_or(Failure::Changed)?;
        let stats = Stats::read(memory, pointer)?.ok_or(Failure::Changed)?;
        let in_driver = || {
            Reading::missing(
                Reason::Unsupported,
                "the CUDA driver has the pool, which cannot be read",
            )
        };
        Ok(ReportedPool {
            process,
            framework: self.library.framework,
            allocator: Allocator::CudaMallocAsync,
            source: PoolSource::Memory,
            ordinal: self.ordinal,
            gpu: Reading::default(),
            at: now_mono(),
            allocated: Bytes(stats.in_use).into(),
            allocated_peak: Bytes(stats.peak).into(),
            reserved: in_driver(),
            reserved_peak: in_driver(),
            limit: Bytes(stats.limit).into(),
            largest_free_block: in_driver(),
        })
    }

    /// Returns true if two processes have this allocator at the same address, with the same pointers.
    pub(super) fn is_same(&self, one: &dyn Memory, other: &dyn Memory) -> bool {
        let own = self.object(one);
        own.is_ok() && own == self.object(other)
    }

    /// Returns the address and size of each live allocation, if they add up to the bytes in use.
    pub fn allocations(&self, memory: &dyn Memory) -> Result<Option<Vec<(u64, u64)>>, MemoryError> {
        let Some(table) = self.table else { return Ok(None) };
        for _ in 0..MAX_TRIES {
            let Some(object) = mapped(up_to(memory, self.address, OBJECT_BYTES))? else { break };
            let word = |offset| View(&object).word(offset).filter(|word| is_pointer(*word));
            let (Some(stats), Some(control), Some(slots)) =
                (word(self.stats), word(table), word(table + 8))
            else {
                return Ok(None);
            };
            let Some(found) = read_table(memory, control, slots)? else { return Ok(None) };
            let sum = found.iter().fold(0_u64, |sum, (_, size)| sum.saturating_add(*size));
            if Stats::read(memory, stats)?.is_some_and(|stats| stats.in_use == sum) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

/// Returns the number of the GPU in the object's name, and the offset of the end of the name.
fn ordinal(view: View<'_>, address: u64) -> Option<(u32, usize)> {
    NAME_OFFSETS.step_by(8).find_map(|offset| {
        // A short string is inside the object.
        let is_inside = view.word(offset)? == address.wrapping_add(offset as u64 + 16);
        let len = usize::try_from(view.word(offset + 8)?).ok().filter(|len| *len < 16)?;
        let text = view.0.get(offset + 16..offset + 16 + len).filter(|_| is_inside)?;
        let number = std::str::from_utf8(text.strip_prefix(NAME)?).ok()?.parse().ok()?;
        (number <= MAX_DEVICE).then_some((number, offset + STRING))
    })
}

/// Reads the used slots of a hash table (`absl::flat_hash_map`). Returns `None` if there is no end.
fn read_table(
    memory: &dyn Memory,
    control: u64,
    slots: u64,
) -> Result<Option<Vec<(u64, u64)>>, MemoryError> {
    let mut used = Vec::new();
    let mut end = None;
    for start in (0..MAX_SLOTS).step_by(BLOCK) {
        let bytes = up_to(memory, control.wrapping_add(start as u64), BLOCK)?;
        end = bytes.iter().position(|byte| *byte == END).map(|at| start + at);
        used.extend(bytes.iter().take_while(|byte| **byte != END).map(|byte| *byte < 0x80));
        if end.is_some() || bytes.len() < BLOCK {
            break;
        }
    }
    // The number of slots is a power of two, minus one.
    let Some(count) = end.filter(|end| (end + 1).is_power_of_two()) else { return Ok(None) };
    let range = Range { address: slots, len: count * SLOT };
    let mut bytes = Vec::new();
    let Some(()) = mapped(memory.read(&[range], &mut bytes))? else { return Ok(None) };
    let words: Vec<u64> = View(&bytes).words().collect();
    let slots = words.as_chunks::<2>().0.iter().zip(used);
    Ok(Some(
        slots.filter(|(_, used)| *used).map(|([address, size], _)| (*address, *size)).collect(),
    ))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::library;
    use super::*;
    use crate::memory::maps::Mapping;

    const OBJECT: u64 = 0x5000_0000;
    const STATS: u64 = 0x5100_0000;
    const CONTROL: u64 = 0x5200_0000;
    const SLOTS: u64 = 0x5300_0000;
    const VTABLE: u64 = 0x7f00_0000_1000;

    /// Words by address. Everything else is not mapped.
    #[derive(Debug, Default)]
    struct Words(BTreeMap<u64, u64>);

    impl Words {
        fn put(&mut self, address: u64, words: &[u64]) {
            self.0.extend((address..).step_by(8).zip(words.iter().copied()));
        }
    }

    impl Memory for Words {
        fn read(&self, ranges: &[Range], into: &mut Vec<u8>) -> Result<(), MemoryError> {
            for range in ranges {
                for address in (range.address..).step_by(8).take(range.len.div_ceil(8)) {
                    let Some(word) = self.0.get(&address) else { return Ok(()) };
                    let left = range.len - usize::try_from(address - range.address).expect("small");
                    into.extend(word.to_le_bytes().iter().take(left));
                }
            }
            Ok(())
        }

        fn maps(&self) -> Result<Vec<Mapping>, MemoryError> {
            Ok(Vec::new())
        }
    }

    /// An allocator with two live allocations in seven slots. The name is at `name`, the pointers to the statistics and the
    /// table are at `stats` and `table`.
    fn memory(name: usize, stats: usize, table: usize) -> Words {
        let mut words = Words::default();
        words.put(OBJECT, &[0; OBJECT_BYTES / 8]);
        words.put(OBJECT, &[VTABLE]);
        let text = u64::from_le_bytes(*b"gpu_asyn");
        let rest = u64::from_le_bytes(*b"c_3\0\0\0\0\0");
        let content = OBJECT + name as u64 + 16;
        words.put(OBJECT + name as u64, &[content, 11, text, rest]);
        words.put(OBJECT + stats as u64, &[STATS]);
        words.put(OBJECT + table as u64, &[CONTROL, SLOTS]);
        // The bytes after the flag can be anything.
        words.put(STATS, &[9, 5_000, 7_000, 4_000, 1 << 30, 0x1234_5601]);
        // Used, empty, deleted, used, empty, empty, empty, end.
        words.put(CONTROL, &[u64::from_le_bytes([0x11, 0x80, 0xFE, 0x7F, 0x80, 0x80, 0x80, END])]);
        words.put(SLOTS, &[0xa000, 4_000, 1, 1, 2, 2, 0xb000, 1_000, 3, 3, 4, 4, 5, 5]);
        words
    }

    fn recognize(words: &Words) -> Option<AsyncPool> {
        AsyncPool::recognize(words, OBJECT, VTABLE, library::jax()).expect("memory")
    }

    #[test]
    fn reads_statistics_and_live_allocations_at_any_offsets() {
        for (name, stats, table) in [(24, 72, 88), (16, 64, 72), (40, 96, 136)] {
            let words = memory(name, stats, table);
            let pool = recognize(&words).expect("an allocator");
            let values = pool.read(ProcessKey::new(7, 1), &words).expect("values");
            assert_eq!((values.ordinal, values.allocator), (3, Allocator::CudaMallocAsync));
            assert_eq!(values.allocated.get(), Some(Bytes(5_000)));
            assert_eq!(values.allocated_peak.get(), Some(Bytes(7_000)));
            assert_eq!(values.limit.get(), Some(Bytes(1 << 30)));
            assert_eq!((values.reserved.get(), values.largest_free_block.get()), (None, None));
            let live = pool.allocations(&words).expect("memory");
            assert_eq!(live, Some(vec![(0xa000, 4_000), (0xb000, 1_000)]));
        }
    }

    #[test]
    fn allocations_that_do_not_add_up_are_not_shown() {
        let pool = recognize(&memory(24, 72, 88)).expect("an allocator");
        let mut busy = memory(24, 72, 88);
        busy.put(STATS + 8, &[5_001]);
        assert_eq!(pool.allocations(&busy).expect("memory"), None);
        let values = pool.read(ProcessKey::new(7, 1), &busy).expect("values");
        assert_eq!(values.allocated.get(), Some(Bytes(5_001)));
        // No end, an odd number of slots, and slots that are not mapped.
        let full = u64::from_le_bytes([0x11; 8]);
        let odd = u64::from_le_bytes([0x11, END, END, END, END, END, END, END]);
        let mut changes = [full, odd.swap_bytes() >> 8].map(|control| {
            let mut words = memory(24, 72, 88);
            words.put(CONTROL, &[control]);
            words
        });
        changes.iter_mut().for_each(|words| {
            words.0.retain(|address, _| *address != SLOTS + 8);
            assert_eq!(pool.allocations(words).expect("memory"), None);
        });
    }

    #[test]
    fn other_objects_are_refused_and_a_destroyed_one_is_noticed() {
        let pool = recognize(&memory(24, 72, 88)).expect("an allocator");
        let mut words = memory(24, 72, 88);
        words.put(OBJECT, &[VTABLE + 8]);
        assert!(recognize(&words).is_none());
        let read = pool.read(ProcessKey::new(7, 1), &words);
        assert_eq!(read.err(), Some(Failure::Changed));
        let wrong = [
            // Another name, a limit that is not set, and more in use than ever.
            (OBJECT + 40, u64::from_le_bytes(*b"gpu_host")),
            (STATS + 40, 0),
            (STATS + 16, 10),
        ];
        for (address, value) in wrong {
            let mut words = memory(24, 72, 88);
            words.put(address, &[value]);
            assert!(recognize(&words).is_none(), "{address:x}");
        }
    }
}
