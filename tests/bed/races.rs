//! Tests with a process that allocates and frees during the read, and never waits for the reader.
//!
//! Statistics must always be from a single instant. A map is either exact, and then from the same instant too, or
//! marked as inexact. Both are checked against the journal of the churning process.

use std::collections::BTreeMap;
use std::process::{Child, Command};
use std::sync::{Mutex, PoisonError};

use crate::compare::{differences, invalid_stats, map_violations};
use crate::harness::{EXPANDABLE, Harness, Launch, Release, newest, releases};
use crate::journal::{Journal, Record, now};
use crate::reader::{self, Device, Run};

/// Enough to read every release at many times and at every rate, and few enough to finish within seconds.
const READS: usize = 8;
const NOT_READ: &str = "not read";

/// Some thousand permanent blocks, so that a walk takes time, with free blocks between them.
const SETUP: &[&str] = &["alloc 3000 2048", "alloc 400", "free 0.3"];

/// Races do not run in parallel, because each needs its full rate, even on a machine with two cores.
static RACE_LOCK: Mutex<()> = Mutex::new(());

#[derive(Default)]
struct Tally {
    reads: usize,
    exact: usize,
    /// Violations: a description, with the count and the first example.
    mismatch: BTreeMap<String, (usize, String)>,
}

impl Tally {
    fn mismatch(&mut self, what: &str, example: &str) {
        let entry = self.mismatch.entry(what.to_owned());
        entry.or_insert_with(|| (0, example.to_owned())).0 += 1;
    }

    fn check(&self) {
        let mismatch: Vec<String> = self
            .mismatch
            .iter()
            .map(|(what, (count, example))| format!("{count} times {what}, first {example}"))
            .collect();
        assert!(mismatch.is_empty(), "{} reads:\n{}", self.reads, mismatch.join("\n"));
    }
}

/// How many maps are exact depends on the machine and its load, so that number is printed but not checked.
#[test]
fn under_2_000_operations_a_second_nothing_is_torn_or_wrong() {
    race_all(2_000, 0);
}

#[test]
fn under_20_000_operations_a_second_nothing_is_torn_or_wrong() {
    race_all(20_000, 1);
}

#[test]
fn under_100_000_operations_a_second_nothing_is_torn_or_wrong() {
    race_all(100_000, 2);
}

/// Returns the newest release and every third of the others, beginning with number `first`. Races with all releases at all
/// rates take nine minutes.
fn some_releases(first: usize) -> Vec<Release> {
    let newest = newest();
    let is_due = |number: usize, release: &Release| number % 3 == first || *release == newest;
    let numbered = releases().into_iter().enumerate();
    numbered.filter(|(number, release)| is_due(*number, release)).map(|(_, one)| one).collect()
}

fn race_all(rate: u32, first: usize) {
    let _alone = RACE_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let mut tally = Tally::default();
    for release in some_releases(first) {
        for conf in ["", EXPANDABLE] {
            if conf.is_empty() || release.at_least(20100) {
                race(&release, conf, Churn { rate, is_starved: false }, &mut tally);
            }
        }
    }
    println!("{rate} operations a second: {} of {} maps exact", tally.exact, tally.reads);
    tally.check();
}

/// A thread that has to wait for a CPU keeps the allocator's lock, possibly in the middle of an update, and nothing
/// changes for a long time. Such a state must not be taken for a consistent one. gputop may fail to read it.
#[test]
fn a_process_that_rarely_gets_a_cpu_is_not_read_during_an_update() {
    let _alone = RACE_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let release = newest();
    let mut tally = Tally::default();
    for _ in 0..5 {
        race(&release, "", Churn { rate: 200_000, is_starved: true }, &mut tally);
    }
    let unread = tally.mismatch.remove(NOT_READ).map_or(0, |(count, _)| count);
    println!("starved of CPU time: {unread} of {} reads refused", tally.reads);
    assert!(unread < tally.reads, "no read succeeded");
    tally.check();
}

/// Returns the number of the first CPU that this process may use.
fn cpu() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    allowed.trim().split(['-', ',']).next().unwrap().to_owned()
}

