//! Every way of leaving the dashboard restores the terminal, and every kind of terminal works.

use std::fmt::Write as _;
use std::fs;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::fcntl::OFlag;
use nix::libc;
use nix::pty::{grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::fake_machine::{
    Guarded, INTERVAL, RealProcess, child_of, command, dashboard, gputop, on_gpu, wait_until,
};
use crate::support::fake_nvml::FakeNvml;
use crate::support::screen_tables::gpu_shows;
use crate::support::terminal::{Launch, Terminal};

fn wait_overview(terminal: &Terminal) {
    let drawn = |screen: &vt100::Screen| screen.alternate_screen() && gpu_shows(screen, "0", &[]);
    terminal.wait_for(drawn, "the overview");
    assert!(!terminal.is_cooked());
}

/// Checks the exit code, that the terminal is restored, and that nothing of the dashboard is left on it.
#[track_caller]
fn assert_exited_cleanly(terminal: &Terminal, code: u32) {
    assert_eq!(terminal.wait_exit().exit_code(), code);
    terminal.assert_restored();
    assert_eq!(terminal.text().trim(), "");
}

#[test]
fn keys_and_signals_that_end_it_give_the_terminal_back() {
    let fake = FakeNvml::h200s(1, "");
    for key in ["q", "\x03"] {
        let terminal = dashboard(&fake).start();
        wait_overview(&terminal);
        terminal.send(key);
        assert_exited_cleanly(&terminal, 0);
    }
    for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT] {
        let terminal = dashboard(&fake).start();
        wait_overview(&terminal);
        terminal.signal(signal);
        assert_exited_cleanly(&terminal, 128 + signal as u32);
    }
}

/// The dashboard as a job of a shell with job control, which does not change the terminal's modes itself. Each line typed
/// while the job is stopped clears the screen and brings the job to the foreground.
struct Job {
    terminal: Terminal,
    pid: Pid,
}

impl Job {
    /// Starts the line, in which `GPUTOP` is the dashboard. `path` is the chain of program names from the shell to it.
    fn start(fake: &FakeNvml, line: &str, path: &[&str]) -> Self {
        // Not a loop, because bash leaves its loops when a job stops.
        let script = format!(
            "resume() {{
                 jobs %1 >/dev/null 2>&1 || return
                 read -r; printf '\\033[2J\\033[H'; fg >/dev/null; code=$?; resume
             }}
             {line}; code=$?; resume; exit $code"
        );
        let script = script.replace("GPUTOP", &format!("$GPUTOP -i {INTERVAL}"));
        let terminal = Launch::program("bash")
            .args(["--norc", "--noprofile", "-mc", &script])
            .env("GPUTOP", env!("CARGO_BIN_EXE_gputop"))
            .envs(fake.env())
            .size(40, 120)
            .start();
        wait_overview(&terminal);
        let pid = child_of(terminal.pid(), path);
        Self { terminal, pid }
    }

    fn signal(&self, signal: Signal) {
        kill(self.pid, signal).unwrap();
    }

    fn wait_stopped(&self) {
        self.terminal.wait_text("Stopped");
        // In a script, the shell notices the stop of the script first.
        wait_until("the stop", || run_state(self.pid) == Some('T'));
        self.terminal.assert_restored();
    }

    fn resume(&self) {
        self.terminal.send("\n");
        wait_overview(&self.terminal);
    }
}

/// Returns the signals that terminate a process by default, without SIGKILL and without SIGPIPE, which Rust's runtime
/// ignores. The C library keeps the first real-time signals for itself.
fn fatal_signals() -> Vec<libc::c_int> {
    use Signal::*;
    let others =
        [SIGCHLD, SIGCONT, SIGKILL, SIGPIPE, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU, SIGURG, SIGWINCH];
    let standard = (1..32).filter(|number| others.iter().all(|other| *other as i32 != *number));
    standard.chain([libc::SIGRTMIN(), libc::SIGRTMIN() + 5, libc::SIGRTMAX()]).collect()
}

