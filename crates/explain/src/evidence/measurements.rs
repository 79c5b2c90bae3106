//! Measurements that a live process or a recording adds to the text of a log.

use gputop_model::holders::summary::HolderSummary;
use gputop_model::reported_pool::ReportedPool;
use gputop_model::units::{Bytes, Millis};
use serde::{Deserialize, Serialize};

/// Measurements that the dashboard or `gputop run` made. A missing measurement is `None`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Measured {
    /// Duration for which the process was watched.
    pub watched: Option<Millis>,
    /// Growth of the process's minimum allocated memory, in bytes per minute.
    pub allocated_growth: Option<f64>,
    /// Growth of reserved memory while allocated memory was flat, in bytes per minute.
    pub reserved_growth: Option<f64>,
    /// Ratio of the last memory peak to the highest earlier peak.
    pub spike: Option<f64>,
    /// Highest peak of allocated memory before the last step, in bytes.
    #[serde(rename = "greatest")]
    pub highest_peak: Option<Bytes>,
    pub steps: Option<u64>,
    /// True if allocated memory had fallen before the failure, as it does at the end of each training step.
    /// `Some(false)` is used only if the process was watched from its start.
    #[serde(rename = "came_down")]
    pub has_fallen: Option<bool>,
    /// Number of cache flushes in the minutes before the failure (`num_alloc_retries`).
    pub retries: Option<u64>,
    /// Size of the largest cached free block usable for the failed request.
    #[serde(rename = "largest_hole")]
    pub largest_free_block: Option<Bytes>,
    /// Lower bound on the request's size: a free block of this size was too small for the request.
    #[serde(rename = "wanted_over")]
    pub request_over: Option<Bytes>,
    /// Maximum time between the failure and the read of `largest_free_block`. `None` if the hook read the size at the
    /// failure.
    #[serde(rename = "hole_lag")]
    pub free_block_lag: Option<Millis>,
    /// Size of the largest free block that only other streams can use.
    #[serde(rename = "largest_hole_elsewhere")]
    pub largest_free_block_other_streams: Option<Bytes>,
    /// Summary of the free blocks, or `None` if they changed between the failure and the read.
    #[serde(rename = "holes")]
    pub free_blocks: Option<FreeBlockSummary>,
    /// Growth of other processes' memory on the GPU in the minute before the failure.
    pub others_grew: Option<Bytes>,
    /// File contents that the host keeps in memory, if the GPU has no memory of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_page_cache: Option<Bytes>,
    /// Environment variable that configured PyTorch's allocator, with its value: `PYTORCH_ALLOC_CONF=…`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocator_settings: Option<String>,
    /// Memory holders at the time of the failure or shortly before it, without tensor names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holders: Option<HolderSummary>,
    /// Pools of JAX, TensorFlow and CuPy on the GPU whose memory ran out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<PoolAtFailure>,
    /// Free memory of that GPU in the last sample before the failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_free: Option<Bytes>,
}

/// A pool of JAX, TensorFlow or CuPy when an allocation failed.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PoolAtFailure {
    pub pool: ReportedPool,
    /// True if the pool belongs to the process that failed.
    pub is_own: bool,
    /// Settings of the pool in the environment of its process
    /// ([`Process::pool_conf`](gputop_model::process::Process::pool_conf)).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conf: Option<String>,
    /// Maximum time between the failure and the reading. `None` if the hook read the values at the failure.
    pub lag: Option<Millis>,
}

impl Measured {
    /// Replaces the pools of the process that failed with those that the hook read at the failure.
    pub fn set_own_pools(&mut self, pools: &[ReportedPool]) {
        if !pools.is_empty() {
            self.pools.retain(|measured| !measured.is_own);
            self.pools.extend(pools.iter().map(|pool| PoolAtFailure {
                pool: pool.clone(),
                is_own: true,
                ..PoolAtFailure::default()
            }));
        }
    }
}

impl PoolAtFailure {
    /// Returns when the values were read: `when the error was raised`.
    #[must_use]
    pub fn when(&self) -> String {
        match self.lag {
            Some(Millis(lag)) => {
                format!(
                    "within {}.{} s of the error",
                    lag.div_ceil(100) / 10,
                    lag.div_ceil(100) % 10
                )
            }
            None => "when the error was raised".to_owned(),
        }
    }
}

/// Summary of free blocks in the large pool, excluding those of CUDA graphs and MemPools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct FreeBlockSummary {
    pub count: u64,
    pub bytes: Bytes,
    /// Size of the largest free block that belongs to the stream with the most allocated memory.
    pub largest: Bytes,
    /// Size of the largest free block that belongs to any other stream, if there is one.
    #[serde(rename = "elsewhere")]
    pub other_streams: Option<Bytes>,
    #[serde(rename = "pins")]
    pub pinned: PinnedSegments,
    /// Maximum time between the failure and the read of the free blocks.
    pub lag: Millis,
}

/// Nearly empty segments: live blocks use less than a tenth of their memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PinnedSegments {
    pub segments: u64,
    pub held: Bytes,
    pub live: Bytes,
}
