//! Early warnings: what a pool's samples of the last minutes say is about to go wrong.
//!
//! One sample a second with the least and the greatest allocated since the one before, so that a peak between two
//! frames counts. Counters of PyTorch go back to 0 when the program asks for it (`reset_accumulated_memory_stats`):
//! only a rise is a rise. Each warning is a note with its figures; none is a guess at the cause.

use std::collections::VecDeque;
use std::num::NonZeroU32;

use super::gib;
use crate::model::pool::PoolStats;
use crate::model::units::{Bytes, Millis, Mono};

/// A pool at one moment, as far as warnings need it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sample {
    pub at: Mono,
    /// Least and greatest since the sample before.
    pub allocated: (Bytes, Bytes),
    pub reserved: Bytes,
    pub retries: u64,
    pub ooms: u64,
    /// What the driver can still hand out, if that was read.
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

/// What a note is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoteKind {
    OomCaught,
    RetriesRising,
    CacheFillsTheCard,
    LowWaterRising,
}

impl NoteKind {
    /// What is said before the command in a table, in a word: `flushing`.
    pub fn word(self) -> &'static str {
        match self {
            Self::OomCaught => "oom",
            Self::RetriesRising => "flushing",
            Self::CacheFillsTheCard => "hoarding",
            Self::LowWaterRising => "growing",
        }
    }
}

/// Something worth a look, though nothing has failed for good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    pub kind: NoteKind,
    /// A clause with its figures and no period: `the cache was flushed 3 times to make room (retries 2 to 5)`.
    pub text: String,
    /// When it began.
    pub since: Mono,
}

/// As much as the longest rule looks back.
const KEPT: Millis = Millis(600_000);
/// One sample is kept for each of the first; faster frames are joined. The longer a pool is watched the wider they are: up to
/// [`WINDOW`], which is all that the rules tell apart then.
const STEPS: [Millis; 4] = [Millis(1_000), Millis(2_000), Millis(5_000), WINDOW];
/// Samples of one pool; of more the step grows. A host has dozens of pools, and a hundred hosts are watched at once.
const MAX_SAMPLES: usize = 64;

/// The samples of one pool over the last ten minutes: two KiB.
#[derive(Debug, Clone, Default)]
pub struct PoolSamples {
    samples: VecDeque<Packed>,
    /// Index into [`STEPS`].
    step: u8,
}

impl PoolSamples {
    pub fn push(&mut self, sample: Sample) {
        if self.samples.back().is_some_and(|last| sample.at < last.at) {
            // Another boot, or a jump in a recording.
            *self = Self::default();
        }
        self.forget_before(Mono(sample.at.0.saturating_sub(KEPT.0)));
        while !self.take_in(sample) {
            if usize::from(self.step) + 1 < STEPS.len() {
                self.step += 1;
                self.join_again();
            } else {
                self.samples.pop_front();
            }
        }
    }

    /// Whether there was room.
    fn take_in(&mut self, sample: Sample) -> bool {
        let step = STEPS[usize::from(self.step)].0;
        if let Some(last) = self.samples.back_mut()
            && sample.at.0 / step == last.at.0 / step
        {
            *last = join(last.sample(), sample).into();
            return true;
        }
        let has_room = self.samples.len() < MAX_SAMPLES;
        if has_room {
            self.samples.push_back(sample.into());
        }
        has_room
    }

    /// After the step grew.
    fn join_again(&mut self) {
        for sample in std::mem::take(&mut self.samples) {
            self.take_in(sample.sample());
        }
    }

    fn forget_before(&mut self, moment: Mono) {
        while self.samples.front().is_some_and(|first| first.at < moment) {
            self.samples.pop_front();
        }
    }

    /// The moment of the last sample, to tell whether the pool is still watched.
    pub fn last_at(&self) -> Option<Mono> {
        self.samples.back().map(|last| last.at)
    }

    /// What there is to say, the worst first.
    pub fn notes(&self) -> Vec<Note> {
        notes(&self.samples())
    }

    /// Oldest first.
    pub fn samples(&self) -> Vec<Sample> {
        self.samples.iter().map(|packed| packed.sample()).collect()
    }
}

/// A [`Sample`] in less than half of the room.
#[derive(Debug, Clone, Copy)]
struct Packed {
    at: Mono,
    allocated: (Blocks, Blocks),
    reserved: Blocks,
    retries: u32,
    ooms: u32,
    driver_free: Option<Blocks>,
}

/// Bytes in the blocks of 512 that PyTorch allocates: two TiB at most, and never none.
#[derive(Debug, Clone, Copy)]
struct Blocks(NonZeroU32);

