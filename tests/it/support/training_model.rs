//! The caching allocator of a training run, block by block. It models PyTorch's rules with a transformer's requests,
//! for maps of realistic size and shape without a GPU.
//!
//! 24 layers of width 2048 and batches of varying length result in 1400 to 1700 blocks in 500 segments, as in a real
//! run of that size. The same on every run.

use std::collections::{BTreeMap, BTreeSet};

use gputop_model::pool::{Block, BlockState, PoolKind, PoolMap, Segment};
use gputop_model::process::ProcessKey;
use gputop_model::units::{Bytes, Mono};

use super::training_day::{self, Random};

const MIB: u64 = 1 << 20;
const LAYERS: usize = 24;
const WIDTH: u64 = 2_048;
/// Bytes of each activation of a layer, per token of a batch of eight.
const ACTIVATIONS: [u64; 8] = [3, 1, 1, 1, 4, 4, 1, 1];
const LENGTHS: [u64; 5] = [1_024, 960, 896, 777, 513];

/// A best-fit allocator with splitting, in segments of 2 MiB, 20 MiB or the requested size.
#[derive(Default)]
struct Cache {
    segments: BTreeMap<u64, (u64, PoolKind)>,
    blocks: BTreeMap<u64, Held>,
    /// (small, size, address)
    free: BTreeSet<(bool, u64, u64)>,
    next: u64,
}

#[derive(Clone, Copy)]
struct Held {
    size: u64,
    requested: Option<u64>,
    segment: u64,
    small: bool,
}

impl Cache {
    fn allocate(&mut self, requested: u64) -> u64 {
        let size = requested.div_ceil(512).max(1) * 512;
        let small = size <= MIB;
        let fits = self.free.range((small, size, 0)..(small, u64::MAX, 0));
        let found = fits.copied().next();
        let (_, room, address) = found.unwrap_or_else(|| self.grow(small, size));
        self.free.remove(&(small, room, address));
        let segment = self.blocks[&address].segment;
        let rest = room - size;
        let is_split = if small { rest >= 512 } else { rest > MIB };
        if is_split {
            self.put(address + size, rest, None, segment, small);
        }
        let size = if is_split { size } else { room };
        self.put(address, size, Some(requested), segment, small);
        address
    }

    fn grow(&mut self, small: bool, size: u64) -> (bool, u64, u64) {
        let length = match size {
            _ if small => 2 * MIB,
            ..10_485_760 => 20 * MIB,
            _ => size.next_multiple_of(2 * MIB),
        };
        let address = self.next;
        self.next += length;
        let kind = if small { PoolKind::Small } else { PoolKind::Large };
        self.segments.insert(address, (length, kind));
        self.put(address, length, None, address, small);
        (small, length, address)
    }

    fn release(&mut self, mut address: u64) {
        let mut held = self.blocks[&address];
        let behind = self.blocks.range(address + 1..).next();
        if let Some((&at, other)) = behind.filter(|(_, other)| other.joins(&held)) {
            held.size += other.size;
            let other = *other;
            self.take_out(at, other);
        }
        let before = self.blocks.range(..address).next_back();
        if let Some((&at, other)) = before.filter(|(_, other)| other.joins(&held)) {
            held.size += other.size;
            let other = *other;
            self.take_out(at, other);
            self.blocks.remove(&address);
            address = at;
        }
        self.put(address, held.size, None, held.segment, held.small);
    }

    fn take_out(&mut self, address: u64, held: Held) {
        self.blocks.remove(&address);
        self.free.remove(&(held.small, held.size, address));
    }

    fn put(&mut self, at: u64, size: u64, requested: Option<u64>, segment: u64, small: bool) {
        let held = Held { size, requested, segment, small };
        self.blocks.insert(at, held);
        if requested.is_none() {
            self.free.insert((small, size, at));
        }
    }
}

impl Held {
    fn joins(&self, other: &Self) -> bool {
        self.requested.is_none() && self.segment == other.segment
    }
}

/// One rank of a job.
pub struct Trainer {
    rank: u32,
    dice: Random,
    cache: Cache,
    parameters: Vec<u64>,
}

impl Trainer {
    /// Returns a trainer with weights and optimizer state, after three steps.
    pub fn new(rank: u32) -> Self {
        let matrix = WIDTH * WIDTH * 2;
        let layer = [3 * matrix, matrix, 4 * matrix, 4 * matrix];
        let vectors = [3, 1, 1, 1, 4, 1, 1, 1].map(|n| n * WIDTH * 2);
        let mut parameters: Vec<u64> =
            (0..LAYERS).flat_map(|_| layer.into_iter().chain(vectors)).collect();
        parameters.extend([50_257 * WIDTH * 2, 1_024 * WIDTH * 2]);
        let mut trainer = Self {
            rank,
            dice: Random(0x5EED_0000 + u64::from(rank)),
            cache: Cache {
                next: 0x7f00_0000_0000 + u64::from(rank) * 0x123 * 2 * MIB,
                ..Cache::default()
            },
            parameters,
        };
        for i in 0..trainer.parameters.len() {
            let bytes = trainer.parameters[i];
            for part in [bytes, 2 * bytes, 2 * bytes, 4] {
                trainer.cache.allocate(part);
            }
        }
        (0..3).for_each(|_| drop(trainer.step(None)));
        trainer
    }

    /// Returns the map at a random point of the next step, which then runs to its end.
    pub fn map(&mut self, at: Mono) -> PoolMap {
        let place = self.dice.between(0, 480) as usize;
        let mut segments = self.step(Some(place));
        segments.retain(|segment| !segment.blocks.is_empty());
        PoolMap { process: self.process(), at, exact: true, segments, ..PoolMap::default() }
    }

    pub fn process(&self) -> ProcessKey {
        training_day::key(self.rank * 8)
    }

    fn step(&mut self, seen_at: Option<usize>) -> Vec<Segment> {
        let mut seen = Vec::new();
        let mut done = 0;
        let mut look = |cache: &Cache| {
            if seen_at == Some(done) {
                seen = segments(cache);
            }
            done += 1;
        };
        let length = LENGTHS[self.dice.between(0, LENGTHS.len() as i64 - 1) as usize];
        let mut activations = Vec::new();
        for _ in 0..LAYERS {
            for part in ACTIVATIONS {
                let odd = self.dice.between(0, 2) as u64 * 4;
                activations.push(self.cache.allocate(8 * length * WIDTH * 2 * part + odd));
                look(&self.cache);
            }
            let scores = self.cache.allocate(4 * 16 * length * length);
            self.cache.release(scores);
        }
        let mut gradients = Vec::new();
        for i in (0..self.parameters.len()).rev() {
            gradients.push(self.cache.allocate(self.parameters[i]));
            if !self.dice.one_in(3)
                && let Some(activation) = activations.pop()
            {
                self.cache.release(activation);
            }
            look(&self.cache);
        }
        activations.into_iter().chain(gradients).for_each(|block| self.cache.release(block));
        seen
    }
}

fn segments(cache: &Cache) -> Vec<Segment> {
    let block = |(&address, held): (&u64, &Held)| Block {
        address,
        size: Bytes(held.size),
        requested: held.requested.map(Bytes),
        state: match held.requested {
            Some(_) => BlockState::Allocated,
            None => BlockState::Free,
        },
    };
    let segments = cache.segments.iter().map(|(&address, &(size, pool))| Segment {
        address,
        size: Bytes(size),
        pool,
        blocks: cache.blocks.range(address..address + size).map(block).collect(),
        ..Segment::default()
    });
    segments.collect()
}
