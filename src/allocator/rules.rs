//! The settings of PyTorch's caching allocator that decide what fits, as one torch release understands them.

use super::config::Config;
use super::{LARGE_SEGMENT, MIN_BLOCK};
use crate::model::units::Bytes;

/// `(2, 8)` for torch 2.8.
pub type Torch = (u16, u16);

/// `(2, 8)` of `2.8.0+cu126`.
pub fn torch_of(version: &str) -> Option<Torch> {
    let mut numbers = version.split(['.', '+']).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Whose rules count where the release is not known.
pub const NEWEST: Torch = (2, 15);

/// What [`model`](super::model) goes by.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    pub torch: Torch,
    pub expandable: bool,
    /// `max_split_size_mb`; `None`: everything may be split.
    pub max_split: Option<Bytes>,
    /// `max_non_split_rounding_mb`.
    pub non_split_rounding: Bytes,
    /// Of what may be reserved; 0 is off. Without a memory fraction it has no effect.
    pub garbage_collection_threshold: f64,
    pub roundup: Roundup,
    /// `large_segment_size_mb`.
    pub large_segment: Bytes,
    /// Part of the card that the process may reserve.
    pub memory_fraction: Option<f64>,
}

impl Rules {
    pub fn new(torch: Torch, config: &Config) -> Self {
        Self {
            torch,
            expandable: config.expandable.unwrap_or(false) && torch >= (2, 1),
            max_split: config.max_split,
            non_split_rounding: config.non_split_rounding.unwrap_or(LARGE_SEGMENT),
            garbage_collection_threshold: config.garbage_collection_threshold.unwrap_or(0.0),
            roundup: config.roundup.unwrap_or_default(),
            large_segment: config.large_segment.unwrap_or(LARGE_SEGMENT),
            memory_fraction: config.memory_fraction,
        }
    }

    /// What may be reserved on a card of that size; `None` without a limit. From torch 2.10 on the whole card is none.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss
    )]
    pub fn limit(&self, card: Bytes) -> Option<Bytes> {
        let whole = self.torch >= (2, 10);
        self.memory_fraction
            .filter(|fraction| !(whole && *fraction >= 1.0))
            .map(|fraction| Bytes((fraction * card.0 as f64) as u64))
    }

    /// Which of several free blocks of a size is taken.
    pub(super) fn ties(&self) -> TieBreak {
        if self.torch < (2, 12) {
            TieBreak::Address
        } else if self.torch == (2, 12) {
            TieBreak::Block
        } else {
            TieBreak::Segment
        }
    }

    /// Up to torch 2.12 whoever allocates from a private pool is taken to capture a graph. Later ones ask the stream;
    /// a history does not tell, and a `MemPool` captures nothing.
    pub(super) fn private_pools_capture(&self) -> bool {
        self.torch < (2, 13)
    }

    /// Up to torch 2.4 private pools get plain segments, whatever `expandable_segments` says.
    pub(super) fn private_pools_expand(&self) -> bool {
        self.torch >= (2, 5)
    }

    /// A request larger than a whole range fails in all releases; up to 2.14 the range that was reserved for it stays.
    pub(super) fn gives_short_ranges_back(&self) -> bool {
        self.torch >= (2, 15)
    }

    pub(super) fn max_split(&self) -> u64 {
        self.max_split.map_or(u64::MAX, |size| size.0)
    }

    /// The size of the block that a request gets at least.
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

/// Among free blocks of one stream and size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TieBreak {
    /// The lowest address.
    Address,
    /// The one that was made first.
    Block,
    /// In the segment that was made first; there the lowest address.
    Segment,
}

/// Up to the next of `divisions` equal steps between two powers of two.
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

/// `roundup_power2_divisions`: for sizes from 1 MiB, 2 MiB, 4 MiB … to 32 GiB and above; smaller ones go by the first.
/// 0 and 1 divide nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Roundup(pub [u32; 16]);

impl Roundup {
    fn divisions(self, size: u64) -> u64 {
        let interval = size.ilog2().saturating_sub(20).min(15);
        u64::from(self.0[interval as usize])
    }
}
