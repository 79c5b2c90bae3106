//! A round of readings as a frame.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::fields::{Card, Cell, FIELDS};
use super::lines::{Clocks, Facts, Round, number};
use crate::model::frame::{Frame, ProcessList, SCHEMA};
use crate::model::gpu::{Gpu, GpuProcess, Health, HealthState};
use crate::model::host::{Driver, Hello, Host, PidNamespace};
use crate::model::pool::{Pools, Unread};
use crate::model::process::{Process, ProcessKey};
use crate::model::reading::{Missing, Reading, Reason};
use crate::model::stat_line::Stat;
use crate::model::text::visible;
use crate::model::units::{Bytes, Millis, Mono, Percent, Pid, StartTicks, UnixMillis};
use crate::redact;

const MOST_NAME: usize = 64;
const MOST_COMMAND: usize = 1_024;

/// What is known of the host so far.
pub(super) struct View {
    untold: Missing,
    facts: Facts,
    /// The last that was told.
    frame: Frame,
    /// When it was told, by the host's clock.
    read: Option<Mono>,
    /// Of each process its CPU ticks, and when.
    ticks: HashMap<ProcessKey, (u64, Mono)>,
    /// Of the host: busy and all.
    cpu: Option<(u64, u64)>,
}

/// A process of the driver's list.
struct App<'a> {
    uuid: &'a str,
    pid: Pid,
    vram: Reading<Bytes>,
    /// As `nvidia-smi` has it.
    name: Reading<String>,
}

impl View {
    pub(super) fn new(untold: Missing) -> Self {
        Self {
            untold,
            facts: Facts::default(),
            frame: Frame::default(),
            read: None,
            ticks: HashMap::new(),
            cpu: None,
        }
    }

    fn untold<T>(&self) -> Reading<T> {
        Reading::Missing(self.untold.clone())
    }

    pub(super) fn hello(&mut self, facts: Facts) -> Hello {
        let word = |word: &Option<String>| word.clone().unwrap_or_default();
        let hello = Hello {
            schema: SCHEMA,
            reduced: true,
            host: word(&facts.host),
            boot_id: word(&facts.boot_id),
            kernel: match &facts.kernel {
                Some(kernel) => kernel.clone().into(),
                None => Reading::missing(Reason::Unknown, "`uname -r` said nothing there"),
            },
            namespace: facts.namespace,
            namespace_id: match facts.namespace_id {
                Some(id) => id.into(),
                None => Reading::missing(Reason::Unknown, "/proc/self/ns/pid could not be read"),
            },
            ticks_per_second: facts.ticks_per_second.unwrap_or_default(),
            uid: facts.uid,
            ..Hello::default()
        };
        self.facts = facts;
        hello
    }

    pub(super) fn frame(&mut self, round: &Round, interval: Millis) -> Frame {
        let mono = round.clocks.mono;
        let cards: Vec<Card> = round
            .gpus
            .iter()
            .filter_map(|line| self.card(line))
            .collect();
        let driver = self.driver(&cards, round);
        let mut gpus: Vec<Gpu> = cards.into_iter().map(finished).collect();
        let processes = self.processes(&mut gpus, round);
        for gpu in &mut gpus {
            (gpu.at, gpu.processes_at) = (mono, Some(mono));
        }
        self.read = Some(mono);
        self.frame = Frame {
            seq: self.frame.seq + 1,
            time: round.clocks.time,
            mono,
            interval,
            driver: Some(driver),
            host: Some(self.host(round)),
            pools: Some(self.no_pools(&processes, mono)),
            processes: Some(ProcessList {
                at: mono,
                list: Arc::new(processes),
            }),
            gpus,
        };
        self.frame.clone()
    }

    /// While `nvidia-smi` has not answered for so long: what was known, as old as it is.
    pub(super) fn silent(&mut self, clocks: Clocks, since: Duration, interval: Millis) -> Frame {
        let frame = &mut self.frame;
        (frame.seq, frame.time, frame.mono) = (frame.seq + 1, clocks.time, clocks.mono);
        frame.interval = interval;
        let detail = format!(
            "nvidia-smi there has not answered for {} s",
            since.as_secs()
        );
        let millis = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        for gpu in &mut frame.gpus {
            gpu.health = Health {
                state: HealthState::Silent,
                since: Some(Mono(clocks.mono.0.saturating_sub(millis))),
                detail: Some(detail.clone()),
            };
        }
        if frame.gpus.is_empty() {
            frame.driver = Some(Driver {
                gpus: Reading::missing(Reason::NotRead, detail),
                ..Driver::default()
            });
        }
        frame.clone()
    }

