//! Messages between the session leader and the relay: one byte and two numbers each.

use std::io::{self, Read, Write};

use crate::model::process::ProcessKey;
use crate::model::units::{Pid, StartTicks};

/// A message from the session leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Report {
    /// The command was started; its identity, if /proc could be read.
    Started(Option<ProcessKey>),
    NotStarted,
    Stopped(i32),
    Exited(i32),
    Killed(i32),
}

/// A message to the session leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeaderCommand {
    Signal(i32),
    /// Take the terminal, and continue if the command was stopped this many times. A later stop has not been handled
    /// by the relay yet.
    Foreground(i32),
    /// The same, without the terminal.
    Background(i32),
}

const SIZE: usize = 13;

impl Report {
    pub(super) fn write(self, to: &mut impl Write) -> io::Result<()> {
        let (kind, number) = match self {
            Self::Started(process) => {
                let pid = process.and_then(|process| i32::try_from(process.pid.0).ok());
                let start = process.map_or(0, |process| process.start.0);
                return to.write_all(&encode(b's', pid.unwrap_or(0), start));
            }
            Self::NotStarted => (b'n', 0),
            Self::Stopped(signal) => (b't', signal),
            Self::Exited(code) => (b'e', code),
            Self::Killed(signal) => (b'k', signal),
        };
        to.write_all(&encode(kind, number, 0))
    }

    pub(super) fn read(from: &mut impl Read) -> io::Result<Self> {
        let (kind, number, start) = decode(from)?;
        Ok(match kind {
            b's' => {
                let pid = u32::try_from(number).ok().filter(|pid| *pid > 0);
                let start = StartTicks(start);
                Self::Started(pid.map(|pid| ProcessKey {
                    pid: Pid(pid),
                    start,
                }))
            }
            b'n' => Self::NotStarted,
            b't' => Self::Stopped(number),
            b'e' => Self::Exited(number),
            b'k' => Self::Killed(number),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        })
    }
}

impl LeaderCommand {
    pub(super) fn write(self, to: &mut impl Write) -> io::Result<()> {
        let (kind, number) = match self {
            Self::Signal(signal) => (b's', signal),
            Self::Foreground(stops) => (b'f', stops),
            Self::Background(stops) => (b'b', stops),
        };
        to.write_all(&encode(kind, number, 0))
    }

    pub(super) fn read(from: &mut impl Read) -> io::Result<Self> {
        let (kind, number, _) = decode(from)?;
        Ok(match kind {
            b's' => Self::Signal(number),
            b'f' => Self::Foreground(number),
            b'b' => Self::Background(number),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        })
    }
}

fn encode(kind: u8, number: i32, more: u64) -> [u8; SIZE] {
    let mut message = [kind; SIZE];
    message[1..5].copy_from_slice(&number.to_le_bytes());
    message[5..].copy_from_slice(&more.to_le_bytes());
    message
}

fn decode(from: &mut impl Read) -> io::Result<(u8, i32, u64)> {
    let (mut kind, mut number, mut more) = ([0], [0; 4], [0; 8]);
    from.read_exact(&mut kind)?;
    from.read_exact(&mut number)?;
    from.read_exact(&mut more)?;
    Ok((
        kind[0],
        i32::from_le_bytes(number),
        u64::from_le_bytes(more),
    ))
}
