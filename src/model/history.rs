//! What a number has been: bounded series with the minimum and maximum of every bucket, so that a spike survives
//! coarsening.
//!
//! A [`Series`] keeps one second for ten minutes, ten seconds for six hours and a minute for a day: 4,200 buckets
//! of 8 bytes at most, whatever the rate of frames. The x axis is [`Mono`], so a wall clock that is set back
//! neither folds a chart nor leaves a hole in it.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::frame::Frame;
use super::gpu::HealthState;
use super::pool::Sampled;
use super::process::ProcessKey;
use super::units::{GpuUuid, Millis, Mono, Pid, StartTicks};

/// Which number of which thing.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SeriesKey {
    Host(HostMetric),
    Gpu(GpuUuid, GpuMetric),
    Process(ProcessKey, ProcessMetric),
    /// Device memory of a process on one GPU, in bytes.
    Vram(ProcessKey, GpuUuid),
    /// The pool of a process on one of its devices, by the device's number inside the process.
    Pool(ProcessKey, u32, PoolMetric),
}

macro_rules! metrics {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $text:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($variant),* }

        impl $name {
            fn text(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }

            fn from_text(text: &str) -> Option<Self> {
                match text { $($text => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

metrics!(
    /// Percent of all cores; bytes.
    HostMetric { Cpu = "cpu", Memory = "mem" }
);
metrics!(
    /// Percent, bytes (everything that is not free), watts, °C, MHz.
    GpuMetric {
        Sm = "sm",
        MemoryBandwidth = "bw",
        Used = "used",
        Power = "w",
        Temperature = "c",
        SmClock = "mhz",
    }
);
metrics!(
    /// Percent of a core; bytes.
    ProcessMetric { Cpu = "cpu", Rss = "rss" }
);

metrics!(
    /// Bytes, with the least and the greatest of every sample; counts since the program began or reset them.
    PoolMetric { Allocated = "alloc", Reserved = "resv", Retries = "retries", Ooms = "ooms" }
);

impl fmt::Display for SeriesKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(metric) => write!(f, "host/{}", metric.text()),
            Self::Gpu(uuid, metric) => write!(f, "gpu/{uuid}/{}", metric.text()),
            Self::Process(key, metric) => {
                write!(f, "process/{}@{}/{}", key.pid, key.start.0, metric.text())
            }
            Self::Vram(key, uuid) => write!(f, "vram/{}@{}/{uuid}", key.pid, key.start.0),
            Self::Pool(key, ordinal, metric) => write!(
                f,
                "pool/{}@{}:{ordinal}/{}",
                key.pid,
                key.start.0,
                metric.text()
            ),
        }
    }
}

/// A series of a later version, or damage: to be passed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownSeries;

impl FromStr for SeriesKey {
    type Err = UnknownSeries;

    fn from_str(text: &str) -> Result<Self, UnknownSeries> {
        Self::parse(text).ok_or(UnknownSeries)
    }
}

impl SeriesKey {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('/');
        let key = match (parts.next()?, parts.next()?, parts.next()) {
            ("host", metric, None) => Self::Host(HostMetric::from_text(metric)?),
            ("gpu", uuid, Some(metric)) => {
                Self::Gpu(GpuUuid(uuid.into()), GpuMetric::from_text(metric)?)
            }
            ("process", key, Some(metric)) => {
                Self::Process(process_key(key)?, ProcessMetric::from_text(metric)?)
            }
            ("vram", key, Some(uuid)) => Self::Vram(process_key(key)?, GpuUuid(uuid.into())),
            ("pool", key, Some(metric)) => {
                let (key, ordinal) = key.split_once(':')?;
                let metric = PoolMetric::from_text(metric)?;
                Self::Pool(process_key(key)?, ordinal.parse().ok()?, metric)
            }
            _ => return None,
        };
        parts.next().is_none().then_some(key)
    }
}

fn process_key(text: &str) -> Option<ProcessKey> {
    let (pid, start) = text.split_once('@')?;
    Some(ProcessKey {
        pid: Pid(pid.parse().ok()?),
        start: StartTicks(start.parse().ok()?),
    })
}