#[test]
fn every_fatal_signal_gives_the_terminal_back_and_ends_it() {
    let fake = FakeNvml::h200s(1, "");
    for signal in fatal_signals() {
        let terminal = dashboard(&fake).start();
        wait_overview(&terminal);
        // nix has no name for real-time signals.
        let pid = terminal.pid().to_string();
        assert!(Command::new("kill").args([format!("-{signal}"), pid]).status().unwrap().success());
        let status = terminal.wait_exit();
        match [libc::SIGHUP, libc::SIGINT, libc::SIGTERM].contains(&signal) {
            true => assert_eq!(status.exit_code(), 128 + signal.cast_unsigned()),
            false => assert!(status.signal().is_some(), "{signal}: {status}"),
        }
        terminal.assert_restored();
        assert_eq!(terminal.text().trim(), "", "{signal}");
    }
}

#[test]
fn fatal_signals_give_the_terminal_back_also_after_a_suspension() {
    let fake = FakeNvml::h200s(1, "");
    let job = Job::start(&fake, "GPUTOP", &["gputop"]);
    job.terminal.send("\x1a");
    job.wait_stopped();
    job.resume();
    job.signal(Signal::SIGSEGV);
    assert_eq!(job.terminal.wait_exit().exit_code(), 128 + Signal::SIGSEGV as u32);
    job.terminal.assert_restored();
}

/// A program with a screen that fails; see `tests/failing_screen`.
fn failing_screen(failure: &str) -> Terminal {
    let gputop = Path::new(env!("CARGO_BIN_EXE_gputop"));
    let program = gputop.with_file_name("examples/failing_screen");
    Launch::program(program).args([failure]).start()
}

/// The standard library reports the overflow after the terminal is restored, and then aborts.
#[test]
fn a_stack_overflow_gives_the_terminal_back_before_it_is_reported() {
    let terminal = failing_screen("overflow");
    let status = terminal.wait_exit();
    assert!(status.signal().is_some(), "{status}");
    terminal.assert_restored();
    assert!(terminal.text().contains("has overflowed its stack"));
}

#[test]
fn keys_that_leave_work_also_while_a_line_is_typed() {
    let fake = FakeNvml::h200s(1, "");
    let job = Job::start(&fake, "GPUTOP", &["gputop"]);
    job.terminal.send("/abc");
    job.terminal.wait_text("filter: abc");
    job.terminal.send("\x1a");
    job.wait_stopped();
    job.resume();
    job.terminal.wait_text("filter: abc");
    job.terminal.send("\x03");
    assert_exited_cleanly(&job.terminal, 0);
}

#[test]
fn a_signal_ends_it_also_on_an_inner_screen_and_under_a_menu() {
    let fake = FakeNvml::h200s(1, "");
    for keys in ["\r", "s", "?", "/abc"] {
        let terminal = dashboard(&fake).start();
        wait_overview(&terminal);
        let before = terminal.text();
        terminal.send(keys);
        terminal.wait_for(|screen| screen.contents() != before, keys);
        terminal.signal(Signal::SIGTERM);
        assert_exited_cleanly(&terminal, 143);
    }
}

/// Returns the kernel's letter for the process's state.
fn run_state(pid: Pid) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

#[test]
fn suspended_it_gives_the_terminal_back_and_takes_it_again() {
    let fake = FakeNvml::new("[[gpu]]\nsm = 10");
    let job = Job::start(&fake, "GPUTOP", &["gputop"]);
    // By key, by the signal that `kill -TSTP` sends, and by key again.
    for (i, by_key) in [true, false, true].into_iter().enumerate() {
        if by_key {
            job.terminal.send("\x1a");
        } else {
            job.signal(Signal::SIGTSTP);
        }
        job.wait_stopped();
        // The window may have another size when it resumes.
        job.terminal.resize(30, 100 + u16::try_from(i).unwrap());
        let sm = (50 + i).to_string();
        fake.replace(&format!("[[gpu]]\nsm = {sm}"));
        job.resume();
        job.terminal.wait_for(|s| gpu_shows(s, "0", &[("SM%", &sm)]), "new figures");
        assert!(job.terminal.screen().hide_cursor());
    }
    job.terminal.send("q");
    assert_exited_cleanly(&job.terminal, 0);
}

