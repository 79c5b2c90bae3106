//! What the keeper and the relay tell each other: a byte and two numbers at a time.

use std::io::{self, Read, Write};

use crate::model::process::ProcessKey;
use crate::model::units::{Pid, StartTicks};

/// From the keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Report {
    /// And who it is, where the kernel told.
    Started(Option<ProcessKey>),
    NotStarted,
    Stopped(i32),
    Exited(i32),
    Killed(i32),
}

/// To the keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeaderCommand {
    Signal(i32),
    /// Have the terminal, and go on if it was stopped this many times: a later stop is one that we have yet to follow.
    Foreground(i32),
    /// The same without the terminal.
    Background(i32),
}

const SIZE: usize = 13;

impl Report {
    pub(super) fn write(self, to: &mut impl Write) -> io::Result<()> {
        let (kind, number) = match self {
            Self::Started(who) => {
                let pid = who.and_then(|who| i32::try_from(who.pid.0).ok());
                let start = who.map_or(0, |who| who.start.0);
                return to.write_all(&packed(b's', pid.unwrap_or(0), start));
            }
            Self::NotStarted => (b'n', 0),
            Self::Stopped(signal) => (b't', signal),
            Self::Exited(code) => (b'e', code),
            Self::Killed(signal) => (b'k', signal),
        };
        to.write_all(&packed(kind, number, 0))
    }

    pub(super) fn read(from: &mut impl Read) -> io::Result<Self> {
        let (kind, number, start) = unpacked(from)?;
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
        to.write_all(&packed(kind, number, 0))
    }

    pub(super) fn read(from: &mut impl Read) -> io::Result<Self> {
        let (kind, number, _) = unpacked(from)?;
        Ok(match kind {
            b's' => Self::Signal(number),
            b'f' => Self::Foreground(number),
            b'b' => Self::Background(number),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        })
    }
}

fn packed(kind: u8, number: i32, more: u64) -> [u8; SIZE] {
    let mut message = [kind; SIZE];
    message[1..5].copy_from_slice(&number.to_le_bytes());
    message[5..].copy_from_slice(&more.to_le_bytes());
    message
}

fn unpacked(from: &mut impl Read) -> io::Result<(u8, i32, u64)> {
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
