//! History buckets of one width, in chunks shared between copies.
//!
//! A chunk whose buckets are all equal, such as that of an idle counter, takes no extra memory, even with gaps. A
//! connection that drops every hour therefore does not increase every counter's memory use. Copies of a series share
//! their chunks until one copy writes, so pausing the display takes memory only for later changes, not for a second
//! history.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Number of buckets in a chunk: ten minutes in the coarse tier.
const CHUNK: u64 = 60;

/// Minimum and maximum in a bucket or time window. Both are NaN if there is no value.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Span(pub f32, pub f32);

impl Span {
    /// Returns the span that covers both spans. If one is absent (NaN), returns the other one.
    pub(super) fn join(self, other: Self) -> Self {
        Self(self.0.min(other.0), self.1.max(other.1))
    }

    /// Compares bit patterns, so that two absent spans (NaN) are equal.
    pub(super) fn is(self, other: Self) -> bool {
        self.0.to_bits() == other.0.to_bits() && self.1.to_bits() == other.1.to_bits()
    }
}

const ABSENT: Span = Span(f32::NAN, f32::NAN);

/// Several buckets taken together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Merged {
    pub span: Span,
    /// Sum of the middles between minimum and maximum of each bucket.
    sum: f64,
    buckets: u32,
}

impl Merged {
    const EMPTY: Self = Self { span: ABSENT, sum: 0.0, buckets: 0 };

    /// Merges buckets with equal spans. The number of buckets must be 0 for an absent span.
    fn of(span: Span, buckets: u32) -> Self {
        match buckets {
            0 => Self::EMPTY,
            _ => {
                let middle = (f64::from(span.0) + f64::from(span.1)) / 2.0;
                Self { span, sum: middle * f64::from(buckets), buckets }
            }
        }
    }

    pub fn join(self, other: Self) -> Self {
        Self {
            span: self.span.join(other.span),
            sum: self.sum + other.sum,
            buckets: self.buckets + other.buckets,
        }
    }

    /// Returns the mean of the buckets' middles. It is the mean of the values if each bucket has one value.
    pub fn mean(self) -> f32 {
        (self.sum / f64::from(self.buckets)) as f32
    }
}

type Buckets = [Span; CHUNK as usize];

#[derive(Debug, Clone)]
enum Chunk {
    /// A chunk that has the same value in every bucket whose bit is set. The other buckets have no value.
    Uniform(Span, u64),
    Each(Arc<Buckets>),
}

impl Chunk {
    const EMPTY: Self = Self::Uniform(ABSENT, 0);

    /// Compresses the chunk, which is unlikely to change again.
    fn seal(&mut self) {
        let Self::Each(buckets) = self else { return };
        let present = || buckets.iter().enumerate().filter(|(_, span)| !span.is(ABSENT));
        let value = present().next().map_or(ABSENT, |(_, span)| *span);
        if present().all(|(_, span)| span.is(value)) {
            let bits = present().fold(0, |bits, (slot, _)| bits | 1 << slot);
            *self = Self::Uniform(value, bits);
        }
    }

