//! Which ranks of a distributed job hold up the others, and why.
//!
//! Each rank counts the collectives of its groups. From the counters of all ranks, and from the collectives that are
//! pending, [`JobWatch`] concludes who waits for whom, and names the rank at the end of the chain. No time of one host is
//! compared with that of another.
//!
//! ```text
//! RankObservation ─► RankTrack (what moved since the last look) ─► JobView (ranks and groups of a job)
//!                 ─► WaitGraph (who waits for whom) ─► decision ─► Verdict ─► sentence
//! ```
//!
//! Nothing is said while no collective has been pending for 10 s and for ten times the usual interval. A rank waits only
//! if none of its counters moves between two looks.

mod constant_offset;
mod decision;
mod group_position;
mod job_report;
mod job_view;
mod job_watch;
mod joined_jobs;
mod lateness;
mod observation;
mod other_operation;
mod rank_track;
mod ras;
mod sentence;
mod stack_place;
mod usual_interval;
mod verdict;
mod wait_graph;

#[cfg(test)]
mod tests;

pub use constant_offset::ConstantOffset;
pub use job_report::{JobKey, JobReport, LastCollective, RankRow, RankState, StackGroup};
pub use job_watch::JobWatch;
pub use joined_jobs::JoinedJobs;
pub use lateness::{ArrivalWatch, MIN_ARRIVALS, SlowRank};
pub use observation::{ProcessStatus, RankExit, RankObservation};
pub use ras::{RasAnswer, ras_sentences};
pub use sentence::RankList;
pub use stack_place::StackPlace;
pub use verdict::{Camp, Cause, Verdict};