/// Every number of a frame that has a series. What is missing yields nothing, so a chart has a gap there.
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
pub fn samples(frame: &Frame, mut put_span: impl FnMut(SeriesKey, Span)) {
    pool_samples(frame, &mut put_span);
    let mut put = |key: SeriesKey, value: Option<f64>| {
        // A reading from another machine may be anything.
        if let Some(value) = value.filter(|v| v.is_finite()) {
            put_span(key, Span(value as f32, value as f32));
        }
    };
    if let Some(host) = &frame.host {
        put(
            SeriesKey::Host(HostMetric::Cpu),
            host.cpu.get().map(|v| v.0),
        );
        put(
            SeriesKey::Host(HostMetric::Memory),
            host.memory_used.get().map(|v| v.0 as f64),
        );
    }
    for gpu in frame
        .gpus
        .iter()
        .filter(|g| g.health.state == HealthState::Answering)
    {
        let key = |metric| SeriesKey::Gpu(gpu.uuid.clone(), metric);
        put(key(GpuMetric::Sm), gpu.sm.get().map(|v| v.0));
        put(
            key(GpuMetric::MemoryBandwidth),
            gpu.memory_bandwidth.get().map(|v| v.0),
        );
        put(key(GpuMetric::Used), gpu.memory.taken().map(|v| v.0 as f64));
        put(
            key(GpuMetric::Power),
            gpu.power.get().map(|v| f64::from(v.0) / 1000.0),
        );
        put(
            key(GpuMetric::Temperature),
            gpu.temperature.get().map(|v| f64::from(v.0)),
        );
        put(
            key(GpuMetric::SmClock),
            gpu.sm_clock.get().map(|v| f64::from(v.0)),
        );
        for process in gpu.processes.value().into_iter().flatten() {
            put(
                SeriesKey::Vram(process.key(), gpu.uuid.clone()),
                process.vram.get().map(|v| v.0 as f64),
            );
        }
    }
    for process in frame.processes.iter().flat_map(|p| &*p.list) {
        let key = |metric| SeriesKey::Process(process.key, metric);
        put(key(ProcessMetric::Cpu), process.cpu.get().map(|v| v.0));
        put(
            key(ProcessMetric::Rss),
            process.rss.get().map(|v| v.0 as f64),
        );
    }
}

/// Pools are sampled more often than frames are published: a peak between two frames is in the span.
#[allow(clippy::cast_precision_loss)]
fn pool_samples(frame: &Frame, put: &mut impl FnMut(SeriesKey, Span)) {
    for pool in frame.pools.iter().flat_map(|pools| &*pools.list) {
        let key = |metric| SeriesKey::Pool(pool.process, pool.ordinal, metric);
        let span = |bytes: Sampled| {
            let (low, high) = (bytes.min().min(bytes.max()), bytes.max().max(bytes.min()));
            Span(low.0 as f32, high.0 as f32)
        };
        let count = |count: u64| Span(count as f32, count as f32);
        let stats = &pool.stats;
        put(key(PoolMetric::Allocated), span(stats.allocated));
        put(key(PoolMetric::Reserved), span(stats.reserved));
        put(key(PoolMetric::Retries), count(stats.num_alloc_retries));
        put(key(PoolMetric::Ooms), count(stats.num_ooms));
    }
}

/// The least and the greatest value in a stretch of time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Span(pub f32, pub f32);

impl Span {
    fn join(self, other: Self) -> Self {
        Self(self.0.min(other.0), self.1.max(other.1))
    }
}

/// Width of a bucket in milliseconds and how many are kept, finest first.
const LEVELS: [(u64, usize); 3] = [(1_000, 600), (10_000, 2_160), (60_000, 1_440)];

/// Bucket width of [`Summary`], which is also the second level's.
pub const SUMMARY_BUCKET: Millis = Millis(10_000);

/// One number over time.
#[derive(Debug, Clone, Default)]
pub struct Series {
    levels: [Level; LEVELS.len()],
    /// Nothing was read before: a coarse bucket begins earlier than the first value in it.
    since: Option<Mono>,
    last: Option<(Mono, f32)>,
}

