//! The limit on open files: the dashboard works with far more processes than the limit allows for, and gputop's
//! children get the original limit back.

use std::fs;
use std::process::Stdio;

use crate::support::executable;
use crate::support::fake_machine::{INTERVAL, RealProcess, gputop, is_host, on_gpu, wait_until};
use crate::support::fake_nvml::FakeNvml;
use crate::support::terminal::Launch;

const HARD_LIMIT: usize = 256;
const PROCESSES: usize = 300;

fn open_files(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

#[test]
fn the_dashboard_works_where_the_limit_is_lower_than_the_number_of_processes() {
    if !is_host() {
        return;
    }
    let processes: Vec<_> = (0..PROCESSES).map(|_| RealProcess::start("train.py")).collect();
    let lines = processes.iter().map(|process| on_gpu(0, process, "used = \"100 MiB\""));
    let fake = FakeNvml::new(&("[[gpu]]\n".to_owned() + &lines.collect::<String>()));
    let script = format!("ulimit -n {HARD_LIMIT}; exec \"$0\" \"$@\"");
    let terminal = Launch::program("sh")
        .args(["-c", &script, env!("CARGO_BIN_EXE_gputop")])
        .args(["--interval", INTERVAL])
        .envs(fake.env())
        .size(40, 120)
        .start();
    terminal.wait_text(&format!("open-file limit {HARD_LIMIT} reached: "));
    // A quarter of the limit stays free for the terminal and the driver.
    // A file of /proc that is being read at this instant may be one more.
    wait_until("a quarter of the limit to be free", || {
        open_files(terminal.pid()) < HARD_LIMIT / 4 * 3
    });
    terminal.send("?");
    terminal.wait_text("Help: Overview");
    terminal.send("\x1b");
    let is_closed = |screen: &vt100::Screen| !screen.contents().contains("Help: Overview");
    terminal.wait_for(is_closed, "the help to close");
    terminal.send("\x03");
    assert_eq!(terminal.wait_exit().exit_code(), 0);
    terminal.assert_restored();
}

#[test]
fn a_child_gets_the_original_limit_back() {
    let folder = tempfile::tempdir().unwrap();
    let (ssh, seen) = (folder.path().join("ssh"), folder.path().join("seen"));
    let script = format!(
        "#!/bin/sh\nulimit -Sn >> '{}'\ngrep 'open files' /proc/$PPID/limits >> '{}'\nexit 255\n",
        seen.display(),
        seen.display()
    );
    executable::write(&ssh, &script);
    let path = std::env::var("PATH").unwrap();
    let recording = folder.path().join("node1.gputop");
    let args = ["record", "node1", "-o", recording.to_str().unwrap()];
    let mut shell = std::process::Command::new("sh");
    let gputop = gputop(args);
    shell
        .args(["-c", "ulimit -Sn 300; exec \"$0\" \"$@\""])
        .arg(gputop.get_program())
        .args(gputop.get_args())
        .env("PATH", format!("{}:{path}", folder.path().display()))
        .env("XDG_STATE_HOME", folder.path())
        .env("XDG_CONFIG_HOME", "/dev/null")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = crate::support::fake_machine::Guarded(shell.spawn().unwrap());
    let read = || fs::read_to_string(&seen).unwrap_or_default();
    wait_until("ssh to be started", || read().contains("open files"));
    let text = read();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("300"), "{text}");
    let own: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
    let (soft, hard) = (own[3], own[4]);
    let hard: u64 = hard.parse().unwrap_or(u64::MAX);
    assert_eq!(soft.parse::<u64>().unwrap(), hard.min(65_536), "{text}");
    child.0.kill().unwrap();
}
