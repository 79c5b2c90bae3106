//! The near side: a command that is a far host, started again when it ends.
//!
//! One thread reads and starts anew, one passes orders on and watches the clock. Nothing here is waited for by a screen.

use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::greeting::{NoAgent, greeted, last_words};
use super::incoming::{Incoming, Said};
use super::orders::Orders;
use super::shelf::Wanted;
use super::ssh::{Shared, agent};
use super::target::Target;
use super::told::Told;
use crate::model::link::Link;
use crate::model::units::Millis;
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
/// A host among a hundred has not much more to say at once.
const BUFFER: usize = 16 << 10;
/// Of what a command complains, the end.
const MOST_COMPLAINTS: usize = 4096;

/// A far host and how it is talked to.
#[derive(Debug, Clone)]
pub struct Connection {
    pub target: Target,
    pub interval: Millis,
    /// What the agent there may do when it is asked, beside looking.
    pub allow_signals: bool,
    pub allow_probe: bool,
    /// Where ssh shares one connection; `None` where the user's own configuration says, or nothing is to be shared.
    pub shared: Option<Shared>,
}

impl Connection {
    fn command(&self) -> Command {
        let mut arguments = String::new();
        if self.allow_signals {
            arguments += " --allow-signals";
        }
        if self.allow_probe {
            arguments += " --allow-probe";
        }
        let mut command = match &self.target {
            Target::Ssh(ssh) => ssh.silent(self.shared.as_ref(), &agent(&arguments)),
            Target::Via(line) => {
                let mut shell = Command::new("sh");
                shell.args(["-c", line]);
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
    let (feed, requests, source) = stream();
    let far = Arc::new(Far {
        feed,
        orders: Orders::default(),
        interval: connection.interval,
        state: Mutex::default(),
        ended: Condvar::new(),
    });
    far.orders.ask(Request::Interval(connection.interval));
    let reader = Arc::clone(&far);
    let thread = |name: &str| std::thread::Builder::new().name(name.into());
    thread("far").spawn(move || reader.connect_for_ever(&connection))?;
    thread("far orders").spawn(move || far.pass_on(&requests))?;
    Ok(source)
}

struct Far {
    feed: Feed,
    orders: Orders,
    interval: Millis,
    state: Mutex<State>,
    /// The reader of the source is gone.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    /// The group of the command that runs.
    group: Option<Pid>,
    heard: Option<Instant>,
    is_silent: bool,
    has_ended: bool,
}

/// What was heard on all connections: nothing of it is told twice.
#[derive(Default)]
struct Known {
    told: Told,
    stored: Wanted,
}

/// How a connection went.
struct Went {
    why: String,
    frames: u64,
}

impl Far {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connect_for_ever(&self, connection: &Connection) {
        let (mut pause, mut lost) = (FIRST_PAUSE, None);
        let mut known = Known::default();
        self.feed.push(Update::Link(Link::Connecting));
        loop {
            let went = self.connect(connection, &mut known);
            if went.frames > 0 {
                pause = FIRST_PAUSE;
            }
            if went.frames > 0 || lost.is_none() {
                lost = Some(Instant::now());
            }
            if self.wait(jittered(pause), lost, &went.why) {
                return;
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Waits, telling each second for how much longer; true when the source's reader is gone.
    fn wait(&self, pause: Duration, lost: Option<Instant>, why: &str) -> bool {
        let until = Instant::now() + pause;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            self.feed.push(Update::Link(Link::Lost {
                since: millis(lost.map_or(Duration::ZERO, |lost| lost.elapsed())),
                why: why.to_owned(),
                again_in: millis(left),
            }));
            if left.is_zero() {
                return false;
            }
            let step = left.min(Duration::from_secs(1));
            let has_ended = |state: &mut State| !state.has_ended;
            let waited = self.ended.wait_timeout_while(self.state(), step, has_ended);
            let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if state.has_ended {
                return true;
            }
        }
    }

    /// From start to end.
    fn connect(&self, connection: &Connection, known: &mut Known) -> Went {
        let mut command = connection.command();
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                let why = format!("`{program}` cannot be started: {error}");
                return Went { why, frames: 0 };
            }
        };
        let group = Pid::from_raw(child.id().cast_signed());
        running().push(group);
        let has_ended = {
            let mut state = self.state();
            (state.group, state.heard) = (Some(group), Some(Instant::now()));
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
        Went {
            why: broken.unwrap_or_else(|| ended_words(status, &complaint)),
            frames,
        }
    }

    /// To the end of what it says; why it was ended, where it was us.
    fn read(&self, child: &mut Child, known: &mut Known, frames: &mut u64) -> Option<String> {
        let mut from = BufReader::with_capacity(BUFFER, child.stdout.take()?);
        match greeted(&mut from) {
            Ok(Ok(())) => {}
            Ok(Err(NoAgent::Other(version))) => {
                return Some(format!(
                    "gputop {version} there speaks another protocol than {} here: one of them is old",
                    env!("CARGO_PKG_VERSION")
                ));
            }
            Ok(Err(NoAgent::Silent(words))) if !words.is_empty() => return Some(words),
            _ => return None,
        }
        self.orders.repeat();
        known.stored.connect();
        let mut incoming = Incoming::new(from).ok()?;
        let mut is_up = false;
        loop {
            let said = match incoming.next() {
                Ok(said) => said?,
                Err(error) => return Some(error.to_string()),
            };
            let was_silent = {
                let mut state = self.state();
                state.heard = Some(Instant::now());
                std::mem::take(&mut state.is_silent)
            };
            if !is_up || was_silent {
                self.feed.push(Update::Link(Link::Up));
                is_up = true;
            }
            match said {
                Said::Shelf(list) => {
                    let next = known.stored.take_list(list);
                    next.into_iter().for_each(|uid| self.orders.want(uid));
                }
                Said::Update(Update::Event(event)) if !known.told.is_new(&event) => {}
                Said::Update(Update::Kept(kept)) => {
                    let (is_wanted, next) = known.stored.take(&kept);
                    next.into_iter().for_each(|uid| self.orders.want(uid));
                    if is_wanted {
                        self.feed.push(Update::Kept(kept));
                    }
                }
                Said::Update(update) => {
                    let is_frame = matches!(update, Update::Frame(_));
                    self.feed.push(update);
                    if is_frame {
                        *frames += 1;
                        self.orders.arrived(*frames);
                    }
                }
            }
        }
    }

    /// Requests to the far side, until the source's reader is gone; a far side that is silent is ended.
    fn pass_on(&self, requests: &Receiver<Request>) {
        loop {
            match requests.recv_timeout(TICK) {
                Ok(request) => self.orders.ask(request),
                Err(RecvTimeoutError::Timeout) => self.look_at_the_clock(),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let mut state = self.state();
        state.has_ended = true;
        state.end();
        self.ended.notify_all();
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
                let surplus = kept.len().saturating_sub(MOST_COMPLAINTS);
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

fn ended_words(status: Option<ExitStatus>, complaint: &[u8]) -> String {
    let complaint = last_words(complaint);
    match status.and_then(|status| status.code()) {
        _ if !complaint.is_empty() => complaint,
        Some(0) => "the far side ended".into(),
        Some(code) => format!("the far side ended with exit code {code}"),
        None => "the far side was ended".into(),
    }
}
