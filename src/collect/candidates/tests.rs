use std::fs;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Receiver;
use std::time::Instant;

use super::*;
use crate::collect::process::stat::start_time;

const DEADLINE: Duration = Duration::from_secs(30);

/// Shell script that grows beyond [`MIN_GROWTH`] and waits for its standard input to be closed.
const PROGRAM: &str = "x=$(head -c 40000000 /dev/zero | tr '\\0' a); read line";

/// Child process that is killed and reaped on drop.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Program {
    fn start(script: &str, library: Option<&Path>) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::null());
        if let Some(library) = library {
            command.env("LD_PRELOAD", library);
        }
        Self(command.spawn().expect("a shell"))
    }

    fn key(&self) -> ProcessKey {
        let pid = Pid(self.0.id());
        ProcessKey { pid, start: start_time(Path::new("/proc"), pid).expect("stat") }
    }
}

/// Copies a small shared library under the name of CUDA's driver.
fn library(folder: &Path) -> PathBuf {
    let maps = fs::read_to_string("/proc/self/maps").expect("own mappings");
    let mut files = maps.lines().filter_map(|line| line.split_ascii_whitespace().nth(5));
    let file = files.find(|file| file.contains("libgcc_s")).expect("a shared library");
    let copy = folder.join("libcuda.so.1");
    fs::copy(file, &copy).expect("a copy");
    copy
}

fn start() -> (CandidateFinder, Receiver<Candidate>) {
    let (sender, found) = mpsc::channel();
    let files = Files { root: "/".into(), home: None };
    let report = move |candidate| drop(sender.send(candidate));
    (CandidateFinder::start(Path::new("/proc"), files, report).expect("a thread"), found)
}

#[test]
fn reports_a_new_program_that_loads_cuda_and_not_its_forks() {
    let folder = tempfile::tempdir().expect("a folder");
    let library = library(folder.path());
    let (_finder, found) = start();
    // Programs of other tests may be found too.
    let wait_for = |key: ProcessKey| {
        let mut before = Vec::new();
        loop {
            let candidate = found.recv_timeout(DEADLINE).expect("a candidate");
            if candidate.process.key == key {
                return (candidate, before);
            }
            before.push(candidate);
        }
    };
    let without_cuda = Program::start(PROGRAM, None);
    let forking = format!("{PROGRAM} & x=$(head -c 40000000 /dev/zero | tr '\\0' a); read line");
    let forking = Program::start(&forking, Some(&library));
    let (candidate, before) = wait_for(forking.key());
    assert!(candidate.process.command.value().is_some_and(|command| command.contains("read line")));
    assert_eq!(candidate.ancestors[0].pid, Pid(std::process::id()));

    let last = Program::start(PROGRAM, Some(&library));
    let (_, between) = wait_for(last.key());
    let unwanted = |one: &Candidate| {
        one.process.key == without_cuda.key() || one.ancestors.contains(&forking.key())
    };
    assert!(!before.iter().chain(&between).any(unwanted));
}

#[test]
fn finds_a_program_that_loads_cuda_after_an_exec() {
    let folder = tempfile::tempdir().expect("a folder");
    let library = library(folder.path());
    let (_finder, found) = start();
    let script = format!("read line; LD_PRELOAD={} exec sh -c \"$0\"", library.display());
    let mut command = Command::new("sh");
    command.args(["-c", &script, PROGRAM]).stdin(Stdio::piped());
    let mut program = Program(command.spawn().expect("a shell"));
    let key = program.key();
    std::io::Write::write_all(program.0.stdin.as_mut().expect("a pipe"), b"\n").expect("a line");
    let begun = Instant::now();
    while found.recv_timeout(DEADLINE).expect("a candidate").process.key != key {
        assert!(begun.elapsed() < DEADLINE);
    }
}

/// Prints the CPU time of the thread in a minute on this host.
#[test]
#[ignore = "prints a figure"]
#[expect(clippy::print_stdout, reason = "the figure")]
fn cpu_time_of_a_quiet_minute() {
    let files = Files { root: "/".into(), home: None };
    let mut finder = Finder::new("/proc".into(), files);
    let (begun, before) = (Instant::now(), cpu_budget::cpu_time_of_thread());
    while begun.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(INTERVAL);
        finder.look(&drop);
    }
    let used = cpu_budget::cpu_time_of_thread() - before;
    println!("{:.4} % of a core", 100.0 * used.as_secs_f64() / begun.elapsed().as_secs_f64());
}
