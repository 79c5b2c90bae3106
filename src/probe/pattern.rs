//! The requests that are run against a policy: sizes, and how many further requests each lives for.
//!
//! Of a process they come from the best that is known of it: its allocation trace, in which every life is written down;
//! else from several maps, between which the allocator's own counter says how many requests were made; else, of a
//! process that does nothing just then, from its present blocks alone.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::allocator::rounded;
use crate::allocator::trace::{Op, Trace};
use crate::model::pool::{BlockState, PoolMap};
use crate::model::units::Bytes;

/// One request: `[size, lives_for]` on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PatternRequest(
    /// Bytes.
    pub u64,
    /// Freed when so many further requests were made; 0 lives to the end.
    pub u32,
);

/// What is run under each policy.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Pattern {
    /// `synthetic`, `PID 418, sampled`.
    pub source: String,
    pub requests: Vec<PatternRequest>,
}

/// A policy that asks the driver each time has to end within its share of the time limit.
pub const MAX_REQUESTS: usize = 400;

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
    for _ in 0..MAX_REQUESTS {
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
            requests.push(PatternRequest(size, lives_for));
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
    let by_count = (blocks.len() * 2).div_ceil(MAX_REQUESTS);
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
            true => PatternRequest(size, 0),
            false => PatternRequest(size, 1 + dice.below(span) as u32),
        })
        .collect();
    Pattern {
        source: source.to_owned(),
        requests,
    }
}

/// A block from its request to its end, both counted in requests of its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Life {
    size: u64,
    begin: u64,
    /// None: it lived on.
    end: Option<u64>,
}

/// Of a history: what lived before it begins is asked for first.
pub fn of_trace(trace: &Trace, source: &str, arena: Bytes) -> Pattern {
    let before = |live: &crate::allocator::trace::Live| Life {
        size: live.requested.0,
        begin: 0,
        end: None,
    };
    let mut lives: Vec<Life> = trace.start.iter().map(before).collect();
    let mut open: HashMap<u64, usize> = HashMap::new();
    open.extend(
        trace
            .start
            .iter()
            .zip(0..)
            .map(|(live, at)| (live.block, at)),
    );
    let mut requests = 0;
    for op in &trace.ops {
        match *op {
            Op::Alloc {
                block, requested, ..
            } => {
                requests += 1;
                open.insert(block, lives.len());
                lives.push(Life {
                    size: requested.0,
                    begin: requests,
                    end: None,
                });
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

/// A map, and how many requests its allocator had served when it was read.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TimedMap {
    pub requests: u64,
    pub map: PoolMap,
}

/// Of maps of one pool, one after the other. `None` where nothing was asked for meanwhile: a single map tells as much.
pub fn of_maps(seen: &[TimedMap], source: &str, arena: Bytes) -> Option<Pattern> {
    let first = seen.first()?.requests;
    if seen.last()?.requests <= first || !seen.is_sorted_by_key(|seen| seen.requests) {
        return None;
    }
    let mut lives: Vec<Life> = Vec::new();
    let mut open: HashMap<(u64, u64), usize> = HashMap::new();
    // The map before, by its count: what is new came, and what is missing ended, somewhere in between.
    let mut before: Option<u64> = None;
    for TimedMap { requests, map } in seen {
        let now = requests - first;
        let blocks = map.segments.iter().flat_map(|segment| &segment.blocks);
        let live = blocks.filter(|block| block.state == BlockState::Allocated);
        let mut there: HashMap<(u64, u64), usize> = HashMap::new();
        let mut new = Vec::new();
        for block in live {
            let size = block.requested.unwrap_or(block.size).0;
            let key = (block.address, size);
            match open.remove(&key) {
                Some(at) => drop(there.insert(key, at)),
                None => new.push(key),
            }
        }
        let since = before.unwrap_or(now);
        // In even steps: their order within is not known.
        let within =
            |nth: usize, of: usize| since + (now - since) * (nth as u64 + 1) / (of as u64 + 1);
        let mut ended: Vec<usize> = open.drain().map(|(_, at)| at).collect();
        ended.sort_unstable();
        let of = ended.len();
        for (nth, at) in ended.into_iter().enumerate() {
            lives[at].end = Some(within(nth, of).max(lives[at].begin));
        }
        let of = new.len();
        for (nth, key) in new.into_iter().enumerate() {
            there.insert(key, lives.len());
            lives.push(Life {
                size: key.1,
                begin: within(nth, of),
                end: None,
            });
        }
        unseen(&mut lives, map, since, now.saturating_sub(of as u64));
        open = there;
        before = Some(now);
    }
    Some(of_lives(lives, source, arena))
}

/// Requests that came and ended between two maps: as many as the counter says, of the sizes that are free after them.
fn unseen(lives: &mut Vec<Life>, map: &PoolMap, since: u64, until: u64) {
    let blocks = map.segments.iter().flat_map(|segment| &segment.blocks);
    let free: Vec<u64> = blocks
        .filter(|block| matches!(block.state, BlockState::Free | BlockState::Active))
        .map(|block| block.size.0)
        .collect();
    let number = usize::try_from(until.saturating_sub(since)).unwrap_or(usize::MAX);
    if free.is_empty() || number == 0 {
        return;
    }
    let mut dice = Dice(0xD1B5_4A32_D192_ED03);
    // No more than are kept: each stands for so many.
    let stands_for = number.div_ceil(MAX_REQUESTS);
    for begin in (since..until).step_by(stands_for) {
        let lives_for = 1 + dice.below(number.min(24 * stands_for));
        lives.push(Life {
            size: free[dice.below(free.len())],
            begin,
            end: Some((begin + lives_for as u64).min(until)),
        });
    }
}

/// Where they are more, or larger at a moment, than may be run, every n-th stands for the rest; what alone is larger than
/// half of the arena is left out.
fn of_lives(mut lives: Vec<Life>, source: &str, arena: Bytes) -> Pattern {
    lives.retain(|life| life.size > 0 && life.size <= arena.0 / 2);
    lives.sort_by_key(|life| life.begin);
    let by_bytes = most_alive(&lives).div_ceil((arena.0 / 4 * 3).max(1));
    let by_count = lives.len().div_ceil(MAX_REQUESTS);
    let every = usize::try_from(by_bytes).unwrap_or(usize::MAX);
    let every = every.max(by_count).max(1);
    let kept: Vec<Life> = lives.into_iter().step_by(every).collect();
    let requests = (0..).zip(&kept).map(|(at, life)| {
        let lives_for = life.end.map_or(0, |end| {
            let next = kept.partition_point(|other| other.begin <= end);
            u32::try_from(next.saturating_sub(at))
                .unwrap_or(u32::MAX)
                .max(1)
        });
        PatternRequest(life.size, lives_for)
    });
    Pattern {
        source: source.to_owned(),
        requests: requests.collect(),
    }
}

/// Bytes that live at the same time, at most.
fn most_alive(lives: &[Life]) -> u64 {
    let begins = lives.iter().map(|life| (life.begin, true, life.size));
    let ends = lives
        .iter()
        .filter_map(|life| Some((life.end?, false, life.size)));
    let mut changes: Vec<_> = begins.chain(ends).collect();
    // What ends at a moment is there beside what begins at it.
    changes.sort_unstable_by_key(|(at, begins, _)| (*at, !begins));
    let (mut now, mut most) = (0_u64, 0);
    for (_, begins, size) in changes {
        now = if begins { now + size } else { now - size };
        most = most.max(now);
    }
    most
}
