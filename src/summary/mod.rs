//! Summarizes a recording: peaks and percentiles of memory, utilization, energy, warnings and incidents, for each GPU
//! and each process.
//!
//! ```text
//! line of a recording ─► line::read ─► Totals::push ─► Totals::append (parts of the recording) ─► Totals::finish ─► RunSummary
//! RunSummary, RunSummary ─► compare ─► Comparison
//! ```
//!
//! Each value is weighted by the time since the previous sample. After a gap (a longer pause) the weight is zero, so
//! shares, percentiles and energy cover only the time that was actually recorded.

mod compare;
mod distribution;
mod fit;
mod line;
mod run_summary;
mod subject;
mod totals;

pub use self::compare::{ComparedSubject, Difference, RunComparison, compare};
pub use self::distribution::Percentiles;
pub use self::fit::{ProvenFit, UnprovenFit, smallest_gpu};
pub use self::line::{FrameLine, RecordedLine, read};
pub use self::run_summary::{
    Energy, FixSummary, GpuSummary, IncidentSummary, PhaseShare, PhaseSummary, PoolSummary,
    ProcessSummary, RunSummary, ThrottleShare, WarningSummary,
};
pub use self::subject::{Figure, Quantity, Subject};
pub use self::totals::{RETENTION, Totals};
