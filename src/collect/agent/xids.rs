//! Reports each Xid once, even if both a driver event and a kernel log line describe it.
//!
//! A log line is reported immediately, because it contains more than a driver event: the text and the process. A driver
//! event is held for up to 2 s. If its log line arrives in that time, only the line is reported. If the log is not
//! readable, the event is reported immediately. An event and a line belong together if they name the same GPU and
//! arrive within 2 s of each other. Among several candidates, one with the same Xid number is preferred, but equal
//! numbers are not required: after several Xids at once, the driver gives all of them the number of the last one
//! (nvml.h, `nvmlEventSetWait_v2`).

use std::collections::VecDeque;

use gputop_model::{GpuUuid, Millis, Mono};

/// Maximum time between the driver event and the log line of one Xid.
pub const MAX_DISTANCE: Millis = Millis(2_000);
/// Maximum number of unmatched driver events, and of unmatched log lines. No Xid is lost beyond this limit: an evicted
/// event is reported, and an evicted line has already been reported.
const MAX_UNMATCHED: usize = 256;

/// Driver event or kernel log line that reports an Xid.
#[derive(Debug, Clone, PartialEq)]
pub struct XidReport {
    /// GPU on which the error occurred. `None` if the kernel log names a GPU that the driver has not listed.
    pub gpu: Option<GpuUuid>,
    pub number: u64,
    pub at: Mono,
}

#[derive(Debug, Default)]
pub struct Xids {
    /// Driver events without a matching log line, not yet reported.
    events: VecDeque<XidReport>,
    /// Log lines without a matching driver event, already reported.
    lines: VecDeque<XidReport>,
}

impl Xids {
    /// Adds a driver event. Returns an event to report now: this one if the log is not readable, or one evicted because
    /// too many are waiting.
    pub fn event(&mut self, event: XidReport, has_log: bool) -> Option<XidReport> {
        self.forget_lines(event.at);
        if !has_log {
            return Some(event);
        }
        if take_pair(&mut self.lines, &event).is_some() {
            return None;
        }
        self.events.push_back(event);
        (self.events.len() > MAX_UNMATCHED).then(|| self.events.pop_front()).flatten()
    }

    /// Adds a kernel log line, which the caller always reports. Returns the GPU that the line or its driver event
    /// names.
    pub fn line(&mut self, line: XidReport) -> Option<GpuUuid> {
        self.forget_lines(line.at);
        let event = take_pair(&mut self.events, &line);
        if event.is_none() {
            self.lines.push_back(line.clone());
            if self.lines.len() > MAX_UNMATCHED {
                self.lines.pop_front();
            }
        }
        line.gpu.or_else(|| event.and_then(|event| event.gpu))
    }

    /// Removes and returns the driver events that have waited long enough for their log lines.
    pub fn due(&mut self, now: Mono) -> Vec<XidReport> {
        let is_due = |event: &XidReport| now.since(event.at) >= MAX_DISTANCE;
        let due = self.events.iter().take_while(|event| is_due(event)).count();
        self.events.drain(..due).collect()
    }

    /// Returns the time at which the next driver event becomes due.
    pub fn next_due(&self) -> Option<Mono> {
        self.events.front().map(|event| Mono(event.at.0 + MAX_DISTANCE.0))
    }

    fn forget_lines(&mut self, now: Mono) {
        self.lines.retain(|line| now.since(line.at) <= MAX_DISTANCE);
    }
}

fn take_pair(reports: &mut VecDeque<XidReport>, other: &XidReport) -> Option<XidReport> {
    let is_near = |report: &XidReport| {
        let on_one = report.gpu.is_none() || other.gpu.is_none() || report.gpu == other.gpu;
        on_one
            && report.at.since(other.at) <= MAX_DISTANCE
            && other.at.since(report.at) <= MAX_DISTANCE
    };
    let same = |report: &XidReport| is_near(report) && report.number == other.number;
    // A report without a GPU matches a report for any GPU, but only if the number is the same.
    let renumbered =
        |report: &XidReport| is_near(report) && report.gpu.is_some() && report.gpu == other.gpu;
    let at = reports.iter().position(same).or_else(|| reports.iter().position(renumbered))?;
    reports.remove(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(gpu: &str, number: u64, at: u64) -> XidReport {
        XidReport { gpu: (!gpu.is_empty()).then(|| GpuUuid(gpu.into())), number, at: Mono(at) }
    }

    #[test]
    fn reports_an_xid_once_in_either_order() {
        let mut xids = Xids::default();
        assert_eq!(xids.event(report("a", 79, 100), true), None);
        assert_eq!(xids.line(report("a", 79, 150)), report("a", 0, 0).gpu);
        assert_eq!(xids.due(Mono(10_000)), []);

        xids.line(report("a", 31, 20_000));
        assert_eq!(xids.event(report("a", 31, 21_000), true), None);
        assert_eq!(xids.due(Mono(60_000)), []);
    }

    #[test]
    fn reports_an_event_without_a_line_after_two_seconds_or_at_once() {
        let mut xids = Xids::default();
        assert_eq!(xids.event(report("a", 79, 100), true), None);
        assert_eq!(xids.next_due(), Some(Mono(2_100)));
        assert_eq!(xids.due(Mono(2_099)), []);
        assert_eq!(xids.due(Mono(2_100)), [report("a", 79, 100)]);
        assert_eq!(xids.next_due(), None);
        let event = report("a", 79, 3_000);
        assert_eq!(xids.event(event.clone(), false), Some(event));
    }

    #[test]
    fn does_not_merge_two_xids_or_xids_of_different_gpus() {
        let mut xids = Xids::default();
        xids.line(report("a", 31, 100));
        xids.line(report("b", 31, 100));
        assert_eq!(xids.event(report("a", 31, 200), true), None);
        assert_eq!(xids.event(report("a", 31, 200), true), None);
        assert_eq!(xids.event(report("b", 31, 200), true), None);
        // The second event of GPU `a` has no log line.
        assert_eq!(xids.due(Mono(9_000)), [report("a", 31, 200)]);
        // Two reports 3 s apart describe two Xids.
        xids.line(report("a", 31, 10_000));
        xids.event(report("a", 31, 13_000), true);
        assert_eq!(xids.due(Mono(15_000)), [report("a", 31, 13_000)]);
    }

    #[test]
    fn matches_events_that_carry_the_number_of_the_last_xid() {
        let mut xids = Xids::default();
        xids.line(report("a", 31, 100));
        xids.line(report("a", 79, 101));
        assert_eq!(xids.event(report("a", 79, 110), true), None);
        assert_eq!(xids.event(report("a", 79, 110), true), None);
        assert_eq!(xids.due(Mono(9_000)), []);
    }

    #[test]
    fn a_line_of_an_unknown_gpu_takes_the_gpu_of_the_event() {
        let mut xids = Xids::default();
        xids.event(report("a", 79, 100), true);
        assert_eq!(xids.line(report("", 31, 110)), None);
        assert_eq!(xids.line(report("", 79, 120)), report("a", 0, 0).gpu);
    }

    #[test]
    fn limits_memory_without_losing_events() {
        let mut xids = Xids::default();
        let reported = (0..1_000).filter_map(|i| xids.event(report("a", i, 1), true));
        let reported = reported.count();
        let waiting = xids.due(Mono(9_000)).len();
        assert_eq!((reported + waiting, waiting), (1_000, MAX_UNMATCHED));
        (0..1_000).for_each(|i| {
            xids.line(report("a", i, 20_000));
        });
        assert_eq!(xids.lines.len(), MAX_UNMATCHED);
    }
}
