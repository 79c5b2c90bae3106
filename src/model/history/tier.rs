//! Buckets of one width, in chunks that copies share.
//!
//! A chunk whose buckets are all alike, as of a counter that stands still, costs nothing beyond its place, gaps or not: a
//! link that is cut each hour must not make each counter dear. Copies of a series share their chunks until one of them
//! writes, so that holding the display costs what changes meanwhile and not the whole history again.

use std::collections::VecDeque;
use std::sync::Arc;

use super::series::Span;

/// Buckets in a chunk: ten minutes of the coarse tier.
const CHUNK: u64 = 60;

/// A bucket without a value.
const ABSENT: Span = Span(f32::NAN, f32::NAN);

type Buckets = [Span; CHUNK as usize];

#[derive(Debug, Clone)]
enum Chunk {
    /// One value that never moved, in the buckets whose bits are set; the others are absent.
    Alike(Span, u64),
    Each(Arc<Buckets>),
}

impl Chunk {
    /// Nothing in any bucket.
    const NONE: Self = Self::Alike(ABSENT, 0);

    /// Nothing more is written here, as a rule.
    fn seal(&mut self) {
        let Self::Each(buckets) = self else { return };
        let there = || {
            buckets
                .iter()
                .enumerate()
                .filter(|(_, span)| !span.is(ABSENT))
        };
        let value = there().next().map_or(ABSENT, |(_, span)| *span);
        if there().all(|(_, span)| span.is(value)) {
            let bits = there().fold(0, |bits, (slot, _)| bits | 1 << slot);
            *self = Self::Alike(value, bits);
        }
    }

    fn put(&mut self, slot: usize, value: Span) {
        if let Self::Alike(span, bits) = self {
            if *bits == 0 {
                *span = value;
            }
            if value.is(*span) {
                *bits |= 1 << slot;
                return;
            }
        }
        let mut buckets = self.buckets();
        let bucket = &mut Arc::make_mut(&mut buckets)[slot];
        *bucket = bucket.join(value);
        *self = Self::Each(buckets);
    }

    fn forget_from(&mut self, slot: usize) {
        let mut buckets = self.buckets();
        Arc::make_mut(&mut buckets)[slot..].fill(ABSENT);
        *self = Self::Each(buckets);
        self.seal();
    }

    /// Taken out of it, where they are its own.
    fn buckets(&mut self) -> Arc<Buckets> {
        match std::mem::replace(self, Self::NONE) {
            Self::Alike(span, bits) => {
                let bucket = |slot| if bits >> slot & 1 == 1 { span } else { ABSENT };
                Arc::new(std::array::from_fn(bucket))
            }
            Self::Each(buckets) => buckets,
        }
    }

    fn join(&self, slots: std::ops::Range<usize>) -> Span {
        match self {
            Self::Alike(span, bits) => {
                let wanted = (1_u64 << slots.len()) - 1;
                if bits >> slots.start & wanted == 0 {
                    ABSENT
                } else {
                    *span
                }
            }
            Self::Each(buckets) => buckets[slots]
                .iter()
                .fold(ABSENT, |whole, span| whole.join(*span)),
        }
    }
}

/// Numbers of buckets are times divided by their width, numbers of chunks those divided by [`CHUNK`].
#[derive(Debug, Clone, Default)]
pub(super) struct Tier {
    /// The number of the first chunk.
    first: u64,
    chunks: VecDeque<Chunk>,
    /// The oldest bucket that was ever written: what lies before it is not known here.
    since: Option<u64>,
}

