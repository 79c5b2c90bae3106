//! Signals that a person may send to processes, and what became of each.

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
    /// As `kill -TERM` names it.
    pub name: &'static str,
    /// On every Linux that NVIDIA has a driver for.
    pub number: i32,
    /// What it does to a program that does not catch it, and whether it can; without a period.
    pub help: &'static str,
}

const fn def(signal: Signal, name: &'static str, number: i32, help: &'static str) -> SignalDef {
    SignalDef {
        signal,
        name,
        number,
        help,
    }
}

/// In the order of their numbers, as `kill -l` lists them.
pub const SIGNALS: &[SignalDef] = &[
    def(Signal::Hup, "HUP", 1, "its terminal has gone: ends it"),
    def(
        Signal::Int,
        "INT",
        2,
        "like Ctrl-C: Python raises KeyboardInterrupt",
    ),
    def(Signal::Quit, "QUIT", 3, "ends it with a core dump"),
    def(
        Signal::Abrt,
        "ABRT",
        6,
        "ends it with a core dump; faulthandler prints the stack",
    ),
    def(
        Signal::Kill,
        "KILL",
        9,
        "ends it at once: nothing is saved, and it cannot be caught",
    ),
    def(
        Signal::Usr1,
        "USR1",
        10,
        "the program's own: often a checkpoint; else ends it",
    ),
    def(Signal::Usr2, "USR2", 12, "the program's own; else ends it"),
    def(
        Signal::Term,
        "TERM",
        15,
        "asks it to end; it may save and clean up first",
    ),
    def(Signal::Cont, "CONT", 18, "lets it go on after STOP or TSTP"),
    def(
        Signal::Stop,
        "STOP",
        19,
        "holds it; its memory on the GPU stays taken",
    ),
    def(
        Signal::Tstp,
        "TSTP",
        20,
        "like Ctrl-Z: holds it, if it does not catch it",
    ),
];

impl Signal {
    pub fn def(self) -> &'static SignalDef {
        // The test below holds that every signal is listed.
        let listed = SIGNALS.iter().find(|def| def.signal == self);
        listed.unwrap_or(&SIGNALS[7])
    }

    pub fn name(self) -> &'static str {
        self.def().name
    }
}

/// What became of a signal: for each process that it was delivered, or why not.
#[derive(Debug, Clone, PartialEq)]
pub struct Signalled {
    pub signal: Signal,
    pub outcomes: Vec<(ProcessKey, Result<(), Missing>)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signal_is_its_own() {
        for def in SIGNALS {
            assert_eq!(def.signal.name(), def.name);
        }
    }
}
