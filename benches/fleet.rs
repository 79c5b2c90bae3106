//! What many hosts cost whoever watches them: 128 with eight GPUs and 64 processes each, once a second, the release binary
//! on a terminal of 200x50. Limits: 10 % of a core, 150 MiB, 16 ms from key to screen.
//!
//! ```text
//! cargo bench --bench fleet                                # 30 s
//! cargo bench --bench fleet -- --hosts 16 --seconds 10 --strict
//! ```
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

#[path = "../tests/it/day.rs"]
mod day;
#[path = "../tests/it/hosts.rs"]
mod hosts;
#[path = "overhead/keys.rs"]
mod keys;
#[path = "overhead/measure.rs"]
mod measure;
#[path = "overhead/table.rs"]
mod table;
#[path = "../tests/it/terminal.rs"]
mod terminal;

use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::Parser;

use crate::hosts::Hosts;
use crate::keys::key_to_screen;
use crate::measure::{Stretch, resident_mib};
use crate::table::Table;
use crate::terminal::{Launch, Terminal};

#[derive(Parser)]
struct Args {
    #[arg(long, default_value_t = 128)]
    hosts: usize,
    /// How long they are watched
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// Exit with status 1 when a target is missed
    #[arg(long)]
    strict: bool,
    /// Another gputop to measure: an older build
    #[arg(long, default_value = env!("CARGO_BIN_EXE_gputop"))]
    program: PathBuf,
    /// What `cargo bench` passes
    #[arg(long, hide = true)]
    bench: bool,
}

/// Long enough for all to be connected, and for what happens once.
const SETTLE: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let args = Args::parse();
    let length = usize::try_from(args.seconds).unwrap();
    let hosts = Hosts::start(args.hosts, length * 2 + 120, Duration::from_secs(1));
    let launch = Launch::program(&args.program).args(hosts.targets());
    let (name, folder) = hosts.env();
    let terminal = launch.env(name, folder).size(50, 200).start();
    terminal.wait_text(&format!("{} hosts", args.hosts));
    thread::sleep(SETTLE);
    assert_eq!(hosts.opened(), args.hosts, "{}", terminal.text());
    let mut table = Table::default();
    watch(&terminal, "list", "Help: Hosts", args.seconds, &mut table);
    terminal.send("\r");
    watch(
        &terminal,
        "a host",
        "Help: Overview",
        args.seconds,
        &mut table,
    );
    println!("{table}");
    match args.strict && table.missed() {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}

fn watch(terminal: &Terminal, on: &str, help: &str, seconds: u64, table: &mut Table) {
    let name = |what: &str| format!("{on}: {what}");
    eprintln!("{on} …");
    let (stretch, written) = (Stretch::begin(terminal.pid()), terminal.bytes_written());
    thread::sleep(Duration::from_secs(seconds));
    table.add(
        name("CPU"),
        "% of a core",
        stretch.cpu_percent(),
        None,
        Some(10.0),
    );
    let resident = resident_mib(terminal.pid());
    table.add(name("resident memory"), "MiB", resident, None, Some(150.0));
    let written = terminal.bytes_written() - written;
    #[allow(clippy::cast_precision_loss)]
    let rate = written as f64 / 1024.0 / stretch.elapsed().as_secs_f64();
    table.add(name("written to the terminal"), "KiB/s", rate, None, None);
    let (median, worst) = key_to_screen(terminal, help);
    table.add(name("key to screen, median"), "ms", median, None, None);
    table.add(name("key to screen, worst"), "ms", worst, None, Some(16.0));
}
