//! gputop in a real tmux, where people keep it open: with tmux's defaults, and with `set -g mouse on`.
//!
//! Each test has its own server, on a socket in a temporary directory. The server is killed with the test.
// The tests print their measurements and what they skipped.
#![allow(clippy::print_stdout)]

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::deadline::DEADLINE;
use crate::support::fake_machine::{INTERVAL, RealProcess, has, on_gpu};
use crate::support::fake_nvml::FakeNvml;
use crate::support::terminal::{Launch, Terminal};

/// Interval for polling a pane, since tmux cannot announce changes.
const PAUSE: Duration = Duration::from_millis(20);

/// Common configurations: none, and the one line that almost everybody adds.
const CONFIGURATIONS: [&str; 2] = ["", "set -g mouse on\n"];

/// A shell's prompt in a pane.
const PROMPT: &str = "ready$";

/// A tmux server with one pane, in which a shell waits.
struct Tmux {
    dir: TempDir,
    fake: FakeNvml,
    /// Runs on the first GPU.
    process: RealProcess,
}

impl Tmux {
    /// Returns `None` if tmux is missing and not required.
    fn start(configuration: &str) -> Option<Self> {
        if !has("tmux") {
            return None;
        }
        let process = RealProcess::start("train.py");
        let busy = on_gpu(0, &process, "used = \"100 GiB\"");
        let fake = FakeNvml::new(&format!("[[gpu]]\nsm = 97\n[[gpu]]\n{busy}"));
        let dir = tempfile::tempdir().unwrap();
        // Tests type faster than a person: tmux would take two keys within a millisecond for pasted text, not for a command.
        let configuration = format!("set -g assume-paste-time 0\n{configuration}");
        std::fs::write(dir.path().join("tmux.conf"), configuration).unwrap();
        let tmux = Self { dir, fake, process };
        let shell = format!("env PS1='{PROMPT} ' sh");
        let session = ["new-session", "-d", "-x", "120", "-y", "40", &shell];
        let started = tmux.command(&session).envs(tmux.fake.env()).output();
        let started = started.unwrap();
        assert!(started.status.success(), "{started:?}");
        tmux.wait_for(|screen| screen.contains(PROMPT), "the shell");
        Some(tmux)
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("tmux");
        command.arg("-S").arg(self.socket());
        command.arg("-f").arg(self.dir.path().join("tmux.conf"));
        command.args(args).current_dir(self.dir.path());
        for name in ["TMUX", "TMUX_PANE", "COLORTERM", "NO_COLOR", "XDG_CONFIG_HOME", "ENV"] {
            command.env_remove(name);
        }
        command.env("LC_ALL", "C.UTF-8").env("TZ", "UTC");
        command.env("HOME", self.dir.path()).env("TERM", "xterm-256color");
        command
    }

    #[track_caller]
    fn run(&self, args: &[&str]) -> String {
        let Output { status, stdout, stderr } = self.command(args).output().unwrap();
        let message = String::from_utf8_lossy(&stderr);
        assert!(status.success(), "tmux {args:?}: {message}");
        String::from_utf8(stdout).unwrap()
    }

    fn screen(&self) -> String {
        self.run(&["capture-pane", "-p"])
    }

    #[track_caller]
    fn keys(&self, keys: &[&str]) {
        self.run(&[&["send-keys"], keys].concat());
    }

    #[track_caller]
    fn wait_for(&self, wanted: impl Fn(&str) -> bool, what: &str) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let screen = self.screen();
            if wanted(&screen) {
                return;
            }
            assert!(Instant::now() < deadline, "waited for {what}; the pane:\n{screen}");
            thread::sleep(PAUSE);
        }
    }

    /// Runs gputop in the shell, and waits until it shows the process.
    fn gputop(&self) {
        let program = env!("CARGO_BIN_EXE_gputop");
        self.keys(&["-l", &format!("clear; {program} --interval {INTERVAL}")]);
        self.keys(&["Enter"]);
        self.wait_for(|screen| screen.contains("train.py"), "the dashboard");
    }

    /// Returns tmux's flags for the pane.
    fn flags(&self) -> String {
        let flags = "alt #{alternate_on} cursor #{cursor_flag} mouse #{mouse_any_flag} keys #{keypad_cursor_flag}";
        self.run(&["display-message", "-p", flags]).trim().to_owned()
    }

    /// Quits gputop, and checks that the shell is restored.
    #[track_caller]
    fn leave(&self) {
        self.keys(&["q"]);
        self.wait_for(|screen| screen.starts_with(PROMPT), "the prompt at the top again");
        assert_eq!(self.flags(), "alt 0 cursor 1 mouse 0 keys 0");
        // Lines are edited and echoed again.
        self.keys(&["-l", "echo $((6 * 7))x"]);
        self.keys(&["BSpace", "Enter"]);
        self.wait_for(|screen| screen.contains("\n42\n"), "the shell's answer");
    }

    /// Attaches a terminal to the server: 120x40 plus the status line.
    fn attach(&self) -> Terminal {
        let socket = self.socket();
        let args = ["-S", socket.to_str().unwrap(), "attach-session"];
        let terminal = Launch::program("tmux").args(args).size(41, 120).start();
        terminal.wait_text("train.py");
        terminal
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _ = self.command(&["kill-server"]).output();
    }
}

/// Returns true if no line is wider than the pane, and all parts for a pane of this size are present.
fn is_drawn(screen: &str, width: usize, height: usize) -> bool {
    let lines: Vec<&str> = screen.lines().collect();
    let has = |word: &str| lines.iter().any(|line| line.contains(word));
    let parts: &[&str] = match (width, height) {
        (40, 6) => &["2xH200", "live", "0 ▇"],
        _ => &["2xH200", "live 200ms", "USED", "COMMAND", "train.py", "q quit"],
    };
    let fits = lines.iter().all(|line| line.chars().count() <= width);
    let last = lines.get(height - 1).is_some_and(|line| !line.trim().is_empty());
    lines.len() == height && fits && last && parts.iter().all(|part| has(part))
}

