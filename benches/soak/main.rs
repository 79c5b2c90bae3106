//! Runs gputop for a long time under constant change, and fails if its resource usage grows or it stops working.
//!
//! ```text
//! cargo bench --bench soak                        # two minutes
//! cargo bench --bench soak -- --seconds 3600
//! ```
//!
//! A dashboard, a recorder, and a dashboard of a remote host watch 40 processes, one of which is replaced each second.
//! The link to the remote host is cut every minute, a log is flooded, and random keys are pressed on both dashboards.
//! After a warm-up, none of the three may grow in resident memory, descriptors or threads. At the end a process writes an
//! out-of-memory error, which each of them must store as an incident.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod usage;

#[path = "../overhead/busy.rs"]
#[allow(dead_code)]
mod busy;
// Modules shared with the tests.
#[path = "../../tests/it/support/deadline.rs"]
#[allow(dead_code)]
mod deadline;
#[path = "../../tests/it/support/executable.rs"]
#[allow(dead_code)]
mod executable;
#[path = "../../tests/it/support/fake_machine.rs"]
#[allow(dead_code)]
mod fake_machine;
#[path = "../../tests/it/support/fake_nvml.rs"]
mod fake_nvml;
#[path = "../../tests/it/support/skip.rs"]
#[allow(dead_code)]
mod skip;
#[path = "../../tests/it/support/sshd.rs"]
#[allow(dead_code)]
mod sshd;
#[path = "../../tests/it/support/terminal.rs"]
mod terminal;

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use gputop::incident::Store;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::fake_machine::{Guarded, RealProcess, command, dashboard, is_host, on_gpu};
use crate::fake_nvml::FakeNvml;
use crate::sshd::Sshd;
use crate::terminal::Terminal;
use crate::usage::Watched;

#[derive(Parser)]
struct Args {
    /// Duration in seconds, not including the planted failure at the end
    #[arg(long, default_value_t = 120)]
    seconds: u64,
    /// Flag that `cargo bench` passes
    #[arg(long, hide = true)]
    bench: bool,
}

const PROCESSES: usize = 40;
const GPUS: usize = 4;
const CHURN_INTERVAL: Duration = Duration::from_secs(1);
const CUT_INTERVAL: Duration = Duration::from_secs(60);
const KEY_INTERVAL: Duration = Duration::from_millis(100);
/// The flooded log grows by this much with each key, and starts over at the limit.
const FLOOD_BYTES: usize = 400 << 10;
const MAX_FLOOD_BYTES: u64 = 64 << 20;
/// How long the planted failure may take to become an incident everywhere.
const INCIDENT_TIMEOUT: Duration = Duration::from_secs(90);

/// Keys that open, move, filter, sort and close. Keys that quit, suspend or write files into the working directory are
/// not included.
const KEYS: &[&str] = &[
    "k",
    "j",
    "h",
    "l",
    "\x15",
    "\x04",
    "g",
    "G",
    "\r",
    "\r",
    "M",
    "S",
    "L",
    "n",
    "N",
    "!",
    "d",
    "i",
    "\t",
    "]",
    "[",
    "/",
    "s",
    ">",
    "<",
    "I",
    "x",
    " ",
    "U",
    "t",
    "C",
    "p",
    "0",
    "}",
    "{",
    "(",
    ")",
    "z",
    "y",
    "?",
    "P",
    "T",
    "\x1b",
    "\x1b",
    "\x1b",
    "\x1b",
    "\x1b[A",
    "\x1b[B",
    "\x1b[5~",
    "\x1b[6~",
    "\x1b[<0;20;10M\x1b[<0;20;10m",
    "\x1b[<64;40;12M",
    "\x1b[<65;40;12M",
];

const OOM: &str = "Traceback (most recent call last):\n  File \"train.py\", line 57, in <module>\n    loss.backward()\n\
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.69 GiB of which \
1.06 GiB is free. Including non-PyTorch memory, this process has 22.60 GiB memory in use.\n";

fn main() -> ExitCode {
    let args = Args::parse();
    if !is_host() || !sshd::is_available() {
        println!("skipped: needs PIDs of the host, ssh and sshd");
        return ExitCode::SUCCESS;
    }
    if !cfg!(debug_assertions) {
        busy::build_fake_nvml();
    }
    let mut soak = Soak::start();
    soak.run(Duration::from_secs(args.seconds));
    let mut faults = usage::report(&soak.watched);
    faults.extend(soak.plant_failure());
    for fault in &faults {
        println!("FAILED: {fault}");
    }
    ExitCode::from(u8::from(!faults.is_empty()))
}

/// All processes of the test.
struct Soak {
    fake: FakeNvml,
    sshd: Sshd,
    folder: tempfile::TempDir,
    workers: VecDeque<RealProcess>,
    started: usize,
    flood: (RealProcess, File),
    terminals: Vec<Terminal>,
    _recorder: Guarded,
    watched: Vec<Watched>,
    random: u64,
}

