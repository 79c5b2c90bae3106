//! Signals that a user may send to processes, and their results.

use serde::{Deserialize, Serialize};

use super::process::ProcessKey;
use super::reading::Missing;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Signal {
    Hup,
    Int,
    Quit,
    Abrt,
    Kill,
    Usr1,
    Usr2,
    Term,
    Cont,
    Stop,
    Tstp,
}

#[derive(Debug)]
pub struct SignalDef {
    pub signal: Signal,
    /// Signal name as in `kill -TERM`.
    pub name: &'static str,
    /// Signal number, which is the same on every Linux architecture for which NVIDIA provides a driver.
    pub number: i32,
    /// Phrase without a period: the signal's effect on a program that does not catch it, and whether it can be caught.
    pub help: &'static str,
}

const fn def(signal: Signal, name: &'static str, number: i32, help: &'static str) -> SignalDef {
    SignalDef { signal, name, number, help }
}

/// Signals ordered by number, as listed by `kill -l`.
pub const SIGNALS: &[SignalDef] = &[
    def(Signal::Hup, "HUP", 1, "terminal closed: terminates the process"),
    def(Signal::Int, "INT", 2, "like Ctrl-C: Python raises KeyboardInterrupt"),
    def(Signal::Quit, "QUIT", 3, "terminates the process with a core dump"),
    def(Signal::Abrt, "ABRT", 6, "terminates with a core dump; faulthandler prints the stack"),
    def(Signal::Kill, "KILL", 9, "terminates immediately, cannot be caught; nothing is saved"),
    def(Signal::Usr1, "USR1", 10, "program-defined, often a checkpoint; default: terminates"),
    def(Signal::Usr2, "USR2", 12, "program-defined; default: terminates"),
    def(Signal::Term, "TERM", 15, "asks the process to exit; it may save and clean up first"),
    def(Signal::Cont, "CONT", 18, "resumes the process after STOP or TSTP"),
    def(Signal::Stop, "STOP", 19, "suspends the process; it keeps its GPU memory"),
    def(Signal::Tstp, "TSTP", 20, "like Ctrl-Z: suspends the process unless it is caught"),
];

impl Signal {
    pub fn def(self) -> &'static SignalDef {
        // A test checks that `SIGNALS` contains every signal.
        SIGNALS.iter().find(|def| def.signal == self).unwrap_or(&SIGNALS[7])
    }

    pub fn name(self) -> &'static str {
        self.def().name
    }
}

/// Result of sending a signal to processes: for each process, success or the reason why the signal was not delivered.
#[derive(Debug, Clone, PartialEq)]
pub struct Signalled {
    pub signal: Signal,
    pub outcomes: Vec<(ProcessKey, Result<(), Missing>)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signal_maps_to_its_own_definition() {
        for def in SIGNALS {
            assert_eq!(def.signal.name(), def.name);
        }
    }
}
