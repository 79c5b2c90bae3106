//! The exit status of a command.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use nix::sys::signal::Signal;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitOutcome {
    Exited(i32),
    /// Killed by the signal with this number; real-time signals have no name.
    Killed(i32),
}

impl ExitOutcome {
    /// Returns the exit code that a shell would report: 128 plus the signal number for a signal.
    #[must_use]
    pub fn code(self) -> u8 {
        let code = match self {
            Self::Exited(code) => code,
            Self::Killed(signal) => 128 + signal,
        };
        u8::try_from(code & 0xff).unwrap_or(u8::MAX)
    }

    #[must_use]
    pub fn is_failure(self) -> bool {
        self != Self::Exited(0)
    }

    /// Returns true for signal 9, also if a shell in between reported it as exit code 137.
    pub(super) fn is_sigkill(self) -> bool {
        let kill = Signal::SIGKILL as i32;
        self == Self::Killed(kill) || self == Self::Exited(128 + kill)
    }

    pub(super) fn of(status: ExitStatus) -> Self {
        match status.signal() {
            Some(signal) => Self::Killed(signal),
            None => Self::Exited(status.code().unwrap_or_default()),
        }
    }
}

impl std::fmt::Display for ExitOutcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exit {code}"),
            Self::Killed(signal) => match Signal::try_from(*signal) {
                Ok(signal) => write!(f, "{signal}"),
                Err(_) => write!(f, "signal {signal}"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_match_those_of_a_shell() {
        for (ended, code, is_sigkill) in [
            (ExitOutcome::Exited(0), 0, false),
            (ExitOutcome::Exited(255), 255, false),
            (ExitOutcome::Exited(137), 137, true),
            (ExitOutcome::Killed(9), 137, true),
            (ExitOutcome::Killed(15), 143, false),
        ] {
            assert_eq!((ended.code(), ended.is_sigkill()), (code, is_sigkill));
        }
    }
}
