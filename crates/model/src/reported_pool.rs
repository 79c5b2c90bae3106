//! Memory pools of JAX, TensorFlow and CuPy.
//!
//! gputop reads the pools of JAX and TensorFlow from the memory of the process once a second. If it cannot, and for CuPy,
//! the Python hook reads the framework's own statistics inside the program. Each value is a separate reading, because
//! frameworks report fewer and different values than PyTorch. A process may have several reported pools in
//! addition to PyTorch's, even on the same device, so reported pools have a separate list.

use serde::{Deserialize, Serialize};

use super::pool::{Allocator, Pool, PoolStats, Sampled};
use super::process::ProcessKey;
use super::reading::{Reading, Reason};
use super::units::{Bytes, GpuUuid, Mono};

/// A memory pool of one framework on one device of one process.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ReportedPool {
    pub process: ProcessKey,
    pub framework: Framework,
    pub allocator: Allocator,
    #[serde(skip_serializing_if = "PoolSource::is_hook")]
    pub source: PoolSource,
    /// Device index as seen by the process, which differs from NVML's index.
    pub ordinal: u32,
    /// GPU with device index `ordinal`, if known.
    #[serde(skip_serializing_if = "Reading::is_not_read")]
    pub gpu: Reading<GpuUuid>,
    /// Time when gputop read the values. The hook wrote its report at most a few seconds earlier.
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

const ALLOCATOR: &str = "XLA_PYTHON_CLIENT_ALLOCATOR";

/// Returns the value of a setting in a list of settings.
fn setting<'a>(conf: &'a str, name: &str) -> Option<&'a str> {
    conf.split(' ').find_map(|setting| setting.strip_prefix(name)?.strip_prefix('='))
}

/// Returns why gputop reads no pool of JAX in a process, if its settings ([`Process::pool_conf`]) choose an allocator
/// other than the default.
///
/// [`Process::pool_conf`]: super::process::Process::pool_conf
#[must_use]
pub fn other_allocator(conf: &str) -> Option<String> {
    let chosen = setting(conf, ALLOCATOR)?;
    let why = match chosen.to_ascii_lowercase().as_str() {
        "platform" => "JAX has no pool, and the driver's figure for the process is what it uses",
        "vmm" => "gputop does not read this allocator, and JAX has no statistics of it",
        _ => return None,
    };
    Some(format!("{ALLOCATOR}={chosen} is set: {why}"))
}

/// Minimum size of unused memory that is worth a hint.
const MIN_UNUSED: Bytes = Bytes(1 << 30);
const PREALLOCATE: &str = "XLA_PYTHON_CLIENT_PREALLOCATE";
const MEM_FRACTION: &str = "XLA_PYTHON_CLIENT_MEM_FRACTION";
const ALLOW_GROWTH: &str = "TF_FORCE_GPU_ALLOW_GROWTH";

/// Returns true for values of an environment variable that switch a setting off.
fn is_off(value: &str) -> bool {
    value == "0" || value.eq_ignore_ascii_case("false")
}

/// Where the values of a pool come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PoolSource {
    /// The memory of the process, read by gputop.
    Memory,
    /// The hook inside the program.
    #[default]
    #[serde(other)]
    Hook,
}

impl PoolSource {
    fn is_hook(&self) -> bool {
        *self == Self::Hook
    }
}

impl ReportedPool {
    /// Returns the reserved bytes not used by any array, if both values are known.
    pub fn cached(&self) -> Reading<Bytes> {
        match (&self.reserved, &self.allocated) {
            (Reading::Value(reserved), Reading::Value(allocated)) => {
                Bytes(reserved.0.saturating_sub(allocated.0)).into()
            }
            (Reading::Missing(why), _) | (_, Reading::Missing(why)) => {
                Reading::Missing(why.clone())
            }
        }
    }

    /// Returns the pool in the form of PyTorch's pools, with the values that both have. Returns `None` if the sizes are
    /// not known.
    pub fn to_pool(&self) -> Option<Pool> {
        let not_read =
            || Reading::missing(Reason::Unsupported, "only PyTorch's allocator counts it");
        Some(Pool {
            process: self.process,
            allocator: self.allocator,
            library: self.name(),
            ordinal: self.ordinal,
            gpu: self.gpu.clone(),
            at: self.at,
            limit: self.limit.get(),
            stats: PoolStats {
                allocated: Sampled::new(self.allocated.get()?),
                allocated_peak: self.allocated_peak.get().unwrap_or_default(),
                reserved: Sampled::new(self.reserved.get()?),
                reserved_peak: self.reserved_peak.get().unwrap_or_default(),
                active: Sampled::new(self.allocated.get()?),
                requested: not_read(),
                largest_free_block: self.largest_free_block.clone(),
                ..PoolStats::default()
            },
        })
    }

