//! Measures the time until a remote host is shown: from starting the connection command to its GPUs on the screen, at
//! several network delays. Limit: one round trip and 0.3 s.
//!
//! ```text
//! cargo bench --bench first_frame
//! cargo bench --bench first_frame -- --times 20 --strict
//! ```
//!
//! The remote host is the release binary's agent on the fake NVML, with the latencies of 8 real H200s and 64 processes.
//! This program itself acts as the connection and delays the data in both directions.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "overhead/busy.rs"]
mod busy;
#[path = "../tests/it/support/deadline.rs"]
#[allow(dead_code)]
mod deadline;
#[path = "../tests/it/support/fake_nvml.rs"]
mod fake_nvml;
#[path = "overhead/table.rs"]
mod table;
#[path = "../tests/it/support/terminal.rs"]
mod terminal;

use std::io::{Read, Write};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;

use crate::busy::{Sleepers, build_fake_nvml, is_full, scenario};
use crate::fake_nvml::FakeNvml;
use crate::table::Table;
use crate::terminal::Launch;

const GPUTOP: &str = env!("CARGO_BIN_EXE_gputop");
/// One-way delays in milliseconds.
const DELAYS: [u64; 3] = [0, 40, 150];
const LIMIT: Duration = Duration::from_millis(300);

#[derive(Parser)]
struct Args {
    /// Number of runs for each delay
    #[arg(long, default_value_t = 10)]
    times: usize,
    /// Exit with status 1 when the limit is missed
    #[arg(long)]
    strict: bool,
    /// Act as the connection, with this delay in milliseconds
    #[arg(long, hide = true)]
    way: Option<u64>,
    /// Flag that `cargo bench` passes
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(delay) = args.way {
        return run_delayed_agent(Duration::from_millis(delay));
    }
    build_fake_nvml();
    let sleepers = Sleepers::start(64);
    let machine = FakeNvml::new(&scenario(&sleepers, None));
    let mut table = Table::default();
    for delay in DELAYS {
        let mut took: Vec<f64> = (0..args.times).map(|_| first(&machine, delay)).collect();
        took.sort_by(f64::total_cmp);
        let limit = LIMIT.as_secs_f64() * 1e3 + 2.0 * delay as f64;
        let name = |what: &str| format!("{} ms there and back: {what}", 2 * delay);
        table.add(name("median"), "ms", took[took.len() / 2], None, Some(limit));
        table.add(name("worst"), "ms", took[took.len() - 1], None, None);
    }
    println!("{table}");
    match args.strict && table.missed() {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}

/// Returns the milliseconds until all GPUs are on the screen.
fn first(machine: &FakeNvml, delay: u64) -> f64 {
    let this = std::env::current_exe().unwrap();
    let way = format!("via:exec {} --way {delay}", this.display());
    let terminal = Launch::program(GPUTOP).args([way]).envs(machine.env());
    let terminal = terminal.size(50, 200).start();
    terminal.wait_for(is_full, "the far GPUs");
    terminal.started().elapsed().as_secs_f64() * 1e3
}

/// Runs an agent behind a connection with this delay.
fn run_delayed_agent(delay: Duration) -> ExitCode {
    let mut agent = Command::new(GPUTOP);
    agent.arg("agent").stdin(Stdio::piped()).stdout(Stdio::piped());
    thread::sleep(delay);
    let mut agent = agent.spawn().unwrap();
    let (input, output) = (agent.stdin.take().unwrap(), agent.stdout.take().unwrap());
    thread::spawn(move || forward_delayed(std::io::stdin(), input, delay));
    forward_delayed(output, std::io::stdout(), delay);
    let _ = agent.wait();
    ExitCode::SUCCESS
}

/// Forwards data, each piece after the delay.
fn forward_delayed(mut from: impl Read + Send + 'static, mut to: impl Write, delay: Duration) {
    let (pieces, come) = mpsc::channel();
    thread::spawn(move || {
        let mut piece = [0; 16 << 10];
        while let Ok(n @ 1..) = from.read(&mut piece) {
            if pieces.send((Instant::now(), piece[..n].to_vec())).is_err() {
                return;
            }
        }
    });
    for (at, piece) in come {
        thread::sleep((at + delay).saturating_duration_since(Instant::now()));
        if to.write_all(&piece).and_then(|()| to.flush()).is_err() {
            return;
        }
    }
}
