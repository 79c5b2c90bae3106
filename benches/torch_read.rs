//! Measures the cost of reading PyTorch's allocator: `cargo bench --bench torch_read -- PID…`. Not run in CI.
//!
//! The PIDs are those of processes that use PyTorch, on a GPU or on the test bed's fake runtime. The budgets: attach in
//! 5 ms, read statistics in 10 µs per device, read a map of 10,000 blocks in 5 ms, and sample 8 processes twenty times
//! a second with 0.2 % of a core.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use gputop_model::process::ProcessKey;
use gputop_model::units::{Pid, StartTicks};
use gputop_peek::memory::live::Live;
use gputop_peek::torch::Attached;
use gputop_peek::torch::sampler::{PERIOD, Sampler};

const TURNS: usize = 200;
const SAMPLED: Duration = Duration::from_secs(20);

fn main() {
    let pids: Vec<Pid> =
        std::env::args().filter_map(|argument| argument.parse().ok().map(Pid)).collect();
    for &pid in &pids {
        process(pid);
    }
    if !pids.is_empty() {
        sampler(&pids);
    }
}

fn process(pid: Pid) {
    let attach = || Attached::attach(Live::new(Path::new("/proc"), pid));
    let took = median(20, || drop(attach().unwrap()));
    println!("PID {pid}: attach {:8.1} µs", micros(took));
    let mut attached = attach().unwrap();
    let devices = attached.device_count();
    let mut whole = 0;
    let took = median(TURNS, || whole += attached.stats().unwrap().len());
    let share = 100.0 * whole as f64 / (TURNS * devices) as f64;
    println!("  statistics of {devices} devices {:8.1} µs, {share:.1} % whole", micros(took));
    for stats in attached.stats().unwrap() {
        if !stats.is_used() {
            continue;
        }
        let mut exact = 0;
        let mut blocks = 0;
        let took = median(TURNS, || {
            let map = attached.map(stats.ordinal).unwrap();
            exact += usize::from(map.exact);
            blocks = map.segments.iter().map(|s| s.blocks.len()).sum();
        });
        let share = 100 * exact / TURNS;
        println!("  map of {blocks} blocks {:10.1} µs, {share} % exact", micros(took));
        let took = median(TURNS, || drop(attached.largest_free_block(stats.ordinal)));
        println!("  largest free block {:12.1} µs", micros(took));
    }
}

/// Measures the sampler thread's share of a core, with one request per second, like the agent's.
fn sampler(pids: &[Pid]) {
    let keys = pids.iter().map(|&pid| ProcessKey {
        pid,
        start: StartTicks(
            procfs::process::Process::new(pid.0.try_into().unwrap())
                .and_then(|process| process.stat())
                .unwrap()
                .starttime,
        ),
    });
    let sampler = Sampler::start(Path::new("/proc"), PERIOD).unwrap();
    sampler.watch(keys.collect());
    let (send, answers) = mpsc::channel();
    let ask = || {
        let send = send.clone();
        sampler.pools(move |pools| send.send(pools).unwrap());
        answers.recv().unwrap()
    };
    std::thread::sleep(Duration::from_secs(2));
    ask();
    let (started, before) = (Instant::now(), cpu_time());
    let mut last = ask();
    while started.elapsed() < SAMPLED {
        std::thread::sleep(Duration::from_secs(1));
        last = ask();
    }
    let share = (cpu_time() - before).as_secs_f64() / started.elapsed().as_secs_f64() * 100.0;
    println!(
        "sampler: {} processes, {} pools, {} unread: {share:.3} % of a core",
        pids.len(),
        last.list.len(),
        last.unread.len()
    );
}

/// Returns the CPU time of the whole process, which does nothing else.
fn cpu_time() -> Duration {
    let clock = nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID;
    nix::time::clock_gettime(clock).unwrap().into()
}

fn median(turns: usize, mut work: impl FnMut()) -> Duration {
    let mut times: Vec<Duration> = (0..turns)
        .map(|_| {
            let started = Instant::now();
            work();
            started.elapsed()
        })
        .collect();
    times.sort();
    times[turns / 2]
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
