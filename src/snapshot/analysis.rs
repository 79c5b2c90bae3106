//! Everything that is computed of a device once, for the screen and for what is printed.

use super::device::Device;
use super::history::{ByStack, History, Span};
use super::record::NO_TIME;
use crate::allocator::fragmentation::Fragmentation;

#[derive(Debug, Default)]
pub struct Study {
    pub history: History,
    pub fragmentation: Fragmentation,
    /// The moment at which most was allocated.
    pub peak: usize,
}

impl Study {
    pub fn of(device: &Device) -> Self {
        let history = History::of(device);
        Self {
            peak: history.peak(device),
            fragmentation: Fragmentation::of(&device.map),
            history,
        }
    }

    /// Over the whole trace.
    pub fn span(&self, device: &Device) -> Span {
        self.history.span(device, 0, device.events.len())
    }

    /// What stacks hold at the moment of the map, the most first.
    pub fn by_stack(&self, device: &Device) -> Vec<ByStack> {
        self.history.live_at(device, device.events.len())
    }

    /// Microseconds from the first event to the last; none where the file says no times.
    pub fn length(&self, device: &Device) -> Option<u64> {
        let last = device.events.last()?;
        device.since_first(last).filter(|_| last.time_us != NO_TIME)
    }
}
