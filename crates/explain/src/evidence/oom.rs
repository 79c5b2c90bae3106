//! Evaluates evidence from the numbers in PyTorch's out-of-memory message.
//!
//! PyTorch builds the message after releasing all free segments to the driver (CUDACachingAllocator.cpp). Memory that
//! is "reserved but unallocated" is therefore in fragments between live tensors. The requested size is the size of the
//! segment that PyTorch requested from the driver.

use gputop_model::units::Bytes;

use crate::current_settings;
use crate::evidence::case::{Case, EvidenceRule, Finding, supports};
use crate::fields::FieldMap;
use crate::smi_table::are_close;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
/// Upper bound, in bytes, on the memory used by a CUDA context and its libraries, used if the message does not contain
/// the actual size. Measured: 518 MiB on an H200 with torch 2.11, and more with cuDNN and NCCL loaded.
const CONTEXT: u64 = GIB;
/// Minimum share of memory, in percent, that live tensors hold if they fill it.
const MIN_FILLED_PERCENT: u64 = 85;

pub(super) const EVIDENCE: &[EvidenceRule] = &[
    ("no-sizes", no_sizes),
    ("over-limit", over_limit),
    ("free-memory-suffices", free_suffices),
    ("fits-without-fragmentation", fits_without_fragmentation),
    ("cache-suffices", cache_suffices),
    ("other-processes-hold-most", others_hold_most),
    ("fits-without-other-processes", fits_without_others),
    ("non-pytorch-large", non_pytorch),
    ("mostly-non-pytorch", mostly_non_pytorch),
    ("private-pools", private_pools),
    ("private-pools-fill-gpu", private_pools_fill),
    ("other-processes-similar", others_similar),
    ("other-processes-started-together", others_started_together),
    ("request-small", request_small),
    ("request-large", request_large),
    ("request-exceeds-gpu", request_exceeds_gpu),
    ("request-absurd", request_absurd),
    ("oversubscribed", oversubscribed),
    ("not-attributable", not_attributable),
    ("mig-device", mig_device),
    ("live-tensors-fill-gpu", live_tensors_fill),
    ("expandable-segments-on", expandable_segments_on),
    ("live-tensors-fill-share", live_tensors_fill_share),
    ("gpu-full", gpu_full),
    ("no-text", no_text),
];

/// Numbers in an out-of-memory message. A number that is not in the message is `None`.
pub(super) struct Oom {
    pub(super) requested: Option<u64>,
    /// Lower bound on the request's size in bytes, if the exact size is unknown.
    request_over: Option<u64>,
    /// Total memory of the GPU in bytes.
    total: Option<u64>,
    pub(super) free: Option<u64>,
    pub(super) allocated: Option<u64>,
    /// Reserved but unallocated memory in bytes.
    pub(super) cached: Option<u64>,
    /// Memory limit of this process in bytes.
    limit: Option<u64>,
    /// Memory used by this process in bytes.
    this: Option<u64>,
    /// Memory allocated in private pools in bytes.
    private: Option<u64>,
    /// Memory used by other processes named in the message, in bytes.
    others: u64,
}

impl Oom {
    pub(super) fn of(case: &Case<'_>) -> Self {
        Self::read(case.found, case.measured.request_over)
    }

    fn read(found: &FieldMap, request_over: Option<Bytes>) -> Self {
        let get = |name: &str| found.get(name).and_then(serde_json::Value::as_u64);
        let allocated = get("allocated_bytes");
        let others = found.get("other_processes").and_then(|o| o.as_array()).map_or(0, |all| {
            all.iter().filter_map(|p| p["bytes"].as_u64()).fold(0, u64::saturating_add)
        });
        let requested = get("requested_bytes");
        Self {
            requested,
            request_over: request_over.map(|b| b.0).filter(|_| requested.is_none()),
            total: get("total_bytes"),
            free: get("free_bytes"),
            allocated,
            cached: get("reserved_unallocated_bytes")
                .or_else(|| Some(get("reserved_bytes")?.saturating_sub(allocated?))),
            limit: get("allowed_bytes"),
            this: get("process_bytes"),
            private: get("private_pool_bytes"),
            others,
        }
    }

