//! A day of training on eight H200s with 64 processes, second by second, to measure the size of a recording and of a
//! history.
//!
//! Values change as on a real machine: utilization, power, temperature and clocks every second, device memory rarely,
//! the processes' SM share every five seconds, CPU and RSS from the kernel every two seconds. All are rounded as by the
//! collectors. Random, but the same on every run.
// A figure that is added to the model need not be added here.
#![allow(clippy::needless_update)]

use std::sync::Arc;

use gputop_model::frame::{Frame, ProcessList};
use gputop_model::gpu::{Board, Ecc, Gpu, GpuProcess, Health, HealthState, Memory, Pcie, Throttle};
use gputop_model::host::{Driver, Hello, Host, PidNamespace};
use gputop_model::pool::{Allocator, Pool, PoolStats, Pools, Sampled};
use gputop_model::process::{Process, ProcessKey, RunState};
use gputop_model::units::{
    Bytes, Celsius, GpuUuid, MegaHertz, MilliWatts, Millis, Mono, Percent, Pid, StartTicks,
    UnixMillis,
};

pub const GPUS: u32 = 8;
pub const PROCESSES: u32 = 64;
const MIB: u64 = 1 << 20;
const BOOT: u64 = 5_400_000;
const TOTAL: Bytes = Bytes(150_754_820_096);
const RESERVED: Bytes = Bytes(643_825_664);

pub fn hello() -> Hello {
    Hello {
        schema: gputop_model::frame::SCHEMA,
        version: "0.1.0".into(),
        host: "train-07".into(),
        agent: "5d0c1f6a".into(),
        namespace_id: 4_026_531_836.into(),
        boot_id: "6c1f1c9e-4b0e-4a53-9a5c-8d1d5b0e7b11".into(),
        kernel: "6.8.0-90-generic".to_owned().into(),
        namespace: PidNamespace::Host,
        ticks_per_second: 100,
        ..Hello::default()
    }
}

/// xorshift64*: the day must be the same on every run, and this needs no crate.
pub struct Random(pub u64);

impl Random {
    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }

    /// Returns a number from `low` to `high`, inclusive.
    pub fn between(&mut self, low: i64, high: i64) -> i64 {
        low + (self.roll() % (high - low + 1) as u64) as i64
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.roll().is_multiple_of(n)
    }
}

/// The day so far; each `next` is one second later.
pub struct Day {
    dice: Random,
    frame: Frame,
    second: u64,
    /// Seconds from one frame to the next.
    pub step: u64,
}

impl Day {
    pub fn new() -> Self {
        let mut day = Self {
            dice: Random(0x9E37_79B9_7F4A_7C15),
            frame: Frame {
                interval: Millis(1_000),
                driver: Some(Driver {
                    version: "580.159.03".to_owned().into(),
                    cuda: "13.0".to_owned().into(),
                    ..Driver::default()
                }),
                ..Frame::default()
            },
            second: 0,
            step: 1,
        };
        day.frame.gpus = (0..GPUS).map(gpu).collect();
        day.frame.processes = Some(ProcessList {
            at: Mono(BOOT),
            list: Arc::new((0..PROCESSES).map(process).collect()),
        });
        day.frame.pools =
            Some(Pools { list: Arc::new((0..GPUS).map(pool).collect()), ..Pools::default() });
        day
    }

    /// Gives every process a pool that can be read. Allocated memory changes with each training step, reserved memory
    /// and the counters rarely.
    #[allow(dead_code, reason = "the recording is measured without")]
    pub fn with_pools(mut self) -> Self {
        let list = (0..PROCESSES).map(|number| Pool {
            process: key(number),
            library: "torch 2.9".into(),
            gpu: GpuUuid(uuid(number / 8).into()).into(),
            ..Pool::default()
        });
        self.frame.pools = Some(Pools { list: Arc::new(list.collect()), ..Pools::default() });
        self
    }

