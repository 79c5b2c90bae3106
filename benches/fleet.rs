//! Measures the cost of watching many hosts: 128 hosts with 8 GPUs and 64 processes each, one frame a second, the
//! release binary on a terminal of 200x50. Limits: 10 % of a core, 150 MiB, 16 ms from key to screen.
//!
//! ```text
//! cargo bench --bench fleet                                # 30 s
//! cargo bench --bench fleet -- --hosts 16 --seconds 10 --strict
//! cargo bench --bench fleet -- --day                       # some minutes
//! ```
//!
//! `--day` simulates a day of cut links on a fast clock. Each hour, every host sends twenty frames and reports a
//! process that the kernel killed, and then its link is cut. Only two things may grow with the hours: the history of
//! the open host and, until the second hour, the history outlines of the other hosts. Any other growth is a leak. The
//! day ends with ten minutes at one frame a second, which early warnings use.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

#[path = "../tests/it/support/deadline.rs"]
#[allow(dead_code)]
mod deadline;
#[path = "../tests/it/support/disconnect_day.rs"]
mod disconnect_day;
#[path = "../tests/it/support/fake_hosts.rs"]
mod fake_hosts;
#[path = "overhead/keys.rs"]
mod keys;
#[path = "overhead/measure.rs"]
mod measure;
#[path = "overhead/table.rs"]
mod table;
#[path = "../tests/it/support/terminal.rs"]
mod terminal;
#[path = "../tests/it/support/training_day.rs"]
mod training_day;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::Parser;

use crate::fake_hosts::Hosts;
use crate::keys::key_to_screen;
use crate::measure::{Measurement, resident_mib};
use crate::table::Table;
use crate::terminal::{Launch, Terminal};

#[derive(Parser)]
struct Args {
    #[arg(long, default_value_t = 128)]
    hosts: usize,
    /// Duration of each measurement in seconds
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// Simulate a day of hosts whose links are cut each hour, on a fast clock; measure memory, descriptors, threads,
    /// children
    #[arg(long)]
    day: bool,
    /// Exit with status 1 when a target is missed
    #[arg(long)]
    strict: bool,
    /// Measure this gputop instead, such as an older build
    #[arg(long, default_value = env!("CARGO_BIN_EXE_gputop"))]
    program: PathBuf,
    /// Flag that `cargo bench` passes
    #[arg(long, hide = true)]
    bench: bool,
}

/// Long enough for all hosts to connect and for one-time work to finish.
const SETTLE: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let args = Args::parse();
    if args.day {
        let table = measure_day(&args);
        println!("{table}");
        return match args.strict && table.missed() {
            true => ExitCode::FAILURE,
            false => ExitCode::SUCCESS,
        };
    }
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
    watch(&terminal, "a host", "Help: Overview", args.seconds, &mut table);
    println!("{table}");
    match args.strict && table.missed() {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}

const HOURS: usize = 24;
/// Frames a second on the fast clock, over all hosts: three times the normal rate of 128 hosts. A higher rate would
/// only measure a client that falls behind.
const MAX_FRAMES_PER_SECOND: u32 = 400;
/// Minimum time between two frames of a host.
const MIN_PAUSE: Duration = Duration::from_millis(50);
/// Number of different hosts. Further hosts send the same data as one of these.
const DISTINCT_HOSTS: usize = 8;
/// Maximum growth in MiB from the second hour to the last: a day of history of the open host, and some heap
/// fragmentation.
const MAX_GROWTH: f64 = 40.0;

fn measure_day(args: &Args) -> Table {
    eprintln!("what they tell …");
    let links = disconnect_day::links(DISTINCT_HOSTS.min(args.hosts), HOURS, true);
    let pause = MIN_PAUSE
        .max(Duration::from_secs(1) * u32::try_from(args.hosts).unwrap() / MAX_FRAMES_PER_SECOND);
    let hosts = Hosts::with_links(args.hosts, links, pause);
    let launch = Launch::program(&args.program).args(hosts.targets());
    let (name, folder) = hosts.env();
    let terminal = launch.env(name, folder).size(50, 200).start();
    terminal.wait_text(&format!("{} hosts", args.hosts));
    terminal.send("\r");
    let mut table = Table::default();
    let mut note = |when: &str| {
        let name = |what: &str| format!("{when}: {what}");
        let resident = resident_mib(terminal.pid());
        table.add(name("resident memory"), "MiB", resident, None, Some(150.0));
        for (what, count) in held(terminal.pid()) {
            #[allow(clippy::cast_precision_loss)]
            table.add(name(what), "", count as f64, None, None);
        }
        eprintln!("{when}: {resident:.1} MiB");
        resident
    };
    let wait_for_links = |links: usize, pieces: u32| {
        while hosts.opened() < args.hosts * links {
            thread::sleep(Duration::from_millis(100));
        }
        thread::sleep(pause * pieces);
    };
    let mut of_hours = Vec::new();
    for hour in [1, 2, 6, 12, 18, HOURS] {
        // Wait until the end of the hour.
        wait_for_links(hour, disconnect_day::AN_HOUR - 2);
        of_hours.push(note(&format!("hour {hour}")));
    }
    let growth = of_hours[of_hours.len() - 1] - of_hours[1];
    wait_for_links(HOURS + 1, disconnect_day::TEN_MINUTES - 10);
    note("and ten minutes at 1 Hz");
    let what = format!("from hour 2 to {HOURS}: growth, the open host's day in it");
    table.add(what, "MiB", growth, None, Some(MAX_GROWTH));
    table
}

/// Returns the number of open files, threads and children of a process.
fn held(pid: u32) -> [(&'static str, usize); 3] {
    let count =
        |folder: &str| fs::read_dir(format!("/proc/{pid}/{folder}")).map_or(0, Iterator::count);
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    let lists = tasks.flatten().map(|task| fs::read_to_string(task.path().join("children")));
    let children = lists.map(|list| list.map_or(0, |list| list.split_whitespace().count()));
    [("open files", count("fd")), ("threads", count("task")), ("children", children.sum())]
}

fn watch(terminal: &Terminal, on: &str, help: &str, seconds: u64, table: &mut Table) {
    let name = |what: &str| format!("{on}: {what}");
    eprintln!("{on} …");
    let (stretch, written) = (Measurement::begin(terminal.pid()), terminal.bytes_written());
    thread::sleep(Duration::from_secs(seconds));
    table.add(name("CPU"), "% of a core", stretch.cpu_percent(), None, Some(10.0));
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
