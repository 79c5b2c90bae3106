//! Leaves the dashboard to run a command that prompts the user, such as ssh, and restores the dashboard afterwards.

use std::io::{self, Write};
use std::process::Command;
use std::time::Duration;

use gputop_model::text::Escaped;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::input::Input;
use super::signal_events::SignalEvents;
use super::terminal::{self, Terminal};

/// A login command that may prompt the user.
pub struct InteractiveLogin {
    /// Host name as typed by the user.
    pub to: String,
    /// Creates the login command, which must exit on its own.
    pub command: Box<dyn Fn() -> Command>,
}

/// How long to collect signals after the login command exits. Ctrl-C, for example, reaches both the command and gputop.
const SIGNAL_DRAIN_TIMEOUT: Duration = Duration::from_millis(50);

/// Runs the login command. Returns the termination signal if gputop receives one in the meantime. Does not
/// read keys, because they belong to the command.
pub(super) async fn run(
    login: &InteractiveLogin,
    terminal: &mut Terminal,
    keys: &mut Option<Input>,
    signals: &mut SignalEvents,
) -> io::Result<Option<Signal>> {
    drop(keys.take());
    terminal::restore();
    let _ = writeln!(
        io::stderr(),
        "gputop: connecting to {}; respond to the ssh prompts here, or press Ctrl-C to cancel",
        Escaped(&login.to)
    );
    let mut reason = None;
    match (login.command)().spawn() {
        Ok(child) => {
            let pid = Pid::from_raw(child.id().cast_signed());
            let mut exited = tokio::task::spawn_blocking(move || wait(pid));
            loop {
                tokio::select! {
                    _ = &mut exited => break,
                    signal = signals.next() => if let Some(asked) = termination(signal) {
                        reason = Some(asked);
                        let _ = kill(pid, Signal::SIGTERM);
                    }
                }
            }
            while let Ok(signal) = tokio::time::timeout(SIGNAL_DRAIN_TIMEOUT, signals.next()).await
            {
                reason = reason.or(termination(signal));
            }
        }
        Err(error) => {
            let _ = writeln!(io::stderr(), "gputop: cannot start the login command: {error}");
        }
    }
    // Start a new line for the shell's subsequent output.
    let _ = writeln!(io::stderr());
    terminal.resume()?;
    *keys = Some(Input::start()?);
    Ok(reason)
}

/// Returns a signal that ends gputop. Ignores Ctrl-C and Ctrl-Z, which are meant for the login command.
fn termination(signal: Signal) -> Option<Signal> {
    matches!(signal, Signal::SIGTERM | Signal::SIGHUP).then_some(signal)
}

/// Waits for the login command to exit. Resumes the command if it stops, because the user's shell cannot resume it.
fn wait(pid: Pid) {
    while let Ok(WaitStatus::Stopped(..)) = waitpid(pid, Some(WaitPidFlag::WUNTRACED)) {
        let _ = kill(pid, Signal::SIGCONT);
    }
}
