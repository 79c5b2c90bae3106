//! The near side: a command that is a far host, started again when it ends.
//!
//! One thread reads and starts anew, one passes orders on and watches the clock. Nothing here is waited for by a screen.

use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::counters::Counters;
use super::event_numbers::EventNumbers;
use super::greeting::{NoAgent, Speaker, greeted, last_words};
use super::incident_sync::IncidentSync;
use super::incoming::{Incoming, Said};
use super::nvidia_smi;
use super::outgoing::Orders;
use super::ssh::{Shared, agent, nvidia_smi};
use super::suspend::slept;
use super::target::Target;
use crate::model::link::Link;
use crate::model::reading::Missing;
use crate::model::units::Millis;
use crate::open_files::restore_in;
use crate::source::stream::{Feed, Source, stream};
use crate::source::{Request, Update};

/// The pause before a far side is tried again grows from here to there, while it does not answer.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Nothing for so many intervals and a while is silence; for this long it is given up.
const SILENT_AFTER: u32 = 3;
const A_WHILE: Duration = Duration::from_secs(2);
const GIVEN_UP_AFTER: Duration = Duration::from_secs(30);
/// How often the clock is looked at.
const TICK: Duration = Duration::from_millis(500);
/// Whoever slept for longer comes back to dead connections.
const NAP: Duration = Duration::from_secs(5);
/// How long the end of a shared connection may take.
const HANG_UP: Duration = Duration::from_secs(2);
/// A host among a hundred has not much more to say at once.
const BUFFER: usize = 8 << 10;
/// Of what a command complains, the end.
const MAX_COMPLAINTS: usize = 4096;

/// A far host and how it is talked to.
#[derive(Debug, Clone)]
pub struct Connection {
    pub target: Target,
    pub interval: Millis,
    /// What the agent there may do when it is asked, beside looking.
    pub allow_signals: bool,
    pub allow_probe: bool,
    pub allow_watch: bool,
    /// Where ssh shares one connection; `None` where the user's own configuration says, or nothing is to be shared.
    pub shared: Option<Shared>,
}

