//! An unprepared run fails while dashboards are open. The tests follow it from its log to the banner, the explanation
//! and the store, with the real program and a real process.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use serde_json::Value;

use crate::support::cuda_program::{driver_in, shell};
use crate::support::fake_machine::{
    Guarded, RealProcess, command, dashboard, is_host, on_gpu, wait_until,
};
use crate::support::fake_nvml::FakeNvml;
use crate::support::terminal::Terminal;

const OOM: &str = "Traceback (most recent call last):\n  File \"train.py\", line 57, in <module>\n    loss.backward()\n\
    torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.69 GiB of \
    which 1.06 GiB is free. Including non-PyTorch memory, this process has 22.60 GiB memory in use. Of the allocated \
    memory 22.00 GiB is allocated by PyTorch, and 102.00 MiB is reserved by PyTorch but unallocated.\n";

/// A training run with a log, on a fake GPU.
struct Run {
    home: tempfile::TempDir,
    log: File,
    process: RealProcess,
    fake: FakeNvml,
}

impl Run {
    fn start() -> Self {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("train.log");
        let log = File::options().create(true).append(true).open(path).unwrap();
        let errors = log.try_clone().unwrap();
        let process = RealProcess::with("train.py", |command| {
            command.stderr(errors);
        });
        let listed = on_gpu(0, &process, "used = \"22 GiB\"");
        let fake = FakeNvml::new(&format!("[[gpu]]\n{listed}"));
        Self { home, log, process, fake }
    }

    fn dashboard(&self) -> Terminal {
        let home: &Path = self.home.path();
        let launch = dashboard(&self.fake).env("XDG_STATE_HOME", home);
        launch.start()
    }

    /// Waits until the dashboard follows the log. Earlier text is ignored.
    fn wait_followed(&mut self, terminal: &Terminal) {
        terminal.wait_text("train.py");
        terminal.send("jL");
        wait_until("the log to be followed", || {
            writeln!(self.log, "one more step").unwrap();
            terminal.text().contains("one more step")
        });
        terminal.send("\x1b");
        terminal.wait_text("COMMAND");
    }

    fn stored_incidents(&self) -> Vec<Value> {
        stored_incidents(&self.fake, self.home.path())
    }
}

fn stored_incidents(fake: &FakeNvml, home: &Path) -> Vec<Value> {
    let mut list = command(fake, ["incidents", "list", "--json"]);
    list.env("XDG_STATE_HOME", home);
    let reported = list.stderr(Stdio::null()).output().unwrap().stdout;
    let reported: Value = serde_json::from_slice(&reported).unwrap();
    reported["incidents"].as_array().unwrap().clone()
}

#[test]
fn dying_run_is_announced_everywhere_and_saved_once() {
    if !is_host() {
        return;
    }
    let mut run = Run::start();
    let terminals = [run.dashboard(), run.dashboard()];
    for terminal in &terminals {
        run.wait_followed(terminal);
    }
    let died = Instant::now();
    run.log.write_all(OOM.as_bytes()).unwrap();
    run.process.finish();
    for terminal in &terminals {
        terminal.wait_text("OUT OF MEMORY: GPU 0 lacked 962.56 MiB for 2.00 GiB");
    }
    // One second, plus time for a busy machine.
    assert!(died.elapsed().as_secs() < 6, "{:?}", died.elapsed());

    terminals[0].send("d");
    terminals[0].wait_text("oom-capacity");
    terminals[0].wait_text("WHERE train.py:57  loss.backward()");
    terminals[0].send("\x1b[6~");
    terminals[0].wait_text("train.log:");
    // An incident opened in one dashboard is marked as read in the other.
    terminals[1]
        .wait_for(|screen| !screen.contents().contains("OUT OF MEMORY"), "the banner to go");

    let stored_incidents = run.stored_incidents();
    assert_eq!(stored_incidents.len(), 1, "{stored_incidents:#?}");
    assert_eq!(stored_incidents[0]["id"], "oom-capacity");
    assert_eq!(stored_incidents[0]["severity"], "fatal");
    assert_eq!(stored_incidents[0]["detected_by"], "log");
}

#[test]
fn old_log_text_and_clean_exits_are_not_incidents() {
    if !is_host() {
        return;
    }
    let mut run = Run::start();
    run.log.write_all(OOM.as_bytes()).unwrap();
    let terminal = run.dashboard();
    run.wait_followed(&terminal);
    run.process.finish();
    terminal.wait_text("exited");
    terminal.send("d");
    terminal.wait_text("No incidents in this session");
    assert_eq!(run.stored_incidents(), [Value::Null; 0]);
}

/// A program that has loaded CUDA, but that the driver does not list yet.
struct NewProgram {
    process: Guarded,
    log: PathBuf,
}

impl NewProgram {
    /// Starts a program that fails with `error` when its input ends.
    fn start(home: &Path, name: &str, error: &str) -> Self {
        let log = home.join(name).with_extension("log");
        let script = "read line; printf %s \"$1\" >&2; exit 1";
        let process = shell(script, &[name, error], |command| {
            command.env("LD_PRELOAD", driver_in(home)).stderr(File::create(&log).unwrap());
        });
        Self { process, log }
    }

    /// Fails as soon as gputop follows the program's output. Returns once gputop has read all of it.
    fn fail(mut self, terminal: &Terminal) {
        let gputop = PathBuf::from(format!("/proc/{}", terminal.pid()));
        let is_open = || {
            let mut files = fs::read_dir(gputop.join("fd")).unwrap().flatten();
            files.any(|file| fs::read_link(file.path()).is_ok_and(|target| target == self.log))
        };
        // gputop opens the log first and then checks that the program still runs. The log's thread comes after that.
        let is_followed = || {
            let mut threads = fs::read_dir(gputop.join("task")).unwrap().flatten();
            threads.any(|thread| {
                fs::read(thread.path().join("comm")).is_ok_and(|name| name == b"log\n")
            })
        };
        wait_until("the log to be followed", || is_open() && is_followed());
        drop(self.process.0.stdin.take());
        assert_eq!(self.process.0.wait().unwrap().code(), Some(1));
        wait_until("the log to be closed", || !is_open());
    }
}

#[test]
fn explains_a_program_that_fails_before_the_driver_lists_it() {
    if !is_host() {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let fake = FakeNvml::new("[[gpu]]\n");
    let terminal =
        dashboard(&fake).env("XDG_STATE_HOME", home.path()).env("GPUTOP_CANDIDATES", "1").start();
    terminal.wait_text("No process uses a GPU");
    let key_error = OOM.replace("torch.OutOfMemoryError: CUDA out of memory.", "KeyError: 'label'");
    let (key_error, _) = key_error.split_once(" Tried").unwrap();
    NewProgram::start(home.path(), "typo.py", &format!("{key_error}\n")).fail(&terminal);
    NewProgram::start(home.path(), "train.py", OOM).fail(&terminal);
    terminal.wait_text("OUT OF MEMORY: GPU 0 lacked 962.56 MiB for 2.00 GiB");
    // Neither program has a row.
    assert!(terminal.text().contains("No process uses a GPU"), "{}", terminal.text());
    let stored_incidents = stored_incidents(&fake, home.path());
    assert_eq!(stored_incidents.len(), 1, "{stored_incidents:#?}");
    assert_eq!(stored_incidents[0]["id"], "oom-capacity");
}