#[derive(Debug, Clone, Default)]
struct Level {
    /// Index (time / width) of the first bucket.
    first: u64,
    /// NaN is a bucket without a value.
    buckets: VecDeque<(f32, f32)>,
}

impl Level {
    fn put(&mut self, index: u64, value: Span, keep: usize) {
        if self.buckets.is_empty() {
            self.first = index;
        }
        if index < self.first {
            if self.first - index <= keep as u64 {
                return;
            }
            // Far in the past: the clock that ran ahead was wrong, or the host was booted anew.
            self.buckets.clear();
            self.first = index;
        }
        let mut offset = index - self.first;
        if offset >= self.buckets.len() as u64 + keep as u64 {
            self.buckets.clear();
            (self.first, offset) = (index, 0);
        }
        while self.buckets.len() as u64 <= offset {
            self.buckets.push_back((f32::NAN, f32::NAN));
            if self.buckets.len() > keep {
                self.buckets.pop_front();
                self.first += 1;
                offset -= 1;
            }
        }
        let at = usize::try_from(offset).unwrap_or(usize::MAX);
        if let Some(bucket) = self.buckets.get_mut(at) {
            // f32::min and max ignore NaN, so the first value of a bucket replaces it.
            *bucket = (bucket.0.min(value.0), bucket.1.max(value.1));
        }
    }

    /// Joins the buckets that begin in `from..to` (in buckets).
    fn span(&self, from: u64, to: u64) -> Option<Span> {
        let end = self.first + self.buckets.len() as u64;
        (from.max(self.first)..to.min(end))
            .filter_map(|i| self.buckets.get(usize::try_from(i - self.first).ok()?))
            .filter(|b| !b.0.is_nan())
            .map(|&(low, high)| Span(low, high))
            .reduce(Span::join)
    }
}

impl Series {
    pub fn put(&mut self, at: Mono, value: f32) {
        self.put_span(at, Span(value, value));
    }

    /// Several values at once, of which the least and the greatest count.
    pub fn put_span(&mut self, at: Mono, value: Span) {
        for (level, (width, keep)) in self.levels.iter_mut().zip(LEVELS) {
            level.put(at.0 / width, value, keep);
        }
        self.reaches_back_to(at);
        self.last = Some((at, value.1));
    }

    fn reaches_back_to(&mut self, at: Mono) {
        self.since = Some(self.since.map_or(at, |since| since.min(at)));
    }

    /// Fills in the past from a summary; the finest level stays empty there.
    fn put_summary(&mut self, at: Mono, value: Span) {
        for (level, (width, keep)) in self.levels.iter_mut().zip(LEVELS).skip(1) {
            level.put(at.0 / width, value, keep);
        }
        self.reaches_back_to(at);
    }

    pub fn last(&self) -> Option<(Mono, f32)> {
        self.last
    }

    /// `columns` spans over the `length` that ends with `end`, oldest first; `None` where nothing was read.
    pub fn window(&self, end: Mono, length: Millis, columns: usize) -> Vec<Option<Span>> {
        let step = (length.0 / columns.max(1) as u64).max(1);
        // Columns are aligned to the step, so that a chart moves by whole columns and does not shimmer.
        let last = end.0 / step;
        (0..columns as u64)
            .map(|column| {
                let index = (last + column + 1).checked_sub(columns as u64)?;
                self.span(index * step, (index + 1) * step)
            })
            .collect()
    }

    /// From the finest level that reaches back to `from`; from a coarser one where that has a hole.
    fn span(&self, from: u64, to: u64) -> Option<Span> {
        if self.since.is_none_or(|since| to <= since.0) {
            return None;
        }
        let mut partial = None;
        for (level, (width, _)) in self.levels.iter().zip(LEVELS) {
            // A column narrower than a bucket shows the bucket it lies in.
            let span = level.span(from / width, (to.div_ceil(width)).max(from / width + 1));
            if span.is_some() && level.first * width <= from {
                return span;
            }
            partial = span.or(partial);
        }
        partial
    }
}

/// A summary is of a minute; a clock that jumps must not make it large.
const MOST_BUCKETS: usize = 60;