#[test]
fn it_draws_at_every_size_and_follows_the_panes_size() {
    for configuration in CONFIGURATIONS {
        let Some(tmux) = Tmux::start(configuration) else { return };
        tmux.gputop();
        for (width, height) in [(120, 40), (80, 24), (40, 6), (120, 40)] {
            let (x, y) = (width.to_string(), height.to_string());
            tmux.run(&["resize-window", "-x", &x, "-y", &y]);
            let what = format!("the dashboard at {width}x{height}");
            tmux.wait_for(|screen| is_drawn(screen, width, height), &what);
        }
        tmux.leave();
    }
}

#[test]
fn dashboard_survives_tmux_detach() {
    let Some(tmux) = Tmux::start("") else { return };
    tmux.gputop();
    let terminal = tmux.attach();
    terminal.send("\x02d");
    assert_eq!(terminal.wait_exit().exit_code(), 0);
    terminal.assert_restored();
    // gputop kept running: a change made while detached is on the screen after attaching again.
    let more = on_gpu(0, &tmux.process, "used = \"33 GiB\"");
    tmux.fake.replace(&format!("[[gpu]]\n[[gpu]]\n{more}"));
    tmux.wait_for(|screen| screen.contains(" 33.0 "), "the new figure");
    let terminal = tmux.attach();
    terminal.wait_text("33.0");
    // The pane follows a terminal of another size.
    terminal.resize(25, 80);
    terminal.wait_for(|screen| is_drawn(&without_status(screen), 80, 24), "the dashboard at 80x24");
    terminal.send("\x02d");
    terminal.wait_exit();
    tmux.leave();
}

/// Returns the pane of an attached terminal, without tmux's status line.
fn without_status(screen: &vt100::Screen) -> String {
    let (height, width) = screen.size();
    let others = usize::from(height.get()) - 1;
    let mut pane = String::new();
    // `contents` joins rows that tmux filled to their end.
    for row in screen.rows(0, width.get()).take(others) {
        let _ = writeln!(pane, "{row}");
    }
    pane
}

#[test]
fn copy_fills_the_tmux_buffer() {
    for configuration in CONFIGURATIONS {
        let Some(tmux) = Tmux::start(configuration) else { return };
        tmux.gputop();
        tmux.keys(&["y"]);
        tmux.wait_for(|screen| screen.contains("sent to tmux"), "that it was sent");
        let gpu = tmux.run(&["show-buffer"]);
        assert!(gpu.starts_with("GPU 0  NVIDIA H200  GPU-"), "{gpu}");
        tmux.keys(&["Tab", "y"]);
        let process = format!("{} train.py", tmux.process.pid());
        let arrived = |_: &str| tmux.run(&["show-buffer"]) == process;
        tmux.wait_for(arrived, &format!("{process} in the buffer"));
        tmux.keys(&["Enter"]);
        tmux.wait_for(|screen| screen.contains("On the GPU"), "the process's screen");
        tmux.keys(&["q"]);
        tmux.leave();
    }
}

#[test]
fn the_mouse_of_a_terminal_in_front_of_tmux_reaches_it() {
    let Some(tmux) = Tmux::start(CONFIGURATIONS[1]) else { return };
    tmux.gputop();
    let terminal = tmux.attach();
    let is_on = |words: &'static str| {
        move |screen: &vt100::Screen| {
            let text = screen.contents();
            text.lines().any(|line| line.starts_with('▸') && line.contains(words))
        }
    };
    terminal.wait_for(is_on("  0 "), "the cursor on GPU 0");
    terminal.send("\x1b[<65;10;4M");
    terminal.wait_for(is_on("  1 "), "the cursor on GPU 1, by the wheel");
    let row = terminal.text().lines().position(|line| line.contains("train.py"));
    let press = format!("\x1b[<0;10;{0}M\x1b[<0;10;{0}m", row.unwrap() + 1);
    terminal.send(&press);
    terminal.wait_for(is_on("train.py"), "the cursor on the process, by a press");
    terminal.send("\x02d");
    terminal.wait_exit();
    tmux.leave();
}

#[test]
fn doctor_lists_tmux_limitations() {
    let Some(tmux) = Tmux::start("set -g status off\n") else { return };
    let program = env!("CARGO_BIN_EXE_gputop");
    tmux.keys(&["-l", &format!("clear; {program} doctor | grep -A3 clipboard")]);
    tmux.keys(&["Enter"]);
    tmux.wait_for(|screen| screen.contains("set-clipboard"), "the option");
}

#[test]
fn colours_are_those_that_the_panes_terminal_has() {
    for name in ["tmux-256color", "screen"] {
        let configuration = format!("set -g default-terminal {name}\n");
        let Some(tmux) = Tmux::start(&configuration) else { return };
        tmux.gputop();
        let screen = tmux.run(&["capture-pane", "-p", "-e"]);
        // Only the 16 colours that the terminal's owner can choose.
        let numbers = screen.split("[38;5;").skip(1);
        let numbers = numbers.filter_map(|rest| rest.split('m').next()?.parse::<u32>().ok());
        let numbers: Vec<u32> = numbers.collect();
        let all_named = numbers.iter().all(|number| *number < 16);
        let colours = numbers.len() > 10 && all_named && !screen.contains("[38;2;");
        assert!(colours, "{name}:\n{screen}");
        let plain = tmux.screen();
        assert!(is_drawn(&plain, 120, 40), "{name}:\n{plain}");
        tmux.leave();
    }
}
