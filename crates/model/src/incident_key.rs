//! Incident keys: an incident's subject (process or GPU) and the time of its first observation. Keys from different
//! observers of the same incident match.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::process::ProcessKey;
use super::units::{GpuUuid, Millis, Mono, UnixMillis};

/// Maximum difference between the times at which different observers first saw the same incident. Two dashboards, for
/// example, sample at different times.
const MAX_DISTANCE: Millis = Millis(5_000);

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct IncidentKey {
    pub boot_id: String,
    /// First process that failed, or `None` if the failure of a GPU is not attributed to a process.
    pub process: Option<ProcessKey>,
    /// The `gputop run` command that started the process. It is the subject of that run's incident record.
    pub run: Option<ProcessKey>,
    /// GPU of an incident that does not involve a process.
    pub gpu: Option<GpuUuid>,
    /// Monotonic time of the first observation, for comparisons.
    pub first: Mono,
    /// Wall-clock time of the first observation, for display and sorting.
    pub time: UnixMillis,
}

impl IncidentKey {
    /// Returns true if both keys identify the same incident: the incidents have the same subject and began within a few
    /// seconds of each other. Incidents without a known subject are the same only if they began at the same time.
    pub fn is_same(&self, other: &Self) -> bool {
        let has_no_subject = |key: &Self| key.process.is_none() && key.gpu.is_none();
        if has_no_subject(self) && has_no_subject(other) {
            return self.is_same_boot(other) && self.first == other.first;
        }
        self.shares_subject(other) && self.first.0.abs_diff(other.first.0) <= MAX_DISTANCE.0
    }

    /// Returns true if both keys refer to the same process or GPU, or if one key's process was started by the other
    /// key's command.
    pub fn shares_subject(&self, other: &Self) -> bool {
        let is_child = |part: &Self, whole: &Self| {
            part.run.is_some() && part.run == whole.process && whole.run.is_none()
        };
        self.has_same_subject(other)
            || self.is_same_boot(other) && (is_child(self, other) || is_child(other, self))
    }

    /// Returns true if both keys refer to the same process or, if neither refers to a process, to the same GPU.
    pub fn has_same_subject(&self, other: &Self) -> bool {
        self.is_same_boot(other)
            && self.process == other.process
            && (self.process.is_some() || (self.gpu.is_some() && self.gpu == other.gpu))
    }

    fn is_same_boot(&self, other: &Self) -> bool {
        !self.boot_id.is_empty() && self.boot_id == other.boot_id
    }

    /// Returns the key of an incident seen by two observers. The merged key has the earlier of the two times, and names
    /// the process rather than the command that started it.
    #[must_use]
    pub fn merged(self, other: Self) -> Self {
        let (first, then) = if other.first < self.first { (other, self) } else { (self, other) };
        let part = [&first, &then].into_iter().find(|key| key.run.is_some());
        let (process, run) = part.map_or((first.process, None), |part| (part.process, part.run));
        Self {
            process,
            run,
            gpu: first.gpu.or(then.gpu),
            boot_id: first.boot_id,
            first: first.first,
            time: first.time,
        }
    }
}
