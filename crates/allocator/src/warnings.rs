//! Early warnings derived from a pool's samples of the last 10 minutes.
//!
//! Each sample has the minimum and maximum allocated since the previous one, so no peak between two frames is missed.
//! PyTorch's counters restart at 0 when the program resets them (`reset_accumulated_memory_stats`), so only increases
//! count. Each warning states its measured values and does not guess the cause.

use std::collections::VecDeque;
use std::num::NonZeroU32;

use gputop_model::{Bytes, Millis, Mono, PoolStats};

use super::gib;

/// State of a pool at one point in time, limited to the values that the warning rules use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sample {
    pub at: Mono,
    /// Minimum and maximum allocated bytes since the previous sample.
    pub allocated: (Bytes, Bytes),
    pub reserved: Bytes,
    pub retries: u64,
    pub ooms: u64,
    pub driver_free: Option<Bytes>,
}

impl Sample {
    pub fn new(at: Mono, stats: &PoolStats, driver_free: Option<Bytes>) -> Self {
        Self {
            at,
            allocated: (stats.allocated.min(), stats.allocated.max()),
            reserved: stats.reserved.last(),
            retries: stats.num_alloc_retries,
            ooms: stats.num_ooms,
            driver_free,
        }
    }
}

gputop_model::named! {
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub enum NoteKind {
        OomCaught = "oom",
        RetriesIncreasing = "flushing",
        CacheFillsGpu = "hoarding",
        MemoryGrowing = "growing",
    }
    /// Returns the one-word tag shown before the command in a table: `flushing`.
    fn word;
}

/// A condition that the user should know about although the program still runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    pub kind: NoteKind,
    /// Phrase with the measured values and no period: `the cache was flushed 3 times to make room (num_alloc_retries
    /// 5)`.
    pub text: String,
    pub since: Mono,
}

/// Time for which samples are retained: as long as the rule with the longest time window needs.
const RETENTION: Millis = Millis(600_000);
/// Possible intervals between retained samples. Samples in the same interval are merged. The interval grows with the
/// time for which the pool has been watched, up to [`WINDOW`], because the rules need less resolution over longer
/// periods.
const STEPS: [Millis; 4] = [Millis(1_000), Millis(2_000), Millis(5_000), WINDOW];
/// Maximum number of samples per pool. If there are more, the interval grows. A host has dozens of pools, and gputop
/// may watch a hundred hosts at once.
const MAX_SAMPLES: usize = 64;

/// Samples of one pool over the last 10 minutes, stored in at most 2 KiB.
#[derive(Debug, Clone, Default)]
pub struct PoolSamples {
    samples: VecDeque<Packed>,
    /// Index into [`STEPS`].
    step: u8,
}

impl PoolSamples {
    pub fn push(&mut self, sample: Sample) {
        if self.samples.back().is_some_and(|last| sample.at < last.at) {
            // Discard the samples if time goes backwards: the host has rebooted, or the user has jumped back in a
            // recording.
            *self = Self::default();
        }
        self.forget_before(Mono(sample.at.0.saturating_sub(RETENTION.0)));
        while !self.try_add(sample) {
            if usize::from(self.step) + 1 < STEPS.len() {
                self.step += 1;
                self.merge_again();
            } else {
                self.samples.pop_front();
            }
        }
    }

    /// Adds a sample. Returns false if the storage is full.
    fn try_add(&mut self, sample: Sample) -> bool {
        let step = STEPS[usize::from(self.step)].0;
        if let Some(last) = self.samples.back_mut()
            && sample.at.0 / step == last.at.0 / step
        {
            *last = merge(last.sample(), sample).into();
            return true;
        }
        let has_room = self.samples.len() < MAX_SAMPLES;
        if has_room {
            self.samples.push_back(sample.into());
        }
        has_room
    }

    fn merge_again(&mut self) {
        for sample in std::mem::take(&mut self.samples) {
            self.try_add(sample.sample());
        }
    }

    fn forget_before(&mut self, time: Mono) {
        while self.samples.front().is_some_and(|first| first.at < time) {
            self.samples.pop_front();
        }
    }

    /// Drops the samples at or after `time`.
    pub fn forget_from(&mut self, time: Mono) {
        while self.samples.back().is_some_and(|last| last.at >= time) {
            self.samples.pop_back();
        }
    }

