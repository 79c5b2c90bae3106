//! Evaluates evidence from the pools of JAX, TensorFlow and CuPy on the GPU whose memory ran out: in the process that
//! failed, and in others, whose preallocated or cached memory it could have used.

use std::cmp::Reverse;

use gputop_model::reported_pool::Framework;
use gputop_model::units::Bytes;

use super::oom::Oom;
use crate::evidence::case::{Case, EvidenceRule, Finding, supports};
use crate::evidence::measurements::PoolAtFailure;
use crate::fields::FieldMap;

pub(super) const EVIDENCE: &[EvidenceRule] = &[
    ("other-process-reserves-unused", others_reserve_unused),
    ("pool-beside-pytorch", beside_pytorch),
    ("pool-cannot-grow", cannot_grow),
    ("pool-at-limit", at_limit),
    ("pool-full", full),
    ("pool-fragmented", fragmented),
    ("request-exceeds-pool", request_exceeds_pool),
];

/// Minimum unused memory of another process's pool that is worth mentioning.
const MIN_UNUSED: Bytes = Bytes(1 << 30);
const MAX_MENTIONED: usize = 3;
/// Minimum share of a pool's limit, in percent, for a pool that has grown to its limit, or is filled by live arrays.
const MIN_FULL_PERCENT: u64 = 85;

/// Values of a pool that are all known.
#[derive(Debug, Clone, Copy)]
struct PoolSizes {
    in_use: u64,
    reserved: u64,
    limit: Option<u64>,
    largest_free: Option<u64>,
    /// True if the values were read at the failure, not shortly before or after it.
    is_at_failure: bool,
}

impl PoolSizes {
    fn of(measured: &PoolAtFailure) -> Option<Self> {
        let pool = &measured.pool;
        Some(Self {
            in_use: pool.allocated.get()?.0,
            reserved: pool.reserved.get()?.0,
            limit: pool.limit.get().map(|limit| limit.0).filter(|limit| *limit > 0),
            largest_free: pool.largest_free_block.get().map(|largest| largest.0),
            is_at_failure: measured.lag.is_none(),
        })
    }

    fn unused(&self) -> u64 {
        self.reserved.saturating_sub(self.in_use)
    }

    fn fills_limit(&self, bytes: u64) -> bool {
        self.limit.is_some_and(|limit| bytes >= limit / 100 * MIN_FULL_PERCENT)
    }
}

/// Returns the pool in which the request failed: the only one of the process, or the one that the message names by its
/// device (`allocator GPU_3_bfc`).
fn own<'a>(case: &Case<'a>) -> Option<&'a PoolAtFailure> {
    let own = || case.measured.pools.iter().filter(|measured| measured.is_own);
    let is_named = |measured: &&PoolAtFailure| {
        let pool = &measured.pool;
        case.context.contains(&format!("GPU_{}_bfc", pool.ordinal))
            && matches!(pool.framework, Framework::Jax | Framework::Tensorflow)
    };
    let mut all = own();
    match (all.next(), all.next()) {
        (Some(only), None) => Some(only),
        _ => own().find(is_named),
    }
}

fn own_sizes(case: &Case<'_>) -> Option<PoolSizes> {
    PoolSizes::of(own(case)?)
}

fn requested(case: &Case<'_>) -> Option<u64> {
    Oom::of(case).requested
}

/// Adds the state of the pool in which the request failed to the fields of the incident.
pub(crate) fn add_fields(case: &Case<'_>, found: &mut FieldMap) {
    let Some((pool, sizes)) = own(case).and_then(|pool| Some((pool, PoolSizes::of(pool)?))) else {
        return;
    };
    found.insert("pool_in_use_bytes".into(), sizes.in_use.into());
    found.insert("pool_reserved_bytes".into(), sizes.reserved.into());
    if let Some(largest) = sizes.largest_free {
        found.insert("pool_largest_free_bytes".into(), largest.into());
    }
    found.insert("pool_read".into(), pool.when().into());
}

/// Adds the process with the most preallocated memory that it does not use, and the setting that changes that. Adds the
/// process whose CuPy keeps the most free blocks.
pub(crate) fn add_preallocation(case: &Case<'_>, found: &mut FieldMap) {
    let others = unused_in_others(case);
    let cupy = others.iter().find(|measured| measured.pool.framework == Framework::Cupy);
    if let Some(measured) = cupy {
        found.insert("caching_pid".into(), measured.pool.process.pid.0.into());
    }
    let all = others.into_iter();
    let mut preallocated = all.filter(|m| m.pool.preallocation(m.conf.as_deref()).is_some());
    let Some(measured) = preallocated.next() else { return };
    let setting = match measured.pool.framework {
        Framework::Jax => "XLA_PYTHON_CLIENT_PREALLOCATE=false",
        Framework::Tensorflow => "TF_FORCE_GPU_ALLOW_GROWTH=true",
        Framework::Cupy | Framework::Unknown => return,
    };
    found.insert("preallocating_pid".into(), measured.pool.process.pid.0.into());
    found.insert("preallocation_setting".into(), setting.into());
}

