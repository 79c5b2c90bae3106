//! What goes to the far side: each order a line, whole or not at all.

use std::io::Write;
use std::process::ChildStdin;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::protocol::Order;
use crate::source::Request;

/// The line to the far side while there is one, and what it has to be told again when there is another.
#[derive(Debug, Default)]
pub(super) struct Orders {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    to: Option<ChildStdin>,
    /// Answered by all that follows, so a far side that starts anew has to know of them.
    interval: Option<Request>,
    focus: Option<Request>,
}

impl Orders {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on to here. A far side that does not read shall hold up nobody: a pipe that is full ends the connection.
    pub(super) fn connect(&self, to: ChildStdin) {
        let _ = fcntl(&to, FcntlArg::F_SETFL(OFlag::O_NONBLOCK));
        self.state().to = Some(to);
    }

    /// After the greeting.
    pub(super) fn repeat(&self) {
        let mut state = self.state();
        let again = [state.interval.clone(), state.focus.clone()];
        again.into_iter().flatten().for_each(|request| {
            state.write(&Order {
                request: Some(request),
                ..Order::default()
            });
        });
    }

    pub(super) fn disconnect(&self) {
        self.state().to = None;
    }

    pub(super) fn ask(&self, request: Request) {
        let mut state = self.state();
        match &request {
            Request::Interval(_) => state.interval = Some(request.clone()),
            Request::Focus(_) => state.focus = Some(request.clone()),
            _ => {}
        }
        state.write(&Order {
            request: Some(request),
            ..Order::default()
        });
    }

    /// One of the incidents that were listed is wanted.
    pub(super) fn want(&self, incident: String) {
        self.state().write(&Order {
            incident: Some(incident),
            ..Order::default()
        });
    }

    /// So many frames have arrived.
    pub(super) fn arrived(&self, frames: u64) {
        self.state().write(&Order {
            frames: Some(frames),
            ..Order::default()
        });
    }
}

impl State {
    fn write(&mut self, order: &Order) {
        let Some(to) = &mut self.to else { return };
        let Ok(mut line) = serde_json::to_vec(order) else {
            return;
        };
        line.push(b'\n');
        // A half order would spoil the next one.
        if to.write_all(&line).is_err() {
            self.to = None;
        }
    }
}
