//! Keys of history series, and their text form in a recording's notes.

use std::fmt;
use std::str::FromStr;

use crate::process::ProcessKey;
use crate::units::GpuUuid;

/// A metric of a host, GPU, process or pool.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SeriesKey {
    Host(HostMetric),
    Gpu(GpuUuid, GpuMetric),
    Process(ProcessKey, ProcessMetric),
    /// Device memory of a process on one GPU, in bytes.
    Vram(ProcessKey, GpuUuid),
    /// A pool metric of a process. The number is the device index as seen by the process.
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
    /// Host metrics: CPU in percent of all cores, memory in bytes.
    HostMetric { Cpu = "cpu", Memory = "mem" }
);
metrics!(
    /// GPU metrics in percent, bytes (all memory that is not free), watts, °C and MHz.
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
    /// Process metrics: CPU in percent of one core, memory in bytes.
    ProcessMetric { Cpu = "cpu", Rss = "rss" }
);

metrics!(
    /// Pool metrics: sizes in bytes, with the minimum and maximum of all samples, and counts since the program started
    /// or reset them.
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
            Self::Pool(key, ordinal, metric) => {
                write!(f, "pool/{}@{}:{ordinal}/{}", key.pid, key.start.0, metric.text())
            }
        }
    }
}

/// A damaged series key, or one from a later version. The series is skipped.
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
    Some(ProcessKey::new(pid.parse().ok()?, start.parse().ok()?))
}

impl SeriesKey {
    pub fn process(&self) -> Option<ProcessKey> {
        match self {
            Self::Process(key, _) | Self::Vram(key, _) | Self::Pool(key, ..) => Some(*key),
            Self::Host(_) | Self::Gpu(..) => None,
        }
    }
}
