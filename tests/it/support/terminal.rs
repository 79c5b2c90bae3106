//! A terminal for tests: a program on a pty, with its output parsed into a screen as it arrives.
//!
//! Tests wait only for conditions. The reader wakes the test after each piece of output, and a wait that times out
//! fails and prints the screen.
#![allow(dead_code)]

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::num::NonZeroU16;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use nix::libc;
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use portable_pty::{Child, CommandBuilder, ExitStatus, MasterPty, PtySize, native_pty_system};
use tempfile::TempDir;

use super::deadline::DEADLINE;

/// A program about to be started on a terminal.
pub struct Launch {
    command: CommandBuilder,
    rows: u16,
    cols: u16,
}

impl Launch {
    /// The product itself.
    pub fn gputop() -> Self {
        Self::program(env!("CARGO_BIN_EXE_gputop"))
    }

    /// Uses the environment of a plain 256-colour terminal, whatever runs the tests.
    pub fn program(program: impl AsRef<OsStr>) -> Self {
        let mut command = CommandBuilder::new(program);
        for name in
            ["NO_COLOR", "COLORTERM", "TMUX", "STY", "COLUMNS", "LINES", "LC_ALL", "LC_CTYPE"]
        {
            command.env_remove(name);
        }
        for name in ["XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"] {
            command.env_remove(name);
        }
        // The backtrace of a panic would push the expected text off the screen.
        command.env("RUST_BACKTRACE", "0");
        command.env("TERM", "xterm-256color");
        command.env("LANG", "C.UTF-8");
        Self { command, rows: 24, cols: 80 }
    }

    pub fn shell(script: &str) -> Self {
        Self::program("sh").args(["-c", script])
    }

    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.command.args(args);
        self
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Sets several variables, such as those of `FakeNvml::env`.
    pub fn envs(mut self, variables: impl IntoIterator<Item = (&'static str, OsString)>) -> Self {
        for (name, value) in variables {
            self.command.env(name, value);
        }
        self
    }

    pub fn size(mut self, rows: u16, cols: u16) -> Self {
        (self.rows, self.cols) = (rows, cols);
        self
    }

    /// Starts the program, with an empty home directory unless the environment names one.
    pub fn start(mut self) -> Terminal {
        let home = tempfile::tempdir().unwrap();
        if self.command.get_env("HOME") == std::env::var_os("HOME").as_deref() {
            self.command.env("HOME", home.path());
        }
        let size = size(self.rows, self.cols);
        let pty = native_pty_system().openpty(size).unwrap();
        let started = Instant::now();
        let child = pty.slave.spawn_command(self.command).unwrap();
        // Only the child now holds the slave, so the output ends when the child exits.
        drop(pty.slave);
        Terminal::new(pty.master, child, started, (self.rows, self.cols), home)
    }
}

fn size(rows: u16, cols: u16) -> PtySize {
    PtySize { rows, cols, pixel_width: 0, pixel_height: 0 }
}

/// The kernel may report a size of 0, but the parsed screen needs at least one cell.
fn positive(n: u16) -> NonZeroU16 {
    NonZeroU16::new(n.max(1)).unwrap()
}

/// A running program and the screen it draws on. Dropping it kills the program.
pub struct Terminal {
    master: Box<dyn MasterPty + Send>,
    keyboard: RefCell<Box<dyn Write + Send>>,
    pid: Pid,
    started: Instant,
    output: Arc<Output>,
    _home: TempDir,
}

struct Output {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    screen: vt100::Parser,
    raw: Vec<u8>,
    /// True once no process has the terminal open.
    closed: bool,
    status: Option<ExitStatus>,
}

impl Output {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A failing test panics while it holds the lock, and its terminal is dropped afterwards.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }
}

impl Terminal {
    fn new(
        master: Box<dyn MasterPty + Send>,
        child: Box<dyn Child + Send + Sync>,
        started: Instant,
        (rows, cols): (u16, u16),
        home: TempDir,
    ) -> Self {
        let output = Arc::new(Output {
            state: Mutex::new(State {
                screen: vt100::Parser::new(positive(rows), positive(cols), 0),
                raw: Vec::new(),
                closed: false,
                status: None,
            }),
            changed: Condvar::new(),
        });
        let pid = Pid::from_raw(child.process_id().unwrap().cast_signed());
        spawn_reader(master.try_clone_reader().unwrap(), output.clone());
        spawn_waiter(child, output.clone());
        Self {
            keyboard: RefCell::new(master.take_writer().unwrap()),
            master,
            pid,
            started,
            output,
            _home: home,
        }
    }

    pub fn pid(&self) -> u32 {
        self.pid.as_raw().cast_unsigned()
    }

    /// Returns the leader of the terminal's foreground group.
    pub fn foreground(&self) -> Option<Pid> {
        self.master.process_group_leader().map(Pid::from_raw)
    }

    /// Returns the start time.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Types the text.
    pub fn send(&self, text: &str) {
        let mut keyboard = self.keyboard.borrow_mut();
        keyboard.write_all(text.as_bytes()).unwrap();
        keyboard.flush().unwrap();
    }

    /// Resizes the window. The program gets a SIGWINCH.
    pub fn resize(&self, rows: u16, cols: u16) {
        let mut state = self.output.lock();
        state.screen.screen_mut().set_size(positive(rows), positive(cols));
        self.master.resize(size(rows, cols)).unwrap();
    }

    /// Changes the size that the terminal reports, but not the parsed screen.
    pub fn claim(&self, rows: u16, cols: u16) {
        self.master.resize(size(rows, cols)).unwrap();
    }