/// Ten-second buckets of every series over one minute: what a recording keeps so that charts are full after a seek.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Summary {
    /// The start of the first bucket, a multiple of its width.
    pub start: Mono,
    /// By the text of [`SeriesKey`]; `null` is a bucket without a value.
    pub series: HashMap<String, Vec<Option<Span>>>,
}

/// Collects a [`Summary`] from frames.
#[derive(Debug, Default)]
pub struct Summarise {
    start: Option<Mono>,
    series: HashMap<SeriesKey, Vec<Option<Span>>>,
}

impl Summarise {
    pub fn push(&mut self, frame: &Frame) {
        let width = SUMMARY_BUCKET.0;
        let start = *self.start.get_or_insert(Mono(frame.mono.0 / width * width));
        let at = usize::try_from(frame.mono.since(start).0 / width).unwrap_or(usize::MAX);
        if at >= MOST_BUCKETS {
            return;
        }
        samples(frame, |key, value| {
            let buckets = self.series.entry(key).or_default();
            if buckets.len() <= at {
                buckets.resize(at + 1, None);
            }
            buckets[at] = Some(buckets[at].map_or(value, |old| old.join(value)));
        });
    }

    /// The summary so far; collection starts anew.
    pub fn take(&mut self) -> Summary {
        let whole = std::mem::take(self);
        Summary {
            start: whole.start.unwrap_or_default(),
            series: whole
                .series
                .into_iter()
                .map(|(key, buckets)| (key.to_string(), buckets))
                .collect(),
        }
    }
}

/// All series of one host.
#[derive(Debug, Clone, Default)]
pub struct History {
    series: HashMap<SeriesKey, Series>,
}

/// More series than 16 GPUs with 500 processes have; beyond it the ones that ended longest ago go.
const MOST_SERIES: usize = 4_096;

impl History {
    pub fn push(&mut self, frame: &Frame) {
        samples(frame, |key, value| {
            self.series
                .entry(key)
                .or_default()
                .put_span(frame.mono, value);
        });
        if self.series.len() > MOST_SERIES {
            self.forget_oldest();
        }
    }

    pub fn push_summary(&mut self, summary: &Summary) {
        for (key, buckets) in &summary.series {
            let Ok(key) = key.parse() else { continue };
            let series: &mut Series = self.series.entry(key).or_default();
            for (i, span) in buckets.iter().enumerate() {
                let at = Mono(
                    summary
                        .start
                        .0
                        .saturating_add(SUMMARY_BUCKET.0.saturating_mul(i as u64)),
                );
                span.iter().for_each(|&span| series.put_summary(at, span));
            }
        }
    }

    pub fn series(&self, key: &SeriesKey) -> Option<&Series> {
        self.series.get(key)
    }