    /// Returns the time of the last sample, so that callers can tell whether the pool is still watched.
    pub fn last_at(&self) -> Option<Mono> {
        self.samples.back().map(|last| last.at)
    }

    /// Returns the pool's warnings, most severe first.
    pub fn notes(&self) -> Vec<Note> {
        notes(&self.samples())
    }

    /// Returns the samples, oldest first.
    pub fn samples(&self) -> Vec<Sample> {
        self.samples.iter().map(|packed| packed.sample()).collect()
    }
}

/// A [`Sample`] compressed to less than half its size.
#[derive(Debug, Clone, Copy)]
struct Packed {
    at: Mono,
    allocated: (BlockCount, BlockCount),
    reserved: BlockCount,
    retries: u32,
    ooms: u32,
    driver_free: Option<BlockCount>,
}

/// A size in PyTorch's 512-byte blocks, plus 1 so that the value is never 0; at most 2 TiB.
#[derive(Debug, Clone, Copy)]
struct BlockCount(NonZeroU32);

impl From<Bytes> for BlockCount {
    fn from(bytes: Bytes) -> Self {
        let blocks = u32::try_from(bytes.0 / 512).unwrap_or(u32::MAX);
        Self(NonZeroU32::MIN.saturating_add(blocks))
    }
}

impl From<BlockCount> for Bytes {
    fn from(blocks: BlockCount) -> Self {
        Self((u64::from(blocks.0.get()) - 1) * 512)
    }
}

impl From<Sample> for Packed {
    fn from(sample: Sample) -> Self {
        let (low, high) = sample.allocated;
        let count = |count| u32::try_from(count).unwrap_or(u32::MAX);
        Self {
            at: sample.at,
            allocated: (low.into(), high.into()),
            reserved: sample.reserved.into(),
            retries: count(sample.retries),
            ooms: count(sample.ooms),
            driver_free: sample.driver_free.map(BlockCount::from),
        }
    }
}

impl Packed {
    fn sample(self) -> Sample {
        let (low, high) = self.allocated;
        Sample {
            at: self.at,
            allocated: (low.into(), high.into()),
            reserved: self.reserved.into(),
            retries: self.retries.into(),
            ooms: self.ooms.into(),
            driver_free: self.driver_free.map(Bytes::from),
        }
    }
}

/// Merges two samples of the same interval: keeps the overall minimum and maximum, and takes all other values from the
/// newer sample.
fn merge(last: Sample, next: Sample) -> Sample {
    let (low, high) = last.allocated;
    Sample {
        at: last.at,
        allocated: (low.min(next.allocated.0), high.max(next.allocated.1)),
        ..next
    }
}

/// Returns the warnings for `samples`, most severe first. The samples are sorted oldest first.
pub fn notes(samples: &[Sample]) -> Vec<Note> {
    [ooms, retries, cache_fills_the_card, low_water]
        .iter()
        .filter_map(|rule| rule(samples))
        .collect()
}

/// Returns the time of a counter's first increase, the sum of its increases, and its last value.
fn increase(samples: &[Sample], counter: fn(&Sample) -> u64) -> Option<(Mono, u64, u64)> {
    let mut first = None;
    let mut sum = 0_u64;
    for pair in samples.windows(2) {
        let (before, after) = (counter(&pair[0]), counter(&pair[1]));
        // If the counter decreased, it was reset, and everything in its new value was counted after the reset.
        let added = after.checked_sub(before).unwrap_or(after);
        if added > 0 {
            first.get_or_insert(pair[1].at);
            sum = sum.saturating_add(added);
        }
    }
    Some((first?, sum, samples.last().map(counter)?))
}

fn times(count: u64) -> String {
    match count {
        1 => "once".into(),
        2 => "twice".into(),
        n => format!("{n} times"),
    }
}

fn ooms(samples: &[Sample]) -> Option<Note> {
    let (since, count, now) = increase(samples, |s| s.ooms)?;
    Some(Note {
        kind: NoteKind::OomCaught,
        text: format!("out of memory {}, and the program continued (num_ooms {now})", times(count)),
        since,
    })
}

fn retries(samples: &[Sample]) -> Option<Note> {
    let (since, count, now) = increase(samples, |s| s.retries)?;
    Some(Note {
        kind: NoteKind::RetriesIncreasing,
        text: format!(
            "the cache was flushed {} to make room (num_alloc_retries {now})",
            times(count)
        ),
        since,
    })
}

