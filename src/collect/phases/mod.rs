//! Samples what a process does, on a thread of its own: the Python stack of the thread that drives the GPU at random times,
//! and the counters of `/proc` once a second.
//!
//! The times are random because a fixed interval always hits the same part of a step that takes as long as the interval,
//! or a whole part of it.

mod load;
mod random;
mod source_lines;
mod stack_phases;
mod watched;

use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Instant;

use gputop_model::{Missing, PhaseRequest, PhaseWindow, ProcessKey};

pub use self::watched::WatchedProcess;

/// Handle to the thread, which exits when the handle is dropped.
#[derive(Debug)]
pub struct Phases {
    shown: Sender<Option<PhaseRequest>>,
}

/// Folders of the kernel's files.
#[derive(Debug, Clone)]
pub struct Roots {
    pub proc: PathBuf,
    pub cgroup: PathBuf,
}

impl Phases {
    /// Starts the thread. While a process is shown, it calls `answer` once a second with what the process did.
    pub fn start(
        roots: Roots,
        answer: impl Fn(ProcessKey, Result<PhaseWindow, Missing>) + Send + 'static,
    ) -> std::io::Result<Self> {
        let (shown, inbox) = mpsc::channel();
        std::thread::Builder::new()
            .name("phases".into())
            .spawn(move || run(&roots, &inbox, &answer))?;
        Ok(Self { shown })
    }

    /// Selects the process to sample. `None` stops the samples.
    pub fn show(&self, wanted: Option<PhaseRequest>) {
        let _ = self.shown.send(wanted);
    }
}

fn run(
    roots: &Roots,
    inbox: &Receiver<Option<PhaseRequest>>,
    answer: &impl Fn(ProcessKey, Result<PhaseWindow, Missing>),
) {
    let mut watched: Option<WatchedProcess> = None;
    loop {
        let command = match &watched {
            None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(process) => {
                inbox.recv_timeout(process.due().saturating_duration_since(Instant::now()))
            }
        };
        match command {
            Ok(None) => watched = None,
            Ok(Some(request)) => match &mut watched {
                Some(process) if process.key() == request.process => process.set_window(request),
                _ => watched = Some(WatchedProcess::new(roots, request)),
            },
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                let Some(process) = &mut watched else { continue };
                let Some(window) = process.tick() else { continue };
                let (key, has_failed) = (process.key(), window.is_err());
                answer(key, window);
                if has_failed {
                    watched = None;
                }
            }
        }
    }
}
