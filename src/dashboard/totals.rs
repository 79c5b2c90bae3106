//! Sums over the GPUs of a host.

use gputop_model::gpu::{Gpu, HealthState};
use gputop_model::units::{Bytes, Celsius, MilliWatts};

/// Sums over GPUs. A sum is unknown if a part of it is unknown. GPUs that are asleep, lost or not accessible are left out.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GpuTotals {
    /// All memory that is not free.
    pub used: Option<Bytes>,
    pub memory: Option<Bytes>,
    /// Mean SM utilization of the GPUs that report one, in percent.
    pub sm: Option<f64>,
    pub power: Option<MilliWatts>,
    pub power_cap: Option<MilliWatts>,
    pub hottest: Option<Celsius>,
    /// Number of GPUs that no longer answer.
    pub lost: usize,
}

impl GpuTotals {
    pub fn of(gpus: &[Gpu]) -> Self {
        let is_lost = |gpu: &&Gpu| gpu.health.state == HealthState::Lost;
        let counted: Vec<&Gpu> = gpus.iter().filter(is_counted).collect();
        let sum = |of: &dyn Fn(&Gpu) -> Option<u64>| {
            let parts: Option<Vec<u64>> = counted.iter().map(|gpu| of(gpu)).collect();
            parts
                .filter(|parts| !parts.is_empty())
                .map(|parts| parts.into_iter().fold(0, u64::saturating_add))
        };
        let milliwatts = |sum: u64| MilliWatts(u32::try_from(sum).unwrap_or(u32::MAX));
        Self {
            used: sum(&|gpu| Some(gpu.memory.taken()?.0)).map(Bytes),
            memory: sum(&|gpu| Some(gpu.memory.total.get()?.0)).map(Bytes),
            sm: mean(counted.iter().filter_map(|gpu| Some(gpu.sm.get()?.0))),
            power: sum(&|gpu| Some(gpu.power.get()?.0.into())).map(milliwatts),
            power_cap: sum(&|gpu| Some(gpu.power_cap.get()?.0.into())).map(milliwatts),
            hottest: counted.iter().filter_map(|gpu| gpu.temperature.get()).max(),
            lost: gpus.iter().filter(is_lost).count(),
        }
    }
}

fn is_counted(gpu: &&Gpu) -> bool {
    !matches!(gpu.health.state, HealthState::Asleep | HealthState::Denied | HealthState::Lost)
}

/// Returns the mean, or `None` of no values.
fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (count, sum) = values.fold((0_u32, 0.0), |(count, sum), value| (count + 1, sum + value));
    (count > 0).then(|| sum / f64::from(count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gputop_model::gpu::{Health, Memory};
    use gputop_model::units::Percent;

    fn gpu(state: HealthState, sm: f64) -> Gpu {
        Gpu {
            health: Health { state, ..Health::default() },
            memory: Memory {
                total: Bytes::gib(141).into(),
                free: Bytes::gib(41).into(),
                ..Memory::default()
            },
            sm: Percent(sm).into(),
            power: MilliWatts(300_000).into(),
            temperature: Celsius(60).into(),
            ..Gpu::default()
        }
    }

    #[test]
    fn gpus_that_cannot_be_read_are_left_out() {
        let states = [HealthState::Answering, HealthState::Answering, HealthState::Lost];
        let mut gpus = states.map(|state| gpu(state, 40.0)).to_vec();
        gpus[1].sm = Percent(80.0).into();
        let totals = GpuTotals::of(&gpus);
        assert_eq!((totals.used, totals.memory), (Some(Bytes::gib(200)), Some(Bytes::gib(282))));
        assert_eq!((totals.sm, totals.power), (Some(60.0), Some(MilliWatts(600_000))));
        assert_eq!((totals.power_cap, totals.lost), (None, 1));
        gpus[0].memory = Memory::default();
        assert_eq!(GpuTotals::of(&gpus).used, None);
        assert_eq!(GpuTotals::of(&[]), GpuTotals::default());
    }
}