impl From<Bytes> for Blocks {
    fn from(bytes: Bytes) -> Self {
        let blocks = u32::try_from(bytes.0 / 512).unwrap_or(u32::MAX);
        Self(NonZeroU32::MIN.saturating_add(blocks))
    }
}

impl From<Blocks> for Bytes {
    fn from(blocks: Blocks) -> Self {
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
            driver_free: sample.driver_free.map(Blocks::from),
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

/// One sample of two in the same step: both extremes stay, everything else is the newer one's.
fn join(last: Sample, next: Sample) -> Sample {
    let (low, high) = last.allocated;
    Sample {
        at: last.at,
        allocated: (low.min(next.allocated.0), high.max(next.allocated.1)),
        ..next
    }
}

/// What `samples`, oldest first, have to say; the worst first.
pub fn notes(samples: &[Sample]) -> Vec<Note> {
    [ooms, retries, cache_fills_the_card, low_water]
        .iter()
        .filter_map(|rule| rule(samples))
        .collect()
}

/// A counter over the samples: the moment and the value before its first rise, how often it rose, its last value.
fn rise(samples: &[Sample], counter: fn(&Sample) -> u64) -> Option<(Mono, u64, u64)> {
    let mut first = None;
    let mut sum = 0_u64;
    for pair in samples.windows(2) {
        let (before, after) = (counter(&pair[0]), counter(&pair[1]));
        // Smaller than before is a reset; what it holds now was counted since.
        let rose = after.checked_sub(before).unwrap_or(after);
        if rose > 0 {
            first.get_or_insert(pair[1].at);
            sum = sum.saturating_add(rose);
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
    let (since, rose, now) = rise(samples, |s| s.ooms)?;
    Some(Note {
        kind: NoteKind::OomCaught,
        text: format!(
            "out of memory {}, and the program went on (num_ooms {now})",
            times(rose)
        ),
        since,
    })
}

fn retries(samples: &[Sample]) -> Option<Note> {
    let (since, rose, now) = rise(samples, |s| s.retries)?;
    Some(Note {
        kind: NoteKind::RetriesRising,
        text: format!(
            "the cache was flushed {} to make room (num_alloc_retries {now})",
            times(rose)
        ),
        since,
    })
}

/// For so long the card must have been full.
const FULL_FOR: Millis = Millis(120_000);

/// The cache fills the card although tensors have not come near it in all the time that is known: others could use
/// that memory, and so could larger requests. A cache that an evaluation did use stays silent.
fn cache_fills_the_card(samples: &[Sample]) -> Option<Note> {
    let last = samples.last()?;
    let is_full = |s: &Sample| {
        s.driver_free
            .is_some_and(|free| u128::from(free.0) * 20 <= u128::from(s.reserved.0))
    };
    let full = samples.iter().rev().take_while(|s| is_full(s)).count();
    let since = samples[samples.len() - full..].first()?.at;
    if last.at.since(since) < FULL_FOR {
        return None;
    }
    let most = samples.iter().map(|s| s.allocated.1).max()?;
    let unused = last.reserved.0.checked_sub(most.0)?;
    // A tenth is what rounding and usual fragmentation leave.
    if unused < last.reserved.0 / 10 || !is_flat(samples, most) {
        return None;
    }
    Some(Note {
        kind: NoteKind::CacheFillsTheCard,
        text: format!(
            "{} GiB reserved, {} left at the driver, and tensors never took more than {}",
            gib(last.reserved),
            gib(last.driver_free?),
            gib(most)
        ),
        since,
    })
}

/// The greatest allocated of the last minute is not above that of the time before: it is not on its way up.
fn is_flat(samples: &[Sample], most: Bytes) -> bool {
    let Some(last) = samples.last() else {
        return false;
    };
    let before = samples
        .iter()
        .filter(|s| last.at.since(s.at) >= Millis(60_000))
        .map(|s| s.allocated.1)
        .max();
    before.is_some_and(|before| most.0 - before.0 <= most.0 / 50)
}

/// Longer than a step of most programs, so that each window has seen the low point of one.
const WINDOW: Millis = Millis(10_000);
/// Four minutes of them.
const MIN_WINDOWS: usize = 24;
/// A low point only counts when memory did not fall below it for a minute after.
const CONFIRM: usize = 6;
/// The rise must show in each of so many parts of the time: a step, such as an evaluation that began, shows in one.
const PARTS: usize = 4;
/// Less is noise.
const MIN_RISE: Bytes = Bytes::mib(64);

/// The least and the greatest allocated of each window, the unfinished last one left out.
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

/// Low points of allocated that climb.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Growth {
    pub since: Mono,
    pub first: Bytes,
    pub last: Bytes,
    pub a_minute: Bytes,
}

/// Memory that something keeps at every step: the low points climb, all the time, while tensors come and go above
/// them. Loading a model climbs too, but nothing goes; a phase of evaluation is a step, and comes down again.
fn growth(windows: &[(Mono, Bytes, Bytes)]) -> Option<Growth> {
    climb(windows).filter(|_| comes_and_goes(windows))
}

/// The low points climb all the time.
fn climb(windows: &[(Mono, Bytes, Bytes)]) -> Option<Growth> {
    let count = windows.len().checked_sub(CONFIRM)?;
    if windows.len() < MIN_WINDOWS {
        return None;
    }
    // From behind, the least of everything later: memory never fell below it again.
    let mut floor: Vec<Bytes> = windows.iter().map(|w| w.1).collect();
    for i in (0..floor.len() - 1).rev() {
        floor[i] = floor[i].min(floor[i + 1]);
    }
    let (first, last) = (floor[0], floor[count - 1]);
    let rise = last.0.checked_sub(first.0)?;
    let least = MIN_RISE.0.max(first.0 / 200);
    let climbs = (0..PARTS).all(|part| {
        let at = |n: usize| floor[n * (count - 1) / PARTS].0;
        at(part + 1).saturating_sub(at(part)) >= rise / (PARTS as u64 * 4)
    });
    if rise < least || !climbs {
        return None;
    }
    let length = windows[count - 1].0.since(windows[0].0).0.max(1);
    let a_minute = u128::from(rise) * 60_000 / u128::from(length);
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
        kind: NoteKind::LowWaterRising,
        text: format!(
            "the low point of allocated rose from {} to {} GiB, {} a minute: each step keeps something",
            gib(growth.first),
            gib(growth.last),
            growth.a_minute.short()
        ),
        since: growth.since,
    })
}

/// What the time before a failure was like; for a note all of it must be surer, since nothing has failed.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Before {
    /// How long it was watched.
    pub watched: Millis,
    /// The climb of the low points, of a program that has finished a step; its others may be too short to be seen.
    pub growth: Option<Growth>,
    /// Enough was seen to tell that they did not climb.
    pub is_flat: bool,
    /// The greatest allocated of all windows but the last.
    pub greatest: Option<Bytes>,
    /// Allocated came down again at least once: a step was finished.
    pub came_down: bool,
    /// How often the cache was flushed to make room.
    pub retries: u64,
}

