//! `gputop line`: one line for a status bar, and its display in tmux.
#![allow(clippy::print_stdout)]

use std::process::Command;
use std::time::Instant;

use crate::support::fake_machine::{RealProcess, gputop, has, is_host, on_gpu, run};
use crate::support::fake_nvml::FakeNvml;
use crate::support::terminal::Launch;

const BUSY: &str = "[[gpu]]\nreserved = \"1 GiB\"\nused = \"64 GiB\"\ncontext = \"63 GiB\"\nsm = 97\ntemperature = 67\n";

#[test]
fn line_summarises_gpus_in_ascii() {
    let process = RealProcess::start("train.py");
    let on = on_gpu(0, &process, "used = \"62 GiB\"");
    let fake = FakeNvml::new(&("[[gpu]]\nsm = 97\ntemperature = 67\n".repeat(8) + &on));
    let outcome = run(&fake, ["line"]);
    assert_eq!((outcome.code, &*outcome.err), (Some(0), ""));
    if is_host() {
        assert_eq!(outcome.out, "mem 45 0 0 0 0 0 0 0%  sm 97%  67C\n");
    }
    let one = run(&fake, ["line", "--gpu", "3"]);
    assert_eq!(one.out, "3 0.6/140G 0% sm 97% 67C\n");
    let narrow = run(&fake, ["line", "--width", "8"]);
    assert_eq!(narrow.out.len(), 9, "{narrow:?}");
    run(&fake, ["line", "--gpu", "8"])
        .assert_refused(2, "--gpu 8: no such GPU; this host has GPUs 0 to 7");
}

#[test]
fn line_contains_gpu_problems() {
    let fake = FakeNvml::new(
        "[[gpu]]\nerrors = { temperature = \"gpu_is_lost\", memory = \"gpu_is_lost\" }\n[[gpu]]\n",
    );
    let outcome = run(&fake, ["line"]);
    assert!(outcome.out.contains("LOST"), "{outcome:?}");
    assert_eq!(outcome.code, Some(0));
}

#[test]
fn line_without_driver_prints_the_reason_and_exits_1() {
    let output =
        gputop(["line"]).env("GPUTOP_NVML", "/nonexistent/libnvidia-ml.so.1").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(output.stdout, b"");
    assert!(output.stderr.starts_with(b"gputop: "), "{output:?}");
}

#[test]
#[ignore = "a figure: run it with --release --nocapture"]
fn how_long_a_line_takes() {
    let fake = FakeNvml::new(&BUSY.repeat(8));
    let mut times: Vec<_> = (0..21)
        .map(|_| {
            let start = Instant::now();
            assert_eq!(run(&fake, ["line"]).code, Some(0));
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    println!("line of 8 GPUs: median {:?}, worst {:?}", times[10], times[20]);
}

/// A tmux server for this test, killed when this is dropped.
struct Server(tempfile::TempDir);

impl Server {
    fn socket(&self) -> String {
        self.0.path().join("tmux").to_str().unwrap().to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = Command::new("tmux").args(["-S", &self.socket(), "kill-server"]).output();
    }
}

#[test]
fn tmux_shows_the_line_in_status_right() {
    if !has("tmux") {
        return;
    }
    let fake = FakeNvml::new("[[gpu]]\nsm = 97\ntemperature = 67\n");
    let server = Server(tempfile::tempdir().unwrap());
    let line = format!("set -g status-right '#({} line)'", env!("CARGO_BIN_EXE_gputop"));
    let config = server.0.path().join("conf");
    let config_text = format!("{line}\nset -g status-right-length 60\nset -g status-interval 1\n");
    std::fs::write(&config, config_text).unwrap();
    let terminal = Launch::program("tmux")
        .args(["-S", &server.socket(), "-f", config.to_str().unwrap()])
        .args(["new-session", "cat"])
        .envs(fake.env())
        .size(10, 100)
        .start();
    let at_the_right = |screen: &vt100::Screen| {
        let text = screen.contents();
        text.lines()
            .last()
            .is_some_and(|line| line.trim_end().ends_with("0 0.6/140G 0% sm 97% 67C"))
    };
    terminal.wait_for(at_the_right, "the line in tmux's status");
    fake.replace("[[gpu]]\nsm = 3\ntemperature = 41\n");
    terminal.wait_text("sm 3% 41C");
}
