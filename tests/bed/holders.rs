//! Compares `gputop memory PID --json` with real Python programs that use whole torch wheels on the fake CUDA runtime
//! (tests/fake_cuda/install_torch.py). The programs are those of benches/hardware/holders.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use gputop_model::holders::Holders;
use serde::Deserialize;
use serde_json::Value;

use crate::harness::{Harness, Launch};
use crate::holders_truth::Truth;
use crate::reader::program;

pub const SMALL: &[&str] = &["--layers", "1", "--width", "32", "--batch", "4"];
/// Readings of a busy program, each of which takes 0.2 to 2 s.
const READINGS: usize = 5;
const COMPLETE_TIMEOUT: Duration = Duration::from_secs(60);

/// A Python with a torch release.
#[derive(Clone, Deserialize)]
pub struct Installed {
    #[serde(skip)]
    pub name: String,
    pub python: PathBuf,
    environment: BTreeMap<String, String>,
}

impl Installed {
    fn read(folder: &Path) -> Self {
        let launch = fs::read_to_string(folder.join("launch.json")).unwrap();
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        Self { name, ..serde_json::from_str(&launch).unwrap() }
    }

    pub fn start(&self, script: &str, arguments: &[&str]) -> Harness {
        let folder = Path::new("benches/hardware/holders");
        self.launch(&folder.join(script), arguments).start()
    }

    /// Returns the command that starts a script of this repository.
    pub fn launch(&self, script: &Path, arguments: &[&str]) -> Launch {
        let mut command = Command::new(&self.python);
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(script)).args(arguments);
        self.environment(command)
    }

    /// Returns a command with the environment of this Python.
    pub fn environment(&self, command: Command) -> Launch {
        let launch = Launch::with(command);
        let set = |launch: Launch, (name, value): (&String, &String)| launch.env(name, value);
        self.environment.iter().fold(launch, set)
    }
}

/// Returns the installed releases.
pub fn installed() -> Vec<Installed> {
    let bed = std::env::var_os("GPUTOP_BED").expect("GPUTOP_BED names a bed (tests/bed/main.rs)");
    let bed = Path::new(env!("CARGO_MANIFEST_DIR")).join(bed);
    let names: Vec<String> = match std::env::var("GPUTOP_BED_TORCH") {
        Ok(names) => names.split_whitespace().map(str::to_owned).collect(),
        Err(_) => fs::read_dir(&bed)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| bed.join(name).join("launch.json").exists())
            .collect(),
    };
    assert!(!names.is_empty(), "{} holds no torch wheel for Python", bed.display());
    names.iter().map(|name| Installed::read(&bed.join(name))).collect()
}

fn read(pid: u32) -> Holders {
    let mut command = Command::new(program());
    let output = command.args(["memory", &pid.to_string(), "--json"]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let mut document: Value = serde_json::from_slice(&output.stdout).unwrap();
    serde_json::from_value(document["holders"].take()).unwrap()
}

/// Repeats readings that the time limit ended, because the machine may be busy.
fn read_completely(pid: u32) -> Holders {
    let start = Instant::now();
    loop {
        let holders = read(pid);
        if !holders.is_incomplete {
            return holders;
        }
        assert!(start.elapsed() < COMPLETE_TIMEOUT, "{:?}", holders.limit);
    }
}

/// Returns the peak memory of `gputop memory PID` in MiB.
fn peak_mib(pid: u32) -> u64 {
    const PEAK: &str = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL); \
                        print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)";
    let mut command = Command::new("python3");
    command.args(["-c", PEAK]).arg(program()).args(["memory", &pid.to_string(), "--json"]);
    let output = command.output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}

pub fn truth(target: &mut Harness) -> Truth {
    serde_json::from_value(target.run("truth")).unwrap()
}

#[test]
fn holders_are_those_that_the_program_reports() {
    for release in installed() {
        let mut target = release.start("target.py", SMALL);
        let truth = truth(&mut target);
        truth.check(&read_completely(target.pid), &release.name);
    }
}

/// The program creates and drops objects and tensors, and collects garbage, while gputop reads.
#[test]
fn a_busy_program_gets_no_wrong_name() {
    for release in installed() {
        let mut target = release.start("target.py", SMALL);
        let truth = truth(&mut target);
        target.run("churn");
        let readings: Vec<Holders> = (0..READINGS).map(|_| read(target.pid)).collect();
        let rate = target.run("stop")["operations_per_second"].as_f64().unwrap();
        let complete = readings.iter().filter(|holders| !holders.is_incomplete).count();
        let name = &release.name;
        println!("{name}: {complete} of {READINGS} complete at {rate:.0} operations a second");
        for holders in &readings {
            truth.check_lasting(holders, &release.name);
        }
        truth.check(&read_completely(target.pid), &release.name);
    }
}

/// While a method of the model or the optimizer runs, both are also its local variable `self`.
#[test]
fn names_do_not_depend_on_the_function_that_runs() {
    for release in installed() {
        let mut target = release.start("programs.py", &["training"]);
        let truth = truth(&mut target);
        target.send("steps 1000000");
        for _ in 0..READINGS {
            truth.check_lasting(&read(target.pid), &release.name);
        }
    }
}

/// 10,000 tensors among two million Python objects. A process that is not readable gives the memory of gputop itself.
#[test]
fn reading_a_large_heap_needs_at_most_64_mib() {
    const NO_PROCESS: u32 = u32::MAX;
    let release = installed().pop().unwrap();
    let mut target = release.start("programs.py", &["large_heap"]);
    let truth = truth(&mut target);
    let holders = read_completely(target.pid);
    assert_eq!(holders.allocated.0, truth.allocated);
    let named: u64 = holders.groups.iter().filter(|g| !g.name.is_empty()).map(|g| g.bytes.0).sum();
    assert!(named >= truth.allocated / 10 * 9, "{named} of {} B have names", truth.allocated);
    let grown = peak_mib(target.pid) - peak_mib(NO_PROCESS);
    println!("{}: a reading of {} ms needs {grown} MiB", release.name, holders.took.0);
    assert!(grown <= 64, "{grown} MiB");
}
