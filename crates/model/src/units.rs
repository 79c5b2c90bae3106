//! Quantities with their unit in the type, and the only conversion from bytes to GiB.
//!
//! Sizes are printed in binary units as in PyTorch's messages and nvidia-smi, so that all three can be compared.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

macro_rules! whole_quantities {
    ($($(#[$doc:meta])* $name:ident($inner:ty),)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);
    )*};
}

whole_quantities! {
    Bytes(u64),
    MilliWatts(u32),
    /// Energy in millijoules since the driver was loaded.
    MilliJoules(u64),
    /// Degrees Celsius.
    Celsius(i32),
    MegaHertz(u32),
    BytesPerSecond(u64),
    /// Process ID, in the PID namespace of the host that reported it.
    Pid(u32),
    Millis(u64),
    /// Milliseconds since the host booted, including suspended time (CLOCK_BOOTTIME). Ages and charts use this clock
    /// because it never jumps.
    Mono(u64),
    /// Milliseconds since 1970 by the host's wall clock. For display only, because the wall clock may be set back.
    UnixMillis(i64),
    /// Start time of a process in clock ticks since boot (`/proc/PID/stat`, field 22). Together with the PID and the
    /// boot ID, the start time uniquely identifies a process.
    StartTicks(u64),
}

/// Share in percent: 0 to 100 for a GPU. For a process's CPU usage, 100 is one core.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Percent(pub f64);

impl Percent {
    /// Rounds a percentage to a tenth. More digits are noise and take space in every recording.
    pub fn rounded(value: f64) -> Self {
        Self((value * 10.0).round() / 10.0)
    }
}

impl From<Duration> for Millis {
    fn from(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }
}

impl Mono {
    /// Returns the time since `earlier`, or 0 if `earlier` is later.
    pub fn since(self, earlier: Self) -> Millis {
        Millis(self.0.saturating_sub(earlier.0))
    }
}

impl StartTicks {
    /// Returns the start time in milliseconds. Linux counts 100 ticks per second on every machine with an NVIDIA driver.
    pub fn since_boot(self) -> Mono {
        Mono(self.0.saturating_mul(10))
    }
}

impl fmt::Display for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// NVML's UUID of a GPU or MIG device: `GPU-caae6e2c-…`, `MIG-…`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GpuUuid(pub Arc<str>);

impl Default for GpuUuid {
    fn default() -> Self {
        Self(Arc::from(""))
    }
}

impl fmt::Display for GpuUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

impl Bytes {
    pub const fn gib(n: u64) -> Self {
        Self(n * GIB)
    }

    /// Returns true if the size is 0. Takes a reference, as required by serde's `skip_serializing_if`.
    pub(super) const fn is_zero(&self) -> bool {
        self.0 == 0
    }

    pub const fn mib(n: u64) -> Self {
        Self(n * MIB)
    }

    /// Returns the size in GiB as a float, for charts.
    pub fn as_gib(self) -> f64 {
        self.0 as f64 / GIB as f64
    }

    /// Formats a size in at most five columns with a one-letter unit: `812K`, `518M`, `21.8G`, `140G`, `1.5T`.
    pub fn short(self) -> String {
        let (unit, letter) = match self.0 {
            n if n >= TIB - TIB / 2048 => (TIB, 'T'),
            n if n >= GIB - GIB / 2048 => (GIB, 'G'),
            n if n >= MIB - MIB / 2048 => (MIB, 'M'),
            n if n >= KIB => (KIB, 'K'),
            n => return format!("{n}B"),
        };
        let value = self.0 as f64 / unit as f64;
        if value < 99.95 && unit >= GIB {
            format!("{value:.1}{letter}")
        } else {
            format!("{value:.0}{letter}")
        }
    }
}

/// Formats a size with two decimals and the unit, exactly as in PyTorch's messages: `14.10 GiB`, `1024.00 MiB`
/// (c10/cuda/CUDACachingAllocator.cpp, `format_size`).
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.0 {
            n if n > GIB => (GIB, "GiB"),
            n if n > MIB => (MIB, "MiB"),
            n if n > KIB => (KIB, "KiB"),
            n => return write!(f, "{n} bytes"),
        };
        write!(f, "{:.2} {name}", self.0 as f64 / unit as f64)
    }
}

/// Rounds sizes to `step` bytes so that the rounded parts add up to the rounded sum (largest remainder first).
///
/// A printed sum must equal the sum of the printed parts. If each part were rounded separately, they would differ by up
/// to half a step per part. No part changes by `step` or more, and a part of 0 remains 0.
pub fn apportion(parts: &[Bytes], step: u64) -> Vec<Bytes> {
    // Sums use 128 bits, because the parts returned by a broken driver may have all bits set.
    let sum: u128 = parts.iter().map(|p| u128::from(p.0)).sum();
    let floors: Vec<u64> = parts.iter().map(|p| p.0 / step * step).collect();
    let whole: u128 = floors.iter().map(|&f| u128::from(f / step)).sum();
    let short = (sum + u128::from(step / 2)) / u128::from(step) - whole;
    let mut order: Vec<usize> =
        (0..parts.len()).filter(|&i| !parts[i].0.is_multiple_of(step)).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(parts[i].0 % step));
    let mut rounded = floors;
    for &i in order.iter().take(usize::try_from(short).unwrap_or(usize::MAX)) {
        rounded[i] = rounded[i].saturating_add(step);
    }
    rounded.into_iter().map(Bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_printed_as_in_pytorch_messages() {
        assert_eq!(Bytes::mib(21934).to_string(), "21.42 GiB");
        assert_eq!(Bytes(0).to_string(), "0 bytes");
        assert_eq!(Bytes::mib(518).short(), "518M");
        assert_eq!(Bytes(143_771 * MIB).short(), "140G");
        assert_eq!(Bytes(GIB).to_string(), "1024.00 MiB");
        assert_eq!(Bytes(GIB - 1).short(), "1.0G");
        assert_eq!(Bytes(u64::MAX).short(), "16777216T");
    }

    proptest! {
        #[test]
        fn printed_parts_add_up_to_the_printed_sum(parts in prop::collection::vec(0..Bytes::gib(200).0, 0..12)) {
            let parts: Vec<Bytes> = parts.into_iter().map(Bytes).collect();
            let step = GIB / 100;
            let rounded = apportion(&parts, step);
            let sum: u64 = parts.iter().map(|p| p.0).sum();
            let printed: u64 = rounded.iter().map(|p| p.0).sum();
            prop_assert_eq!(printed, (sum + step / 2) / step * step);
            for (part, rounded) in parts.iter().zip(&rounded) {
                prop_assert!(part.0.abs_diff(rounded.0) < step);
            }
        }
    }
}
