//! The requests that are run against a policy: sizes, and how many further requests each lives for.

use serde::{Deserialize, Serialize};

use crate::allocator::rounded;
use crate::model::pool::{BlockState, PoolMap};
use crate::model::units::Bytes;

/// One request: `[size, lives_for]` on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted(
    /// Bytes.
    pub u64,
    /// Freed when so many further requests were made; 0 lives to the end.
    pub u32,
);

/// What is run under each policy.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Pattern {
    /// `synthetic`, `PID 418`.
    pub source: String,
    pub requests: Vec<Wanted>,
}

/// A policy that asks the driver each time has to end within its share of the time limit.
pub const MOST_REQUESTS: usize = 400;

/// Pseudo-random numbers, the same ones each time: two probes of one card are to differ by the card alone.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        // xorshift64*, Vigna 2014.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// In `0..below`.
    fn below(&mut self, below: usize) -> usize {
        let below = u64::try_from(below.max(1)).unwrap_or(u64::MAX);
        usize::try_from(self.next() % below).unwrap_or(0)
    }
}

/// Like a training program whose batches differ in length: long-lived small and middle blocks between short-lived ones
/// of all sizes, from 512 bytes to a sixteenth of the arena. At no moment more than three quarters of the arena live.
pub fn synthetic(arena: Bytes) -> Pattern {
    let mut dice = Dice(0x9E37_79B9_7F4A_7C15);
    let most = (arena.0 / 16).max(1024);
    let powers = most.ilog2() - 9;
    let budget = arena.0 / 4 * 3;
    let mut requests = Vec::new();
    let mut live = Live::default();
    for _ in 0..MOST_REQUESTS {
        let power = 9 + dice.below(powers as usize) as u32;
        let size = (1 << power) + dice.next() % (1 << power);
        let size = rounded(Bytes(size)).0;
        let lives_for = match dice.below(8) {
            0 if size <= most / 4 => 0,
            _ => 1 + dice.below(24) as u32,
        };
        live.step();
        if live.bytes + size <= budget {
            live.add(size, lives_for);
            requests.push(Wanted(size, lives_for));
        }
    }
    Pattern {
        source: "synthetic".into(),
        requests,
    }
}

/// Bytes that live at a moment of a pattern.
#[derive(Default)]
struct Live {
    bytes: u64,
    ends: Vec<(u32, u64)>,
}

impl Live {
    fn step(&mut self) {
        for (left, size) in &mut self.ends {
            *left -= 1;
            if *left == 0 {
                self.bytes -= *size;
            }
        }
        self.ends.retain(|(left, _)| *left > 0);
    }

    fn add(&mut self, size: u64, lives_for: u32) {
        self.bytes += size;
        if lives_for > 0 {
            self.ends.push((lives_for, size));
        }
    }
}

/// What the present blocks of a process tell of its requests: a live block is long-lived, a free one was a request that
/// has ended and may come again. Where they are more, or larger, than the arena holds, every n-th stands for the rest,
/// and what alone is larger than half of the arena is left out.
pub fn of_map(map: &PoolMap, source: &str, arena: Bytes) -> Pattern {
    let mut blocks: Vec<(u64, bool)> = map
        .segments
        .iter()
        .flat_map(|segment| &segment.blocks)
        .filter_map(|block| match block.state {
            BlockState::Allocated => Some((block.requested.unwrap_or(block.size).0, true)),
            BlockState::Active | BlockState::Free => Some((block.size.0, false)),
            _ => None,
        })
        .filter(|(size, _)| *size > 0 && *size <= arena.0 / 2)
        .collect();
    let total: u64 = blocks.iter().fold(0, |sum, b| sum.saturating_add(b.0));
    // Live blocks come once, ended ones twice: room for both within the bounds.
    let by_bytes = total.div_ceil((arena.0 / 4 * 3).max(1));
    let by_count = (blocks.len() * 2).div_ceil(MOST_REQUESTS);
    let every = usize::try_from(by_bytes)
        .unwrap_or(usize::MAX)
        .max(by_count)
        .max(1);
    blocks = blocks.into_iter().step_by(every).collect();
    // The order in which a program asked is not in a map; one made of chance stands for it.
    let mut dice = Dice(0xD1B5_4A32_D192_ED03);
    let ended: Vec<(u64, bool)> = blocks.iter().filter(|b| !b.1).copied().collect();
    blocks.extend(ended);
    for at in (1..blocks.len()).rev() {
        blocks.swap(at, dice.below(at + 1));
    }
    let span = (blocks.len() / 4).clamp(1, 64);
    let requests = blocks
        .iter()
        .map(|&(size, is_live)| match is_live {
            true => Wanted(size, 0),
            false => Wanted(size, 1 + dice.below(span) as u32),
        })
        .collect();
    Pattern {
        source: source.to_owned(),
        requests,
    }
}