/// Minimum time for which the GPU must be full before a warning is shown.
const MIN_FULL_TIME: Millis = Millis(120_000);

/// Returns a warning if the cache fills the GPU although tensors have never used nearly that much memory. Other
/// processes or larger requests could use that memory. A cache that was filled during an evaluation causes no warning.
fn cache_fills_the_card(samples: &[Sample]) -> Option<Note> {
    let last = samples.last()?;
    let is_full = |s: &Sample| {
        s.driver_free.is_some_and(|free| u128::from(free.0) * 20 <= u128::from(s.reserved.0))
    };
    let full = samples.iter().rev().take_while(|s| is_full(s)).count();
    let since = samples[samples.len() - full..].first()?.at;
    if last.at.since(since) < MIN_FULL_TIME {
        return None;
    }
    let max = samples.iter().map(|s| s.allocated.1).max()?;
    let unused = last.reserved.0.checked_sub(max.0)?;
    // Tolerate 10 % of reserved memory: rounding and normal fragmentation account for about that much.
    if unused < last.reserved.0 / 10 || !is_flat(samples, max) {
        return None;
    }
    Some(Note {
        kind: NoteKind::CacheFillsGpu,
        text: format!(
            "{} GiB reserved, {} free on the GPU, and tensors never used more than {}",
            gib(last.reserved),
            gib(last.driver_free?),
            gib(max)
        ),
        since,
    })
}

/// Returns true if the maximum allocated in the last minute does not exceed the earlier maximum.
fn is_flat(samples: &[Sample], max: Bytes) -> bool {
    let Some(last) = samples.last() else { return false };
    let before = samples
        .iter()
        .filter(|s| last.at.since(s.at) >= Millis(60_000))
        .map(|s| s.allocated.1)
        .max();
    before.is_some_and(|before| max.0 - before.0 <= max.0 / 50)
}

/// Width of a time window: longer than most training steps, so that each window contains the low point of a step.
const WINDOW: Millis = Millis(10_000);
/// Minimum number of time windows for a growth warning, equal to 4 minutes.
const MIN_WINDOWS: usize = 24;
/// Number of later time windows that confirm a low point: it counts only if memory does not fall below it in the
/// following minute.
const CONFIRMING_WINDOWS: usize = 6;
/// Number of equal parts into which the observed time is divided. Low points must rise in each part to count as steady
/// growth.
const PARTS: usize = 4;
/// Minimum memory growth to report; smaller growth is noise.
const MIN_GROWTH: Bytes = Bytes::mib(64);

/// Returns the minimum and maximum allocated in each time window, except for the unfinished last one.
fn windows(samples: &[Sample], width: Millis) -> Vec<(Mono, Bytes, Bytes)> {
    let mut windows: Vec<(Mono, Bytes, Bytes)> = Vec::new();
    for sample in samples {
        let start = Mono(sample.at.0 / width.0 * width.0);
        let (low, high) = sample.allocated;
        match windows.last_mut() {
            Some(last) if last.0 == start => {
                last.1 = last.1.min(low);
                last.2 = last.2.max(high);
            }
            _ => windows.push((start, low, high)),
        }
    }
    windows.pop();
    windows
}

/// Steady increase of the low points of allocated memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Growth {
    pub since: Mono,
    pub first: Bytes,
    pub last: Bytes,
    pub a_minute: Bytes,
}

/// Returns how fast memory grows if the program retains some at every training step: the low points rise steadily while
/// other tensors come and go. A model that is being loaded does not match, because it frees nothing, and an evaluation
/// does not match, because it causes only one temporary jump.
fn growth(windows: &[(Mono, Bytes, Bytes)]) -> Option<Growth> {
    steady_growth(windows).filter(|_| rises_and_falls(windows))
}

