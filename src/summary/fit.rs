//! Finds the smallest GPU on which a program would have fit, by replaying the program's allocation trace.

use gputop_allocator::config::Config;
use gputop_allocator::rules::TorchVersion;
use gputop_allocator::trace::{Op, Trace};
use gputop_allocator::whatif::{Room, replay};
use gputop_model::units::Bytes;
use serde::Serialize;

use super::run_summary::{PoolSummary, ProcessSummary};

/// GPU memory sizes to test, in GiB.
const CARDS: &[u64] =
    &[4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 141, 180, 192, 256, 288];

/// The smallest GPU on which every request of the replayed trace succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ProvenFit {
    #[serde(rename = "card_bytes")]
    pub card: Bytes,
    /// Memory assumed to be in use outside the allocator: the process's peak use outside the allocator, plus the memory
    /// that the driver reserves for itself.
    #[serde(rename = "outside_bytes")]
    pub outside: Bytes,
    #[serde(rename = "peak_reserved_bytes")]
    pub peak_reserved: Bytes,
}

/// Reason why trace replays could not determine the smallest GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnprovenFit {
    #[error("the trace does not reach back to the start of the program")]
    Incomplete,
    #[error("an allocation failed in the trace")]
    Failed,
    #[error("the replay does not reproduce the recorded peak of reserved memory")]
    Inexact,
    #[error("no process in the recording has the same peak of reserved memory as the trace")]
    Unmatched,
    #[error("the device memory outside of PyTorch's pools was not recorded")]
    OutsideUnknown,
    #[error("the program does not fit on any smaller GPU")]
    TooLarge,
}

/// Replays a trace on GPUs of different sizes. Returns the index of the traced process and the smallest GPU on which
/// the replay succeeds. `reserved` is the memory that the driver reserves for itself.
pub fn smallest_gpu(
    trace: &Trace,
    torch: TorchVersion,
    processes: &[ProcessSummary],
    reserved: Bytes,
) -> Result<(usize, ProvenFit), UnprovenFit> {
    if trace.ops.iter().any(|op| matches!(op, Op::Refused { .. })) {
        return Err(UnprovenFit::Failed);
    }
    let peak = trace.recorded.reserved_peak.filter(|_| !trace.cut && trace.start.is_empty());
    let peak = peak.ok_or(UnprovenFit::Incomplete)?;
    let is_same = |pool: &PoolSummary| pool.ordinal == trace.device && pool.reserved_peak == peak;
    let at = processes
        .iter()
        .position(|process| process.pools.iter().any(is_same))
        .ok_or(UnprovenFit::Unmatched)?;
    let outside = processes[at].outside_peak;
    let outside = outside.ok_or(UnprovenFit::OutsideUnknown)?;
    let outside = Bytes(outside.0.saturating_add(reserved.0));
    let rules = Config::parse(trace.recorded.conf.as_deref().unwrap_or_default()).rules(torch);
    if replay(trace, &rules, Room::UNLIMITED).peak_reserved != peak {
        return Err(UnprovenFit::Inexact);
    }
    for card in CARDS.iter().map(|gib| Bytes::gib(*gib)) {
        if card <= outside {
            continue;
        }
        let outcome = replay(trace, &rules, Room { card, outside });
        if outcome.fits() {
            let peak_reserved = outcome.peak_reserved;
            return Ok((at, ProvenFit { card, outside, peak_reserved }));
        }
    }
    Err(UnprovenFit::TooLarge)
}
