//! Records several hosts into a folder and replays them side by side on one clock, even if one of them was never
//! reached or the recorder was killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::executable;
use crate::support::fake_machine::{Guarded, gputop, wait_until};
use crate::support::fake_nvml::FakeNvml;
use crate::support::screen_tables::gpu_shows;
use crate::support::terminal::{Launch, Terminal};

/// Two hosts with distinct names.
struct TwoHosts {
    home: tempfile::TempDir,
    fakes: [FakeNvml; 2],
}

const HOSTS: [&str; 2] = ["via:exec $H/one", "via:exec $H/two"];

impl TwoHosts {
    fn start(sms: [u32; 2]) -> Self {
        let home = tempfile::tempdir().unwrap();
        let fakes = sms.map(|sm| FakeNvml::new(&format!("[[gpu]]\nsm = {sm}\n")));
        for (fake, name) in fakes.iter().zip(["one", "two"]) {
            let set = fake.env().into_iter();
            let set = set.map(|(name, value)| format!("{name}={} ", value.to_string_lossy()));
            let set: String = set.collect();
            let script =
                format!("#!/bin/sh\nexec env {set}{} agent\n", env!("CARGO_BIN_EXE_gputop"));
            executable::write(home.path().join(name), &script);
        }
        Self { home, fakes }
    }

    fn folder(&self) -> PathBuf {
        self.home.path().join("cluster")
    }

    fn record(&self) -> Command {
        let mut command = record(&self.folder());
        command.env("H", self.home.path()).args(HOSTS);
        command
    }
}

fn record(folder: &Path) -> Command {
    let mut command = gputop(["record", "--interval", "250ms", "-o"]);
    command.arg(folder);
    command
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn replay(what: &Path) -> Terminal {
    let launch = Launch::gputop().env("TZ", "UTC").args(["replay", "--paused"]);
    launch.args([what]).size(24, 100).start()
}

fn row(screen: &vt100::Screen, of: &str, words: &[&str]) -> bool {
    let text = screen.contents();
    let mut lines = text.lines().filter(|line| line.contains(of));
    lines.any(|line| words.iter().all(|word| line.contains(word)))
}

#[test]
fn a_second_recorder_of_the_folder_is_refused() {
    let hosts = TwoHosts::start([91, 92]);
    let first = Guarded(hosts.record().stderr(Stdio::null()).spawn().unwrap());
    wait_until("both files", || files(&hosts.folder()).len() == 2);
    for more in [&[][..], &["--force"]] {
        let second = hosts.record().args(["--for", "1s"]).args(more).output().unwrap();
        let message = String::from_utf8(second.stderr).unwrap();
        assert_eq!(second.status.code(), Some(2), "{message}");
        let by = format!("process {} is recording to it", first.0.id());
        assert!(message.contains(&by) && message.lines().count() == 1, "{message}");
    }
}

#[test]
fn two_hosts_are_a_folder_and_play_side_by_side() {
    let hosts = TwoHosts::start([91, 92]);
    let folder = hosts.folder();
    let output = hosts
        .record()
        .args(["--for", "5s"])
        .args(["via:echo No route to host >&2; exit 255"])
        .output()
        .unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    // The output says that a host is missing, and why.
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("exit 255: connection lost (No route to host)"), "{message}");
    assert!(message.contains("not recorded: the host was not reached"), "{message}");
    assert!(message.contains(" frames from 2 of 3 hosts to "), "{message}");
    let written = files(&folder);
    assert_eq!(written.len(), 2, "{written:?}");
    assert!(written[0].ends_with("exec-H-one.gpt.zst"));
    // Existing files are overwritten only on request.
    let again = hosts.record().args(["--for", "1s"]).output().unwrap();
    let message = String::from_utf8(again.stderr).unwrap();
    assert!(message.contains("the file exists. Choose another directory"), "{message}");

    let terminal = replay(&folder);
    terminal.wait_text("2 hosts");
    terminal.wait_text("REPLAY cluster 0:00/0:0");
    let has_begun = |screen: &vt100::Screen| {
        row(screen, "exec-H-one", &["91"]) || row(screen, "exec-H-two", &["92"])
    };
    terminal.wait_for(has_begun, "a beginning");
    terminal.send("p");
    terminal.wait_for(
        |screen| row(screen, "exec-H-one", &["91"]) && row(screen, "exec-H-two", &["92"]),
        "both hosts",
    );
    terminal.wait_text("at end");
    // Each host can be opened. Seeking in the list moves both.
    terminal.send("G\r");
    terminal.wait_for(|screen| gpu_shows(screen, "0", &[("SM%", "92")]), "the host");
    terminal.wait_text("REPLAY ");
    terminal.send("H");
    terminal.wait_text("2 hosts");
    terminal.send("\x1b[H");
    terminal.wait_text("cluster 0:00/");
    terminal.send("q");
    assert_eq!(terminal.wait_exit().exit_code(), 0);
    // Each file is a recording of its own.
    let terminal = replay(&written[1]);
    terminal.wait_for(|screen| gpu_shows(screen, "0", &[("SM%", "92")]), "one alone");
}

#[test]
fn what_a_killed_recorder_wrote_plays_up_to_its_last_second() {
    let hosts = TwoHosts::start([93, 94]);
    let folder = hosts.folder();
    let mut recorder = hosts.record();
    let mut recorder = Guarded(recorder.stderr(Stdio::null()).spawn().unwrap());
    let sizes = || {
        let files = files(&folder);
        files.iter().map(|file| file.metadata().unwrap().len()).collect::<Vec<_>>()
    };
    wait_until("two files", || sizes().len() == 2);
    let before = sizes();
    wait_until("both to grow", || {
        let now = sizes();
        (0..2).all(|at| now[at] > before[at] + 1_000)
    });
    for (fake, sm) in hosts.fakes.iter().zip([95, 96]) {
        fake.replace(&format!("[[gpu]]\nsm = {sm}\n"));
    }
    let changed = sizes();
    wait_until("a second more", || {
        let now = sizes();
        (0..2).all(|at| now[at] > changed[at] + 1_000)
    });
    recorder.0.kill().unwrap();
    recorder.0.wait().unwrap();
    let terminal = replay(&folder);
    terminal.wait_text("2 hosts");
    // The host that was reached later has no data yet.
    let has_begun = |screen: &vt100::Screen| {
        row(screen, "exec-H-one", &["93"]) || row(screen, "exec-H-two", &["94"])
    };
    terminal.wait_for(has_begun, "its beginning");
    terminal.send("p");
    terminal.wait_for(
        |screen| row(screen, "exec-H-one", &["95"]) && row(screen, "exec-H-two", &["96"]),
        "what was written last",
    );
}

#[test]
fn empty_folder_and_file_target_are_reported() {
    let home = tempfile::tempdir().unwrap();
    let shown = home.path().display();
    let outcome = gputop(["replay"]).arg(home.path()).output().unwrap();
    let message = String::from_utf8(outcome.stderr).unwrap();
    assert_eq!(
        message,
        format!("gputop: no recording in directory {shown}: no file name ends with .gpt.zst\n")
    );
    let file = home.path().join("x");
    fs::write(&file, "").unwrap();
    let outcome = record(&file).args(["gpu1", "gpu2"]).output().unwrap();
    let message = String::from_utf8(outcome.stderr).unwrap();
    assert_eq!(
        message,
        format!(
            "gputop: cannot record to {}: it is a file, but several hosts need a directory. Choose another name\n",
            file.display()
        )
    );
}
