//! Compares the stacks that gputop reads from outside with those that Python reports about itself (stacks.py).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use gputop_model::units::{Pid, StartTicks};
use gputop_model::{ProcessKey, PythonStack, StackFrame};
use gputop_peek::python::{PythonReader, StackRequest};
use procfs::process::Process;

use crate::harness::{Harness, Launch};
use crate::holders::installed;

/// Function, file and line of each frame, by thread.
type Stacks = BTreeMap<String, Vec<(String, String, u32)>>;

/// Maximum number of frames and of characters of a file name that gputop keeps.
const MAX_FRAMES: usize = 64;
const MAX_PATH: usize = 200;

/// Returns the Python programs of the bed and of pyenv, and that of the system.
fn pythons() -> BTreeSet<PathBuf> {
    let mut pythons: BTreeSet<PathBuf> =
        installed().into_iter().map(|release| release.python).collect();
    if let Some(home) = std::env::home_dir()
        && let Ok(versions) = home.join(".pyenv/versions").read_dir()
    {
        pythons.extend(versions.map(|entry| entry.unwrap().path().join("bin/python3")));
    }
    pythons.insert("python3".into());
    pythons.retain(|python| is_supported(python));
    pythons
}

fn is_supported(python: &Path) -> bool {
    let check = "import sys, sysconfig; \
                 is_free_threaded = sysconfig.get_config_var('Py_GIL_DISABLED'); \
                 sys.exit(not (3, 8) <= sys.version_info < (3, 16) or bool(is_free_threaded))";
    Command::new(python).args(["-c", check]).status().is_ok_and(|status| status.success())
}

fn read(reader: &mut PythonReader, pid: u32) -> PythonStack {
    let start = Process::new(pid.cast_signed()).unwrap().stat().unwrap().starttime;
    let process = ProcessKey { pid: Pid(pid), start: StartTicks(start) };
    reader.take(StackRequest::by_user(process)).unwrap().unwrap()
}

fn frame(frame: &StackFrame) -> (String, String, u32) {
    (frame.function.clone(), frame.file.clone(), frame.line)
}

fn truth(target: &mut Harness) -> Stacks {
    serde_json::from_value(target.run("truth")).unwrap()
}

/// Compares all threads but the main one, which has run since it reported the others.
fn compare(reader: &mut PythonReader, target: &mut Harness, python: &Path) -> usize {
    let mut expected = truth(target);
    let stack = read(reader, target.pid);
    assert_eq!(stack.left_out, 0, "{}", python.display());
    let mut found: Stacks = BTreeMap::new();
    for thread in &stack.threads {
        found.insert(thread.name.clone(), thread.frames.iter().map(frame).collect());
    }
    let main = found.remove("MainThread").unwrap();
    assert_eq!(main.last().unwrap().0, "<module>", "{}", python.display());
    expected.remove("MainThread");
    for frames in expected.values_mut() {
        frames.truncate(MAX_FRAMES);
        for (_, file, _) in frames {
            if file.len() > MAX_PATH {
                *file = format!("…{}", &file[file.len() - (MAX_PATH - 1)..]);
            }
        }
    }
    assert_eq!(found, expected, "{}", python.display());
    found.len()
}

#[test]
fn stacks_are_those_that_python_reports() {
    for python in pythons() {
        let mut command = Command::new(&python);
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bed/stacks.py"));
        let mut target = Launch::with(command).start();
        let mut reader = PythonReader::default();
        let threads = compare(&mut reader, &mut target, &python);
        target.run("grow");
        assert_eq!(compare(&mut reader, &mut target, &python), threads + 1);
        println!("{}: {threads} threads", python.display());
    }
}
