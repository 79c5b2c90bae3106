//! Why a file is not read, each as one sentence: what is wrong, where, and what to do where something can be done.

use std::io;

use thiserror::Error;

use super::opcode;

#[derive(Debug, Error)]
pub enum SnapshotError {
    #[error("{0}")]
    Read(#[from] io::Error),
    #[error(
        "it is cut off at byte {0}, in the middle of the data: copy it again, or let the program write it again"
    )]
    Cut(u64),
    /// What would run code of the file's choice in Python.
    #[error(
        "at byte {at} it asks to {} ({}): a memory snapshot is plain data, and nothing of a file is ever executed here",
        opcode::intent(*.opcode),
        opcode::name(*.opcode)
    )]
    Executes { opcode: u8, at: u64 },
    #[error("it is no pickle: {0}")]
    NoPickle(&'static str),
    #[error("it is a pickle of protocol {0}; protocols 0 to 5 can be read")]
    Protocol(u8),
    #[error("it is damaged at byte {at}: {what}")]
    Damaged { at: u64, what: String },
    /// A bound that keeps hostile files from using up memory.
    #[error("at byte {at} it has {what}, which no memory snapshot has")]
    TooMuch { at: u64, what: String },
    /// The limit follows from the size of the file, which for a compressed one is far below its uncompressed size.
    #[error(
        "reading it takes more than {} MiB, which is too much for a file of {size} bytes; if it is packed, unpack it first",
        *max_memory >> 20
    )]
    TooLarge { size: u64, max_memory: usize },
    #[error(
        "it is no memory snapshot of PyTorch, but {0}; `torch.cuda.memory._dump_snapshot(FILE)` writes one"
    )]
    NoSnapshot(String),
}

pub type Result<T> = std::result::Result<T, SnapshotError>;
