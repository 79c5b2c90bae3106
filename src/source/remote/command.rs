//! The local end of a connection: runs the command that connects to a remote host, and restarts it when it exits.
//!
//! The reader thread reads and reconnects; the request thread sends requests and watches for timeouts. Screens never
//! wait for these threads.

use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gputop_model::protocol::stream::{Feed, Source, stream};
use gputop_model::protocol::{Request, Update};
use gputop_model::{Hello, Link, Millis, Missing};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::counters::Counters;
use super::event_numbers::EventNumbers;
use super::greeting::{NoAgent, RemoteProgram, last_line, read_greeting};
use super::incident_sync::IncidentSync;
use super::incoming::Incoming;
use super::nvidia_smi;
use super::outgoing::RequestWriter;
use super::ssh::{Shared, agent, nvidia_smi};
use super::suspend::suspended_time;
use super::target::Target;
use crate::child_exit::exit_within;
use crate::open_files::restore_in;

/// Minimum and maximum pause before the next connection attempt. The pause doubles while the host does not respond.
const MIN_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// A host is considered silent if no data arrives for this many intervals plus a grace period. If the silence lasts
/// until the timeout, the connection is closed.
const MAX_SILENT_INTERVALS: u32 = 3;
const SILENCE_GRACE: Duration = Duration::from_secs(2);
const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Connections are considered dead if this machine was suspended for at least this long.
const MIN_SUSPEND: Duration = Duration::from_secs(5);
/// Time after SIGTERM at which a connection command that has not exited is killed.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval between checks whether a command has exited.
const EXIT_CHECK_INTERVAL: Duration = Duration::from_millis(5);
const HANG_UP_TIMEOUT: Duration = Duration::from_secs(2);
/// Size of the read buffer for one host. With a hundred hosts, a larger one would waste memory.
const READ_BUFFER_BYTES: usize = 8 << 10;
/// Maximum size of the retained stderr text. Older text is dropped.
const MAX_STDERR_BYTES: usize = 4096;

#[derive(Debug, Clone)]
pub struct Connection {
    pub target: Target,
    pub interval: Millis,
    /// Arguments of the remote agent that allow actions on request: ` --allow-signals --allow-probe`.
    pub agent_arguments: String,
    /// The shared ssh connection; `None` if the user's own ssh configuration controls sharing, or if sharing is off.
    pub shared: Option<Shared>,
}

impl Connection {
    /// Closes the shared connection, because ssh would notice a dead one only after 15 seconds and block new
    /// connections until then.
    fn hang_up(&self) {
        let (Target::Ssh(ssh), Some(shared)) = (&self.target, &self.shared) else { return };
        let mut command = ssh.hang_up(shared);
        let null = || Stdio::null();
        command.stdin(null()).stdout(null()).stderr(null());
        let Ok(mut child) = command.spawn() else { return };
        let _ = exit_within(&mut child, HANG_UP_TIMEOUT);
    }

    /// Returns the command that connects to the host. If `uses_nvidia_smi` is set, the command ignores an installed
    /// gputop.
    fn command(&self, uses_nvidia_smi: bool) -> Command {
        let remote = if uses_nvidia_smi { nvidia_smi() } else { agent(&self.agent_arguments) };
        let mut command = match &self.target {
            Target::Ssh(ssh) => ssh.silent(self.shared.as_ref(), &remote),
            Target::Slurm(step) => step.command(&remote),
            Target::Via(line) => {
                let mut shell = Command::new("sh");
                restore_in(shell.args(["-c", line]));
                shell
            }
        };
        command.stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        // Run the command in its own process group, so that it does not receive Ctrl-C and can be killed together with
        // everything it starts.
        command.process_group(0);
        command
    }
}

/// Process groups of the running connection commands. Locked while one is started, so that none is missed at the end.
static RUNNING: Mutex<Running> = Mutex::new(Running { groups: Vec::new(), is_ending: false });

struct Running {
    groups: Vec<Pid>,
    /// True once this process is about to exit. No command is started any more.
    is_ending: bool,
}

impl Running {
    fn start(&mut self, command: &mut Command) -> io::Result<Child> {
        if self.is_ending {
            return Err(io::Error::other("gputop is about to exit"));
        }
        let child = command.spawn()?;
        self.groups.push(group_of(&child));
        Ok(child)
    }
}

