//! A share of samples with its error.

use std::fmt;

/// Minimum number of samples for a verdict.
pub(super) const MIN_SAMPLES: u32 = 20;
/// Minimum number of samples for a number.
pub(super) const MIN_COUNTED: u32 = 50;
/// Samples of one step follow each other, so that only about half of them are independent.
const INDEPENDENT: f64 = 0.5;
/// Number of standard deviations of a 95 % interval.
const Z: f64 = 1.96;

/// A number of samples among all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Share {
    pub count: u32,
    pub samples: u32,
}

impl Share {
    pub fn new(count: u32, samples: u32) -> Self {
        Self { count, samples }
    }

    /// Returns the share, from 0 to 1.
    pub fn value(self) -> f64 {
        if self.samples == 0 { 0.0 } else { f64::from(self.count) / f64::from(self.samples) }
    }

    /// Returns half of the 95 % interval (Wilson's), from 0 to 1.
    pub fn error(self) -> f64 {
        let n = (f64::from(self.samples) * INDEPENDENT).max(1.0);
        let share = self.value();
        let wide = 1.0 + Z * Z / n;
        let centre = (share + Z * Z / (2.0 * n)) / wide;
        Z / wide * (centre * (1.0 - centre) / n + Z * Z / (4.0 * n * n)).sqrt()
    }

    /// Returns true if there are enough samples for a number.
    pub fn is_counted(self) -> bool {
        self.samples >= MIN_COUNTED
    }

    /// Returns true if two shares of the same samples cannot be told apart.
    pub fn overlaps(self, other: Self) -> bool {
        (self.value() - other.value()).abs() < self.error().max(other.error())
    }
}

/// Formats the share as `82 % (±8)`, or in words if there are too few samples for a number.
impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_counted() {
            return write!(f, "{:.0} % (±{:.0})", self.value() * 100.0, self.error() * 100.0);
        }
        f.write_str(match self.value() {
            0.9.. => "nearly all",
            0.6.. => "most",
            0.4.. => "about half",
            0.2.. => "a part",
            _ => "little",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_has_a_number_only_from_fifty_samples() {
        let text = |count, samples| Share::new(count, samples).to_string();
        assert_eq!(text(41, 50), "82 % (±16)");
        assert_eq!(text(164, 200), "82 % (±8)");
        assert_eq!(text(0, 200), "0 % (±3)");
        assert_eq!(text(40, 49), "most");
        assert_eq!(text(20, 40), "about half");
        assert_eq!(text(0, 0), "little");
    }

    #[test]
    fn close_shares_overlap() {
        let share = |count| Share::new(count, 100);
        assert!(share(40).overlaps(share(33)));
        assert!(!share(80).overlaps(share(15)));
    }
}
