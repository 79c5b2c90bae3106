//! Processes on the GPUs: the driver's two process lists (one of them is in [`usage`](super::usage)), and data about
//! each process from the kernel and `ps`.

use std::collections::{BTreeMap, HashMap};

use gputop_model::redact;
use gputop_model::stat_line::Stat;
use gputop_model::text::visible;
use gputop_model::{
    Bytes, Gpu, GpuProcess, Missing, Mono, Percent, Pid, PidNamespace, Process, ProcessKey,
    Reading, Reason, StartTicks, UnixMillis,
};

use super::cell::SmiCell;
use super::facts::Facts;
use super::readings::{Clocks, Round, number, split_words};
use super::usage::{Row, Usage};

const MAX_NAME: usize = 64;
const MAX_COMMAND: usize = 1_024;

/// Additional data for assembling the processes of a round.
#[derive(Clone, Copy)]
pub(super) struct ProcessContext<'a> {
    pub facts: &'a Facts,
    pub usage: &'a Usage,
    pub unavailable: &'a Missing,
}

impl ProcessContext<'_> {
    fn unavailable<T>(self) -> Reading<T> {
        Reading::Missing(self.unavailable.clone())
    }
}

#[derive(Debug, Default)]
pub(super) struct CpuShares {
    /// CPU ticks of each process, with the time of the reading.
    ticks: HashMap<ProcessKey, (u64, Mono)>,
}

struct SmiApp<'a> {
    uuid: &'a str,
    pid: Pid,
    vram: Reading<Bytes>,
    /// Name reported by `nvidia-smi`.
    name: Reading<String>,
}

/// A GPU process before kernel data is added, and its name as reported by `nvidia-smi`.
type SmiHolder = (GpuProcess, Reading<String>);

impl CpuShares {
    /// Returns all GPU processes sorted by PID, and sets the process list of each GPU.
    pub(super) fn list(
        &mut self,
        gpus: &mut [Gpu],
        round: &Round,
        context: ProcessContext<'_>,
    ) -> Vec<Process> {
        if round.apps_exit != Some(0) {
            let why = "nvidia-smi on that host failed to list processes";
            for gpu in gpus {
                gpu.processes = Reading::missing(Reason::Unknown, why);
            }
            return Vec::new();
        }
        let apps: Vec<SmiApp<'_>> = round.apps.iter().filter_map(|line| app(line)).collect();
        let mut on_gpus: Vec<Vec<SmiHolder>> =
            gpus.iter().map(|gpu| holders(gpu, &apps, context.usage)).collect();
        // Omit process data in a container, where the driver's PIDs come from another namespace.
        let processes = match context.facts.namespace {
            PidNamespace::Host => self.processes(on_gpus.iter().flatten(), round, context),
            _ => BTreeMap::new(),
        };
        for (gpu, holders) in gpus.iter_mut().zip(&mut on_gpus) {
            let listed = holders.drain(..).map(|(holder, _)| GpuProcess {
                process: processes.get(&holder.pid).map(|process| process.key),
                ..holder
            });
            gpu.processes = Reading::Value(listed.collect());
            gpu.utilization_at = context.usage.at;
        }
        let is_there =
            |key: &ProcessKey| processes.get(&key.pid).is_some_and(|process| process.key == *key);
        self.ticks.retain(|key, _| is_there(key));
        processes.into_values().collect()
    }

