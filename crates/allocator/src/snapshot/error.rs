//! Reasons why a snapshot file cannot be read. Each is one sentence with the position and, where possible, a fix.

use std::io;

use thiserror::Error;

use super::opcode;

#[derive(Debug, Error)]
pub enum SnapshotError {
    #[error("{0}")]
    Read(#[from] io::Error),
    #[error("truncated at byte {0}: copy the file again, or let the program write it again")]
    Cut(u64),
    /// The pickle contains an instruction that would run code in Python.
    #[error(
        "at byte {at} it asks Python to {} ({}): a memory snapshot is plain data, and gputop executes no code from files",
        opcode::intent(*.opcode),
        opcode::name(*.opcode)
    )]
    Executes { opcode: u8, at: u64 },
    #[error("not a pickle file: {0}")]
    NoPickle(&'static str),
    #[error("unsupported pickle protocol {0}: protocols 2 to 5 can be read")]
    Protocol(u8),
    #[error("damaged at byte {at}: {what}")]
    Damaged { at: u64, what: String },
    /// The file exceeds a limit that keeps malicious files from exhausting memory.
    #[error("limit exceeded at byte {at}: {what}")]
    TooMuch { at: u64, what: String },
    /// The file exceeds the memory limit, which is based on the file size. A compressed file may exceed the limit after
    /// decompression.
    #[error(
        "reading the file takes more than {} MiB of memory, too much for a file of {size} bytes; if it is compressed, decompress it first",
        *max_memory >> 20
    )]
    TooLarge { size: u64, max_memory: usize },
    #[error(
        "not a PyTorch memory snapshot: {0}; `torch.cuda.memory._dump_snapshot(FILE)` writes one"
    )]
    NoSnapshot(String),
}

pub type Result<T> = std::result::Result<T, SnapshotError>;
