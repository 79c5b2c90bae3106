//! Values that move, the same way in every run: no clock and no random number, only what they are derived from.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::scenario::{Process, Scenario};

/// `value`, moved by at most `percent` of it, as `seed` says.
pub fn around(value: u64, percent: u64, seed: u64) -> u64 {
    let spread = value.saturating_mul(percent) / 100;
    if spread == 0 {
        return value;
    }
    let moved = hash(seed) % (2 * spread + 1);
    (value - spread).saturating_add(moved)
}

/// A well-mixed number of the two.
pub fn seed(a: u64, b: u64) -> u64 {
    hash(hash(a).wrapping_add(b))
}

/// The finalizer of splitmix64.
fn hash(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A process's memory now. With churn it changes at round moments of the wall clock, in every reader at once, in
/// the 2 MiB pieces that the driver hands out.
pub fn used(scenario: &Scenario, process: &Process) -> Option<u64> {
    let used = process.used?;
    let Some(moment) = moment(scenario) else {
        return Some(used);
    };
    let moved = around(used, 5, seed(u64::from(process.pid), moment));
    Some(moved >> 21 << 21)
}

/// The number of the churn period that it is.
#[allow(clippy::cast_sign_loss)]
fn moment(scenario: &Scenario) -> Option<u64> {
    let period = scenario.churn.filter(|period| *period > 0.0)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    Some((now.as_secs_f64() / period) as u64)
}
