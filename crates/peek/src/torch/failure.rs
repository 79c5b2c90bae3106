//! Reasons why a process's allocator cannot be read.

use gputop_model::{Allocator, Missing, Reason};

use crate::memory::MemoryError;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    #[error("no PyTorch with CUDA found in this process")]
    NotTorch,
    #[error("neither PyTorch with CUDA nor an array of JAX or CuPy on a GPU found in this process")]
    NoHolders,
    /// The PyTorch library is loaded, but its list of devices is empty.
    #[error("PyTorch has not initialized CUDA yet")]
    NotInitialised,
    #[error(
        "caching is disabled (PYTORCH_NO_CUDA_MEMORY_CACHING is set), so PyTorch allocates every tensor from the driver"
    )]
    CachingOff,
    #[error("backend:cudaMallocAsync is set, so the pool is inside the driver and cannot be read")]
    CudaMallocAsync,
    #[error("the program uses a pluggable allocator, which gputop cannot read")]
    Pluggable,
    /// Mangled name of an allocator class unknown to gputop.
    #[error("unknown allocator class: {0}")]
    OtherBackend(Box<str>),
    /// The layout of this PyTorch build is unknown and could not be verified.
    #[error("unknown PyTorch build, and its blocks do not match its statistics")]
    UnknownBuild,
    #[error("the allocator changed during every read")]
    Busy,
    /// The allocator has disappeared, because the process executed another program.
    #[error("the process now runs another program")]
    Changed,
    #[error("forked copy of its parent's allocator, which does not hold memory")]
    Forked,
    #[error("the process is not watched")]
    NotWatched,
    #[error("cancelled")]
    Cancelled,
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

impl Failure {
    pub fn missing(&self) -> Missing {
        let reason = match self {
            Self::NotTorch
            | Self::NoHolders
            | Self::CachingOff
            | Self::CudaMallocAsync
            | Self::Pluggable
            | Self::Forked => Reason::Unsupported,
            Self::NotInitialised | Self::Busy | Self::NotWatched | Self::Cancelled => {
                Reason::NotRead
            }
            Self::Changed => Reason::Gone,
            Self::OtherBackend(_) | Self::UnknownBuild => Reason::Unknown,
            Self::Memory(error) => return error.missing(),
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

    /// Returns a rank that is higher for more informative failures. Used to choose one failure if a process has loaded
    /// two PyTorch libraries.
    pub fn priority(&self) -> u8 {
        match self {
            Self::NotTorch => 0,
            Self::NotInitialised => 1,
            _ => 2,
        }
    }
}
