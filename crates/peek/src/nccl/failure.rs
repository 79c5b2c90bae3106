//! Reasons why the process groups of a process cannot be read.

use gputop_model::{Missing, Reason};

use crate::memory::MemoryError;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    #[error("no PyTorch with NCCL found in this process")]
    NotNccl,
    #[error("forked copy of its parent's process groups, which calls no collectives")]
    Forked,
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

impl Failure {
    pub fn missing(&self) -> Missing {
        match self {
            Self::NotNccl | Self::Forked => Missing::new(Reason::Unsupported, self.to_string()),
            Self::Memory(error) => error.missing(),
        }
    }
}