fn running() -> MutexGuard<'static, Running> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the process group of a connection command, which it leads.
fn group_of(child: &Child) -> Pid {
    Pid::from_raw(child.id().cast_signed())
}

/// Ends all connection commands before this process exits, because some would not notice the exit. Commands that ignore
/// SIGTERM are killed after a timeout.
pub fn end_all() {
    let signal_all = |signal| {
        for group in &running().groups {
            let _ = killpg(*group, signal);
        }
    };
    running().is_ending = true;
    signal_all(Signal::SIGTERM);
    let end = Instant::now() + KILL_TIMEOUT;
    while !running().groups.is_empty() && Instant::now() < end {
        std::thread::sleep(EXIT_CHECK_INTERVAL);
    }
    signal_all(Signal::SIGKILL);
}

/// Ends a connection command and the processes that it has started. Returns the command's exit status.
fn end_group(child: &mut Child, group: Pid) -> Option<ExitStatus> {
    let _ = killpg(group, Signal::SIGTERM);
    let status = exit_within(child, KILL_TIMEOUT);
    // The group's ID is not reused while a process of the group is left. If none is left, nothing receives the signal.
    let _ = killpg(group, Signal::SIGKILL);
    status.ok()?.or_else(|| child.wait().ok())
}

/// Starts connecting to a remote host. The source reports the connection state, and dropping it closes the connection.
pub fn start(connection: Connection) -> io::Result<Source> {
    start_with(connection, suspended_time)
}

/// Like [`start`], but takes a function that returns the total time that this machine has been suspended.
pub fn start_with(
    connection: Connection,
    suspended_time: impl Fn() -> Duration + Send + 'static,
) -> io::Result<Source> {
    let (feed, requests, source) = stream();
    let host = Arc::new(RemoteHost {
        feed,
        writer: RequestWriter::default(),
        interval: connection.interval,
        target: connection.target.clone(),
        state: Mutex::default(),
        changed: Condvar::new(),
    });
    host.writer.send(Request::Interval(connection.interval));
    let reader = Arc::clone(&host);
    let thread = |name: &str| std::thread::Builder::new().name(name.into());
    thread("remote reader").spawn(move || reader.run(&connection))?;
    thread("remote requests").spawn(move || host.send_requests(&requests, &suspended_time))?;
    Ok(source)
}

struct RemoteHost {
    feed: Feed,
    writer: RequestWriter,
    interval: Millis,
    target: Target,
    state: Mutex<CommandState>,
    /// Notified when the source is dropped or the user requests a reconnect.
    changed: Condvar,
}

#[derive(Default)]
struct CommandState {
    group: Option<Pid>,
    /// Time at which SIGTERM was sent to the group.
    ended: Option<Instant>,
    last_received: Option<Instant>,
    /// Version of the remote gputop if its protocol differs. `nvidia-smi` is then used for that host.
    other_version: Option<String>,
    is_silent: bool,
    is_dropped: bool,
    /// True to reconnect without waiting.
    wants_connection: bool,
    /// True if the shared connection is dead, even if ssh has not noticed.
    is_dead: bool,
}

/// State retained across connections to avoid duplicate reports.
#[derive(Default)]
struct ReceivedState {
    events: EventNumbers,
    incidents: IncidentSync,
    counters: Counters,
    /// The last hello of the connection. An agent sends one, and repeats it only if it changes.
    hello: Option<Arc<Hello>>,
}

enum WaitResult {
    Elapsed,
    Requested,
    SourceDropped,
}

struct ConnectionOutcome {
    why: String,
    frames: u64,
    /// True if the user must respond to an ssh prompt.
    asks: bool,
}

impl RemoteHost {
    fn state(&self) -> MutexGuard<'_, CommandState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if `nvidia-smi` is used instead of the remote gputop. A `via:` command always runs as the user
    /// wrote it.
    fn uses_nvidia_smi(&self) -> bool {
        !matches!(self.target, Target::Via(_)) && self.state().other_version.is_some()
    }

    /// Returns the reason shown for all data that `nvidia-smi` does not provide.
    fn unavailable(&self) -> Missing {
        nvidia_smi::unavailable(&self.target, self.state().other_version.as_deref())
    }

