//! The signals that the event loop handles.

use std::io;

use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};

use super::signal_actions;

/// Signals that the event loop receives.
pub(super) struct SignalEvents {
    terminate: tokio::signal::unix::Signal,
    hang_up: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    /// `None` if gputop was started with SIGTSTP ignored.
    pub(super) stop: Option<tokio::signal::unix::Signal>,
    resize: tokio::signal::unix::Signal,
}

impl SignalEvents {
    pub(super) fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
            stop: if signal_actions::ignores_stops() {
                None
            } else {
                Some(signal(SignalKind::from_raw(Signal::SIGTSTP as i32))?)
            },
            resize: signal(SignalKind::window_change())?,
        })
    }

    pub(super) async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.terminate.recv() => Signal::SIGTERM,
            _ = self.hang_up.recv() => Signal::SIGHUP,
            _ = self.interrupt.recv() => Signal::SIGINT,
            Some(_) = async { self.stop.as_mut()?.recv().await } => Signal::SIGTSTP,
            _ = self.resize.recv() => Signal::SIGWINCH,
        }
    }
}