impl Connection {
    /// A shared connection that is dead would only find out in a quarter of a minute, and hold up the next until then.
    fn hang_up(&self) {
        let (Target::Ssh(ssh), Some(shared)) = (&self.target, &self.shared) else {
            return;
        };
        let mut command = ssh.hang_up(shared);
        let null = || Stdio::null();
        command.stdin(null()).stdout(null()).stderr(null());
        let Ok(mut child) = command.spawn() else {
            return;
        };
        let end = Instant::now() + HANG_UP;
        while matches!(child.try_wait(), Ok(None)) {
            if Instant::now() > end {
                let _ = child.kill();
                let _ = child.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// With `is_reduced` a gputop there is left alone.
    fn command(&self, is_reduced: bool) -> Command {
        let mut arguments = String::new();
        if self.allow_signals {
            arguments += " --allow-signals";
        }
        if self.allow_probe {
            arguments += " --allow-probe";
        }
        if self.allow_watch {
            arguments += " --allow-watch";
        }
        let remote = if is_reduced {
            nvidia_smi()
        } else {
            agent(&arguments)
        };
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
        // A Ctrl-C is for us, who then end it; and whatever it starts is ended with it.
        command.process_group(0);
        command
    }
}

/// The groups of the commands that run now.
static RUNNING: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

fn running() -> MutexGuard<'static, Vec<Pid>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends every command that is a far host: before this process ends, for those that would not notice.
pub fn end_all() {
    for group in &*running() {
        let _ = killpg(*group, Signal::SIGTERM);
    }
}

/// Starts connecting; the source tells how that goes. It ends with its reader.
///
/// # Errors
/// When the system gives no threads.
pub fn start(connection: Connection) -> io::Result<Source> {
    start_with(connection, slept)
}

/// The same where `slept` tells how long this machine has slept so far.
///
/// # Errors
/// As [`start`].
pub fn start_with(
    connection: Connection,
    slept: impl Fn() -> Duration + Send + 'static,
) -> io::Result<Source> {
    let (feed, requests, source) = stream();
    let far = Arc::new(Far {
        feed,
        orders: Orders::default(),
        interval: connection.interval,
        target: connection.target.clone(),
        state: Mutex::default(),
        changed: Condvar::new(),
    });
    far.orders.ask(Request::Interval(connection.interval));
    let reader = Arc::clone(&far);
    let thread = |name: &str| std::thread::Builder::new().name(name.into());
    thread("far").spawn(move || reader.connect_for_ever(&connection))?;
    thread("far orders").spawn(move || far.pass_on(&requests, &slept))?;
    Ok(source)
}

struct Far {
    feed: Feed,
    orders: Orders,
    interval: Millis,
    target: Target,
    state: Mutex<State>,
    /// The reader of the source is gone, or the next connection is wanted now.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The group of the command that runs.
    group: Option<Pid>,
    heard: Option<Instant>,
    /// The gputop there is of another protocol: its version. Then `nvidia-smi` speaks for that host.
    other: Option<String>,
    is_silent: bool,
    has_ended: bool,
    /// The next connection is not waited for.
    is_hurried: bool,
    /// The one there was is dead, also where it does not know.
    is_dead: bool,
}

/// What was heard on all connections: nothing of it is told twice.
#[derive(Default)]
struct ReceivedState {
    told: EventNumbers,
    stored: IncidentSync,
    counters: Counters,
}

/// Why nobody waits for the next connection any more.
enum Waited {
    LongEnough,
    /// Somebody wants it now.
    UntilAsked,
    /// The source's reader is gone.
    ForNobody,
}

/// How a connection went.
struct ConnectionOutcome {
    why: String,
    frames: u64,
    /// Somebody has to answer something.
    asks: bool,
}

impl Far {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the gputop there is left alone. What a `via:` runs is the user's own.
    fn is_reduced(&self) -> bool {
        !matches!(self.target, Target::Via(_)) && self.state().other.is_some()
    }

    /// What is said of all that `nvidia-smi` does not tell, where nobody else speaks for that host.
    fn untold(&self) -> Missing {
        nvidia_smi::untold(&self.target, self.state().other.as_deref())
    }

    fn connect_for_ever(&self, connection: &Connection) {
        let (mut pause, mut lost) = (FIRST_PAUSE, None);
        let mut known = ReceivedState::default();
        self.feed.push(Update::Link(Link::Connecting));
        loop {
            if std::mem::take(&mut self.state().is_dead) {
                connection.hang_up();
            }
            let had_other = self.state().other.is_some();
            let went = self.connect(connection, &mut known);
            if !had_other && self.is_reduced() {
                continue;
            }
            if went.frames > 0 {
                pause = FIRST_PAUSE;
            }
            if went.frames > 0 || lost.is_none() {
                lost = Some(Instant::now());
            }
            if went.asks {
                // Who knocks often without a key is locked out.
                pause = LONGEST_PAUSE;
            }
            match self.wait(jittered(pause), lost, &went) {
                Waited::ForNobody => return,
                Waited::LongEnough => pause = (pause * 2).min(LONGEST_PAUSE),
                Waited::UntilAsked => pause = FIRST_PAUSE,
            }
        }
    }

    /// Waits, telling each second for how much longer.
    fn wait(&self, pause: Duration, lost: Option<Instant>, went: &ConnectionOutcome) -> Waited {
        let until = Instant::now() + pause;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            self.feed.push(Update::Link(Link::Lost {
                since: millis(lost.map_or(Duration::ZERO, |lost| lost.elapsed())),
                why: went.why.clone(),
                again_in: millis(left),
                asks: went.asks,
            }));
            if left.is_zero() {
                return Waited::LongEnough;
            }
            let step = left.min(Duration::from_secs(1));
            let goes_on = |state: &mut State| !state.has_ended && !state.is_hurried;
            let waited = self.changed.wait_timeout_while(self.state(), step, goes_on);
            let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if state.has_ended {
                return Waited::ForNobody;
            }
            if std::mem::take(&mut state.is_hurried) {
                return Waited::UntilAsked;
            }
        }
    }

    /// From start to end.
    fn connect(&self, connection: &Connection, known: &mut ReceivedState) -> ConnectionOutcome {
        let mut command = connection.command(self.is_reduced());
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                let why = format!("`{program}` cannot be started: {error}");
                return ConnectionOutcome {
                    why,
                    frames: 0,
                    asks: false,
                };
            }
        };
        let group = Pid::from_raw(child.id().cast_signed());
        running().push(group);
        let has_ended = {
            let mut state = self.state();
            (state.group, state.heard) = (Some(group), Some(Instant::now()));
            state.is_hurried = false;
            state.has_ended
        };
        if let Some(stdin) = child.stdin.take().filter(|_| !has_ended) {
            self.orders.connect(stdin);
        }
        let complaints = child.stderr.take().map(Complaints::of);
        let mut frames = 0;
        let broken = self.read(&mut child, known, &mut frames);
        self.orders.disconnect();
        // Whatever is left of it; its number is its own until it is waited for.
        let _ = killpg(group, Signal::SIGTERM);
        running().retain(|other| *other != group);
        self.state().group = None;
        let status = child.wait().ok();
        let complaint = complaints.map_or_else(Vec::new, Complaints::so_far);
        let is_ssh = matches!(connection.target, Target::Ssh(_));
        ConnectionOutcome {
            asks: is_ssh && broken.is_none() && is_question(&complaint),
            why: broken.unwrap_or_else(|| ended_words(status, &complaint)),
            frames,
        }
    }