    /// `None` for what is no GPU: a warning, a cut line.
    fn card(&self, line: &[u8]) -> Option<Card> {
        let line = std::str::from_utf8(line).ok()?;
        let known = |names| self.facts.name_of(names).is_some();
        let asked = FIELDS.iter().filter(|field| known(field.names)).count();
        let cells: Vec<&str> = line.split(", ").collect();
        if cells.len() != asked {
            return None;
        }
        let mut cells = cells.into_iter();
        let mut card = Card::default();
        for field in FIELDS {
            let told = known(field.names).then(|| cells.next()).flatten();
            (field.put)(&mut card, &told.map_or_else(Cell::unknown, Cell::of));
        }
        if card.gpu.uuid.0.is_empty() {
            return None;
        }
        card.board.minor = self.untold();
        card.board.architecture = self.untold();
        card.board.slowdown_temperature = self.untold();
        card.board.shutdown_temperature = self.untold();
        Some(card)
    }

    fn driver(&self, cards: &[Card], round: &Round) -> Driver {
        let count = u32::try_from(cards.len()).unwrap_or(u32::MAX);
        Driver {
            version: cards
                .first()
                .map_or_else(Reading::default, |card| card.driver.clone()),
            cuda: self.untold(),
            gpus: match count {
                0 => Reading::Missing(no_gpus(round)),
                count => count.into(),
            },
        }
    }

    fn host(&mut self, round: &Round) -> Host {
        let memory = |name: &str| {
            let line = round
                .memory
                .iter()
                .find_map(|line| line.strip_prefix(name.as_bytes()));
            let kib = line.and_then(|line| number::<u64>(line.trim_ascii().strip_suffix(b"kB")?));
            kib.and_then(|kib| kib.checked_mul(1024))
                .map(Bytes)
                .ok_or_else(|| {
                    Missing::new(Reason::Unknown, "/proc/meminfo could not be read there")
                })
        };
        let used = |total: &str, free: &str| {
            let (total, free) = (memory(total)?, memory(free)?);
            Ok::<_, Missing>(Bytes(total.0.saturating_sub(free.0)))
        };
        let load: Vec<f64> = words(&round.load).take(3).filter_map(number).collect();
        Host {
            at: round.clocks.mono,
            cpu: self.host_cpu(round),
            cores: match self.facts.cores {
                Some(cores) => cores.into(),
                None => Reading::missing(Reason::Unknown, "`getconf` did not count them there"),
            },
            memory_total: memory("MemTotal:").into(),
            memory_used: used("MemTotal:", "MemAvailable:").into(),
            swap_total: memory("SwapTotal:").into(),
            swap_used: used("SwapTotal:", "SwapFree:").into(),
            load: if load.len() == 3 && load.iter().all(|load| load.is_finite()) {
                load.into()
            } else {
                Reading::missing(Reason::Unknown, "/proc/loadavg could not be read there")
            },
        }
    }

    /// `cpu  user nice system idle iowait irq softirq steal …` of proc(5); what guests take is in the first two already.
    fn host_cpu(&mut self, round: &Round) -> Reading<Percent> {
        let ticks: Vec<u64> = words(&round.cpu)
            .skip(1)
            .take(8)
            .filter_map(number)
            .collect();
        if ticks.len() < 5 {
            return Reading::missing(Reason::Unknown, "/proc/stat could not be read there");
        }
        let all = ticks
            .iter()
            .fold(0_u64, |sum, more| sum.saturating_add(*more));
        let busy = all.saturating_sub(ticks[3].saturating_add(ticks[4]));
        let Some((busy_before, all_before)) = self.cpu.replace((busy, all)) else {
            return Reading::missing(Reason::NotRead, "needs two readings");
        };
        let passed = all.saturating_sub(all_before);
        if passed == 0 {
            return Reading::missing(Reason::NotRead, "needs two readings");
        }
        #[allow(clippy::cast_precision_loss)]
        Percent::rounded(busy.saturating_sub(busy_before) as f64 * 100.0 / passed as f64).into()
    }