/// Returns the growth of allocated memory if its low points increase steadily.
fn steady_growth(windows: &[(Mono, Bytes, Bytes)]) -> Option<Growth> {
    let count = windows.len().checked_sub(CONFIRMING_WINDOWS)?;
    if windows.len() < MIN_WINDOWS {
        return None;
    }
    // For each time window, the minimum over that window and all later ones: memory never fell below it again.
    let mut floor: Vec<Bytes> = windows.iter().map(|w| w.1).collect();
    for i in (0..floor.len() - 1).rev() {
        floor[i] = floor[i].min(floor[i + 1]);
    }
    let (first, last) = (floor[0], floor[count - 1]);
    let growth = last.0.checked_sub(first.0)?;
    let min_growth = MIN_GROWTH.0.max(first.0 / 200);
    let climbs = (0..PARTS).all(|part| {
        let at = |n: usize| floor[n * (count - 1) / PARTS].0;
        at(part + 1).saturating_sub(at(part)) >= growth / (PARTS as u64 * 4)
    });
    if growth < min_growth || !climbs {
        return None;
    }
    let length = windows[count - 1].0.since(windows[0].0).0.max(1);
    let a_minute = u128::from(growth) * 60_000 / u128::from(length);
    Some(Growth {
        since: windows[0].0,
        first,
        last,
        a_minute: Bytes(u64::try_from(a_minute).unwrap_or(u64::MAX)),
    })
}

fn low_water(samples: &[Sample]) -> Option<Note> {
    let growth = growth(&windows(samples, WINDOW))?;
    Some(Note {
        kind: NoteKind::MemoryGrowing,
        text: format!(
            "lowest allocated memory rose from {} to {} GiB, {} per minute: each step retains memory",
            gib(growth.first),
            gib(growth.last),
            growth.a_minute.short()
        ),
        since: growth.since,
    })
}

/// Observations of a pool before a failure. They need less evidence than a warning, because the failure has already
/// shown that something is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct BeforeFailure {
    pub watched: Millis,
    /// Growth of the low points of allocated memory, if the program has finished at least one step or computes. Later
    /// steps may be too short to be seen in the samples.
    pub growth: Option<Growth>,
    /// True if there are enough observations to rule out memory growth.
    pub is_flat: bool,
    /// Maximum allocated in all time windows except the last.
    pub max_allocated: Option<Bytes>,
    /// True if allocated memory fell at least once, which means that a training step has finished.
    pub has_fallen: bool,
    /// Number of times the cache was flushed to make room.
    pub retries: u64,
}

/// Evaluates the samples of one pool, oldest first, up to its failure. `computes` is true if the program computed on
/// the GPU during most of the last minute, so that it was not loading a model.
pub fn before_failure(samples: &[Sample], computes: bool) -> BeforeFailure {
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else {
        return BeforeFailure::default();
    };
    let watched = last.at.since(first.at);
    // Use shorter windows if a run fails in its first minutes, so that there are enough windows to analyse.
    let width = Millis((watched.0 / 40).clamp(1_000, WINDOW.0));
    let windows = windows(samples, width);
    let earlier = &windows[..windows.len().saturating_sub(1)];
    let max_allocated = earlier.iter().map(|w| w.2).max();
    // A decrease of less than 10 % may be memory freed between two layers rather than at the end of a step.
    let mut max = Bytes(0);
    let has_fallen = samples.iter().any(|sample| {
        let fell = sample.allocated.0.0 < max.0 - max.0 / 10;
        max = max.max(sample.allocated.1);
        fell
    });
    BeforeFailure {
        watched,
        growth: steady_growth(&windows)
            .filter(|_| computes || has_fallen || rises_and_falls(&windows)),
        is_flat: is_level(&windows),
        max_allocated: max_allocated.filter(|_| earlier.len() >= 5),
        has_fallen,
        retries: increase(samples, |s| s.retries).map_or(0, |(_, count, _)| count),
    }
}

/// Returns true if the low points of allocated memory have not increased over a long enough time.
fn is_level(windows: &[(Mono, Bytes, Bytes)]) -> bool {
    let Some(confirmed) = windows.len().checked_sub(CONFIRMING_WINDOWS) else { return false };
    let floor = |windows: &[(Mono, Bytes, Bytes)]| windows.iter().map(|w| w.1).min();
    let first = floor(windows).unwrap_or_default();
    let last = floor(&windows[confirmed..]).unwrap_or_default();
    windows.len() >= MIN_WINDOWS && last.0 - first.0 < MIN_GROWTH.0.max(first.0 / 200)
}

/// Returns true if allocated memory rose and fell again in most windows.
fn rises_and_falls(windows: &[(Mono, Bytes, Bytes)]) -> bool {
    let falls = windows.windows(2).filter(|pair| pair[0].2 > pair[1].1).count();
    falls * 2 > windows.len()
}

#[cfg(test)]
mod tests;