    /// To the end of what it says; why it was ended, where it was us.
    fn read(
        &self,
        child: &mut Child,
        known: &mut ReceivedState,
        frames: &mut u64,
    ) -> Option<String> {
        let mut from = BufReader::with_capacity(BUFFER, child.stdout.take()?);
        match greeted(&mut from) {
            Ok(Ok(Speaker::Agent)) => {}
            Ok(Ok(Speaker::NvidiaSmi)) => {
                self.orders.be_plain();
                return self.follow_nvidia_smi(&mut from, frames);
            }
            Ok(Err(NoAgent::Other(version))) => {
                let why = format!(
                    "gputop {version} there speaks another protocol than {} here: one of them is old",
                    env!("CARGO_PKG_VERSION")
                );
                self.state().other = Some(version);
                return Some(why);
            }
            Ok(Err(NoAgent::Silent(words))) if !words.is_empty() => return Some(words),
            _ => return None,
        }
        self.orders.repeat();
        known.stored.connect();
        let mut incoming = Incoming::new(from).ok()?;
        let mut is_up = false;
        loop {
            self.feed.wait_for_room();
            let said = match incoming.next() {
                Ok(said) => said?,
                Err(error) => return Some(error.to_string()),
            };
            self.hear(&mut is_up);
            match said {
                Said::Shelf(list) => {
                    let next = known.stored.take_list(list, Instant::now());
                    next.into_iter().for_each(|uid| self.orders.want(uid));
                }
                Said::Update(Update::Event(event)) if !known.told.is_new(&event) => {}
                Said::Update(Update::RemoteIncident(kept)) => {
                    let (is_wanted, next) = known.stored.take(&kept, Instant::now());
                    next.into_iter().for_each(|uid| self.orders.want(uid));
                    if is_wanted {
                        self.feed.push(Update::RemoteIncident(kept));
                    }
                }
                Said::Update(Update::Frame(frame)) => {
                    let missed = known.counters.frame(&frame);
                    self.feed.push(Update::Frame(frame));
                    let missed = missed.into_iter().map(Update::Event);
                    missed.for_each(|event| self.feed.push(event));
                    *frames += 1;
                    self.orders.arrived(*frames);
                }
                Said::Update(update) => {
                    if let Update::Hello(hello) = &update {
                        known.counters.hello(hello);
                    }
                    self.feed.push(update);
                }
            }
        }
    }

    /// Something came.
    fn hear(&self, is_up: &mut bool) {
        let was_silent = {
            let mut state = self.state();
            state.heard = Some(Instant::now());
            std::mem::take(&mut state.is_silent)
        };
        if !std::mem::replace(is_up, true) || was_silent {
            self.feed.push(Update::Link(Link::Up));
        }
    }

    /// As [`read`](Self::read), of what runs where there is no gputop.
    fn follow_nvidia_smi(&self, from: &mut impl BufRead, frames: &mut u64) -> Option<String> {
        let mut is_up = false;
        nvidia_smi::follow(from, self.untold(), &self.orders, |update| {
            self.hear(&mut is_up);
            if let Some(update) = update {
                *frames += u64::from(matches!(update, Update::Frame(_)));
                self.feed.push(update);
            }
        })
    }

