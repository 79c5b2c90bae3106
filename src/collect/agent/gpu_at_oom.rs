//! Reads a GPU immediately after an allocation on it fails. The latest regular sample may be nearly one interval old,
//! and may therefore lack the process that took the memory.
//!
//! ```text
//! sampler sees OOMs ─► WorkerCommand::Now ─► GPU worker ─► Section::Gpu ─► AtOom::answers ─► Observation::GpuAtOom
//! ```

use gputop_model::event::GpuAtOom;
use gputop_model::{Gpu, GpuUuid, Millis, Mono, ProcessKey, Reading};

/// Maximum time between a failed allocation and a GPU sample that describes the failure.
const MAX_LAG: Millis = Millis(1_000);
/// Maximum number of failed allocations that wait for a GPU sample. They pile up if a GPU hangs.
const MAX_PENDING: usize = 64;
/// Maximum number of processes in an observation. Those that use the most memory are included.
const MAX_PROCESSES: usize = 32;

#[derive(Debug, Default)]
pub struct AtOom {
    pending: Vec<(ProcessKey, GpuUuid, Mono)>,
}

impl AtOom {
    pub fn ask(&mut self, process: ProcessKey, gpu: GpuUuid, now: Mono) {
        if self.pending.len() < MAX_PENDING {
            self.pending.push((process, gpu, now));
        }
    }

    /// Removes the failed allocations covered by this GPU sample, and returns an observation for each.
    pub fn answers(&mut self, gpu: &Gpu) -> Vec<(ProcessKey, GpuAtOom)> {
        let is_answered = |(_, uuid, at): &(_, GpuUuid, Mono)| *uuid == gpu.uuid && gpu.at >= *at;
        let answered = self.pending.extract_if(.., |pending| is_answered(pending));
        let answered: Vec<_> = answered.collect();
        let in_time = answered.into_iter().filter(|(_, _, at)| gpu.at.since(*at) <= MAX_LAG);
        in_time.map(|(process, _, at)| (process, at_oom(gpu, gpu.at.since(at)))).collect()
    }
}

fn at_oom(gpu: &Gpu, lag: Millis) -> GpuAtOom {
    let mut processes = gpu.processes.clone();
    if let Reading::Value(list) = &mut processes {
        list.sort_by_key(|process| std::cmp::Reverse(process.vram.get()));
        list.truncate(MAX_PROCESSES);
    }
    GpuAtOom { memory: gpu.memory.clone(), processes, lag }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(name: &str, at: u64) -> Gpu {
        Gpu { uuid: GpuUuid(name.into()), at: Mono(at), ..Gpu::default() }
    }

    #[test]
    fn a_reading_answers_only_recent_earlier_failures() {
        let mut pending = AtOom::default();
        let name = || GpuUuid("GPU-1".into());
        pending.ask(ProcessKey::default(), name(), Mono(1_000));
        assert!(pending.answers(&gpu("GPU-2", 1_010)).is_empty());
        assert!(pending.answers(&gpu("GPU-1", 990)).is_empty(), "older");
        let answers = pending.answers(&gpu("GPU-1", 1_010));
        assert_eq!(answers.len(), 1);
        assert_eq!(answers[0].1.lag, Millis(10));
        assert!(pending.answers(&gpu("GPU-1", 1_020)).is_empty(), "once");
        pending.ask(ProcessKey::default(), name(), Mono(2_000));
        assert!(pending.answers(&gpu("GPU-1", 9_000)).is_empty(), "too late");
    }
}