/// Returns the pools of other processes with unused memory, the one with the most of it first.
fn unused_in_others<'a>(case: &Case<'a>) -> Vec<&'a PoolAtFailure> {
    let unused = |measured: &&PoolAtFailure| measured.pool.cached().get().unwrap_or_default();
    let others = case.measured.pools.iter().filter(|measured| !measured.is_own);
    let mut others: Vec<_> = others.filter(|measured| unused(measured) >= MIN_UNUSED).collect();
    others.sort_by_key(|measured| Reverse(unused(measured)));
    others
}

/// Checks whether other processes reserve memory that they do not use, and whether it would have sufficed.
fn others_reserve_unused(case: &Case<'_>) -> Option<Finding> {
    let others = unused_in_others(case);
    let sizes = || others.iter().filter_map(|measured| Some((*measured, PoolSizes::of(measured)?)));
    let clauses = sizes().take(MAX_MENTIONED).map(|(PoolAtFailure { pool, .. }, sizes)| {
        let (pid, framework) = (pool.process.pid, pool.framework.words());
        let (reserved, in_use) = (Bytes(sizes.reserved), Bytes(sizes.in_use));
        format!("process {pid} ({framework}) reserves {reserved} and uses {in_use} of it")
    });
    let clause = clauses.collect::<Vec<String>>().join(", and ");
    if clause.is_empty() {
        return None;
    }
    let oom = Oom::of(case);
    let free = oom.free.or(case.measured.gpu_free.map(|free| free.0)).unwrap_or(0);
    let available = sizes().fold(free, |sum, (_, sizes)| sum.saturating_add(sizes.unused()));
    let suffices = oom.requested.is_none_or(|requested| available >= requested);
    Some(if suffices { Finding::For(clause) } else { Finding::Hint(clause) })
}

/// Checks whether another framework in the process of a PyTorch program holds memory.
fn beside_pytorch(case: &Case<'_>) -> Option<Finding> {
    let own = case.measured.pools.iter().filter(|measured| measured.is_own);
    let sizes =
        own.filter_map(|measured| Some((measured.pool.framework, PoolSizes::of(measured)?)));
    let (framework, sizes) = sizes.max_by_key(|(_, sizes)| sizes.reserved)?;
    supports(sizes.reserved >= MIN_UNUSED.0, || {
        format!(
            "the pool of {} in this process reserves {} and uses {} of it",
            framework.words(),
            Bytes(sizes.reserved),
            Bytes(sizes.in_use)
        )
    })
}

/// Checks whether the driver refused memory although the pool was below its limit.
fn cannot_grow(case: &Case<'_>) -> Option<Finding> {
    let (sizes, requested) = (own_sizes(case)?, requested(case)?);
    let limit = sizes.limit?;
    let is_below = sizes.reserved.saturating_add(requested) <= limit;
    // A reading from before the failure proves this only if the GPU was already full.
    let was_full = case.measured.gpu_free.is_some_and(|free| free.0 < requested);
    supports(is_below && (sizes.is_at_failure || was_full), || {
        format!(
            "the pool had {} of its limit of {}, but the driver could not provide more",
            Bytes(sizes.reserved),
            Bytes(limit)
        )
    })
}

/// Checks whether the pool had reached its limit while enough of the GPU was free.
fn at_limit(case: &Case<'_>) -> Option<Finding> {
    let (sizes, requested) = (own_sizes(case)?, requested(case)?);
    let (limit, free) = (sizes.limit?, case.measured.gpu_free?);
    supports(sizes.fills_limit(sizes.reserved) && free.0 >= requested, || {
        format!("the pool's limit is {}, while {free} of the GPU was free outside it", Bytes(limit))
    })
}

/// Checks whether arrays that existed before the request fill the pool.
fn full(case: &Case<'_>) -> Option<Finding> {
    let sizes = own_sizes(case)?;
    let clause = || {
        format!("{} of the {} in the pool was in use", Bytes(sizes.in_use), Bytes(sizes.reserved))
    };
    if !sizes.fills_limit(sizes.in_use) {
        return None;
    }
    // A request that is larger than what exists is the more likely reason.
    let is_small = requested(case).is_some_and(|requested| requested <= sizes.in_use);
    Some(if is_small { Finding::For(clause()) } else { Finding::Hint(clause()) })
}

/// Checks whether enough of the pool was free, but not in one chunk.
fn fragmented(case: &Case<'_>) -> Option<Finding> {
    let (sizes, requested) = (own_sizes(case)?, requested(case)?);
    let largest = sizes.largest_free?;
    if sizes.unused() < requested || largest >= requested {
        return None;
    }
    let clause = format!(
        "{} of the pool was free, but its largest free chunk had {}",
        Bytes(sizes.unused()),
        Bytes(largest)
    );
    Some(if sizes.is_at_failure { Finding::For(clause) } else { Finding::Hint(clause) })
}

fn request_exceeds_pool(case: &Case<'_>) -> Option<Finding> {
    let (requested, limit) = (requested(case)?, own_sizes(case)?.limit?);
    supports(requested > limit, || {
        format!(
            "{} was requested, more than the pool's limit of {}",
            Bytes(requested),
            Bytes(limit)
        )
    })
}
