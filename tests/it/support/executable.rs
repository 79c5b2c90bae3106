//! Executables that a test writes and then starts.
//!
//! The kernel does not start a file that a process has open for writing ("Text file busy"). If this process opened the
//! file, a child that another test forks at that instant would keep it open until its exec. So another process writes
//! it, whose descriptors no child of this process inherits.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Writes a script that can be started.
pub fn write(path: impl AsRef<Path>, script: &str) {
    let mut writer = Command::new("sh");
    writer.args(["-c", "cat > \"$0\" && chmod 755 \"$0\""]).arg(path.as_ref());
    let mut writer = writer.stdin(Stdio::piped()).spawn().unwrap();
    writer.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(writer.wait().unwrap().success());
}

/// Copies a program, with its permissions.
pub fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let mut writer = Command::new("cp");
    writer.arg("--").args([from.as_ref(), to.as_ref()]);
    assert!(writer.status().unwrap().success());
}

#[test]
fn a_written_program_can_be_started_while_other_tests_start_programs() {
    let folder = tempfile::tempdir().unwrap();
    let is_done = std::sync::atomic::AtomicBool::new(false);
    let relaxed = std::sync::atomic::Ordering::Relaxed;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !is_done.load(relaxed) {
                    assert!(Command::new("true").status().unwrap().success());
                }
            });
        }
        let started = std::panic::catch_unwind(|| {
            for n in 0..40 {
                let script = folder.path().join(format!("script{n}"));
                write(&script, "#!/bin/sh\n");
                assert!(Command::new(&script).status().unwrap().success());
                let program = folder.path().join(format!("program{n}"));
                copy("/bin/true", &program);
                assert!(Command::new(&program).status().unwrap().success());
            }
        });
        is_done.store(true, relaxed);
        started.unwrap();
    });
}
