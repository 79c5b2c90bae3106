//! Records a real Python program in which an allocation fails: the recording and the incident say who held the memory,
//! and the names of tensors are written only at the user's request.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use gputop::collect::host::hello;
use gputop_model::holders::summary::HolderSummary;
use gputop_model::host::PidNamespace;
use gputop_model::protocol::{Line, Update};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::fake_nvml::FakeNvml;
use crate::holders::{Installed, SMALL, installed, truth};
use crate::reader::program;

/// Parts of the target's tensor names that are in no other text about it.
const NAMES: &[&str] =
    &["attention.query", "ema.", "optimizer.state", "kept_by_exception", "held_by_"];
const TIMEOUT: Duration = Duration::from_secs(60);

/// A user with an own home directory, who records the machine.
struct User<'a> {
    fake: &'a FakeNvml,
    home: PathBuf,
    recorder: Child,
}

impl<'a> User<'a> {
    fn start(fake: &'a FakeNvml, home: PathBuf, more: &[&str]) -> Self {
        fs::create_dir(&home).unwrap();
        let mut record = command(fake, &home);
        record.args(["record", "--interval", "200ms", "-o"]).arg(home.join("recording")).args(more);
        let recorder = record.stderr(Stdio::null()).spawn().unwrap();
        Self { fake, home, recorder }
    }

    fn updates(&self) -> Vec<Update> {
        let bytes = fs::read(self.home.join("recording")).unwrap_or_default();
        let mut text = Vec::new();
        if let Ok(mut decoder) = zstd::stream::read::Decoder::new(&bytes[..]) {
            let _ = decoder.read_to_end(&mut text);
        }
        let whole = text.iter().rposition(|byte| *byte == b'\n').unwrap_or(0);
        let lines = text[..whole].split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.filter_map(|line| Line::read(line).unwrap().update().unwrap()).collect()
    }

    fn has_pool(&self) -> bool {
        self.updates().iter().any(|update| match update {
            Update::Frame(frame) => {
                let mut pools = frame.pools.iter().flat_map(|pools| pools.list.iter());
                pools.any(|pool| pool.stats.allocated.last().0 > 0)
            }
            _ => false,
        })
    }

    fn summary(&self) -> Option<HolderSummary> {
        self.updates().into_iter().find_map(|update| match update {
            Update::HolderSummary(summary) => Some(HolderSummary::clone(&summary)),
            _ => None,
        })
    }

    fn output(&self, args: &[&str]) -> String {
        let output = command(self.fake, &self.home).args(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn stop(&mut self) {
        let recorder = i32::try_from(self.recorder.id()).unwrap();
        kill(Pid::from_raw(recorder), Signal::SIGINT).unwrap();
        assert!(self.recorder.wait().unwrap().success());
    }

    /// Returns the text of the recording and of all files that gputop wrote to the home directory.
    fn written(&self) -> String {
        let mut text = String::new();
        let mut folders = vec![self.home.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let bytes = fs::read(path).unwrap();
                let mut unpacked = Vec::new();
                if let Ok(mut decoder) = zstd::stream::read::Decoder::new(&bytes[..]) {
                    let _ = decoder.read_to_end(&mut unpacked);
                }
                text += &String::from_utf8_lossy(&bytes);
                text += &String::from_utf8_lossy(&unpacked);
            }
        }
        text
    }
}

impl Drop for User<'_> {
    fn drop(&mut self) {
        let _ = self.recorder.kill();
        let _ = self.recorder.wait();
    }
}

fn command(fake: &FakeNvml, home: &Path) -> Command {
    let mut command = Command::new(program());
    command.envs(fake.env()).env("HOME", home).env("XDG_STATE_HOME", home.join("state"));
    command.env("XDG_CONFIG_HOME", "/dev/null").env_remove("GPUTOP_CONFIG").stdin(Stdio::null());
    command
}

fn wait_until(what: &str, mut wanted: impl FnMut() -> bool) {
    let start = Instant::now();
    while !wanted() {
        assert!(start.elapsed() < TIMEOUT, "waited for {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn contained(text: &str) -> Vec<&&str> {
    NAMES.iter().filter(|name| text.contains(**name)).collect()
}

#[test]
fn holders_at_a_failed_allocation_are_recorded_with_names_only_on_request() {
    // In a container, gputop does not know the processes of the driver's list.
    if hello().namespace != PidNamespace::Host {
        return;
    }
    for release in installed() {
        check(&release);
    }
}

fn check(release: &Installed) {
    let mut target = release.start("target.py", SMALL);
    let process = format!("[[process]]\npid = {}\nused = \"9 GiB\"\n", target.pid);
    let fake = FakeNvml::h200s(1, &process);
    let folder = tempfile::tempdir().unwrap();
    let mut private = User::start(&fake, folder.path().join("private"), &[]);
    let mut open = User::start(&fake, folder.path().join("open"), &["--record-names"]);
    // An agent reads for a recorder on another host.
    let agent = format!("via:{} agent", program().display());
    let remote = User::start(&fake, folder.path().join("remote"), &[&agent]);
    for user in [&private, &open, &remote] {
        wait_until("the allocator's statistics", || user.has_pool());
    }
    let truth = truth(&mut target);
    assert_eq!(target.run("oom")["num_ooms"], 1);
    for user in [&private, &open, &remote] {
        wait_until("the holders", || user.summary().is_some());
        let summary = user.summary().unwrap();
        assert_eq!((summary.process.pid.0, summary.ordinal), (target.pid, 0));
        assert_eq!(summary.allocated.0, truth.allocated, "{}", release.name);
        let sum: u64 = summary.classes.values().map(|bytes| bytes.0).sum();
        assert_eq!(sum, truth.allocated, "{}", release.name);
    }
    let groups = open.summary().unwrap().groups;
    assert!(groups.iter().any(|group| group.name.starts_with("optimizer.state")), "{groups:?}");
    private.stop();
    open.stop();
    assert!(open.written().contains("optimizer.state"), "{}", release.name);
    let outputs = [
        private.written(),
        remote.written(),
        open.output(&["once"]),
        open.output(&["once", "--json"]),
        open.output(&["serve", "--once"]),
    ];
    for output in outputs {
        assert_eq!(contained(&output), Vec::<&&str>::new(), "{}", release.name);
    }
}
