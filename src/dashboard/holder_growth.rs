//! The groups of memory holders that grow.

use gputop_model::holders::growth::{GrowthRate, HolderGrowth};
use gputop_model::holders::{HolderGroup, Holders};
use gputop_model::units::Bytes;

use super::sizes::rounded;

/// Minimum growth per minute at which texts name a group of holders.
const MIN_NAMED_RATE: Bytes = Bytes::mib(1);

/// Returns the growth rate of a group of holders, if the group grows fast enough to be named.
pub fn named_rate(group: &HolderGroup, growth: &HolderGrowth) -> Option<GrowthRate> {
    let rate = growth.of(group)?.rate?;
    (rate.bytes_per_minute >= MIN_NAMED_RATE).then_some(rate)
}

/// Describes the fastest-growing group of holders, with its device number: `grows: losses[*], 2.10 GiB/h`.
pub fn growth_note(holders: &Holders, growth: &HolderGrowth) -> Option<(u32, String)> {
    let groups = holders.groups.iter().filter(|group| !group.name.is_empty());
    let rates = groups.filter_map(|group| Some((group, named_rate(group, growth)?)));
    let (group, rate) = rates.max_by_key(|(_, rate)| rate.bytes_per_minute)?;
    let per_hour = Bytes(rate.bytes_per_minute.0.saturating_mul(60));
    Some((group.ordinal, format!("grows: {}, {}/h", group.name, rounded(per_hour))))
}
