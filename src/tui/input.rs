//! Keyboard and mouse input: a thread reads the terminal, and a parser converts the bytes to events.
//!
//! Only the event types of crossterm are used, not its reader (0.29). That reader waits until a sequence is complete,
//! so after a partial mouse report or an unterminated paste it treats all further keys, including Ctrl-C, as part of
//! the sequence. It also panics if no file descriptor is available.
//!
//! Ctrl-C takes effect immediately, even after a large paste: it is never part of a sequence, ends an incomplete one,
//! and discards queued events, as the kernel does when it sends SIGINT.

mod parser;

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crossterm::event::Event;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::Notify;

use self::parser::{Parser, is_interrupt};

/// Maximum number of queued events. Only a paste can exceed the maximum, and the rest of the paste is dropped.
const MAX_QUEUED_EVENTS: usize = 4_096;
const READ_BYTES: usize = 4_096;

/// Terminal input. Dropping this value stops the reader thread, so that another program can use the terminal.
pub struct Input {
    queue: Arc<EventQueue>,
    /// Socket that stops the reader thread when it is closed.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Input {
    /// Starts reading standard input, or the controlling terminal if standard input is not a terminal.
    pub fn start() -> io::Result<Self> {
        let terminal = open_terminal()?;
        let (stop, stopped) = UnixStream::pair()?;
        let queue = Arc::new(EventQueue::default());
        let reader = Arc::clone(&queue);
        let thread = std::thread::Builder::new().name("input".into()).spawn(move || {
            let end = read_events(terminal, &stopped, &reader);
            reader.close(end);
        })?;
        Ok(Self { queue, stop: Some(stop), thread: Some(thread) })
    }

    /// Returns the next event, or `None` after the terminal has closed.
    pub async fn next(&self) -> Option<io::Result<Event>> {
        loop {
            {
                let mut state = self.queue.lock();
                if let Some(event) = state.events.pop_front() {
                    return Some(Ok(event));
                }
                if let Some(end) = &mut state.end {
                    return end.take().map(Err);
                }
            }
            // A notification sent before this call is not lost.
            self.queue.changed.notified().await;
        }
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // Ignore the result: the thread returns nothing.
            let _ = thread.join();
        }
    }
}

fn open_terminal() -> io::Result<File> {
    let stdin = io::stdin();
    if stdin.is_terminal() {
        return Ok(stdin.as_fd().try_clone_to_owned()?.into());
    }
    // Open the terminal by name, because macOS cannot poll /dev/tty.
    if cfg!(target_os = "macos") {
        return File::open(nix::unistd::ttyname(io::stdout())?);
    }
    File::open("/dev/tty")
}

#[derive(Default)]
struct EventQueue {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    events: VecDeque<Event>,
    /// Set once the input has ended, with the error if reading failed.
    end: Option<Option<io::Error>>,
}

impl EventQueue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, event: Event) {
        let mut state = self.lock();
        if is_interrupt(&event) {
            state.events.clear();
        }
        if state.events.len() < MAX_QUEUED_EVENTS {
            state.events.push_back(event);
        }
        drop(state);
        self.changed.notify_one();
    }

    fn close(&self, end: io::Result<()>) {
        self.lock().end = Some(end.err());
        self.changed.notify_one();
    }
}

/// Reads events until the terminal or the other end of `stopped` is closed.
fn read_events(mut terminal: File, stopped: &UnixStream, queue: &EventQueue) -> io::Result<()> {
    let mut parser = Parser::default();
    let mut buffer = [0; READ_BYTES];
    let push = |event| queue.push(event);
    loop {
        let timeout = parser.timeout().map_or(PollTimeout::NONE, |timeout| {
            PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX)
        });
        let mut ready = [
            PollFd::new(terminal.as_fd(), PollFlags::POLLIN),
            PollFd::new(stopped.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut ready, timeout) {
            Ok(0) => {
                parser.give_up(push);
                continue;
            }
            Ok(_) => {}
            Err(Errno::EINTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let [has_input, is_stopped] = ready.map(|fd| fd.any() == Some(true));
        if is_stopped {
            return Ok(());
        }
        if !has_input {
            continue;
        }
        match terminal.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => parser.advance(&buffer[..count], push),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
