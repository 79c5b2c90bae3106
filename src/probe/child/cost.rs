//! Records how much GPU memory a probe held and for how long, which is the probe's cost.

use gputop_model::probe::Cost;
use gputop_model::units::Bytes;

#[derive(Debug, Default)]
pub struct Ledger {
    held: u64,
    peak: u64,
    /// Memory multiplied by the time for which it was held, up to time `at`, in bytes × microseconds.
    byte_us: u128,
    at: u64,
    first: Option<u64>,
    last: u64,
}

impl Ledger {
    pub fn allocated(&mut self, bytes: u64, now_us: u64) {
        self.advance(now_us);
        self.first.get_or_insert(now_us);
        self.held = self.held.saturating_add(bytes);
        self.peak = self.peak.max(self.held);
    }

    pub fn freed(&mut self, bytes: u64, now_us: u64) {
        self.advance(now_us);
        self.held = self.held.saturating_sub(bytes);
        self.last = now_us;
    }

    fn advance(&mut self, now_us: u64) {
        let for_us = u128::from(now_us.saturating_sub(self.at));
        self.byte_us += u128::from(self.held) * for_us;
        self.at = now_us;
    }

    pub fn cost(&self) -> Cost {
        Cost {
            held_peak_bytes: Bytes(self.peak),
            held_byte_ms: u64::try_from(self.byte_us / 1_000).unwrap_or(u64::MAX),
            held_ms: self.first.map_or(0, |first| self.last.saturating_sub(first).div_ceil(1_000)),
            ..Cost::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_count_for_the_time_for_which_they_were_held() {
        let mut ledger = Ledger::default();
        ledger.allocated(100, 5_000);
        ledger.allocated(50, 6_000);
        ledger.freed(100, 8_000);
        ledger.freed(50, 9_000);
        let cost = ledger.cost();
        assert_eq!(cost.held_byte_ms, 100 + 150 * 2 + 50);
        assert_eq!((cost.held_ms, cost.held_peak_bytes), (4, Bytes(150)));
    }
}
