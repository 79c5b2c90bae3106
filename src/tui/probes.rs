//! What probes of the cards found: of each the last ones, and which are under way.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::model::probe::{Probe, ProbeRequest};
use crate::model::units::GpuUuid;

/// Of one card; older ones go. As many as a wide terminal shows beside each other.
const MAX_PROBES: usize = 200;

#[derive(Debug, Default)]
pub struct Probes {
    cards: HashMap<GpuUuid, Card>,
}

#[derive(Debug, Default)]
struct Card {
    /// The newest last.
    done: VecDeque<Arc<Probe>>,
    /// What was asked for last: an interval asks for it again.
    wish: Option<ProbeRequest>,
    under_way: bool,
}

impl Probes {
    /// A probe was asked for.
    pub fn ask(&mut self, wish: ProbeRequest) {
        let card = self.cards.entry(wish.gpu.clone()).or_default();
        card.under_way = true;
        card.wish = Some(wish);
    }

    pub fn take(&mut self, probe: Arc<Probe>) {
        let card = self.cards.entry(probe.gpu.clone()).or_default();
        card.under_way = false;
        if card.done.len() >= MAX_PROBES {
            card.done.pop_front();
        }
        card.done.push_back(probe);
    }

    pub fn is_under_way(&self, gpu: &GpuUuid) -> bool {
        self.cards.get(gpu).is_some_and(|card| card.under_way)
    }

    /// The newest first.
    pub fn of<'p>(&'p self, gpu: &GpuUuid) -> impl Iterator<Item = &'p Arc<Probe>> {
        let card = self.cards.get(gpu);
        card.into_iter().flat_map(|card| card.done.iter().rev())
    }

    pub fn wish(&self, gpu: &GpuUuid) -> Option<&ProbeRequest> {
        self.cards.get(gpu)?.wish.as_ref()
    }

    /// Some card that was probed.
    pub fn any(&self) -> Option<&GpuUuid> {
        self.cards.keys().next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::units::Bytes;

    #[test]
    fn the_newest_probes_of_a_card_are_kept() {
        let gpu = GpuUuid("GPU-1".into());
        let mut probes = Probes::default();
        probes.ask(ProbeRequest {
            gpu: gpu.clone(),
            ..ProbeRequest::default()
        });
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
