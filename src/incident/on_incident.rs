//! Runs the user's `on_incident` command once for each incident, from the gputop process that sees it first.
//!
//! `sh -c` runs the command in its own process group with the incident's JSON on standard input. The command is killed
//! if it takes too long, and when gputop exits ([`Notifications`](super::Notifications)). Its standard output is
//! discarded. If it fails, the error message contains the last line of its standard error.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gputop_model::text::visible;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::store::Store;
use super::uid::Uid;
use crate::open_files::restore_in;

/// Maximum duration of the user's `on_incident` command.
pub const NOTICE_LIMIT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
const MAX_STDERR: usize = 4 << 10;
/// Maximum number of bytes of standard error to read at a time: what a pipe holds. A command that writes faster than
/// gputop reads would otherwise never be killed.
const MAX_READ: usize = 64 << 10;

/// The result of running the `on_incident` command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    Sent,
    /// The command already ran for this incident.
    AlreadySent,
    /// Error message without a period: `the command failed (exit 3): no such channel`.
    Failed(String),
}

/// Runs the user's `command` for a stored incident, unless it already ran for that incident. Blocks for up to `limit`,
/// so do not call it from the task that draws the screen. Kills the command as soon as `is_cancelled` is set.
pub fn notify(
    store: &Store,
    uid: &Uid,
    command: &str,
    limit: Duration,
    is_cancelled: &AtomicBool,
) -> Notice {
    let begun = Instant::now();
    let failed = |why: &dyn std::fmt::Display| Notice::Failed(why.to_string());
    let record = match store.read(uid) {
        Ok(record) => record,
        Err(error) => return failed(&error),
    };
    match store.claim_notice(uid) {
        Ok(true) => {}
        Ok(false) => return Notice::AlreadySent,
        Err(error) => return failed(&error),
    }
    let Ok(json) = serde_json::to_vec(&record) else {
        return failed(&"cannot write the incident as JSON");
    };
    match run(command, json, begun + limit, is_cancelled) {
        Ok(()) => Notice::Sent,
        Err(why) => Notice::Failed(why),
    }
}

/// Runs the user's command with one line of JSON, and waits for it. Errors are phrases without a period.
pub(super) fn run(
    command: &str,
    mut json: Vec<u8>,
    deadline: Instant,
    is_cancelled: &AtomicBool,
) -> Result<(), String> {
    if is_cancelled.load(Ordering::Relaxed) {
        return Err("the command was not started".to_owned());
    }
    // Commands that append to a file write one document per line.
    json.push(b'\n');
    let begun = Instant::now();
    let mut shell = Command::new("sh");
    let mut child = restore_in(shell.args(["-c", command]))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|error| format!("cannot start sh: {error}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // Write on a separate thread, because the write blocks if the command does not read its input. It is not an
        // error if the command exits before it has read everything.
        let feeder = thread::Builder::new().name("on_incident".into());
        let _ = feeder.spawn(move || stdin.write_all(&json));
    }
    let mut stderr = StderrText::of(&child);
    let status = loop {
        stderr.read(&mut child);
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if is_cancelled.load(Ordering::Relaxed) => {
                stop(&mut child);
                return Err("the command was interrupted and killed".to_owned());
            }
            Ok(None) if Instant::now() < deadline => thread::sleep(POLL_INTERVAL),
            Ok(None) => {
                stop(&mut child);
                return Err(format!(
                    "the command took longer than {:.0} s and was killed",
                    begun.elapsed().as_secs_f64()
                ));
            }
            Err(error) => return Err(format!("cannot wait for the command: {error}")),
        }
    };
    stderr.read(&mut child);
    if status.success() {
        return Ok(());
    }
    Err(format!("the command failed ({}){}", describe(status), stderr.last_line()))
}

fn describe(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("signal {signal}"),
        None => format!("exit {}", status.code().unwrap_or_default()),
    }
}

/// Kills the user's command and all processes in its process group.
fn stop(child: &mut Child) {
    if let Ok(group) = i32::try_from(child.id()) {
        let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// The beginning of the user command's standard error. Read without blocking, because a process started by the command
/// may keep the pipe open forever.
struct StderrText {
    text: Vec<u8>,
    can_read: bool,
}

impl StderrText {
    fn of(child: &Child) -> Self {
        let can_read = child.stderr.as_ref().is_some_and(|stderr| {
            fcntl(stderr.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).is_ok()
        });
        Self { text: Vec::new(), can_read }
    }

    fn read(&mut self, child: &mut Child) {
        let Some(stderr) = child.stderr.as_mut().filter(|_| self.can_read) else { return };
        let mut chunk = [0; 1024];
        let mut done = 0;
        while done < MAX_READ {
            match stderr.read(&mut chunk) {
                Ok(0) => self.can_read = false,
                Ok(n) => {
                    let room = MAX_STDERR.saturating_sub(self.text.len());
                    self.text.extend_from_slice(&chunk[..n.min(room)]);
                    done += n;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => {}
            }
            return;
        }
    }

    /// Returns the last line of standard error, like `: no such channel`, or an empty string.
    fn last_line(&self) -> String {
        let lines = self.text.split(|byte| *byte == b'\n');
        let last = lines.map(<[u8]>::trim_ascii).rfind(|line| !line.is_empty());
        last.map_or_else(String::new, |line| format!(": {}", visible(line, 200)))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::OwnedFd;
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn reads_a_part_of_standard_error_that_never_ends() {
        let (sender, ended) = mpsc::channel();
        thread::spawn(move || {
            let mut child = Command::new("true").spawn().expect("a process");
            let endless = File::open("/dev/zero").expect("an endless file");
            child.stderr = Some(OwnedFd::from(endless).into());
            let mut stderr = StderrText::of(&child);
            stderr.read(&mut child);
            let _ = child.wait();
            sender.send(stderr.text.len())
        });
        assert_eq!(ended.recv_timeout(Duration::from_secs(20)), Ok(MAX_STDERR));
    }
}
