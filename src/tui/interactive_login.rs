//! A command that asks the person something, in the plain terminal: the screen is given up for it and taken again.

use std::io::{self, Write};
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::input::Input;
use super::terminal::{self, Terminal};
use super::{Left, Signals};
use crate::model::text::Escaped;

/// How a host is connected to where somebody has to answer on the way.
pub struct InteractiveLogin {
    /// What the person calls it.
    pub to: String,
    /// Ends by itself.
    pub command: Box<dyn Fn() -> Command>,
}

/// A Ctrl-C there is told here a moment later.
const LATE: Duration = Duration::from_millis(50);

/// Runs it; how the dashboard is left where a signal asks for that meanwhile. The keys are not read in that time: they are
/// the command's.
pub(super) async fn answer(
    way_in: &InteractiveLogin,
    terminal: &mut Terminal,
    keys: &mut Option<Input>,
    signals: &mut Signals,
) -> io::Result<Option<Left>> {
    drop(keys.take());
    terminal::give_back();
    let _ = writeln!(
        io::stderr(),
        "gputop: connecting to {}; what ssh asks is answered here, Ctrl-C gives up",
        Escaped(&way_in.to)
    );
    let mut left = None;
    match (way_in.command)().spawn() {
        Ok(child) => {
            let pid = Pid::from_raw(child.id().cast_signed());
            let mut ended = tokio::task::spawn_blocking(move || wait(pid));
            loop {
                tokio::select! {
                    _ = &mut ended => break,
                    signal = signals.next() => if let Some(asked) = asks_to_leave(signal) {
                        left = Some(asked);
                        let _ = kill(pid, Signal::SIGTERM);
                    }
                }
            }
            while let Ok(signal) = tokio::time::timeout(LATE, signals.next()).await {
                left = left.or(asks_to_leave(signal));
            }
        }
        Err(error) => {
            let _ = writeln!(io::stderr(), "gputop: it cannot be started: {error}");
        }
    }
    // What comes next in the plain terminal begins a line.
    let _ = writeln!(io::stderr());
    terminal.resume()?;
    *keys = Some(Input::start()?);
    Ok(left)
}

/// Ctrl-C and Ctrl-Z are for the command.
fn asks_to_leave(signal: Signal) -> Option<Left> {
    matches!(signal, Signal::SIGTERM | Signal::SIGHUP).then_some(Left::BySignal(signal as i32))
}

/// To its end: the shell does not know of it, so that one that is stopped would be so for ever.
fn wait(pid: Pid) {
    while let Ok(WaitStatus::Stopped(..)) = waitpid(pid, Some(WaitPidFlag::WUNTRACED)) {
        let _ = kill(pid, Signal::SIGCONT);
    }
}
