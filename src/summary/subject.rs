//! The figures of a summary as one table, used by printed comparisons and JSON differences.

use gputop_model::{Bytes, Millis, Percent};
use serde::{Serialize, Serializer};

use super::distribution::Percentiles;
use super::run_summary::{GpuSummary, PoolSummary, ProcessSummary, RunSummary};

/// A value with its unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Quantity {
    Bytes(f64),
    Percent(f64),
    Millis(f64),
    Joules(f64),
}

impl Quantity {
    pub fn number(self) -> f64 {
        match self {
            Self::Bytes(n) | Self::Percent(n) | Self::Millis(n) | Self::Joules(n) => n,
        }
    }

    /// Returns a quantity with the same unit as this one.
    #[must_use]
    pub fn with_number(self, number: f64) -> Self {
        match self {
            Self::Bytes(_) => Self::Bytes(number),
            Self::Percent(_) => Self::Percent(number),
            Self::Millis(_) => Self::Millis(number),
            Self::Joules(_) => Self::Joules(number),
        }
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Bytes(n) | Self::Millis(n) => to.serialize_i64(*n as i64),
            Self::Percent(n) | Self::Joules(n) => to.serialize_f64((n * 10.0).round() / 10.0),
        }
    }
}

/// A figure in a summary: a value with its JSON name and its table title.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure {
    /// Name in JSON, such as `used_peak_bytes`.
    pub name: &'static str,
    /// Name in a table, such as `peak used`.
    pub title: &'static str,
    pub value: Option<Quantity>,
}

/// A run, GPU, process or pool, with its figures.
#[derive(Debug, Clone, PartialEq)]
pub struct Subject {
    /// Title of the subject: `GPU 0`, `PID 418 train.py`.
    pub title: String,
    /// Key that identifies the same subject in another run.
    pub key: String,
    pub figures: Vec<Figure>,
}

fn figure(name: &'static str, title: &'static str, value: Option<Quantity>) -> Figure {
    Figure { name, title, value }
}

fn bytes(bytes: Option<Bytes>) -> Option<Quantity> {
    bytes.map(|bytes| Quantity::Bytes(bytes.0 as f64))
}

fn percent(percent: Option<Percent>) -> Option<Quantity> {
    percent.map(|percent| Quantity::Percent(percent.0))
}

fn millis(time: Millis) -> Option<Quantity> {
    Some(Quantity::Millis(time.0 as f64))
}

fn percentiles(
    names: [(&'static str, &'static str); 3],
    value: Option<Percentiles>,
) -> [Figure; 3] {
    let sizes =
        [value.map(|value| value.peak), value.map(|value| value.p95), value.map(|value| value.p50)];
    let mut sizes = sizes.into_iter();
    names.map(|(name, title)| figure(name, title, bytes(sizes.next().flatten())))
}

impl RunSummary {
    /// Returns all subjects: the run, its GPUs, and its processes with their pools.
    pub fn subjects(&self) -> Vec<Subject> {
        let mut all = vec![Subject {
            title: "Recording".into(),
            key: String::new(),
            figures: vec![
                figure("duration_ms", "duration", millis(self.duration)),
                figure("covered_ms", "without gaps", millis(self.covered)),
            ],
        }];
        all.extend(self.gpus.iter().map(GpuSummary::subject));
        let mut keys: Vec<String> = Vec::new();
        for process in &self.processes {
            let program = process.program();
            let rank = process.rank.map_or(String::new(), |rank| rank.to_string());
            let name = format!("{rank}/{program}");
            let number = keys.iter().filter(|key| **key == name).count();
            let key = format!("{name}/{number}");
            keys.push(name);
            let title = format!("PID {} {program}", process.process.pid);
            let pools = process.pools.iter().map(|pool| pool.subject(&title, &key));
            let pools: Vec<Subject> = pools.collect();
            all.push(process.subject(title, key));
            all.extend(pools);
        }
        all
    }
}

impl GpuSummary {
    fn subject(&self) -> Subject {
        let names = [
            ("used_peak_bytes", "peak used"),
            ("used_p95_bytes", "95 % used"),
            ("used_p50_bytes", "median used"),
        ];
        let mut figures = percentiles(names, self.used).to_vec();
        let energy = self.energy.map(|energy| Quantity::Joules(energy.joules));
        figures.extend([
            figure("unused_bytes", "never used", bytes(self.unused)),
            figure("sm_percent", "mean SM", percent(self.sm_percent)),
            figure("idle_percent", "idle", percent(self.idle_percent)),
            figure("waiting_percent", "waiting", percent(self.waiting_percent)),
            figure("throttled_percent", "throttled", percent(self.throttled_percent)),
            figure("joules", "energy", energy),
        ]);
        Subject {
            title: format!("GPU {} {}", self.index, self.name),
            key: format!("gpu {}", self.index),
            figures,
        }
    }
}

impl ProcessSummary {
    /// Returns the program without its arguments: `python train.py`.
    pub fn program(&self) -> String {
        let words: Vec<&str> = self.command.iter().flat_map(|c| c.split(' ')).collect();
        let end = words.iter().position(|word| word.ends_with(".py")).unwrap_or(0);
        words.get(..=end).unwrap_or_default().join(" ")
    }

    fn subject(&self, title: String, key: String) -> Subject {
        let names = [
            ("vram_peak_bytes", "peak VRAM"),
            ("vram_p95_bytes", "95 % VRAM"),
            ("vram_p50_bytes", "median VRAM"),
        ];
        let mut figures = vec![figure("duration_ms", "time on GPU", millis(self.duration))];
        figures.extend(percentiles(names, self.vram));
        figures.push(figure("waiting_percent", "waiting", percent(self.waiting_percent)));
        Subject { title, key, figures }
    }
}

impl PoolSummary {
    fn subject(&self, process: &str, process_key: &str) -> Subject {
        let Self { framework, ordinal, .. } = self;
        let reserved = [
            ("reserved_peak_bytes", "peak reserved"),
            ("reserved_p95_bytes", "95 % reserved"),
            ("reserved_p50_bytes", "median reserved"),
        ];
        let allocated = [
            ("allocated_peak_bytes", "peak allocated"),
            ("allocated_p95_bytes", "95 % allocated"),
            ("allocated_p50_bytes", "median allocated"),
        ];
        let mut figures = percentiles(reserved, self.reserved).to_vec();
        figures.extend(percentiles(allocated, self.allocated));
        figures.push(figure("unused_bytes", "unused cache", bytes(self.unused)));
        Subject {
            title: format!("{process}, {framework} on device {ordinal}"),
            key: format!("{process_key}/{framework}/{ordinal}"),
            figures,
        }
    }
}
