//! Compares the process groups that gputop reads with what the ranks of real jobs counted themselves (ranks.py).
//!
//! The ranks run whole torch wheels on the fake CUDA runtime and a fake NCCL (tests/fake_cuda/nccl.cpp). In most modes,
//! rank 1 does something else than the others in one step, so that all of them wait.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use gputop_explain::ranks::{ArrivalWatch, MIN_ARRIVALS, SlowRank};
use gputop_model::ProcessKey;
use gputop_model::process_group::{GroupArrivals, PendingWork, ProcessGroup, RankReading, Work};
use gputop_model::units::{Pid, StartTicks};
use gputop_peek::clock::{Instants, now_mono};
use gputop_peek::memory::dump::DumpRecorder;
use gputop_peek::memory::live::Live;
use gputop_peek::memory::maps::Mapping;
use gputop_peek::memory::{Memory, MemoryError, Range};
use gputop_peek::nccl::{Failure, ProcessGroups};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tempfile::TempDir;

use crate::deadline::{DEADLINE, pause};
use crate::harness::{Harness, Launch};
use crate::holders::{Installed, installed};
use crate::reader::program;
use crate::unusual_targets::{as_nobody, public_reader};

const RANKS: u32 = 3;
pub const SCRIPT: &str = "tests/bed/ranks.py";
/// Modes in which all ranks wait in the end.
const STUCK: &[&str] = &["skip", "mismatch", "kind", "order", "item", "init", "dead", "pipeline"];
/// Modes in which all ranks go on.
const RUNNING: &[&str] = &["ok", "slow"];
/// Steps after which a running job is read, and number of readings of each rank.
const RUNNING_STEPS: u64 = 30;
const READINGS: usize = 50;

/// What a rank counted itself.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Truth {
    is_waiting: bool,
    step: u64,
    groups: BTreeMap<String, TrueGroup>,
    /// PID of a forked process.
    #[serde(default)]
    worker: Option<u32>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct TrueGroup {
    description: String,
    members: Vec<u32>,
    /// Operation, input and output elements, and the time before and after the call, in nanoseconds since boot.
    called: Vec<(String, u64, u64, u64, Option<u64>)>,
    returned: u64,
    sent: u64,
    completed: u64,
}

/// What a torch release has.
#[derive(Debug, Clone, Copy)]
struct Abilities {
    has_description: bool,
    /// Names of operations, elements, and the newest enqueued and completed works.
    has_status: bool,
    has_pending: bool,
    has_names_of_pending: bool,
    /// Data types of works, and the times of their calls.
    has_recorder: bool,
}

/// A torch release with one of its classes of process groups.
pub struct Variant {
    pub release: Installed,
    number: u32,
    environment: Option<(&'static str, &'static str)>,
    is_nccl2: bool,
}

impl Variant {
    fn name(&self) -> String {
        let class = if self.is_nccl2 { " (nccl2)" } else { "" };
        format!("{}{class}", self.release.name)
    }

    /// Adds the fake NCCL, whose ranks meet in a folder.
    pub fn nccl(&self, launch: Launch, meeting: &Path) -> Launch {
        let bed = std::env::var_os("GPUTOP_BED").unwrap();
        let bed = Path::new(env!("CARGO_MANIFEST_DIR")).join(bed);
        let launch = launch
            .env("FAKE_CUDA_DEVICES", RANKS.to_string())
            .env("FAKE_NCCL_DIRECTORY", meeting)
            .env("LD_PRELOAD", bed.join("nccl/libfakenccl.so"));
        match self.environment {
            Some((name, value)) => launch.env(name, value),
            None => launch,
        }
    }

    fn abilities(&self) -> Abilities {
        let has_status = self.number >= 20400 && !self.is_nccl2;
        Abilities {
            has_description: self.number >= 20400,
            has_status,
            has_pending: !self.is_nccl2 || self.number >= 21500,
            has_names_of_pending: !self.is_nccl2,
            has_recorder: self.number >= 21100 && !self.is_nccl2,
        }
    }
}

