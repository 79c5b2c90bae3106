//! Measures the cost of a tick's reads from `/proc`: `cargo bench --bench proc_read`. Not run in CI.
//!
//! Spawns 64 children with 32 sleeping threads each, the minimum for a PyTorch process, and prints the median of many
//! ticks. The budgets: 64 processes in 0.4 ms, the host line in 0.3 ms.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gputop::collect::host::HostReader;
use gputop::collect::process::container::Files;
use gputop::collect::process::{ProcessTable, detail};
use gputop_model::host::PidNamespace;
use gputop_model::units::{Mono, Pid};

const PROCESSES: usize = 64;
const THREADS: usize = 32;
const TICKS: u64 = 500;

fn main() {
    // This program also runs as the children.
    if std::env::args().any(|a| a == "--idle") {
        idle();
    }
    let mut children: Vec<Child> = (0..PROCESSES).map(|_| spawn()).collect();
    let pids: Vec<Pid> = children.iter().map(|c| Pid(c.id())).collect();
    wait_for_threads(&pids);
    let mut table = ProcessTable::new(
        Path::new("/proc"),
        Files { root: "/".into(), home: None },
        PidNamespace::Host,
    );

    let first = timed(|| drop(table.read(&pids, Mono(0))));
    println!("first sight of {PROCESSES} processes  {:8.1} µs", micros(first));
    // Keep the time constant, so that no slow facts become due.
    let tick = median(|| drop(table.read(&pids, Mono(1))));
    let each = micros(tick) / PROCESSES as f64;
    println!("a tick of {PROCESSES} processes       {:8.1} µs, {each:.2} µs each", micros(tick));
    let mut later = Mono(1_000_000_000);
    let slow = median(|| {
        later.0 += 40_000;
        drop(table.read(&pids, later));
    });
    let slow = (micros(slow) - micros(tick)) / PROCESSES as f64;
    println!("slow facts of one process   {slow:8.1} µs, every 22 to 30 s");
    let key = table.read(&pids, Mono(1)).list[0].key;
    let detail = median(|| drop(detail(Path::new("/proc"), key)));
    println!("the detail of one process   {:8.1} µs", micros(detail));

    let mut host = HostReader::default();
    let mut now = Mono(0);
    let host = median(|| {
        now.0 += 1000;
        drop(host.read(now));
    });
    println!(
        "the host line               {:8.1} µs (CPU times at most every 200 ms)",
        micros(host)
    );
    println!("the host line, CPU taken    {:8.1} µs", micros(host_with_cpu()));
    for child in &mut children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// Measures reads that include CPU times, which sysinfo updates only every 200 ms by its own clock.
fn host_with_cpu() -> Duration {
    let mut reader = HostReader::default();
    let mut times: Vec<Duration> = (0..20)
        .map(|tick| {
            std::thread::sleep(Duration::from_millis(205));
            timed(|| drop(reader.read(Mono(tick * 205))))
        })
        .collect();
    times.sort();
    times[times.len() / 2]
}

fn spawn() -> Child {
    let program = std::env::current_exe().unwrap();
    Command::new(program).arg("--idle").stdin(Stdio::piped()).spawn().unwrap()
}

fn idle() -> ! {
    for _ in 1..THREADS {
        std::thread::spawn(|| {
            loop {
                std::thread::park();
            }
        });
    }
    loop {
        std::thread::park();
    }
}

fn wait_for_threads(pids: &[Pid]) {
    for pid in pids {
        while std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().count() < THREADS {
            std::thread::yield_now();
        }
    }
}

fn timed(work: impl FnOnce()) -> Duration {
    let started = Instant::now();
    work();
    started.elapsed()
}

fn median(mut work: impl FnMut()) -> Duration {
    let mut times: Vec<Duration> = (0..TICKS).map(|_| timed(&mut work)).collect();
    times.sort();
    times[times.len() / 2]
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
