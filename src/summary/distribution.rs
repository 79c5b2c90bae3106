//! Distribution of a memory size over time, calculated in bounded memory.

use std::collections::BTreeMap;

use gputop_model::{Bytes, Millis};
use serde::Serialize;

/// Base-2 logarithm of the number of buckets per power of two. The width of a bucket is at most 0.4 % of the values in
/// it, or 1 byte.
const PRECISION: u32 = 8;

/// Peak and percentiles of a memory size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Percentiles {
    /// Maximum size, including peaks between two samples if the sampler reports them.
    #[serde(rename = "peak_bytes")]
    pub peak: Bytes,
    /// Size that was not exceeded for 95 % of the time.
    #[serde(rename = "p95_bytes")]
    pub p95: Bytes,
    /// Median size over time.
    #[serde(rename = "p50_bytes")]
    pub p50: Bytes,
}

/// Time spent at each memory size.
#[derive(Debug, Clone, Default)]
pub struct Distribution {
    /// The maximum value and the total time of each bucket, by bucket number.
    buckets: BTreeMap<u16, (Bytes, u64)>,
    peak: Bytes,
}

impl Distribution {
    /// Adds a sample that covers a duration of `time`. `max` is the maximum since the previous sample.
    pub fn add(&mut self, value: Bytes, max: Bytes, time: Millis) {
        self.peak = self.peak.max(value).max(max);
        let bucket = self.buckets.entry(bucket(value.0)).or_default();
        bucket.0 = bucket.0.max(value);
        // Count zero-duration samples too. The first sample always has a duration of zero.
        bucket.1 = bucket.1.saturating_add(time.0.max(1));
    }

    pub fn merge(&mut self, other: Self) {
        self.peak = self.peak.max(other.peak);
        for (at, (max, time)) in other.buckets {
            let bucket = self.buckets.entry(at).or_default();
            *bucket = (bucket.0.max(max), bucket.1.saturating_add(time));
        }
    }

    /// Returns the percentiles, or `None` if there are no samples.
    pub fn percentiles(&self) -> Option<Percentiles> {
        (!self.buckets.is_empty()).then(|| Percentiles {
            peak: self.peak,
            p95: self.percentile(95),
            p50: self.percentile(50),
        })
    }

    fn percentile(&self, percent: u128) -> Bytes {
        let times = self.buckets.values().map(|(_, time)| u128::from(*time));
        let wanted = (times.sum::<u128>() * percent).div_ceil(100);
        let mut passed = 0;
        for (max, time) in self.buckets.values() {
            passed += u128::from(*time);
            if passed >= wanted {
                return *max;
            }
        }
        self.peak
    }
}

/// Returns the bucket number of a value. Larger values have larger or equal bucket numbers.
fn bucket(value: u64) -> u16 {
    let bits = u64::BITS - value.leading_zeros();
    let shift = bits.saturating_sub(PRECISION + 1);
    let bucket = (u64::from(shift) << PRECISION) + (value >> shift);
    u16::try_from(bucket).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_constant_size_is_exact() {
        let mut sizes = Distribution::default();
        assert_eq!(sizes.percentiles(), None);
        let value = Bytes(81_234_567_891);
        (0..10).for_each(|_| sizes.add(value, value, Millis(1_000)));
        let found = sizes.percentiles().expect("samples");
        assert_eq!((found.peak, found.p95, found.p50), (value, value, value));
    }

    #[test]
    fn percentiles_are_weighted_by_time() {
        let mut sizes = Distribution::default();
        let mut add =
            |gib, seconds: u64| sizes.add(Bytes::gib(gib), Bytes(0), Millis(seconds * 1_000));
        add(1, 94);
        add(8, 2);
        add(40, 4);
        let found = sizes.percentiles().expect("samples");
        let gib = [found.p50, found.p95, found.peak].map(|size| size.0 >> 30);
        assert_eq!(gib, [1, 8, 40]);
    }

    proptest! {
        #[test]
        fn percentiles_are_within_the_width_of_a_bucket(values in prop::collection::vec(0..u64::MAX, 1..200), split in 0..200_usize) {
            let mut parts = [Distribution::default(), Distribution::default()];
            for (i, value) in values.iter().enumerate() {
                parts[usize::from(i >= split)].add(Bytes(*value), Bytes(0), Millis(10));
            }
            let [mut whole, rest] = parts;
            whole.merge(rest);
            let mut sorted = values;
            sorted.sort_unstable();
            let exact = |percent: usize| sorted[(sorted.len() * percent).div_ceil(100) - 1];
            let found = whole.percentiles().expect("samples");
            prop_assert_eq!(found.peak.0, exact(100));
            for (found, exact) in [(found.p95.0, exact(95)), (found.p50.0, exact(50))] {
                prop_assert!(found >= exact && found - exact <= exact / 256);
            }
        }
    }
}