    fn processes<'a>(
        &mut self,
        holders: impl Iterator<Item = &'a SmiHolder>,
        round: &Round,
        context: ProcessContext<'_>,
    ) -> BTreeMap<Pid, Process> {
        let stats = round.stats.iter().filter_map(|line| Stat::parse(line));
        let stats: HashMap<Pid, Stat<'_>> = stats.map(|stat| (stat.pid, stat)).collect();
        let ps_lines = round.ps_lines.iter().filter_map(|line| ps_line(line));
        let ps_lines: HashMap<Pid, &[u8]> = ps_lines.collect();
        let mut processes = BTreeMap::new();
        for (GpuProcess { pid, .. }, name) in holders {
            let of = (stats.get(pid), ps_lines.get(pid).copied());
            processes
                .entry(*pid)
                .or_insert_with(|| self.process((*pid, name), of, (round.clocks, context)));
        }
        processes
    }

    fn process(
        &mut self,
        (pid, name): (Pid, &Reading<String>),
        (stat, ps_line): (Option<&Stat<'_>>, Option<&[u8]>),
        (clocks, context): (Clocks, ProcessContext<'_>),
    ) -> Process {
        let mut process = Process {
            key: ProcessKey { pid, start: stat.map_or(StartTicks(0), |stat| stat.start) },
            name: name.value().cloned().unwrap_or_default(),
            command: not_in_ps(),
            user: not_in_ps(),
            rank: context.unavailable(),
            local_rank: context.unavailable(),
            job: context.unavailable(),
            visible_devices: context.unavailable(),
            container: context.unavailable(),
            container_name: context.unavailable(),
            ..Process::default()
        };
        if let Some((user, command)) = ps_line.and_then(user_and_command) {
            process.user = visible(user, MAX_NAME).into();
            let words = split_words(command);
            // Redact the joined text as well. Argument boundaries are unknown, so a header or script may be split into
            // several words.
            let safe = redact::text(&redact::arguments(words).join(&b' '));
            process.command = visible(&safe, MAX_COMMAND).into();
        }
        if let Some(stat) = stat {
            process.name = visible(stat.name, MAX_NAME);
            process.state = stat.state;
            process.started = started(context.facts, stat.start, clocks);
            process.cpu = self.cpu(context.facts, process.key, stat.cpu_ticks, clocks.mono);
            let page = context.facts.page_bytes;
            let bytes = page.and_then(|page| page.checked_mul(stat.rss_pages));
            let why = "`getconf PAGESIZE` on that host printed nothing";
            process.rss = Reading::or_missing(bytes.map(Bytes), Reason::Unknown, why);
        }
        process
    }

    fn cpu(&mut self, facts: &Facts, key: ProcessKey, ticks: u64, now: Mono) -> Reading<Percent> {
        let before = self.ticks.insert(key, (ticks, now));
        let passed = before.map_or(0, |(_, then)| now.since(then).0);
        let Some((before, _)) = before.filter(|_| passed > 0) else {
            return Reading::missing(Reason::NotRead, "needs two readings");
        };
        let seconds = ticks.saturating_sub(before) as f64 / ticks_per_second(facts) as f64;
        Percent::rounded(seconds * 100_000.0 / passed as f64).into()
    }
}

/// Returns the compute and graphics-only processes on a GPU.
fn holders(gpu: &Gpu, apps: &[SmiApp<'_>], usage: &Usage) -> Vec<SmiHolder> {
    let is_on_gpu = |app: &&SmiApp<'_>| {
        *gpu.uuid.0 == *app.uuid || gpu.mig.iter().any(|mig| *mig.uuid.0 == *app.uuid)
    };
    let computing = apps.iter().filter(is_on_gpu).map(|app| {
        let row = usage.of(gpu.index, app.pid);
        (holder(app.pid, app.vram.clone(), row, gpu, usage), app.name.clone())
    });
    let mut all: Vec<SmiHolder> = computing.collect();
    for row in usage.graphics(gpu.index) {
        if all.iter().all(|(holder, _)| holder.pid != row.pid) {
            let holder = holder(row.pid, row.vram.clone(), Some(row), gpu, usage);
            all.push((holder, row.name.clone()));
        }
    }
    all
}

fn holder(
    pid: Pid,
    vram: Reading<Bytes>,
    row: Option<&Row>,
    gpu: &Gpu,
    usage: &Usage,
) -> GpuProcess {
    let why = || usage.missing_reason(gpu);
    GpuProcess {
        pid,
        vram,
        kind: row.map(|row| row.kind).unwrap_or_default(),
        sm: row.map_or_else(|| Reading::Missing(why()), |row| row.sm.clone()),
        memory_bandwidth: row
            .map_or_else(|| Reading::Missing(why()), |row| row.memory_bandwidth.clone()),
        ..GpuProcess::default()
    }
}

fn ticks_per_second(facts: &Facts) -> u64 {
    // Every Linux machine with an NVIDIA driver uses 100 clock ticks per second.
    facts.ticks_per_second.unwrap_or(100)
}

fn started(facts: &Facts, start: StartTicks, clocks: Clocks) -> UnixMillis {
    let millis = start.0.saturating_mul(1_000) / ticks_per_second(facts);
    let age = clocks.mono.0.saturating_sub(millis);
    UnixMillis(clocks.time.0.saturating_sub(i64::try_from(age).unwrap_or(i64::MAX)))
}

fn not_in_ps<T>() -> Reading<T> {
    Reading::missing(Reason::Unknown, "`ps` on that host does not show the process")
}

/// Parses a compute process line: `GPU-…, 426, 1542, python3`. The process name may contain commas.
fn app(line: &[u8]) -> Option<SmiApp<'_>> {
    let mut cells = line.splitn(4, |byte| *byte == b',').map(<[u8]>::trim_ascii);
    let mut cell = || std::str::from_utf8(cells.next()?).ok();
    let (uuid, pid) = (cell()?, cell()?.parse().ok()?);
    let (vram, name) = (cell()?, cell().unwrap_or_default());
    Some(SmiApp {
        uuid,
        pid: Pid(pid),
        vram: SmiCell::of(vram).bytes(),
        name: SmiCell::of(name).text(),
    })
}

/// Parses a `ps` line: `  426 ana   python3 train.py`.
fn ps_line(line: &[u8]) -> Option<(Pid, &[u8])> {
    let line = line.trim_ascii();
    let end = line.iter().position(u8::is_ascii_whitespace)?;
    Some((Pid(number(&line[..end])?), line[end..].trim_ascii()))
}

/// Splits a `ps` line without its PID into user and command line.
fn user_and_command(ps_line: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = ps_line.iter().position(u8::is_ascii_whitespace)?;
    Some((&ps_line[..end], ps_line[end..].trim_ascii()))
}
