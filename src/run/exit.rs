//! How a command ended.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use nix::sys::signal::Signal;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    Exited(i32),
    /// By the signal of this number; those for real time have no name.
    Killed(i32),
}

impl Ended {
    /// The exit code that a shell would show: 128 and the signal's number where it was a signal.
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

    /// Signal 9, also as a shell in between passes it on.
    pub(super) fn is_killed_hard(self) -> bool {
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

impl std::fmt::Display for Ended {
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
    fn codes_are_those_of_a_shell() {
        for (ended, code, hard) in [
            (Ended::Exited(0), 0, false),
            (Ended::Exited(255), 255, false),
            (Ended::Exited(137), 137, true),
            (Ended::Killed(9), 137, true),
            (Ended::Killed(15), 143, false),
        ] {
            assert_eq!((ended.code(), ended.is_killed_hard()), (code, hard));
        }
    }
}
