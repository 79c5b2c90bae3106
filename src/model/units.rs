//! Quantities with their unit in the type, and the one place that turns bytes into GiB.
//!
//! Sizes are printed in binary units, as PyTorch's messages and nvidia-smi's MiB are, so that a figure on the
//! screen can be compared with either.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);
    };
}

macro_rules! whole_quantity {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);
    };
}

whole_quantity!(
    /// A size in bytes.
    Bytes(u64)
);
whole_quantity!(
    /// Power in milliwatts, as NVML reports it.
    MilliWatts(u32)
);
whole_quantity!(
    /// Energy in millijoules since the driver was loaded.
    MilliJoules(u64)
);
whole_quantity!(
    /// Degrees Celsius.
    Celsius(i32)
);
whole_quantity!(
    /// A clock frequency in MHz.
    MegaHertz(u32)
);
whole_quantity!(
    /// A transfer rate in bytes a second.
    BytesPerSecond(u64)
);
quantity!(
    /// A share in percent. Of a GPU: 0 to 100. Of CPU: 100 is one core.
    Percent(f64)
);
whole_quantity!(
    /// A process id, in the PID namespace of the host that reported it.
    Pid(u32)
);
whole_quantity!(
    /// A length of time in milliseconds.
    Millis(u64)
);
whole_quantity!(
    /// Milliseconds since the host booted, suspended time included (CLOCK_BOOTTIME): what ages and charts are
    /// measured on, because it never jumps.
    Mono(u64)
);
whole_quantity!(
    /// Milliseconds since 1970 by the host's wall clock: for showing only, since that clock may be set back.
    UnixMillis(i64)
);
whole_quantity!(
    /// When a process started, in clock ticks since boot (`/proc/PID/stat`, field 22). With the PID and the boot
    /// id it names one process for ever.
    StartTicks(u64)
);

impl Percent {
    /// To a tenth: more is noise, and costs bytes in every recording.
    pub fn rounded(value: f64) -> Self {
        Self((value * 10.0).round() / 10.0)
    }
}

impl Mono {
    /// Time since `earlier`; 0 when the two are out of order.
    pub fn since(self, earlier: Self) -> Millis {
        Millis(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// NVML's name of a GPU or of a MIG device: `GPU-caae6e2c-…`, `MIG-…`.
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

    /// For serde, which passes a reference.
    pub(super) const fn is_zero(&self) -> bool {
        self.0 == 0
    }

    pub const fn mib(n: u64) -> Self {
        Self(n * MIB)
    }

    /// GiB as a float, for charts.
    #[allow(clippy::cast_precision_loss)]
    pub fn as_gib(self) -> f64 {
        self.0 as f64 / GIB as f64
    }

    /// At most five columns with the unit's letter: `812K`, `518M`, `21.8G`, `140G`, `1.5T`.
    #[allow(clippy::cast_precision_loss)]
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

/// Two decimals and the unit, exactly as PyTorch's messages print sizes: `14.10 GiB`, `1024.00 MiB`
/// (c10/cuda/CUDACachingAllocator.cpp, `format_size`).
impl fmt::Display for Bytes {
    #[allow(clippy::cast_precision_loss)]
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

/// Rounds parts to `step` bytes so that the rounded parts add up to the rounded sum (largest remainder first).
///
/// A printed sum must be the sum of the printed parts; rounding each on its own breaks that by up to half a step
/// a part. No part moves by a whole step or more, and a part of 0 stays 0.
pub fn apportion(parts: &[Bytes], step: u64) -> Vec<Bytes> {
    // In steps, and wide enough for absurd parts: a broken driver may answer with all bits set.
    let sum: u128 = parts.iter().map(|p| u128::from(p.0)).sum();
    let floors: Vec<u64> = parts.iter().map(|p| p.0 / step * step).collect();
    let whole: u128 = floors.iter().map(|&f| u128::from(f / step)).sum();
    let short = (sum + u128::from(step / 2)) / u128::from(step) - whole;
    let mut order: Vec<usize> = (0..parts.len())
        .filter(|&i| !parts[i].0.is_multiple_of(step))
        .collect();
    order.sort_by_key(|&i| std::cmp::Reverse(parts[i].0 % step));
    let mut rounded = floors;
    for &i in order
        .iter()
        .take(usize::try_from(short).unwrap_or(usize::MAX))
    {
        rounded[i] = rounded[i].saturating_add(step);
    }
    rounded.into_iter().map(Bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_read_as_the_messages_print_them() {
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