    /// Produces a frame every `seconds` from now on, as for an observer that requests this interval.
    #[allow(dead_code, reason = "the recording has one each second")]
    pub fn pace(&mut self, seconds: u64) {
        self.step = seconds;
        self.frame.interval = Millis(seconds * 1_000);
    }

    /// Returns the frame of the next second.
    pub fn next(&mut self) -> &Frame {
        let now = Mono(BOOT + self.second * 1_000 + self.dice.between(0, 2) as u64);
        self.frame.seq = self.second;
        self.frame.mono = now;
        self.frame.time = UnixMillis(1_790_000_000_000 + now.0 as i64);
        self.move_host(now);
        for index in 0..GPUS as usize {
            self.move_gpu(index, now);
        }
        self.move_processes(now);
        self.move_pools(now);
        self.second += self.step;
        &self.frame
    }

    fn move_host(&mut self, now: Mono) {
        let dice = &mut self.dice;
        self.frame.host = Some(Host {
            at: Mono(now.0 - dice.between(1, 9) as u64),
            cpu: Percent::rounded(31.0 + dice.between(0, 90_000) as f64 / 10_000.0).into(),
            cores: 192.into(),
            memory_total: Bytes(2_164_123_246_592).into(),
            memory_used: Bytes(812_000_000_000 + dice.roll() % 2_000_000 * 4_096).into(),
            swap_total: Bytes(0).into(),
            swap_used: Bytes(0).into(),
            // The kernel updates the load every five seconds.
            load: [0, 1, 3]
                .map(|i| 60.0 + ((self.second / 5 * 37 + i) % 400) as f64 / 100.0)
                .to_vec()
                .into(),
            ..Host::default()
        });
    }

    fn move_gpu(&mut self, index: usize, now: Mono) {
        let (dice, second) = (&mut self.dice, self.second);
        let gpu = &mut self.frame.gpus[index];
        // Steps of several seconds with a dip at the end, and a checkpoint pause every ten minutes.
        let saving = second % 600 < 20;
        let dip = (second + index as u64).is_multiple_of(7);
        let sm = match (saving, dip) {
            (true, _) => dice.between(0, 6),
            (false, true) => dice.between(55, 92),
            (false, false) => dice.between(96, 100),
        };
        gpu.at = Mono(now.0 - dice.between(1, 12) as u64);
        gpu.sm = Percent(sm as f64).into();
        gpu.memory_bandwidth = Percent((sm * 4 / 9 + dice.between(0, 5)) as f64).into();
        let watts = 120_000 + sm * 5_600 + dice.between(-14_000, 14_000);
        gpu.power = MilliWatts(watts as u32).into();
        let warm = 34 + sm / 4 + dice.between(0, 1);
        gpu.temperature = Celsius(warm as i32).into();
        gpu.memory_temperature = Celsius((warm + 9 + dice.between(0, 1)) as i32).into();
        let capped = watts > 672_000;
        let clock = if capped { 1_980 - 15 * dice.between(0, 9) } else { 1_980 };
        gpu.sm_clock = MegaHertz(clock as u32).into();
        gpu.throttle = if capped { vec![Throttle::SwPowerCap] } else { vec![] }.into();
        if second.is_multiple_of(2) {
            gpu.processes_at = Some(Mono(now.0 - dice.between(1, 12) as u64));
        }
        if second.is_multiple_of(5) {
            gpu.utilization_at = Some(Mono(now.0 - dice.between(1, 12) as u64));
        }
        self.move_device_memory(index);
    }

