//! Tests `gputop why` with real Python programs (tests/data/why/program.py), which measure what they do themselves.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::deadline::{DEADLINE, pause};
use crate::support::fake_machine::{Guarded, Outcome, RealProcess, run};
use crate::support::fake_nvml::FakeNvml;
use crate::support::python;
use crate::support::skip::possible;

/// Time that is watched: at 10 Hz, long enough for 50 samples.
const WATCH: &str = "6s";
/// Start and end of the window are not those of the measurement in the program.
const EDGES: f64 = 0.05;

struct Program {
    child: Guarded,
    folder: TempDir,
}

impl Program {
    /// Starts a mode of the program, and waits until it has printed what it spent.
    fn start(mode: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/why/program.py");
        Self::run(&program, mode, folder)
    }

    fn run(program: &Path, mode: &str, folder: TempDir) -> Self {
        let output = File::create(folder.path().join("spent.jsonl")).unwrap();
        let mut command = Command::new(&python::all()[0]);
        command.arg("-B").arg(program).arg(mode).arg(folder.path());
        command.stdout(output).stderr(Stdio::null());
        let child = Guarded(command.spawn().unwrap());
        let program = Self { child, folder };
        let start = Instant::now();
        while program.spent().is_none() {
            assert!(start.elapsed() < DEADLINE, "{mode} has printed nothing");
            pause(start);
        }
        program
    }

    fn pid(&self) -> u32 {
        self.child.0.id()
    }

    /// Returns the seconds that the program has spent in each phase.
    fn spent(&self) -> Option<BTreeMap<String, f64>> {
        let file = File::open(self.folder.path().join("spent.jsonl")).unwrap();
        let lines = BufReader::new(file).lines().map(Result::unwrap);
        lines.filter_map(|line| serde_json::from_str(&line).ok()).last()
    }

    /// Watches the program. Returns the answer, and the share of each phase that the program itself measured.
    fn watched(&self, fake: &FakeNvml) -> (Value, BTreeMap<String, f64>) {
        let before = self.spent().unwrap();
        let outcome = self.why(fake, &["--json"]);
        assert!(matches!(outcome.code, Some(0 | 1)), "{} {}", outcome.out, outcome.err);
        let after = self.spent().unwrap();
        let spent: BTreeMap<String, f64> = after
            .into_iter()
            .map(|(phase, seconds)| {
                let earlier = before.get(&phase).copied().unwrap_or(0.0);
                (phase, seconds - earlier)
            })
            .collect();
        let total: f64 = spent.values().sum();
        let shares = spent.into_iter().map(|(phase, seconds)| (phase, seconds / total)).collect();
        (serde_json::from_str(&outcome.out).unwrap(), shares)
    }

    fn why(&self, fake: &FakeNvml, more: &[&str]) -> Outcome {
        let pid = self.pid().to_string();
        run(fake, [&["why", &pid, "--watch", WATCH], more].concat())
    }
}

/// Checks that the shares of all phases agree with what the program measured, within their errors.
fn assert_shares(answer: &Value, truth: &BTreeMap<String, f64>) {
    let phases = answer["phases"].as_array().unwrap();
    for (phase, expected) in truth {
        let found = phases.iter().find(|one| one["phase"] == **phase);
        let share = found.map_or(0.0, |one| one["share"].as_f64().unwrap());
        let error = found.map_or(0.1, |one| one["error"].as_f64().unwrap());
        let off = (share - expected).abs();
        assert!(off <= error + EDGES, "{phase}: {share} ±{error}, in truth {expected}\n{answer:#}");
    }
    // A crowded machine also delays gputop.
    assert!(answer["samples"].as_u64().unwrap() >= 20, "{answer:#}");
}

/// Checks the cause. While other tests use all cores, it may be the lack of cores.
fn assert_cause(answer: &Value, expected: &str) {
    let cause = answer["cause"].as_str().unwrap();
    let delay = answer["window"]["thread"]["run_delay"].as_f64().unwrap_or(0.0);
    let is_crowded = cause == "no_free_core" && delay >= 25.0;
    assert!(cause == expected || is_crowded, "{answer:#}");
}

fn no_gpu() -> FakeNvml {
    FakeNvml::h200s(1, "")
}

