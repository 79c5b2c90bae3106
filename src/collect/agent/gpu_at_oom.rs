//! GPUs that are read at once because an allocation on them failed: the newest reading may be a whole interval old, and
//! a process that took the memory in between would not be seen.
//!
//! ```text
//! the sampler saw OOMs ─► Order::Now ─► the GPU's worker ─► Section::Gpu ─► told here ─► Observation::GpuAtOom
//! ```

use crate::model::event::GpuAtOom;
use crate::model::gpu::Gpu;
use crate::model::process::ProcessKey;
use crate::model::reading::Reading;
use crate::model::units::{GpuUuid, Millis, Mono};

/// What comes later is of another moment.
const IN_TIME: Millis = Millis(1_000);
/// Questions that wait for a GPU that hangs.
const MAX_WAITING: usize = 64;
/// Processes of a GPU that are told, those that hold most.
const MAX_PROCESSES: usize = 32;

#[derive(Debug, Default)]
pub struct AtOom {
    asked: Vec<(ProcessKey, GpuUuid, Mono)>,
}

impl AtOom {
    pub fn ask(&mut self, process: ProcessKey, gpu: GpuUuid, now: Mono) {
        if self.asked.len() < MAX_WAITING {
            self.asked.push((process, gpu, now));
        }
    }

    /// Whose failures this reading of a GPU answers.
    pub fn answers(&mut self, gpu: &Gpu) -> Vec<(ProcessKey, GpuAtOom)> {
        let is_its = |(_, uuid, at): &(_, GpuUuid, Mono)| *uuid == gpu.uuid && gpu.at >= *at;
        let answered: Vec<_> = self.asked.extract_if(.., |asked| is_its(asked)).collect();
        let in_time = answered
            .into_iter()
            .filter(|(_, _, at)| gpu.at.since(*at) <= IN_TIME);
        in_time
            .map(|(process, _, at)| (process, at_oom(gpu, gpu.at.since(at))))
            .collect()
    }
}

fn at_oom(gpu: &Gpu, lag: Millis) -> GpuAtOom {
    let mut processes = gpu.processes.clone();
    if let Reading::Value(list) = &mut processes {
        list.sort_by_key(|process| std::cmp::Reverse(process.vram.get()));
        list.truncate(MAX_PROCESSES);
    }
    GpuAtOom {
        memory: gpu.memory.clone(),
        processes,
        lag,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(name: &str, at: u64) -> Gpu {
        Gpu {
            uuid: GpuUuid(name.into()),
            at: Mono(at),
            ..Gpu::default()
        }
    }

    #[test]
    fn a_reading_answers_those_who_asked_before_it_and_not_long_before() {
        let mut asked = AtOom::default();
        let name = || GpuUuid("GPU-1".into());
        asked.ask(ProcessKey::default(), name(), Mono(1_000));
        assert!(asked.answers(&gpu("GPU-2", 1_010)).is_empty());
        assert!(asked.answers(&gpu("GPU-1", 990)).is_empty(), "older");
        let told = asked.answers(&gpu("GPU-1", 1_010));
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].1.lag, Millis(10));
        assert!(asked.answers(&gpu("GPU-1", 1_020)).is_empty(), "once");
        asked.ask(ProcessKey::default(), name(), Mono(2_000));
        assert!(asked.answers(&gpu("GPU-1", 9_000)).is_empty(), "too late");
    }
}