    fn run(&self, connection: &Connection) {
        let (mut pause, mut lost) = (MIN_PAUSE, None);
        let mut known = ReceivedState::default();
        self.feed.push(Update::Link(Link::Connecting));
        loop {
            if std::mem::take(&mut self.state().is_dead) {
                connection.hang_up();
            }
            let had_other = self.state().other_version.is_some();
            let outcome = self.connect(connection, &mut known);
            if !had_other && self.uses_nvidia_smi() {
                continue;
            }
            if outcome.frames > 0 {
                pause = MIN_PAUSE;
            }
            if outcome.frames > 0 || lost.is_none() {
                lost = Some(Instant::now());
            }
            if outcome.asks {
                // Frequent attempts without a valid key could lock the user out.
                pause = MAX_PAUSE;
            }
            match self.wait(jittered(pause), lost, &outcome) {
                WaitResult::SourceDropped => return,
                WaitResult::Elapsed => pause = (pause * 2).min(MAX_PAUSE),
                WaitResult::Requested => pause = MIN_PAUSE,
            }
        }
    }

    /// Waits before the next connection attempt and reports the remaining time every second.
    fn wait(
        &self,
        pause: Duration,
        lost: Option<Instant>,
        outcome: &ConnectionOutcome,
    ) -> WaitResult {
        let until = Instant::now() + pause;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            self.feed.push(Update::Link(Link::Lost {
                since: lost.map_or(Duration::ZERO, |lost| lost.elapsed()).into(),
                why: outcome.why.clone(),
                again_in: left.into(),
                asks: outcome.asks,
            }));
            if left.is_zero() {
                return WaitResult::Elapsed;
            }
            let step = left.min(Duration::from_secs(1));
            let must_wait = |state: &mut CommandState| !state.is_dropped && !state.wants_connection;
            let waited = self.changed.wait_timeout_while(self.state(), step, must_wait);
            let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if state.is_dropped {
                return WaitResult::SourceDropped;
            }
            if std::mem::take(&mut state.wants_connection) {
                return WaitResult::Requested;
            }
        }
    }

    /// Runs one connection to the remote host until the connection ends.
    fn connect(&self, connection: &Connection, known: &mut ReceivedState) -> ConnectionOutcome {
        let mut command = connection.command(self.uses_nvidia_smi());
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child = match running().start(&mut command) {
            Ok(child) => child,
            Err(error) => {
                let why = format!("cannot start `{program}`: {error}");
                return ConnectionOutcome { why, frames: 0, asks: false };
            }
        };
        let group = group_of(&child);
        let is_dropped = {
            let mut state = self.state();
            (state.group, state.last_received) = (Some(group), Some(Instant::now()));
            state.ended = None;
            state.wants_connection = false;
            state.is_dropped
        };
        if let Some(stdin) = child.stdin.take().filter(|_| !is_dropped) {
            self.writer.connect(stdin);
        }
        let stderr = child.stderr.take().map(StderrTail::of);
        let mut frames = 0;
        let reason = self.read(&mut child, known, &mut frames);
        self.writer.disconnect();
        let status = end_group(&mut child, group);
        running().groups.retain(|running| *running != group);
        self.state().group = None;
        self.changed.notify_all();
        let stderr_text = stderr.map_or_else(Vec::new, StderrTail::finish);
        let is_ssh = matches!(connection.target, Target::Ssh(_));
        ConnectionOutcome {
            asks: is_ssh && reason.is_none() && needs_answer(&stderr_text),
            why: reason.unwrap_or_else(|| exit_reason(status, &stderr_text)),
            frames,
        }
    }

    /// Reads updates until the connection ends. Returns the reason if gputop ended the connection.
    fn read(
        &self,
        child: &mut Child,
        known: &mut ReceivedState,
        frames: &mut u64,
    ) -> Option<String> {
        let mut from = BufReader::with_capacity(READ_BUFFER_BYTES, child.stdout.take()?);
        match read_greeting(&mut from) {
            Ok(Ok(RemoteProgram::Agent)) => {}
            Ok(Ok(RemoteProgram::NvidiaSmi)) => {
                self.writer.use_script();
                return self.follow_nvidia_smi(&mut from, frames);
            }
            Ok(Err(why)) => return self.no_agent(why),
            Err(_) => return None,
        }
        self.writer.resend_settings();
        known.incidents.connect();
        known.hello = None;
        let mut incoming = Incoming::new(from).ok()?;
        let mut is_connected = false;
        loop {
            self.feed.wait_for_room();
            let update = match incoming.next() {
                Ok(update) => update?,
                Err(error) => return Some(error.to_string()),
            };
            self.mark_received(&mut is_connected);
            self.receive(update, known, frames);
        }
    }

    /// Returns the reason for ending a connection whose remote command is not a compatible agent.
    fn no_agent(&self, why: NoAgent) -> Option<String> {
        match why {
            NoAgent::Other(version) => {
                let why = format!(
                    "gputop {version} on the remote host uses a different protocol from {} on this host. Update the older one",
                    env!("CARGO_PKG_VERSION")
                );
                self.state().other_version = Some(version);
                Some(why)
            }
            NoAgent::Silent(line) => Some(line).filter(|line| !line.is_empty()),
        }
    }

    fn receive(&self, update: Update, known: &mut ReceivedState, frames: &mut u64) {
        match update {
            Update::IncidentList(list) => {
                let next = known.incidents.receive_list(list, Instant::now());
                next.into_iter().for_each(|uid| self.writer.request_incident(uid));
            }
            Update::Event(event) if !known.events.is_new(&event) => {}
            Update::Hello(hello) if known.hello.as_ref() == Some(&hello) => {}
            Update::RemoteIncident(incident) => {
                let (is_wanted, next) = known.incidents.receive(&incident, Instant::now());
                next.into_iter().for_each(|uid| self.writer.request_incident(uid));
                if is_wanted {
                    self.feed.push(Update::RemoteIncident(incident));
                }
            }
            Update::Frame(frame) => {
                let missed = known.counters.frame(&frame);
                self.feed.push(Update::Frame(frame));
                missed.into_iter().map(Update::Event).for_each(|event| self.feed.push(event));
                *frames += 1;
                self.writer.acknowledge(*frames);
            }
            update => {
                if let Update::Hello(hello) = &update {
                    known.counters.hello(hello);
                    known.hello = Some(Arc::clone(hello));
                }
                self.feed.push(update);
            }
        }
    }

    /// Records that data was received. If the connection is new or was silent, reports that it is up.
    fn mark_received(&self, is_connected: &mut bool) {
        let was_silent = {
            let mut state = self.state();
            state.last_received = Some(Instant::now());
            std::mem::take(&mut state.is_silent)
        };
        if !std::mem::replace(is_connected, true) || was_silent {
            self.feed.push(Update::Link(Link::Up));
        }
    }

    /// Reads the output of the `nvidia-smi` script on a host without gputop, like [`read`](Self::read).
    fn follow_nvidia_smi(&self, from: &mut impl BufRead, frames: &mut u64) -> Option<String> {
        let mut is_connected = false;
        nvidia_smi::follow(from, self.unavailable(), &self.writer, |update| {
            self.mark_received(&mut is_connected);
            if let Some(update) = update {
                *frames += u64::from(matches!(update, Update::Frame(_)));
                self.feed.push(update);
            }
        })
    }

    /// Sends requests to the remote host until the source is dropped. Closes the connection if the host is silent, or
    /// if the connection broke while this machine was suspended.
    fn send_requests(&self, requests: &Receiver<Request>, suspended_time: &dyn Fn() -> Duration) {
        let (mut last_check, mut before) = (Instant::now(), suspended_time());
        loop {
            let left = CHECK_INTERVAL.saturating_sub(last_check.elapsed());
            match requests.recv_timeout(left) {
                Ok(Request::Connect) => self.request_connection(),
                Ok(request) => {
                    if self.writer.uses_script() {
                        let answer = request.refused(self.unavailable());
                        answer.into_iter().for_each(|update| self.feed.push(update));
                    }
                    self.writer.send(request);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if last_check.elapsed() >= CHECK_INTERVAL {
                last_check = Instant::now();
                self.check_timeouts();
                let now = suspended_time();
                if now.saturating_sub(before) > MIN_SUSPEND {
                    self.reconnect_after_suspend();
                }
                before = now;
            }
        }
        let mut state = self.state();
        state.is_dropped = true;
        state.end();
        self.changed.notify_all();
        let is_running = |state: &mut CommandState| state.group.is_some();
        let waited = self.changed.wait_timeout_while(state, KILL_TIMEOUT, is_running);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.kill();
    }

    fn request_connection(&self) {
        let mut state = self.state();
        if state.group.is_none() {
            state.wants_connection = true;
            self.changed.notify_all();
        }
    }

    fn reconnect_after_suspend(&self) {
        let mut state = self.state();
        (state.wants_connection, state.is_dead) = (true, true);
        state.end();
        self.changed.notify_all();
    }

    fn check_timeouts(&self) {
        if self.state().ended.as_mut().is_some_and(|at| at.elapsed() > KILL_TIMEOUT) {
            self.state().kill();
        }
        let expected =
            Duration::from_millis(self.interval.0) * MAX_SILENT_INTERVALS + SILENCE_GRACE;
        let mut state = self.state();
        let Some(last_received) = state.last_received.filter(|_| state.group.is_some()) else {
            return;
        };
        let since = last_received.elapsed();
        if since > SILENCE_TIMEOUT.max(expected * 2) {
            state.end();
        } else if since > expected {
            state.is_silent = true;
            drop(state);
            self.feed.push(Update::Link(Link::Silent { since: since.into() }));
        }
    }
}

impl CommandState {
    fn end(&mut self) {
        if let Some(group) = self.group {
            let _ = killpg(group, Signal::SIGTERM);
            self.ended.get_or_insert_with(Instant::now);
        }
    }

    /// Kills a command that has ignored SIGTERM.
    fn kill(&mut self) {
        self.ended = None;
        if let Some(group) = self.group {
            let _ = killpg(group, Signal::SIGKILL);
        }
    }
}

/// Randomizes the pause, so that clients of one host do not reconnect at the same time.
fn jittered(pause: Duration) -> Duration {
    let part = RandomState::new().hash_one(0) % 512;
    pause * (768 + u32::try_from(part).unwrap_or(0)) / 1024
}

struct StderrTail {
    text: Arc<Mutex<Vec<u8>>>,
    /// Closed at the end of stderr. Nothing is ever sent on this channel.
    end: Receiver<()>,
}

/// Maximum time to wait for the end of stderr, which background processes of the command may keep open indefinitely.
const STDERR_TIMEOUT: Duration = Duration::from_millis(500);

impl StderrTail {
    fn of(mut from: ChildStderr) -> Self {
        let text = Arc::new(Mutex::new(Vec::new()));
        let (alive, end) = std::sync::mpsc::channel();
        let shared_text = Arc::clone(&text);
        let reader = std::thread::Builder::new().name("remote stderr".into());
        // If the thread cannot be started, only the stderr text is missing.
        let _ = reader.spawn(move || {
            let _alive: std::sync::mpsc::Sender<()> = alive;
            let mut piece = [0; 1024];
            while let Ok(n @ 1..) = from.read(&mut piece) {
                let mut text = shared_text.lock().unwrap_or_else(PoisonError::into_inner);
                text.extend_from_slice(&piece[..n]);
                let surplus = text.len().saturating_sub(MAX_STDERR_BYTES);
                text.drain(..surplus);
            }
        });
        Self { text, end }
    }

    fn finish(self) -> Vec<u8> {
        let _ = self.end.recv_timeout(STDERR_TIMEOUT);
        let mut text = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *text)
    }
}

