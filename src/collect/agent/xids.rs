//! One Xid is told once, though two places may report it: the driver's event and the kernel log's line.
//!
//! The line has the text and the process, so it is told as soon as it comes. The driver's event waits for its line two
//! seconds, and is told without one only when none came; where the log cannot be read, at once. What the driver says
//! of an Xid whose line was told already is passed over. Pairs are formed one by one, on the same GPU within two
//! seconds, the same number first: after several Xids at once the driver gives all of them the last one's number
//! (nvml.h, `nvmlEventSetWait_v2`).

use std::collections::VecDeque;

use crate::model::units::{GpuUuid, Millis, Mono};

/// How far the two reports of one Xid may lie apart.
pub const APART: Millis = Millis(2_000);
/// Of each kind, so that a broken GPU costs no memory; what is pushed out is told, or has been.
const MAX_OF_KIND: usize = 256;

/// One report, until its other half comes.
#[derive(Debug, Clone, PartialEq)]
pub struct Half {
    /// None when the log names a GPU that is not known here.
    pub gpu: Option<GpuUuid>,
    pub number: u64,
    pub at: Mono,
}

#[derive(Debug, Default)]
pub struct Xids {
    /// The driver's events without a line: not told yet.
    events: VecDeque<Half>,
    /// The log's lines without an event: told.
    lines: VecDeque<Half>,
}

impl Xids {
    /// What of the driver's report is to be told now.
    pub fn event(&mut self, event: Half, has_log: bool) -> Option<Half> {
        self.forget_lines(event.at);
        if !has_log {
            return Some(event);
        }
        if take_pair(&mut self.lines, &event).is_some() {
            return None;
        }
        self.events.push_back(event);
        (self.events.len() > MAX_OF_KIND)
            .then(|| self.events.pop_front())
            .flatten()
    }

    /// A line of the log, which is always told: on which GPU.
    pub fn line(&mut self, line: Half) -> Option<GpuUuid> {
        self.forget_lines(line.at);
        let event = take_pair(&mut self.events, &line);
        if event.is_none() {
            self.lines.push_back(line.clone());
            if self.lines.len() > MAX_OF_KIND {
                self.lines.pop_front();
            }
        }
        line.gpu.or_else(|| event.and_then(|event| event.gpu))
    }

    /// The driver's events that have waited long enough for their lines.
    pub fn due(&mut self, now: Mono) -> Vec<Half> {
        let is_due = |event: &Half| now.since(event.at) >= APART;
        let due = self.events.iter().take_while(|event| is_due(event)).count();
        self.events.drain(..due).collect()
    }

    /// When the next one has.
    pub fn next_due(&self) -> Option<Mono> {
        self.events.front().map(|event| Mono(event.at.0 + APART.0))
    }

    fn forget_lines(&mut self, now: Mono) {
        self.lines.retain(|line| now.since(line.at) <= APART);
    }
}

fn take_pair(halves: &mut VecDeque<Half>, other: &Half) -> Option<Half> {
    let is_near = |half: &Half| {
        let on_one = half.gpu.is_none() || other.gpu.is_none() || half.gpu == other.gpu;
        on_one && half.at.since(other.at) <= APART && other.at.since(half.at) <= APART
    };
    let same = |half: &Half| is_near(half) && half.number == other.number;
    // A GPU that is not known can be any; then at least the number must be the same.
    let renumbered = |half: &Half| is_near(half) && half.gpu.is_some() && half.gpu == other.gpu;
    let at = halves
        .iter()
        .position(same)
        .or_else(|| halves.iter().position(renumbered))?;
    halves.remove(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn half(gpu: &str, number: u64, at: u64) -> Half {
        Half {
            gpu: (!gpu.is_empty()).then(|| GpuUuid(gpu.into())),
            number,
            at: Mono(at),
        }
    }

    #[test]
    fn whichever_comes_first_an_xid_is_told_once() {
        let mut xids = Xids::default();
        assert_eq!(xids.event(half("a", 79, 100), true), None);
        assert_eq!(xids.line(half("a", 79, 150)), half("a", 0, 0).gpu);
        assert_eq!(xids.due(Mono(10_000)), []);

        xids.line(half("a", 31, 20_000));
        assert_eq!(xids.event(half("a", 31, 21_000), true), None);
        assert_eq!(xids.due(Mono(60_000)), []);
    }

    #[test]
    fn without_a_line_the_event_is_told_after_a_while_or_at_once() {
        let mut xids = Xids::default();
        assert_eq!(xids.event(half("a", 79, 100), true), None);
        assert_eq!(xids.next_due(), Some(Mono(2_100)));
        assert_eq!(xids.due(Mono(2_099)), []);
        assert_eq!(xids.due(Mono(2_100)), [half("a", 79, 100)]);
        assert_eq!(xids.next_due(), None);
        let event = half("a", 79, 3_000);
        assert_eq!(xids.event(event.clone(), false), Some(event));
    }

    #[test]
    fn two_xids_are_two_and_other_gpus_have_their_own() {
        let mut xids = Xids::default();
        xids.line(half("a", 31, 100));
        xids.line(half("b", 31, 100));
        assert_eq!(xids.event(half("a", 31, 200), true), None);
        assert_eq!(xids.event(half("a", 31, 200), true), None);
        assert_eq!(xids.event(half("b", 31, 200), true), None);
        // The second of GPU a has no line.
        assert_eq!(xids.due(Mono(9_000)), [half("a", 31, 200)]);
        // Three seconds apart, they are two.
        xids.line(half("a", 31, 10_000));
        xids.event(half("a", 31, 13_000), true);
        assert_eq!(xids.due(Mono(15_000)), [half("a", 31, 13_000)]);
    }

    #[test]
    fn the_last_number_of_several_at_once_is_no_xid_of_its_own() {
        let mut xids = Xids::default();
        xids.line(half("a", 31, 100));
        xids.line(half("a", 79, 101));
        assert_eq!(xids.event(half("a", 79, 110), true), None);
        assert_eq!(xids.event(half("a", 79, 110), true), None);
        assert_eq!(xids.due(Mono(9_000)), []);
    }

    #[test]
    fn a_line_of_a_gpu_that_is_not_known_takes_the_drivers_word() {
        let mut xids = Xids::default();
        xids.event(half("a", 79, 100), true);
        assert_eq!(xids.line(half("", 31, 110)), None);
        assert_eq!(xids.line(half("", 79, 120)), half("a", 0, 0).gpu);
    }

    #[test]
    fn a_broken_gpu_costs_no_memory_and_no_event() {
        let mut xids = Xids::default();
        let told = (0..1_000).filter_map(|i| xids.event(half("a", i, 1), true));
        let told = told.count();
        let waiting = xids.due(Mono(9_000)).len();
        assert_eq!((told + waiting, waiting), (1_000, MAX_OF_KIND));
        (0..1_000).for_each(|i| {
            xids.line(half("a", i, 20_000));
        });
        assert_eq!(xids.lines.len(), MAX_OF_KIND);
    }
}