impl Soak {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let fake = FakeNvml::h200s(GPUS, "");
        let sshd = Sshd::start(&fake, "");
        sshd.install();
        let flood = with_log("flood.py", &folder.path().join("flood.log"));
        let state = |name: &str| folder.path().join(name);
        let local =
            dashboard(&fake).args(["--readonly"]).env("XDG_STATE_HOME", state("dashboard")).start();
        let remote = sshd
            .dashboard()
            .args(["--readonly", "far"])
            .env("XDG_STATE_HOME", state("remote dashboard"))
            .start();
        let mut recorder = command(&fake, ["record", "--interval", "250ms", "-o"]);
        recorder.arg(state("soak.gpt.zst"));
        recorder.env("XDG_STATE_HOME", state("recorder"));
        recorder.stdout(Stdio::null()).stderr(Stdio::null());
        let recorder = Guarded(recorder.spawn().unwrap());
        let watched = vec![
            Watched::new("dashboard", local.pid()),
            Watched::new("remote dashboard", remote.pid()),
            Watched::new("recorder", recorder.0.id()),
        ];
        let mut soak = Self {
            fake,
            sshd,
            folder,
            workers: VecDeque::new(),
            started: 0,
            flood,
            terminals: vec![local, remote],
            _recorder: recorder,
            watched,
            random: 0x9e37_79b9_7f4a_7c15,
        };
        (0..PROCESSES).for_each(|_| soak.add_worker());
        soak.update_scenario("");
        soak
    }

    fn run(&mut self, time: Duration) {
        let started = Instant::now();
        let (mut churned, mut cut) = (started, started);
        while started.elapsed() < time {
            self.press_keys();
            self.write_log();
            if churned.elapsed() >= CHURN_INTERVAL {
                churned = Instant::now();
                self.workers.pop_front().map(|mut worker| worker.finish());
                self.add_worker();
                self.update_scenario("");
                let progress = started.elapsed().as_secs_f64() / time.as_secs_f64();
                self.watched.iter_mut().for_each(|watched| watched.sample(progress));
            }
            if cut.elapsed() >= CUT_INTERVAL {
                cut = Instant::now();
                for connection in self.sshd.connections() {
                    let _ = kill(Pid::from_raw(connection.cast_signed()), Signal::SIGKILL);
                }
            }
            thread::sleep(KEY_INTERVAL);
        }
    }

    fn add_worker(&mut self) {
        let name = format!("worker-{}.py", self.started);
        self.started += 1;
        self.workers.push_back(RealProcess::start(&name));
    }

    fn update_scenario(&self, more: &str) {
        let mut text = String::from("wobble = true\n");
        text += &"[[gpu]]\nsm = 90\npower = 600000\ntemperature = 60\n".repeat(GPUS);
        for (number, worker) in self.workers.iter().enumerate() {
            text += &on_gpu(number % GPUS, worker, "used = \"2 GiB\"");
        }
        text += &on_gpu(0, &self.flood.0, "used = \"4 GiB\"");
        self.fake.replace(&(text + more));
    }

    fn press_keys(&mut self) {
        for number in 0..self.terminals.len() {
            let key = KEYS[self.below(KEYS.len())];
            self.terminals[number].send(key);
        }
    }

    /// Returns a pseudo-random number by xorshift64, so that every run presses the same keys.
    fn below(&mut self, limit: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        usize::try_from(self.random >> 32).unwrap() % limit
    }

    fn write_log(&mut self) {
        let step = self.random;
        let line = format!(
            "step {step} loss 2.0713 WARNING retrying after a CUDA Error in worker {step}\n"
        );
        let file = &mut self.flood.1;
        file.write_all(line.repeat(FLOOD_BYTES / line.len()).as_bytes()).unwrap();
        if file.metadata().unwrap().len() > MAX_FLOOD_BYTES {
            file.set_len(0).unwrap();
        }
    }

    /// Makes a process write an out-of-memory error. Returns an error for each program that did not store it.
    fn plant_failure(&mut self) -> Vec<String> {
        let (mut process, mut log) =
            with_log("planted.py", &self.folder.path().join("planted.log"));
        let pid = process.pid();
        self.update_scenario(&on_gpu(1, &process, "used = \"4 GiB\""));
        let mut missing: Vec<&str> = self.watched.iter().map(|watched| watched.name).collect();
        let planted = Instant::now();
        while !missing.is_empty() && planted.elapsed() < INCIDENT_TIMEOUT {
            // Write it repeatedly, because text that was written before gputop found the log is ignored.
            log.write_all(OOM.as_bytes()).unwrap();
            thread::sleep(CHURN_INTERVAL);
            missing.retain(|name| !has_incident(&self.folder.path().join(name), pid));
        }
        process.finish();
        let shown = self.terminals.iter().map(Terminal::text);
        if !missing.is_empty() {
            shown.for_each(|text| println!("{text}\n"));
        }
        missing.iter().map(|name| format!("the {name} did not store the planted failure")).collect()
    }
}

/// Starts a process whose standard error is a log. Returns both.
fn with_log(name: &str, path: &PathBuf) -> (RealProcess, File) {
    let log = File::options().create(true).append(true).open(path).unwrap();
    let process = RealProcess::with(name, |command| {
        command.stderr(log.try_clone().unwrap());
    });
    (process, log)
}

fn has_incident(state: &Path, pid: u32) -> bool {
    let listing = Store::at(&state.join("gputop/incidents")).list();
    listing.is_ok_and(|listing| {
        let mut records = listing.entries.iter().map(|entry| &entry.record.key);
        records.any(|observed| observed.process.is_some_and(|key| key.pid.0 == pid))
    })
}
