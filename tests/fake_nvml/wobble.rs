//! Values that vary in the same way in every run: they depend only on their inputs, not on random numbers.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::scenario::{Process, Scenario};

/// Returns `value`, changed by at most `percent` of it depending on `seed`.
pub fn around(value: u64, percent: u64, seed: u64) -> u64 {
    let spread = value.saturating_mul(percent) / 100;
    if spread == 0 {
        return value;
    }
    let moved = hash(seed) % (2 * spread + 1);
    (value - spread).saturating_add(moved)
}

/// Returns a hash of both numbers.
pub fn seed(a: u64, b: u64) -> u64 {
    hash(hash(a).wrapping_add(b))
}

/// Applies the finalizer of splitmix64.
fn hash(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Returns a process's current memory. With churn, it changes at multiples of the period on the wall clock, at the same
/// time for all readers, in steps of the driver's 2 MiB pages.
pub fn used(scenario: &Scenario, process: &Process) -> Option<u64> {
    let used = process.used?;
    let Some(moment) = moment(scenario) else { return Some(used) };
    let moved = around(used, 5, seed(u64::from(process.pid), moment));
    Some(moved >> 21 << 21)
}

/// Returns the number of the current churn period.
#[allow(clippy::cast_sign_loss)]
fn moment(scenario: &Scenario) -> Option<u64> {
    let period = scenario.churn.filter(|period| *period > 0.0)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    Some((now.as_secs_f64() / period) as u64)
}