    fn reserved(&self) -> Option<u64> {
        Some(self.allocated?.saturating_add(self.cached?))
    }

    /// Returns the memory that this process could still get from the driver: free memory, within the process's limit.
    fn obtainable(&self) -> Option<u64> {
        let within_limit = self.limit.zip(self.reserved());
        let within_limit = within_limit.map(|(limit, reserved)| limit.saturating_sub(reserved));
        match (self.free, within_limit) {
            (Some(free), Some(within)) => Some(free.min(within)),
            (free, within) => free.or(within),
        }
    }

    /// Returns the used GPU memory that the message does not attribute to any process.
    fn unattributed(&self) -> Option<u64> {
        let this = match self.this {
            // The message contains 0 bytes if the driver does not report the value.
            Some(this) => this.max(self.reserved().or(self.allocated).unwrap_or(0)),
            // Without the size of the cache, the rest may be this process's own.
            None => self.reserved()?.saturating_add(CONTEXT),
        };
        let known = self.free?.saturating_add(this).saturating_add(self.others);
        Some(self.total?.saturating_sub(known))
    }

    /// Returns the memory that this process allocated outside PyTorch.
    fn outside(&self) -> Option<u64> {
        Some(self.this?.saturating_sub(self.reserved()?))
    }

    /// Returns the memory used by other processes, whether the message names them or not.
    fn used_by_others(&self) -> Option<u64> {
        Some(self.others.saturating_add(self.unattributed()?))
    }
}

fn b(bytes: u64) -> Bytes {
    Bytes(bytes)
}

fn no_sizes(case: &Case<'_>) -> Option<Finding> {
    let oom = Oom::of(case);
    let none = oom.requested.is_none() && oom.allocated.is_none() && oom.total.is_none();
    supports(none, || "the message contains no memory figures".into())
}

fn over_limit(case: &Case<'_>) -> Option<Finding> {
    let oom = Oom::of(case);
    let limit = oom.limit?;
    // A limit that includes all of the GPU's memory has no effect.
    supports(oom.total.is_none_or(|total| limit < total / 100 * 99), || match oom.free {
        Some(free) => format!(
            "the limit for this process is {}, while {} was free on the GPU",
            b(limit),
            b(free)
        ),
        None => format!("the limit for this process is {}", b(limit)),
    })
}

/// Checks whether enough memory was free for the request. Less than 100 MiB of free memory does not count, because the
/// GPU is then considered full.
fn free_suffices(case: &Case<'_>) -> Option<Finding> {
    let oom = Oom::of(case);
    let (requested, free) = (oom.requested?, oom.free?);
    supports(free >= requested && free >= 100 * MIB, || {
        format!("{} was free, enough for the {} requested", b(free), b(requested))
    })
}

/// Fragmentation by its definition. Before PyTorch reports a failed request, it returns every segment that is entirely
/// free. So if free and cached memory together are at least the request, it would have fitted without fragmentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OomFragmentation {
    /// Bytes in fragments of PyTorch's cache.
    pub(crate) cached: u64,
    /// Bytes that the process could still have allocated, or `None` if the message does not contain them.
    pub(crate) free: Option<u64>,
}

/// Returns the fragmented memory of a failed request that would have fitted without fragmentation.
pub(crate) fn fragmentation(found: &FieldMap) -> Option<OomFragmentation> {
    let oom = Oom::read(found, None);
    fragmentation_of(&oom).filter(|_| !private_pools_are_large(&oom).unwrap_or(false))
}