    /// Returns a sentence about memory that was preallocated and is not used, with the setting that reserves less. `conf`
    /// has the settings of the process ([`Process::pool_conf`](super::process::Process::pool_conf)). Returns `None` if
    /// the pool is mostly used, or grows as needed.
    pub fn preallocation(&self, conf: Option<&str>) -> Option<String> {
        let (reserved, limit) = (self.reserved.get()?, self.limit.get()?);
        let cached = self.cached().get()?;
        let is_whole = reserved.0 >= limit.0 / 10 * 9;
        let is_mostly_cached = cached >= MIN_UNUSED && cached.0 >= reserved.0 / 2;
        let set = |name: &str| setting(conf.unwrap_or_default(), name);
        if !is_whole || !is_mostly_cached {
            return None;
        }
        let advice = match self.framework {
            Framework::Jax if set(PREALLOCATE).is_none_or(|value| !is_off(value)) => {
                let now = match set(MEM_FRACTION) {
                    Some(fraction) => format!("{MEM_FRACTION}={fraction} is set"),
                    None => format!("{MEM_FRACTION} is not set, so JAX reserves 75 %"),
                };
                format!("Set {PREALLOCATE}=false, or a smaller fraction ({now})")
            }
            Framework::Tensorflow if set(ALLOW_GROWTH).is_none_or(is_off) => {
                format!("Set {ALLOW_GROWTH}=true to reserve memory only when it is needed")
            }
            _ => return None,
        };
        Some(format!("{cached} is preallocated and not used. {advice}"))
    }

    /// Returns the pool's framework and, if known, allocator: `JAX, XLA BFC`.
    pub fn name(&self) -> String {
        match self.allocator {
            Allocator::Unknown => self.framework.words().to_owned(),
            allocator => format!("{}, {}", self.framework.words(), allocator.words()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_why_a_chosen_allocator_is_not_read() {
        let why = |value: &str| {
            other_allocator(&format!("XLA_PYTHON_CLIENT_PREALLOCATE=false {ALLOCATOR}={value}"))
        };
        let platform = why("platform").expect("a reason");
        assert!(
            platform.starts_with("XLA_PYTHON_CLIENT_ALLOCATOR=platform is set: JAX has no pool")
        );
        assert!(why("VMM").is_some());
        assert_eq!(why("cuda_async"), None);
        assert_eq!((why("default"), other_allocator("")), (None, None));
    }

    #[test]
    fn names_the_setting_that_reserves_less() {
        let gib = |gib: u64| Reading::Value(Bytes(gib << 30));
        let pool = |framework, allocated: u64| ReportedPool {
            framework,
            allocated: gib(allocated),
            reserved: gib(104),
            limit: gib(105),
            ..ReportedPool::default()
        };
        let jax = pool(Framework::Jax, 2);
        let text = jax.preallocation(None).expect("a hint");
        assert!(text.starts_with("102.00 GiB is preallocated and not used. Set XLA_"), "{text}");
        assert!(text.contains("is not set, so JAX reserves 75 %"), "{text}");
        let text = jax.preallocation(Some("XLA_PYTHON_CLIENT_MEM_FRACTION=.30")).expect("a hint");
        assert!(text.contains("XLA_PYTHON_CLIENT_MEM_FRACTION=.30 is set"), "{text}");
        assert_eq!(jax.preallocation(Some("XLA_PYTHON_CLIENT_PREALLOCATE=False")), None);
        assert_eq!(pool(Framework::Jax, 90).preallocation(None), None);
        let tensorflow = pool(Framework::Tensorflow, 2);
        let text = tensorflow.preallocation(Some("TF_FORCE_GPU_ALLOW_GROWTH=false"));
        assert!(text.is_some_and(|text| text.contains("Set TF_FORCE_GPU_ALLOW_GROWTH=true")));
        assert_eq!(tensorflow.preallocation(Some("TF_FORCE_GPU_ALLOW_GROWTH=true")), None);
        let grown = ReportedPool { limit: gib(140), ..jax };
        assert_eq!(grown.preallocation(None), None);
    }
}