    fn move_device_memory(&mut self, index: usize) {
        let (dice, second) = (&mut self.dice, self.second);
        let gpu = &mut self.frame.gpus[index];
        let mut used = 480 << 20;
        if let gputop_model::reading::Reading::Value(list) = &mut gpu.processes {
            for (i, process) in list.iter_mut().enumerate() {
                // The trainer's cache grows by a segment now and then; the other processes keep their size.
                if i == 0 && dice.one_in(180) {
                    process.vram = Bytes::mib(96_000 + 2 * dice.between(0, 9_000) as u64).into();
                }
                if second.is_multiple_of(5) {
                    let (low, high) = if i == 0 { (84, 99) } else { (0, 2) };
                    process.sm = Percent(dice.between(low, high) as f64).into();
                    process.memory_bandwidth =
                        Percent(dice.between(low / 3, high / 2) as f64).into();
                }
                used += process.vram.get().map_or(0, |v| v.0);
            }
        }
        gpu.memory = Memory {
            total: TOTAL.into(),
            used: Bytes(used).into(),
            reserved: RESERVED.into(),
            free: Bytes(TOTAL.0 - RESERVED.0 - used).into(),
        };
    }

    fn move_processes(&mut self, now: Mono) {
        let (dice, second) = (&mut self.dice, self.second);
        // The agent reads these values every other second.
        if !second.is_multiple_of(2) {
            return;
        }
        let Some(processes) = &mut self.frame.processes else { return };
        processes.at = Mono(now.0 - dice.between(1, 20) as u64);
        for (i, process) in Arc::make_mut(&mut processes.list).iter_mut().enumerate() {
            let trainer = i.is_multiple_of(8);
            // The kernel counts ticks of 10 ms over an interval that is never exactly a second.
            if trainer || (second / 2 + i as u64).is_multiple_of(2) {
                let ticks = if trainer { dice.between(98, 240) } else { dice.between(12, 80) };
                let interval = 1.0 + dice.between(-3_000, 3_000) as f64 / 1_000_000.0;
                process.cpu = Percent::rounded(ticks as f64 / interval).into();
                let pages = dice.between(-900, 1_000);
                let rss = process.rss.get().map_or(0, |v| v.0);
                process.rss = Bytes(rss.saturating_add_signed(pages * 4_096)).into();
            }
            process.state = match dice.between(0, if trainer { 19 } else { 3 }) {
                0 => RunState::Sleeping,
                _ => RunState::Running,
            };
        }
    }

    fn move_pools(&mut self, now: Mono) {
        let (dice, second) = (&mut self.dice, self.second);
        let Some(pools) = &mut self.frame.pools else { return };
        pools.at = Mono(now.0 - dice.between(1, 4) as u64);
        for pool in Arc::make_mut(&mut pools.list) {
            pool.at = Mono(now.0 - dice.between(5, 45) as u64);
            // A second contains a whole step, from the weights alone to all activations. Its extremes repeat with the
            // batch length, but its last sample does not.
            let length = dice.between(0, 4) as u64;
            let (low, high) = (Bytes::mib(48_310), Bytes(83_100 * MIB + length * 96_469_504));
            let last = Bytes(low.0 + dice.roll() % 70_000_000 * 512);
            let stats = &mut pool.stats;
            stats.allocated = Sampled(low, high, last);
            stats.active = stats.allocated;
            stats.inactive_split = Bytes(dice.roll() % 4_000_000 * 512);
            // Rounding to 512 bytes matters little for tensors of megabytes.
            stats.requested = Bytes(last.0 - dice.roll() % 1_000_000).into();
            stats.largest_free_block = Bytes(dice.roll() % 1_000 * 512 * 1_024).into();
            // A checkpoint pause: nothing is allocated or freed.
            if second % 600 < 20 {
                stats.allocated = Sampled::new(low);
                stats.active = stats.allocated;
            }
        }
    }
}

fn uuid(index: u32) -> String {
    let mut dice = Random(0xA5A5_0000 + u64::from(index));
    let (a, b) = (dice.roll(), dice.roll());
    format!("GPU-{:08x}-{:04x}-4b1d-9c0e-{:012x}", a as u32, b as u16, a ^ b)
}