fn fragmentation_of(oom: &Oom) -> Option<OomFragmentation> {
    let (requested, cached) = (oom.requested?, oom.cached?);
    let free = oom.obtainable();
    // Enough free memory means that the driver refused it for another reason.
    let is_refused = free.is_none_or(|free| free < requested);
    let suffices = cached.saturating_add(free.unwrap_or(0)) >= requested;
    (is_refused && suffices).then_some(OomFragmentation { cached, free })
}

fn fits_without_fragmentation(case: &Case<'_>) -> Option<Finding> {
    let oom = Oom::of(case);
    let Some(requested) = oom.requested else { return unknown_request_fits(&oom) };
    let Some(fragmentation) = fragmentation_of(&oom) else { return too_small_in_total(&oom) };
    let (cached, requested) = (b(fragmentation.cached), b(requested));
    let clause = match fragmentation.free {
        Some(free) => {
            format!("{} free + {cached} cached >= {requested} requested", b(free))
        }
        None => format!("{cached} cached in fragments, {requested} requested"),
    };
    // Other requests cannot use the free blocks of a private pool.
    Some(match private_pools_are_large(&oom) {
        Some(true) => Finding::Hint(clause),
        _ => Finding::For(clause),
    })
}

/// Checks whether the fragments of the cache alone would suffice for the request.
fn cache_suffices(case: &Case<'_>) -> Option<Finding> {
    let oom = Oom::of(case);
    match oom.requested.zip(oom.cached) {
        Some((requested, cached)) if cached < requested => None,
        _ => fits_without_fragmentation(case),
    }
}

/// Without the size of the request, the definition cannot be applied. The largest free block was too small for it, which
/// is likely if a large part of the reserved memory is in fragments.
fn unknown_request_fits(oom: &Oom) -> Option<Finding> {
    let (over, cached, reserved) = (oom.request_over?, oom.cached?, oom.reserved()?);
    supports(cached >= over && cached.saturating_mul(4) >= reserved, || {
        format!("{} cached in fragments, more than {} requested", b(cached), b(over))
    })
}

/// Checks whether free and cached memory together are less than the request, which rules out fragmentation.
fn too_small_in_total(oom: &Oom) -> Option<Finding> {
    let requested = oom.requested?;
    let sum = oom.cached?.saturating_add(oom.obtainable()?);
    (sum < requested).then(|| {
        Finding::Against(format!(
            "all free and cached memory, {}, is less than the {} requested",
            b(sum),
            b(requested)
        ))
    })
}

fn others_clause(oom: &Oom) -> Option<String> {
    let unattributed = oom.unattributed()?;
    let total = oom.total?;
    Some(match (oom.others, unattributed) {
        (0, unattributed) => format!(
            "the message does not attribute {} of {} to any process",
            b(unattributed),
            b(total)
        ),
        (others, unattributed) if unattributed < GIB => {
            format!("other processes hold {} of {}", b(others), b(total))
        }
        (others, unattributed) => {
            format!(
                "other processes hold {}, and {} of {} is unattributed",
                b(others),
                b(unattributed),
                b(total)
            )
        }
    })
}

/// Checks whether other processes use more than half of the GPU's memory.
fn others_hold_most(case: &Case<'_>) -> Option<Finding> {
    let oom = Oom::of(case);
    let clause = others_clause(&oom)?;
    supports(oom.used_by_others()? > oom.total? / 2, || clause)
}

/// Checks whether the request would fit without the other processes.
fn fits_without_others(case: &Case<'_>) -> Option<Finding> {
    let oom = Oom::of(case);
    let (by_others, total) = (oom.used_by_others()?, oom.total?);
    let free = oom.free?.saturating_add(oom.cached.unwrap_or(0));
    let short = oom.requested?.saturating_sub(free);
    // Without the sizes of processes, the unattributed memory includes what this process allocated outside PyTorch.
    let is_named = oom.others > 0 || oom.this.is_some_and(|this| this > 0);
    let uncertainty = if is_named { total / 20 } else { (total / 20).max(CONTEXT) };
    if by_others >= short.max(1) && by_others > uncertainty {
        return others_clause(&oom).map(Finding::For);
    }
    Some(Finding::Against(format!("other processes hold {} of {}", b(by_others), b(total))))
}