/// Ctrl-Z stops the script too. Otherwise the shell would wait for the script, and the script for gputop.
#[test]
fn suspended_in_a_script_it_returns_to_the_shell() {
    let fake = FakeNvml::h200s(1, "");
    let job = Job::start(&fake, "sh -c 'GPUTOP; exit $?'", &["sh", "gputop"]);
    for _ in 0..2 {
        job.terminal.send("\x1a");
        job.wait_stopped();
        job.resume();
    }
    job.terminal.send("q");
    assert_exited_cleanly(&job.terminal, 0);
}

/// A session leader (`ssh -t HOST gputop`) has no shell that could continue it, and a program that was started with the
/// signal ignored does not stop either.
#[test]
fn without_a_shell_that_could_continue_it_it_does_not_stop() {
    let fake = FakeNvml::h200s(1, "");
    let ignored = format!("trap '' TSTP; exec $GPUTOP -i {INTERVAL}");
    let ignored = Launch::shell(&ignored).env("GPUTOP", env!("CARGO_BIN_EXE_gputop"));
    for (launch, is_ignored) in
        [(dashboard(&fake), false), (ignored.envs(fake.env()).size(40, 120), true)]
    {
        let terminal = launch.start();
        wait_overview(&terminal);
        let entries = |terminal: &Terminal| {
            let raw = terminal.raw();
            raw.windows(8).filter(|bytes| bytes == b"\x1b[?1049h").count()
        };
        for by_key in [true, false, true] {
            let before = entries(&terminal);
            if by_key {
                terminal.send("\x1a");
            } else {
                terminal.signal(Signal::SIGTSTP);
            }
            if !is_ignored {
                wait_until("the screen to be taken again", || entries(&terminal) > before);
            }
        }
        // It still handles keys.
        terminal.send("/abc");
        terminal.wait_text("filter: abc");
        wait_overview(&terminal);
        assert_eq!(entries(&terminal), if is_ignored { 1 } else { 4 });
        terminal.send("\x03");
        assert_exited_cleanly(&terminal, 0);
    }
}

#[test]
fn the_screen_is_drawn_anew_on_request() {
    let fake = FakeNvml::h200s(1, "");
    let terminal = dashboard(&fake).start();
    wait_overview(&terminal);
    let before = terminal.bytes_written();
    terminal.send("\x0c");
    let whole = |terminal: &Terminal| {
        let raw = terminal.raw();
        let text = String::from_utf8_lossy(&raw[before..]).into_owned();
        text.contains("\x1b[2J") && text.contains("1xH200")
    };
    wait_until("the whole screen once more", || whole(&terminal));
    wait_overview(&terminal);
    terminal.send("q");
    assert_exited_cleanly(&terminal, 0);
}

#[test]
fn a_panic_gives_the_terminal_back_before_it_is_reported() {
    let terminal = failing_screen("main");
    assert_eq!(terminal.wait_exit().exit_code(), 101);
    terminal.assert_restored();
    // Printed on the main screen, where it can be read, and with proper line ends.
    terminal.wait_text("a test asked for this panic");
    let raw = String::from_utf8_lossy(&terminal.raw()).into_owned();
    let (left, message) = (raw.find("\x1b[?1049l"), raw.find("a test asked for"));
    assert!(left.is_some() && left < message);
}

#[test]
fn a_panic_beside_the_loop_leaves_the_screen_alone() {
    let terminal = failing_screen("thread");
    terminal.wait_text("still here");
    let raw = String::from_utf8_lossy(&terminal.raw()).into_owned();
    assert!(!raw.contains("a test asked for"), "it was written over the screen");
    terminal.send("\x03");
    assert_exited_cleanly(&terminal, 0);
}

#[test]
fn sizes_down_to_nothing_are_survived() {
    let process = RealProcess::start("train.py");
    let fake = FakeNvml::new(&("[[gpu]]\nsm = 10\n".to_owned() + &on_gpu(0, &process, "")));
    for (rows, cols) in [(0, 0), (1, 1), (24, 1), (2, 3)] {
        let terminal = dashboard(&fake).size(rows, cols).start();
        terminal.wait_for(vt100::Screen::alternate_screen, "the screen to be taken");
        // Every screen and menu is drawn in a window without room. Nothing is visible to wait for.
        for keys in ["", "?", "qs", "q\r", "\t", "qG\r", "q/", "\r"] {
            terminal.send(keys);
            let before = fake.calls().of("memory");
            fake.wait_calls("a tick", |calls| calls.of("memory") > before);
        }
        terminal.resize(24, 80);
        wait_overview(&terminal);
        terminal.resize(rows.max(1), cols.max(1));
        terminal.send("q");
        assert_eq!(terminal.wait_exit().exit_code(), 0, "{cols}x{rows}");
        terminal.assert_restored();
    }
}

