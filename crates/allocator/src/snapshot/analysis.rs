//! Analysis results of a snapshot, computed once per device for the screen and for printing.

use super::device::Device;
use super::history::{ByStack, EventSpan, TraceHistory};
use super::record::NO_TIME;
use crate::fragmentation::Fragmentation;

#[derive(Debug, Default)]
pub struct DeviceAnalysis {
    pub history: TraceHistory,
    pub fragmentation: Fragmentation,
    /// Time of the peak in allocated memory, expressed as the number of events up to and including it.
    pub peak: usize,
}

impl DeviceAnalysis {
    pub fn of(device: &Device) -> Self {
        let history = TraceHistory::of(device);
        Self { peak: history.peak(device), fragmentation: Fragmentation::of(&device.map), history }
    }

    /// Returns memory statistics over the whole trace.
    pub fn span(&self, device: &Device) -> EventSpan {
        self.history.span(device, 0, device.events.len())
    }

    /// Returns the memory held by each allocation stack when the map was recorded, in descending order.
    pub fn by_stack(&self, device: &Device) -> Vec<ByStack> {
        self.history.live_at(device, device.events.len())
    }

    /// Returns the microseconds between the first and last event, or `None` if the file contains no timestamps.
    pub fn length(&self, device: &Device) -> Option<u64> {
        let last = device.events.last()?;
        device.since_first(last).filter(|_| last.time_us != NO_TIME)
    }
}