/// Returns 20600 for `python3.10-torch2.6.0`.
fn number(name: &str) -> u32 {
    let version = name.rsplit("torch").next().unwrap();
    version.split('.').fold(0, |number, part| number * 100 + part.parse::<u32>().unwrap())
}

pub fn variants() -> Vec<Variant> {
    const CHOICE: &str = "TORCH_DIST_USE_NCCL2";
    let mut variants = Vec::new();
    for release in installed() {
        let number = number(&release.name);
        let mut add = |release, environment, is_nccl2| {
            variants.push(Variant { release, number, environment, is_nccl2 });
        };
        match number {
            ..20100 => {}
            20100..21400 => add(release, None, false),
            _ => {
                add(release.clone(), Some((CHOICE, "0")), false);
                add(release, Some((CHOICE, "1")), true);
            }
        }
    }
    assert!(!variants.is_empty(), "no release with process groups is installed");
    variants
}

/// The ranks of a job on this host.
pub struct Job {
    pub ranks: Vec<Harness>,
    pub mode: &'static str,
    pub _meeting: TempDir,
}

impl Job {
    fn start(variant: &Variant, mode: &'static str) -> Self {
        let meeting = tempfile::tempdir().unwrap();
        let port = free_port().to_string();
        let ranks = (0..RANKS).map(|rank| {
            let arguments = [&rank.to_string(), &RANKS.to_string(), &port, mode];
            let launch = variant.release.launch(Path::new(SCRIPT), &arguments);
            variant.nccl(launch, meeting.path()).start()
        });
        Self { ranks: ranks.collect(), mode, _meeting: meeting }
    }

    /// Returns the ranks whose processes exist.
    fn living(&mut self) -> impl Iterator<Item = (u32, &mut Harness)> {
        let is_dead = |rank: u32| rank == 1 && self.mode == "dead";
        (0..).zip(&mut self.ranks).filter(move |(rank, _)| !is_dead(*rank))
    }