/// Returns true if ssh reports that it would have needed to prompt the user.
fn needs_answer(stderr_text: &[u8]) -> bool {
    const WORDS: [&str; 3] =
        ["Permission denied (", "Host key verification failed", "Too many authentication failures"];
    WORDS.iter().any(|text| memchr::memmem::find(stderr_text, text.as_bytes()).is_some())
}

fn exit_reason(status: Option<ExitStatus>, stderr_text: &[u8]) -> String {
    let stderr_text = last_line(stderr_text);
    match status.and_then(|status| status.code()) {
        _ if !stderr_text.is_empty() => stderr_text,
        Some(0) => "the remote command exited".into(),
        Some(code) => format!("the remote command exited with code {code}"),
        None => "the remote command was killed".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_hello_is_dropped() {
        let (feed, _requests, mut source) = stream();
        let host = RemoteHost {
            feed,
            writer: RequestWriter::default(),
            interval: Millis(1_000),
            target: Target::parse("gpu1").expect("a target"),
            state: Mutex::default(),
            changed: Condvar::new(),
        };
        let (mut known, mut frames) = (ReceivedState::default(), 0);
        for boot_id in ["1", "1", "2", "2", "1"] {
            let hello = Hello { boot_id: boot_id.into(), ..Hello::default() };
            host.receive(Update::Hello(Arc::new(hello)), &mut known, &mut frames);
        }
        let mut boots = Vec::new();
        while let Some(update) = source.try_next() {
            if let Update::Hello(hello) = update {
                boots.push(hello.boot_id.clone());
            }
        }
        assert_eq!(boots, ["1", "2", "1"]);
    }
}
