//! Samples what a process does, on a thread of its own: the Python stack of the thread that drives the GPU at random times,
//! and the counters of `/proc` once a second.
//!
//! The times are random because a fixed interval always hits the same part of a step that takes as long as the interval,
//! or a whole part of it.

mod busiest_thread;
mod load;
mod random;
mod source_lines;
mod stack_phases;
mod watched;

use std::collections::BTreeMap;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Instant;

use gputop_model::{Millis, Missing, PhaseRequest, PhaseWindow, ProcessKey};

pub use self::load::Roots;
use self::watched::{BACKGROUND, SHOWN, WatchedProcess};

/// Length of a window in the background, long enough for a verdict.
const BACKGROUND_WINDOW: Millis = Millis(30_000);
/// Maximum number of processes that are sampled in the background.
const MAX_BACKGROUND: usize = 8;

enum PhaseCommand {
    Show(Option<PhaseRequest>),
    Underused(Vec<ProcessKey>),
}

/// Handle to the thread, which exits when the handle is dropped.
#[derive(Debug)]
pub struct Phases {
    commands: Sender<PhaseCommand>,
}

impl Phases {
    /// Starts the thread. It calls `answer` with what a process did: once a second while the process is shown, and every
    /// ten seconds while its GPU has little to do.
    pub fn start(
        roots: Roots,
        answer: impl Fn(ProcessKey, Result<PhaseWindow, Missing>) + Send + 'static,
    ) -> std::io::Result<Self> {
        let (commands, inbox) = mpsc::channel();
        std::thread::Builder::new().name("phases".into()).spawn(move || {
            let (shown, background) = (None, BTreeMap::new());
            SampledProcesses { roots, shown, background }.run(&inbox, &answer);
        })?;
        Ok(Self { commands })
    }

    /// Selects the process to sample for a screen or command. `None` stops the samples.
    pub fn show(&self, wanted: Option<PhaseRequest>) {
        let _ = self.commands.send(PhaseCommand::Show(wanted));
    }

    /// Sets the processes whose GPUs have little to do.
    pub fn underused(&self, processes: &[ProcessKey]) {
        let _ = self.commands.send(PhaseCommand::Underused(processes.to_vec()));
    }
}

struct SampledProcesses {
    roots: Roots,
    shown: Option<WatchedProcess>,
    /// `None` for a process that cannot be sampled.
    background: BTreeMap<ProcessKey, Option<WatchedProcess>>,
}

impl SampledProcesses {
    fn run(
        &mut self,
        inbox: &Receiver<PhaseCommand>,
        answer: &impl Fn(ProcessKey, Result<PhaseWindow, Missing>),
    ) {
        loop {
            let command = match self.due() {
                None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(due) => inbox.recv_timeout(due.saturating_duration_since(Instant::now())),
            };
            match command {
                Ok(PhaseCommand::Show(wanted)) => self.show(wanted),
                Ok(PhaseCommand::Underused(processes)) => self.set_background(&processes),
                Err(RecvTimeoutError::Timeout) => self.tick(answer),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn due(&self) -> Option<Instant> {
        let background = self.background.values().flatten();
        self.shown.iter().chain(background).map(WatchedProcess::due).min()
    }

    fn show(&mut self, wanted: Option<PhaseRequest>) {
        match (wanted, &mut self.shown) {
            (None, shown) => *shown = None,
            (Some(request), Some(process)) if process.key() == request.process => {
                process.set_window(request);
            }
            (Some(request), shown) => {
                *shown = Some(WatchedProcess::new(&self.roots, request, SHOWN));
            }
        }
    }

    fn set_background(&mut self, processes: &[ProcessKey]) {
        self.background.retain(|key, _| processes.contains(key));
        for process in processes {
            if self.background.len() >= MAX_BACKGROUND {
                break;
            }
            self.background.entry(*process).or_insert_with(|| {
                let request = PhaseRequest { process: *process, window: BACKGROUND_WINDOW };
                let process = WatchedProcess::new(&self.roots, request, BACKGROUND);
                process.has_stacks().then_some(process)
            });
        }
    }

    fn tick(&mut self, answer: &impl Fn(ProcessKey, Result<PhaseWindow, Missing>)) {
        let shown = self.shown.as_ref().map(WatchedProcess::key);
        if let Some(process) = &mut self.shown
            && let Some(window) = process.tick()
        {
            let has_failed = window.is_err();
            answer(process.key(), window);
            if has_failed {
                self.shown = None;
            }
        }
        for (key, slot) in &mut self.background {
            let Some(window) = slot.as_mut().and_then(WatchedProcess::tick) else { continue };
            if window.is_err() {
                *slot = None;
            }
            // A shown process has better windows.
            if Some(*key) != shown {
                answer(*key, window);
            }
        }
    }
}