    /// Those on the GPUs, by PID; each GPU gets its list.
    fn processes(&mut self, gpus: &mut [Gpu], round: &Round) -> Vec<Process> {
        if round.apps_exit != Some(0) {
            let why = "nvidia-smi there lists no processes";
            for gpu in gpus {
                gpu.processes = Reading::missing(Reason::Unknown, why);
            }
            return Vec::new();
        }
        let apps: Vec<App<'_>> = round.apps.iter().filter_map(|line| app(line)).collect();
        // In a container the driver's PIDs are another namespace's.
        let is_ours = self.facts.namespace == PidNamespace::Host;
        let mut known = BTreeMap::new();
        if is_ours {
            let stats = round.stats.iter().filter_map(|line| Stat::parse(line));
            let stats: HashMap<Pid, Stat<'_>> = stats.map(|stat| (stat.pid, stat)).collect();
            let people: HashMap<Pid, &[u8]> = round
                .people
                .iter()
                .filter_map(|line| person(line))
                .collect();
            for app in &apps {
                let of = (stats.get(&app.pid), people.get(&app.pid).copied());
                known
                    .entry(app.pid)
                    .or_insert_with(|| self.process(app, of, round.clocks));
            }
        }
        for gpu in gpus {
            let on_it = apps.iter().filter(|app| app.uuid == &*gpu.uuid.0);
            let listed = on_it.map(|app| GpuProcess {
                pid: app.pid,
                process: known.get(&app.pid).map(|process: &Process| process.key),
                vram: app.vram.clone(),
                sm: self.untold(),
                memory_bandwidth: self.untold(),
                ..GpuProcess::default()
            });
            gpu.processes = Reading::Value(listed.collect());
        }
        let processes: Vec<Process> = known.into_values().collect();
        let is_there = |key: &ProcessKey| processes.iter().any(|process| process.key == *key);
        self.ticks.retain(|key, _| is_there(key));
        processes
    }

