//! Settings of PyTorch's caching allocator that affect memory use, as a specific torch release interprets them.

use gputop_model::units::Bytes;

use super::MIN_BLOCK;

/// Major and minor version of a torch release: `(2, 8)` for torch 2.8.
pub type TorchVersion = (u16, u16);

/// Parses a torch version: returns `(2, 8)` for `2.8.0+cu126`.
pub fn torch_of(version: &str) -> Option<TorchVersion> {
    let mut numbers = version.split(['.', '+']).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Release whose rules apply if the program's torch release is unknown.
pub const NEWEST: TorchVersion = (2, 15);

#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    pub torch: TorchVersion,
    pub expandable: bool,
    /// `max_split_size_mb`; `None` if all blocks may be split.
    pub max_split: Option<Bytes>,
    /// `max_non_split_rounding_mb`.
    pub non_split_rounding: Bytes,
    /// Fraction of the memory limit above which garbage is collected; 0 means off. Has no effect without a memory
    /// fraction.
    pub garbage_collection_threshold: f64,
    pub roundup: Roundup,
    /// `large_segment_size_mb`.
    pub large_segment: Bytes,
    pub memory_fraction: Option<f64>,
}

impl Rules {
    /// Returns the maximum reserved memory on a GPU with `card` bytes of memory, or `None` if there is no limit. From
    /// torch 2.10 on, a fraction of 1 is not a limit.
    pub fn limit(&self, card: Bytes) -> Option<Bytes> {
        let whole = self.torch >= (2, 10);
        self.memory_fraction
            .filter(|fraction| !(whole && *fraction >= 1.0))
            .map(|fraction| Bytes((fraction * card.0 as f64) as u64))
    }

    pub(super) fn tie_break(&self) -> TieBreak {
        if self.torch < (2, 12) {
            TieBreak::Address
        } else if self.torch == (2, 12) {
            TieBreak::Block
        } else {
            TieBreak::Segment
        }
    }

    /// Returns true if PyTorch treats every allocation from a private pool as part of a graph capture (torch 2.12 and
    /// earlier). Later releases check whether the stream is capturing. Traces do not record captures, so for those
    /// releases, a private pool is assumed to be a `MemPool` used outside a capture.
    pub(super) fn private_pools_capture(&self) -> bool {
        self.torch < (2, 13)
    }

    /// Returns true if private pools follow `expandable_segments` (not in torch 2.4 and earlier).
    pub(super) fn private_pools_expand(&self) -> bool {
        self.torch >= (2, 5)
    }

    /// Returns true if the allocator releases a new address range that turns out to be smaller than the request. Such a
    /// request fails in every release, but releases up to 2.14 do not release the range.
    pub(super) fn releases_short_ranges(&self) -> bool {
        self.torch >= (2, 15)
    }

    pub(super) fn max_split(&self) -> u64 {
        self.max_split.map_or(u64::MAX, |size| size.0)
    }

    /// Rounds a request up to the size of the block that serves it.
    pub(super) fn round(&self, requested: u64) -> u64 {
        if requested < MIN_BLOCK.0 {
            return MIN_BLOCK.0;
        }
        let divisions = self.roundup.divisions(requested);
        if divisions == 1 && self.torch < (2, 4) && requested > MIN_BLOCK.0 {
            return requested;
        }
        if divisions > 1 && requested > MIN_BLOCK.0 * divisions {
            round_to_division(requested, divisions)
        } else {
            requested.next_multiple_of(MIN_BLOCK.0)
        }
    }
}

/// Rule for choosing among free blocks of the same stream and size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TieBreak {
    /// Prefer the block with the lowest address.
    Address,
    /// Prefer the block that was created first.
    Block,
    /// Prefer the block in the segment that was created first, and within that segment the lowest address.
    Segment,
}

/// Rounds a size up to the next of `divisions` equal steps between two powers of two.
fn round_to_division(size: u64, divisions: u64) -> u64 {
    if size.is_power_of_two() {
        return size;
    }
    let floor = 1 << size.ilog2();
    let step = floor >> divisions.ilog2();
    if step == 0 {
        return floor << 1;
    }
    size.next_multiple_of(step)
}

/// `roundup_power2_divisions` for sizes from 1 MiB, 2 MiB, 4 MiB … to 32 GiB and above; smaller sizes use the first
/// value. Values of 0 and 1 have no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Roundup(pub [u32; 16]);

impl Roundup {
    fn divisions(self, size: u64) -> u64 {
        let interval = size.ilog2().saturating_sub(20).min(15);
        u64::from(self.0[interval as usize])
    }
}
