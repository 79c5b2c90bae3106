//! Finds the processes whose GPUs have had little to do for a while.

use std::collections::{BTreeMap, BTreeSet};

use gputop_model::gpu::HealthState;
use gputop_model::{ContextKind, Gpu, Millis, Mono, ProcessKey, StartTicks};

/// Use of a GPU below which its processes are sampled, in percent of its SMs.
const MIN_USE: f64 = 60.0;
/// Time for which the use must be lower.
const MIN_TIME: Millis = Millis(30_000);

#[derive(Debug, Default)]
pub struct UnderusedGpus {
    /// Time since when each GPU with a process has had little to do.
    since: BTreeMap<u32, Mono>,
    processes: BTreeSet<ProcessKey>,
}

impl UnderusedGpus {
    /// Returns the processes on underused GPUs if they differ from those of the last call.
    pub fn changed<'a>(
        &mut self,
        now: Mono,
        gpus: impl Iterator<Item = &'a Gpu>,
    ) -> Option<Vec<ProcessKey>> {
        let underused: Vec<&Gpu> = gpus.filter(|gpu| is_underused(gpu)).collect();
        self.since.retain(|index, _| underused.iter().any(|gpu| gpu.index == *index));
        let mut processes = BTreeSet::new();
        for gpu in underused {
            let since = *self.since.entry(gpu.index).or_insert(now);
            if now.since(since) >= MIN_TIME {
                processes.extend(computing(gpu));
            }
        }
        if processes == self.processes {
            return None;
        }
        self.processes = processes;
        Some(self.processes.iter().copied().collect())
    }
}

fn is_underused(gpu: &Gpu) -> bool {
    let sm_active = gpu.traffic.as_ref().and_then(|traffic| traffic.sm_active.get());
    let is_low = sm_active.or(gpu.sm.get()).is_some_and(|used| used.0 < MIN_USE);
    gpu.health.state == HealthState::Answering && is_low && computing(gpu).next().is_some()
}

/// Returns the processes that compute on a GPU and are known to the kernel.
fn computing(gpu: &Gpu) -> impl Iterator<Item = ProcessKey> {
    let listed = gpu.processes.value().into_iter().flatten();
    let computing = listed.filter(|process| process.kind != ContextKind::Graphics);
    computing.filter_map(|process| process.process).filter(|key| key.start != StartTicks(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gputop_model::gpu::Traffic;
    use gputop_model::{GpuProcess, Health, Percent, Reading};

    fn gpu(used: f64, sm_active: Option<f64>, pid: u32) -> Gpu {
        let process =
            GpuProcess { process: Some(ProcessKey::new(pid, 7)), ..GpuProcess::default() };
        let traffic = sm_active.map(|percent| Traffic {
            sm_active: Reading::Value(Percent(percent)),
            ..Traffic::default()
        });
        Gpu {
            sm: Reading::Value(Percent(used)),
            health: Health { state: HealthState::Answering, ..Health::default() },
            processes: vec![process].into(),
            traffic,
            ..Gpu::default()
        }
    }

    #[test]
    fn a_gpu_is_underused_after_half_a_minute_below_the_limit() {
        let mut gpus = UnderusedGpus::default();
        let mut at = |second: u64, gpu: Gpu| {
            let changed = gpus.changed(Mono(second * 1_000), std::iter::once(&gpu));
            changed.map(|list| list.iter().map(|key| key.pid.0).collect::<Vec<_>>())
        };
        assert_eq!(at(0, gpu(10.0, None, 418)), None);
        assert_eq!(at(29, gpu(59.0, None, 418)), None);
        assert_eq!(at(30, gpu(10.0, None, 418)), Some(vec![418]));
        assert_eq!(at(31, gpu(10.0, None, 418)), None);
        assert_eq!(at(32, gpu(99.0, None, 418)), Some(vec![]));
        assert_eq!(at(33, gpu(10.0, None, 418)), None);
        // The share of the SMs says more than that a kernel runs.
        assert_eq!(at(34, gpu(100.0, Some(2.0), 418)), None);
        assert_eq!(at(63, gpu(100.0, Some(2.0), 418)), Some(vec![418]));
        assert_eq!(at(64, gpu(10.0, Some(94.0), 418)), Some(vec![]));
    }
}
