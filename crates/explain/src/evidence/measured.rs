//! Evaluates evidence from measurements before and during a failure. If only a log is available, there are no
//! measurements.

use gputop_model::holders::HolderClass;
use gputop_model::holders::summary::HolderSummary;
use gputop_model::units::Bytes;

use super::oom::Oom;
use crate::evidence::case::{Case, EvidenceRule, Finding, supports};

/// Minimum growth in bytes per minute that counts as evidence; smaller growth is noise.
const MIN_GROWTH: f64 = 16.0 * 1024.0 * 1024.0;
/// A memory peak counts as a spike if it is at least this many times the highest earlier peak.
const MIN_SPIKE: f64 = 1.1;

pub(super) const EVIDENCE: &[EvidenceRule] = &[
    ("allocated-memory-grows", grows),
    ("spike", spike),
    ("first-step", first_step),
    ("later-step", later_step),
    ("retries-rose", retries),
    ("other-processes-grew", others_grew),
    ("page-cache-suffices", page_cache_suffices),
    ("largest-free-block-too-small", free_block_too_small),
    ("small-blocks-hold-segments", pinned_segments),
    ("free-block-on-other-stream", free_block_on_other_stream),
    ("holders-are-activations", held_by_activations),
    ("holders-are-states", held_by_states),
    ("holders-are-retained-graphs", held_by_retained_graphs),
    ("holders-are-retained-tensors", held_by_retained_tensors),
];

/// Minimum share of allocated memory, in percent, for a class of holders to be the main one. A class with a share below
/// [`MAX_MINOR_PERCENT`] is ruled out.
const MIN_MAIN_PERCENT: f64 = 50.0;
const MAX_MINOR_PERCENT: f64 = 10.0;

fn bytes_per_minute(bytes: f64) -> Bytes {
    Bytes(bytes.max(0.0) as u64)
}

fn grows(case: &Case<'_>) -> Option<Finding> {
    let growth = case.measured.allocated_growth?;
    let rate = bytes_per_minute(growth);
    Some(if growth > MIN_GROWTH {
        Finding::For(format!("minimum allocated memory rose by {rate} per minute"))
    } else {
        Finding::Against(format!("minimum allocated memory rose by only {rate} per minute"))
    })
}

fn spike(case: &Case<'_>) -> Option<Finding> {
    let peak = case.measured.spike?;
    // Add the failed request, because the measured peaks do not include it.
    let attempted = attempted_peak_ratio(case).filter(|attempted| *attempted > peak);
    let clause = match attempted {
        Some(attempted) => {
            format!(
                "with this request, allocated memory would reach {attempted:.2} times the highest earlier peak"
            )
        }
        None => format!("the last peak was {peak:.2} times the highest earlier peak"),
    };
    let is_spike = attempted.unwrap_or(peak) > MIN_SPIKE;
    Some(if is_spike { Finding::For(clause) } else { Finding::Against(clause) })
}

/// Returns the sum of allocated memory and the failed request, divided by the highest earlier peak.
fn attempted_peak_ratio(case: &Case<'_>) -> Option<f64> {
    let highest = case.measured.highest_peak.filter(|peak| peak.0 > 0)?;
    let oom = Oom::of(case);
    let attempted = oom.allocated?.checked_add(oom.requested?)?;
    Some(attempted as f64 / highest.0 as f64)
}

/// Smallest step number that proves that an earlier step has finished. Programs number steps from 0 or 1, and print the
/// number before or after the step.
const MIN_LATER_STEP: u64 = 3;

fn first_step(case: &Case<'_>) -> Option<Finding> {
    Some(match case.measured.steps {
        Some(0) => Finding::For("no optimizer step had finished".into()),
        Some(1) => Finding::For("one optimizer step had finished".into()),
        Some(steps) => Finding::Against(format!("{steps} optimizer steps had finished")),
        None if !case.measured.has_fallen? => {
            Finding::Hint("allocated memory had only risen since the program started".into())
        }
        None if named_holders(case).is_some() => return None,
        None => Finding::Against("allocated memory had fallen after earlier steps".into()),
    })
}

/// Determines whether the program had finished its first steps, according to the hook or the last step number in the
/// log.
fn later_step(case: &Case<'_>) -> Option<Finding> {
    let logged = || case.context.lines().rev().find_map(step_number);
    let step = case.measured.steps.or_else(logged)?;
    supports(step >= MIN_LATER_STEP, || format!("the program had reached step {step}"))
}

