//! Who is on the GPUs: the driver's two lists of them ([`usage`](super::usage) is one), and what the kernel and `ps` know of
//! each.

use std::collections::{BTreeMap, HashMap};

use super::cell::Cell;
use super::facts::Facts;
use super::lines::{Clocks, number, words};
use super::readings::Round;
use super::usage::{Row, Usage};
use crate::model::gpu::{Gpu, GpuProcess};
use crate::model::host::PidNamespace;
use crate::model::process::{Process, ProcessKey};
use crate::model::reading::{Missing, Reading, Reason};
use crate::model::stat_line::Stat;
use crate::model::text::visible;
use crate::model::units::{Bytes, Mono, Percent, Pid, StartTicks, UnixMillis};
use crate::redact;

const MAX_NAME: usize = 64;
const MAX_COMMAND: usize = 1_024;

/// What is known beside the round itself.
#[derive(Clone, Copy)]
pub(super) struct ProcessContext<'a> {
    pub facts: &'a Facts,
    pub usage: &'a Usage,
    /// Why nothing else is.
    pub untold: &'a Missing,
}

impl ProcessContext<'_> {
    fn untold<T>(self) -> Reading<T> {
        Reading::Missing(self.untold.clone())
    }
}

/// What makes shares of processor time out of two rounds.
#[derive(Debug, Default)]
pub(super) struct CpuShares {
    /// Of each process its CPU ticks, and when.
    ticks: HashMap<ProcessKey, (u64, Mono)>,
}

/// A process of the driver's list of those that compute.
struct App<'a> {
    uuid: &'a str,
    pid: Pid,
    vram: Reading<Bytes>,
    /// As `nvidia-smi` has it.
    name: Reading<String>,
}

/// A process on a GPU, not yet known to the kernel; its name as `nvidia-smi` has it.
type Holder = (GpuProcess, Reading<String>);

impl CpuShares {
    /// All of them, by PID; each GPU gets its list.
    pub(super) fn list(
        &mut self,
        gpus: &mut [Gpu],
        round: &Round,
        known: ProcessContext<'_>,
    ) -> Vec<Process> {
        if round.apps_exit != Some(0) {
            let why = "nvidia-smi there lists no processes";
            for gpu in gpus {
                gpu.processes = Reading::missing(Reason::Unknown, why);
            }
            return Vec::new();
        }
        let apps: Vec<App<'_>> = round.apps.iter().filter_map(|line| app(line)).collect();
        let mut on_gpus: Vec<Vec<Holder>> = gpus
            .iter()
            .map(|gpu| holders(gpu, &apps, known.usage))
            .collect();
        // In a container the driver's PIDs are another namespace's.
        let processes = match known.facts.namespace {
            PidNamespace::Host => self.processes(on_gpus.iter().flatten(), round, known),
            _ => BTreeMap::new(),
        };
        for (gpu, holders) in gpus.iter_mut().zip(&mut on_gpus) {
            let listed = holders.drain(..).map(|(holder, _)| GpuProcess {
                process: processes.get(&holder.pid).map(|process| process.key),
                ..holder
            });
            gpu.processes = Reading::Value(listed.collect());
            gpu.utilization_at = known.usage.at;
        }
        let is_there = |key: &ProcessKey| {
            processes
                .get(&key.pid)
                .is_some_and(|process| process.key == *key)
        };
        self.ticks.retain(|key, _| is_there(key));
        processes.into_values().collect()
    }

