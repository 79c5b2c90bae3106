//! New programs that load CUDA are found in the real /proc.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::Path;
use std::sync::mpsc::{self, Receiver};

use gputop::collect::candidates::{Candidate, CandidateFinder};
use gputop::collect::process::container::Files;
use gputop_model::units::Pid;

use crate::support::cuda_program::{driver_in, shell};
use crate::support::deadline::DEADLINE;
use crate::support::fake_machine::{Guarded, wait_until};

struct Found {
    _finder: CandidateFinder,
    candidates: Receiver<Candidate>,
}

impl Found {
    fn start() -> Self {
        Self::start_in(Path::new("/proc"))
    }

    fn start_in(proc_root: &Path) -> Self {
        let (sender, candidates) = mpsc::channel();
        let files = Files { root: "/".into(), home: None };
        let report = move |candidate| drop(sender.send(candidate));
        let finder = CandidateFinder::start(proc_root, files, report).unwrap();
        Self { _finder: finder, candidates }
    }

    /// Waits for a program. Returns it, and candidates that were found before it. Those of other tests may be among them.
    fn wait_for(&self, program: &Guarded) -> (Candidate, Vec<Candidate>) {
        let mut before = Vec::new();
        loop {
            let candidate = self.candidates.recv_timeout(DEADLINE).unwrap();
            if candidate.process.key.pid == Pid(program.0.id()) {
                return (candidate, before);
            }
            before.push(candidate);
        }
    }
}

#[test]
fn program_that_loads_cuda_is_found_and_its_forks_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let driver = driver_in(folder.path());
    let found = Found::start();
    let start = |script: &str| {
        shell(script, &[], |command| {
            command.env("LD_PRELOAD", &driver);
        })
    };
    let without_cuda = shell("read line", &[], |_| {});
    let forking = start("exec 3<&0; (read line <&3; true) & read line");
    let (candidate, mut others) = found.wait_for(&forking);
    assert!(candidate.process.command.value().is_some_and(|command| command.contains("read")));
    assert_eq!(candidate.ancestors[0].pid, Pid(std::process::id()));
    // When the second program is found, every process has been looked at since the first was found.
    for _ in 0..2 {
        others.extend(found.wait_for(&start("read line")).1);
    }
    let unwanted = |one: &Candidate| {
        one.process.key.pid == Pid(without_cuda.0.id())
            || one.ancestors.contains(&candidate.process.key)
    };
    assert!(!others.iter().any(unwanted), "{others:?}");
}

#[test]
fn program_that_loads_cuda_after_an_exec_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let driver = driver_in(folder.path());
    let found = Found::start();
    let script = "read line; LD_PRELOAD=$0 exec sh -c 'read line'";
    let mut program = shell(script, &[driver.to_str().unwrap()], |_| {});
    // Another program is found, so the first one has been looked at before its exec.
    let other = shell("read line", &[], |command| {
        command.env("LD_PRELOAD", &driver);
    });
    found.wait_for(&other);
    std::io::Write::write_all(program.0.stdin.as_mut().unwrap(), b"\n").unwrap();
    found.wait_for(&program);
}

#[test]
fn a_program_whose_files_answer_late_delays_no_other_and_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let driver = driver_in(folder.path());
    let root = tempfile::tempdir().unwrap();
    let set_newest = |pid: u32| {
        fs::write(root.path().join("loadavg"), format!("0.20 0.18 0.12 1/80 {pid}\n")).unwrap();
    };
    let start = || {
        let program = shell("read line", &[], |command| {
            command.env("LD_PRELOAD", &driver);
        });
        let pid = program.0.id();
        (program, pid, Path::new("/proc").join(pid.to_string()), root.path().join(pid.to_string()))
    };
    let (late, pid, real, dir) = start();
    let real_maps = real.join("maps");
    set_newest(pid - 1);
    let found = Found::start_in(root.path());
    // A read of a FIFO blocks until it is written to, as that of a file on a server that does not answer.
    fs::create_dir(&dir).unwrap();
    for name in ["cgroup", "cmdline", "environ", "exe", "stat", "statm", "status"] {
        symlink(real.join(name), dir.join(name)).unwrap();
    }
    nix::unistd::mkfifo(&dir.join("maps"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    set_newest(pid);
    let mut writer = File::options();
    writer.write(true).custom_flags(nix::libc::O_NONBLOCK);
    let mut open = None;
    wait_until("a read of the mappings", || {
        open = writer.open(dir.join("maps")).ok();
        open.is_some()
    });
    let (other, pid, real, dir) = start();
    symlink(real, dir).unwrap();
    set_newest(pid);
    let (_, before) = found.wait_for(&other);
    assert!(before.is_empty(), "{before:?}");
    let mut maps_file = open.unwrap();
    maps_file.write_all(&fs::read(real_maps).unwrap()).unwrap();
    drop(maps_file);
    found.wait_for(&late);
}
