//! Random times of samples.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// A sequence of random numbers (xorshift64).
#[derive(Debug)]
pub struct RandomIntervals(u64);

impl RandomIntervals {
    pub fn new() -> Self {
        // The standard library seeds each state differently.
        Self(RandomState::new().build_hasher().finish() | 1)
    }

    /// Returns a time between half of the mean and one and a half.
    pub fn next(&mut self, mean: Duration) -> Duration {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        let part = (self.0 >> 40) as f64 / f64::from(1 << 24);
        mean.mul_f64(0.5 + part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_spread_around_their_mean() {
        let mut intervals = RandomIntervals::new();
        let all: Vec<f64> = (0..4_000)
            .map(|_| intervals.next(Duration::from_millis(100)).as_secs_f64() * 1e3)
            .collect();
        assert!(all.iter().all(|ms| (50.0..=150.0).contains(ms)));
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        assert!((97.0..103.0).contains(&mean), "{mean}");
        let short = all.iter().filter(|ms| **ms < 75.0).count();
        assert!((800..1_200).contains(&short), "{short} of 4,000 below 75 ms");
    }
}
