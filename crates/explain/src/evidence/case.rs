//! Evidence, the case on which it is evaluated, and the finding.

use crate::evidence::measurements::Measured;
use crate::fields::FieldMap;
use crate::traceback::TracebackFrame;

/// All known facts about one incident.
#[derive(Debug, Clone, Copy)]
pub struct Case<'a> {
    pub found: &'a FieldMap,
    /// Log text around the error message.
    pub context: &'a str,
    /// Beginning of the log.
    pub start: &'a str,
    /// Python frames above the error message, outermost first.
    pub frames: &'a [TracebackFrame],
    /// Card IDs of other incidents in the same crash.
    pub beside: &'a [&'a str],
    pub ranks: usize,
    /// Card that the table of assertions or Xids assigns to the error message.
    pub table: Option<&'a str>,
    /// Sentence about the difference between the ranks of a collective operation.
    pub comparison: Option<&'a str>,
    pub measured: &'a Measured,
}

/// Result of an evidence predicate, with a phrase that contains the measured values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    For(String),
    /// Weak evidence, which supports the cause without making it likely.
    Hint(String),
    Against(String),
}

/// Name of a piece of evidence, and the function that evaluates it. It returns `None` without enough data for a result.
pub type EvidenceRule = (&'static str, fn(&Case<'_>) -> Option<Finding>);

/// Returns evidence for a cause if a condition holds.
pub(super) fn supports(holds: bool, clause: impl FnOnce() -> String) -> Option<Finding> {
    holds.then(|| Finding::For(clause()))
}
