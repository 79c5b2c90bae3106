//! Why a process's allocator is not read, as the reader tells it and as a screen shows it.

use crate::collect::memory::MemoryError;
use crate::model::pool::Allocator;
use crate::model::reading::{Missing, Reason};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    #[error("no PyTorch with CUDA in this process")]
    NotTorch,
    /// The library is there, its list of devices is empty.
    #[error("PyTorch has not initialised CUDA yet")]
    NotInitialised,
    #[error(
        "caching is off: PYTORCH_NO_CUDA_MEMORY_CACHING is set, so every tensor is the driver's own allocation"
    )]
    CachingOff,
    #[error(
        "backend:cudaMallocAsync is set: the driver keeps the pool, nothing of it is in the process"
    )]
    CudaMallocAsync,
    #[error("a pluggable allocator: the program's own library hands the memory out")]
    Pluggable,
    /// The class's name, as the compiler mangled it.
    #[error("an allocator of a kind that is not known: {0}")]
    OtherBackend(Box<str>),
    /// Nothing of it could be verified.
    #[error("a build of PyTorch that is not known, and that its blocks do not bear out")]
    UnknownBuild,
    /// The allocator changed in every try.
    #[error("the allocator was changing all the time")]
    Busy,
    /// What was attached to is not there any more: the process executed another program.
    #[error("the process runs another program now")]
    Changed,
    #[error("a copy of its parent's allocator, left from the fork: it holds no memory of its own")]
    Forked,
    #[error("this process is not watched")]
    NotWatched,
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

impl Failure {
    /// What the screens show in the place of the pool.
    pub fn missing(&self) -> Missing {
        let reason = match self {
            Self::NotTorch
            | Self::CachingOff
            | Self::CudaMallocAsync
            | Self::Pluggable
            | Self::Forked => Reason::Unsupported,
            Self::NotInitialised | Self::Busy | Self::NotWatched => Reason::NotRead,
            Self::Memory(MemoryError::Denied(_)) => Reason::Denied,
            Self::Changed | Self::Memory(MemoryError::Gone) => Reason::Gone,
            Self::OtherBackend(_) | Self::UnknownBuild | Self::Memory(_) => Reason::Unknown,
        };
        Missing::new(reason, self.to_string())
    }

    pub fn allocator(&self) -> Allocator {
        match self {
            Self::CudaMallocAsync => Allocator::CudaMallocAsync,
            Self::Pluggable => Allocator::Pluggable,
            Self::CachingOff | Self::UnknownBuild | Self::Busy | Self::NotInitialised => {
                Allocator::Native
            }
            _ => Allocator::Unknown,
        }
    }

    /// Of two libraries in one process, whose failure tells more.
    pub fn weight(&self) -> u8 {
        match self {
            Self::NotTorch => 0,
            Self::NotInitialised => 1,
            _ => 2,
        }
    }
}