    /// Requests to the far side, until the source's reader is gone; a far side that is silent is ended, and one that was
    /// left alone by a machine that slept.
    fn pass_on(&self, requests: &Receiver<Request>, slept: &dyn Fn() -> Duration) {
        let (mut looked, mut before) = (Instant::now(), slept());
        loop {
            let left = TICK.saturating_sub(looked.elapsed());
            match requests.recv_timeout(left) {
                Ok(Request::Connect) => self.hurry(),
                Ok(request) => {
                    if self.orders.is_plain() {
                        let answer = nvidia_smi::refused(&request, self.untold());
                        answer.into_iter().for_each(|update| self.feed.push(update));
                    }
                    self.orders.ask(request);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if looked.elapsed() >= TICK {
                looked = Instant::now();
                self.look_at_the_clock();
                let now = slept();
                if now.saturating_sub(before) > NAP {
                    self.wake();
                }
                before = now;
            }
        }
        let mut state = self.state();
        state.has_ended = true;
        state.end();
        self.changed.notify_all();
    }

    /// Whoever waits for the next connection waits no more.
    fn hurry(&self) {
        let mut state = self.state();
        if state.group.is_none() {
            state.is_hurried = true;
            self.changed.notify_all();
        }
    }

    /// This machine has slept.
    fn wake(&self) {
        let mut state = self.state();
        (state.is_hurried, state.is_dead) = (true, true);
        state.end();
        self.changed.notify_all();
    }

    fn look_at_the_clock(&self) {
        let expected = Duration::from_millis(self.interval.0) * SILENT_AFTER + A_WHILE;
        let mut state = self.state();
        let Some(heard) = state.heard.filter(|_| state.group.is_some()) else {
            return;
        };
        let since = heard.elapsed();
        if since > GIVEN_UP_AFTER.max(expected * 2) {
            state.end();
        } else if since > expected {
            state.is_silent = true;
            drop(state);
            let since = millis(since);
            self.feed.push(Update::Link(Link::Silent { since }));
        }
    }
}

impl State {
    fn end(&mut self) {
        if let Some(group) = self.group {
            let _ = killpg(group, Signal::SIGTERM);
        }
    }
}

fn millis(duration: Duration) -> Millis {
    Millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

/// Not all who lost the same host knock again at the same moment.
fn jittered(pause: Duration) -> Duration {
    let part = RandomState::new().hash_one(0) % 512;
    pause * (768 + u32::try_from(part).unwrap_or(0)) / 1024
}

/// What a command complains of, the end of it.
struct Complaints {
    kept: Arc<Mutex<Vec<u8>>>,
    /// Says nothing, and is closed at the end of them.
    end: Receiver<()>,
}

/// What a command left running may hold its error output open for as long as it likes: that is not waited for.
const LAST_WORDS: Duration = Duration::from_millis(500);

impl Complaints {
    fn of(mut from: ChildStderr) -> Self {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let (alive, end) = std::sync::mpsc::channel();
        let keep = Arc::clone(&kept);
        let reader = std::thread::Builder::new().name("far complaints".into());
        // Without a thread nothing is known of them.
        let _ = reader.spawn(move || {
            let _alive: std::sync::mpsc::Sender<()> = alive;
            let mut piece = [0; 1024];
            while let Ok(n @ 1..) = from.read(&mut piece) {
                let mut kept = keep.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend_from_slice(&piece[..n]);
                let surplus = kept.len().saturating_sub(MAX_COMPLAINTS);
                kept.drain(..surplus);
            }
        });
        Self { kept, end }
    }

    /// After the command's end.
    fn so_far(self) -> Vec<u8> {
        let _ = self.end.recv_timeout(LAST_WORDS);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *kept)
    }
}

/// Whether ssh says that it would have had to ask.
fn is_question(complaint: &[u8]) -> bool {
    const WORDS: [&str; 3] = [
        "Permission denied (",
        "Host key verification failed",
        "Too many authentication failures",
    ];
    WORDS
        .iter()
        .any(|words| memchr::memmem::find(complaint, words.as_bytes()).is_some())
}

fn ended_words(status: Option<ExitStatus>, complaint: &[u8]) -> String {
    let complaint = last_words(complaint);
    match status.and_then(|status| status.code()) {
        _ if !complaint.is_empty() => complaint,
        Some(0) => "the far side ended".into(),
        Some(code) => format!("the far side ended with exit code {code}"),
        None => "the far side was ended".into(),
    }
}
