//! The pool of a framework that tells itself what it holds: JAX, TensorFlow, CuPy.
//!
//! Its figures come from inside the program, by the Python hook and each framework's own statistics, once a second.
//! They are fewer than PyTorch's, and which there are differs: each is a reading of its own. A process may have
//! several beside PyTorch's, also on the same device, so they have a list of their own.

use serde::{Deserialize, Serialize};

use super::pool::Allocator;
use super::process::ProcessKey;
use super::reading::Reading;
use super::units::{Bytes, GpuUuid, Mono};

/// One pool: one process, one framework, one device of that process.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ReportedPool {
    pub process: ProcessKey,
    pub framework: Framework,
    pub allocator: Allocator,
    /// The device's number inside the process, which is not NVML's.
    pub ordinal: u32,
    /// Which GPU that is, when it could be told.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub gpu: Reading<GpuUuid>,
    /// When it was read from where the program had written it, at most some seconds before.
    pub at: Mono,
    /// In live arrays and tensors: XLA's and TensorFlow's `bytes_in_use`, CuPy's `used_bytes()`.
    pub allocated: Reading<Bytes>,
    /// Since the program began.
    pub allocated_peak: Reading<Bytes>,
    /// What the pool holds from the driver: XLA's `pool_bytes`, CuPy's `total_bytes()`.
    pub reserved: Reading<Bytes>,
    pub reserved_peak: Reading<Bytes>,
    /// The most that it may hold: `bytes_limit`, `get_limit()`.
    pub limit: Reading<Bytes>,
    pub largest_free_block: Reading<Bytes>,
}

/// Whose pool it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Framework {
    Jax,
    Tensorflow,
    Cupy,
    #[default]
    #[serde(other)]
    Unknown,
}

impl Framework {
    /// As it writes itself.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Jax => "JAX",
            Self::Tensorflow => "TensorFlow",
            Self::Cupy => "CuPy",
            Self::Unknown => "a framework that this version does not know",
        }
    }
}

impl ReportedPool {
    /// Reserved, in no array; known where both are.
    #[must_use]
    pub fn idle(&self) -> Reading<Bytes> {
        match (&self.reserved, &self.allocated) {
            (Reading::Value(reserved), Reading::Value(allocated)) => {
                Bytes(reserved.0.saturating_sub(allocated.0)).into()
            }
            (Reading::Missing(why), _) | (_, Reading::Missing(why)) => {
                Reading::Missing(why.clone())
            }
        }
    }

    /// `JAX, XLA BFC`: framework and, where it is known, allocator.
    #[must_use]
    pub fn name(&self) -> String {
        match self.allocator {
            Allocator::Unknown => self.framework.words().to_owned(),
            allocator => format!("{}, {}", self.framework.words(), allocator.words()),
        }
    }
}
