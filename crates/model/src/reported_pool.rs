//! Memory pools whose framework reports its own statistics: JAX, TensorFlow, CuPy.
//!
//! The Python hook reads the framework's statistics inside the program once a second. Each value is a separate reading,
//! because frameworks report fewer and different values than PyTorch. A process may have several reported pools in
//! addition to PyTorch's, even on the same device, so reported pools have a separate list.

use serde::{Deserialize, Serialize};

use super::pool::Allocator;
use super::process::ProcessKey;
use super::reading::Reading;
use super::units::{Bytes, GpuUuid, Mono};

/// A reported memory pool of one framework on one device of one process.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ReportedPool {
    pub process: ProcessKey,
    pub framework: Framework,
    pub allocator: Allocator,
    /// Device index as seen by the process, which differs from NVML's index.
    pub ordinal: u32,
    /// GPU with device index `ordinal`, if known.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub gpu: Reading<GpuUuid>,
    /// Time when gputop read the program's report. The program wrote it at most a few seconds earlier.
    pub at: Mono,
    /// Bytes in live arrays and tensors: XLA's and TensorFlow's `bytes_in_use`, CuPy's `used_bytes()`.
    pub allocated: Reading<Bytes>,
    /// Peak of `allocated` since the program started.
    pub allocated_peak: Reading<Bytes>,
    /// Bytes reserved from the driver: XLA's `pool_bytes`, CuPy's `total_bytes()`.
    pub reserved: Reading<Bytes>,
    pub reserved_peak: Reading<Bytes>,
    /// Maximum size of the pool: `bytes_limit`, `get_limit()`.
    pub limit: Reading<Bytes>,
    pub largest_free_block: Reading<Bytes>,
}

crate::named! {
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Framework {
        Jax = "JAX",
        Tensorflow = "TensorFlow",
        Cupy = "CuPy",
        #[default]
        #[serde(other)]
        Unknown = "unknown framework",
    }
    /// Returns the framework's name in its official spelling.
    fn words;
}

impl ReportedPool {
    /// Returns the reserved bytes not used by any array, if both values are known.
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

    /// Returns the pool's framework and, if known, allocator: `JAX, XLA BFC`.
    pub fn name(&self) -> String {
        match self.allocator {
            Allocator::Unknown => self.framework.words().to_owned(),
            allocator => format!("{}, {}", self.framework.words(), allocator.words()),
        }
    }
}