/// `samples` of one pool, oldest first, up to its failure.
pub fn before(samples: &[Sample]) -> Before {
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else {
        return Before::default();
    };
    let watched = last.at.since(first.at);
    // A run that fails in its first minutes has shorter windows, as many as it takes to tell.
    let width = Millis((watched.0 / 40).clamp(1_000, WINDOW.0));
    let windows = windows(samples, width);
    let earlier = &windows[..windows.len().saturating_sub(1)];
    let greatest = earlier.iter().map(|w| w.2).max();
    // A tenth: what is freed between two layers is no finished step.
    let mut most = Bytes(0);
    let came_down = samples.iter().any(|sample| {
        let fell = sample.allocated.0.0 < most.0 - most.0 / 10;
        most = most.max(sample.allocated.1);
        fell
    });
    Before {
        watched,
        growth: climb(&windows).filter(|_| came_down || comes_and_goes(&windows)),
        is_flat: is_level(&windows),
        greatest: greatest.filter(|_| earlier.len() >= 5),
        came_down,
        retries: rise(samples, |s| s.retries).map_or(0, |(_, rose, _)| rose),
    }
}

/// Over long enough a time the low points are where they were.
fn is_level(windows: &[(Mono, Bytes, Bytes)]) -> bool {
    let Some(confirmed) = windows.len().checked_sub(CONFIRM) else {
        return false;
    };
    let floor = |windows: &[(Mono, Bytes, Bytes)]| windows.iter().map(|w| w.1).min();
    let first = floor(windows).unwrap_or_default();
    let last = floor(&windows[confirmed..]).unwrap_or_default();
    windows.len() >= MIN_WINDOWS && last.0 - first.0 < MIN_RISE.0.max(first.0 / 200)
}