    pub fn signal(&self, signal: Signal) {
        assert!(self.output.lock().status.is_none(), "it has ended already");
        signal::kill(self.pid, signal).unwrap();
    }

    /// Waits until the screen satisfies `wanted`. Fails on a timeout, or if the program exits first.
    #[track_caller]
    pub fn wait_for(&self, wanted: impl Fn(&vt100::Screen) -> bool, what: &str) {
        let met = self.wait(|state| wanted(state.screen.screen()) || state.closed);
        let state = self.output.lock();
        if !met || !wanted(state.screen.screen()) {
            panic!("waited for {what}{}", describe(&state));
        }
    }

    /// Waits until the text is on the screen, within one line.
    #[track_caller]
    pub fn wait_text(&self, text: &str) {
        let stands = |screen: &vt100::Screen| screen.contents().contains(text);
        self.wait_for(stands, &format!("the text {text:?}"));
    }

    /// Waits until the program has exited and all its output has been read.
    #[track_caller]
    pub fn wait_exit(&self) -> ExitStatus {
        if !self.wait(|state| state.status.is_some() && state.closed) {
            panic!("waited for the end{}", describe(&self.output.lock()));
        }
        self.output.lock().status.clone().unwrap()
    }

    fn wait(&self, wanted: impl Fn(&State) -> bool) -> bool {
        let state = self.output.lock();
        let waited =
            self.output.changed.wait_timeout_while(state, DEADLINE, |state| !wanted(state));
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Returns the text on the screen, line by line, without trailing blanks.
    pub fn text(&self) -> String {
        self.output.lock().screen.screen().contents()
    }

    pub fn screen(&self) -> vt100::Screen {
        self.output.lock().screen.screen().clone()
    }

    /// Returns everything that was written, including escape sequences.
    pub fn raw(&self) -> Vec<u8> {
        self.output.lock().raw.clone()
    }

    pub fn bytes_written(&self) -> usize {
        self.output.lock().raw.len()
    }

    /// Fails unless the terminal is restored for the shell: main screen, cursor shown, no mouse reports, no bracketed
    /// paste, lines edited and echoed by the kernel.
    #[track_caller]
    pub fn assert_restored(&self) {
        let wrong = self.not_restored();
        assert!(
            wrong.is_empty(),
            "the terminal was left with {}{}",
            wrong.join(", "),
            describe(&self.output.lock())
        );
    }

    fn not_restored(&self) -> Vec<&'static str> {
        let state = self.output.lock();
        let screen = state.screen.screen();
        let mouse = screen.mouse_protocol_mode() != vt100::MouseProtocolMode::None;
        [
            ("the alternate screen", screen.alternate_screen()),
            ("a hidden cursor", screen.hide_cursor()),
            ("mouse reports on", mouse),
            ("bracketed paste on", screen.bracketed_paste()),
            ("raw mode", !self.is_cooked()),
        ]
        .into_iter()
        .filter_map(|(what, wrong)| wrong.then_some(what))
        .collect()
    }

    /// Returns true if the kernel edits and echoes lines, turns ^C into a signal, and translates line ends.
    pub fn is_cooked(&self) -> bool {
        let termios = self.master.get_termios().unwrap();
        let local = libc::ICANON | libc::ECHO | libc::ISIG | libc::IEXTEN;
        termios.local_flags.bits() & local == local
            && termios.input_flags.bits() & libc::ICRNL != 0
            && termios.output_flags.bits() & libc::OPOST != 0
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Without a status, the child has not been reaped, so its PID is still its own.
        let state = self.output.lock();
        if state.status.is_none() {
            let _ = signal::kill(self.pid, Signal::SIGKILL);
        }
    }
}

fn spawn_reader(mut from: Box<dyn Read + Send>, output: Arc<Output>) {
    thread::spawn(move || {
        let mut buffer = [0; 65536];
        let mut drawing = Drawing::default();
        // On Linux, EIO means that the other side has closed.
        while let Ok(n @ 1..) = from.read(&mut buffer) {
            output.change(|state| {
                state.raw.extend_from_slice(&buffer[..n]);
                state.screen.process(&drawing.whole(&buffer[..n]));
            });
        }
        output.change(|state| {
            state.screen.process(&drawing.held);
            state.closed = true;
        });
    });
}

/// Holds back a frame until it is complete, like a terminal with synchronized updates. Otherwise a frame that arrives
/// in two pieces would be seen half old and half new.
#[derive(Default)]
struct Drawing {
    held: Vec<u8>,
}

impl Drawing {
    const BEGIN: &[u8] = b"\x1b[?2026h";
    const END: &[u8] = b"\x1b[?2026l";

    /// Returns the bytes that can be shown now that these have arrived.
    fn whole(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.held.extend_from_slice(bytes);
        let last = |mark: &[u8]| self.held.windows(mark.len()).rposition(|window| window == mark);
        let show = match (last(Self::BEGIN), last(Self::END)) {
            (Some(begin), end) if end.is_none_or(|end| end < begin) => begin,
            _ => self.held.len(),
        };
        self.held.drain(..show).collect()
    }
}

fn spawn_waiter(mut child: Box<dyn Child + Send + Sync>, output: Arc<Output>) {
    thread::spawn(move || {
        let status = child.wait().unwrap();
        output.change(|state| state.status = Some(status));
    });
}

fn describe(state: &State) -> String {
    let screen = state.screen.screen();
    let (rows, cols) = screen.size();
    let mut text = match &state.status {
        Some(status) => format!("; the program has ended ({status})"),
        None => String::new(),
    };
    let _ = write!(text, "; the screen, {cols}x{rows}:\n{}", screen.contents());
    text
}
