//! The identity of an incident: its subject (a process or a GPU), and the time of its first observation.

use serde::{Deserialize, Serialize};

use crate::model::process::ProcessKey;
use crate::model::units::{GpuUuid, Millis, Mono, UnixMillis};

/// Maximum time between first observations of the same incident. Two dashboards sample at different times.
const MAX_DISTANCE: Millis = Millis(5_000);

/// The subject of an incident, and the time of its first observation.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Key {
    pub boot_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessKey>,
    /// The command under `gputop run` that started the process. The record of that run has this command as its subject.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<ProcessKey>,
    /// For incidents of a GPU that are not about a process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuUuid>,
    /// Time of the first observation by the monotonic clock, for comparisons.
    pub first: Mono,
    /// The same by the wall clock, for display and sorting.
    pub time: UnixMillis,
}

impl Key {
    /// Returns true if both are about the same process or, without a process, about the same GPU. Incidents without a
    /// known subject are never the same.
    pub(super) fn is_about_same(&self, other: &Self) -> bool {
        let is_known = !self.boot_id.is_empty() && (self.process.is_some() || self.gpu.is_some());
        is_known
            && self.boot_id == other.boot_id
            && self.process == other.process
            && (self.process.is_some() || self.gpu == other.gpu)
    }

    /// Returns true if one is about a process started by the command that the other is about.
    pub(super) fn is_part(&self, other: &Self) -> bool {
        let is_child = |part: &Self, whole: &Self| {
            part.run.is_some() && part.run == whole.process && whole.run.is_none()
        };
        !self.boot_id.is_empty()
            && self.boot_id == other.boot_id
            && (is_child(self, other) || is_child(other, self))
    }

    pub(super) fn is_near(&self, other: &Self) -> bool {
        Self::are_near(self.first, other.first)
    }

    /// Returns true if two first observations of one process may be of the same incident.
    #[must_use]
    pub fn are_near(first: Mono, other: Mono) -> bool {
        first.0.abs_diff(other.0) <= MAX_DISTANCE.0
    }

    /// Returns a text that identifies the subject. A command and the processes that it started have the same text.
    pub(super) fn subject(&self) -> String {
        let process = self.run.or(self.process);
        let process = process.map(|key| (key.pid.0, key.start.0));
        let gpu = self.gpu.as_ref().filter(|_| process.is_none());
        format!("{} {process:?} {gpu:?}", self.boot_id)
    }
}