    /// Waits until all ranks wait, or until a job that goes on has made some steps.
    pub fn wait(&mut self) {
        let start = Instant::now();
        let is_running = RUNNING.contains(&self.mode);
        let mode = self.mode;
        for (rank, harness) in self.living() {
            loop {
                let truth = truth(harness);
                if truth.is_waiting || (is_running && truth.step > RUNNING_STEPS) {
                    break;
                }
                assert!(start.elapsed() < 3 * DEADLINE, "{mode}: rank {rank} is at {}", truth.step);
                pause(start);
            }
        }
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn truth(harness: &mut Harness) -> Truth {
    serde_json::from_value(harness.run("truth")).unwrap()
}

fn key(pid: u32) -> ProcessKey {
    ProcessKey { pid: Pid(pid), start: StartTicks(0) }
}

/// Searches again, as every caller does, while there are more watchdogs than groups: a running process may change its
/// heap during a search.
fn open(pid: u32) -> ProcessGroups<Live> {
    let mut groups = ProcessGroups::open(Path::new("/proc"), key(pid)).unwrap();
    while groups.needs_search() {
        groups.search().unwrap();
    }
    groups
}

/// Collects what differs from the truth.
struct Differences(String);

impl Differences {
    fn check<T: PartialEq + std::fmt::Debug>(&mut self, what: &str, found: T, expected: T) {
        if found != expected {
            writeln!(self.0, "{what}: read {found:?}, expected {expected:?}").unwrap();
        }
    }
}

fn numbered(seq: u64, call: &(String, u64, u64, u64, Option<u64>), has: Abilities) -> Work {
    let (operation, input, output, ..) = call.clone();
    let dtype = has.has_recorder.then(|| "float32".to_owned());
    Work { seq, operation, elements: Some((input, output)), dtype }
}

/// Compares a group of a rank that waits.
fn compare(group: &ProcessGroup, truth: &TrueGroup, has: Abilities) -> String {
    // In a group with point-to-point operations, a number can mean either.
    let has = Abilities { has_recorder: has.has_recorder && truth.sent == 0, ..has };
    let mut differ = Differences(String::new());
    differ.check("size", group.size as usize, truth.members.len());
    if has.has_description {
        differ.check("description", &group.description, &truth.description);
    }
    let members: Vec<u32> = (0..group.size).filter_map(|rank| group.member(rank)).collect();
    differ.check("members", &members, &truth.members);
    differ.check("called", group.called.get(), Some(truth.called.len() as u64));
    differ.check("p2p", group.called_p2p.get(), has.has_status.then_some(truth.sent));
    let work = |seq: u64| {
        Some(numbered(seq, truth.called.get(usize::try_from(seq).ok()?.checked_sub(1)?)?, has))
    };
    if has.has_status && truth.sent == 0 {
        differ.check("enqueued", group.enqueued.clone(), work(truth.returned));
        differ.check("completed", group.completed.clone(), work(truth.completed));
    }
    let Some(pending) = group.pending.value() else {
        differ.check("pending", false, has.has_pending);
        return differ.0;
    };
    // Point-to-point operations are among the pending works, and their numbers differ by release.
    let is_p2p = |p: &&PendingWork| matches!(&p.work.operation[..], "SEND" | "RECV");
    let collectives = pending.iter().filter(|p| !is_p2p(p));
    if has.has_names_of_pending || truth.sent == 0 {
        let found: Vec<Work> = collectives.clone().map(|p| p.work.clone()).collect();
        let expected = truth.completed + 1..=truth.returned;
        let expected: Vec<Work> = expected
            .filter_map(work)
            .map(|work| {
                if has.has_names_of_pending {
                    work
                } else {
                    Work { seq: work.seq, ..Work::default() }
                }
            })
            .collect();
        differ.check("pending", found, expected);
    }
    for pending in collectives.filter(|_| truth.sent == 0) {
        let call = usize::try_from(pending.work.seq).unwrap().checked_sub(1);
        let Some((.., before, Some(after))) = call.and_then(|call| truth.called.get(call)) else {
            continue;
        };
        // The clocks are not read at the same time.
        let slack = 1_000_000;
        let is_between = (*before - slack..=after + slack).contains(&pending.called_ns);
        differ.check("time of a pending work is that of its call", is_between, true);
    }
    differ.0
}

/// Compares a rank that waits. Returns the number of groups, or what differs.
fn compare_all(
    reading: &RankReading,
    truth: &Truth,
    rank: u32,
    has: Abilities,
) -> Result<usize, String> {
    let mut differ = Differences(String::new());
    let groups = reading.groups.value().ok_or_else(|| format!("{:?}", reading.groups.why()))?;
    let names: Vec<&String> = groups.iter().map(|group| &group.name).collect();
    differ.check("groups", names, truth.groups.keys().collect());
    differ.check("rank", reading.rank, Some(rank));
    differ.check("world size", reading.world_size, Some(RANKS));
    for group in groups {
        if let Some(truth) = truth.groups.get(&group.name) {
            differ.check(&format!("group {}", group.name), &*compare(group, truth, has), "");
        }
    }
    if differ.0.is_empty() { Ok(groups.len()) } else { Err(differ.0) }
}

/// Reads a rank that waits until its groups are those that it counted: PyTorch's watchdogs take 0.1 s to see a completed
/// work.
fn read_stuck(
    groups: &mut ProcessGroups<Live>,
    truth: &Truth,
    rank: u32,
    has: Abilities,
) -> (RankReading, usize) {
    let start = Instant::now();
    loop {
        let reading = groups.read(Instants::now()).unwrap();
        match compare_all(&reading, truth, rank, has) {
            Ok(count) => return (reading, count),
            Err(why) if start.elapsed() > DEADLINE / 4 => panic!("rank {rank}: {why}"),
            // A busy machine may have reached the time limit of the first search.
            Err(_) if groups.needs_search() => groups.search().unwrap(),
            Err(_) => pause(start),
        }
    }
}

#[test]
fn groups_of_stuck_ranks_are_those_that_they_counted() {
    for variant in variants() {
        for mode in STUCK {
            let mut job = Job::start(&variant, mode);
            job.wait();
            let (name, has) = (variant.name(), variant.abilities());
            let (mut count, mut stores, mut times) = (0, Vec::new(), Vec::new());
            for (rank, harness) in job.living() {
                let truth = truth(harness);
                let start = Instant::now();
                let mut groups = open(harness.pid);
                let found = start.elapsed();
                let (reading, right) = read_stuck(&mut groups, &truth, rank, has);
                count += right;
                stores.push(reading.store.clone());
                times.push((found, time_of_reading(&mut groups)));
            }
            stores.dedup();
            assert!(matches!(&stores[..], [Some(_)]), "{name}, {mode}: {stores:?}");
            let found = times.iter().map(|(found, _)| *found).max().unwrap();
            let read = times.iter().map(|(_, read)| *read).max().unwrap();
            println!("{name}, {mode}: {count} groups, found in {found:.0?}, read in {read:.0?}");
        }
    }
}

/// Returns the median time of a reading.
fn time_of_reading(groups: &mut ProcessGroups<Live>) -> Duration {
    let mut times: Vec<Duration> = (0..READINGS)
        .map(|_| {
            let start = Instant::now();
            groups.read(Instants::now()).unwrap();
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[READINGS / 2]
}

/// Compares a group of a running rank with what the rank had counted before and after the reading.
fn compare_running(
    group: &ProcessGroup,
    before: &TrueGroup,
    after: &TrueGroup,
    has: Abilities,
) -> String {
    let mut differ = Differences(String::new());
    let called = group.called.get().unwrap();
    let is_between = (before.returned..=after.called.len() as u64).contains(&called);
    differ.check("called is between the counts", is_between, true);
    let works = [&group.enqueued, &group.completed];
    let [enqueued, completed] = works.map(|work| work.as_ref().map_or(0, |work| work.seq));
    if has.has_status {
        let is_ordered = completed <= enqueued && enqueued <= called && called <= enqueued + 1;
        differ.check("the numbers are in order", is_ordered, true);
        for work in works.into_iter().flatten() {
            let call = &after.called[usize::try_from(work.seq).unwrap() - 1];
            // The recorder has only the last operations, and none that is being written.
            let dtype = work.dtype.clone();
            let is_known = dtype.as_deref().is_none_or(|dtype| dtype == "float32");
            differ.check("a data type", is_known, true);
            differ.check("a work", work.clone(), Work { dtype, ..numbered(work.seq, call, has) });
        }
    }
    differ.0
}

#[test]
fn groups_of_running_ranks_are_between_two_counts() {
    for variant in variants() {
        for mode in RUNNING {
            let mut job = Job::start(&variant, mode);
            job.wait();
            let (name, has) = (variant.name(), variant.abilities());
            let mut count = 0;
            for (rank, harness) in job.living() {
                let mut groups = open(harness.pid);
                for _ in 0..READINGS {
                    let before = truth(harness);
                    let reading = groups.read(Instants::now()).unwrap();
                    let after = truth(harness);
                    let read = reading.groups.value().unwrap();
                    assert_eq!(read.len(), after.groups.len(), "{name}, {mode}, rank {rank}");
                    for group in read {
                        let (before, after) =
                            (&before.groups[&group.name], &after.groups[&group.name]);
                        let differences = compare_running(group, before, after, has);
                        assert_eq!(differences, "", "{name}, {mode}, rank {rank}: {group:?}");
                        count += 1;
                    }
                }
            }
            println!("{name}, {mode}: {count} groups in {READINGS} readings of each rank");
        }
    }
}

/// Rank 1 of a slow job sleeps 50 ms in each step, so the others wait for it. In the other job, no rank is slow. The times
/// of the flight recorder say the same as the counters.
#[test]
fn the_slow_rank_is_the_one_that_sleeps() {
    for variant in variants() {
        for (mode, expected) in [("slow", Some(1)), ("ok", None)] {
            let mut job = Job::start(&variant, mode);
            job.wait();
            let mut ranks: Vec<_> = job.living().map(|(_, harness)| open(harness.pid)).collect();
            let (mut watch, mut recorded) = (ArrivalWatch::default(), ArrivalWatch::default());
            let start = Instant::now();
            let counted = loop {
                let read = |groups: &mut ProcessGroups<Live>| groups.read(Instants::now()).unwrap();
                let readings: Vec<_> = ranks.iter_mut().map(read).collect();
                watch.sweep(now_mono(), &readings);
                recorded.add_recorded(now_mono(), &readings);
                if let Some(whole) = whole(&watch).filter(|group| group.collectives >= MIN_ARRIVALS)
                {
                    break whole;
                }
                pause(start);
            };
            let slow = SlowRank::of(&counted).map(|slow| slow.rank);
            assert_eq!(slow, expected, "{}, {mode}: {counted:?}", variant.name());
            let recorded = whole(&recorded);
            assert_eq!(recorded.is_some(), variant.abilities().has_recorder, "{}", variant.name());
            if let Some(recorded) = recorded {
                let slow = SlowRank::of(&recorded);
                let found = slow.map(|slow| slow.rank);
                assert_eq!(found, expected, "{}, {mode}: {recorded:?}", variant.name());
                println!("{}, {mode}: {} recorded, {slow:?}", variant.name(), recorded.collectives);
            }
        }
    }
}

/// Returns the default group, which has the most collectives of all ranks.
fn whole(watch: &ArrivalWatch) -> Option<GroupArrivals> {
    watch.arrivals().into_iter().find(|group| group.size == RANKS)
}

/// Starts a program of three ranks with `gputop run`, and waits for a minute.
#[test]
fn run_reports_a_stall_of_a_minute_once() {
    const LAUNCHER: &str = r#"exec 3<&0
        for rank in 0 1 2; do "$0" "$1" $rank 3 "$2" item <&3 & done
        wait"#;
    let variant = variants().pop().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let port = free_port().to_string();
    let mut command = Command::new(program());
    command.args(["run", "--", "sh", "-c", LAUNCHER]).arg(&variant.release.python);
    command.args([Path::new(env!("CARGO_MANIFEST_DIR")).join(SCRIPT).as_os_str(), port.as_ref()]);
    let launch = variant.nccl(variant.release.environment(command), folder.path());
    let launch = launch.env("XDG_STATE_HOME", folder.path().join("state"));
    let mut command = launch.command();
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut run = command.spawn().unwrap();
    let mut lines = BufReader::new(run.stderr.take().unwrap()).lines().map(Result::unwrap);
    let is_line = |line: &String| line.starts_with("gputop: ");
    let line = lines.by_ref().find(is_line);
    let line = line.unwrap();
    let said = line.strip_prefix("gputop: rank 1 holds up 2 ranks for ").unwrap_or_default();
    let (seconds, rest) = said.split_once(" s: ").unwrap_or_default();
    // A crowded machine delays the look at the ranks.
    let is_minute = seconds.parse().is_ok_and(|seconds| (60..70).contains(&seconds));
    assert!(is_minute && rest.starts_with("it is in sleep (ranks.py:"), "{line}");
    // The ranks exit at the end of their input.
    drop(run.stdin.take());
    assert_eq!(lines.find(is_line), None);
    assert!(run.wait().unwrap().success());
}

#[test]
fn doctor_says_whether_the_ranks_can_be_read() {
    let check = |mut doctor: Command| {
        doctor.args(["doctor", "--json"]).env("GPUTOP_NVML", "/nonexistent/libnvidia-ml.so.1");
        let report: Value = serde_json::from_slice(&doctor.output().unwrap().stdout).unwrap();
        let checks = report["checks"].as_array().unwrap().clone();
        checks.into_iter().find(|check| check["name"] == "ranks of jobs")
    };
    for variant in variants() {
        let mut job = Job::start(&variant, "item");
        job.wait();
        // Jobs of other tests are checked as well, and their ranks may be starting.
        // With many of them there is no answer in time, and no check.
        let start = Instant::now();
        let until = |wanted: bool, doctor: &dyn Fn() -> Command| loop {
            let found = check(doctor());
            match found {
                Some(found) if found["works"] == wanted => return found,
                _ => assert!(start.elapsed() < DEADLINE, "{}: {found:?}", variant.name()),
            }
            pause(start);
        };
        until(true, &|| Command::new(program()));
        // Releases that do not name the threads can be recognized only by those who can read the process.
        if variant.number < 20500 || variant.is_nccl2 {
            continue;
        }
        if as_nobody().is_none() {
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let reader = public_reader(folder.path());
        let found = until(false, &|| {
            let mut nobody = as_nobody().unwrap();
            nobody.arg(&reader).current_dir("/");
            nobody
        });
        let text = found["found"].as_str().unwrap();
        assert!(text.contains("cannot be read") && text.contains("another user"), "{text}");
    }
}

#[test]
fn a_forked_worker_is_no_rank() {
    for variant in variants() {
        let mut job = Job::start(&variant, "item");
        job.wait();
        let worker = truth(&mut job.ranks[1]).worker.expect("a worker");
        let failure = ProcessGroups::open(Path::new("/proc"), key(worker)).unwrap_err();
        assert_eq!(failure, Failure::Forked, "{}", variant.name());
    }
}

#[test]
fn new_groups_are_found_once_a_thread_tells_of_them() {
    for variant in variants() {
        let mut job = Job::start(&variant, "init");
        // The first rank imports PyTorch meanwhile, and creates one group after the other.
        let pid = job.ranks[0].pid;
        let start = Instant::now();
        let mut groups = loop {
            match ProcessGroups::open(Path::new("/proc"), key(pid)) {
                Ok(groups) => break groups,
                Err(_) => pause(start),
            }
        };
        let mut searches = 0;
        loop {
            let reading = groups.read(Instants::now()).unwrap();
            if reading.groups.value().is_some_and(|groups| groups.len() == 2) {
                break;
            }
            assert!(start.elapsed() < 3 * DEADLINE, "{}: {reading:?}", variant.name());
            if groups.needs_search() {
                groups.search().unwrap();
                searches += 1;
            }
            pause(start);
        }
        println!("{}: {searches} searches", variant.name());
        job.wait();
    }
}

/// Memory whose structs are recorded, but not the heaps that a search reads in whole pages.
#[derive(Debug)]
struct Recording<'a> {
    live: Live,
    recorder: &'a DumpRecorder<Live>,
}

impl Memory for Recording<'_> {
    fn read(&self, ranges: &[Range], into: &mut Vec<u8>) -> Result<(), MemoryError> {
        const PAGE: u64 = 4096;
        match ranges {
            [range] if (range.address | range.len as u64).is_multiple_of(PAGE) => {
                self.live.read(ranges, into)
            }
            _ => self.recorder.read(ranges, into),
        }
    }

    fn maps(&self) -> Result<Vec<Mapping>, MemoryError> {
        self.recorder.maps()
    }
}

/// Records what one reading of a rank that waits needs, and its result.
#[test]
#[ignore = "writes the test data of crates/peek/tests/pure/nccl_dump.rs"]
fn record_dumps() {
    let root = std::env::var_os("GPUTOP_BED_RECORD").expect("GPUTOP_BED_RECORD names a folder");
    for variant in variants() {
        let mut job = Job::start(&variant, "skip");
        job.wait();
        let harness = job.ranks.last_mut().unwrap();
        let (truth, pid) = (truth(harness), harness.pid);
        read_stuck(&mut open(pid), &truth, RANKS - 1, variant.abilities());
        let class = if variant.is_nccl2 { "-nccl2" } else { "" };
        let folder = Path::new(&root).join(format!("{}{class}", variant.release.name));
        record(pid, &folder);
    }
}

fn record(pid: u32, folder: &Path) {
    let live = || Live::new(Path::new("/proc"), Pid(pid));
    let recorder = DumpRecorder::new(live());
    let memory = Recording { live: live(), recorder: &recorder };
    let now = Instants::now();
    let mut groups = ProcessGroups::attach(memory, ProcessKey::default()).unwrap();
    let reading = groups.read(now).unwrap();
    let (boot_ns, monotonic_ns) = (now.boot_ns, now.monotonic_ns);
    let recorded =
        serde_json::json!({"boot_ns": boot_ns, "monotonic_ns": monotonic_ns, "reading": reading});
    let dump = recorder.into_dump().to_bytes().unwrap();
    println!("{}: {} bytes", folder.display(), dump.len());
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("dump.zst"), dump).unwrap();
    fs::write(folder.join("reading.json"), format!("{recorded}\n")).unwrap();
}
