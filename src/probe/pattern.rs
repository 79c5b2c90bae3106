//! Patterns of allocation requests to run under a policy: sizes and lifetimes. A block's lifetime is the number of
//! subsequent requests until it is freed.
//!
//! A process's pattern comes from the best available source: its allocation trace, which contains every lifetime;
//! several pool maps, with the allocator's own counter for the number of requests between them; or, for an idle
//! process, only its current blocks.

use std::collections::HashMap;

use gputop_allocator::rounded;
use gputop_allocator::trace::{Op, Trace};
use gputop_model::{BlockState, Bytes, PoolMap};
use serde::{Deserialize, Serialize};

/// An allocation request: `[size, lives_for]` on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PatternRequest(
    /// Bytes.
    pub u64,
    /// Number of subsequent requests after which the block is freed, or 0 if it is never freed.
    pub u32,
);

/// Allocation requests to run under each policy.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AllocationPattern {
    /// Source of the pattern: `synthetic`, `PID 418, sampled`.
    pub source: String,
    pub requests: Vec<PatternRequest>,
}

/// Maximum number of requests in a pattern. A policy that calls the driver for each request must finish within its
/// share of the time limit.
pub const MAX_REQUESTS: usize = 400;

/// Pseudo-random numbers with a fixed seed. Every probe makes the same requests, so differences between results come
/// from the GPU.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        // xorshift64*, Vigna 2014.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, below: usize) -> usize {
        let below = u64::try_from(below.max(1)).unwrap_or(u64::MAX);
        usize::try_from(self.next() % below).unwrap_or(0)
    }
}

/// Returns a pattern resembling a training program with batches of different lengths: long-lived small and medium
/// blocks between short-lived ones of all sizes, from 512 bytes to a sixteenth of the arena. At most three quarters of
/// the arena is live at any time.
pub fn synthetic(arena: Bytes) -> AllocationPattern {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let max_size = (arena.0 / 16).max(1024);
    let powers = max_size.ilog2() - 9;
    let budget = arena.0 / 4 * 3;
    let mut requests = Vec::new();
    let mut live = Live::default();
    for _ in 0..MAX_REQUESTS {
        let power = 9 + random.below(powers as usize) as u32;
        let size = (1 << power) + random.next() % (1 << power);
        let size = rounded(Bytes(size)).0;
        let lives_for = match random.below(8) {
            0 if size <= max_size / 4 => 0,
            _ => 1 + random.below(24) as u32,
        };
        live.step();
        if live.bytes + size <= budget {
            live.add(size, lives_for);
            requests.push(PatternRequest(size, lives_for));
        }
    }
    AllocationPattern { source: "synthetic".into(), requests }
}

/// Memory that is live at the current point of a pattern being generated.
#[derive(Default)]
struct Live {
    bytes: u64,
    /// Remaining lifetime and size of each block that will be freed.
    expiring: Vec<(u32, u64)>,
}

impl Live {
    fn step(&mut self) {
        for (remaining, size) in &mut self.expiring {
            *remaining -= 1;
            if *remaining == 0 {
                self.bytes -= *size;
            }
        }
        self.expiring.retain(|(remaining, _)| *remaining > 0);
    }

    fn add(&mut self, size: u64, lives_for: u32) {
        self.bytes += size;
        if lives_for > 0 {
            self.expiring.push((lives_for, size));
        }
    }
}

/// Derives a pattern from a process's current blocks. A live block becomes a long-lived request. A free block becomes a
/// short-lived request, made twice. If the blocks exceed the arena or [`MAX_REQUESTS`], only every n-th block is used.
/// Blocks larger than half of the arena are omitted.
pub fn of_map(map: &PoolMap, source: &str, arena: Bytes) -> AllocationPattern {
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
    // The pattern requests each live block once and each free block twice. All requests together must stay within the
    // limits.
    let by_bytes = total.div_ceil((arena.0 / 4 * 3).max(1));
    let by_count = (blocks.len() * 2).div_ceil(MAX_REQUESTS);
    let every = usize::try_from(by_bytes).unwrap_or(usize::MAX).max(by_count).max(1);
    blocks = blocks.into_iter().step_by(every).collect();
    // A map does not contain the order of the requests, so they are shuffled.
    let mut random = Random(0xD1B5_4A32_D192_ED03);
    let freed: Vec<(u64, bool)> = blocks.iter().filter(|b| !b.1).copied().collect();
    blocks.extend(freed);
    for at in (1..blocks.len()).rev() {
        blocks.swap(at, random.below(at + 1));
    }
    let span = (blocks.len() / 4).clamp(1, 64);
    let requests = blocks
        .iter()
        .map(|&(size, is_live)| {
            if is_live {
                PatternRequest(size, 0)
            } else {
                PatternRequest(size, 1 + random.below(span) as u32)
            }
        })
        .collect();
    AllocationPattern { source: source.to_owned(), requests }
}

/// A block's lifetime, from its allocation to its free. Both are positions in the program's sequence of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Life {
    size: u64,
    begin: u64,
    /// `None` if the block was not freed.
    end: Option<u64>,
}

/// Derives a pattern from an allocation trace. Blocks that existed at the beginning of the trace are requested first.
pub fn of_trace(trace: &Trace, source: &str, arena: Bytes) -> AllocationPattern {
    let before =
        |live: &gputop_allocator::trace::Live| Life { size: live.requested.0, begin: 0, end: None };
    let mut lives: Vec<Life> = trace.start.iter().map(before).collect();
    let mut open: HashMap<u64, usize> = HashMap::new();
    open.extend(trace.start.iter().zip(0..).map(|(live, at)| (live.block, at)));
    let mut requests = 0;
    for op in &trace.ops {
        match *op {
            Op::Alloc { block, requested, .. } => {
                requests += 1;
                open.insert(block, lives.len());
                lives.push(Life { size: requested.0, begin: requests, end: None });
            }
            Op::Free { block } => {
                if let Some(at) = open.remove(&block) {
                    lives[at].end = Some(requests);
                }
            }
            _ => {}
        }
    }
    of_lives(lives, source, arena)
}

