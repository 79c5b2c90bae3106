//! What goes to the far side: each order a line, whole or not at all.

use std::io::Write;
use std::process::ChildStdin;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::protocol::RequestLine;
use crate::model::units::Millis;
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
    interval: Option<Millis>,
    focus: Option<Request>,
    /// Whoever is there knows no requests.
    is_plain: bool,
}

impl Orders {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on to here. A far side that does not read shall hold up nobody: a pipe that is full ends the connection.
    pub(super) fn connect(&self, to: ChildStdin) {
        let _ = fcntl(&to, FcntlArg::F_SETFL(OFlag::O_NONBLOCK));
        let mut state = self.state();
        (state.to, state.is_plain) = (Some(to), false);
    }

    /// After the greeting.
    pub(super) fn repeat(&self) {
        let mut state = self.state();
        let interval = state.interval.map(Request::Interval);
        let again = [interval, state.focus.clone()];
        again.into_iter().flatten().for_each(|request| {
            state.write(&RequestLine {
                request: Some(request),
                ..RequestLine::default()
            });
        });
    }

    pub(super) fn disconnect(&self) {
        self.state().to = None;
    }

    pub(super) fn ask(&self, request: Request) {
        let mut state = self.state();
        match &request {
            Request::Interval(interval) => state.interval = Some(*interval),
            Request::Focus(_) => state.focus = Some(request.clone()),
            _ => {}
        }
        state.write(&RequestLine {
            request: Some(request),
            ..RequestLine::default()
        });
    }

    /// One of the incidents that were listed is wanted.
    pub(super) fn want(&self, incident: String) {
        self.state().write(&RequestLine {
            incident: Some(incident),
            ..RequestLine::default()
        });
    }

    /// From now on to somebody who takes lines of text alone; requests go nowhere.
    pub(super) fn be_plain(&self) {
        self.state().is_plain = true;
    }

    pub(super) fn is_plain(&self) -> bool {
        self.state().is_plain
    }

    /// To somebody who takes lines of text.
    pub(super) fn say(&self, line: &str) {
        self.state().put(format!("{line}\n").as_bytes());
    }

    /// As it was asked for last.
    pub(super) fn interval(&self) -> Millis {
        self.state().interval.unwrap_or_default()
    }

    /// So many frames have arrived.
    pub(super) fn arrived(&self, frames: u64) {
        self.state().write(&RequestLine {
            frames: Some(frames),
            ..RequestLine::default()
        });
    }
}

impl State {
    fn write(&mut self, order: &RequestLine) {
        if self.is_plain || self.to.is_none() {
            return;
        }
        if let Ok(mut line) = serde_json::to_vec(order) {
            line.push(b'\n');
            self.put(&line);
        }
    }

    fn put(&mut self, line: &[u8]) {
        let Some(to) = &mut self.to else { return };
        // A half order would spoil the next one.
        if to.write_all(line).is_err() {
            self.to = None;
        }
    }
}