    fn forget_oldest(&mut self) {
        let mut ages: Vec<(Option<Mono>, SeriesKey)> = self
            .series
            .iter()
            .map(|(key, series)| (series.last.map(|l| l.0), key.clone()))
            .collect();
        ages.sort();
        for (_, key) in ages.iter().take(self.series.len() - MOST_SERIES * 3 / 4) {
            self.series.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spike_survives_coarsening_and_a_gap_stays_a_gap() {
        let mut series = Series::default();
        for second in 0..3_600_u64 {
            if (1_000..1_200).contains(&second) {
                continue;
            }
            series.put(
                Mono(second * 1_000),
                if second == 1_500 { 99.0 } else { 1.0 },
            );
        }
        let hour = series.window(Mono(3_599_000), Millis(3_600_000), 60);
        assert_eq!(hour.len(), 60);
        assert_eq!(hour[25], Some(Span(1.0, 99.0)));
        assert_eq!(hour[18], None);
        assert_eq!(hour[59], Some(Span(1.0, 1.0)));
    }

    #[test]
    fn nothing_is_shown_before_the_first_value() {
        let mut series = Series::default();
        // In the middle of a bucket of ten seconds and of one of a minute.
        for second in 1_035..1_045_u64 {
            series.put(Mono(second * 1_000), 1.0);
        }
        let minute = series.window(Mono(1_044_000), Millis(60_000), 60);
        let first = minute.iter().position(Option::is_some);
        assert_eq!(first, Some(50));
    }

    #[test]
    fn a_column_wider_than_the_finest_level_still_shows_all_of_its_time() {
        let mut series = Series::default();
        for second in 0..80_000_u64 {
            series.put(
                Mono(second * 1_000),
                if second == 79_201 { 9.0 } else { 1.0 },
            );
        }
        let day = series.window(Mono(79_999_000), Millis(80_000_000), 80);
        assert_eq!(day[79], Some(Span(1.0, 9.0)));
    }

    #[test]
    fn memory_is_bounded_and_a_long_silence_starts_anew() {
        let mut series = Series::default();
        for second in 0..200_000_u64 {
            series.put(Mono(second * 1_000), 1.0);
        }
        for (level, (_, keep)) in series.levels.iter().zip(LEVELS) {
            assert_eq!(level.buckets.len(), keep);
        }
        series.put(Mono(u64::MAX), 2.0);
        assert_eq!(series.levels[0].buckets.len(), 1);
        series.put(Mono(5_000), 3.0);
        assert_eq!(
            series.window(Mono(5_000), Millis(1_000), 1),
            [Some(Span(3.0, 3.0))]
        );
    }

    #[test]
    fn every_key_reads_back() {
        let key = ProcessKey {
            pid: Pid(418),
            start: StartTicks(9),
        };
        let gpu = GpuUuid("GPU-1".into());
        for series in [
            SeriesKey::Host(HostMetric::Cpu),
            SeriesKey::Gpu(gpu.clone(), GpuMetric::Used),
            SeriesKey::Process(key, ProcessMetric::Rss),
            SeriesKey::Vram(key, gpu),
            SeriesKey::Pool(key, 3, PoolMetric::Reserved),
        ] {
            assert_eq!(series.to_string().parse(), Ok(series));
        }
        assert_eq!("process/1@2/zeal".parse::<SeriesKey>(), Err(UnknownSeries));
        assert_eq!("".parse::<SeriesKey>(), Err(UnknownSeries));
    }

    #[test]
    fn a_peak_between_two_frames_is_in_the_series_of_the_pool() {
        let mut frame = Frame {
            mono: Mono(5_000),
            ..Frame::default()
        };
        let mut pool = crate::model::pool::Pool::default();
        pool.stats.allocated = Sampled::new(crate::model::units::Bytes(10))
            .and(crate::model::units::Bytes(90))
            .and(crate::model::units::Bytes(20));
        frame.pools = Some(crate::model::pool::Pools {
            list: vec![pool].into(),
            ..Default::default()
        });
        let mut history = History::default();
        history.push(&frame);
        let key = SeriesKey::Pool(ProcessKey::default(), 0, PoolMetric::Allocated);
        let series = history.series(&key).expect("a series");
        let window = series.window(Mono(5_000), Millis(1_000), 1);
        assert_eq!(window, [Some(Span(10.0, 90.0))]);
    }

    #[test]
    fn a_summary_fills_the_past_of_a_chart() {
        let mut frame = Frame::default();
        frame.gpus.push(crate::model::gpu::Gpu {
            uuid: GpuUuid("GPU-1".into()),
            health: crate::model::gpu::Health {
                state: HealthState::Answering,
                ..Default::default()
            },
            sm: crate::model::units::Percent(70.0).into(),
            ..Default::default()
        });
        let mut collect = Summarise::default();
        for second in 600..660 {
            frame.mono = Mono(second * 1_000);
            collect.push(&frame);
        }
        let summary: Summary =
            serde_json::from_str(&serde_json::to_string(&collect.take()).expect("serialises"))
                .expect("reads back");
        let mut history = History::default();
        history.push_summary(&summary);
        let series = history
            .series(&SeriesKey::Gpu(GpuUuid("GPU-1".into()), GpuMetric::Sm))
            .expect("a series");
        let minute = series.window(Mono(659_000), Millis(60_000), 30);
        assert!(
            minute.iter().all(|s| *s == Some(Span(70.0, 70.0))),
            "{minute:?}"
        );
    }
}
