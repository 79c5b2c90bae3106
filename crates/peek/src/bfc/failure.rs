//! Reasons why the pools of JAX, TensorFlow or CuPy in a process cannot be read.

use gputop_model::{Missing, Reason};

use crate::memory::MemoryError;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    #[error("no JAX, TensorFlow or CuPy with CUDA found in this process")]
    NotLoaded,
    /// The library is loaded, but no pool has reserved memory. The framework may be configured to use another allocator.
    #[error("{0} has reserved no GPU memory in a pool that gputop can read")]
    NotInitialised(&'static str),
    #[error("the search for its pools has not finished yet")]
    Searching,
    #[error("unknown XLA build, whose pools do not have the expected structure")]
    UnknownBuild,
    #[error(
        "gputop can read the pools of CuPy 14.1 and 14.2, but not those of this version. Start the program with `gputop run` to see them"
    )]
    UnknownCupy,
    #[error("the allocator changed during every read")]
    Busy,
    /// The allocator was destroyed, or the process runs another program.
    #[error("the allocator no longer exists")]
    Changed,
    #[error("forked copy of its parent's allocator, which does not hold memory")]
    Forked,
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

impl Failure {
    pub fn missing(&self) -> Missing {
        let reason = match self {
            Self::NotLoaded | Self::Forked => Reason::Unsupported,
            Self::NotInitialised(_) | Self::Searching | Self::Busy => Reason::NotRead,
            Self::UnknownBuild | Self::UnknownCupy => Reason::Unknown,
            Self::Changed => Reason::Gone,
            Self::Memory(error) => return error.missing(),
        };
        Missing::new(reason, self.to_string())
    }
}

/// Converts an unmapped address to `None`. Any other error ends the search.
pub fn mapped<T>(result: Result<T, MemoryError>) -> Result<Option<T>, MemoryError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(MemoryError::Unreadable { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
