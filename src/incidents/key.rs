//! What makes two reports of an incident the same: who it is about, and when it was first seen.

use serde::{Deserialize, Serialize};

use crate::model::process::ProcessKey;
use crate::model::units::{GpuUuid, Millis, Mono, UnixMillis};

/// Two dashboards look at different moments; what they see of one process within this time is one thing.
const WITHIN: Millis = Millis(5_000);

/// About whom an incident is, and its first observation.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Key {
    pub boot_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessKey>,
    /// The command under `gputop run` that the process is a part of: what the record of that run is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<ProcessKey>,
    /// For what happened to a GPU and to no process in particular.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuUuid>,
    /// The first observation, by the clock that never jumps: what is compared.
    pub first: Mono,
    /// The same by the wall clock: what is shown, and sorted by.
    pub time: UnixMillis,
}

impl Key {
    /// Whether both are about the same process, or without one about the same GPU. Two of which neither is known are
    /// never the same.
    pub(super) fn is_about_same(&self, other: &Self) -> bool {
        let is_known = !self.boot_id.is_empty() && (self.process.is_some() || self.gpu.is_some());
        is_known
            && self.boot_id == other.boot_id
            && self.process == other.process
            && (self.process.is_some() || self.gpu == other.gpu)
    }

    /// Whether one is about a part of the command that the other is about.
    pub(super) fn is_part(&self, other: &Self) -> bool {
        let is_below = |part: &Self, whole: &Self| {
            part.run.is_some() && part.run == whole.process && whole.run.is_none()
        };
        !self.boot_id.is_empty()
            && self.boot_id == other.boot_id
            && (is_below(self, other) || is_below(other, self))
    }

    pub(super) fn is_near(&self, other: &Self) -> bool {
        Self::are_near(self.first, other.first)
    }

    /// Whether two first observations of one process may be of one thing.
    #[must_use]
    pub fn are_near(first: Mono, other: Mono) -> bool {
        first.0.abs_diff(other.0) <= WITHIN.0
    }

    /// A text for whom it is about, which no two share but a command and its parts.
    pub(super) fn whom(&self) -> String {
        let process = self.run.or(self.process);
        let process = process.map(|key| (key.pid.0, key.start.0));
        let gpu = self.gpu.as_ref().filter(|_| process.is_none());
        format!("{} {process:?} {gpu:?}", self.boot_id)
    }
}
