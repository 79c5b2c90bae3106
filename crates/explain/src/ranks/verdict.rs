//! Who holds up whom, and why. The sentences are in `sentence`.

use std::sync::Arc;

use gputop_model::process_group::Work;
use gputop_model::reading::Missing;
use gputop_model::units::{Millis, Mono};

use super::observation::RankExit;
use super::stack_place::StackPlace;

/// Ranks of a job that wait longer than usual, and what they wait for.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    pub cause: Cause,
    /// Ranks that the others wait for, or that differ from the others, in ascending order. Empty if no rank can be named.
    pub culprits: Vec<u32>,
    /// Host of the only culprit, if the job has ranks on several of the observed hosts.
    pub culprit_host: Option<Arc<str>>,
    /// Ranks that wait, directly or for a rank that waits itself, in ascending order.
    pub waiting: Vec<u32>,
    /// Label of the group in which the ranks wait directly for the culprits.
    pub group: Arc<str>,
    /// The collective at which they wait.
    pub work: Work,
    /// Start of the longest direct wait, by the clock of `host`.
    pub since: Mono,
    pub host: Arc<str>,
    pub waited: Millis,
    /// Where the culprits are in their program, if that differs from where the others wait.
    pub place: Option<StackPlace>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Cause {
    /// The culprits have not called the collective.
    Behind,
    /// The culprits, fewer than half of the group, have called a collective that `others` have not.
    WaitsAlone {
        others: usize,
    },
    /// The culprits called another operation or another size under the same number than most ranks.
    OtherOperation {
        theirs: Work,
        usual: Work,
    },
    /// The culprits called a collective of `earlier` before one of `later`, the others the other way round.
    OtherOrder {
        earlier: Arc<str>,
        later: Arc<str>,
    },
    /// Ranks in several groups wait for each other.
    Deadlock {
        camps: Vec<Camp>,
    },
    /// NCCL has not returned from the culprits' call: set-up, proxy or launch.
    InsideNccl,
    NoProcess(RankExit),
    /// The culprits are on none of the observed hosts.
    NotOnHost {
        hosts: usize,
    },
    NotReadYet,
    NotReadable(Missing),
    Stopped,
    /// All ranks have called the collective, and it does not complete.
    NotCompleted,
    /// Ranks wait in point-to-point operations. The culprit is the only member that waits for nobody.
    PointToPoint,
}

impl Verdict {
    /// Returns true if the rank is a culprit or waits.
    pub fn concerns(&self, rank: u32) -> bool {
        self.culprits.binary_search(&rank).is_ok() || self.waiting.binary_search(&rank).is_ok()
    }
}

/// Ranks that wait in the same group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Camp {
    pub group: Arc<str>,
    pub ranks: Vec<u32>,
}