/// Returns the process's peak resident memory, in KiB.
fn peak_resident_kib(pid: u32) -> u64 {
    let process = procfs::process::Process::new(pid.cast_signed()).unwrap();
    process.status().unwrap().vmhwm.unwrap()
}

#[test]
fn a_size_beyond_any_screen_costs_no_more_than_a_large_one() {
    let fake = FakeNvml::h200s(2, "");
    let terminal = dashboard(&fake).start();
    wait_overview(&terminal);
    for (rows, cols) in [(u16::MAX, u16::MAX), (u16::MAX, 1), (1, u16::MAX)] {
        terminal.claim(rows, cols);
        for keys in ["?", "q", "\r", "q"] {
            terminal.send(keys);
            let before = fake.calls().of("memory");
            fake.wait_calls("a tick", |calls| calls.of("memory") > before);
        }
    }
    let most = peak_resident_kib(terminal.pid());
    assert!(most < 300 << 10, "{most} KiB");
    terminal.resize(24, 80);
    wait_overview(&terminal);
    terminal.send("q");
    assert_exited_cleanly(&terminal, 0);
}

#[test]
fn unknown_terminal_gets_no_colour() {
    let process = RealProcess::start("train.py");
    let fake = busy_machine(&process);
    for term in ["dumb", "unknown", "", "xterm-of-the-future"] {
        let terminal = dashboard(&fake).env("TERM", term).start();
        wait_overview(&terminal);
        terminal.send("q");
        assert_exited_cleanly(&terminal, 0);
    }
}

#[test]
fn a_burst_of_a_hundred_sizes_ends_in_the_last_one() {
    let fake = FakeNvml::h200s(3, "");
    let terminal = dashboard(&fake).start();
    wait_overview(&terminal);
    for i in 0..100_u16 {
        terminal.resize(1 + i * 7 % 60, 1 + i * 37 % 200);
    }
    terminal.resize(24, 90);
    let whole = |screen: &vt100::Screen| {
        let text = screen.contents();
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        gpu_shows(screen, "2", &[])
            && lines.len() == 24
            && lines[0].chars().count() == 89
            && lines[0].starts_with(' ')
            && lines[23].ends_with("q quit")
    };
    terminal.wait_for(whole, "a whole screen of 90x24");
    terminal.send("q");
    assert_eq!(terminal.wait_exit().exit_code(), 0);
    terminal.assert_restored();
}

/// Runs gputop from a shell that can close its streams.
fn behind_a_shell(fake: &FakeNvml, line: &str) -> Launch {
    let line = line.replace("GPUTOP", &format!("{} -i {INTERVAL}", env!("CARGO_BIN_EXE_gputop")));
    Launch::shell(&line).envs(fake.env()).size(40, 120)
}

#[test]
fn without_an_input_of_its_own_it_asks_the_terminal_itself() {
    let fake = FakeNvml::h200s(1, "");
    for line in ["exec GPUTOP </dev/null", "exec GPUTOP <&-"] {
        let terminal = behind_a_shell(&fake, line).start();
        wait_overview(&terminal);
        terminal.send("q");
        assert_exited_cleanly(&terminal, 0);
    }
}

#[test]
fn without_any_terminal_to_ask_it_says_so_and_leaves() {
    let fake = FakeNvml::h200s(1, "");
    let terminal = behind_a_shell(&fake, "setsid -w GPUTOP </dev/null; echo code $?").start();
    assert_eq!(terminal.wait_exit().exit_code(), 0);
    terminal.assert_restored();
    let text = terminal.text();
    assert!(text.contains("code 2"), "{text}");
    assert!(text.starts_with("gputop: "), "{text}");
}

