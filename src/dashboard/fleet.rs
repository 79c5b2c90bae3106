//! A row of the host list.

use gputop_model::frame::Frame;
use gputop_model::gpu::{Gpu, HealthState};
use gputop_model::host::Hello;
use gputop_model::incident::Severity;
use gputop_model::link::Link;
use gputop_model::units::{Bytes, Millis, UnixMillis};

use super::incidents::{ListedIncident, news};
use super::totals::GpuTotals;

#[derive(Debug, Clone, PartialEq)]
pub struct FleetRow {
    /// Host name from the command line.
    pub name: String,
    pub link: Option<Link>,
    pub is_nvidia_smi: bool,
    pub gpus: String,
    pub used: Option<Bytes>,
    pub total: Option<Bytes>,
    /// Mean SM utilization of the host's GPUs.
    pub sm: Option<f64>,
    pub processes: Option<usize>,
    pub time: UnixMillis,
    pub interval: Millis,
    /// Newest unread incident: its severity, its headline, and the total number of unread incidents.
    pub incident: Option<(Severity, String, usize)>,
}

impl FleetRow {
    pub fn of(
        name: String,
        link: Option<Link>,
        hello: &Hello,
        frame: &Frame,
        unread: &[&ListedIncident],
    ) -> Self {
        let is_known = frame.seq > 0 || !frame.gpus.is_empty();
        let totals = GpuTotals::of(&frame.gpus);
        let newest = news(unread.iter().copied());
        Self {
            name,
            link,
            is_nvidia_smi: hello.reduced,
            gpus: if is_known { gpus_text(frame) } else { String::new() },
            used: totals.used,
            total: totals.memory,
            sm: totals.sm,
            processes: frame.processes.as_ref().map(|processes| processes.list.len()),
            time: frame.time,
            interval: frame.interval,
            incident: newest.map(|new| (new.severity, new.headline.clone(), unread.len())),
        }
    }

    /// Returns true if the connection to the host is lost.
    pub fn is_lost(&self) -> bool {
        matches!(self.link, Some(Link::Lost { .. }))
    }

    pub fn share(&self) -> Option<f64> {
        let (used, total) = (self.used?.0, self.total?.0);
        (total > 0).then(|| used as f64 / total as f64)
    }

    /// Returns the row's rank in the default order. Lower ranks come first.
    pub fn rank(&self) -> (u8, u8) {
        let link = match &self.link {
            Some(Link::Lost { .. }) => 0,
            Some(Link::Silent { .. }) => 1,
            Some(Link::Connecting | Link::Later { .. }) => 2,
            _ => 3,
        };
        let incident = match &self.incident {
            Some((Severity::Fatal, ..)) => 0,
            Some((Severity::Caught, ..)) => 1,
            Some(_) => 2,
            None => 3,
        };
        (incident, link)
    }
}

/// Describes the GPUs of a host: `8xH200`, or `2xA100 1xT4` for different models.
pub fn gpus_text(frame: &Frame) -> String {
    let mut kinds: Vec<(String, usize)> = Vec::new();
    // A GPU that was lost before its name was read has none.
    let is_known =
        |gpu: &&Gpu| gpu.health.state != HealthState::Lost || gpu.memory.total.get().is_some();
    for gpu in frame.gpus.iter().filter(is_known) {
        let name = gpu.name.strip_prefix("NVIDIA ").unwrap_or(&gpu.name);
        let name = name.strip_prefix("GeForce ").unwrap_or(name);
        match kinds.iter_mut().find(|(known, _)| known == name) {
            Some((_, count)) => *count += 1,
            None => kinds.push((name.to_owned(), 1)),
        }
    }
    if kinds.is_empty() {
        return "no GPU".into();
    }
    kinds.iter().map(|(name, count)| format!("{count}x{name}")).collect::<Vec<_>>().join(" ")
}