/// A pool map, and the number of requests that the allocator had served when the map was read.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TimedMap {
    pub requests: u64,
    pub map: PoolMap,
}

/// Derives a pattern from successive maps of one pool. Returns `None` if the allocator served no requests between the
/// maps. The caller can then use a single map.
pub fn of_maps(seen: &[TimedMap], source: &str, arena: Bytes) -> Option<AllocationPattern> {
    let first = seen.first()?.requests;
    if seen.last()?.requests <= first || !seen.is_sorted_by_key(|seen| seen.requests) {
        return None;
    }
    let mut lives: Vec<Life> = Vec::new();
    let mut open: HashMap<(u64, u64), usize> = HashMap::new();
    // Request count at the previous map. A block that is new in this map was allocated since then, and a block that is
    // missing was freed.
    let mut before: Option<u64> = None;
    for TimedMap { requests, map } in seen {
        let now = requests - first;
        let blocks = map.segments.iter().flat_map(|segment| &segment.blocks);
        let live = blocks.filter(|block| block.state == BlockState::Allocated);
        let mut still_live: HashMap<(u64, u64), usize> = HashMap::new();
        let mut new = Vec::new();
        for block in live {
            let key = (block.address, block.requested.unwrap_or(block.size).0);
            match open.remove(&key) {
                Some(at) => drop(still_live.insert(key, at)),
                None => new.push(key),
            }
        }
        let since = before.unwrap_or(now);
        // Allocations and frees between two maps are spread evenly, because their order is unknown.
        let within =
            |nth: usize, of: usize| since + (now - since) * (nth as u64 + 1) / (of as u64 + 1);
        let mut freed: Vec<usize> = open.drain().map(|(_, at)| at).collect();
        freed.sort_unstable();
        let of = freed.len();
        for (nth, at) in freed.into_iter().enumerate() {
            lives[at].end = Some(within(nth, of).max(lives[at].begin));
        }
        let of = new.len();
        for (nth, key) in new.into_iter().enumerate() {
            still_live.insert(key, lives.len());
            lives.push(Life { size: key.1, begin: within(nth, of), end: None });
        }
        add_short_lives(&mut lives, map, since, now.saturating_sub(of as u64));
        open = still_live;
        before = Some(now);
    }
    Some(of_lives(lives, source, arena))
}

/// Adds requests for blocks allocated and freed between two maps. The allocator's counter gives their number, and the
/// blocks that are free afterwards give their sizes.
fn add_short_lives(lives: &mut Vec<Life>, map: &PoolMap, since: u64, until: u64) {
    let blocks = map.segments.iter().flat_map(|segment| &segment.blocks);
    let free: Vec<u64> = blocks
        .filter(|block| matches!(block.state, BlockState::Free | BlockState::Active))
        .map(|block| block.size.0)
        .collect();
    let number = usize::try_from(until.saturating_sub(since)).unwrap_or(usize::MAX);
    if free.is_empty() || number == 0 {
        return;
    }
    let mut random = Random(0xD1B5_4A32_D192_ED03);
    // Add at most `MAX_REQUESTS` requests. If the program made more, each added request stands for several.
    let represents = number.div_ceil(MAX_REQUESTS);
    for begin in (since..until).step_by(represents) {
        let lives_for = 1 + random.below(number.min(24 * represents));
        lives.push(Life {
            size: free[random.below(free.len())],
            begin,
            end: Some((begin + lives_for as u64).min(until)),
        });
    }
}

/// Converts block lifetimes to a pattern. If the blocks exceed the arena or [`MAX_REQUESTS`], only every n-th block is
/// used. Blocks larger than half of the arena are omitted.
fn of_lives(mut lives: Vec<Life>, source: &str, arena: Bytes) -> AllocationPattern {
    lives.retain(|life| life.size > 0 && life.size <= arena.0 / 2);
    lives.sort_by_key(|life| life.begin);
    let by_bytes = max_live(&lives).div_ceil((arena.0 / 4 * 3).max(1));
    let by_count = lives.len().div_ceil(MAX_REQUESTS);
    let every = usize::try_from(by_bytes).unwrap_or(usize::MAX).max(by_count).max(1);
    let selected: Vec<Life> = lives.into_iter().step_by(every).collect();
    let requests = (0..).zip(&selected).map(|(at, life)| {
        let lives_for = life.end.map_or(0, |end| {
            let next = selected.partition_point(|other| other.begin <= end);
            u32::try_from(next.saturating_sub(at)).unwrap_or(u32::MAX).max(1)
        });
        PatternRequest(life.size, lives_for)
    });
    AllocationPattern { source: source.to_owned(), requests: requests.collect() }
}

fn max_live(lives: &[Life]) -> u64 {
    let begins = lives.iter().map(|life| (life.begin, true, life.size));
    let ends = lives.iter().filter_map(|life| Some((life.end?, false, life.size)));
    let mut changes: Vec<_> = begins.chain(ends).collect();
    // If an allocation and a free have the same request number, count the allocation first.
    changes.sort_unstable_by_key(|(at, begins, _)| (*at, !begins));
    let (mut now, mut max) = (0_u64, 0);
    for (_, begins, size) in changes {
        now = if begins { now + size } else { now - size };
        max = max.max(now);
    }
    max
}
