//! `on_incident`: a command of the user's that is told of an incident, once, whoever sees it first.
//!
//! It is run by `sh -c` in a process group of its own, gets the incident's JSON on its standard input, and is killed
//! when it takes too long. It prints nowhere; what it says on standard error when it fails is told in one sentence.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::store::Store;
use super::uid::Uid;
use crate::model::text::visible;
use crate::open_files::restore_in;

/// How long the command may take.
pub const NOTICE_LIMIT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(10);
const MAX_SAID: usize = 4 << 10;

/// What became of telling somebody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    Told,
    /// Somebody was told of it before.
    Known,
    /// A sentence without a period: `on_incident: the command failed (exit 3): no such channel`.
    Failed(String),
}

/// Runs `command` for an incident of the store if nobody did so far; blocks up to `limit`, so never on a task that draws.
#[must_use]
pub fn notify(store: &Store, uid: &Uid, command: &str, limit: Duration) -> Notice {
    notify_until(store, uid, command, limit, &AtomicBool::new(false))
}

/// The same, also ended as soon as `is_enough` says so: whoever waits does not want to any more.
#[must_use]
pub fn notify_until(
    store: &Store,
    uid: &Uid,
    command: &str,
    limit: Duration,
    is_enough: &AtomicBool,
) -> Notice {
    let failed = |why: &dyn std::fmt::Display| Notice::Failed(format!("on_incident: {why}"));
    let record = match store.read(uid) {
        Ok(record) => record,
        Err(error) => return failed(&error),
    };
    match store.claim_notice(uid) {
        Ok(true) => {}
        Ok(false) => return Notice::Known,
        Err(error) => return failed(&error),
    }
    let Ok(mut json) = serde_json::to_vec(&record) else {
        return failed(&"the incident could not be written as JSON");
    };
    json.push(b'\n');
    match tell(command, json, limit, is_enough) {
        Ok(()) => Notice::Told,
        Err(why) => failed(&why),
    }
}

/// A clause where it failed.
fn tell(
    command: &str,
    json: Vec<u8>,
    limit: Duration,
    is_enough: &AtomicBool,
) -> Result<(), String> {
    let mut shell = Command::new("sh");
    let mut child = restore_in(shell.args(["-c", command]))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|error| format!("sh could not be started: {error}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // One that does not read must not hold us; one that ends before it has read all has read what it wanted.
        let feeder = thread::Builder::new().name("on_incident".into());
        let _ = feeder.spawn(move || stdin.write_all(&json));
    }
    let mut said = Said::of(&child);
    let end = Instant::now() + limit;
    let status = loop {
        said.read(&mut child);
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if is_enough.load(Ordering::Relaxed) => {
                stop(&mut child);
                return Err("the command was interrupted and killed".to_owned());
            }
            Ok(None) if Instant::now() < end => thread::sleep(PAUSE),
            Ok(None) => {
                stop(&mut child);
                return Err(format!(
                    "the command took longer than {} s and was killed",
                    limit.as_secs()
                ));
            }
            Err(error) => return Err(format!("the command could not be waited for: {error}")),
        }
    };
    said.read(&mut child);
    if status.success() {
        return Ok(());
    }
    Err(format!(
        "the command failed ({}){}",
        words(status),
        said.words()
    ))
}

fn words(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("signal {signal}"),
        None => format!("exit {}", status.code().unwrap_or_default()),
    }
}

/// With all that it has started in its group.
fn stop(child: &mut Child) {
    if let Ok(group) = i32::try_from(child.id()) {
        let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// What it writes on standard error, as far as anybody wants to read. Read without waiting: what it started may hold the
/// other end for ever.
struct Said {
    text: Vec<u8>,
    can_read: bool,
}

impl Said {
    fn of(child: &Child) -> Self {
        let can_read = child.stderr.as_ref().is_some_and(|stderr| {
            fcntl(stderr.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).is_ok()
        });
        Self {
            text: Vec::new(),
            can_read,
        }
    }

    fn read(&mut self, child: &mut Child) {
        let Some(stderr) = child.stderr.as_mut().filter(|_| self.can_read) else {
            return;
        };
        let mut piece = [0; 1024];
        loop {
            match stderr.read(&mut piece) {
                Ok(0) => self.can_read = false,
                Ok(n) => {
                    let room = MAX_SAID.saturating_sub(self.text.len());
                    self.text.extend_from_slice(&piece[..n.min(room)]);
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => {}
            }
            return;
        }
    }

    /// `: no such channel`, its last line; nothing where it said nothing.
    fn words(&self) -> String {
        let lines = self.text.split(|byte| *byte == b'\n');
        let last = lines.map(<[u8]>::trim_ascii).rfind(|line| !line.is_empty());
        last.map_or_else(String::new, |line| format!(": {}", visible(line, 200)))
    }
}