/// The window is closed: no more input, output fails, and a SIGHUP arrives.
#[test]
fn a_terminal_that_vanishes_ends_it() {
    let fake = FakeNvml::h200s(1, "");
    // Set close-on-exec from the start; otherwise a process of another test would hold it open.
    let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let mut master = posix_openpt(flags).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname_r(&master).unwrap();
    let open = || {
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).custom_flags(OFlag::O_NOCTTY.bits());
        options.open(&name).unwrap()
    };
    let slave = open();
    let size = ["-F", &name, "rows", "24", "cols", "80"];
    assert!(Command::new("stty").args(size).status().unwrap().success());
    let child = Command::new("setsid")
        .args(["-c", env!("CARGO_BIN_EXE_gputop"), "-i", INTERVAL])
        .envs(fake.env())
        .env("TERM", "xterm-256color")
        .stdin(open())
        .stdout(open())
        .stderr(open())
        .spawn();
    let mut child = Guarded(child.unwrap());
    drop(slave);
    let (mut seen, mut piece) = (Vec::new(), [0; 4096]);
    while !String::from_utf8_lossy(&seen).contains("1xH200") {
        let n = master.read(&mut piece).unwrap();
        seen.extend_from_slice(&piece[..n]);
    }
    drop(master);
    let mut status = None;
    wait_until("the end", || {
        status = child.0.try_wait().unwrap();
        status.is_some()
    });
    let code = status.unwrap().code();
    assert!(matches!(code, Some(0 | 129)), "{code:?}");
}

/// gputop without a terminal, writing to a pipe without a reader.
#[test]
fn closed_stdout_is_reported_on_stderr() {
    let fake = FakeNvml::h200s(1, "");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let out = command(&fake, [""; 0]).stdout(writer).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(out.status.code(), Some(2));
    assert_eq!(
        String::from_utf8(out.stderr).unwrap(),
        "gputop: stdout is not a terminal, so the dashboard cannot start. Use `gputop once` for one sample, or `gputop record` for a recording\n"
    );
}

/// Returns the parameters of every `CSI … m` in the output.
fn styles(raw: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(raw).into_owned();
    text.split("\x1b[")
        .skip(1)
        .filter_map(|piece| {
            let end = piece.find(|c: char| c.is_ascii_alphabetic())?;
            (piece.as_bytes()[end] == b'm').then(|| piece[..end].to_owned())
        })
        .collect()
}

/// Visits every screen, so that every colour would appear in the output.
fn visit_everything(terminal: &Terminal) {
    wait_overview(terminal);
    for (key, text) in [
        ("?", "Help: Overview"),
        ("q", "no answer"),
        ("s", "Sort by"),
        ("q", "Enter open"),
        ("/", "filter:"),
        ("zzz", "No process matches"),
        ("\x7f\x7f\x7f\r", "train"),
        ("\r", "Tab scrolls"),
        ("\r", "On the GPU"),
        ("q", "Tab scrolls"),
        ("q", "Enter open"),
        ("p", "paused"),
        ("p", "live"),
    ] {
        terminal.send(key);
        if text != "no answer" {
            terminal.wait_text(text);
        }
    }
    terminal.send("\x03");
    assert_eq!(terminal.wait_exit().exit_code(), 0);
    terminal.assert_restored();
}

fn busy_machine(process: &RealProcess) -> FakeNvml {
    let gpus = "[[gpu]]\nsm = 90\ncontext = \"3 GiB\"\necc_uncorrected = 2\ntemperature = 88\n\
        throttle = [\"hw_thermal\"]\npcie_width = 4\n[[gpu]]\nhang = [\"memory\"]\n";
    FakeNvml::new(&(gpus.to_owned() + &on_gpu(0, process, "used = \"50 GiB\"\nsm = 80")))
}

#[test]
fn without_colour_only_weight_and_reversal_are_used() {
    let process = RealProcess::start("train.py");
    let fake = busy_machine(&process);
    for launch in [
        dashboard(&fake).env("NO_COLOR", "1").env("COLORTERM", "truecolor"),
        dashboard(&fake).env("TERM", "dumb"),
    ] {
        let terminal = launch.start();
        visit_everything(&terminal);
        let styles = styles(&terminal.raw());
        assert!(styles.iter().any(|s| s == "7"), "nothing is reversed");
        // Reset, bold, reverse, their ends, and ends of colours that never started.
        let plain = ["", "0", "1", "7", "22", "27", "39", "49", "59", "39;49"];
        let coloured: Vec<_> = styles.iter().filter(|s| !plain.contains(&s.as_str())).collect();
        assert!(coloured.is_empty(), "{coloured:?}");
    }
    // The same check finds colours where there are some.
    let terminal = dashboard(&fake).start();
    visit_everything(&terminal);
    assert!(styles(&terminal.raw()).iter().any(|s| s.starts_with("38;5;")));
}