    fn put(&mut self, slot: usize, value: Span) {
        if let Self::Uniform(span, bits) = self {
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

    /// Converts the chunk into separate buckets. A uniform chunk is expanded.
    fn buckets(&mut self) -> Arc<Buckets> {
        match std::mem::replace(self, Self::EMPTY) {
            Self::Uniform(span, bits) => {
                let bucket = |slot| if bits >> slot & 1 == 1 { span } else { ABSENT };
                Arc::new(std::array::from_fn(bucket))
            }
            Self::Each(buckets) => buckets,
        }
    }

    fn join(&self, slots: std::ops::Range<usize>) -> Merged {
        match self {
            Self::Uniform(span, bits) => {
                let wanted = (1_u64 << slots.len()) - 1;
                Merged::of(*span, (bits >> slots.start & wanted).count_ones())
            }
            Self::Each(buckets) => {
                let one = |span: &Span| Merged::of(*span, u32::from(!span.0.is_nan()));
                buckets[slots].iter().map(one).fold(Merged::EMPTY, Merged::join)
            }
        }
    }
}

/// One tier of a series. A bucket number is the time divided by the bucket width. A chunk number is the bucket number
/// divided by [`CHUNK`].
#[derive(Debug, Clone, Default)]
pub(super) struct Tier {
    first: u64,
    chunks: VecDeque<Chunk>,
    /// Number of the oldest bucket ever written. Earlier data is unknown.
    since: Option<u64>,
}

impl Tier {
    /// Adds a value to bucket `index` and keeps at most `max_chunks` chunks. If a current value (`live`) is older than
    /// all chunks, the clock was wrong before, so the tier starts over. A filled-in value that is too old is dropped.
    pub fn put(&mut self, index: u64, value: Span, max_chunks: u64, live: bool) {
        let number = index / CHUNK;
        if self.chunks.is_empty() {
            self.clear(number);
        }
        let end = self.first + self.chunks.len() as u64;
        if number + max_chunks < end {
            if !live {
                return;
            }
            self.clear(number);
        } else if number >= end + max_chunks {
            self.clear(number);
        }
        while number < self.first {
            self.seal(0);
            self.make_room();
            self.chunks.push_front(Chunk::EMPTY);
            self.first -= 1;
        }
        while number >= self.first + self.chunks.len() as u64 {
            self.seal(self.chunks.len().wrapping_sub(1));
            self.make_room();
            self.chunks.push_back(Chunk::EMPTY);
        }
        let at = usize::try_from(number - self.first).unwrap_or(usize::MAX);
        if let Some(chunk) = self.chunks.get_mut(at) {
            chunk.put(slot(index), value);
        }
        self.since = Some(self.since.map_or(index, |since| since.min(index)));
        self.drop_before(self.end().saturating_sub(max_chunks));
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

    /// Grows the chunk list in small steps, because the default doubling would waste memory.
    fn make_room(&mut self) {
        if self.chunks.len() == self.chunks.capacity() {
            self.chunks.reserve_exact(8);
        }
    }

    /// Returns the last chunk's number plus one.
    fn end(&self) -> u64 {
        self.first + self.chunks.len() as u64
    }

    /// Removes the chunks before chunk `number`.
    fn drop_before(&mut self, number: u64) {
        while self.first < number && self.chunks.pop_front().is_some() {
            self.first += 1;
        }
    }

    /// Removes the chunks that lie completely before bucket `index`.
    pub fn forget_before(&mut self, index: u64) {
        self.drop_before(index / CHUNK);
    }

    pub fn forget(&mut self) {
        self.clear(0);
    }

    pub fn forget_from(&mut self, index: u64) {
        let remaining = (index / CHUNK + 1).saturating_sub(self.first);
        self.chunks.truncate(usize::try_from(remaining).unwrap_or(usize::MAX));
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

    /// Returns the number of the first bucket with known data.
    pub fn start(&self) -> Option<u64> {
        Some(self.since?.max(self.first * CHUNK)).filter(|_| !self.is_empty())
    }

    /// Returns the minimum and maximum of the buckets `from..to`.
    pub fn span(&self, from: u64, to: u64) -> Option<Span> {
        self.merged(from, to).map(|merged| merged.span)
    }

    pub fn merged(&self, from: u64, to: u64) -> Option<Merged> {
        let (from, to) = (from.max(self.first * CHUNK), to.min(self.end().saturating_mul(CHUNK)));
        if from >= to {
            return None;
        }
        let mut whole = Merged::EMPTY;
        for number in from / CHUNK..=(to - 1) / CHUNK {
            let begins = number * CHUNK;
            let slots = slot(from.max(begins))..slot(to.min(begins + CHUNK) - 1) + 1;
            let at = usize::try_from(number - self.first).unwrap_or(usize::MAX);
            if let Some(chunk) = self.chunks.get(at) {
                whole = whole.join(chunk.join(slots));
            }
        }
        (whole.buckets > 0).then_some(whole)
    }

    pub fn bytes(&self) -> usize {
        // The size of a shared chunk includes the two reference counts of its `Arc`.
        let chunk = size_of::<Buckets>() + 2 * size_of::<usize>();
        self.chunks.capacity() * size_of::<Chunk>()
            + self.chunks.iter().filter(|chunk| matches!(chunk, Chunk::Each(_))).count() * chunk
    }
}

fn slot(index: u64) -> usize {
    usize::try_from(index % CHUNK).unwrap_or(0)
}