/// Returns the number in `step 236 loss 0.01`, `Iteration: 40/500` or `global_step=12`.
fn step_number(line: &str) -> Option<u64> {
    let line = line.to_ascii_lowercase();
    let after = |word: &str| line.find(word).map(|at| &line[at + word.len()..]);
    let rest = ["step", "iteration", "iter"].into_iter().find_map(after)?;
    let number = rest.trim_start_matches([' ', ':', '=', '[', '#']);
    let digits = number.find(|c: char| !c.is_ascii_digit());
    number[..digits.unwrap_or(number.len())].parse().ok()
}

fn retries(case: &Case<'_>) -> Option<Finding> {
    let retries = case.measured.retries?;
    supports(retries > 0, || match retries {
        1 => "the cache had been flushed once".into(),
        n => format!("the cache had been flushed {n} times"),
    })
}

fn others_grew(case: &Case<'_>) -> Option<Finding> {
    Some(match case.measured.others_grew? {
        Bytes(0) => Finding::Against(
            "no other process allocated more memory in the minute before the failure".into(),
        ),
        bytes => Finding::For(format!(
            "other processes allocated {bytes} more in the minute before the failure"
        )),
    })
}

/// Checks whether the failed request would fit into memory that the host uses only for cached files. On a GPU that shares
/// the host's memory, the driver counts cached files as used.
fn page_cache_suffices(case: &Case<'_>) -> Option<Finding> {
    let cached = case.measured.shared_page_cache?;
    let clause = format!("the GPU shares the host's memory, in which files are cached in {cached}");
    let requested = requested(case)?;
    Some(if cached >= requested { Finding::For(clause) } else { Finding::Against(clause) })
}

/// Compares the largest free block with the request. The hook reads the block's size at the failure; the sampler reads
/// it shortly afterwards.
fn free_block_too_small(case: &Case<'_>) -> Option<Finding> {
    // If no error message contains the exact size, use the lower bound on the request's size.
    let request_at_least = requested(case).or(case.measured.request_over);
    if let Some((blocks, request)) = case.measured.free_blocks.zip(request_at_least)
        && blocks.largest <= request
        && blocks.bytes >= request
    {
        let clause = format!(
            "the largest of {} free blocks ({} in total) was {}, read up to {} ms after the failure{}",
            blocks.count,
            blocks.bytes,
            blocks.largest,
            blocks.lag.0,
            rounding(blocks.largest, request)
        );
        // Every failed request is larger than the largest free block, so this fact alone proves nothing.
        return Some(match requested(case) {
            Some(_) => Finding::For(clause),
            None => Finding::Hint(clause),
        });
    }
    let (largest, request) = case.measured.largest_free_block.zip(requested(case))?;
    let how = match case.measured.free_block_lag {
        Some(lag) => format!("read up to {} ms after the failure", lag.0),
        None => "measured at the failure by the hook".to_owned(),
    };
    let is_measured_at_failure = case.measured.free_block_lag.is_none();
    let is_rounded = is_measured_at_failure && !rounding(largest, request).is_empty();
    if largest < request || is_rounded {
        let rounding = rounding(largest, request);
        let clause = format!("the largest free block was {largest}, {how}{rounding}");
        // If the request is larger than the entire cache, even an unfragmented cache could not have served it.
        let is_hint = Oom::of(case).cached.is_some_and(|cached| cached < request.0);
        return Some(if is_hint { Finding::Hint(clause) } else { Finding::For(clause) });
    }
    // This is not evidence, because the exception may have freed the block.
    is_measured_at_failure
        .then(|| Finding::Against(format!("a free block of {largest} was available, {how}")))
}

/// Returns an explanation if a free block is printed with the same size as the request that it could not serve.
fn rounding(largest: Bytes, request: Bytes) -> &'static str {
    if largest.to_string() == request.to_string() {
        "; PyTorch rounds the size in its message, so the request can be slightly larger"
    } else {
        ""
    }
}

/// Checks for nearly empty segments, which could be released if their few live blocks were freed.
fn pinned_segments(case: &Case<'_>) -> Option<Finding> {
    let pinned = case.measured.free_blocks.map(|blocks| blocks.pinned)?;
    if pinned.segments == 0 {
        return Some(Finding::Against("no segment was nearly empty".into()));
    }
    let segments = match pinned.segments {
        1 => "a segment".to_owned(),
        n => format!("{n} segments"),
    };
    let clause = format!(
        "{} of live blocks keep {segments} ({} in total) from being freed",
        pinned.live, pinned.held
    );
    let request = requested(case).or(case.measured.request_over);
    let suffices = request.is_some_and(|request| pinned.held >= request);
    Some(if suffices { Finding::For(clause) } else { Finding::Hint(clause) })
}