fn gpu(index: u32) -> Gpu {
    Gpu {
        index,
        uuid: GpuUuid(uuid(index).into()),
        name: "NVIDIA H200".into(),
        health: Health { state: HealthState::Answering, ..Health::default() },
        board: Arc::new(board(index)),
        encoder: Percent(0.0).into(),
        decoder: Percent(0.0).into(),
        power_cap: MilliWatts(700_000).into(),
        fan: gputop_model::reading::Reading::Missing(
            gputop_model::reading::Reason::Unsupported.into(),
        ),
        memory_clock: MegaHertz(3_201).into(),
        pstate: 0.into(),
        ecc: Ecc {
            enabled: true.into(),
            corrected: 0.into(),
            uncorrected: 0.into(),
            remapped_correctable: 0.into(),
            remapped_uncorrectable: 0.into(),
            remap_pending: false.into(),
            remap_failed: false.into(),
            ..Ecc::default()
        },
        pcie: Pcie {
            generation: 5.into(),
            width: 16.into(),
            max_generation: 5.into(),
            max_width: 16.into(),
            ..Pcie::default()
        },
        mig_enabled: false.into(),
        processes: (0..PROCESSES)
            .filter(|p| p / 8 == index)
            .map(|p| GpuProcess {
                pid: pid(p),
                process: Some(key(p)),
                vram: Bytes::mib(if p % 8 == 0 { 104_722 } else { 518 + u64::from(p) * 3 }).into(),
                sm: Percent(0.0).into(),
                memory_bandwidth: Percent(0.0).into(),
                ..GpuProcess::default()
            })
            .collect::<Vec<_>>()
            .into(),
        ..Gpu::default()
    }
}

fn board(index: u32) -> Board {
    Board {
        pci_bus: format!("0000:{:02x}:00.0", 0x1b + index * 17).into(),
        minor: index.into(),
        serial: format!("16526240{index:05}").into(),
        vbios: "96.00.B4.00.02".to_owned().into(),
        compute_capability: "9.0".to_owned().into(),
        architecture: "Hopper".to_owned().into(),
        persistence: true.into(),
        compute_mode: "default".to_owned().into(),
        max_sm_clock: MegaHertz(1_980).into(),
        max_memory_clock: MegaHertz(3_201).into(),
        power_cap_default: MilliWatts(700_000).into(),
        slowdown_temperature: Celsius(87).into(),
        shutdown_temperature: Celsius(92).into(),
        ..Board::default()
    }
}

fn pool(rank: u32) -> Pool {
    Pool {
        process: key(rank * 8),
        allocator: Allocator::Native,
        library: "torch 2.3 to 2.9".into(),
        ordinal: rank,
        gpu: GpuUuid(uuid(rank).into()).into(),
        stats: PoolStats {
            allocated_peak: Bytes::mib(83_468),
            reserved: Sampled::new(Bytes::mib(91_002)),
            reserved_peak: Bytes::mib(91_002),
            active_peak: Bytes::mib(83_500),
            inactive_split_peak: Bytes::mib(2_412),
            segments: 517,
            segments_peak: 517,
            ..PoolStats::default()
        },
        ..Pool::default()
    }
}

fn pid(i: u32) -> Pid {
    Pid(418_000 + i * 13)
}

pub fn key(i: u32) -> ProcessKey {
    ProcessKey { pid: pid(i), start: StartTicks(310_000 + u64::from(i) * 7) }
}

fn process(i: u32) -> Process {
    let (rank, worker) = (i / 8, i % 8);
    Process {
        key: key(i),
        started: UnixMillis(1_789_999_000_000 + i64::from(i) * 70),
        name: if worker == 0 { "python".into() } else { format!("pt_data_worker:{worker}") },
        command: format!(
            "/opt/venv/bin/python -u train.py --config configs/llama-8b.yaml --local-rank {rank} --worker {worker} --out /scratch/runs/2026-11-20"
        )
        .into(),
        user: "mschmidt".to_owned().into(),
        rss: Bytes(9_000_000_000 + u64::from(i) * 81_920_000).into(),
        rank: rank.into(),
        local_rank: rank.into(),
        job: "88121".to_owned().into(),
        ..Process::default()
    }
}