    fn process(
        &mut self,
        app: &App<'_>,
        (stat, person): (Option<&Stat<'_>>, Option<&[u8]>),
        clocks: Clocks,
    ) -> Process {
        let mut process = Process {
            key: ProcessKey {
                pid: app.pid,
                start: stat.map_or(StartTicks(0), |stat| stat.start),
            },
            name: app.name.value().cloned().unwrap_or_default(),
            command: unseen(),
            user: unseen(),
            rank: self.untold(),
            local_rank: self.untold(),
            job: self.untold(),
            visible_devices: self.untold(),
            container: self.untold(),
            container_name: self.untold(),
            ..Process::default()
        };
        if let Some((user, command)) = person.and_then(parted) {
            process.user = visible(user, MOST_NAME).into();
            let words = words(command);
            let safe = redact::arguments(words).join(&b' ');
            process.command = visible(&safe, MOST_COMMAND).into();
        }
        if let Some(stat) = stat {
            process.name = visible(stat.name, MOST_NAME);
            process.state = stat.state;
            process.started = self.started(stat.start, clocks);
            process.cpu = self.cpu(process.key, stat.cpu_ticks, clocks.mono);
            process.rss = match self
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

    fn ticks_per_second(&self) -> u64 {
        // What Linux has shown to programs on every machine with an NVIDIA driver.
        self.facts.ticks_per_second.unwrap_or(100)
    }

    fn started(&self, start: StartTicks, clocks: Clocks) -> UnixMillis {
        let millis = start.0.saturating_mul(1_000) / self.ticks_per_second();
        let age = clocks.mono.0.saturating_sub(millis);
        UnixMillis(
            clocks
                .time
                .0
                .saturating_sub(i64::try_from(age).unwrap_or(i64::MAX)),
        )
    }

    fn cpu(&mut self, key: ProcessKey, ticks: u64, now: Mono) -> Reading<Percent> {
        let before = self.ticks.insert(key, (ticks, now));
        let passed = before.map_or(0, |(_, then)| now.since(then).0);
        let Some((before, _)) = before.filter(|_| passed > 0) else {
            return Reading::missing(Reason::NotRead, "needs two readings");
        };
        #[allow(clippy::cast_precision_loss)]
        let seconds = ticks.saturating_sub(before) as f64 / self.ticks_per_second() as f64;
        #[allow(clippy::cast_precision_loss)]
        Percent::rounded(seconds * 100_000.0 / passed as f64).into()
    }

    /// Nobody looks into the processes there.
    fn no_pools(&self, processes: &[Process], mono: Mono) -> Pools {
        let unread = processes.iter().map(|process| Unread {
            process: process.key,
            why: self.untold.clone(),
            ..Unread::default()
        });
        Pools {
            at: mono,
            unread: Arc::new(unread.collect()),
            ..Pools::default()
        }
    }
}

fn finished(card: Card) -> Gpu {
    let Card { gpu, board, .. } = card;
    Gpu {
        board: Arc::new(board),
        health: Health {
            state: HealthState::Answering,
            ..Health::default()
        },
        memory: gpu.memory.checked(),
        ..gpu
    }
}

/// Why there is none, in `nvidia-smi`'s own words where it has some.
fn no_gpus(round: &Round) -> Missing {
    let said = round
        .gpus
        .iter()
        .map(|line| visible(line.trim_ascii(), 160));
    let said = said.into_iter().find(|words| !words.is_empty());
    let words = match (said, round.gpus_exit) {
        (Some(words), _) => format!("nvidia-smi says: {}", words.trim_end_matches('.')),
        (None, Some(0)) => "nvidia-smi lists no GPU".to_owned(),
        (None, Some(code)) => format!("nvidia-smi ended with exit code {code}"),
        (None, None) => "nvidia-smi said nothing".to_owned(),
    };
    Missing::new(Reason::Unknown, format!("{words}."))
}

fn unseen<T>() -> Reading<T> {
    Reading::missing(Reason::Unknown, "`ps` there does not show the process")
}

fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let words = text.split(u8::is_ascii_whitespace);
    words.filter(|word| !word.is_empty())
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

#[cfg(test)]
mod tests {
    use super::super::lines::{Heard, Lines};
    use super::*;
    use crate::model::gpu::Throttle;
    use proptest::prelude::*;

    const FACTS: &str = "N node\nS pid:[4026531836]\nT 100\nP 4096\nF \"index\"\nF \"uuid\" or \"gpu_uuid\"\nF \"name\"\n\
         F \"memory.total\"\nF \"memory.used\"\nF \"memory.free\"\nF \"clocks_throttle_reasons.active\"\n.\n";

    /// The frames of what was heard.
    fn frames(told: &str) -> Vec<Frame> {
        let mut view = View::new(Missing::new(Reason::Unsupported, "untold"));
        let mut lines = Lines::default();
        let mut frames = Vec::new();
        for line in told.lines() {
            match lines.take(line.as_bytes()) {
                Some(Heard::Facts(facts)) => drop(view.hello(*facts)),
                Some(Heard::Round(round)) => frames.push(view.frame(&round, Millis(1_000))),
                Some(Heard::Clocks(clocks)) => {
                    frames.push(view.silent(clocks, Duration::from_secs(7), Millis(1_000)));
                }
                None => {}
            }
        }
        frames
    }

    #[test]
    fn a_round_is_a_frame_whose_processes_are_the_kernels() {
        let round = |number: u32, up: &str, ticks: u32| {
            format!(
                "b {number}\nu {up} 1763668000\nm MemTotal:  1000 kB\nm MemAvailable:  400 kB\nc cpu  {ticks} 0 0 100 0 0 0 0\n\
                 l 0.20 0.18 0.12 1/80 9\ng 0, GPU-1, NVIDIA H200, 143771, 1551, 141606, 0x0000000000000044\ng a warning\n\
                 g 1, GPU-2, NVIDIA H200, 100, 200, [N/A], [Not Supported]\ne 0\na GPU-1, 426, 1542, python3\n\
                 a GPU-1, 427, [N/A], [Not Found]\nd 0\n\
                 s 426 (python3) R 1 1 1 0 1 0 0 0 0 0 {ticks} 0 0 0 20 0 1 0 50000 100 256\n\
                 p   426 ana      python3 train.py --api-key x8f2c\n. {number}\n"
            )
        };
        let told = FACTS.to_owned() + &round(1, "1000.00", 100) + &round(2, "1002.00", 200);
        let frames = frames(&(told + "h 1010.00 1763668010\n"));
        let [first, second, silent] = &frames[..] else {
            panic!("{}", frames.len());
        };
        let [gpu, other] = &second.gpus[..] else {
            panic!("{:?}", second.gpus);
        };
        assert_eq!(gpu.memory.used.get(), Some(Bytes::mib(1_551)));
        assert_eq!(
            gpu.throttle.value(),
            Some(&vec![Throttle::SwPowerCap, Throttle::HwThermal])
        );
        assert_eq!(
            gpu.power.why().map(ToString::to_string).as_deref(),
            Some("the nvidia-smi there is too old for it")
        );
        // More than there is cannot be used.
        assert_eq!(
            other.memory.used.why().map(|why| why.reason),
            Some(Reason::Implausible)
        );
        let listed = gpu.processes.value().map(Vec::as_slice).unwrap_or_default();
        assert_eq!(listed.len(), 2);
        assert_eq!(listed[0].vram.get(), Some(Bytes::mib(1_542)));
        assert_eq!(
            listed[0].sm.why().map(ToString::to_string).as_deref(),
            Some("untold")
        );
        let known = second.process(listed[0].key()).expect("it is known");
        assert_eq!(
            (known.name.as_str(), known.user.value().map(String::as_str)),
            ("python3", Some("ana"))
        );
        assert_eq!(
            known.command.value().map(String::as_str),
            Some("python3 train.py --api-key ***")
        );
        // 100 ticks in 2 s.
        assert_eq!(
            (known.cpu.get(), known.rss.get()),
            (Some(Percent(50.0)), Some(Bytes(256 * 4096)))
        );
        // 500 s after the boot, which was 1002 s before.
        assert_eq!(known.started, UnixMillis((1_763_668_000 - 502) * 1_000));
        let host = second.host.as_ref().expect("a host");
        assert_eq!(
            (host.memory_used.get(), host.cpu.get()),
            (Some(Bytes(600 << 10)), Some(Percent(100.0)))
        );
        assert_eq!(first.host.as_ref().and_then(|host| host.cpu.get()), None);
        assert_eq!(
            second.pools.as_ref().map(|pools| pools.unread.len()),
            Some(2)
        );
        // A round that does not come leaves what was known, as old as it is.
        assert_eq!((silent.seq, silent.mono), (3, Mono(1_010_000)));
        assert_eq!(silent.gpus[0].at, Mono(1_002_000));
        assert_eq!(silent.gpus[0].health.state, HealthState::Silent);
        assert_eq!(silent.gpus[0].health.since, Some(Mono(1_003_000)));
    }

    #[test]
    fn in_a_container_no_pid_of_the_driver_is_taken_for_one_there() {
        let told = FACTS.replace("4026531836", "4026532541")
            + "b 1\nu 1.0 1\ng 0, GPU-1, H200, 1, 1, 0, 0x0\ne 0\na GPU-1, 1, 1, x\nd 0\n\
               s 1 (init) S 0 0 0 0 0 0 0 0 0 0 0 0 0 0 20 0 1 0 1 1 1\n. 1\n";
        let frame = frames(&told).pop().expect("a frame");
        let listed = frame.gpus[0].processes.value().expect("a list");
        assert_eq!(listed[0].process, None);
        assert!(
            frame
                .processes
                .is_some_and(|processes| processes.list.is_empty())
        );
    }

    proptest! {
        #[test]
        fn no_line_of_a_round_makes_it_panic(lines: Vec<(prop::sample::Index, String)>) {
            let mut told = FACTS.to_owned() + "b 1\n";
            for (kind, line) in lines {
                let kind = char::from(*kind.get(b"umclgeadsp"));
                told += &format!("{kind} {}\n", line.replace('\n', " "));
            }
            frames(&(told + ". 1\n"));
        }
    }
}
