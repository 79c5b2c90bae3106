//! One measurement: gputop on a machine with 8 busy GPUs and the given number of processes, then the bare loop on an
//! identical machine.
//!
//! gputop must draw a header with `SM`, a row for each GPU that begins with its index and contains a number, and a help
//! screen that contains the text of `HELP`.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::busy::{GPUS, Reaped, Sleepers, is_full, scenario};
use crate::fake_nvml::FakeNvml;
use crate::keys::key_to_screen;
use crate::measure::{Measurement, resident_mib};
use crate::rates::Rates;
use crate::table::Table;
use crate::terminal::{Launch, Terminal};

/// Long enough for one-time reads to finish.
const SETTLE: Duration = Duration::from_secs(3);

/// Text on the help screen: the title that `?` shows on the overview (`tui::action`).
const HELP: &str = "Help: Overview";

pub fn measure(program: &Path, processes: usize, duration: Duration, table: &mut Table) {
    let sleepers = Sleepers::start(processes);
    let machine = FakeNvml::new(&scenario(&sleepers, None));
    let name = |what: &str| format!("{processes} processes: {what}");

    eprintln!("gputop with {processes} processes …");
    let terminal = launch(program, &machine);
    let first_frame = terminal.started().elapsed();
    let watched = watch(terminal.pid(), &machine, duration);
    eprintln!("the loop with the same calls …");
    let bare = measure_loop(&sleepers, &watched.rates, duration);

    let cpu = (bare.watched.cpu * 1.3).min(1.3);
    table.add(name("CPU"), "% of a core", watched.cpu, Some(bare.watched.cpu), Some(cpu));
    let resident = bare.watched.resident + 10.0;
    table.add(
        name("resident memory"),
        "MiB",
        watched.resident,
        Some(bare.watched.resident),
        Some(resident),
    );
    let (frame, init) = (millis(first_frame), millis(bare.init));
    table.add(name("first full frame; init"), "ms", frame, Some(init), Some(init + 100.0));
    let written = terminal.bytes_written();
    let (median, worst) = key_to_screen(&terminal, HELP);
    table.add(name("key to screen, median"), "ms", median, None, None);
    table.add(name("key to screen, worst"), "ms", worst, None, Some(16.0));
    hang(&machine, &sleepers);
    let (median, worst) = key_to_screen(&terminal, HELP);
    table.add(name("key to screen, one GPU hangs, median"), "ms", median, None, None);
    table.add(name("key to screen, one GPU hangs, worst"), "ms", worst, None, Some(16.0));
    #[allow(clippy::cast_precision_loss)]
    let rate = written as f64 / 1024.0 / (duration + SETTLE).as_secs_f64();
    table.add(name("written to the terminal"), "KiB/s", rate, None, None);
    print_rates(&watched.rates);
}

fn launch(program: &Path, machine: &FakeNvml) -> Terminal {
    let terminal = Launch::program(program).envs(machine.env()).size(50, 200).start();
    terminal.wait_for(is_full, "a row with figures for each of 8 GPUs");
    terminal
}

struct Watched {
    cpu: f64,
    resident: f64,
    rates: Rates,
}

/// Measures a process for the duration, after it has settled.
fn watch(pid: u32, machine: &FakeNvml, duration: Duration) -> Watched {
    thread::sleep(SETTLE);
    let before = machine.calls();
    let stretch = Measurement::begin(pid);
    thread::sleep(duration);
    Watched {
        cpu: stretch.cpu_percent(),
        resident: resident_mib(pid),
        rates: Rates::between(&before, &machine.calls(), stretch.elapsed()),
    }
}

struct Bare {
    watched: Watched,
    init: Duration,
}

fn measure_loop(sleepers: &Sleepers, rates: &Rates, duration: Duration) -> Bare {
    let machine = FakeNvml::new(&scenario(sleepers, None));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("rates");
    rates.write(&file);
    let start = Instant::now();
    let mut child = Reaped(
        Command::new(std::env::current_exe().unwrap())
            .arg("--bare-loop")
            .arg(&file)
            .envs(machine.env())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut ready = String::new();
    let out = child.0.stdout.take().unwrap();
    BufReader::new(out).read_line(&mut ready).unwrap();
    let init = start.elapsed();
    assert_eq!(ready, "ready\n", "the loop could not start");
    let watched = watch(child.0.id(), &machine, duration);
    for (name, made) in &watched.rates.0 {
        let wanted = rates.0.get(name).copied().unwrap_or(0.0);
        if (made - wanted).abs() > 0.1 * wanted + 1.0 {
            eprintln!("note: {name}: gputop {wanted:.1}/s, the loop {made:.1}/s");
        }
    }
    Bare { watched, init }
}

/// Makes GPU 3 hang, and waits until a call is stuck in it. Each GPU is read every second, so after three more samples
/// of GPU 0 the library has loaded the new scenario, and GPU 3 has been read.
fn hang(machine: &FakeNvml, sleepers: &Sleepers) {
    machine.replace(&scenario(sleepers, Some(3)));
    let before = machine.calls().on("memory", 0);
    machine.wait_calls("three more samples of GPU 0", |now| now.on("memory", 0) >= before + 3);
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

fn print_rates(rates: &Rates) {
    let calls: Vec<String> =
        rates.0.iter().map(|(name, rate)| format!("{name} {rate:.1}")).collect();
    println!("calls a second over {GPUS} GPUs: {}", calls.join(", "));
}
