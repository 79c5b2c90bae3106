//! Host memory, load and CPU values from files under /proc.

use gputop_model::{Bytes, Host, Missing, Percent, Reading, Reason};

use super::facts::Facts;
use super::readings::{Round, number, split_words};

#[derive(Debug, Default)]
pub(super) struct HostFigures {
    /// Busy and total CPU ticks, as counted in the last round.
    ticks: Option<(u64, u64)>,
}

impl HostFigures {
    pub(super) fn read(&mut self, facts: &Facts, round: &Round) -> Host {
        let memory = |name: &str| {
            let line = round.memory.iter().find_map(|line| line.strip_prefix(name.as_bytes()));
            let kib = line.and_then(|line| number::<u64>(line.trim_ascii().strip_suffix(b"kB")?));
            kib.and_then(|kib| kib.checked_mul(1024)).map(Bytes).ok_or_else(|| {
                Missing::new(Reason::Unknown, "cannot read /proc/meminfo on that host")
            })
        };
        let used = |total: &str, free: &str| {
            let (total, free) = (memory(total)?, memory(free)?);
            Ok::<_, Missing>(Bytes(total.0.saturating_sub(free.0)))
        };
        let load: Vec<f64> = split_words(&round.load).take(3).filter_map(number).collect();
        Host {
            at: round.clocks.mono,
            cpu: self.cpu(round),
            cores: Reading::or_missing(
                facts.cores,
                Reason::Unknown,
                "`getconf` on that host did not report the number of cores",
            ),
            memory_total: memory("MemTotal:").into(),
            memory_used: used("MemTotal:", "MemAvailable:").into(),
            page_cache: memory("Cached:").into(),
            swap_total: memory("SwapTotal:").into(),
            swap_used: used("SwapTotal:", "SwapFree:").into(),
            load: if load.len() == 3 && load.iter().all(|load| load.is_finite()) {
                load.into()
            } else {
                Reading::missing(Reason::Unknown, "cannot read /proc/loadavg on that host")
            },
        }
    }

    /// Parses `cpu  user nice system idle iowait irq softirq steal …` as described in proc(5). Guest time is already
    /// included in user and nice.
    fn cpu(&mut self, round: &Round) -> Reading<Percent> {
        let ticks: Vec<u64> = split_words(&round.cpu).skip(1).take(8).filter_map(number).collect();
        if ticks.len() < 5 {
            return Reading::missing(Reason::Unknown, "cannot read /proc/stat on that host");
        }
        let all = ticks.iter().fold(0_u64, |sum, more| sum.saturating_add(*more));
        let busy = all.saturating_sub(ticks[3].saturating_add(ticks[4]));
        let Some((busy_before, all_before)) = self.ticks.replace((busy, all)) else {
            return Reading::missing(Reason::NotRead, "needs two readings");
        };
        let passed = all.saturating_sub(all_before);
        if passed == 0 {
            return Reading::missing(Reason::NotRead, "needs two readings");
        }
        Percent::rounded(busy.saturating_sub(busy_before) as f64 * 100.0 / passed as f64).into()
    }
}