fn free_block_on_other_stream(case: &Case<'_>) -> Option<Finding> {
    if let Some((blocks, request)) = case.measured.free_blocks.zip(requested(case))
        && let Some(largest) = blocks.other_streams
        && case.measured.largest_free_block_other_streams.is_none()
    {
        return Some(if largest >= request && blocks.largest < request {
            Finding::For(format!(
                "a free block of {largest} belonged to a different stream than most tensors"
            ))
        } else {
            Finding::Against(no_larger_block(largest))
        });
    }
    let largest = case.measured.largest_free_block_other_streams;
    let (largest, request) = largest.zip(requested(case))?;
    Some(if largest >= request {
        Finding::For(format!(
            "a free block of {largest} belonged to another stream, measured at the failure by the hook"
        ))
    } else {
        let clause = no_larger_block(largest);
        Finding::Against(format!("{clause}, measured at the failure by the hook"))
    })
}

fn no_larger_block(largest: Bytes) -> String {
    match largest {
        Bytes(0) => "no other stream had a free block".into(),
        largest => format!("no other stream had a free block larger than {largest}"),
    }
}

fn held_by_activations(case: &Case<'_>) -> Option<Finding> {
    share(case, "tensors saved for the backward pass", |holders| Some(holders.activations()))
}

fn held_by_states(case: &Case<'_>) -> Option<Finding> {
    let names = "parameters, gradients and optimizer state";
    share(case, names, |holders| {
        // During the forward pass, gradients may not exist yet, so a small sum does not rule out the cause.
        let minimum = holders.training_minimum().unwrap_or_default();
        let all = Bytes(minimum.0.max(holders.class(HolderClass::Parameter).0));
        (holders.percent(all) >= MIN_MAIN_PERCENT).then_some(all)
    })
}

fn held_by_retained_graphs(case: &Case<'_>) -> Option<Finding> {
    share(case, "autograd graphs stored in a list, dict or other container", |holders| {
        Some(holders.retained_graphs)
    })
}

fn held_by_retained_tensors(case: &Case<'_>) -> Option<Finding> {
    share(case, "tensors in a list, dict or other container", |holders| {
        Some(holders.retained_tensors)
    })
}

/// Returns the memory holders unless most of them have no name. In a program that is already ending, the variables are gone,
/// so the sums say nothing about the cause.
fn named_holders<'a>(case: &Case<'a>) -> Option<&'a HolderSummary> {
    let without_name = [
        HolderClass::Unnamed,
        HolderClass::UnnamedArray,
        HolderClass::CppStorage,
        HolderClass::Workspace,
        HolderClass::OutsideArrays,
    ];
    let is_named = |holders: &&HolderSummary| {
        let without_name = without_name.map(|class| holders.class(class).0).iter().sum();
        holders.percent(Bytes(without_name)) < MIN_MAIN_PERCENT
    };
    case.measured.holders.as_ref().filter(is_named)
}

/// Checks how much of the allocated memory belongs to holders of one kind.
fn share(
    case: &Case<'_>,
    kind: &str,
    bytes: impl Fn(&HolderSummary) -> Option<Bytes>,
) -> Option<Finding> {
    let holders = named_holders(case)?;
    let bytes = bytes(holders)?;
    let clause = format!("{kind} held {bytes} of {} allocated", holders.allocated);
    match holders.percent(bytes) {
        MIN_MAIN_PERCENT.. => Some(Finding::For(clause)),
        ..MAX_MINOR_PERCENT => Some(Finding::Against(clause)),
        _ => None,
    }
}

fn requested(case: &Case<'_>) -> Option<Bytes> {
    case.found.get("requested_bytes")?.as_u64().map(Bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::measurements::Measured;
    use crate::fields::FieldMap;

    #[test]
    fn a_free_block_of_the_printed_size_may_be_too_small() {
        let mib = |n: u64| Bytes(n << 20);
        let found = FieldMap::from_iter([("requested_bytes".to_owned(), mib(256).0.into())]);
        let measured =
            |largest| Measured { largest_free_block: Some(largest), ..Measured::default() };
        let finding = |measured: &Measured| {
            free_block_too_small(&Case {
                found: &found,
                context: "",
                start: "",
                frames: &[],
                beside: &[],
                ranks: 1,
                table: None,
                comparison: None,
                measured,
            })
        };
        let clause = "the largest free block was 256.00 MiB, measured at the failure by the hook; PyTorch rounds the size in its message, so the request can be slightly larger";
        assert_eq!(finding(&measured(mib(256))), Some(Finding::For(clause.to_owned())));
        let larger = finding(&measured(mib(300)));
        assert!(matches!(larger, Some(Finding::Against(_))), "{larger:?}");
    }
}