/// In most windows allocated fell again after it rose.
fn comes_and_goes(windows: &[(Mono, Bytes, Bytes)]) -> bool {
    let falls = windows
        .windows(2)
        .filter(|pair| pair[0].2 > pair[1].1)
        .count();
    falls * 2 > windows.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: f64 = (1_u64 << 30) as f64;

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn bytes(gib: f64) -> Bytes {
        Bytes((gib * GIB) as u64)
    }

    /// A second at a time; `of` says (least, greatest, reserved) in GiB, the card has 24.
    fn series(seconds: u64, of: impl Fn(u64) -> (f64, f64, f64)) -> Vec<Sample> {
        (0..seconds)
            .map(|second| {
                let (low, high, reserved) = of(second);
                Sample {
                    at: Mono(1_000_000 + second * 1_000),
                    allocated: (bytes(low), bytes(high)),
                    reserved: bytes(reserved),
                    driver_free: Some(bytes(24.0 - reserved)),
                    ..Sample::default()
                }
            })
            .collect()
    }

    fn kinds(samples: &[Sample]) -> Vec<NoteKind> {
        notes(samples).into_iter().map(|note| note.kind).collect()
    }

    /// Training: from parameters up to the peak of the backward pass and back, each second.
    fn training(_: u64) -> (f64, f64, f64) {
        (6.0, 18.0, 20.0)
    }

    #[test]
    fn healthy_training_is_silent() {
        assert_eq!(kinds(&series(600, training)), []);
        assert_eq!(kinds(&[]), []);
        assert_eq!(kinds(&series(1, training)), []);
    }

    #[test]
    fn an_evaluation_that_spikes_is_silent_while_it_runs_and_after() {
        let spike = |s| match s {
            300..=420 => (9.0, 22.5, 23.5),
            421.. => (6.0, 18.0, 23.5),
            _ => training(s),
        };
        for end in [310, 350, 421, 450, 599] {
            assert_eq!(kinds(&series(end, spike)), [], "after {end} s");
        }
    }

    #[test]
    fn checkpoints_are_silent() {
        let saving = |s: u64| match s % 100 {
            90..=99 => (6.0, 6.0, 20.0),
            _ => training(s),
        };
        assert_eq!(kinds(&series(600, saving)), []);
    }

    #[test]
    fn loading_a_model_is_silent() {
        #[allow(clippy::cast_precision_loss)]
        let loading = |s: u64| {
            let at = s as f64 / 30.0;
            (at, at, at + 0.5)
        };
        assert_eq!(kinds(&series(600, loading)), []);
    }

    #[test]
    fn a_reset_of_counters_is_silent() {
        let mut samples = series(600, training);
        for sample in &mut samples[..300] {
            (sample.retries, sample.ooms) = (5, 2);
        }
        assert_eq!(kinds(&samples), []);
    }

    #[test]
    fn a_flush_to_make_room_is_a_note_with_its_count() {
        let mut samples = series(600, training);
        samples[200..].iter_mut().for_each(|s| s.retries = 2);
        samples[400..].iter_mut().for_each(|s| s.retries = 3);
        let notes = notes(&samples);
        assert_eq!(notes.len(), 1);
        assert_eq!(notes[0].since, samples[200].at);
        assert_eq!(
            notes[0].text,
            "the cache was flushed 3 times to make room (num_alloc_retries 3)"
        );
    }

    #[test]
    fn a_rise_after_a_reset_counts_from_the_reset() {
        let mut samples = series(60, training);
        samples[..30].iter_mut().for_each(|s| s.ooms = 7);
        samples[40..].iter_mut().for_each(|s| s.ooms = 1);
        let notes = notes(&samples);
        assert_eq!(notes[0].kind, NoteKind::OomCaught);
        assert_eq!(
            notes[0].text,
            "out of memory once, and the program went on (num_ooms 1)"
        );
    }

    #[test]
    fn a_cache_that_fills_the_card_and_is_never_used_is_a_note() {
        let samples = series(300, |s| {
            if s < 100 {
                training(s)
            } else {
                (6.0, 18.0, 23.5)
            }
        });
        let notes = notes(&samples);
        assert_eq!(notes.len(), 1);
        assert_eq!(notes[0].kind, NoteKind::CacheFillsTheCard);
        assert_eq!(notes[0].since, samples[100].at);
        assert_eq!(
            notes[0].text,
            "23.50 GiB reserved, 0.50 left at the driver, and tensors never took more than 18.00"
        );
        // Tensors that grow into the cache are what it is for.
        #[allow(clippy::cast_precision_loss)]
        let growing = series(300, |s| (6.0, 15.0 + s as f64 / 100.0, 23.5));
        assert_eq!(kinds(&growing), []);
    }

    #[test]
    fn a_leak_at_every_step_is_a_note_with_its_rate() {
        #[allow(clippy::cast_precision_loss)]
        let leaking = |s: u64| {
            let kept = s as f64 * 0.004;
            (6.0 + kept, 16.0 + kept, 20.0)
        };
        assert_eq!(kinds(&series(200, leaking)), [], "too soon to tell");
        let samples = series(420, leaking);
        let notes = notes(&samples);
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert_eq!(notes[0].kind, NoteKind::LowWaterRising);
        assert_eq!(
            notes[0].text,
            "the low point of allocated rose from 6.00 to 7.36 GiB, 246M a minute: each step keeps something"
        );
    }

    #[test]
    fn a_leak_is_seen_through_steps_longer_than_a_window() {
        #[allow(clippy::cast_precision_loss)]
        let slow = |s: u64| {
            let kept = 6.0 + (s / 25) as f64 * 0.1;
            if s % 25 < 12 {
                (kept, kept + 2.0, 20.0)
            } else {
                (kept + 8.0, kept + 10.0, 20.0)
            }
        };
        assert_eq!(kinds(&series(600, slow)), [NoteKind::LowWaterRising]);
    }

    fn watched(samples: impl IntoIterator<Item = Sample>) -> PoolSamples {
        let mut watch = PoolSamples::default();
        samples.into_iter().for_each(|sample| watch.push(sample));
        watch
    }

    #[test]
    fn a_watch_forgets_what_is_older_than_ten_minutes_and_starts_anew_when_time_jumps_back() {
        let rose = series(2_000, training).into_iter().map(|sample| Sample {
            ooms: u64::from(sample.at > Mono(1_100_000)),
            ..sample
        });
        let mut watch = watched(rose.clone().take(600));
        assert_eq!(watch.notes()[0].kind, NoteKind::OomCaught);
        watch = watched(rose);
        let samples = watch.samples();
        let length = samples[samples.len() - 1].at.since(samples[0].at);
        assert!((590_000..=600_000).contains(&length.0), "{length:?}");
        assert_eq!(watch.notes(), []);
        watch.push(series(1, training)[0]);
        assert_eq!(watch.samples.len(), 1);
    }

    #[test]
    fn a_watch_is_small_however_often_and_however_long() {
        assert_eq!(size_of::<Packed>(), 32);
        let often = series(3_000, training).into_iter().flat_map(|sample| {
            let later = |millis| Sample {
                at: Mono(sample.at.0 + millis),
                ..sample
            };
            [sample, later(300), later(600)]
        });
        let mut watch = PoolSamples::default();
        for sample in often {
            watch.push(sample);
            assert!(watch.samples.capacity() <= MAX_SAMPLES);
        }
    }

    /// The shorter it is watched the finer: after any time there are enough for the rules.
    #[test]
    fn what_a_watch_joins_loses_no_extreme_and_no_rise() {
        for seconds in [30_u64, 63, 64, 65, 127, 128, 200, 319, 321, 599] {
            let spike = seconds / 3;
            let mut samples = series(seconds, |second| match second == spike {
                true => (2.0, 22.0, 23.0),
                false => training(second),
            });
            samples[(seconds / 2) as usize..]
                .iter_mut()
                .for_each(|sample| sample.retries = 3);
            let kept = watched(samples.iter().copied()).samples();
            let extremes = |samples: &[Sample]| {
                let low = samples.iter().map(|sample| sample.allocated.0).min();
                let high = samples.iter().map(|sample| sample.allocated.1).max();
                low.zip(high)
            };
            assert_eq!(extremes(&kept), extremes(&samples), "{seconds} s");
            assert!(kept.len() as u64 >= (seconds / 10).max(seconds.min(26)));
            let rose = |samples: &[Sample]| rise(samples, |s| s.retries).map(|(_, rose, _)| rose);
            assert_eq!(rose(&kept), Some(3), "{seconds} s");
            let came_down = |samples: &[Sample]| before(samples).came_down;
            assert_eq!(came_down(&kept), came_down(&samples), "{seconds} s");
        }
    }

    #[test]
    fn what_a_watch_joins_says_what_all_samples_say() {
        #[allow(clippy::cast_precision_loss)]
        let leaking = |s: u64| {
            let kept = s as f64 * 0.004;
            (6.0 + kept, 16.0 + kept, 20.0)
        };
        let full = |s| match s {
            ..100 => training(s),
            _ => (6.0, 18.0, 23.5),
        };
        for seconds in [200, 260, 300, 420, 599] {
            let samples = [series(seconds, leaking), series(seconds, full)];
            for samples in samples {
                let watch = watched(samples.iter().copied());
                let of_watch: Vec<_> = watch.notes().iter().map(|note| note.kind).collect();
                assert_eq!(of_watch, kinds(&samples), "{seconds} s");
            }
        }
    }
}