#[test]
fn names_the_data_loader_and_its_busy_workers() {
    let program = Program::start("loader");
    let gpu = "[[gpu]]\nsm = 1\ngpm = { 2 = 4.0, 5 = 0.0, 10 = 1.0 }\n";
    let process = format!("[[process]]\npid = {}\ngpu = 0\nused = \"40 GiB\"\n", program.pid());
    let (answer, truth) = program.watched(&FakeNvml::new(&format!("{gpu}{process}")));
    assert_shares(&answer, &truth);
    assert_eq!(answer["cause"], "data_loader", "{answer:#}");
    assert_eq!(answer["window"]["workers"]["count"], 2, "{answer:#}");
    assert_eq!(answer["gpu"]["sm_active_percent"], 4.0, "{answer:#}");
    let text = answer["text"].as_str().unwrap();
    assert!(text.starts_with("Waits for the data loader: "), "{text}");
    assert!(text.contains("2 workers at ") && text.contains("SM active 4 %"), "{text}");
}

#[test]
fn a_busy_gpu_outranks_every_stack() {
    let program = Program::start("loader");
    let gpu = "[[gpu]]\nsm = 100\ngpm = { 2 = 94.0, 5 = 78.0, 10 = 26.0 }\n";
    let process = format!("[[process]]\npid = {}\ngpu = 0\n", program.pid());
    let (answer, _) = program.watched(&FakeNvml::new(&format!("{gpu}{process}")));
    assert_eq!(answer["cause"], "busy", "{answer:#}");
    assert_eq!(answer["sentence"], "The GPU is busy; the limit is its tensor cores.");
}

#[test]
fn names_loading_in_the_main_thread() {
    let (answer, truth) = Program::start("inline").watched(&no_gpu());
    assert_shares(&answer, &truth);
    assert_cause(&answer, "loads_inline");
}

#[test]
fn names_checkpoints() {
    let (answer, truth) = Program::start("checkpoint").watched(&no_gpu());
    assert_shares(&answer, &truth);
    assert_cause(&answer, "checkpoint");
}

#[test]
fn names_evaluation() {
    let (answer, truth) = Program::start("evaluating").watched(&no_gpu());
    assert_shares(&answer, &truth);
    assert_cause(&answer, "evaluation");
}

#[test]
fn names_reads_of_files_by_their_line() {
    let (answer, truth) = Program::start("disk").watched(&no_gpu());
    assert_shares(&answer, &truth);
    assert_cause(&answer, "disk");
    let places = answer["places"].as_array().unwrap();
    assert!(places.iter().any(|place| place["phase"] == "disk"), "{answer:#}");
}

#[test]
fn names_imports() {
    let (answer, truth) = Program::start("modules").watched(&no_gpu());
    assert_shares(&answer, &truth);
    assert_cause(&answer, "starts");
}

#[test]
fn names_the_thread_that_holds_the_gil() {
    let (answer, _) = Program::start("gil").watched(&no_gpu());
    assert_cause(&answer, "global_lock");
    if answer["cause"] != "global_lock" {
        return;
    }
    let sentence = answer["sentence"].as_str().unwrap();
    assert!(sentence.starts_with("Another Python thread (spinner, program.py:"), "{sentence}");
    assert!(sentence.contains(" spin) holds the GIL: "), "{sentence}");
}

#[test]
fn names_the_quota_of_the_container() {
    let program = Program::start("gil");
    let Some(_group) = QuotaGroup::around(program.pid()) else { return };
    let answer = why_json(program.pid());
    assert_eq!(answer["cause"], "cpu_quota", "{answer:#}");
    let text = answer["text"].as_str().unwrap();
    assert!(text.starts_with("The CPU quota of 0.2 cores of its container stops"), "{text}");
}

/// A real cgroup that may use a fifth of a core.
struct QuotaGroup {
    folder: PathBuf,
}

impl QuotaGroup {
    /// Moves a process into a new cgroup. Returns `None` where the kernel does not allow it.
    fn around(pid: u32) -> Option<Self> {
        let name = format!("gputop-test-{pid}");
        let roots = [("cpu", "cpu.cfs_quota_us", "20000"), ("", "cpu.max", "20000 100000")];
        let group = roots.iter().find_map(|(controller, file, quota)| {
            let folder = Path::new("/sys/fs/cgroup").join(controller).join(&name);
            fs::create_dir(&folder).ok()?;
            let group = Self { folder };
            fs::write(group.folder.join(file), quota).ok()?;
            fs::write(group.folder.join("cgroup.procs"), pid.to_string()).ok()?;
            Some(group)
        });
        possible(group.is_some(), "no cgroup with a CPU quota can be made here");
        group
    }
}

impl Drop for QuotaGroup {
    /// Moves the process back, because a cgroup with processes cannot be removed.
    fn drop(&mut self) {
        let _ = fs::read_to_string(self.folder.join("cgroup.procs")).map(|pids| {
            let parent = self.folder.parent().unwrap().join("cgroup.procs");
            pids.lines().for_each(|pid| drop(fs::write(&parent, pid)));
        });
        let _ = fs::remove_dir(&self.folder);
    }
}