#[test]
fn in_an_ascii_locale_every_byte_is_ascii() {
    let name = format!("train täglich 数据集 ✓ {}", "x".repeat(5_000));
    let process = RealProcess::with(&name, |command| {
        command.env("CUDA_NAME", "größer");
    });
    let fake = busy_machine(&process);
    for locale in ["C", "POSIX"] {
        let terminal = dashboard(&fake).env("LC_ALL", locale).start();
        visit_everything(&terminal);
        let raw = terminal.raw();
        let mut foreign = String::new();
        for chunk in raw.split(|byte| byte.is_ascii()).filter(|c| !c.is_empty()) {
            let _ = write!(foreign, "{} ", String::from_utf8_lossy(chunk));
        }
        assert_eq!(foreign, "");
    }
}

#[test]
fn without_a_driver_the_recording_plays_under_the_precise_reason() {
    let no_library = [("GPUTOP_NVML", "/nowhere/libnvidia-ml.so.1".into())].to_vec();
    let mismatch = FakeNvml::new("[driver]\ninit = \"mismatch\"");
    for variables in [no_library, mismatch.env(), FakeNvml::new("").env()] {
        let doctor = gputop(["doctor", "--json"]).envs(variables.clone()).output().unwrap();
        let report: serde_json::Value = serde_json::from_slice(&doctor.stdout).unwrap();
        let reason = report["checks"][0]["found"].as_str().unwrap();

        let terminal = Launch::gputop().envs(variables.clone()).size(40, 160).start();
        terminal.wait_text("REPLAY demo");
        // Wrapped between words where the line is too narrow.
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        terminal.wait_for(|s| words(&s.contents()).contains(&words(reason)), reason);
        terminal.wait_text("`gputop doctor`");
        // Every screen says that it is not of this machine. Its status line is for what happens in the recording.
        terminal.wait_for(|s| gpu_shows(s, "0", &[]), "the recording's GPU");
        terminal.send("\r");
        terminal.wait_text("Tab scrolls");
        terminal.wait_text("REPLAY demo (no GPU here)");
        terminal.send("\x03");
        assert_exited_cleanly(&terminal, 0);

        // Without a terminal, gputop prints the same reason and nothing else.
        let out = gputop([""; 0]).envs(variables).output().unwrap();
        assert_eq!(out.status.code(), Some(1));
        assert_eq!(String::from_utf8(out.stdout).unwrap(), "");
        assert_eq!(String::from_utf8(out.stderr).unwrap(), format!("gputop: {reason}\n"));
    }
}

/// Over a slow link, an unchanged screen must cost little: the clock, the host's values, and one column of each chart.
#[test]
fn a_frame_of_an_unchanged_overview_is_small() {
    let processes: Vec<RealProcess> =
        (0..8).map(|i| RealProcess::start(&format!("rank{i}"))).collect();
    let scenario = processes.iter().fold("[[gpu]]\nsm = 90\n".repeat(8), |text, process| {
        text + &on_gpu(0, process, "used = \"9 GiB\"\nsm = 11")
    });
    let fake = FakeNvml::new(&scenario);
    let terminal = dashboard(&fake).size(24, 80).start();
    terminal.wait_for(
        |s| crate::support::screen_tables::processes(s).iter().any(|row| row.cell("SM%") == "11"),
        "the figures that come last",
    );
    let settled = terminal.bytes_written();
    let before = fake.calls().on("memory", 0);
    fake.wait_calls("twelve ticks", |c| c.on("memory", 0) >= before + 12);
    let raw = terminal.raw();
    let text = String::from_utf8_lossy(&raw[settled..]).into_owned();
    let frames: Vec<&str> = text.split("\x1b[?2026h").skip(1).collect();
    assert!(frames.len() >= 8, "{}", frames.len());
    let largest = frames.iter().map(|frame| frame.len()).max().unwrap();
    assert!(largest <= 4_096, "{largest} bytes");
}