    fn processes<'a>(
        &mut self,
        holders: impl Iterator<Item = &'a Holder>,
        round: &Round,
        known: ProcessContext<'_>,
    ) -> BTreeMap<Pid, Process> {
        let stats = round.stats.iter().filter_map(|line| Stat::parse(line));
        let stats: HashMap<Pid, Stat<'_>> = stats.map(|stat| (stat.pid, stat)).collect();
        let people = round.people.iter().filter_map(|line| person(line));
        let people: HashMap<Pid, &[u8]> = people.collect();
        let mut processes = BTreeMap::new();
        for (GpuProcess { pid, .. }, name) in holders {
            let of = (stats.get(pid), people.get(pid).copied());
            processes
                .entry(*pid)
                .or_insert_with(|| self.process((*pid, name), of, (round.clocks, known)));
        }
        processes
    }

    fn process(
        &mut self,
        (pid, name): (Pid, &Reading<String>),
        (stat, person): (Option<&Stat<'_>>, Option<&[u8]>),
        (clocks, known): (Clocks, ProcessContext<'_>),
    ) -> Process {
        let mut process = Process {
            key: ProcessKey {
                pid,
                start: stat.map_or(StartTicks(0), |stat| stat.start),
            },
            name: name.value().cloned().unwrap_or_default(),
            command: unseen(),
            user: unseen(),
            rank: known.untold(),
            local_rank: known.untold(),
            job: known.untold(),
            visible_devices: known.untold(),
            container: known.untold(),
            container_name: known.untold(),
            ..Process::default()
        };
        if let Some((user, command)) = person.and_then(parted) {
            process.user = visible(user, MAX_NAME).into();
            let words = words(command);
            // Where an argument ends is not known, so that of a header or a script the text tells more.
            let safe = redact::text(&redact::arguments(words).join(&b' '));
            process.command = visible(&safe, MAX_COMMAND).into();
        }
        if let Some(stat) = stat {
            process.name = visible(stat.name, MAX_NAME);
            process.state = stat.state;
            process.started = started(known.facts, stat.start, clocks);
            process.cpu = self.cpu(known.facts, process.key, stat.cpu_ticks, clocks.mono);
            process.rss = match known
                .facts
                .page_bytes
                .and_then(|page| page.checked_mul(stat.rss_pages))
            {
                Some(bytes) => Bytes(bytes).into(),
                None => Reading::missing(Reason::Unknown, "`getconf PAGESIZE` said nothing there"),
            };
        }
        process
    }

    fn cpu(&mut self, facts: &Facts, key: ProcessKey, ticks: u64, now: Mono) -> Reading<Percent> {
        let before = self.ticks.insert(key, (ticks, now));
        let passed = before.map_or(0, |(_, then)| now.since(then).0);
        let Some((before, _)) = before.filter(|_| passed > 0) else {
            return Reading::missing(Reason::NotRead, "needs two readings");
        };
        #[allow(clippy::cast_precision_loss)]
        let seconds = ticks.saturating_sub(before) as f64 / ticks_per_second(facts) as f64;
        #[allow(clippy::cast_precision_loss)]
        Percent::rounded(seconds * 100_000.0 / passed as f64).into()
    }
}

/// Those that compute, and those that only draw.
fn holders(gpu: &Gpu, apps: &[App<'_>], usage: &Usage) -> Vec<Holder> {
    let is_here = |app: &&App<'_>| {
        *gpu.uuid.0 == *app.uuid || gpu.mig.iter().any(|mig| *mig.uuid.0 == *app.uuid)
    };
    let computing = apps.iter().filter(is_here).map(|app| {
        let row = usage.of(gpu.index, app.pid);
        let holder = holder(app.pid, app.vram.clone(), row, gpu, usage);
        (holder, app.name.clone())
    });
    let mut all: Vec<Holder> = computing.collect();
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
    let why = || usage.why_not(gpu);
    GpuProcess {
        pid,
        vram,
        kind: row.map(|row| row.kind).unwrap_or_default(),
        sm: row.map_or_else(|| Reading::Missing(why()), |row| row.sm.clone()),
        memory_bandwidth: row.map_or_else(
            || Reading::Missing(why()),
            |row| row.memory_bandwidth.clone(),
        ),
        ..GpuProcess::default()
    }
}

fn ticks_per_second(facts: &Facts) -> u64 {
    // What Linux has shown to programs on every machine with an NVIDIA driver.
    facts.ticks_per_second.unwrap_or(100)
}

fn started(facts: &Facts, start: StartTicks, clocks: Clocks) -> UnixMillis {
    let millis = start.0.saturating_mul(1_000) / ticks_per_second(facts);
    let age = clocks.mono.0.saturating_sub(millis);
    UnixMillis(
        clocks
            .time
            .0
            .saturating_sub(i64::try_from(age).unwrap_or(i64::MAX)),
    )
}

fn unseen<T>() -> Reading<T> {
    Reading::missing(Reason::Unknown, "`ps` there does not show the process")
}

/// `GPU-…, 426, 1542, python3`; a name may have commas of its own.
fn app(line: &[u8]) -> Option<App<'_>> {
    let mut cells = line.splitn(4, |byte| *byte == b',').map(<[u8]>::trim_ascii);
    let mut cell = || std::str::from_utf8(cells.next()?).ok();
    let (uuid, pid) = (cell()?, cell()?.parse().ok()?);
    let (vram, name) = (cell()?, cell().unwrap_or_default());
    Some(App {
        uuid,
        pid: Pid(pid),
        vram: Cell::of(vram).bytes(),
        name: Cell::of(name).text(),
    })
}

/// `  426 ana   python3 train.py`
fn person(line: &[u8]) -> Option<(Pid, &[u8])> {
    let line = line.trim_ascii();
    let end = line.iter().position(u8::is_ascii_whitespace)?;
    Some((Pid(number(&line[..end])?), line[end..].trim_ascii()))
}

/// Its user, and its command line.
fn parted(person: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = person.iter().position(u8::is_ascii_whitespace)?;
    Some((&person[..end], person[end..].trim_ascii()))
}