#[test]
fn says_that_nothing_runs() {
    let (answer, _) = Program::start("server").watched(&no_gpu());
    assert_eq!(answer["cause"], "nothing_runs", "{answer:#}");
}

#[test]
fn samples_the_thread_that_drives_the_gpu() {
    let (answer, _) = Program::start("thread").watched(&no_gpu());
    assert_eq!(answer["window"]["thread"]["name"], "engine", "{answer:#}");
    assert_eq!(answer["phases"][0]["phase"], "forward", "{answer:#}");
    assert_cause(&answer, "python_or_launches");
}

/// Python reports the columns of an expression from 3.11 on.
#[test]
fn names_the_expression_that_waits_for_the_gpu() {
    let (answer, truth) = Program::start("sync").watched(&no_gpu());
    assert_shares(&answer, &truth);
    let places = answer["places"].as_array().unwrap();
    let place = places.iter().find(|place| place["phase"] == "sync").expect("a place");
    let text = place["text"].as_str().unwrap();
    assert!(["tensor.item(0.03)", "return (1.0, tensor.item(0.03))"].contains(&text), "{text}");
}

#[test]
fn does_not_quote_a_program_that_was_edited() {
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/why");
    let copy: PathBuf = folder.path().join("program.py");
    let text = std::fs::read_to_string(source.join("program.py")).unwrap();
    let packages = source.join("site-packages");
    let text = text.replace(
        "os.path.join(os.path.dirname(os.path.abspath(__file__)), \"site-packages\")",
        &format!("{packages:?}"),
    );
    std::fs::write(&copy, &text).unwrap();
    let program = Program::run(&copy, "sync", folder);
    std::fs::write(&copy, format!("# edited\n{text}")).unwrap();
    let (answer, _) = program.watched(&no_gpu());
    let places = answer["places"].as_array().unwrap();
    assert!(!places.is_empty(), "{answer:#}");
    assert!(places.iter().all(|place| place["text"].is_null()), "{answer:#}");
}

#[test]
fn reports_a_process_that_does_not_exist_or_is_not_python() {
    let fake = no_gpu();
    let missing = run(&fake, ["why", "2147483000"]);
    assert_eq!(missing.code, Some(2), "{}", missing.out);
    assert!(
        missing.err.contains("cannot watch PID 2147483000: the process has exited"),
        "{}",
        missing.err
    );
    let sleeper = Guarded(Command::new("sleep").arg("600").spawn().unwrap());
    let other = run(&fake, ["why", &sleeper.0.id().to_string(), "--watch", "2s"]);
    assert_eq!(other.code, Some(1), "{} {}", other.out, other.err);
    assert!(other.out.contains("no Python interpreter found"), "{}", other.out);
}

#[test]
fn says_where_the_busiest_thread_of_another_program_is() {
    let start = |script: &str| Guarded(Command::new("sh").args(["-c", script]).spawn().unwrap());
    let asleep = RealProcess::start("reader");
    let busy = start("while :; do :; done");
    std::thread::scope(|scope| {
        let runs = scope.spawn(|| why_json(busy.0.id()));
        let waits = why_json(asleep.pid());
        let thread = &waits["window"]["thread"];
        assert_eq!(thread["calls"][0]["call"], "read", "{waits:#}");
        assert_eq!(thread["name"], "cat", "{waits:#}");
        let runs = runs.join().unwrap();
        assert_eq!(runs["window"]["thread"]["calls"][0]["call"], "", "{runs:#}");
        let text = runs["text"].as_str().unwrap();
        let is_crowded = runs["cause"] == "no_free_core";
        assert!(text.starts_with("Its main thread runs: ") || is_crowded, "{runs:#}");
    });
}

fn why_json(pid: u32) -> Value {
    let outcome = run(&no_gpu(), ["why", &pid.to_string(), "--json", "--watch", WATCH]);
    serde_json::from_str(&outcome.out).unwrap()
}

/// The text has the same parts as the JSON.
#[test]
fn prints_sentence_bars_and_lines() {
    let outcome = Program::start("inline").why(&no_gpu(), &[]);
    assert_eq!((outcome.code, &*outcome.err), (Some(0), ""));
    for part in [" of the last ", "loads data itself", " ####", "program.py:", " samples in "] {
        assert!(outcome.out.contains(part), "{part}\n{}", outcome.out);
    }
}
