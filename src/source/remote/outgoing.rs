//! Sends requests to a remote host, one per line. A line is sent completely or not at all.

use std::io::Write;
use std::process::ChildStdin;
use std::sync::{Mutex, MutexGuard, PoisonError};

use gputop_model::protocol::{Request, RequestLine};
use gputop_model::units::Millis;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

/// Stdin of the current connection, if any, and the settings to resend on the next one.
#[derive(Debug, Default)]
pub(super) struct RequestWriter {
    state: Mutex<OutgoingState>,
}

#[derive(Debug, Default)]
struct OutgoingState {
    stdin: Option<ChildStdin>,
    /// Settings that affect all later frames and must therefore be resent to a restarted agent.
    interval: Option<Millis>,
    focus: Option<Request>,
    /// True if the remote end is the `nvidia-smi` script, which does not support requests.
    uses_script: bool,
}

impl RequestWriter {
    fn state(&self) -> MutexGuard<'_, OutgoingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Switches to a new connection. A remote host that stops reading must not block this host, so a full pipe closes
    /// the connection.
    pub(super) fn connect(&self, stdin: ChildStdin) {
        let _ = fcntl(&stdin, FcntlArg::F_SETFL(OFlag::O_NONBLOCK));
        let mut state = self.state();
        (state.stdin, state.uses_script) = (Some(stdin), false);
    }

    /// Resends the interval and the selected GPU after the greeting.
    pub(super) fn resend_settings(&self) {
        let mut state = self.state();
        let interval = state.interval.map(Request::Interval);
        let settings = [interval, state.focus.clone()];
        settings.into_iter().flatten().for_each(|request| {
            state.write(&RequestLine::Request(request));
        });
    }

    pub(super) fn disconnect(&self) {
        self.state().stdin = None;
    }

    pub(super) fn send(&self, request: Request) {
        let mut state = self.state();
        match &request {
            Request::Interval(interval) => state.interval = Some(*interval),
            Request::Focus(_) => state.focus = Some(request.clone()),
            _ => {}
        }
        state.write(&RequestLine::Request(request));
    }

    pub(super) fn request_incident(&self, incident: String) {
        self.state().write(&RequestLine::Incident(incident));
    }

    /// Switches to the `nvidia-smi` script. All later requests are discarded.
    pub(super) fn use_script(&self) {
        self.state().uses_script = true;
    }

    pub(super) fn uses_script(&self) -> bool {
        self.state().uses_script
    }

    pub(super) fn send_script_line(&self, line: &str) {
        self.state().put(format!("{line}\n").as_bytes());
    }

    pub(super) fn interval(&self) -> Millis {
        self.state().interval.unwrap_or_default()
    }

    pub(super) fn acknowledge(&self, frames: u64) {
        self.state().write(&RequestLine::Frames(frames));
    }
}

impl OutgoingState {
    fn write(&mut self, request: &RequestLine) {
        if self.uses_script || self.stdin.is_none() {
            return;
        }
        if let Ok(mut line) = serde_json::to_vec(request) {
            line.push(b'\n');
            self.put(&line);
        }
    }

    fn put(&mut self, line: &[u8]) {
        let Some(stdin) = &mut self.stdin else { return };
        // Disconnect, because a partial line would corrupt the next line.
        if stdin.write_all(line).is_err() {
            self.stdin = None;
        }
    }
}