fn non_pytorch(case: &Case<'_>) -> Option<Finding> {
    let outside = Oom::of(case).outside()?;
    Some(if outside >= GIB {
        Finding::Hint(format!(
            "{} of this process's memory was allocated outside PyTorch",
            b(outside)
        ))
    } else {
        Finding::Against(format!(
            "only {} of this process's memory was allocated outside PyTorch",
            b(outside)
        ))
    })
}

/// Checks whether this process has allocated more than half of the GPU's memory outside PyTorch.
fn mostly_non_pytorch(case: &Case<'_>) -> Option<Finding> {
    let oom = Oom::of(case);
    let outside = oom.outside()?;
    supports(outside > oom.total? / 2, || {
        format!("{} of this process's memory was allocated outside PyTorch", b(outside))
    })
}

fn private_pools(case: &Case<'_>) -> Option<Finding> {
    let oom = Oom::of(case);
    let private = oom.private?;
    supports(private_pools_are_large(&oom)?, || {
        format!("{} is in private pools (CUDA graphs)", b(private))
    })
}

fn private_pools_are_large(oom: &Oom) -> Option<bool> {
    let (private, allocated) = (oom.private?, oom.allocated?);
    Some(private.saturating_mul(10) >= allocated && private >= 64 * MIB)
}

/// Checks whether private pools use more than half of the GPU's memory.
fn private_pools_fill(case: &Case<'_>) -> Option<Finding> {
    let oom = Oom::of(case);
    let (private, total) = (oom.private?, oom.total?);
    supports(private > total / 2, || format!("private pools hold {} of {}", b(private), b(total)))
}

/// Checks whether at least two other processes use about as much memory as this one, as the ranks of one job do.
fn others_similar(case: &Case<'_>) -> Option<Finding> {
    let this = Oom::of(case).this?;
    let others = case.found.get("other_processes")?.as_array()?.iter();
    let bytes = others.filter_map(|process| process["bytes"].as_u64());
    let count = bytes.filter(|&b| b / 2 <= this && this / 2 <= b).count();
    supports(count >= 2, || {
        format!("{count} other processes on this GPU hold about as much memory as this one")
    })
}

/// Checks whether the PIDs of at least two other processes are close together, as those of the ranks of one job are.
fn others_started_together(case: &Case<'_>) -> Option<Finding> {
    let others = case.found.get("other_processes")?.as_array()?.iter();
    let mut pids: Vec<u64> = others.filter_map(|process| process["pid"].as_u64()).collect();
    pids.sort_unstable();
    pids.dedup();
    let (count, first, last) = (pids.len(), pids.first()?, pids.last()?);
    supports(are_close(&pids), || {
        format!("the PIDs of {count} other processes are close together: {first} to {last}")
    })
}

fn request_small(case: &Case<'_>) -> Option<Finding> {
    let requested = Oom::of(case).requested?;
    supports(requested < GIB, || format!("only {} was requested", b(requested)))
}

fn request_large(case: &Case<'_>) -> Option<Finding> {
    let oom = Oom::of(case);
    let (requested, quarter) = (oom.requested?, oom.total? / 4);
    supports(requested > quarter, || {
        format!(
            "{} was requested in one block; a quarter of the GPU's memory is {}",
            b(requested),
            b(quarter)
        )
    })
}

fn request_exceeds_gpu(case: &Case<'_>) -> Option<Finding> {
    let oom = Oom::of(case);
    let (requested, total) = (oom.requested?, oom.total?);
    supports(requested > total, || {
        format!("{} was requested, but the GPU has only {}", b(requested), b(total))
    })
}