/// A process that keeps that CPU busy until it is dropped.
struct Busy(Child);

impl Busy {
    fn start() -> Self {
        let mut command = Command::new("taskset");
        command.args(["--cpu-list", &cpu(), "sh", "-c", "while :; do :; done"]);
        Self(command.spawn().unwrap())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

struct Churn {
    /// Operations per second.
    rate: u32,
    /// During the reads, leaves almost no CPU time to the process.
    is_starved: bool,
}

fn race(release: &Release, conf: &str, Churn { rate, is_starved }: Churn, tally: &mut Tally) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("journal");
    let program = release.dir.join("harness");
    let launch = if is_starved {
        let mut command = Command::new("chrt");
        command.args(["--idle", "0", "taskset", "--cpu-list", &cpu()]).arg(program);
        Launch::with(command)
    } else {
        Launch::program(&program)
    };
    let mut harness = launch.conf(conf).start();
    harness.run_all(SETUP);
    harness.run(&format!("churn 1 {rate} {}", file.display()));
    let busy = is_starved.then(Busy::start);
    let readings: Vec<(u64, Run, u64)> =
        (0..READS).map(|_| (now(), reader::run(harness.pid), now())).collect();
    drop(busy);
    let churned = harness.run("stop");
    let reached = churned["operations"].as_f64().unwrap() / churned["seconds"].as_f64().unwrap();
    if reached < f64::from(rate) / 2.0 {
        println!("this machine managed {reached:.0} operations a second, not {rate}");
    }

    let journal = Journal::open(&file);
    let who = format!("torch {} {conf}", release.name);
    tally.reads += READS;
    for (start, run, end) in readings {
        if run.code != 0 {
            tally.mismatch(NOT_READ, &format!("{who}: {}", run.message()));
            continue;
        }
        let device = &run.reading().devices[0];
        tally.exact += usize::from(device.exact);
        if let Some(what) = mismatch(device, journal.between(start, end)) {
            tally.mismatch(&what, &format!("{who}: {:?}", device.stats));
        }
    }
    for what in differences(&harness.truth(), &reader::read(harness.pid)) {
        tally.mismatch("wrong when it rested", &format!("{who}: {what}"));
    }
}

/// Returns a description if the reading matches none of these records.
fn mismatch(device: &Device, moments: &[Record]) -> Option<String> {
    let has_statistics = |moment: &Record| moment.has_statistics(&device.stats);
    let has_blocks = |moment: &Record| moment.has_blocks(device);
    if !moments.iter().any(has_statistics) {
        return Some("statistics of no moment".into());
    }
    if !device.exact {
        return None;
    }
    if !moments.iter().any(has_blocks) {
        return Some("a map of no moment that calls itself exact".into());
    }
    if !moments.iter().any(|m| has_blocks(m) && has_statistics(m)) {
        return Some("an exact map beside statistics of another moment".into());
    }
    map_violations(device).into_iter().next()
}

/// Without a journal: two threads write, so their operations have no single order. A read takes seconds, because both leave
/// little CPU time on a small machine.
#[test]
fn two_threads_at_full_speed_never_lead_to_a_wrong_map() {
    let _alone = RACE_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut exact, mut unread) = (0, 0);
    let mut mismatch = Vec::new();
    for release in some_releases(0) {
        let mut harness = Harness::start(&release);
        harness.run_all(SETUP);
        harness.run("churn 2 0");
        for _ in 0..READS / 2 {
            let run = reader::run(harness.pid);
            if run.code != 0 {
                unread += 1;
                continue;
            }
            let device = &run.reading().devices[0];
            let mut found = invalid_stats(&device.stats);
            if device.exact {
                exact += 1;
                found.extend(map_violations(device));
            }
            mismatch.extend(found.iter().map(|what| format!("torch {}: {what}", release.name)));
        }
        harness.run("stop");
        for what in differences(&harness.truth(), &reader::read(harness.pid)) {
            mismatch.push(format!("torch {} when it rested: {what}", release.name));
        }
    }
    println!("two threads at full speed: {exact} maps exact, {unread} reads refused");
    assert!(mismatch.is_empty(), "{}", mismatch.join("\n"));
}
