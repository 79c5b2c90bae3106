//! What the keeper and the relay tell each other, a byte and a number at a time.

use std::io::{self, Read, Write};

/// From the keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Report {
    Started,
    NotStarted,
    Stopped(i32),
    Exited(i32),
    Killed(i32),
}

/// To the keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Signal(i32),
    /// Have the terminal, and go on if it was stopped this many times: a later stop is one that we have yet to follow.
    Foreground(i32),
    /// The same without the terminal.
    Background(i32),
}

const SIZE: usize = 5;

impl Report {
    pub(super) fn write(self, to: &mut impl Write) -> io::Result<()> {
        let (kind, number) = match self {
            Self::Started => (b's', 0),
            Self::NotStarted => (b'n', 0),
            Self::Stopped(signal) => (b't', signal),
            Self::Exited(code) => (b'e', code),
            Self::Killed(signal) => (b'k', signal),
        };
        to.write_all(&packed(kind, number))
    }

    pub(super) fn read(from: &mut impl Read) -> io::Result<Self> {
        let (kind, number) = unpacked(from)?;
        Ok(match kind {
            b's' => Self::Started,
            b'n' => Self::NotStarted,
            b't' => Self::Stopped(number),
            b'e' => Self::Exited(number),
            b'k' => Self::Killed(number),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        })
    }
}

impl Order {
    pub(super) fn write(self, to: &mut impl Write) -> io::Result<()> {
        let (kind, number) = match self {
            Self::Signal(signal) => (b's', signal),
            Self::Foreground(stops) => (b'f', stops),
            Self::Background(stops) => (b'b', stops),
        };
        to.write_all(&packed(kind, number))
    }

    pub(super) fn read(from: &mut impl Read) -> io::Result<Self> {
        let (kind, number) = unpacked(from)?;
        Ok(match kind {
            b's' => Self::Signal(number),
            b'f' => Self::Foreground(number),
            b'b' => Self::Background(number),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        })
    }
}

fn packed(kind: u8, number: i32) -> [u8; SIZE] {
    let [a, b, c, d] = number.to_le_bytes();
    [kind, a, b, c, d]
}

fn unpacked(from: &mut impl Read) -> io::Result<(u8, i32)> {
    let mut message = [0; SIZE];
    from.read_exact(&mut message)?;
    let [kind, a, b, c, d] = message;
    Ok((kind, i32::from_le_bytes([a, b, c, d])))
}
