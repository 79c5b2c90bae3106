//! The last probe results for each GPU, and the running probes.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use gputop_model::frame::MAX_GPUS;
use gputop_model::memory_size;
use gputop_model::probe::{Probe, ProbeRequest};
use gputop_model::units::GpuUuid;

/// Maximum number of probe results retained per GPU. If there are more, the oldest are dropped. The heat map on a wide
/// terminal has room for this many.
const MAX_PROBES: usize = 200;
/// Maximum memory of a probe result. Larger ones are ignored.
const MAX_PROBE_BYTES: usize = 64 << 10;

#[derive(Debug, Default)]
pub struct Probes {
    gpus: HashMap<GpuUuid, GpuProbes>,
}

#[derive(Debug, Default)]
struct GpuProbes {
    /// Probe results, newest last.
    done: VecDeque<Arc<Probe>>,
    /// The last probe request, repeated if a probe interval is set.
    last_request: Option<ProbeRequest>,
    under_way: bool,
}

impl Probes {
    /// Registers a requested GPU probe.
    pub fn ask(&mut self, request: ProbeRequest) {
        let probes = self.gpus.entry(request.gpu.clone()).or_default();
        probes.under_way = true;
        probes.last_request = Some(request);
    }

    /// Adds a probe result.
    pub fn take(&mut self, probe: Arc<Probe>) {
        let is_full = self.gpus.len() >= MAX_GPUS && !self.gpus.contains_key(&probe.gpu);
        if is_full || memory_size::of(&*probe) > MAX_PROBE_BYTES {
            return;
        }
        let probes = self.gpus.entry(probe.gpu.clone()).or_default();
        probes.under_way = false;
        if probes.done.len() >= MAX_PROBES {
            probes.done.pop_front();
        }
        probes.done.push_back(probe);
    }

    pub fn is_under_way(&self, gpu: &GpuUuid) -> bool {
        self.gpus.get(gpu).is_some_and(|probes| probes.under_way)
    }

    /// Returns the probe results for a GPU, newest first.
    pub fn of<'p>(&'p self, gpu: &GpuUuid) -> impl Iterator<Item = &'p Arc<Probe>> {
        let probes = self.gpus.get(gpu);
        probes.into_iter().flat_map(|probes| probes.done.iter().rev())
    }

    pub fn last_request(&self, gpu: &GpuUuid) -> Option<&ProbeRequest> {
        self.gpus.get(gpu)?.last_request.as_ref()
    }

    /// Returns an arbitrary GPU that was probed, or `None` if there is none.
    pub fn any(&self) -> Option<&GpuUuid> {
        self.gpus.keys().next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gputop_model::units::Bytes;

    #[test]
    fn retains_the_newest_probes_of_a_gpu() {
        let gpu = GpuUuid("GPU-1".into());
        let mut probes = Probes::default();
        probes.ask(ProbeRequest { gpu: gpu.clone(), ..ProbeRequest::default() });
        assert!(probes.is_under_way(&gpu));
        for n in 0..MAX_PROBES as u64 + 5 {
            probes.take(Arc::new(Probe {
                gpu: gpu.clone(),
                headroom_bytes: Bytes(n),
                ..Probe::default()
            }));
        }
        assert!(!probes.is_under_way(&gpu));
        assert_eq!(probes.of(&gpu).count(), MAX_PROBES);
        let newest = probes.of(&gpu).next().map(|probe| probe.headroom_bytes.0);
        assert_eq!(newest, Some(MAX_PROBES as u64 + 4));
    }
}