impl Tier {
    /// Takes a value into bucket `index`; `most` chunks are kept. Of what is older than they reach, a value of now
    /// (`live`) shows that the clock before was wrong, so that all starts anew; one of the past is not kept.
    pub fn put(&mut self, index: u64, value: Span, most: u64, live: bool) {
        let number = index / CHUNK;
        if self.chunks.is_empty() {
            self.clear(number);
        }
        let end = self.first + self.chunks.len() as u64;
        if number + most < end {
            if !live {
                return;
            }
            self.clear(number);
        } else if number >= end + most {
            self.clear(number);
        }
        while number < self.first {
            self.seal(0);
            self.make_room();
            self.chunks.push_front(Chunk::NONE);
            self.first -= 1;
        }
        while number >= self.first + self.chunks.len() as u64 {
            self.seal(self.chunks.len().wrapping_sub(1));
            self.make_room();
            self.chunks.push_back(Chunk::NONE);
        }
        let at = usize::try_from(number - self.first).unwrap_or(usize::MAX);
        if let Some(chunk) = self.chunks.get_mut(at) {
            chunk.put(slot(index), value);
        }
        self.since = Some(self.since.map_or(index, |since| since.min(index)));
        self.keep(self.end().saturating_sub(most));
    }

    fn clear(&mut self, number: u64) {
        self.chunks = VecDeque::new();
        (self.first, self.since) = (number, None);
    }

    fn seal(&mut self, at: usize) {
        if let Some(chunk) = self.chunks.get_mut(at) {
            chunk.seal();
        }
    }

    /// Doubling, as by itself, would leave much unused.
    fn make_room(&mut self) {
        if self.chunks.len() == self.chunks.capacity() {
            self.chunks.reserve_exact(8);
        }
    }

    /// The number of the chunk behind the last.
    fn end(&self) -> u64 {
        self.first + self.chunks.len() as u64
    }

    /// Forgets the chunks before the one of this number.
    fn keep(&mut self, number: u64) {
        while self.first < number && self.chunks.pop_front().is_some() {
            self.first += 1;
        }
    }

    /// Forgets the chunks that lie wholly before bucket `index`.
    pub fn forget_before(&mut self, index: u64) {
        self.keep(index / CHUNK);
    }

    pub fn forget(&mut self) {
        self.clear(0);
    }

    /// Forgets bucket `index` and all behind it.
    pub fn forget_from(&mut self, index: u64) {
        let kept = (index / CHUNK + 1).saturating_sub(self.first);
        self.chunks
            .truncate(usize::try_from(kept).unwrap_or(usize::MAX));
        if index / CHUNK < self.end()
            && let Some(chunk) = self.chunks.back_mut()
        {
            chunk.forget_from(slot(index));
        }
        if self.since.is_some_and(|since| since >= index) {
            self.clear(self.first);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// The first bucket of which something is known here.
    pub fn start(&self) -> Option<u64> {
        Some(self.since?.max(self.first * CHUNK)).filter(|_| !self.is_empty())
    }

    /// Joins the buckets `from..to`.
    pub fn span(&self, from: u64, to: u64) -> Option<Span> {
        let (from, to) = (
            from.max(self.first * CHUNK),
            to.min(self.end().saturating_mul(CHUNK)),
        );
        if from >= to {
            return None;
        }
        let mut whole = ABSENT;
        for number in from / CHUNK..=(to - 1) / CHUNK {
            let begins = number * CHUNK;
            let slots = slot(from.max(begins))..slot(to.min(begins + CHUNK) - 1) + 1;
            let at = usize::try_from(number - self.first).unwrap_or(usize::MAX);
            if let Some(chunk) = self.chunks.get(at) {
                whole = whole.join(chunk.join(slots));
            }
        }
        (!whole.0.is_nan()).then_some(whole)
    }

    /// What it takes on the heap.
    pub fn bytes(&self) -> usize {
        let each = |chunk: &&Chunk| matches!(chunk, Chunk::Each(_));
        // With the two counts of an `Arc`.
        let chunk = size_of::<Buckets>() + 2 * size_of::<usize>();
        self.chunks.capacity() * size_of::<Chunk>()
            + self.chunks.iter().filter(each).count() * chunk
    }
}

fn slot(index: u64) -> usize {
    usize::try_from(index % CHUNK).unwrap_or(0)
}