fn request_absurd(case: &Case<'_>) -> Option<Finding> {
    let oom = Oom::of(case);
    if case.context.contains("more than 1EB memory") {
        return Some(Finding::For("more than 1 EB was requested".into()));
    }
    let (requested, total) = (oom.requested?, oom.total?);
    supports(requested / 4 > total, || {
        format!("{} was requested, more than four times the GPU's {}", b(requested), b(total))
    })
}

fn oversubscribed(case: &Case<'_>) -> Option<Finding> {
    let oom = Oom::of(case);
    let (allocated, total) = (oom.allocated?, oom.total?);
    supports(allocated > total, || {
        format!("{} is allocated on a GPU with {}", b(allocated), b(total))
    })
}

fn not_attributable(case: &Case<'_>) -> Option<Finding> {
    supports(case.context.contains("17179869184.00 GiB"), || {
        "17179869184.00 GiB means that the driver cannot attribute the memory".into()
    })
}

/// Finds a MIG device in the log: `MIG-<uuid>` or `MIG 1g.10gb`. The word MIG alone is not enough, because nvidia-smi's
/// header contains it for every GPU.
fn mig_device(case: &Case<'_>) -> Option<Finding> {
    let mut after =
        case.context.match_indices("MIG").map(|(at, _)| &case.context.as_bytes()[at + 3..]);
    let is_device = |rest: &[u8]| match rest {
        [b'-', uuid @ ..] => uuid.len() >= 8 && uuid[..8].iter().all(u8::is_ascii_hexdigit),
        [b' ', slices, b'g', ..] => slices.is_ascii_digit(),
        _ => false,
    };
    supports(after.any(is_device), || "the log names a MIG device".into())
}

/// Checks whether live tensors fill the GPU. Without log text, the result is only a hint, because it is unknown what
/// these tensors are.
fn live_tensors_fill(case: &Case<'_>) -> Option<Finding> {
    let oom = Oom::of(case);
    let (allocated, total) = (oom.allocated?, oom.total?);
    if allocated <= total / 100 * MIN_FILLED_PERCENT {
        return None;
    }
    let clause = format!("live tensors hold {} of {}", b(allocated), b(total));
    // The message alone does not show whether these are activations, weights or a leak.
    let has_text = !case.frames.is_empty() || case.context.trim().lines().count() > 1;
    Some(if has_text { Finding::For(clause) } else { Finding::Hint(clause) })
}

/// Checks whether live tensors hold most of what PyTorch could use: its own memory and what it could still get. Unlike
/// the GPU's total memory, this excludes contexts and other processes.
fn live_tensors_fill_share(case: &Case<'_>) -> Option<Finding> {
    let oom = Oom::of(case);
    let (allocated, reserved) = (oom.allocated?, oom.reserved()?);
    let usable = reserved.saturating_add(oom.obtainable().unwrap_or(0));
    supports(allocated > usable / 100 * MIN_FILLED_PERCENT, || {
        format!("live tensors hold {} of the {} that PyTorch could use", b(allocated), b(usable))
    })
}

/// Setting of PyTorch's allocator that lets free blocks merge.
const EXPANDABLE_SEGMENTS: &str = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True";

/// Checks whether the program already uses expandable segments.
fn expandable_segments_on(case: &Case<'_>) -> Option<Finding> {
    let environment = case.measured.allocator_settings.as_deref().unwrap_or_default();
    let texts = [case.context, case.start, environment];
    supports(current_settings::are_shown(EXPANDABLE_SEGMENTS, &texts), || {
        "the program already uses expandable segments".into()
    })
}

/// Checks whether both the program's output and its stack are unknown.
fn no_text(case: &Case<'_>) -> Option<Finding> {
    let is_unknown = case.context.is_empty() && case.frames.is_empty();
    supports(is_unknown, || "the program's output was not readable".into())
}

fn gpu_full(case: &Case<'_>) -> Option<Finding> {
    let free = Oom::of(case).free?;
    supports(free < 100 * MIB, || format!("only {} was free on the GPU", b(free)))
}
